//! `stackprof open`: authorized clients, served content, and exit.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
#[cfg(target_os = "linux")]
use std::process::Command;

use serde_json::{Value, json};

use crate::programs::kill;
#[cfg(target_os = "linux")]
use crate::skip::skip;
#[cfg(target_os = "linux")]
use crate::support::run;
use crate::support::{Place, can_trace, is_root};
use crate::viewer::Server;

/// A self-hosted Firefox Profiler: with a given viewer the network is not needed.
const VIEWER: &str = "http://viewer.example:4242";

fn start(place: &Place, profile: &str, options: &[&str]) -> Server {
    let mut command = place.command();
    command.args(["open", profile, "--no-browser", "--viewer", VIEWER]).args(options);
    Server::start(command)
}

fn recorded() -> Place {
    let place = Place::new();
    place.run("--target sim:3 --threads -q -o a.pb.gz").succeeds();
    place
}

/// Names of all frames of a Firefox profile except addresses.
fn labels(profile: &Value) -> BTreeSet<String> {
    let threads = profile["threads"].as_array().unwrap();
    let strings = |thread: &Value| {
        let table = thread.get("stringArray").or_else(|| profile["shared"].get("stringArray"));
        table
            .unwrap()
            .as_array()
            .unwrap()
            .iter()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    threads.iter().flat_map(strings).collect()
}

#[test]
fn the_profile_is_served_to_holders_of_the_address() {
    let place = recorded();
    let server = start(&place, "a.pb.gz", &[]);
    let (port, token) = (server.port, server.token.clone());
    assert_eq!(
        server.address,
        format!(
            "{VIEWER}/from-url/http%3A%2F%2F127.0.0.1%3A{port}%2F{token}%2Fprofile.json/?symbolServer=\
             http%3A%2F%2F127.0.0.1%3A{port}%2F{token}"
        )
    );
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let profile = server.get("profile.json");
    assert_eq!((profile.status, profile.header("Cache-Control")), (200, Some("no-store")));
    assert!(profile.json()["libs"].is_array());
    assert_eq!(server.get("profile.speedscope.json").status, 200);
    let origin = format!("Origin: {VIEWER}\r\n");
    let answer = server.ask("GET", "profile.json", &origin, "");
    assert_eq!((answer.status, answer.header("Access-Control-Allow-Origin")), (200, Some(VIEWER)));
    // Without the token, with another host, from another page.
    let status = |text: String| server.send(text.as_bytes()).unwrap().status;
    let host = format!("Host: 127.0.0.1:{port}\r\n");
    let other: String = token.chars().rev().collect();
    assert_eq!(status(format!("GET /profile.json HTTP/1.1\r\n{host}\r\n")), 404);
    assert_eq!(status(format!("GET /{other}/profile.json HTTP/1.1\r\n{host}\r\n")), 404);
    for name in [format!("evil.example:{port}"), "127.0.0.1".to_owned(), format!("[::1]:{port}")] {
        assert_eq!(
            status(format!("GET /{token}/profile.json HTTP/1.1\r\nHost: {name}\r\n\r\n")),
            403,
            "{name}"
        );
    }
    assert_eq!(status(format!("GET /{token}/profile.json HTTP/1.1\r\n\r\n")), 403);
    for origin in ["null", "http://evil.example", "https://profiler.firefox.com"] {
        assert_eq!(
            server.ask("GET", "profile.json", &format!("Origin: {origin}\r\n"), "").status,
            403,
            "{origin}"
        );
    }
    // It listens at this system only.
    let listeners = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let at = format!(":{port:04X} 00000000:0000 0A");
    for line in listeners.lines().filter(|line| line.contains(&at)) {
        assert!(line.contains(&format!("0100007F{at}")), "{line}");
    }
}

/// Each start has a new port and token, which no file or argument of the process contains.
#[test]
fn the_token_is_not_readable_by_others() {
    let place = recorded();
    let (first, second) = (start(&place, "a.pb.gz", &[]), start(&place, "a.pb.gz", &[]));
    assert!(first.token != second.token && first.port != second.port);
    if cfg!(target_os = "linux") {
        for name in ["cmdline", "comm", "environ"] {
            let text = std::fs::read(format!("/proc/{}/{name}", first.pid())).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(&first.token), "{name}");
        }
    }
    assert_eq!(place.files().keys().collect::<Vec<_>>(), ["a.pb.gz"]);
}

/// The response for a user with the right address.
#[cfg(target_os = "linux")]
fn answer_to_user(server: &Server, user: u32) -> String {
    let (port, token) = (server.port, &server.token);
    let script = format!(
        "trap '' PIPE; exec 3<>/dev/tcp/127.0.0.1/{port} && {{ printf 'GET /{token}/profile.json \
         HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n' >&3; cat <&3; echo end; }} 2>/dev/null"
    );
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={user}"), "--clear-groups", "bash", "-c", &script]);
    run(command).stdout
}

/// Another user who has the whole address, for example from the arguments of a browser, gets nothing.
#[cfg(target_os = "linux")]
#[test]
fn another_user_is_refused_with_the_right_address() {
    if !is_root() {
        return skip("only root can be another user");
    }
    let place = recorded();
    let server = start(&place, "a.pb.gz", &[]);
    let own = answer_to_user(&server, 0);
    assert!(own.starts_with("HTTP/1.1 200 OK"), "{own:.200}");
    assert_eq!(answer_to_user(&server, 65534), "end\n");
    // The server continues.
    assert_eq!(server.get("profile.json").status, 200);
}

#[test]
fn slow_and_hostile_clients_delay_no_other() {
    let place = recorded();
    let server = start(&place, "a.pb.gz", &[]);
    // Some that send half a request, and read nothing.
    let mut slow: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /").unwrap();
    }
    assert_eq!(server.get("profile.json").status, 200);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    assert_eq!(server.send(long.as_bytes()).unwrap().status, 431);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000));
    assert_eq!(server.send(many.as_bytes()).unwrap().status, 431);
    for (text, status) in [
        ("POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\n\r\n", 411),
        ("DELETE / HTTP/1.1\r\n\r\n", 405),
        ("\x16\x03\x01\r\n\r\n", 400),
    ] {
        assert_eq!(server.send(text.as_bytes()).unwrap().status, status, "{text:?}");
    }
    let answer = server.ask("POST", "symbolicate/v5", "", &"[".repeat(1 << 20));
    assert!(answer.json()["error"].is_string());
    assert_eq!(server.get("profile.json").status, 200);
}

#[test]
fn the_server_ends_when_idle_and_on_ctrl_c() {
    let place = recorded();
    let server = start(&place, "a.pb.gz", &["--timeout", "0.05"]);
    // Unauthorized requests do not keep it alive, and do not start the idle time.
    let other = format!("GET /x/profile.json HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", server.port);
    assert_eq!(server.send(other.as_bytes()).unwrap().status, 404);
    assert_eq!(server.get("profile.json").status, 200);
    assert!(server.wait().success());
    let server = start(&place, "a.pb.gz", &["--timeout", "0"]);
    assert_eq!(server.get("profile.json").status, 200);
    let mut open = server.connect();
    kill("INT", server.pid());
    assert_eq!(server.wait().signal(), Some(2));
    let _ = open.read(&mut [0]);
}

/// A recording is served like its file.
#[test]
fn a_new_recording_can_be_opened() {
    let place = Place::new();
    let mut command = place.command();
    let words =
        ["--target", "sim:3", "--open", "--no-browser", "--viewer", "speedscope", "-q", "-o", "a.pb.gz"];
    command.args(words);
    let server = Server::start(command);
    assert!(server.address.starts_with("https://www.speedscope.app/#profileURL="), "{}", server.address);
    let origin = "Origin: https://www.speedscope.app\r\n";
    let served = server.ask("GET", "profile.speedscope.json", origin, "");
    let saved = start(&place, "a.pb.gz", &[]);
    let names = |profile: Value| profile["shared"]["frames"].clone();
    assert_eq!(names(served.json()), names(saved.get("profile.speedscope.json").json()));
    kill("TERM", server.pid());
    assert_eq!(server.wait().signal(), Some(15));
}

#[test]
fn a_profile_without_addresses_contains_its_names() {
    let place = Place::new();
    place.write("a.folded", "work;main;parse 30\nwork;main;<b>&x 4\n");
    let server = start(&place, "a.folded", &[]);
    let names = labels(&server.get("profile.json").json());
    for name in ["main", "parse", "<b>&x"] {
        assert!(names.contains(name), "{name} in {names:?}");
    }
    let speedscope = server.get("profile.speedscope.json").json();
    assert_eq!(speedscope["shared"]["frames"][0]["name"], "main");
}

#[test]
fn the_page_is_in_a_private_file() {
    let place = recorded();
    let run = place.run("open a.pb.gz --viewer html --no-browser").succeeds();
    let path = std::path::PathBuf::from(run.stdout.trim_end());
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>"));
    let mode = |path: &std::path::Path| {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o777
    };
    let directory = path.parent().unwrap();
    assert_eq!((mode(&path), mode(directory)), (0o600, 0o700));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_browser_is_started_unless_root() {
    let place = recorded();
    place.write("xdg-open", "#!/bin/sh\nprintf '%s\\n' \"$1\" > opened.part && mv opened.part opened\n");
    place.shell("chmod +x xdg-open && cp xdg-open open").succeeds();
    let mut command = place.command();
    let path = format!("{}:{}", place.path(".").display(), std::env::var("PATH").unwrap_or_default());
    command.args(["open", "a.pb.gz", "--viewer", VIEWER]).env("PATH", path);
    let server = Server::start(command);
    // The address is printed before; a request is answered after.
    assert_eq!(server.get("profile.json").status, 200);
    if is_root() {
        assert!(!place.files().contains_key("opened"));
        return;
    }
    while !place.files().contains_key("opened") {
        std::thread::yield_now();
    }
    if cfg!(target_os = "linux") {
        assert_eq!(place.read("opened").trim(), server.address);
    }
}

/// Under sudo browser and server run as the user who called it.
#[cfg(target_os = "linux")]
#[test]
fn under_sudo_browser_and_server_run_as_the_caller() {
    if !is_root() {
        return skip("only root can act for another user");
    }
    let place = recorded();
    place.write(
        "xdg-open",
        "#!/bin/sh\n{ id -u; id -G; echo \"$1\"; } > shared/part && mv shared/part shared/opened\n",
    );
    place.shell("chmod 755 . xdg-open && chmod 644 a.pb.gz && mkdir shared && chmod 777 shared").succeeds();
    let mut command = place.command();
    let path = format!("{}:{}", place.path(".").display(), std::env::var("PATH").unwrap_or_default());
    command.args(["open", "a.pb.gz", "--viewer", VIEWER]).env("PATH", path);
    command.env("SUDO_UID", "65534").env("SUDO_GID", "65534");
    let server = Server::start(command);
    while !place.path("shared/opened").exists() {
        std::thread::yield_now();
    }
    assert_eq!(place.read("shared/opened"), format!("65534\n65534\n{}\n", server.address));
    assert!(answer_to_user(&server, 65534).starts_with("HTTP/1.1 200 OK"));
    assert_eq!(answer_to_user(&server, 65533), "end\n");
}

/// Names, source and instructions of a recorded program equal those of `render` and its compiler.
#[test]
fn source_and_assembly_are_those_of_the_recorded_program() {
    if !can_trace() {
        return;
    }
    let place = Place::new();
    let source = "static volatile unsigned sink;\n\
                  __attribute__((noinline)) void spin(unsigned rounds) {\n\
                  \x20   for (unsigned i = 0; i < rounds; i++)\n\
                  \x20       sink = sink * 3 + i;\n\
                  }\n\
                  int main(void) { spin(400000000u); return 0; }\n";
    place.write("spin.c", source);
    place.shell("cc -g -O1 -Wl,--build-id=sha1 -o spin \"$PWD/spin.c\"").succeeds();
    place.run("-q --no-kernel -o a.pb.gz -- ./spin").succeeds();
    place.write("secret", "not for viewers\n");
    let server = start(&place, "a.pb.gz", &[]);
    let profile = server.get("profile.json").json();
    let libraries = profile["libs"].as_array().unwrap();
    let index = libraries.iter().position(|library| library["name"] == "spin").unwrap();
    let library = (&libraries[index]["debugName"], &libraries[index]["breakpadId"]);
    // Every address of the program in the profile.
    let mut offsets = BTreeSet::new();
    for thread in profile["threads"].as_array().unwrap() {
        let (frames, functions, resources) =
            (&thread["frameTable"], &thread["funcTable"], &thread["resourceTable"]);
        for (frame, function) in frames["func"].as_array().unwrap().iter().enumerate() {
            let resource = &functions["resource"][function.as_u64().unwrap() as usize];
            let of_library = resource.as_u64().map(|resource| &resources["lib"][resource as usize]);
            if of_library.is_some_and(|library| library == index) {
                offsets.extend(frames["address"][frame].as_u64());
            }
        }
    }
    assert!(!offsets.is_empty(), "{profile}");
    let stack: Vec<Value> = offsets.iter().map(|offset| json!([0, offset])).collect();
    let answer = server.post("symbolicate/v5", &json!({ "memoryMap": [library], "stacks": [stack] }));
    let frames = answer["results"][0]["stacks"][0].as_array().unwrap().clone();
    // `render --lines` shows the same for each frame.
    let rendered = place.run("render -q a.pb.gz --lines -o -").succeeds().stdout;
    let in_spin: Vec<&Value> = frames.iter().filter(|frame| frame["function"] == "spin").collect();
    assert!(!in_spin.is_empty(), "{frames:?}");
    for frame in &frames {
        let name = frame["function"].as_str().unwrap();
        let line = frame.get("line").map_or(name.to_owned(), |line| format!("{name} (spin.c:{line})"));
        assert!(rendered.contains(&line), "{line} in {rendered}");
    }
    let frame = in_spin[0];
    assert_eq!(frame["file"], json!(place.path("spin.c")));
    // Source: of the program's source file, and of no other.
    let ask_source = |offset: &Value, file: &Value| {
        let (name, id) = library;
        let body = json!({ "debugName": name, "debugId": id, "moduleOffset": offset, "file": file });
        server.post("source/v1", &body)
    };
    assert_eq!(ask_source(&frame["module_offset"], &frame["file"])["source"], source);
    for file in [place.path("secret"), place.path("spin"), "/etc/passwd".into(), place.path("./spin.c")] {
        let answer = ask_source(&frame["module_offset"], &json!(file));
        assert!(answer["error"].is_string() && answer.get("source").is_none(), "{answer}");
    }
    // Assembly: all of the function, with objdump's boundaries.
    let hex =
        |value: &Value| u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    let begin = hex(&frame["module_offset"]) - hex(&frame["function_offset"]);
    let body = json!({
        "debugName": library.0, "debugId": library.1, "startAddress": format!("{begin:#x}"),
        "size": frame["function_size"],
    });
    let assembly = server.post("asm/v1", &body);
    assert_eq!(assembly["size"], frame["function_size"], "{assembly}");
    let listed: Vec<u64> = assembly["instructions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| begin + one[0].as_u64().unwrap())
        .collect();
    let objdump = place.shell("objdump -d --no-show-raw-insn --disassemble=spin spin").succeeds().stdout;
    let expected: Vec<u64> = objdump
        .lines()
        .filter_map(|line| u64::from_str_radix(line.trim().split_once(':')?.0, 16).ok())
        .collect();
    assert_eq!(listed, expected, "{objdump}\n{assembly}");
    // The requested part, or all of the function.
    let mut part = body.clone();
    part["size"] = json!("0x1");
    assert_eq!(server.post("asm/v1", &part)["instructions"].as_array().unwrap().len(), 1);
    part["continueUntilFunctionEnd"] = json!(true);
    assert_eq!(server.post("asm/v1", &part), assembly);
    // Another build of the program is a different program.
    drop(server);
    place.shell("cc -g -O2 -Wl,--build-id=sha1 -o spin \"$PWD/spin.c\"").succeeds();
    let server = start(&place, "a.pb.gz", &[]);
    let answer = server.post("asm/v1", &body);
    assert!(
        answer["error"].as_str().unwrap().ends_with("another build than the one that was recorded"),
        "{answer}"
    );
    let body = json!({
        "debugName": library.0, "debugId": library.1, "moduleOffset": frame["module_offset"], "file": frame["file"],
    });
    assert!(server.post("source/v1", &body)["error"].is_string());
}
