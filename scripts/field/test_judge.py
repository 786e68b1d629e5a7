"""The judge is what the field is believed by, so each verdict has a case that needs it."""

import re
import unittest

import judge
import programs
import recordings
import servers
import shares
from codebytes import Code, Facts, ends_with_call
from peers import Stack, parse_dump
from pprof import Frame


def stack(*frames, **more):
    """Frames as `name@address`, innermost first."""
    parts = [frame.split("@") for frame in frames]
    return Stack([int(address, 16) for _, address in parts], [name for name, _ in parts], **more)


WALKED = ("leaf@100", "mid@200", "main@300", "__libc_start_main@400", "_start@500")
# Debuggers tell the address that the call returns to.
TOLD = ("leaf@100", "mid@201", "main@301", "__libc_start_main@401", "_start@501")


class Verdicts(unittest.TestCase):
    def verdict(self, ours, debuggers, **more):
        return judge.judge(ours, debuggers, **more)[0]

    def test_same_from_end_to_end(self):
        self.assertEqual(self.verdict(stack(*WALKED), {"gdb": stack(*TOLD)}), "identical")

    def test_one_debugger_that_agrees_is_enough(self):
        debuggers = {"eu-stack": stack("leaf@100"), "gdb": stack(*TOLD)}
        self.assertEqual(self.verdict(stack(*WALKED), debuggers), "identical")

    def test_a_frame_more_or_less_is_suspect(self):
        short = (WALKED[0], *WALKED[2:])
        self.assertEqual(self.verdict(stack(*short), {"gdb": stack(*TOLD)}), "suspect")
        self.assertEqual(self.verdict(stack(*WALKED), {"gdb": stack(TOLD[0], *TOLD[2:])}), "suspect")

    def test_an_end_in_the_middle_is_wrong_even_if_a_debugger_shows_the_same(self):
        self.assertEqual(self.verdict(stack(*WALKED[:2]), {"gdb": stack(*TOLD[:2])}), "wrong")

    def test_a_stripped_start_is_known_by_its_callee(self):
        ours = (*WALKED[:4], "[prog+0x500]@500")
        self.assertEqual(self.verdict(stack(*ours), {"gdb": stack(*TOLD)}), "identical")

    def test_debuggers_that_end_early_say_nothing_against_it(self):
        self.assertEqual(self.verdict(stack(*WALKED), {"gdb": stack(*TOLD[:2])}), "explained")

    def test_a_frame_that_is_no_return_address_refutes_the_debugger(self):
        debuggers = {"gdb": stack(*TOLD[:2], "??@77", *TOLD[2:])}
        self.assertEqual(self.verdict(stack(*WALKED), debuggers), "suspect")
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, facts=Facts(frozenset([0x77]))), "explained")

    def test_callers_of_our_last_frame_make_it_suspect_if_they_are_return_addresses(self):
        debuggers = {"gdb": stack(*TOLD, "??@77")}
        self.assertEqual(self.verdict(stack(*WALKED), debuggers), "suspect")
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, facts=Facts(frozenset([0x77]))), "explained")

    def test_what_lies_past_gos_switch_of_stacks_is_old(self):
        ours = (*WALKED[:2], "runtime.systemstack.abi0@300")
        debuggers = {"gdb": stack(*TOLD[:2], "runtime.systemstack@301", "runtime.newproc@901")}
        self.assertEqual(self.verdict(stack(*ours), debuggers), "explained")

    def test_but_not_if_ours_has_such_a_frame_as_well(self):
        debuggers = {"gdb": stack(*TOLD[:2], "??@77", *TOLD[2:])}
        facts = Facts(frozenset([0x77, 0x300]))
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, facts=facts), "suspect")

    def test_one_debugger_that_is_not_refuted_keeps_it_suspect(self):
        debuggers = {"gdb": stack(*TOLD[:2], "??@77"), "eu-stack": stack(TOLD[0], *TOLD[2:])}
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, facts=Facts(frozenset([0x77]))), "suspect")

    def test_the_leafs_caller_on_top_of_the_stack(self):
        debuggers = {"eu-stack": stack(TOLD[0], *TOLD[2:])}
        facts = Facts(on_top=frozenset([0x201]))
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, facts=facts), "explained")
        unproved = stack(*WALKED, incomplete="unverified frame record")
        self.assertEqual(self.verdict(unproved, debuggers, facts=facts), "flagged")
        self.assertEqual(self.verdict(unproved, debuggers), "invented")
        # One that calls itself: the caller's caller has the same address.
        again = stack(*WALKED[:2], *WALKED[1:])
        self.assertEqual(self.verdict(again, {"eu-stack": stack(*TOLD)}, facts=facts), "explained")
        self.assertEqual(self.verdict(again, {"eu-stack": stack(*TOLD)}), "suspect")

    def test_a_return_address_that_libgcc_put_over_another(self):
        ours = stack("uw@100", "_Unwind_Resume@150", "f [clone .cold]@200", "f@300", "f@300", "main@400", "_start@500")
        theirs = {"eu-stack": stack("uw@100", "_Unwind_Resume@151", "f@301", "f@301", "f@301", "main@401", "_start@501")}
        facts = Facts(calls={0x301: 0x280})
        self.assertEqual(self.verdict(ours, theirs, facts=facts), "explained")
        self.assertEqual(self.verdict(ours, theirs), "suspect", "it may have called either")
        astray = {"gdb": stack("uw@100", "_Unwind_Resume@151", "f@301", "??@77")}
        self.assertEqual(self.verdict(ours, astray, facts=facts), "suspect", "it ends elsewhere")
        facts = Facts(frozenset([0x77]), calls={0x301: 0x280})
        self.assertEqual(self.verdict(ours, astray, facts=facts), "explained")
        early = {"eu-stack": stack("uw@100", "_Unwind_Resume@151", "f@301"), **astray}
        self.assertEqual(self.verdict(ours, early, facts=facts), "explained")
        elsewhere = stack("uw@100", "g@150", *(f"{name}@{address:x}" for name, address in
                                              list(zip(ours.names, ours.addresses))[2:]))
        self.assertEqual(self.verdict(elsewhere, theirs, facts=facts), "suspect", "not a function that raises")
        only = {"gdb": stack("uw@100", "_Unwind_Resume@151", "g@601", "f@301", "f@301", "main@401", "_start@501")}
        facts = Facts(calls={0x601: 0x280})
        self.assertEqual(self.verdict(ours, only, facts=facts), "suspect", "no frame further out has it")

    def test_the_programs_own_truth_decides(self):
        truth = re.compile("leaf<mid<main<.*")
        self.assertEqual(self.verdict(stack(*WALKED), {"gdb": stack(*TOLD[:1])}, truth=truth), "explained")
        lacking = (WALKED[0], *WALKED[2:])
        same = {"gdb": stack(TOLD[0], *TOLD[2:])}
        self.assertEqual(self.verdict(stack(*lacking), same), "identical")
        self.assertEqual(self.verdict(stack(*lacking), same, truth=truth), "wrong")

    def test_the_runtimes_frames_decide(self):
        lacking = (WALKED[0], *WALKED[2:])
        same = {"gdb": stack(TOLD[0], *TOLD[2:])}
        self.assertEqual(self.verdict(stack(*WALKED), {"gdb": stack(*TOLD)}, physical=[0x100, 0x201, 0x301]), "identical")
        self.assertEqual(self.verdict(stack(*lacking), same, physical=[0x100, 0x201, 0x301]), "wrong")

    def test_the_runtimes_guess_of_the_leafs_caller_decides_nothing_against_a_debugger(self):
        debuggers = {"eu-stack": stack(*TOLD)}
        guessed = [0x100, 0x777, 0x301, 0x401]
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=guessed), "identical")
        self.assertEqual(self.verdict(stack(*WALKED), {"gdb": stack(*TOLD[:2])}, physical=guessed), "wrong")
        # Ours goes from the leaf to the caller's caller, and so does the debugger.
        lacks = {"eu-stack": stack(TOLD[0], *TOLD[2:])}
        self.assertEqual(self.verdict(stack(WALKED[0], *WALKED[2:]), lacks, physical=guessed), "wrong")
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=[0x100, 0x201, 0x777, 0x401]), "wrong")

    def test_where_a_leaf_without_a_frame_returns_to_is_not_what_the_runtime_guesses(self):
        debuggers = {"gdb": stack(*TOLD[:1])}
        guessed = [0x100, 0x777, 0x888, 0x301, 0x401]
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=guessed), "wrong")
        right, other = Facts(returns_to={0x100: 0x201}), Facts(returns_to={0x100: 0x777})
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=guessed, facts=right), "explained")
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=guessed, facts=other), "wrong")
        # From the first frame on that both have, all are needed.
        for physical in ([0x100, 0x777, 0x301, 0x888, 0x401], [0x100, 0x777, 0x888], [0x100, 0x201, 0x777, 0x301]):
            self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=physical, facts=right), "wrong")

    def test_direct_calls_tell_whose_caller_of_the_leaf_is_right(self):
        debuggers = {"gdb": stack(*TOLD[:1])}
        guessed = [0x100, 0x777, 0x301, 0x401]
        ours, none = Facts(calls={0x201: 0xf0, 0x777: 0x9000}), Facts(calls={0x201: 0xf0})
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=guessed, facts=ours), "explained")
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=guessed, facts=none), "wrong", "it may call it, too")
        both = Facts(calls={0x201: 0xf0, 0x777: 0xf0})
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=guessed, facts=both), "wrong")
        lacks = [0x100, 0x777, 0x301, 0x888, 0x401]
        self.assertEqual(self.verdict(stack(*WALKED), debuggers, physical=lacks, facts=ours), "wrong")

    def test_incomplete_stacks_are_flagged_and_may_not_invent(self):
        cut = stack(*WALKED[:2], incomplete="broken frame chain")
        self.assertEqual(self.verdict(cut, {"gdb": stack(*TOLD)}), "flagged")
        bent = stack(*WALKED[:2], "ghost@900", incomplete="found by stack scan")
        self.assertEqual(self.verdict(bent, {"gdb": stack(*TOLD)}), "invented")
        astray = {"gdb": stack(*TOLD[:2], "??@77")}
        self.assertEqual(self.verdict(bent, astray, facts=Facts(frozenset([0x77]))), "flagged")

    def test_a_direct_call_tells_whose_return_address_it_is(self):
        cut = stack("uw@1000", "raise@2000", "rethrow@3000", incomplete="stack switch in progress")
        theirs = {"gdb": stack("uw@1000", "raise@2001", "f@9000")}
        self.assertEqual(self.verdict(cut, theirs), "invented")
        self.assertEqual(self.verdict(cut, theirs, facts=Facts(calls={0x3001: 0x1f00, 0x9000: 0x7000})), "flagged")
        for calls in ({0x3001: 0x1f00}, {0x3001: 0x1f00, 0x9000: 0x1f00}, {0x3001: 0x5000, 0x9000: 0x7000}):
            self.assertEqual(self.verdict(cut, theirs, facts=Facts(calls=calls)), "invented", calls)

    def test_a_handler_that_begins_at_the_stop_is_another_moment(self):
        later = {"gdb": stack("handler@900", "__restore_rt@950", *TOLD)}
        facts = Facts(trampolines=frozenset([0x950]))
        self.assertEqual(self.verdict(stack(*WALKED), later, facts=facts), "moved")
        inside = stack("handler@900", "__restore_rt@950", *WALKED)
        self.assertEqual(self.verdict(inside, later, facts=facts), "identical")

    def test_what_was_not_seen_says_nothing(self):
        self.assertEqual(self.verdict(stack(*WALKED), {}), "unseen")
        self.assertEqual(self.verdict(stack(unseen=True), {"gdb": stack(*TOLD)}), "unseen")


class Reading(unittest.TestCase):
    def test_calls(self):
        for code in ("e800000000", "ffd0", "41ffd2", "ff15aabbccdd", "ff5008", "ff542408", "ff94c800000000", "ff14c500000000"):
            self.assertTrue(ends_with_call(bytes.fromhex("90" + code)), code)
        for code in ("9090909090909090", "ffe0", "c3", "ff30", "e80000000090"):
            self.assertFalse(ends_with_call(bytes.fromhex("9090" + code)), code)

    def test_where_a_function_without_a_frame_returns_to(self):
        class Memory(Code):
            def __init__(self, before, code):
                stack = (0x11).to_bytes(8, "little") + (0x22).to_bytes(8, "little")
                self.parts = {0x1000 - 8: bytes.fromhex(before).rjust(8, b"\x90"),
                              0x1000: bytes.fromhex(code).ljust(8, b"\x90"), 0x8000: stack}

            def bytes_at(self, address, count):
                return self.parts[address][:count]

        for before, code, expected in (
                ("90", "55", 0x11), ("90", "c3", 0x11), ("90", "89842400c0feff", 0x11), ("5d", "493ba748030000", 0x11),
                ("5d493ba748030000", "0f8701000000", 0x11), ("493ba748030000", "7701", 0x11), ("90", "5d", 0x22),
                ("55", "4883ec20", 0x22), ("55", "4881ec00010000", 0x22), ("90", "4883ec20", None),
                ("90", "493ba748030000", None), ("90", "7701", None), ("90", "4883c420", None)):
            found = Memory(before, code).returns_without_frame(0x1000, 0x8000)
            self.assertEqual(found, expected, (before, code))

    def test_a_dump(self):
        text = ("thread 7 (a (b)) waiting, incomplete: broken frame chain\n  #0   0x000000000100  context  f(int, char)\n"
                "  #1   0x000000000200  cfi      main\n\nthread 8 (c) stopped, not stopped\n")
        stacks = parse_dump(text)
        self.assertEqual(stacks[7].addresses, [0x100, 0x200])
        self.assertEqual((stacks[7].incomplete, stacks[7].thread_name), ("broken frame chain", "a (b)"))
        self.assertTrue(stacks[8].unseen)

    def test_perf_script(self):
        text = ("  3475 \n\t            13f7 work (/tmp/pp)\n\t  891f4 start_thread (/usr/lib/libc.so.6)\n"
                "\t 1098eb clone3 (/usr/lib/libc.so.6)\n\n  3476 \n\t 13e8 f(int (*)(char)) (/tmp/pp)\n\n")
        read = recordings.parse_perf(text)
        self.assertEqual((read.whole, read.complete), (2, 1))
        self.assertEqual(read.stacks[0][1][0].module, "pp")
        self.assertEqual(read.stacks[1][1][0].name, "f(int (*)(char))")

    def test_shares_by_address(self):
        def recording(*stacks):
            return recordings.Recording([(count, [Frame("libx.so", offset, name)]) for count, offset, name in stacks])
        ours = recording((6, 0x100, "known"), (2, 0x180, "known"), (1, 0x200, "[libx.so+0x200]"), (1, 0x300, "[libx.so+0x300]"))
        theirs = recording((6, 0x110, "known"), (2, 0x1f0, "known"), (1, 0x250, "known"), (1, 0x1f4, "third"))
        name_of = shares.names_by_address([ours])
        told = [shares.self_shares(each, name_of) for each in (ours, theirs)]
        # 0x250 is between two parts without a name; 0x1f0 may be known's, and 0x1f4 is by its only neighbours.
        self.assertEqual(told, [{"known": 80, "[libx.so]": 20}, {"known": 90, "[libx.so]": 10}])
        self.assertEqual(shares.compare(told[:1], told[1:])[0], ["[libx.so]", 20, 10, None])
        # 10 and -2 and 4: mean 4, standard deviation 6, divided by the root of three rounds, times 4.30.
        rounds = [[{"a": share} for share in side] for side in ((20, 18, 24), (10, 20, 20))]
        self.assertEqual(shares.compare(*rounds), [["a", 20.67, 16.67, 14.9]])

    def test_shares_that_a_program_tells(self):
        read = programs.told_shares(["threads::work"])
        told = read(["OPS 0.1 1000 work 0.010000 cpu 0.040000", "x", "OPS 0.2 2000 work 0.020000 cpu 0.060000"])
        self.assertEqual(told, {"threads::work": 30, shares.REST: 70})
        self.assertEqual(read([]), None)
        two = programs.told_shares(["read", "write"])(["read 0.1 write 0.2 cpu 0.4", "read 0.1 write 0.0 cpu 0.1"])
        self.assertEqual({name: round(share) for name, share in two.items()}, {"read": 40, "write": 40, shares.REST: 20})
        frames = {name: Frame("threads", 1, name) for name in ("threads::work", "read", "write", "main")}
        recording = recordings.Recording([(3, [frames["threads::work"], frames["main"]]), (6, [frames["read"], frames["main"]]),
                                          (1, [frames["write"]])])
        self.assertEqual(shares.under(recording, list(told)), {"threads::work": 30, shares.REST: 70})
        self.assertEqual(shares.under(recording, ["read", "threads::work"]), {"read": 100 * 6 / 9, "threads::work": 100 * 3 / 9})

    def test_loads(self):
        self.assertEqual(servers.wrk_rate("  99%    1.50ms\nRequests/sec:  1234.5\n", None), (1234.5, 1.5))
        csv = '"test","rps","avg"\n"GET","100.00","0.2","0.1","0.2","0.3","0.5","0.9"\n"SET","200.00","0.2","0.1","0.2","0.3","0.7","0.9"\n'
        self.assertEqual(servers.redis_rate(csv, None), (150.0, 0.7))


if __name__ == "__main__":
    unittest.main()
