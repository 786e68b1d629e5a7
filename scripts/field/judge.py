"""What a stack of stackprof is worth, beside what debuggers and the program itself say.

A stack that stackprof calls complete is one of
  identical  every address as in a debugger's stack (a return address may be told as the
             address before it), and both end at the same frame;
  explained  it differs from all debuggers, and a rule says why that is their error; the
             rule is told. One: their first other frame is no return address (astray), while
             all of ours are, up to a function in which threads begin;
  suspect    neither: for a human to judge, both stacks are listed;
  wrong      the program's own truth contradicts it, or it ends in a function in which no
             thread begins, whatever debuggers say.
A stack that it calls incomplete is `flagged`, or `invented` if a debugger that agrees at
the leaf has another return address where stackprof still shows a frame, and none agrees.
A stack that debuggers saw at a later moment is `moved`, one that either did not see is
`unseen`; they say nothing.
"""

import re

from codebytes import Facts

# Outermost functions: of the C libraries, Go, and of stacks that are made for a fiber.
ROOTS = re.compile(
    r"_start|(__)?clone3?|__start_context|_start_c|_dl_start_user|make_fcontext|\[fiber\].*|ret_from_fork\w*"
    r"|(runtime\.(clone|goexit|mstart|rt0_go|mcall|morestack|systemstack|asmcgocall)|_rt0_amd64\w*)(\.abi0)?")

# Where Go begins to use its system stack: what lies outward of it there is left from before
# (Go's own tracebacks end or change stacks there: runtime/traceback.go, funcID_systemstack).
GO_SWITCHES = re.compile(r"runtime\.(mcall|systemstack|morestack|asmcgocall)(\.abi0)?")

# Functions of libgcc that install a landing pad (unwind.inc).
RAISES = re.compile(r"_Unwind_(RaiseException|Resume|Resume_or_Rethrow|ForcedUnwind)")

# Further behind its entry than this no call is looked for in a function.
FUNCTION_BYTES_MAX = 4096


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
    return ends_at_root_by(stack.names)


def ends_at_root_by(names):
    """By names, innermost first."""
    names = [bare(name) for name in names]
    # `_start` has no name in a stripped program, but a caller of its own to be known by.
    stripped = len(names) > 1 and names[-1].startswith("[") and names[-2].startswith("__libc_start_main")
    return bool(names) and (stripped or ROOTS.fullmatch(names[-1]) is not None)


def judge(ours, debuggers, truth=None, physical=None, facts=Facts()):
    """(class, reason) of one thread's stack.

    ours: stackprof's Stack. debuggers: {name: Stack}. truth: an expression that the names,
    innermost first and joined by `<`, must match in full if the stack is complete.
    physical: return addresses that must be among the frames in this order (HotSpot's).
    facts: what the code says of the addresses in the stacks.
    """
    if ours.unseen or not debuggers:
        return "unseen", "not stopped by stackprof" if ours.unseen else "no debugger saw the thread"
    if all(moved(ours, theirs, facts) for theirs in debuggers.values()):
        return "moved", "a signal handler began as the thread was stopped"
    if ours.incomplete:
        return judge_incomplete(ours, debuggers, facts)
    if truth is not None and not truth.fullmatch("<".join(ours.names)):
        return "wrong", "the program's own truth has other frames"
    if physical:
        # The runtime guesses the frame of a thread that runs; its callers are certain.
        missing = contains_in_order(ours.addresses, physical[1:])
        if missing and not guessed_by_runtime(ours, debuggers, physical) \
                and not guessed_without_frame(ours, physical, facts) \
                and not guessed_against_the_calls(ours, physical, facts):
            return "wrong", f"lacks {len(missing)} of {len(physical)} frames that the runtime shows"
    if not ends_at_root(ours):
        return "wrong", "complete, and ends where no thread begins"
    reasons = []
    for name, theirs in debuggers.items():
        count = alike(ours.addresses, theirs.addresses)
        if count == len(ours.addresses) == len(theirs.addresses):
            return "identical", name
        if ours.addresses and count == len(ours.addresses) and theirs.addresses[count:] == [0]:
            return "identical", f"{name}, which shows an address of 0 behind it"
        reasons.append(error_of(name, ours, theirs, count, facts))
    if truth is not None:
        return "explained", "right by the program's own truth"
    if physical:
        return "explained", "has all frames that the runtime shows"
    if all(reasons):
        return "explained", "; ".join(sorted(set(reasons)))
    return "suspect", "no debugger agrees"


def guessed_by_runtime(ours, debuggers, physical):
    """True if only the runtime's caller of the leaf is not in our stack, and that is its guess.

    HotSpot's agent reckons that caller from a whole frame; in a prologue or epilogue it reads an old word.
    Ours has others in between, up to the frames that are certain, and a debugger has the same from end to end.
    A caller that ours lacked would be followed by the next certain one right behind the leaf.
    """
    certain = physical[2:]
    if not certain or contains_in_order(ours.addresses[2:], certain):
        return False
    return any(alike(ours.addresses, theirs.addresses) == len(ours.addresses) == len(theirs.addresses)
               for theirs in debuggers.values())


def guessed_without_frame(ours, physical, facts):
    """True if the leaf's frame does not stand, our caller is where it returns to, and the runtime has another one.

    What its agent finds by an old word may lead it through old frames, until it comes upon one that stands. From
    there on ours must have them all.
    """
    returns_to = facts.returns_to.get(ours.addresses[0])
    if returns_to is None or len(physical) < 2 or not same(ours.addresses[1], returns_to) \
            or same(ours.addresses[1], physical[1]):
        return False
    return has_all_that_stand(ours, physical)


def guessed_against_the_calls(ours, physical, facts):
    """True if the direct call that our caller of the leaf stands behind leads to the leaf's function, and that of
    the runtime's caller leads elsewhere. Then the runtime guessed, as above."""
    return len(ours.addresses) > 1 and len(physical) > 1 \
        and only_ours_calls(ours.addresses[1], physical[1], ours.addresses[0], facts) \
        and has_all_that_stand(ours, physical)


def has_all_that_stand(ours, physical):
    """True if ours has all frames of the runtime's from the first on that both have."""
    rest = physical[1:]
    while rest and not any(same(address, rest[0]) for address in ours.addresses[1:]):
        rest = rest[1:]
    return bool(rest) and not contains_in_order(ours.addresses[1:], rest)


def moved(ours, theirs, facts):
    """True if the debugger saw a later moment.

    A signal that came while the cgroup was frozen (a child that stops sends SIGCHLD, Go
    sends itself SIGURG) is delivered before SIGSTOP: the kernel puts the frame of a handler
    on the stack, which stackprof could not see yet. The handler has not run.
    """
    return len(theirs.addresses) > 1 and theirs.addresses[1] in facts.trampolines \
        and not any(same(address, theirs.addresses[1]) for address in ours.addresses[:2])


def error_of(name, ours, theirs, count, facts):
    """Why a debugger that shows something else is in error; empty if nothing says so."""
    if any(address in facts.no_callers for address in ours.addresses[1:]) and "__restore_rt" not in ours.names:
        return ""
    if count == len(theirs.addresses):
        return f"{name} ends early"
    if count == len(ours.addresses) and GO_SWITCHES.fullmatch(ours.names[-1]):
        return f"{name} goes on past Go's switch of stacks"
    if theirs.addresses[count] in facts.no_callers:
        return f"{name} {'goes on past the first function' if count == len(ours.addresses) else 'astray'}"
    if replaced_by_libgcc(ours, theirs, count, facts):
        return f"{name} takes the return address that libgcc had put over another"
    # By rbp alone, a leaf that has not pushed it yet seems to have been called by its caller's caller.
    without = ours.addresses[:1] + ours.addresses[2:]
    if count > 0 and alike(without, theirs.addresses) == len(without) == len(theirs.addresses) \
            and any(same(ours.addresses[1], address) for address in facts.on_top):
        return f"{name} lacks the leaf's caller, which is on top of the stack"
    return ""


def replaced_by_libgcc(ours, theirs, count, facts):
    """True if the debugger shows a return address that libgcc copied over that of the function which raises.

    To install a landing pad, libgcc puts what a frame further out saved over what its own function saved, the return
    address included (unwind-dw2.c, uw_install_context_1). Then the debugger's stack has that address twice. Behind
    a direct call, which has one target, it cannot be in both places: further out it called something else.
    From there on the debugger has the same frames, or none: it went by a frame that is not there, and ends.
    """
    if count == 0 or not RAISES.fullmatch(bare(ours.names[count - 1])) or count >= len(ours.addresses):
        return False
    rest, copied, behind = ours.addresses[count + 1:], theirs.addresses[count], theirs.addresses[count + 1:]
    further = alike(rest, behind)
    astray = not behind or further < len(behind) and behind[further] in facts.no_callers
    called = [bare(name) for name, address in zip(ours.names[count:], rest) if same(address, copied)]
    return (astray or further == len(rest) == len(behind)) \
        and copied in facts.calls and bool(called) and not any(RAISES.fullmatch(name) for name in called)


def judge_incomplete(ours, debuggers, facts):
    shown, agreed, against = ours.addresses, False, []
    for name, theirs in debuggers.items():
        count = alike(shown, theirs.addresses)
        agreed = agreed or count == len(shown)
        if 0 < count < min(len(shown), len(theirs.addresses)) and theirs.addresses[count] not in facts.no_callers \
                and not error_of(name, ours, theirs, count, facts) \
                and not only_ours_calls(shown[count], theirs.addresses[count], shown[count - 1], facts):
            against.append(name)
    if against and not agreed:
        return "invented", f"{ours.incomplete}; not as in {', '.join(against)}"
    return "flagged", ours.incomplete


def only_ours_calls(ours, theirs, callee, facts):
    """True if a direct call before our return address leads to the function of `callee`, an address in it, and the
    debugger's return address stands behind a direct call of something else."""
    targets = [facts.calls.get(address) for address in (ours, ours + 1, theirs)]
    leads = [target is not None and 0 <= callee - target < FUNCTION_BYTES_MAX for target in targets]
    return any(leads[:2]) and targets[2] is not None and not leads[2]


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
