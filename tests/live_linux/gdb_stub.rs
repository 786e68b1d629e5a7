//! Real stubs with a program of known shares: gdbserver and lldb-server, attached and as a command. The
//! shares are right, stacks are whole and those that gdb prints, and the program runs on as if nobody
//! had been there.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::{
    Fixture, Random, Recorded, Stack, assert_untouched, fixture, live, made, not_here, points, proc_status,
    record_by, record_enough, rounds, stackprof, wait_for,
};

const DEPTH: usize = 20;
const SHARES: [(&str, f64); 4] = [("leaf_50", 50.0), ("leaf_30", 30.0), ("leaf_15", 15.0), ("leaf_5", 5.0)];

/// The first of these programs that this machine has; `None`, after a line that says so, if it has
/// none. With `STACKPROF_NO_SKIP=1` that is a failure instead.
pub(crate) fn program(names: &[&str]) -> Option<PathBuf> {
    let paths = env::var_os("PATH").unwrap_or_default();
    let places = || env::split_paths(&paths);
    let found =
        names.iter().find_map(|name| places().map(|place| place.join(name)).find(|path| path.is_file()));
    if found.is_none() {
        let must = env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
        assert!(!must, "STACKPROF_NO_SKIP is set, but there is no {}", names[0]);
        not_here(&format!("there is no {}", names[0]));
    }
    found
}

/// Shares need samples, of which the usual budget leaves few where each stop is slow, as beside busy programs.
/// Nobody minds how long these programs stand.
pub(crate) const OFTEN: &[&str] = &["--max-stop", "50", "--hz", "200"];

/// A stub that serves a process; ended when dropped.
pub(crate) struct Stub {
    pub(crate) child: Child,
    pub(crate) place: String,
}

impl Stub {
    /// gdbserver, attached to a process.
    pub(crate) fn gdbserver(pid: u32) -> Option<Stub> {
        let mut command = Command::new(program(&["gdbserver"])?);
        command.args(["--attach", "127.0.0.1:0", &pid.to_string()]);
        let mut child =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| line.strip_prefix("Listening on port ").map(str::to_owned));
        let port = port.expect("gdbserver says where it listens");
        // What it says later is read, so that it never waits for that.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Stub { child, place: format!("127.0.0.1:{}", port.trim()) })
    }

    /// lldb-server, attached to a process.
    fn lldb_server(pid: u32) -> Option<Stub> {
        let mut command = Command::new(program(&["lldb-server", "lldb-server-19"])?);
        let port = free_port();
        let place = format!("127.0.0.1:{port}");
        command.args(["gdbserver", &place, "--attach", &pid.to_string()]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        // It takes one connection: whether it listens is seen without one.
        wait_for("lldb-server to listen", || is_listening(port));
        Some(Stub { child, place })
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn is_listening(port: u16) -> bool {
    let wanted = format!(":{port:04X} ");
    let listens = |line: &str| line.split_whitespace().nth(3) == Some("0A") && line.contains(&wanted);
    std::fs::read_to_string("/proc/net/tcp").unwrap().lines().any(listens)
}

pub(crate) fn record(place: &str, options: &[&str]) -> Recorded {
    let mut command = stackprof();
    command.args(["--gdb", place]);
    record_by_stub(command, options)
}

fn record_by_stub(command: Command, options: &[&str]) -> Recorded {
    record_by(command, options.iter().copied()).wait()
}

/// Process name, what calls main, main, the recursion, a leaf; nothing else.
fn is_whole(stack: &Stack) -> bool {
    let Some(main) = stack.frames.iter().position(|frame| frame == "main") else { return false };
    let after = &stack.frames[main + 1..];
    let deep = after.iter().take_while(|frame| *frame == "recurse").count();
    stack.frames[0] == "shares" && main <= 4 && deep <= DEPTH && after.len() - deep <= 1
        || after.iter().any(|frame| frame.contains("clock_gettime"))
}

#[track_caller]
fn check_shares(recorded: &Recorded) {
    recorded.check_success();
    let total = recorded.total() as f64;
    recorded.check_stacks_taken();
    for (name, expected) in SHARES {
        let share = 100.0 * recorded.count(|stack| stack.leaf() == name) as f64 / total;
        println!("{name} {share:.2} % of {} stacks", recorded.stacks_taken());
        let off = (share - expected).abs();
        recorded.check(off <= points(expected, recorded.stacks_taken()), format!("{name} has {share:.2} %"));
    }
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check(complete >= 0.995, format!("{complete} of the stacks are complete"));
    let whole = recorded.count(is_whole) as f64 / total;
    recorded.check(whole >= 0.99, format!("{whole} of the stacks are whole"));
    recorded.check(recorded.stats["backend"] == "gdb", "another source");
}

/// Records a program through an attached stub; it ends as if nobody had been there.
fn shares_through(stub_of: fn(u32) -> Option<Stub>) {
    let Some(_one) = live() else { return };
    let recorded = record_enough(|| {
        let mut target = Fixture::start("shares", ["5", "20"]);
        target.line("ready");
        let stub = stub_of(target.pid())?;
        let recorded = record(&stub.place, &[&["--duration", "4"], OFTEN].concat());
        assert_untouched(target.pid(), "after the recording");
        target.line("done");
        assert!(target.finish().0.success());
        Some(recorded)
    });
    recorded.iter().for_each(check_shares);
}

#[test]
fn shares_are_right_through_gdbserver() {
    shares_through(Stub::gdbserver);
}

#[test]
fn shares_are_right_through_lldb_server() {
    shares_through(Stub::lldb_server);
}

#[test]
fn a_command_is_a_stub_and_ends_with_the_recording() {
    let Some(_one) = live() else { return };
    let Some(gdbserver) = program(&["gdbserver"]) else { return };
    let place = format!("|{} - {} 3 20", gdbserver.display(), fixture("shares").display());
    // To the end of the program, whose output is not ours to hear.
    let Some(recorded) = record_enough(|| Some(record(&place, OFTEN))) else { return };
    check_shares(&recorded);
    let children = std::fs::read_dir("/proc").unwrap().flatten();
    let is_left = |name: &str| {
        let status = proc_status(name.parse().ok()?, "PPid")?;
        let command = std::fs::read_to_string(format!("/proc/{name}/cmdline")).ok()?;
        let is_this = command.contains("gdbserver\0-\0");
        (is_this && status == std::process::id().to_string()).then_some(())
    };
    let left = children.filter_map(|entry| is_left(entry.file_name().to_str()?)).count();
    assert_eq!(left, 0, "gdbserver is left");
}

#[test]
fn a_recording_that_is_ended_lets_the_target_run() {
    let Some(_one) = live() else { return };
    for signal in ["INT", "TERM", "HUP"] {
        let mut target = Fixture::start("shares", ["60", "20"]);
        target.line("ready");
        let Some(stub) = Stub::gdbserver(target.pid()) else { return };
        let mut command = stackprof();
        command.args(["--gdb", &stub.place]);
        let running = record_by(command, [""; 0]);
        // It stands until it is recorded.
        crate::support::wait_for_more_cpu_time(target.pid(), std::time::Duration::from_secs(1));
        crate::support::kill(signal, running.pid());
        let recorded = running.wait();
        recorded.check_success();
        recorded.check(recorded.total() > 0, "nothing was sampled");
        assert_untouched(target.pid(), format!("after SIG{signal}"));
    }
}

/// The functions of each thread, the innermost first, as gdb and `dump stacks` print them.
fn by_gdb(text: &str) -> Vec<Vec<String>> {
    let mut threads: Vec<(u64, Vec<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Thread ") {
            let lwp = rest.split(['.', ' ', ')']).collect::<Vec<_>>();
            let number = rest.split("Thread ").nth(1).and_then(|id| id.split([' ', ')']).next());
            let number = number.and_then(|id| id.split('.').next_back()?.parse().ok());
            threads.push((number.unwrap_or_else(|| panic!("{line}: {lwp:?}")), Vec::new()));
        } else if line.starts_with('#')
            && let Some((_, stack)) = threads.last_mut()
        {
            // `#1  0x000055d4c1 in recurse (depth=1) at ...`, `#0  leaf_50 (scale=1) at ...`
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = if words.get(2) == Some(&"in") { words[3] } else { words[1] };
            stack.push(name.split('@').next().unwrap_or_default().to_owned());
        }
    }
    threads.sort_by_key(|(number, _)| *number);
    threads.into_iter().map(|(_, stack)| stack).collect()
}

fn by_dump(text: &str) -> Vec<Vec<String>> {
    let mut threads: Vec<Vec<String>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("thread ") {
            threads.push(Vec::new());
        } else if let Some(stack) = threads.last_mut()
            && line.trim_start().starts_with('#')
        {
            let name = line.split_whitespace().nth(3).unwrap_or_default();
            stack.push(name.split('@').next().unwrap_or_default().to_owned());
        }
    }
    threads
}

/// Whether two names are of one function: gdb has `??` where there is no symbol, and one of several
/// symbols of an address.
fn same_name(gdb: &str, ours: &str) -> bool {
    let plain = |name: &str| name.trim_start_matches('_').to_owned();
    gdb == ours || gdb == "??" || ours.starts_with('[') || plain(gdb) == plain(ours) || {
        // Aliases in the C library: clock_gettime and __clock_gettime_2, write and __GI___libc_write.
        let (gdb, ours) = (plain(gdb), plain(ours));
        gdb.contains(&ours) || ours.contains(&gdb)
    }
}

#[test]
fn stacks_are_those_that_gdb_prints_at_the_same_stop() {
    let Some(_one) = live() else { return };
    let Some(gdb) = program(&["gdb"]) else { return };
    if program(&["gdbserver"]).is_none() {
        return;
    }
    let mut random = Random::from_environment();
    let (mut compared, mut different) = (0, Vec::new());
    for round in 0..rounds(12) {
        let name = if round % 2 == 0 { "shares" } else { "threads" };
        let mut target = match name {
            "shares" => Fixture::start("shares", ["120", "20"]),
            _ => Fixture::start("threads", ["4", "20", "120"]),
        };
        target.line("ready");
        if name == "threads" {
            target.go();
        }
        std::thread::sleep(std::time::Duration::from_millis(5 + random.below(60)));
        let Some(stub) = Stub::gdbserver(target.pid()) else { return };
        let remote = format!("target remote {}", stub.place);
        let commands = [
            "set debuginfod enabled off",
            "set pagination off",
            &remote,
            "thread apply all bt",
            "disconnect",
        ];
        let mut command = Command::new(&gdb);
        command.args(["-q", "-batch", "-nx"]).args(commands.iter().flat_map(|command| ["-ex", command]));
        let said = command.arg(fixture(name)).stdin(Stdio::null()).output().unwrap();
        let gdb_says = by_gdb(&String::from_utf8_lossy(&said.stdout));
        assert!(!gdb_says.is_empty(), "{said:?}");
        let dumped = stackprof().args(["dump", "stacks", "--gdb", &stub.place]).output().unwrap();
        assert!(dumped.status.success(), "{dumped:?}");
        let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
        let ours = by_dump(&text);
        assert_eq!(ours.len(), gdb_says.len(), "{text}\n{gdb_says:?}");
        for (ours, gdbs) in ours.iter().zip(&gdb_says) {
            compared += 1;
            // gdb stops at main.
            let main = ours.iter().position(|name| name == "main").map_or(ours.len(), |at| at + 1);
            let ends = if gdbs.last().is_some_and(|name| name == "main") { main } else { ours.len() };
            let same = ends == gdbs.len() && ours.iter().zip(gdbs).all(|(ours, gdbs)| same_name(gdbs, ours));
            if !same {
                different.push(format!("{name}: gdb {gdbs:?}\nours {ours:?}"));
            }
        }
        assert_untouched(target.pid(), "after the dump");
    }
    println!("{compared} stacks compared, {} differ", different.len());
    assert!(
        different.len() * 1000 <= compared * 5,
        "{} of {compared}:\n{}",
        different.len(),
        different.join("\n")
    );
}

/// The firmware of `tests/fixtures/board`; `None`, after a line that says so, without its compiler.
fn firmware(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let (clang, lld) = (program(&["clang-19"])?, program(&["ld.lld-19"])?);
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/board");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let elf = made(name, |elf| {
        let objects = ["start.S", "main.c"].map(|source| {
            let object = elf.with_extension(format!("{source}.o"));
            let mut command = Command::new(&clang);
            command.args([
                "--target=aarch64-none-elf",
                "-O1",
                "-ffreestanding",
                "-fasynchronous-unwind-tables",
            ]);
            command.args(["-fno-optimize-sibling-calls", "-c"]).args(flags).arg(sources.join(source));
            run(command.arg("-o").arg(&object));
            object
        });
        run(Command::new(lld).arg("-T").arg(sources.join("link.ld")).args(objects).arg("-o").arg(elf));
        Ok(())
    });
    Some(elf.unwrap())
}

/// A board of QEMU that runs firmware.
fn board(firmware: &std::path::Path) -> Option<Stub> {
    let mut command = Command::new(program(&["qemu-system-aarch64"])?);
    let port = free_port();
    command.args(["-M", "virt", "-cpu", "cortex-a57", "-nic", "none", "-nographic", "-monitor", "none"]);
    command.args(["-serial", "none", "-gdb", &format!("tcp:127.0.0.1:{port}"), "-kernel"]).arg(firmware);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    wait_for("QEMU to listen", || is_listening(port));
    Some(Stub { child, place: format!("127.0.0.1:{port}") })
}

#[test]
fn a_board_without_an_operating_system_has_the_shares_of_its_firmware() {
    let Some(_one) = live() else { return };
    let Some(elf) = firmware("board", &[]) else { return };
    let Some(stub) = board(&elf) else { return };
    let options = [&["--exec", elf.to_str().unwrap(), "--duration", "4"][..], OFTEN].concat();
    let Some(recorded) = record_enough(|| Some(record(&stub.place, &options))) else { return };
    recorded.check_success();
    recorded.check_stacks_taken();
    let total = recorded.total() as f64;
    for (name, expected) in SHARES {
        let share = 100.0 * recorded.count(|stack| stack.leaf() == name) as f64 / total;
        println!("{name} {share:.2} % of {} stacks", recorded.stacks_taken());
        let off = (share - expected).abs();
        recorded.check(off <= points(expected, recorded.stacks_taken()), format!("{name} has {share:.2} %"));
    }
    let complete = recorded.figure("stacks_complete") / recorded.figure("samples");
    recorded.check(complete >= 0.99, format!("{complete} of the stacks are complete"));
    recorded.check(recorded.stats["arch"] == "aarch64", "another processor");
    // It runs on: a second visitor finds it so, and names need no more than the file.
    let dumped =
        stackprof().args(["dump", "stacks", "--gdb", &stub.place, "--exec"]).arg(&elf).output().unwrap();
    let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
    assert!(dumped.status.success() && text.contains("main"), "{dumped:?}");
}

#[test]
fn a_board_with_nothing_to_do_is_idle_and_another_program_is_refused() {
    let Some(_one) = live() else { return };
    let Some((idle, busy)) = firmware("board_idle", &["-DIDLE"]).zip(firmware("board", &[])) else { return };
    let Some(stub) = board(&idle) else { return };
    let exec = ["--exec", idle.to_str().unwrap(), "--duration", "1"];
    let recorded = record(&stub.place, &exec);
    recorded.check(recorded.status.code() == Some(4), "nothing should have been sampled");
    let recorded = record(&stub.place, &[&exec[..], &["--idle"]].concat());
    recorded.check_success();
    let waits = recorded.count(|stack| stack.leaf() == "_start");
    recorded.check(waits == recorded.total() && waits > 0, "it stands elsewhere");
    let refused = record(&stub.place, &["--exec", busy.to_str().unwrap()]);
    refused.check(
        refused.status.code() == Some(1) && refused.stderr.contains("what it runs is not board"),
        "not refused",
    );
}

#[test]
fn what_listens_but_says_nothing_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    let held = std::thread::spawn(move || listener.accept().map(|(stream, _): (TcpStream, _)| stream));
    let said = stackprof().args(["dump", "threads", "--gdb", &place]).output().unwrap();
    assert_eq!(said.status.code(), Some(1));
    let text = String::from_utf8_lossy(&said.stderr);
    let expected = format!("cannot attach: the stub at {place} did not answer `qSupported` within 10 s");
    assert!(text.contains(&expected), "{text}");
    drop(held.join());
}
