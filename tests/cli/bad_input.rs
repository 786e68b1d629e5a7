//! User errors: one line that names the problem and the next step, the right exit code, no output, and a
//! target that is not touched.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use crate::programs::copy_program;
use crate::skip::skip;
use crate::support::{Place, can_trace, is_linux, is_root, run};

/// Runs `line`, which must neither leave a file nor run its command (`touch marker`).
fn refused(line: &str, code: i32, needles: &[&str]) {
    let place = Place::new();
    fs::create_dir(place.path("directory")).unwrap();
    place.write("file", "");
    let before = place.files();
    place.run(line).fails_with(code, needles);
    assert_eq!(place.files(), before, "`{line}` left something, or ran the command");
}

#[test]
fn impossible_values_are_refused() {
    for (option, expected) in [
        ("--hz 0", "--hz `0`: expected a whole number from 1 to 10000"),
        ("--hz 1e9", "--hz `1e9`: expected a whole number from 1 to 10000"),
        ("--hz abc", "--hz `abc`: expected a whole number from 1 to 10000"),
        ("-F -5", "--hz `-5`: expected a whole number from 1 to 10000"),
        ("--duration -1", "--duration `-1`: expected seconds, more than 0 (10 or 0.5)"),
        ("--duration -5e-1", "--duration `-5e-1`: expected seconds, more than 0 (10 or 0.5)"),
        ("-d -.5", "--duration `-.5`: expected seconds, more than 0 (10 or 0.5)"),
        ("--duration -inf", "--duration `-inf`: expected seconds, more than 0 (10 or 0.5)"),
        ("--duration nan", "--duration `nan`: expected seconds, more than 0 (10 or 0.5)"),
        ("--duration 0", "--duration `0`: expected seconds, more than 0 (10 or 0.5)"),
        ("--max-depth -1e3", "--max-depth `-1e3`: expected a whole number from 1 to 65536"),
        ("--min-width -1e-3", "--min-width `-1e-3`: expected a percentage from 0 to below 100"),
        ("--unwind magic", "--unwind `magic`: expected auto, fp or cfi"),
        (
            "--format png",
            "no format is called `png`; one of svg, html, folded, pprof, speedscope, firefox, otlp",
        ),
        ("-o a.png", "--output `a.png`: unknown extension; use .svg, .folded or .pb.gz"),
        (
            "-o a.json",
            "format `json` is not in this version; one of svg, html, folded, pprof, speedscope, firefox, otlp",
        ),
        ("-o a.svg -o a.svg", "`a.svg` is given twice; each output needs its own file"),
        ("-o a.svg --stats a.svg", "`a.svg` is given twice; each output needs its own file"),
    ] {
        refused(&format!("{option} -- touch marker"), 2, &[expected]);
    }
}

#[test]
fn impossible_process_ids_are_refused() {
    for (line, expected) in [
        ("", "say what to profile: stackprof --pid 4242 attaches, stackprof -- ./prog arg launches"),
        ("--hz 99", "say what to profile: "),
        ("--pid 1 -- touch marker", "give one process, by --pid or as a command after --"),
        ("--pid 1 -- ls", "give one process, by --pid or as a command after --"),
        ("--pid 1 --target sim:1", "give one process, by --pid or as a command after --"),
        ("--", "no command after --: stackprof -- ./prog arg"),
        ("--pid 0", "--pid `0`: expected a process id"),
        ("--pid -1", "--pid `-1`: expected a process id"),
        ("--pid -1e1", "--pid `-1e1`: expected a process id"),
        ("--pid 4294967296", "--pid `4294967296`: expected a process id"),
        ("--pid", "option `--pid` needs a value (try 'stackprof --help')"),
        ("4242", "to attach to process 4242: stackprof --pid 4242"),
        ("touch marker", "to run a command, put it after --: stackprof -- touch marker"),
        ("dump stacks", "missing --pid N: stackprof dump"),
        ("dump heap --pid 1", "dump does not know `heap`: stackprof dump {threads|images|symbols|stacks}"),
        ("demo --pid 1", "there is no option `--pid` (try 'stackprof demo --help')"),
    ] {
        refused(line, 2, &[expected]);
    }
    let nobody = "--pid `no-such-process`: no process has this name (ps -e shows them)";
    refused("--pid no-such-process", 1, &[nobody]);
}

#[test]
fn unknown_commands_and_options_are_refused() {
    let command = "-- touch marker";
    for (line, expected) in [
        ("--durration 5", "there is no option `--durration`; did you mean `--duration`?"),
        ("--grobnicate", "there is no option `--grobnicate` (try 'stackprof --help')"),
        ("-z", "there is no option `-z` (try 'stackprof --help')"),
        ("-q -v", "--quiet and --verbose exclude each other; leave one out"),
        ("frobnicate", "to run a command, put it after --: stackprof -- frobnicate"),
        (
            "help frobnicate",
            "there is no command `frobnicate`; one of record, heap, demo, dump, render, open, diff, gate, completions, help",
        ),
        ("top --pid 1", "command `top` is not in this version"),
    ] {
        refused(&format!("{line} {command}"), 2, &[expected]);
    }
}

#[test]
fn outputs_are_checked_before_the_command_runs() {
    for (option, needles) in [
        ("-o directory --format svg", ["cannot write `directory`: ", "it is a directory; name a file in it"]),
        ("-o missing/a.svg", ["cannot write `missing/a.svg`: ", "the directory `missing` does not exist"]),
        ("-o file/a.svg", ["cannot write `file/a.svg`: ", "not a directory"]),
        ("-o a.svg -o missing/a.txt", ["cannot write `missing/a.txt`: ", "does not exist"]),
        ("-o new/ --format svg", ["cannot write `new/`: ", "a file name is expected"]),
        ("--stats missing/s.json", ["cannot write `missing/s.json`: ", "does not exist"]),
        ("--stats directory", ["cannot write `directory`: ", "it is a directory"]),
    ] {
        refused(&format!("{option} -- touch marker"), 1, &needles);
    }
}

/// The program for a user without rights: root passes every permission check.
fn without_rights(place: &Place) -> Option<Command> {
    if !is_root() {
        return Some(place.command());
    }
    // Only root may be able to reach the built program.
    let copy = place.path("stackprof");
    copy_program(place.program(), &copy);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(copy);
    command.current_dir(place.path("."));
    match Command::new("setpriv").arg("--version").output() {
        Ok(_) => Some(command),
        Err(error) => {
            skip(&format!("root passes every permission check, and there is no setpriv: {error}"));
            None
        }
    }
}

#[test]
fn a_directory_without_permission_is_found_before_the_command_runs() {
    for (words, needles) in [
        (&["-o", "closed/a.svg"][..], &["cannot write `closed/a.svg`: ", "permission denied"][..]),
        (&["--stats", "closed/s.json", "-o", "-"], &["cannot write `closed/s.json`: ", "permission denied"]),
        // The default output goes to the working directory, under a name unknown in advance.
        (&[], &["permission denied", "-o FILE"]),
        (&["-o", "read-only.svg"], &["cannot write `read-only.svg`: permission denied"]),
    ] {
        let (place, open) = (Place::new(), Place::new());
        place.write("read-only.svg", "old");
        fs::set_permissions(place.path("read-only.svg"), fs::Permissions::from_mode(0o444)).unwrap();
        fs::create_dir(place.path("closed")).unwrap();
        fs::set_permissions(place.path("closed"), fs::Permissions::from_mode(0o555)).unwrap();
        let Some(mut command) = without_rights(&place) else { return };
        fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o555)).unwrap();
        fs::set_permissions(open.path("."), fs::Permissions::from_mode(0o777)).unwrap();
        let before = place.files();
        command.args(words).arg("--").arg("touch").arg(open.path("marker"));
        let run = run(command).fails_with(1, needles);
        assert!(open.files().is_empty(), "the command ran: {run}");
        assert_eq!(place.files(), before, "{run}");
        assert_eq!(place.read("read-only.svg"), "old");
        fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// A child that is killed at the end of its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that has stopped using CPU time.
fn sleeper() -> Ended {
    let mut command = Command::new("sleep");
    let sleeper = Ended(command.arg("600").stdin(Stdio::null()).spawn().unwrap());
    wait_for_state(sleeper.0.id(), 'S');
    sleeper
}

/// Waits for a state if the system reports states; on others the error comes from the attempt.
fn wait_for_state(pid: u32, wanted: char) {
    for _ in 0..12_000 {
        if state(pid).is_none_or(|state| state == wanted) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn processes_that_cannot_be_attached_to() {
    if !is_linux() {
        return;
    }
    // Above the largest pid of Linux (4,194,304).
    refused(
        "-o a.svg --pid 4194305",
        1,
        &["cannot attach to pid 4194305: no such process", "`ps -e` lists those that run"],
    );
    refused("-o a.svg --pid 4294967295", 1, &["cannot attach to pid 4294967295: no process has such"]);
    refused("dump stacks --pid 4194305", 1, &["pid 4194305", "no such process"]);

    let zombie = Ended(Command::new("true").spawn().unwrap());
    let pid = zombie.0.id();
    wait_for_state(pid, 'Z');
    assert_eq!(state(pid), Some('Z'));
    refused(
        &format!("-o a.svg --pid {pid}"),
        1,
        &[&format!("cannot attach to pid {pid} (true): "), "zombie"],
    );

    let parent = std::process::id();
    let thread = std::thread::spawn(move || {
        let tid = fs::read_link("/proc/thread-self").unwrap();
        let tid = tid.file_name().unwrap().to_str().unwrap().to_owned();
        refused(
            &format!("-o a.svg --pid {tid}"),
            1,
            &[&format!("it is a thread of process {parent}; use --pid {parent}")],
        );
    });
    thread.join().unwrap();

    // Usually not visible in a container.
    let comm = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if comm(2).trim() == "kthreadd" {
        refused("-o a.svg --pid 2", 1, &["cannot attach to pid 2 (kthreadd): it is a kernel thread"]);
    }
}

#[test]
fn a_process_of_another_user_needs_sudo() {
    if !is_linux() {
        return;
    }
    if !is_root() {
        return skip("only root has a process of another user at hand");
    }
    let place = Place::new();
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o777)).unwrap();
    let Some(mut command) = without_rights(&place) else { return };
    let sleeper = sleeper();
    let pid = sleeper.0.id();
    let before = place.files();
    command.args(["-d", "1", "-o", "a.svg", "--pid", &pid.to_string()]);
    let run = run(command);
    let run = run.fails_with(1, &[&format!("cannot attach to pid {pid} (sleep): ")]);
    let next_steps = [format!("run: sudo stackprof --pid {pid}"), "ptrace_scope is 3".to_owned()];
    assert!(next_steps.iter().any(|step| run.stderr.contains(step)), "{run}");
    assert_eq!(place.files(), before);
    assert_eq!(state(pid), Some('S'), "the target sleeps on");
}

#[test]
fn commands_that_cannot_be_run() {
    if !can_trace() {
        return;
    }
    refused(
        "-o a.svg -- ./missing",
        1,
        &["cannot run `./missing`: no such file or directory; check the name or give a path"],
    );
    refused("-o a.svg -- missing-for-sure", 1, &["cannot run `missing-for-sure`: no such file"]);
    refused("-o a.svg -- ./file", 1, &["cannot run `./file`: permission denied"]);
    refused("-o a.svg -- ./directory", 1, &["cannot run `./directory`: permission denied"]);
}

#[test]
fn an_empty_recording_fails_and_writes_no_file() {
    if !can_trace() {
        return;
    }
    refused(
        "--hz 1 -o a.svg --stats s.json -- true",
        4,
        &["nothing was sampled of true (pid ", "it exited", "a higher --hz sees shorter programs"],
    );
    refused("--hz 1 -- false", 4, &["exited with code 1"]);
    let sleeper = sleeper();
    let pid = sleeper.0.id();
    refused(
        &format!("-d 0.2 -o a.svg --pid {pid}"),
        4,
        &[&format!("nothing was sampled of sleep (pid {pid})"), "no CPU time", "--idle also records"],
    );
    assert_eq!(state(pid), Some('S'), "the target sleeps on");
}

#[test]
fn an_existing_output_survives_a_failed_run() {
    let place = Place::new();
    place.write("a.svg", "old");
    place.write("s.json", "old");
    let mut lines = vec!["--hz 0 -o a.svg -- true", "-o a.svg --stats s.json --pid 4194305"];
    if can_trace() {
        lines.extend(["--hz 1 -o a.svg --stats s.json -- true", "-o a.svg --stats s.json -- ./missing"]);
    }
    let before = place.files();
    for line in lines {
        let run = place.run(line);
        assert_ne!(run.code, Some(0), "{run}");
        assert_eq!(
            (place.read("a.svg"), place.read("s.json")),
            ("old".to_owned(), "old".to_owned()),
            "{run}"
        );
        assert_eq!(place.files(), before, "{run}");
    }
}

#[test]
fn a_full_disk_is_reported() {
    if !fs::metadata("/dev/full").is_ok_and(|metadata| !metadata.is_file()) {
        return skip("there is no /dev/full");
    }
    let place = Place::new();
    let run = place.run("-q --target sim:1 --format folded -o /dev/full");
    run.fails_with(1, &["cannot write `/dev/full`: no space left on device"]);
    let run = place.shell("\"$STACKPROF\" -q --target sim:1 -o - > /dev/full");
    run.fails_with(1, &["cannot write standard output: no space left on device"]);
}
