"""What a stack of stackprof is worth, beside what debuggers and the program itself say.

A stack that stackprof calls complete is one of
  identical  every address as in a debugger's stack (a return address may be told as the
             address before it), and both end at the same frame;
  explained  it differs from all debuggers, and one of the rules below says why that is
             their error: the rule is told;
  suspect    neither: for a human to judge, both stacks are listed;
  wrong      the program's own truth contradicts it, or it ends in a function in which no
             thread begins, whatever debuggers say.
A stack that it calls incomplete is `flagged`, or `invented` if a debugger that agrees at
the leaf has another frame where stackprof already shows one.
"""

import re

# Outermost functions: of the C libraries, Go, and of stacks that are made for a fiber.
ROOTS = re.compile(
    r"_start|clone3?|__clone3?|__start_context|_start_c|_dl_start_user|libc_start_main_stage2"
    r"|start_thread|runtime\.(goexit|mstart|rt0_go|mcall|morestack|systemstack|asmcgocall|gogo|sigreturn__sigaction)"
    r"(\.abi0)?|_rt0_amd64\w*|make_fcontext|trampoline|fiber_entry\S*|\[fiber\].*|ret_from_fork\w*")
# Where a debugger goes on past a thread's first function.
JUNK_MAX = 4


def same(ours, theirs):
    """The same frame: the same address, or one as the return address of the other."""
    return theirs - ours in (0, 1)


def alike(ours, theirs):
    """How many frames from the leaf on are the same."""
    count = 0
    for a, b in zip(ours, theirs):
        if not same(a, b):
            break
        count += 1
    return count


def contains_in_order(addresses, wanted):
    """The wanted addresses that are not found in this order; none if all are there."""
    rest = iter(addresses)
    return [want for want in wanted if not any(same(have, want) for have in rest)]


def bare(name):
    """A name without arguments, clone and version suffixes."""
    name = re.sub(r"@.*|\.(constprop|isra|part|cold|lto_priv)\S*| \[clone.*", "", name)
    return name if "{" in name else re.sub(r"\(.*", "", name)


def ends_at_root(stack):
    return bool(stack.names) and ROOTS.fullmatch(bare(stack.names[-1])) is not None


def judge(ours, debuggers, truth=None, physical=None):
    """(class, reason) of one thread's stack.

    ours: stackprof's Stack. debuggers: {name: Stack}. truth: an expression that the names,
    innermost first and joined by `<`, must match in full if the stack is complete.
    physical: return addresses that must be among the frames in this order (HotSpot's).
    """
    if ours.incomplete:
        return judge_incomplete(ours, debuggers)
    if truth is not None and not truth.fullmatch("<".join(ours.names)):
        return "wrong", "the program's own truth has other frames"
    if physical:
        # The runtime guesses the frame of a thread that runs; its callers are certain.
        missing = contains_in_order(ours.addresses, physical[1:])
        if missing:
            return "wrong", f"lacks {len(missing)} of {len(physical)} frames that the runtime shows"
    if not ends_at_root(ours):
        return "wrong", "complete, and ends where no thread begins"
    short = None
    for name, theirs in debuggers.items():
        count = alike(ours.addresses, theirs.addresses)
        if count == len(ours.addresses) == len(theirs.addresses):
            return "identical", name
        if count == len(theirs.addresses) < len(ours.addresses):
            short = short or f"{name} ends early ({theirs.end or 'no reason'})"
        if count == len(ours.addresses) < len(theirs.addresses) <= count + JUNK_MAX:
            short = short or f"{name} goes on past the thread's first function"
    if truth is not None:
        return "explained", "right by the program's own truth"
    if physical:
        return "explained", "has all frames that the runtime shows"
    if short and all(explains(ours, theirs) for theirs in debuggers.values()):
        return "explained", short
    return "suspect", "no debugger agrees"


def explains(ours, theirs):
    """This debugger says nothing against our stack: it is a part of it, or runs past its end."""
    count = alike(ours.addresses, theirs.addresses)
    return count == len(theirs.addresses) or count == len(ours.addresses)


def judge_incomplete(ours, debuggers):
    shown = ours.addresses
    # Each debugger that is longer than what we show and agrees with none of the rest.
    differs = [name for name, theirs in debuggers.items()
               if 0 < alike(shown, theirs.addresses) < min(len(shown), len(theirs.addresses))]
    if differs and len(differs) == len([d for d in debuggers.values() if d.addresses]):
        return "invented", f"{ours.incomplete}; not as in {', '.join(differs)}"
    return "flagged", ours.incomplete


def listing(ours, debuggers, physical=None):
    """All stacks side by side, for a human."""
    lines = [f"stackprof{': ' + ours.incomplete if ours.incomplete else ''}"]
    methods = ours.methods or [""] * len(ours.addresses)
    for depth, (address, method, name) in enumerate(zip(ours.addresses, methods, ours.names)):
        lines.append(f"  #{depth:<3} {address:#014x} {method:<8} {name}")
    for who, theirs in debuggers.items():
        lines.append(f"{who}{': ended by ' + theirs.end if theirs.end else ''}")
        for depth, (address, name) in enumerate(zip(theirs.addresses, theirs.names)):
            found = any(same(have, address) for have in ours.addresses)
            lines.append(f"  #{depth:<3} {address:#014x} {' ' if found else '!'} {name}")
    if physical:
        lines.append("the runtime's own frames")
        for address, name in physical:
            found = any(same(have, address) for have in ours.addresses)
            lines.append(f"       {address:#014x} {' ' if found else '!'} {name}")
    return "\n".join(lines)
