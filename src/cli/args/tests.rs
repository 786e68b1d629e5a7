use std::time::Duration;

use super::open::ViewerOptions;
use super::*;
use crate::error::ErrorKind;
use crate::flamegraph::{Colors, Graph};
use crate::sources::gdb::StubAddress;
use crate::sources::{LocalFiles, SamplingMethod};
use crate::symbol::Style;
use crate::walk::UnwindMethod;

/// A system with one process, named `server`.
fn find(name: &str) -> Result<u32> {
    if name == "server" { Ok(77) } else { Err(usage(format!("--pid `{name}`: not found"))) }
}

pub(super) fn parsed(line: &str) -> Result<Command> {
    parse(line.split_whitespace().map(OsString::from), &find)
}

fn record(line: &str) -> RecordOptions {
    match parsed(line) {
        Ok(Command::Record(recording)) => recording,
        other => panic!("`{line}` is no recording: {other:?}"),
    }
}

fn refused(line: &str) -> String {
    let error = parsed(line).expect_err(line);
    assert_eq!(error.kind(), ErrorKind::Usage, "{line}");
    let text = error.to_string();
    assert!(!text.contains('\n') && !text.ends_with('.'), "one line: {text:?}");
    text
}

fn printed(line: &str) -> String {
    match parsed(line) {
        Ok(Command::Print(text)) => text,
        other => panic!("`{line}` prints nothing: {other:?}"),
    }
}

fn file(path: &str, format: Format) -> Output {
    Output { to: Destination::File(path.into()), format }
}

/// Whether a graph of these options has these properties.
fn looks(graph: &GraphOptions, min_width_percent: f64, colors: Colors, dark: bool, inverted: bool) {
    let text = String::new;
    let expected =
        Graph { title: text(), subtitle: text(), unit: text(), min_width_percent, colors, dark, inverted };
    assert_eq!(graph.graph(text(), text(), text()), expected);
}

#[test]
fn the_defaults_match_the_contract() {
    for line in ["--pid 4242", "-p 4242", "-p4242", "--pid=4242", "record --pid 4242"] {
        let request = record(line);
        assert_eq!((&request.source, &request.heap), (&Source::Pid(4242), &None), "{line}");
        assert_eq!((&request.launch, request.verbosity()), (&LaunchOptions::default(), Verbosity::Normal));
        assert_eq!((request.method(), request.timeline_bytes()), (SamplingMethod::Auto, 64 << 20));
        assert_eq!((request.children(), request.children_needed()), (false, false));
        assert!((request.max_stop_percent() - 2.0).abs() < 1e-9);
        let RecordingOptions { cpu, sampling, output, pprof_timestamps, picture, .. } = request.recording;
        assert_eq!((cpu.hz, cpu.idle, cpu.no_kernel), (None, false, false));
        assert_eq!(HZ_DEFAULT, 997);
        assert_eq!(
            sampling,
            SamplingOptions {
                duration: None,
                threads: false,
                unwind: UnwindMethod::Auto,
                max_depth: 1024,
                seed: None
            }
        );
        assert_eq!((&output.outputs[..], output.format, &output.title), (&[][..], None, &None));
        assert_eq!((output.source_directories(), &output.stats), (Some(&[][..]), &None));
        assert_eq!((output.open, output.viewer), (false, ViewerOptions::default()));
        let scope = request.scope;
        assert!(!scope.off_cpu && !scope.per_process && !pprof_timestamps && !picture.reverse);
        looks(&picture.graph, 0.01, Colors::Hot, false, true);
        let symbols = picture.symbols.with(&LocalFiles);
        assert_eq!((symbols.inlines, symbols.lines, symbols.style), (true, false, Style::Readable));
    }
}

#[test]
fn every_option_is_parsed() {
    let line = "-p 1 -F 99 -d 0.5 -o a.svg -o b.dat --format folded --idle --source ptrace --no-kernel --threads --max-depth 65536 --timeline-memory 2G --max-stop 0.5 \
                --unwind fp --title T --pprof-timestamps --reverse --min-width 1.5 --stats s.json -v --seed 7 \
                --no-inline --lines --short-names --colors blue-orange --dark --no-inverted";
    let request = record(line);
    assert_eq!((&request.source, request.verbosity()), (&Source::Pid(1), Verbosity::Verbose));
    assert_eq!((request.method(), request.timeline_bytes()), (SamplingMethod::Ptrace, 2 << 30));
    assert!((request.max_stop_percent() - 0.5).abs() < 1e-9);
    let RecordingOptions { cpu, sampling, output, pprof_timestamps, picture, .. } = request.recording;
    assert_eq!((cpu.hz, cpu.idle, cpu.no_kernel), (Some(99), true, true));
    assert_eq!(
        sampling,
        SamplingOptions {
            duration: Some(Duration::from_millis(500)),
            threads: true,
            unwind: UnwindMethod::FramePointer,
            max_depth: 65_536,
            seed: Some(7)
        }
    );
    assert_eq!(output.outputs, [file("a.svg", Format::Svg), file("b.dat", Format::Folded)]);
    assert_eq!((output.format, output.title.as_deref()), (Some(Format::Folded), Some("T")));
    assert_eq!(output.stats, Some(Destination::File("s.json".into())));
    assert!(pprof_timestamps && picture.reverse);
    looks(&picture.graph, 1.5, Colors::BlueOrange, true, false);
    let symbols = picture.symbols.with(&LocalFiles);
    assert_eq!((symbols.inlines, symbols.lines, symbols.style), (false, true, Style::Short));
}

#[test]
fn sources() {
    let launch = |words: &[&str]| Source::Launch(words.iter().map(OsString::from).collect());
    for (line, expected) in [
        ("-- ./prog", launch(&["./prog"])),
        ("record --hz 9 -- ./prog --pid 5 -- -x", launch(&["./prog", "--pid", "5", "--", "-x"])),
        ("-- record", launch(&["record"])),
        ("--target sim:18446744073709551615", Source::Sim { seed: u64::MAX }),
        ("demo", Source::Demo),
        ("demo --hz 499 -o x.svg", Source::Demo),
    ] {
        assert_eq!(record(line).source, expected, "{line}");
    }
}

#[test]
fn a_command_is_launched_and_ended_as_requested() {
    let line = "--as alice --kill-after -d 1 -- ./prog --as bob";
    let expected = LaunchOptions { run_as: Some("alice".into()), kill_after: true };
    assert_eq!(record(line).launch, expected);
    assert_eq!(record("-- ./prog --kill-after").launch, LaunchOptions::default());
    const AS: &str = "--as is for a command that stackprof runs: sudo stackprof --as USER -- ./prog";
    const KILL: &str =
        "--kill-after ends a command that stackprof runs: stackprof --kill-after -d 10 -- ./prog";
    for process in ["--pid 1", "--pid 1 --pid 2", "-a", "--user root", "--gdb :1", "--target sim:1"] {
        assert_eq!(refused(&format!("--as alice {process}")), AS);
        assert_eq!(refused(&format!("--kill-after {process}")), KILL);
    }
    for command in ["demo", "dump stacks --pid 1"] {
        for option in ["--as=alice", "--kill-after"] {
            assert!(refused(&format!("{command} {option}")).starts_with("there is no option"), "{command}");
        }
    }
}

#[test]
fn the_last_option_wins_as_in_aliases() {
    assert_eq!(record("--hz 99 --pid 1 --hz 100 --title a --title b").recording.cpu.hz, Some(100));
    for (line, inverted) in [("--inverted --no-inverted", false), ("--no-inverted --inverted", true)] {
        let graph = record(&format!("--pid 1 {line}")).recording.picture.graph;
        looks(&graph, 0.01, Colors::Hot, false, inverted);
    }
    for (line, no_kernel) in [("--kernel --no-kernel", true), ("--no-kernel --kernel", false)] {
        assert_eq!(record(&format!("--pid 1 {line}")).recording.cpu.no_kernel, no_kernel, "{line}");
    }
}

#[test]
fn formats_come_from_extensions() {
    let outputs = |line: &str| record(&format!("--pid 1 {line}")).recording.output.outputs;
    assert_eq!(outputs("-o a.txt"), [file("a.txt", Format::Folded)]);
    assert_eq!(outputs("-o a --format svg"), [file("a", Format::Svg)]);
    assert_eq!(outputs("-o -"), [Output { to: Destination::Stdout, format: Format::Folded }]);
    assert_eq!(outputs("-o - --format svg"), [Output { to: Destination::Stdout, format: Format::Svg }]);
    assert_eq!(outputs("-o /dev/null -o /dev/null --format svg").len(), 2);
}

#[test]
fn values_out_of_range_name_the_option_and_the_range() {
    for value in ["0", "1e9", "abc", "-1", "10001", "99.5"] {
        assert_eq!(
            refused(&format!("--pid 1 --hz {value}")),
            format!("--hz `{value}`: expected a whole number from 1 to 10000")
        );
    }
    assert_eq!(refused("--pid 1 -F 0"), "--hz `0`: expected a whole number from 1 to 10000");
    for value in ["-1", "-5e-1", "-inf", "-x", "nan", "0", "inf", "-0", "1e-12", "10s", "1e10", "1e400"] {
        assert_eq!(
            refused(&format!("--pid 1 --duration {value}")),
            format!("--duration `{value}`: expected seconds, more than 0 (10 or 0.5)")
        );
    }
    for value in ["0", "-x", "-5", "4294967296", "1.0"] {
        assert_eq!(
            refused(&format!("--pid {value}")),
            format!("--pid `{value}`: expected a process id, 1 or more, or a name (ps -e shows them)")
        );
    }
    for value in ["0", "65537", "-1", "deep"] {
        assert_eq!(
            refused(&format!("--pid 1 --max-depth {value}")),
            format!("--max-depth `{value}`: expected a whole number from 1 to 65536")
        );
    }
    assert_eq!(refused("--pid 1 --colors red"), "--colors `red`: expected one of hot, blue-orange");
    for value in ["-1", "100", "nan", "thin", "5%%", "%"] {
        assert_eq!(
            refused(&format!("--pid 1 --min-width {value}")),
            format!("--min-width `{value}`: expected a percentage from 0 to below 100")
        );
    }
    assert_eq!(
        refused("--pid 1 --unwind magic"),
        "--unwind `magic`: expected auto, fp or cfi; for 32-bit Arm also exidx, code or scan"
    );
    for how in ["exidx", "code", "scan"] {
        let why = format!("--unwind {how} is for 32-bit Arm behind --gdb; leave it out here");
        assert_eq!(refused(&format!("--pid 1 --unwind {how}")), why);
        assert_eq!(refused(&format!("dump stacks --pid 1 --unwind {how}")), why);
        assert!(parsed(&format!("--gdb localhost:1 --unwind {how}")).is_ok());
    }
    assert_eq!(refused("--pid 1 --seed x"), "--seed `x`: expected a whole number");
    assert_eq!(refused("--target sim:x"), "--target `sim:x`: expected sim:SEED");
    assert_eq!(refused("--target gdb"), "--target `gdb`: expected sim:SEED");
}

#[test]
fn a_stub_has_an_address_and_an_optional_program() {
    let recording = record("--gdb board:3333 --exec fw.elf");
    let place = StubAddress::Tcp { host: "board".to_owned(), port: 3333 };
    assert_eq!(recording.source, Source::Gdb(Stub { place, exec: Some("fw.elf".into()) }));
    assert!((recording.max_stop_percent() - 5.0).abs() < 1e-9, "round trips take their time");
    for share in ["1", "1%"] {
        let stop = record(&format!("--gdb :1 --max-stop {share}")).max_stop_percent();
        assert!((stop - 1.0).abs() < 1e-9, "{share}");
    }
    let command = parse(["--gdb", "|gdbserver - ./a b"].map(OsString::from), &find);
    let Ok(Command::Record(RecordOptions { source: Source::Gdb(stub), .. })) = command else {
        panic!("{command:?}")
    };
    assert_eq!(stub.place, StubAddress::Command("gdbserver - ./a b".to_owned()));
    let Ok(Command::Dump(dump)) = parsed("dump stacks --gdb :1234") else { panic!("no dump") };
    assert!(matches!(dump.source, Source::Gdb(Stub { exec: None, .. })));
}

#[test]
fn several_processes_are_selected_by_number_or_property() {
    let source = |line: &str| match parsed(line) {
        Ok(Command::Record(recording)) => (recording.source.clone(), recording.children()),
        other => panic!("{line}: {other:?}"),
    };
    let several = |several: ProcessArguments| (Source::Several(several), false);
    let none = ProcessArguments::default;
    assert_eq!(source("-p 7 -p 5 -p 7"), several(ProcessArguments { pids: vec![5, 7], ..none() }));
    assert_eq!(source("-p 7 -p 7"), (Source::Pid(7), false));
    assert_eq!(source("-p server -p 77"), (Source::Pid(77), false));
    assert_eq!(source("-a"), several(ProcessArguments { all: true, ..none() }));
    assert_eq!(source("--cgroup /x"), several(ProcessArguments { cgroup: Some("/x".into()), ..none() }));
    assert_eq!(
        source("--container 4f"),
        several(ProcessArguments { container: Some("4f".into()), ..none() })
    );
    assert_eq!(source("--user me"), several(ProcessArguments { user: Some("me".into()), ..none() }));
    assert!(source("-- cmd").1 && !source("--no-children -- cmd").1);
    assert!(source("--pid 7 --children").1 && !source("--pid 7").1);
}

#[test]
fn dump_takes_a_subject_and_a_process() {
    let dump = |line: &str| match parsed(line) {
        Ok(Command::Dump(dump)) => (dump.what, dump.source),
        other => panic!("{line}: {other:?}"),
    };
    let depth = |line: &str| match parsed(line) {
        Ok(Command::Dump(dump)) => dump.options.max_depth,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(
        (depth("dump stacks --pid 5"), depth("dump stacks --pid 5 --max-depth 200000")),
        (1024, 200_000)
    );
    assert_eq!(dump("dump threads --pid 5"), (Listing::Threads, Source::Pid(5)));
    assert_eq!(dump("dump -p 5 images"), (Listing::Images, Source::Pid(5)));
    assert_eq!(dump("dump -p server images"), (Listing::Images, Source::Pid(77)));
    assert_eq!(dump("dump symbols --target sim:1"), (Listing::Symbols, Source::Sim { seed: 1 }));
    assert_eq!(dump("dump stacks -q --pid 5").0, Listing::Stacks);
}

#[cfg(unix)]
#[test]
fn arguments_need_not_be_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let odd = || OsString::from_vec(vec![0x66, 0xff]);
    let launched = parse(["--".into(), odd()], &find).expect("a command may have any name");
    assert!(matches!(launched, Command::Record(RecordOptions { source: Source::Launch(_), .. })));
    let odd_file = || OsString::from_vec(b"\xff.svg".to_vec());
    assert!(parse(["--pid".into(), "1".into(), "-o".into(), odd_file()], &find).is_ok());
    for option in ["--hz", "--pid", "--title", "--format", "--unwind"] {
        let text =
            parse(["--pid".into(), "1".into(), option.into(), odd()], &find).expect_err(option).to_string();
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn help_and_version_are_results() {
    assert_eq!(printed("--version"), format!("stackprof {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(printed("-V"), printed("--version"));
    for line in ["--help", "-h", "help", "record --help", "help record", "--hz 5 --help"] {
        assert_eq!(printed(line), printed("--help"), "{line}");
    }
    for text in [printed("--help"), printed("help demo"), printed("help dump"), printed("help render")] {
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?}");
        }
        for hidden in ["sim:", "--seed", "stray"] {
            assert!(!text.contains(hidden), "{hidden} in {text}");
        }
    }
    for text in [printed("help diff"), printed("help gate")] {
        for line in text.lines() {
            assert!(line.chars().count() <= 80 && line.trim_end() == line, "{line:?}");
        }
    }
    assert!(printed("--help").contains("sudo stackprof --pid redis-server"));
    assert!(printed("dump --help").contains("{threads|images|symbols|stacks}"));
}
