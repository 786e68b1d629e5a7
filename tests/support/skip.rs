//! A test that lacks something says so and passes.
//!
//! Input: what is missing. Output: `SKIP test: reason` on standard error at once, past the capture of the test harness,
//! and a line in a file of this run of cargo, which `tests/skipped.rs` lists at the end. `STACKPROF_NO_SKIP=1` makes what could
//! be installed or permitted a failure.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part.

use std::env;
use std::io::Write;
use std::path::PathBuf;

/// Programs that tests run, and the Debian package of each whose name differs.
const PACKAGES: [(&str, &str); 24] = [
    ("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"),
    ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi"),
    ("arm-none-eabi-nm", "binutils-arm-none-eabi"),
    ("arm-none-eabi-objcopy", "binutils-arm-none-eabi"),
    ("c++", "g++"),
    ("clang", "clang-19"),
    ("dsymutil-19", "llvm-19"),
    ("dwp", "binutils"),
    ("g++", "g++"),
    ("go", "golang-go"),
    ("javac", "openjdk-17-jdk-headless"),
    ("java", "openjdk-17-jre-headless"),
    ("ld64.lld-19", "lld-19"),
    ("lldb-server", "lldb-19"),
    ("llvm-nm-19", "llvm-19"),
    ("llvm-objdump-19", "llvm-19"),
    ("llvm-symbolizer-19", "llvm-19"),
    ("mcs", "mono-mcs"),
    ("mono", "mono-runtime"),
    ("musl-gcc", "musl-tools"),
    ("node", "nodejs"),
    ("php", "php-cli php8.2-opcache"),
    ("qemu-system-arm", "qemu-system-arm"),
    ("xz", "xz-utils"),
];

/// The file with the skips of the run of cargo that started this test program.
pub fn list() -> PathBuf {
    let program = env::current_exe().expect("a test program has a path");
    // target/PROFILE/deps/PROGRAM; cargo, the parent of all test programs of a run, has one process id for all.
    let above = program.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps");
    above.join(format!("skipped-{}", std::os::unix::process::parent_id()))
}

/// Reports that something cannot be tested on this machine, whatever is installed.
pub fn not_here(reason: &str) {
    let thread = std::thread::current();
    let line = format!("SKIP {}: {}\n", thread.name().unwrap_or("?"), reason.trim().replace('\n', " "));
    // Not `eprintln!`, which the harness captures in a passing test.
    let _ = std::io::stderr().write_all(line.as_bytes());
    let file = std::fs::OpenOptions::new().create(true).append(true).open(list());
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the list of skips can be written");
}

/// Reports that something is not tested for want of a program or a permission; a failure if nothing may be skipped.
#[track_caller]
pub fn skip(reason: &str) {
    let must = env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
    assert!(!must, "STACKPROF_NO_SKIP is set, but: {reason}");
    not_here(reason);
}

/// Skips for want of a program, and says what brings it.
#[track_caller]
pub fn skip_without(program: &str) {
    let package = PACKAGES.iter().find(|(name, _)| *name == program).map_or(program, |(_, package)| package);
    skip(&format!("there is no {program}; try `apt-get install {package}`"));
}

/// The path of the first of these programs that is installed; `None`, after a skip, without any.
#[track_caller]
pub fn installed(names: &[&str]) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let places = || env::split_paths(&paths);
    let found =
        names.iter().find_map(|name| places().map(|place| place.join(name)).find(|path| path.is_file()));
    if found.is_none() {
        skip_without(names[0]);
    }
    found
}
