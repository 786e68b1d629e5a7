//! Programs whose runtimes lay out stacks their own way: Go (goroutines, assembly without frame
//! records, compressed unwind information), Node (built-in code without unwind information that
//! calls code made at run time). Their stacks reach the first function and say so.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::{
    Fixture, Recorded, Stack, attach, compile, launch, live, made, not_here, wait_for_cpu_time,
};

/// A program of this machine by name; `None`, after a line that says so, if there is none.
/// With `STACKPROF_NO_SKIP=1` that is a failure instead.
fn program(name: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths).map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        let must = env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
        assert!(!must, "STACKPROF_NO_SKIP is set, but there is no {name}");
        not_here(&format!("there is no {name}"));
    }
    found
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Checks the part of the stacks that are complete, and that of those that hold all of `frames`.
#[track_caller]
fn check(recorded: &Recorded, complete_min: f64, frames: &[&str], with_frames_min: f64) {
    recorded.check_success();
    let part = recorded.figure("stacks_complete") / recorded.figure("samples");
    println!("{part} of the stacks are complete");
    recorded.check(part >= complete_min, format!("{part} of the stacks are complete"));
    let has = |frame: &&str| recorded.count(|stack| stack.frames.iter().any(|name| name.contains(frame)));
    for frame in frames {
        let part = has(frame) as f64 / recorded.total() as f64;
        recorded.check(part >= with_frames_min, format!("{frame} is in {part} of the stacks"));
    }
}

#[test]
fn goroutines_are_walked_to_where_they_begin() {
    let Some(_one) = live() else { return };
    let Some(go) = program("go") else { return };
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
    std::fs::create_dir_all(&into).unwrap();
    // Stripped, as programs are handed out, only Go's own table tells what functions are called and how large
    // their frames are.
    let kinds = [
        ("goroutines", vec!["-ldflags", ""]),
        ("goroutines_stripped", vec!["-ldflags", "-s -w"]),
        ("goroutines_anywhere", vec!["-ldflags", "-s -w", "-buildmode", "pie"]),
    ];
    for (name, flags) in kinds {
        let built = into.join(name);
        let mut build = Command::new(&go);
        build.env("GOCACHE", into.join("go-cache")).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
        build.arg("build").args(flags).arg("-o").arg(&built).arg(fixture("goroutines.go"));
        let output = build.output().unwrap();
        assert!(output.status.success(), "{build:?}: {}", String::from_utf8_lossy(&output.stderr));
        let recorded = launch(&["--hz", "997"], &built, &[""; 0]);
        check(&recorded, 0.9, &["runtime.goexit", "main.main.func1"], 0.9);
        let hashing = recorded.count(|stack| {
            stack.has("main.hashing") && stack.frames.iter().any(|name| name.contains("sha256.block"))
        });
        let block = recorded.count(|stack| stack.frames.iter().any(|name| name.contains("sha256.block")));
        recorded.check(block > 100, format!("{block} counts of the assembly in {name}"));
        recorded
            .check(hashing * 100 >= block * 95, format!("{hashing} of {block} know their caller in {name}"));
    }
}

#[test]
fn built_in_code_of_node_is_known_to_keep_frame_records() {
    let Some(_one) = live() else { return };
    let Some(node) = program("node") else { return };
    let script = fixture("sorting.js");
    // V8 would leave a log where it runs.
    let no_log = ["--no-logfile-per-isolate", "--logfile=/dev/null"].map(OsStr::new);
    let arguments = [no_log[0], no_log[1], "--perf-basic-prof".as_ref(), script.as_os_str()];
    let recorded = launch(&["--hz", "997"], &node, &arguments);
    // What remains is a sixth: the trampolines by which built-in code calls, which keep no record,
    // and the first instructions of what they call.
    check(&recorded, 0.7, &["sorting"], 0.7);
}

/// A loop that PHP compiles at run time.
const PHP: &str = "<?php function work($n) { $s = 0; for ($i = 0; $i < $n; $i++) { $s = ($s * 31 + $i) & 0xffffff; } return $s; }
for ($i = 0; $i < 60; $i++) { work(2000000); }";

#[test]
fn code_that_php_made_is_called_so() {
    let Some(_one) = live() else { return };
    let Some(php) = program("php") else { return };
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("work.php");
    std::fs::write(&script, PHP).unwrap();
    let options = ["opcache.enable_cli=1", "opcache.jit_buffer_size=32M", "opcache.jit=function"];
    let has_jit = Command::new(&php)
        .args([
            "-d",
            options[0],
            "-d",
            options[1],
            "-d",
            options[2],
            "-r",
            "exit(opcache_get_status()['jit']['on'] ? 0 : 1);",
        ])
        .output();
    if !has_jit.unwrap().status.success() {
        let must = env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
        assert!(!must, "STACKPROF_NO_SKIP is set, but this php has no JIT compiler");
        return not_here("this php has no JIT compiler");
    }
    let script = script.display().to_string();
    // A script that was just written is not compiled otherwise.
    let now = "opcache.file_update_protection=0";
    let arguments = ["-d", options[0], "-d", options[1], "-d", options[2], "-d", now, &script];
    let recorded = launch(&["--hz", "997"], &php, &arguments);
    recorded.check_success();
    let made = recorded.count(|stack| stack.has("[php jit]"));
    recorded.check(made * 2 > recorded.total(), format!("{made} counts of code made at run time"));
    let advice = "start php with -d opcache.jit_debug=16";
    recorded.check(recorded.stderr.contains(advice), format!("the summary advises: {advice}"));
}

/// Work in code that Java compiles at run time, without frame pointers.
const JAVA: &str = "public class Spin {
    static long work(long n) { long s = 0; for (long i = 0; i < n; i++) { s = s * 31 + (i ^ (s >> 7)); } return s; }
    static long outer(long n) { return n == 0 ? 0 : work(40_000) + outer(n - 1); }
    public static void main(String[] a) { long s = 0; for (int i = 0; i < 150; i++) { s += outer(120); } System.out.println(s); }
}";

#[test]
fn what_helps_with_java_is_said() {
    let Some(_one) = live() else { return };
    let (Some(java), Some(_)) = (program("java"), program("javac")) else { return };
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("Spin.java");
    std::fs::write(&source, JAVA).unwrap();
    let recorded = launch(&["--hz", "997"], &java, &[&source]);
    recorded.check_success();
    let made = recorded.count(|stack| stack.has("[java jit]"));
    recorded.check(made * 4 > recorded.total(), format!("{made} counts of code made at run time"));
    recorded.check(!recorded.stderr.contains("-fno-omit-frame-pointer"), "no rebuilding helps");
    let incomplete = recorded.total() as f64 - recorded.figure("stacks_complete");
    if incomplete * 2.0 > recorded.total() as f64 {
        let advice = "start java with -XX:+PreserveFramePointer";
        recorded.check(recorded.stderr.contains(advice), format!("the summary advises: {advice}"));
    }
    let advice = "jcmd PID Compiler.perfmap";
    recorded.check(recorded.stderr.contains(advice), format!("the summary advises: {advice}"));
}

/// Mono's own truth is its source, too: whoever runs `Leaf` was called by four functions that Mono compiled.
#[test]
fn complete_stacks_of_mono_lack_no_caller() {
    const MADE: &str = "[mono jit]";
    let Some(_one) = live() else { return };
    let (Some(mono), Some(mcs)) = (program("mono"), program("mcs")) else { return };
    let built = made("Rounds.exe", |into| {
        let output =
            Command::new(mcs).arg(format!("-out:{}", into.display())).arg(fixture("Rounds.cs")).output();
        let output = output.map_err(|error| error.to_string())?;
        output
            .status
            .success()
            .then_some(())
            .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
    });
    let target = Fixture::run(Command::new(mono).arg(built.unwrap()));
    // Compiled by then, and at work.
    wait_for_cpu_time(target.pid(), Duration::from_millis(500));
    let recorded = attach(target.pid(), &["--duration", "2"]).wait();
    recorded.check_success();
    let of_leaf = |stack: &Stack| stack.leaf() == MADE;
    let callees = |stack: &Stack| stack.frames.iter().filter(|name| *name == MADE).count();
    let all = recorded.count(of_leaf);
    let called = recorded.count(|stack| of_leaf(stack) && callees(stack) >= 4);
    recorded.check(all > 200, format!("{all} counts of compiled code"));
    recorded.check(called * 10 >= all * 8, format!("{called} of {all} have their callers"));
    let wrong = recorded.count(|stack| of_leaf(stack) && !stack.has("[incomplete]") && callees(stack) < 5);
    recorded.check(wrong * 20 <= all, format!("{wrong} of {all} lack callers and say nothing"));
}

/// Java's own truth is its source: whoever runs `inner` was called by `middle` and that by
/// `outer`, and what is called complete says so, with frame pointers and without.
#[test]
fn complete_stacks_of_java_lack_no_caller() {
    let Some(_one) = live() else { return };
    let (Some(java), Some(javac)) = (program("java"), program("javac")) else { return };
    let classes = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
    std::fs::create_dir_all(&classes).unwrap();
    let mut build = Command::new(javac);
    build.arg("-d").arg(&classes).arg(fixture("Rounds.java"));
    let output = build.output().unwrap();
    assert!(output.status.success(), "{build:?}: {}", String::from_utf8_lossy(&output.stderr));
    for (flags, complete_min) in [
        (&["-XX:+PreserveFramePointer"][..], 0.9),
        (&["-XX:TieredStopAtLevel=1"][..], 0.0),
        (&["-XX:+TieredCompilation"][..], 0.0),
    ] {
        let mut arguments = vec![
            "-XX:+UnlockDiagnosticVMOptions".as_ref(),
            "-XX:+DumpPerfMapAtExit".as_ref(),
            "-XX:CompileCommand=quiet".as_ref(),
            "-XX:CompileCommand=dontinline,Rounds::*".as_ref(),
            "-cp".as_ref(),
            classes.as_os_str(),
        ];
        arguments.extend(flags.iter().map(OsStr::new));
        arguments.extend([OsStr::new("Rounds"), OsStr::new("3000")]);
        let recorded = launch(&["--hz", "997"], &java, &arguments);
        recorded.check_success();
        let in_inner =
            |name: &str| recorded.count(|stack| has_method(stack, "inner") && has_method(stack, name));
        println!("{flags:?}: {} counts in inner, {} with outer", in_inner("inner"), in_inner("outer"));
        recorded.check(in_inner("inner") > 0, "nothing was seen in inner");
        let complete_in_inner = |stack: &Stack| !stack.has("[incomplete]") && has_method(stack, "inner");
        // The map has no names for what is interpreted: more of it where the compiler gets less of a CPU.
        let interpreted = |stack: &Stack| stack.frames.iter().any(|name| name.contains("Interpreter"));
        let wrong = recorded.count(|stack| {
            complete_in_inner(stack)
                && !interpreted(stack)
                && !(has_method(stack, "middle") && has_method(stack, "outer"))
        });
        recorded.check(wrong == 0, format!("{wrong} counts are complete and lack a caller"));
        let whole = recorded
            .count(|stack| complete_in_inner(stack) && (has_method(stack, "main") || interpreted(stack)));
        let part = whole as f64 / in_inner("inner") as f64;
        recorded
            .check(part >= complete_min, format!("{part} of the stacks in inner are complete, {flags:?}"));
    }
}

/// Whether a method of the class is on a stack: `long Rounds.inner(int)`, or `LRounds;::inner`.
fn has_method(stack: &Stack, method: &str) -> bool {
    stack.frames.iter().any(|name| name.contains("Rounds") && name.contains(method))
}

/// Records code that is made at run time, and registered with debuggers while it is recorded, by one of the sources.
#[track_caller]
fn check_registered(source: &str) {
    let flags = ["-c", "-O2", "-fomit-frame-pointer", "-fno-stack-protector", "-fasynchronous-unwind-tables"];
    let object = compile("jitted", "jitted.o", &flags);
    let mut target = Fixture::start("registered", [object.as_os_str()]);
    target.line("ready");
    let running = attach(target.pid(), &["--hz", "997", "--source", source]);
    for (told, answer) in [("run 500", "ran"), ("register", "registered"), ("run 4000", "ran")] {
        target.tell(told);
        target.line(answer);
    }
    let recorded = running.interrupt();
    recorded.check_success();
    let share = |what: &dyn Fn(&Stack) -> bool| recorded.count(what) as f64 / recorded.total() as f64;
    // Their names are those of the code that ran before, too.
    let named = share(&|stack| stack.has("jitted_leaf"));
    recorded.check(named >= 0.95, format!("{named} have a name"));
    let path = ["main", "jitted_entry", "jitted_middle", "jitted_leaf"];
    let whole = share(&|stack| stack.frames.windows(4).any(|frames| frames == path));
    // It is seen at the latest a second after it was registered, or what the machine makes of that.
    recorded.check(whole >= 0.5, format!("{whole} have all of their callers"));
    // Nothing proves them before.
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check((0.5..0.95).contains(&complete), format!("{complete} are complete"));
    target.tell("unregister");
    target.line("unregistered");
    assert!(target.finish().0.success());
}

#[test]
fn code_that_a_jit_compiler_registered_has_names_and_callers() {
    let Some(_one) = live() else { return };
    for source in ["auto", "ptrace"] {
        check_registered(source);
    }
}
