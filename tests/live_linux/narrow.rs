//! Programs of 32 bits under a kernel of 64: of i386 under x86_64, of 32-bit Arm under aarch64. Launched and
//! attached to, sampled by the kernel and by ptrace, behind a stub, and between programs of 64 bits. Without
//! what builds them each test prints SKIP with the compiler's words; with `STACKPROF_NO_SKIP=1` that is a
//! failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::by_kernel::sampled;
#[cfg(target_arch = "x86_64")]
use crate::gdb_stub::{OFTEN, Stub, record};
use crate::lifecycle::{exec_fixture, record_programs};
use crate::support::{
    Fixture, Recorded, Stack, assert_untouched, attach, launch, live, not_here, points, record_enough,
    stackprof, states, try_compile, try_compile_by, wait_for, write_script,
};

const DEPTH: usize = 20;
const SHARES: [(&str, f64); 4] = [("leaf_50", 50.0), ("leaf_30", 30.0), ("leaf_15", 15.0), ("leaf_5", 5.0)];

/// How a program of 32 bits is built here, and what its processor is called.
#[cfg(target_arch = "x86_64")]
const BY: (Option<&str>, &[&str], &str) = (
    None,
    // Headers of the kernel are where `-m32` looks only with a package that stands in the way of
    // compilers for other processors.
    &["-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"],
    "i386",
);
#[cfg(target_arch = "aarch64")]
const BY: (Option<&str>, &[&str], &str) = (Some("arm-linux-gnueabihf-gcc"), &[], "arm");

/// For the programs of which much is left to instructions: on Arm also in the other instruction set.
#[cfg(target_arch = "x86_64")]
const BARE: &[&str] = &["-fomit-frame-pointer", "-static"];
#[cfg(target_arch = "aarch64")]
const BARE: &[&str] = &["-fomit-frame-pointer", "-static", "-marm"];

/// A fixture as a program of 32 bits; `None`, after a line that says why, where none can be built.
fn narrow(source: &str, name: &str, more: &[&str]) -> Option<PathBuf> {
    let (compiler, flags, arch) = BY;
    let usual = ["-g", "-O1", "-fno-optimize-sibling-calls", "-pthread", "-Wall"];
    let (name, flags) = (format!("{name}_{arch}"), [flags, &usual, more].concat());
    let built = match compiler {
        Some(compiler) => try_compile_by(compiler.as_ref(), source, &name, &flags),
        None => try_compile(source, &name, &flags),
    };
    match built {
        Ok(program) => Some(program),
        Err(words) => {
            let must = std::env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
            assert!(!must, "STACKPROF_NO_SKIP is set, but no program of {arch} can be built: {words}");
            not_here(&format!("no program of {arch} can be built: {words}"));
            None
        }
    }
}

fn is_deep(stack: &Stack) -> bool {
    stack.frames.iter().filter(|frame| *frame == "recurse").count() == DEPTH && stack.has("main")
}

#[track_caller]
fn check_shares(recorded: &Recorded) {
    recorded.check_success();
    // Here the clock is asked in the kernel, which takes a part of the time.
    let leaf = |stack: &Stack| SHARES.iter().find(|(name, _)| stack.has(name)).map(|(name, _)| *name);
    let in_leaves = recorded.count(|stack| leaf(stack).is_some());
    recorded.check_stacks_taken();
    recorded.check(in_leaves * 10 > recorded.total() * 8, "hardly anything is in its functions");
    let taken = recorded.stacks_that_tell();
    for (name, expected) in SHARES {
        let count = recorded.count(|stack| leaf(stack) == Some(name));
        let share = 100.0 * count as f64 / in_leaves as f64;
        println!("{name} {share:.2} % of {taken} stacks");
        let off = (share - expected).abs();
        recorded.check(off <= points(expected, taken), format!("{name} has {share:.2} %"));
    }
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    println!("{complete} complete");
    recorded.check(complete >= 0.995, format!("{complete} of the stacks are complete"));
    let deep = recorded.count(|stack| leaf(stack).is_some() && is_deep(stack));
    recorded.check(deep * 1000 >= in_leaves * 995, format!("{deep} of {in_leaves} at depth {DEPTH}"));
    recorded.check(recorded.stats["arch"] == BY.2, format!("taken for {}", recorded.stats["arch"]));
}

fn launched(source: &str) {
    let Some(program) = narrow("shares", "shares", &[]) else { return };
    let options = ["--hz", "997", "--source", source];
    let launched =
        |program: &Path, seconds| record_enough(|| Some(launch(&options, program, &[seconds, "20"])));
    let Some(recorded) = launched(&program, "3") else { return };
    check_shares(&recorded);
    recorded.check(recorded.stats["exit_status"] == 0, "the exit status is not 0");
    let Some(bare) = narrow("shares", "shares_bare", BARE) else { return };
    launched(&bare, "2").iter().for_each(check_shares);
}

fn attached(source: &str) {
    let Some(program) = narrow("shares", "shares", &[]) else { return };
    let recorded = record_enough(|| {
        let mut target = Fixture::run(Command::new(&program).args(["8", "20"]));
        target.line("ready");
        let recorded = attach(target.pid(), &["--hz", "997", "--duration", "4", "--source", source]).wait();
        assert_untouched(target.pid(), "after the recording");
        Some(recorded)
    });
    recorded.iter().for_each(check_shares);
}

#[test]
fn shares_are_right_when_launched_and_stopped() {
    let Some(_one) = live() else { return };
    launched("ptrace");
}

#[test]
fn shares_are_right_when_launched_and_sampled_by_the_kernel() {
    let Some(_one) = sampled() else { return };
    launched("perf");
}

#[test]
fn shares_are_right_when_attached_to_and_stopped() {
    let Some(_one) = live() else { return };
    attached("ptrace");
}

#[test]
fn shares_are_right_when_attached_to_and_sampled_by_the_kernel() {
    let Some(_one) = sampled() else { return };
    attached("perf");
}

/// A program of 64 bits becomes one of 32 bits, and that one of 64 bits again.
fn replaced(source: &str) {
    let Some(two) = narrow("exec", "exec_two", &["-DNAME=two"]) else { return };
    let (one, three) = (exec_fixture("one"), exec_fixture("three"));
    // Each is given the next one only.
    let dir = TempDir::new().unwrap();
    let script = dir.path().join("next");
    write_script(&script, &format!("#!/bin/sh\nexec '{}' '{}'\n", two.display(), three.display()), 0o755);
    let options = ["--hz", "997", "--source", source];
    let recorded = record_programs(&["burn_in_one", "burn_in_two", "burn_in_three"], || {
        launch(&options, &one, &[script.as_os_str()])
    });
    recorded.check(recorded.stdout == "finished\n", "the last program did not finish");
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check(complete >= 0.9, format!("{complete} of the stacks are complete"));
}

#[test]
fn programs_of_both_sizes_follow_each_other_by_stops() {
    let Some(_one) = live() else { return };
    replaced("ptrace");
}

#[test]
fn programs_of_both_sizes_follow_each_other_by_samples_of_the_kernel() {
    let Some(_one) = sampled() else { return };
    replaced("perf");
}

#[test]
fn waiting_threads_are_dumped_from_their_calls_to_where_they_began() {
    let Some(_one) = live() else { return };
    let Some(program) = narrow("threads", "threads", &[]) else { return };
    let mut target = Fixture::run(Command::new(program).args(["3", "12", "120"]));
    target.line("ready");
    // Beside busy programs a thread that was started may not have run one instruction yet.
    wait_for("all threads to wait", || states(target.pid()) == "SSSS");
    let pid = target.pid().to_string();
    let output = stackprof().args(["dump", "stacks", "--pid", &pid]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" main") && !said.contains("incomplete"), "{said}");
    assert_untouched(target.pid(), "after the dump");
}

/// Needs no 32-bit C library, and no start code: a pause for ever.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_without_a_c_library_is_recorded() {
    let Some(_one) = live() else { return };
    let flags = ["-O1", "-m32", "-nostdlib", "-static"];
    let program = match try_compile("bits32", "bits32", &flags) {
        Ok(program) => program,
        Err(words) => return not_here(&format!("no 32-bit programs can be built: {words}")),
    };
    let mut child = match Command::new(&program).spawn() {
        Ok(child) => child,
        Err(error) => return not_here(&format!("no 32-bit programs can be run: {error}")),
    };
    let pid = child.id();
    wait_for("its program", || {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
    });
    let output = stackprof().args(["dump", "stacks", "--pid", &pid.to_string()]).output().unwrap();
    assert_untouched(pid, "after the dump");
    child.kill().unwrap();
    child.wait().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("_start"), "{said}");
}

#[cfg(target_arch = "x86_64")] // as the stubs that it shares code with
#[test]
fn shares_are_right_through_gdbserver() {
    let Some(_one) = live() else { return };
    let Some(program) = narrow("shares", "shares", &[]) else { return };
    let recorded = record_enough(|| {
        let mut target = Fixture::run(Command::new(&program).args(["12", "20"]));
        target.line("ready");
        let stub = Stub::gdbserver(target.pid())?;
        // Beside busy programs a stop takes long, and the usual budget leaves few of them.
        let recorded = record(&stub.place, &[&["--duration", "5"], OFTEN].concat());
        assert_untouched(target.pid(), "after the recording");
        Some(recorded)
    });
    recorded.iter().for_each(check_shares);
}
