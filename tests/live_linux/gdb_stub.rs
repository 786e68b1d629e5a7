//! Real stubs: gdbserver and lldb-server, attached and as a command. Stacks are complete and equal gdb's, and
//! the program continues undisturbed.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{
    Fixture, Random, Recorded, Stack, assert_untouched, fixture, installed, kill, live, proc_status,
    record_by, record_until, rounds, stackprof, wait_for, wait_for_more_cpu_time,
};

const DEPTH: usize = 20;

/// With the default budget, slow stops, as on a busy machine, leave few samples. These programs may be
/// stopped for long.
pub(crate) const OFTEN: &[&str] = &["--max-stop", "50", "--hz", "200"];

/// A stub that serves a process; killed on drop.
pub(crate) struct Stub {
    pub(crate) child: Child,
    pub(crate) place: String,
}

impl Stub {
    /// gdbserver, attached to a process.
    pub(crate) fn gdbserver(pid: u32) -> Option<Stub> {
        let mut command = Command::new(installed(&["gdbserver"])?);
        command.args(["--attach", "127.0.0.1:0", &pid.to_string()]);
        let mut child =
            command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| line.strip_prefix("Listening on port ").map(str::to_owned));
        let port = port.expect("gdbserver says where it listens");
        // Reads its later output, so that it never blocks.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Stub { child, place: format!("127.0.0.1:{}", port.trim()) })
    }

    /// lldb-server, attached to a process.
    fn lldb_server(pid: u32) -> Option<Stub> {
        let mut command = Command::new(installed(&["lldb-server", "lldb-server-19"])?);
        let port = free_port();
        let place = format!("127.0.0.1:{port}");
        command.args(["gdbserver", &place, "--attach", &pid.to_string()]);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        // It accepts one connection: check that it listens without connecting.
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

/// Process name, the callers of main, main, the recursion, a leaf; nothing else.
fn is_whole(stack: &Stack) -> bool {
    let Some(main) = stack.frames.iter().position(|frame| frame == "main") else { return false };
    let after = &stack.frames[main + 1..];
    let deep = after.iter().take_while(|frame| *frame == "recurse").count();
    stack.frames[0] == "shares" && main <= 4 && deep <= DEPTH && after.len() - deep <= 1
        || after.iter().any(|frame| frame.contains("clock_gettime"))
}

/// Records until a stack is complete; complete stacks are always whole.
#[track_caller]
fn check(what: &str, mut record: impl FnMut() -> Recorded) {
    let recorded = || {
        let recorded = record();
        recorded.check_none(format!("{what}: complete, but wrong"), |stack| {
            stack.has("recurse") && stack.is_complete() && !is_whole(stack)
        });
        recorded
    };
    let recorded = record_until(what, recorded, |recorded| {
        recorded.shows(|stack| stack.leaf() == "leaf_50" && stack.is_complete())
    });
    recorded.check(recorded.stats["backend"] == "gdb", "another source");
}

#[test]
fn a_program_behind_a_stub_is_walked_and_continues() {
    if !live() {
        return;
    }
    for (names, stub_of) in [
        (&["gdbserver"][..], Stub::gdbserver as fn(u32) -> Option<Stub>),
        (&["lldb-server", "lldb-server-19"], Stub::lldb_server),
    ] {
        let (name, Some(_)) = (names[0], installed(names)) else { continue };
        for signal in ["INT", "TERM", "HUP"] {
            let mut target = Fixture::start("shares", ["600", "20"]);
            target.line("ready");
            check(&format!("{name}, SIG{signal}"), || {
                let stub = stub_of(target.pid()).expect("it is installed");
                let mut command = stackprof();
                command.args(["--gdb", &stub.place]);
                let running = record_by(command, OFTEN);
                // It is stopped until it is recorded.
                wait_for_more_cpu_time(target.pid(), Duration::from_millis(150));
                kill(signal, running.pid());
                let recorded = running.wait();
                assert_untouched(target.pid(), format!("{name}, SIG{signal}"));
                recorded
            });
        }
    }
    let Some(gdbserver) = installed(&["gdbserver"]) else { return };
    let place = format!("|{} - {} 0.3 20", gdbserver.display(), fixture("shares").display());
    // To the end of the program, with its output discarded.
    check("a command", || record(&place, OFTEN));
    let is_left = |name: &str| {
        let status = proc_status(name.parse().ok()?, "PPid")?;
        let command = std::fs::read_to_string(format!("/proc/{name}/cmdline")).ok()?;
        let is_this = command.contains("gdbserver\0-\0");
        (is_this && status == std::process::id().to_string()).then_some(())
    };
    let children = std::fs::read_dir("/proc").unwrap().flatten();
    let left = children.filter_map(|entry| is_left(entry.file_name().to_str()?)).count();
    assert_eq!(left, 0, "gdbserver is left");
}

/// The functions of each thread, innermost first, as gdb and `dump stacks` print them.
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

/// Whether two names are of one function: gdb prints `??` without a symbol, and one of several aliases.
fn same_name(gdb: &str, ours: &str) -> bool {
    let plain = |name: &str| name.trim_start_matches('_').to_owned();
    gdb == ours || gdb == "??" || ours.starts_with('[') || plain(gdb) == plain(ours) || {
        // Aliases in the C library: clock_gettime and __clock_gettime_2, write and __GI___libc_write.
        let (gdb, ours) = (plain(gdb), plain(ours));
        gdb.contains(&ours) || ours.contains(&gdb)
    }
}

#[test]
fn stacks_match_gdb_at_the_same_stop() {
    if !live() {
        return;
    }
    let Some(gdb) = installed(&["gdb"]) else { return };
    if installed(&["gdbserver"]).is_none() {
        return;
    }
    let mut random = Random::from_environment();
    let (mut compared, mut different) = (0, Vec::new());
    for round in 0..rounds(4) {
        let name = if round % 2 == 0 { "shares" } else { "threads" };
        let mut target = match name {
            "shares" => Fixture::start("shares", ["600", "20"]),
            _ => Fixture::start("threads", ["4", "20", "600"]),
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
    // At some stops no debugger finds the caller: one of the hundred is tolerated.
    assert!(
        different.len() <= compared / 100,
        "{} of {compared}:\n{}",
        different.len(),
        different.join("\n")
    );
}
