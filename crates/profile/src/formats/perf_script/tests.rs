//! Output of `perf script` with each option, and interleaved text.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::ByName;
use crate::formats::folded;

const TEXT: &str = "\
# ========
# captured on: today
java 24636/25607 [000] 4794564.109216:     257597 cycles:u:
        7f533952bc77 _dl_check+0x597 (/usr/lib/ld-2.28.so)
        7f53389994d0 [unknown] (/usr/lib/libx.so)
                   0 [unknown] ([unknown])

V8 WorkerThread 25607 4794564.109218: cycles:u:
\tffffffff8103ce3b native halt ([kernel.kallsyms])
\t    7f533952bc77 operator new(unsigned long) (/a b/c.so)

java 24636/25607 [000] 4794564.2: 1 instructions:
\t1 skipped (/x)

java 913 72.176760:     257597 cycles:u:  ffffffff9aa3c8de single+0x1 ([k])
java 913 72.2: cycles:u:
";

fn text(text: &str) -> String {
    let saved = read(text.as_bytes(), "p").expect("reads");
    let mut out = Vec::new();
    folded::write(&ByName::of(&saved, false).expect("fits"), &mut out).expect("a Vec takes everything");
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn events_become_stacks() {
    assert!(is_perf_script(TEXT));
    assert_eq!(
        text(TEXT),
        "V8 WorkerThread;operator new(unsigned long);native halt 1\njava 1\n\
         java;[unknown];[libx.so];_dl_check 1\njava;single 1\n"
    );
}

#[test]
fn events_are_distinguished_by_their_whole_name() {
    let event = |kind: &str| format!("a 5/6 [001] 10.5: 250000 {kind}:\n\t 55 f+0x1 (/x)\n\n");
    let counts = |kinds: &[&str]| {
        let text: String = kinds.iter().map(|kind| event(kind)).collect();
        let saved = read(text.as_bytes(), "p").expect("reads");
        (saved.total(), saved.about.lost.get(ANOTHER_KIND).copied().unwrap_or(0))
    };
    assert_eq!(counts(&["cpu_core/cycles/P", "cpu_atom/cycles/P", "cycles:P"]), (3, 0));
    assert_eq!(counts(&["cycles:u", "cycles:k", "cycles", "cpu_core/cycles/u"]), (2, 2));
    assert_eq!(counts(&["sched:sched_switch", "sched:sched_wakeup", "sched:sched_switch"]), (2, 1));
    assert_eq!(counts(&["probe_app:enter", "probe_app:leave", "cpu-clock"]), (1, 2));
}

#[test]
fn odd_frames_are_kept() {
    let input = "\
prog 5/6 [001] 10.5: 250000 cycles:
\t 55d0 (anonymous namespace)::inner(int)+0x10 (/bin/work)
\t 55d4 jitted+0x14 (/memfd:jit (deleted))
\t 55d8 inl (inlined)
\t 55d8 (process) (/bin/work)
\t 5500 main+0x5 (/bin/work)

";
    assert_eq!(text(input), "prog;main;inl;jitted;(anonymous namespace)::inner(int) 1\n");
    let saved = read(input.as_bytes(), "p").expect("reads");
    let paths: Vec<&str> = saved.mappings().iter().map(|mapping| saved.text(mapping.path)).collect();
    assert_eq!(paths, ["/bin/work", "/memfd:jit"]);
}

#[test]
fn frames_on_the_line_of_their_event_are_known() {
    let flat = "perf 913 72.176760:     257597 cycles:u:  ffffffff9aa3c8de single+0x1 ([kernel.kallsyms])\n";
    assert!(is_perf_script(flat));
    assert_eq!(text(&flat.repeat(2)), "perf;single 2\n");
}

/// inferno gives the same result for input that both support.
#[test]
fn inferno_gives_the_same_result() {
    use inferno::collapse::Collapse;
    let input = "\
perf 5/6 [001] 10.5: 250000 cpu-clock:
\t     55d0 inner+0x10 (/bin/work)
\t     5500 main+0x5 (/bin/work)
\t     7f00 [unknown] (/lib/libc.so.6)

perf 5/6 [001] 10.6: 250000 cpu-clock:
\t     5500 main+0x9 (/bin/work)

";
    let mut theirs = Vec::new();
    let mut folder = inferno::collapse::perf::Folder::default();
    folder.collapse(input.as_bytes(), &mut theirs).expect("collapses");
    let stacks = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.rsplit_once(' ').expect("a count").0.to_owned()).collect()
    };
    assert_eq!(stacks(&String::from_utf8(theirs).expect("UTF-8")), stacks(&text(input)));
}

/// The lines of a text and its remarks.
fn remarked(input: &str) -> (String, Vec<String>) {
    let mut tally = Tally::new("p");
    let saved = read_lines(input.as_bytes(), "p", &mut tally).expect("reads");
    let mut out = Vec::new();
    folded::write(&ByName::of(&saved, true).expect("fits"), &mut out).expect("a Vec takes everything");
    (String::from_utf8(out).expect("UTF-8"), tally.judge(false).expect("not more than half"))
}

#[test]
fn events_without_call_chains_are_padded() {
    let event = |comm: &str| {
        format!("{comm:>16} 19300  2425.946230:    1003009 cpu-clock:      55a0 burn+0x97 (work)\n")
    };
    for comm in ["work", "bc", "add 1", "a b", "ab (x)"] {
        let input = event(comm).repeat(3);
        assert!(is_perf_script(&input), "{comm}");
        assert_eq!(remarked(&input), (format!("{comm};burn 3\n"), vec![]));
    }
    let saved = read(event("work").as_bytes(), "p").expect("reads");
    assert_eq!(saved.about.hz, Some(997));
}

#[test]
fn other_fields_are_ignored() {
    let event = "work  5/6 [001] 10.5: 250000 cpu-clock: ";
    let stack = "\n\t            55d0 inner+0x10 (/bin/work)\n\t            5500 main+0x5 (/bin/work)\n";
    // Output of perf 6.1 after a stack for iregs, brstack, insn, phys_addr, code_page_size, srccode.
    for detail in [
        " ABI:2    AX:0x0    BX:0x7ffd5f0c6a58    IP:0x55d0 FLAGS:0x246    CS:0x33 ",
        " 0x55d0/0x5500/P/-/-/0  0x5600/0x55d0/M/-/-/12 ",
        " insn: f2 0f 58 05",
        "       12d4b7a58",
        " 4K",
        "\n|12       x += i * 0.5;\n|13       }",
    ] {
        let input = format!("{event}{stack}{detail}\n").repeat(3);
        assert_eq!(remarked(&input), ("work;main;inner 3\n".to_owned(), vec![]), "{detail}");
    }
    let place = "55a0 burn+0x97 (/opt/a b/work)";
    for (before, after) in [
        ("     7ffd5f0c6a58      ", ""),
        ("  ffff88811 5080121 |OP LOAD|LVL L1 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A     35   ", ""),
        ("   ", " ABI:2    AX:0x0    BX:0x7ffd5f0c6a58"),
        ("   ", "  0x55d0/0x5500/P/-/-/0 "),
    ] {
        let input = format!("{event}{before}{place}{after}\n").repeat(3);
        assert_eq!(remarked(&input), ("work;burn 3\n".to_owned(), vec![]), "{before}{after}");
    }
    // A word of a name can consist of hexadecimal digits.
    assert_eq!(remarked(&format!("{event} 55a0 add (/opt/dead beef)\n")).0, "work;add 1\n");
    assert_eq!(remarked(&format!("{event} 55a0 operator||(A, B) (/x)\n")).0, "work;operator||(A, B) 1\n");
    // Arguments of a tracepoint are not a place.
    assert_eq!(remarked("a 5 1.5: raw_syscalls:sys_enter: NR 17 (3, 7ffe, 10)\n").0, "a 1\n");
}

/// `-F +addr`: perf shows the symbol at the address of the data.
#[test]
fn the_place_of_data_is_no_frame() {
    let data = "work 5 1.5: 1 page-faults:     7fff4cd89949 [unknown] ([stack])";
    let alone = format!("{data} ffffffff81b73c18 _copy_to_user+0x28 ([kernel.kallsyms])\n");
    assert_eq!(remarked(&alone).0, "work;_copy_to_user 1\n");
    let chain =
        format!("{data}\n\tffffffff81b73c18 _copy_to_user+0x28 ([kernel.kallsyms])\n\t 55 main (/x)\n\n");
    assert_eq!(remarked(&chain), ("work;main;_copy_to_user 1\n".to_owned(), vec![]));
    let method = "work 5 1.5: 1 page-faults: 55 A::operator()(int) const (/opt/x (y) z/a)\n";
    assert_eq!(remarked(method).0, "work;A::operator()(int) const 1\n");
}

#[test]
fn tracepoints_without_call_chains_are_events() {
    let event = "swapper     0 [001] 41145.2: sched:sched_switch: prev_comm=a b prev_pid=0 ==> next_pid=7\n";
    assert!(is_perf_script(&event.repeat(2)));
    assert_eq!(remarked(&event.repeat(2)), ("swapper 2\n".to_owned(), vec![]));
    // With `-F +ip,sym` the place follows the fields.
    let placed = format!("{} ffffffff821f8b58 __schedule ([kernel.kallsyms])\n", event.trim_end());
    assert_eq!(remarked(&placed), ("swapper;__schedule 1\n".to_owned(), vec![]));
    let arguments = "a 5 1.5: raw_syscalls:sys_enter: NR 17 (3, 7ffe12345678, 10, 7ffe12345678 (x)\n";
    assert_eq!(remarked(arguments).0, "a 1\n");
    // Names of functions in folded text.
    for folded in ["java 913 72.1: cycles: 5\n", "a;b 5 1.5: c: 3\na;c 3\n", "a 5\nb 6\n"] {
        assert!(!is_perf_script(folded), "{folded}");
    }
}

/// `report_sample.py` of simpleperf.
#[test]
fn fields_may_be_separated_by_tabs() {
    let input = "Gecko 2\t25122 [007] 115539.936601:\t\t1000000 task-clock:u:\n        \
                 b3cea6c4\tLock::unlock() (/system/lib/libc.so)\n\tb3cea535\tmain (/system/lib/libc.so)\n\n";
    assert!(is_perf_script(input));
    assert_eq!(remarked(input), ("Gecko 2;main;Lock::unlock() 1\n".to_owned(), vec![]));
    let named = "a\tb 5 1.5: 1 cycles:\n\t 55 f\tg (/x)\n\n";
    assert_eq!(remarked(named).0, "a\\u{9}b;f\\u{9}g 1\n");
}

#[test]
fn offsets_in_modules_are_not_part_of_their_names() {
    let input = "a 5 1.5: 1 cycles:\n\t 55d0 [unknown] (/bin/work+0x55d0)\n\t 55 main (/bin/work+0x55)\n\n";
    assert_eq!(text(input), "a;main;[work] 1\n");
    assert_eq!(read(input.as_bytes(), "p").expect("reads").mappings().len(), 1);
}

#[test]
fn text_without_its_indentation_is_read() {
    let input =
        "java 19983 cycles:\nffffffff8103d0ca msr ([kernel.kallsyms])\nffffffff810275f1 main (/bin/a b)\n\n";
    assert!(is_perf_script(input));
    assert_eq!(remarked(input), ("java;main;msr 1\n".to_owned(), vec![]));
}

#[test]
fn headers_have_many_fields() {
    for (header, comm) in [
        ("pool 3  4101/4105  [001]   55.100000:    1003009 cpu-clock:", "pool 3"),
        ("Timer 10 s  4101 [001]   55.100000:    1003009 cpu-clock:", "Timer 10 s"),
        ("1 2 3  4101 55.1: 1 cpu-clock:", "1 2 3"),
        ("a 1 1.0:  4101/4101 55.1: 1 cpu-clock:", "a 1 1.0:"),
        ("app  40/40 U [000] 1.000001:    1003009 cpu-clock:", "app"),
        ("app  40/40 [000] KSp  1.000001: cpu-clock:", "app"),
        ("swapper    -1/-1 1.000002:    1003009 cpu-clock:", "swapper"),
        ("swapper    -1 cpu-clock:", "swapper"),
        ("app  40/40 1003009 cpu-clock:", "app"),
        ("pool 3  40/41 [002] 1003009 cpu-clock:", "pool 3"),
        ("app  40 [000] cpu-clock:", "app"),
        ("app  40 1.5:", "app"),
        (":4123  4123/4123 1.000001:    1003009 cpu-clock:", ":4123"),
        ("app  40/40 [000] 2026-11-27 04:10:00.123456  1.000001:  1003009 cpu-clock:", "app"),
        (" 4124/4124 1.000002:    1003009 cpu-clock:", ""),
        (
            "app 50/50 [000] 1.1: sched:sched_switch: prev_comm=a prev_pid=50 ==> next_comm=b next_pid=0",
            "app",
        ),
    ] {
        let found = event(header).unwrap_or_else(|| panic!("no event: {header}"));
        assert_eq!(found.comm, comm, "{header}");
        assert!(found.frame.is_none(), "{header}");
        let (stacks, remarks) = remarked(&format!("{header}\n\t 55 f+0x1 (/x)\n\n"));
        let comm = if comm.is_empty() { "[unknown]" } else { comm };
        assert_eq!((stacks, remarks.len()), (format!("{comm};f 1\n"), 0), "{header}");
    }
    for other in ["", "a", "a 1", "main;a 1", "a;b 1 2", "a 1 b", "a 1 [x] 1.0: b:", "[a] b"] {
        assert!(event(other).is_none(), "{other}");
    }
}

#[test]
fn varying_periods_are_weights() {
    let event = |period: &str, kind: &str, name: &str| {
        format!("app 40/40 1.0: {period} {kind}:\n\t 55 {name}+0x1 (/x)\n\n")
    };
    let of = |events: &[(&str, &str, &str)]| {
        let text: String = events.iter().map(|(period, kind, name)| event(period, kind, name)).collect();
        let saved = read(text.as_bytes(), "p").expect("reads");
        (self::text(&text), saved.about.unit, saved.about.hz)
    };
    let faults = of(&[("68982", "page-faults", "many"), ("1", "page-faults", "few")]);
    assert_eq!(faults, ("app;few 1\napp;many 68982\n".to_owned(), "page-faults".to_owned(), None));
    let same = of(&[("1003009", "cpu-clock:u", "a"), ("1003009", "cpu-clock:u", "a")]);
    assert_eq!(same, ("app;a 2\n".to_owned(), "samples".to_owned(), Some(997)));
    let clock = of(&[("1000000", "task-clock", "a"), ("500000", "task-clock", "a")]);
    assert_eq!(clock, ("app;a 1500000\n".to_owned(), "nanoseconds".to_owned(), None));
    let partly = of(&[("5", "cycles", "a"), ("", "cycles", "b"), ("9", "cycles", "b")]);
    assert_eq!(partly, ("app;a 1\napp;b 2\n".to_owned(), "samples".to_owned(), None));
    let zero = of(&[("0", "cycles", "a"), ("7", "cycles", "b")]);
    assert_eq!(zero, ("app;b 7\n".to_owned(), "cycles".to_owned(), None));
}

#[test]
fn source_lines_belong_to_the_frame_above() {
    let input = "app 900/900 [000] 10.000001: 1003009 cpu-clock:\n\t401136 hot+0x16 (/home/u/app)\n  my app.c:4\n\
                 \t401190 main+0x20 (/home/u/app)\n  app.c:12\n\t7fc29d90 start+0x80 (/usr/lib/libc.so.6)\n  \
                 libc.so.6[29d90]\n\t7fc29d91 x+0x80 (/usr/lib/libc.so.6)\n  ??:0\n\n";
    let expected = "app;x;start;main (app.c:12);hot (my app.c:4) 1\n";
    assert_eq!(remarked(input), (expected.to_owned(), vec![]));
}

#[test]
fn modules_have_blanks_and_parentheses() {
    for (line, symbol, module) in [
        (
            "\t 55 hot+0x16 (/opt/Program Files (x86)/lib/app.so)",
            "hot",
            "/opt/Program Files (x86)/lib/app.so",
        ),
        ("\t 55 main+0x20 (/opt/app (old))", "main", "/opt/app (old)"),
        ("\t 55 main+0x20 (/opt/app (old) (deleted))", "main", "/opt/app (old)"),
        ("\t 55 f(int (*)(int))+0x20 (/opt/a) (b)", "f(int (*)(int))", "/opt/a) (b"),
        (
            "\t 55 f(int (*)(int)) (/opt/Program Files (x86)/app)",
            "f(int (*)(int))",
            "/opt/Program Files (x86)/app",
        ),
        ("\t 55 f(int (*)(int)) (my app (x86))", "f(int (*)(int))", "my app (x86)"),
        ("\t 55 [unknown] (a (b) c)", "[unknown]", "a (b) c"),
        ("\t 55 native halt ([kernel.kallsyms])", "native halt", "[kernel.kallsyms]"),
        ("\t 55 operator new(unsigned long)", "operator new(unsigned long)", ""),
        ("\t 55 (/opt/a b/c)", "", "/opt/a b/c"),
        ("\t 55", "", ""),
        ("\t 55 inl (inlined)", "inl", "[unknown]"),
    ] {
        assert_eq!(frame(line), Some(FrameLine { address: 0x55, symbol, module }), "{line}");
    }
}

#[test]
fn other_records_are_ignored_or_reported() {
    let sample =
        "app 40/40 1.000001: 1003009 cpu-clock:\n\t401136 hot+0x16 (/a)\n\t401190 main+0x20 (/a)\n\n";
    let records = "perf  40/40 0.000000: PERF_RECORD_COMM exec: app:40/40\n\
                   app  40/40 0.000000: PERF_RECORD_MMAP2 40/40: [0x401000(0x1000) @ 0x1000 fe:01 6701 0]: r-xp /a\n";
    let input = format!(
        "{records}{sample}app  40/40 1.000003: PERF_RECORD_FORK(40:41):(40:40)\n{sample}app 40/40 PERF_RECORD_LOST lost 3\n"
    );
    assert!(is_perf_script(&input));
    assert_eq!(remarked(&input), ("app;main;hot 2\n".to_owned(), vec![]));
    let message = "Failed to open /tmp/perf-40.map, continuing without symbols\n";
    let remark = |number| format!("1 line not understood, first: p:{number}: {NO_EVENT}");
    let input = format!("{message}{sample}");
    assert!(is_perf_script(&input));
    assert_eq!(remarked(&input), ("app;main;hot 1\n".to_owned(), vec![remark(1)]));
    // Within a stack, which continues after it.
    let input = sample.replace("\t401190", &format!("{message}\t401190"));
    assert_eq!(remarked(&input), ("app;main;hot 1\n".to_owned(), vec![remark(3)]));
    // An invalid frame leaves a gap.
    let (stacks, remarks) = remarked(&sample.replace("\t401190 main+0x20 (/a)", "\tmain"));
    assert_eq!(stacks, "app;[incomplete];hot 1\n");
    assert_eq!(remarks, [format!("1 line not understood, first: p:3: {NO_FRAME}")]);
    // Frames after an invalid header belong to no stack.
    let (stacks, remarks) = remarked(&format!("{sample}{sample}{sample}???\n\t401136 other+0x16 (/a)\n"));
    assert_eq!((stacks.as_str(), remarks.len()), ("app;main;hot 3\n", 1));
}

#[test]
fn inlined_java_methods_are_separate_frames() {
    let stack = |symbol: &str| {
        let input = format!("app 40/40 1.0: 1 cpu-clock:\n\t401136 {symbol}+0x16 (/tmp/perf-40.map)\n\n");
        remarked(&input).0
    };
    assert_eq!(stack("LA;::f->La/B;::g->LC;::h"), "app;LA:::f;La/B:::g;LC:::h 1\n");
    for symbol in ["std::unique_ptr<A>::operator->() const", "LA;::f->", "LA;::f->operator", "a->b"] {
        assert_eq!(stack(symbol), format!("app;{} 1\n", symbol.replace(';', ":")));
    }
}

#[test]
fn more_than_half_invalid_is_refused() {
    let refused = |text: &str| read(text.as_bytes(), "p").expect_err("refused").to_string();
    assert_eq!(refused("\nnothing\n"), format!("p:2: {NO_EVENT}"));
    assert_eq!(
        refused("a 1 1.0: cycles:\n  xyz\n  xyz\n"),
        format!("p:2: {NO_FRAME}; 2 of 3 lines not understood")
    );
    for other in ["a;b 1\n", "", "a 1\n", "{}"] {
        assert!(!is_perf_script(other), "{other}");
    }
}

/// Each sample of a profile with its time in milliseconds, process, thread and CPU.
#[allow(clippy::type_complexity)]
fn times(saved: &SavedProfile) -> Vec<(u64, Option<u32>, u64, Option<u32>, u64)> {
    let threads = saved.timeline().map_or(&[][..], |timeline| &timeline.threads);
    let samples = threads.iter().flat_map(|thread| {
        thread
            .samples
            .iter()
            .map(|sample| (sample.at_ns / 1_000_000, thread.pid, thread.id, sample.cpu, sample.count))
    });
    samples.collect()
}

#[test]
fn samples_are_kept_over_time_with_thread_and_cpu() {
    let text = "work 7/8 [003] 100.001000: 1000000 cpu-clock:u:\n\t40 a (/x)\n\n\
                work 7/9 [001] 100.005000: 1000000 cpu-clock:u:\n\t50 b (/x)\n\n\
                work 7/8 [000] 100.002000000: 1000000 cpu-clock:u:\n\t40 a (/x)\n";
    let saved = read(text.as_bytes(), "p").unwrap();
    assert_eq!(
        times(&saved),
        [(1, Some(7), 8, Some(3), 1), (2, Some(7), 8, Some(0), 1), (5, Some(7), 9, Some(1), 1)]
    );
    let part = saved.in_time_range(&(0..3_000_000)).unwrap().unwrap();
    assert_eq!((part.total(), saved.total()), (2, 3));
    // Other events have samples of unknown duration.
    let cycles = read(&*text.replace("cpu-clock:u", "cycles").into_bytes(), "p").unwrap();
    assert_eq!(times(&cycles).iter().map(|sample| sample.0).collect::<Vec<_>>(), [0, 1, 4]);
    assert_eq!(cycles.in_time_range(&(500_000..2_000_000)).unwrap().unwrap().total(), 1);
    // If one event lacks a time, no times are kept.
    let one_without = format!("{text}\nwork 7/8 cpu-clock:u:\n\t40 a (/x)\n");
    assert!(read(one_without.as_bytes(), "p").unwrap().timeline().is_none());
}

#[test]
fn events_may_lack_name_and_time() {
    for ids in ["77/78", "78"] {
        let text = format!(
            "    some work {ids} \n\tffffffff81 in_kernel\n\t401136 main\n\n    some work {ids} \n\t401136 main\n\n"
        );
        assert!(is_perf_script(&text), "{ids}");
        let saved = read(text.as_bytes(), "p").unwrap();
        assert_eq!((saved.total(), saved.processes()), (2, vec!["some work"]), "{ids}");
        assert_eq!(saved.trie().distinct_stacks(), 2);
    }
    let text =
        "    some work 77/78      5605fe723160 main\n    some work 77/78      5605fe723162 f+0x2 (/x/a b)\n";
    assert!(is_perf_script(text));
    let saved = read(text.as_bytes(), "p").unwrap();
    assert_eq!((saved.total(), saved.processes(), saved.trie().distinct_stacks()), (2, vec!["some work"], 2));
    // Folded stacks are not mistaken for these.
    for text in ["main;f 12\nmain;g 13\n", "a 1/2 deadbeef 5\n", "main;f 12 face 7\n"] {
        assert!(!is_perf_script(text), "{text}");
    }
}
