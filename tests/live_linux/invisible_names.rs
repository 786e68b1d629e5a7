//! A program with invisible characters and terminal control sequences in the names of its functions, threads,
//! source and file: recorded, dumped, and mentioned in messages.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{copy_program, live, stackprof, wait_for};

#[path = "../support/invisible.rs"]
mod characters;

use characters::{INVISIBLE, assert_visible, escaped};

/// Uses 150 ms of CPU time in each of two threads, or until its input ends.
const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
static volatile int runs = 1;
static volatile unsigned long sum;
__attribute__((noinline)) static void PLACE(int waits) {
    struct timespec used;
    do {
        for (int i = 0; i < 100000; i++) sum += i;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    } while (waits ? runs : used.tv_sec == 0 && used.tv_nsec < 150000000);
}
static void *thread(void *waits) {
    prctl(PR_SET_NAME, "t\xe2\x80\xae\x1b[31m\xc2\x9b");
    PLACE(waits != 0);
    return 0;
}
int main(int argc, char **argv) {
    (void)argv;
    pthread_t id;
    pthread_create(&id, 0, thread, argc > 1 ? &runs : 0);
    if (argc > 1) { getchar(); runs = 0; } else PLACE(0);
    return pthread_join(id, 0);
}
"#;

/// The program, with invisible characters in a function name and in its file name.
fn built(directory: &Path) -> PathBuf {
    let name = format!("f{INVISIBLE}");
    let place = format!("f{}", "x".repeat(name.len() - 1));
    let source = directory.join("s\u{202e}.c");
    std::fs::write(&source, SOURCE.replace("PLACE", &place)).unwrap();
    let plain = directory.join("plain");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o"]).arg(&plain).arg(&source);
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut bytes = std::fs::read(&plain).unwrap();
    let mut replaced = 0;
    for at in 0..bytes.len() - place.len() {
        if bytes[at..].starts_with(place.as_bytes()) {
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            replaced += 1;
        }
    }
    assert!(replaced >= 2, "in the symbol table and in DWARF: {replaced}");
    std::fs::write(&plain, bytes).unwrap();
    let program = directory.join("p\u{202e}\u{1b}[31m\u{200b}");
    copy_program(&plain, &program);
    program
}

#[test]
fn names_of_a_program_are_escaped_everywhere() {
    if !live() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = built(directory.path());
    let function = format!("f{}", escaped(INVISIBLE));
    let (process, thread) = ("p\\u{202e}\\u{1b}[31m\\u{200b}", "t\\u{202e}\\u{1b}[31m\\u{9b} (");
    let run = |command: &mut Command| -> String {
        let output = command.current_dir(directory.path()).output().unwrap();
        let told = format!("{}{}", text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{told}");
        told
    };

    let forms = ["o.svg", "o.folded", "o.speedscope.json", "o.firefox.json", "o.pb.gz"];
    let mut record = stackprof();
    record.args(["--threads", "--lines", "-v", "--stats", "stats.json"]);
    record.args(forms.iter().flat_map(|form| ["-o", form])).arg("--").arg(&program);
    let told = run(&mut record);
    assert_visible("the summary", &told);
    assert!(told.contains(process), "{told}");
    for form in forms.iter().chain(&["stats.json"]).filter(|form| !form.ends_with(".gz")) {
        assert_visible(form, &std::fs::read_to_string(directory.path().join(form)).unwrap());
    }
    let folded = std::fs::read_to_string(directory.path().join("o.folded")).unwrap();
    for name in [function.as_str(), process, thread, "(s\\u{202e}.c:"] {
        assert!(folded.contains(name), "{name} in {folded}");
    }
    let again = run(stackprof().args(["render", "-q", "--lines", "o.pb.gz", "-o", "-"]));
    assert_eq!(again, folded);

    let mut child = Command::new(&program).arg("waits").stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let names = format!("/proc/{pid}/task");
    wait_for("its thread's name", || {
        let tasks = std::fs::read_dir(&names).unwrap().flatten();
        tasks
            .filter_map(|task| std::fs::read(task.path().join("comm")).ok())
            .any(|name| name.starts_with(b"t"))
    });
    for (what, name) in [
        ("threads", "t\\u{202e}\\u{1b}[31m\\u{9b}"),
        ("images", process),
        ("symbols", function.as_str()),
        ("stacks", function.as_str()),
    ] {
        let told = run(stackprof().args(["dump", what, "--pid", &pid]));
        assert_visible(what, &told);
        assert!(told.contains(name), "{name} in {told}");
    }
    // The progress line has the terminal's own sequences, but none from a name.
    let line = format!("{} --pid {pid} -d 0.5 -o t.svg", env!("CARGO_BIN_EXE_stackprof"));
    let told = run(Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()));
    assert!(told.contains(process), "{told}");
    for piece in ["\u{202e}", "\u{200b}", "\u{1b}[31m"] {
        assert!(!told.contains(piece), "{piece:?} in {}", told.escape_debug());
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    child.wait().unwrap();
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}
