//! Programs with runtimes that lay out stacks their own way: Go (goroutines, assembly without frame records),
//! HotSpot and Mono (JIT code), compilers that register their code with debuggers. Complete stacks lack no
//! caller; `scripts/field.sh`, with Node and PHP, measures how many are complete.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{
    Fixture, Stack, attach, built_once, compile, installed, launch, live, record_until, sources,
    wait_for_cpu_time,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Builds a program once per run; returns its path.
fn built(name: &str, build: impl FnOnce(&Path) -> Command) -> PathBuf {
    built_once(name, |into| {
        let mut command = build(into);
        let output = command.output().map_err(|error| error.to_string())?;
        let said = format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.status.success().then_some(()).ok_or(said)
    })
    .unwrap()
}

#[test]
fn goroutines_are_walked_to_their_start() {
    if !live() {
        return;
    }
    let Some(go) = installed(&["go"]) else { return };
    // Stripped, as programs are distributed, only Go's own table has the names and frame sizes of functions.
    let stripped = built("goroutines_stripped", |into| {
        let mut build = Command::new(go);
        build.env("GOCACHE", into.with_file_name("go-cache"));
        build.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
        build
            .args(["build", "-ldflags", "-s -w", "-buildmode", "pie", "-o"])
            .arg(into)
            .arg(fixture("goroutines.go"));
        build
    });
    let has = |stack: &Stack, part: &str| stack.frames.iter().any(|name| name.contains(part));
    for source in sources() {
        let recorded = || {
            let recorded = launch(&["--hz", "997", "--source", source], &stripped, &[""; 0]);
            recorded.check_none("complete without its callers", |stack| {
                let work = ["main.hashing", "main.sorting"].iter().any(|name| stack.has(name));
                work && stack.is_complete() && !(has(stack, "main.main.func1") && stack.has("runtime.goexit"))
            });
            recorded
        };
        // Its assembly uses the frame pointer for other purposes.
        record_until("the callers of assembly", recorded, |recorded| {
            recorded.shows(|stack| {
                has(stack, "sha256.block") && stack.has("main.hashing") && stack.has("runtime.goexit")
            })
        });
    }
}

/// Whether a method of the class is on a stack: `long Rounds.inner(int)`, or `LRounds;::inner`.
fn has_method(stack: &Stack, method: &str) -> bool {
    stack.frames.iter().any(|name| name.contains("Rounds") && name.contains(method))
}

/// The source is the truth: `inner` is always called by `middle` and that by `outer`, and complete stacks
/// show it, with and without frame pointers; callers of Mono's `Leaf` are four functions compiled by Mono.
#[test]
fn complete_stacks_of_java_and_mono_lack_no_caller() {
    if !live() {
        return;
    }
    let (Some(java), Some(javac)) = (installed(&["java"]), installed(&["javac"])) else { return };
    let classes = TempDir::new().unwrap();
    let mut build = Command::new(javac);
    let output = build.arg("-d").arg(classes.path()).arg(fixture("Rounds.java")).output().unwrap();
    assert!(output.status.success(), "{build:?}: {}", String::from_utf8_lossy(&output.stderr));
    for flags in ["-XX:+PreserveFramePointer", "-XX:+TieredCompilation"] {
        let mut arguments = vec![
            OsStr::new("-XX:+UnlockDiagnosticVMOptions"),
            OsStr::new("-XX:+DumpPerfMapAtExit"),
            OsStr::new("-XX:CompileCommand=quiet"),
            OsStr::new("-XX:CompileCommand=dontinline,Rounds::*"),
            OsStr::new(flags),
            OsStr::new("-cp"),
            classes.path().as_os_str(),
        ];
        arguments.extend(["Rounds", "500"].map(OsStr::new));
        // The map has no names for interpreted code: there is more of it if the compiler gets less of a CPU.
        let interpreted = |stack: &Stack| stack.frames.iter().any(|name| name.contains("Interpreter"));
        let recorded = || {
            let recorded = launch(&["--hz", "997", "--source", "ptrace"], &java, &arguments);
            recorded.check_none(format!("{flags}: complete, and lacks a caller"), |stack| {
                stack.is_complete()
                    && has_method(stack, "inner")
                    && !interpreted(stack)
                    && !(has_method(stack, "middle") && has_method(stack, "outer"))
            });
            recorded
        };
        record_until(
            "compiled code, with its callers where there are frame pointers",
            recorded,
            |recorded| {
                recorded.shows(|stack| {
                    has_method(stack, "inner")
                        && (flags.contains("Tiered") || stack.is_complete() && has_method(stack, "main"))
                })
            },
        );
    }
    check_mono();
}

fn check_mono() {
    const MADE: &str = "[mono jit]";
    let (Some(mono), Some(mcs)) = (installed(&["mono"]), installed(&["mcs"])) else { return };
    let built = built("Rounds.exe", |into| {
        let mut build = Command::new(mcs);
        build.arg(format!("-out:{}", into.display())).arg(fixture("Rounds.cs"));
        build
    });
    let target = Fixture::run(Command::new(mono).arg(built));
    // Compiled by then, and at work.
    wait_for_cpu_time(target.pid(), Duration::from_millis(500));
    let recorded = || attach(target.pid(), &["--duration", "0.5", "--hz", "997"]).wait();
    let callees = |stack: &Stack| if stack.leaf() == MADE { stack.times(MADE) } else { 0 };
    let recorded = record_until("compiled code, with its callers", recorded, |recorded| {
        recorded.shows(|stack| callees(stack) >= 4)
    });
    // Some of its code is not a method of the program.
    let wrong = recorded.count(|stack| stack.is_complete() && (1..5).contains(&callees(stack)));
    let all = recorded.count(|stack| callees(stack) > 0);
    recorded.check(wrong * 20 <= all, format!("{wrong} of {all} lack callers and say nothing"));
}

#[test]
fn registered_jit_code_has_names_and_callers() {
    let flags = ["-c", "-O2", "-fomit-frame-pointer", "-fno-stack-protector", "-fasynchronous-unwind-tables"];
    let object = compile("jitted", "jitted.o", &flags);
    for source in sources() {
        let mut target = Fixture::start("registered", [object.as_os_str()]);
        target.line("ready");
        for (told, answer) in [("run 50", "ran"), ("register", "registered")] {
            target.tell(told);
            target.line(answer);
        }
        target.tell("run 600000");
        // It is read when the recording begins, and searched again each second.
        let recorded = || attach(target.pid(), &["--hz", "997", "-d", "0.3", "--source", source]).wait();
        let path = ["main", "jitted_entry", "jitted_middle", "jitted_leaf"];
        record_until("its callers", recorded, |recorded| {
            recorded.shows(|stack| stack.has_path(&path) && stack.is_complete())
        });

        drop(target);
        // Registered while it is recorded.
        if *source == "perf" {
            continue;
        }
        let late = || {
            let mut target = Fixture::start("registered", [object.as_os_str()]);
            target.line("ready");
            let running = attach(target.pid(), &["--hz", "997", "--source", source]);
            for (told, answer) in [("run 50", "ran"), ("register", "registered"), ("run 1500", "ran")] {
                target.tell(told);
                target.line(answer);
            }
            let recorded = running.interrupt();
            target.tell("unregister");
            target.line("unregistered");
            assert!(target.finish().0.success());
            recorded
        };
        record_until("what was registered late", late, |recorded| {
            recorded.shows(|stack| stack.has_path(&path))
        });
    }
}
