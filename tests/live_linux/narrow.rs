//! 32-bit programs on a 64-bit kernel: i386 on x86_64, 32-bit Arm on aarch64. Launched and attached to,
//! sampled by the kernel and by ptrace, behind a stub. Without the compiler the test prints SKIP with its
//! error; with `STACKPROF_NO_SKIP=1` that is a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

#[cfg(target_arch = "x86_64")]
use crate::gdb_stub::{OFTEN, Stub, record};
use crate::support::{
    Fixture, Recorded, Stack, assert_untouched, attach, launch, record_until, skip, sources, stackprof,
    states, try_compile, try_compile_by, wait_for,
};

const DEPTH: usize = 20;

/// How to build a 32-bit program here, and the name of its processor.
#[cfg(target_arch = "x86_64")]
const BY: (Option<&str>, &[&str], &str, &str) = (
    None,
    // Only a package that conflicts with cross compilers puts kernel headers where `-m32` searches.
    &["-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"],
    "i386",
    "libc6-dev-i386 lib32gcc-12-dev lib32stdc++-12-dev",
);
#[cfg(target_arch = "aarch64")]
const BY: (Option<&str>, &[&str], &str, &str) =
    (Some("arm-linux-gnueabihf-gcc"), &[], "arm", "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross");

/// For programs that rely on instruction analysis: on Arm also in the other instruction set.
#[cfg(target_arch = "x86_64")]
const BARE: &[&str] = &["-fomit-frame-pointer", "-static"];
#[cfg(target_arch = "aarch64")]
const BARE: &[&str] = &["-fomit-frame-pointer", "-static", "-marm"];

/// A fixture as a 32-bit program; `None`, after a message, if it cannot be built.
pub(crate) fn narrow(source: &str, name: &str, more: &[&str]) -> Option<PathBuf> {
    let (compiler, flags, arch, package) = BY;
    let usual = ["-g", "-O1", "-fno-optimize-sibling-calls", "-pthread", "-Wall"];
    let (name, flags) = (format!("{name}_{arch}"), [flags, &usual, more].concat());
    let built = match compiler {
        Some(compiler) => try_compile_by(compiler.as_ref(), source, &name, &flags),
        None => try_compile(source, &name, &flags),
    };
    match built {
        Ok(program) => Some(program),
        Err(words) => {
            skip(&format!("no program of {arch} can be built; try `apt-get install {package}`: {words}"));
            None
        }
    }
}

fn in_leaf(stack: &Stack) -> bool {
    stack.frames.iter().any(|name| name.starts_with("leaf_"))
}

fn is_deep(stack: &Stack) -> bool {
    in_leaf(stack) && stack.times("recurse") == DEPTH && stack.has("main") && stack.is_complete()
}

/// Records until a stack is complete; complete stacks are always whole.
#[track_caller]
fn check(what: &str, mut record: impl FnMut() -> Recorded) {
    let recorded = || {
        let recorded = record();
        recorded.check_none(format!("{what}: complete, but wrong"), |stack| {
            in_leaf(stack) && stack.is_complete() && !is_deep(stack)
        });
        recorded
    };
    let recorded = record_until(what, recorded, |recorded| recorded.shows(is_deep));
    recorded.check(recorded.stats["arch"] == BY.2, format!("taken for {}", recorded.stats["arch"]));
}

#[test]
fn stacks_of_32_bit_programs_are_walked() {
    let Some(program) = narrow("shares", "shares", &[]) else { return };
    let Some(bare) = narrow("shares", "shares_bare", BARE) else { return };
    let started = |program: &Path| {
        let mut target = Fixture::run(Command::new(program).args(["600", "20"]));
        target.line("ready");
        target
    };
    for source in sources() {
        let options = ["--hz", "997", "--source", source];
        for program in [&program, &bare] {
            check(&format!("launched, {source}"), || launch(&options, program, &["0.2", "20"]));
        }
        let target = started(&program);
        check(&format!("attached to, {source}"), || {
            let recorded = attach(target.pid(), &[&options[..], &["--duration", "0.3"]].concat()).wait();
            assert_untouched(target.pid(), "after the recording");
            recorded
        });
    }
    #[cfg(target_arch = "x86_64")]
    {
        let target = started(&program);
        let Some(stub) = Stub::gdbserver(target.pid()) else { return };
        // A stub accepts one connection after the other.
        check("behind gdbserver", || record(&stub.place, &[&["--duration", "0.5"], OFTEN].concat()));
        drop(stub);
        check_without_libc();
    }
    check_waiting();
}

/// Waiting threads are dumped from their calls to their start.
fn check_waiting() {
    let Some(program) = narrow("threads", "threads", &[]) else { return };
    let mut target = Fixture::run(Command::new(program).args(["3", "12", "120"]));
    target.line("ready");
    // On a busy machine a new thread may not have run one instruction yet.
    wait_for("all threads to wait", || states(target.pid()) == "SSSS");
    let said = dump(target.pid());
    assert!(said.contains(" main") && !said.contains("incomplete"), "{said}");
}

fn dump(pid: u32) -> String {
    let output = stackprof().args(["dump", "stacks", "--pid", &pid.to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_untouched(pid, "after the dump");
    String::from_utf8(output.stdout).unwrap()
}

/// Needs no 32-bit C library and no startup code: pauses for ever.
#[cfg(target_arch = "x86_64")]
fn check_without_libc() {
    let program = try_compile("bits32", "bits32", &["-O1", "-m32", "-nostdlib", "-static"]).unwrap();
    let child = crate::support::Killed(Command::new(&program).spawn().unwrap());
    let pid = child.0.id();
    wait_for("its program", || {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
    });
    let said = dump(pid);
    assert!(said.contains("_start"), "{said}");
}
