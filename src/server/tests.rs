//! Authorization of requests, and the answers of the symbol server.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::binary::NoFiles;
use crate::profile::about::About;
use crate::profile::saved::{Function, Line, Mapping, StackRoot};
use crate::profile::{SavedBuilder, SavedProfile};
use crate::rng::Rng;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const ORIGIN: &str = "https://viewer.example";

/// Two functions at one address, one of them inlined, and an address without a name.
fn profile() -> SavedProfile {
    let mut builder = SavedBuilder::new(About { hz: Some(100), ..About::default() });
    let mut text = |text: &str| builder.text(text).expect("few");
    let (outer, inner, file, path, id) = (
        text("outer"),
        text("inner"),
        text("/src/a.c"),
        text("/lib/libx.so"),
        text("00112233445566778899aabb"),
    );
    let process = text("app");
    let outer = builder.function(Function { name: outer, file, ..Function::default() }).expect("few");
    let inner = builder.function(Function { name: inner, file, ..Function::default() }).expect("few");
    let mapping = Mapping { start: 0x7000, limit: 0x9000, file_offset: 0x1000, path, build_id: id };
    let mapping = builder.mapping(mapping).expect("few");
    let lines = [Line { function: outer, line: 3 }, Line { function: inner, line: 9 }];
    let named = builder.frame(0x7123, Some(mapping), &lines).expect("few");
    let again = builder.frame(0x7130, Some(mapping), &lines[..1]).expect("few");
    let unnamed = builder.frame(0x7500, Some(mapping), &[]).expect("few");
    let root = StackRoot::of(process);
    let root = builder.root(root).expect("few");
    builder.add(root, &[named, again, unnamed], 5).expect("few");
    builder.finish()
}

fn server() -> ProfileServer {
    ProfileServer::new(TOKEN.into(), 8080, ORIGIN.into(), Symbols::new(profile(), Arc::new(NoFiles)))
}

fn request(method: &str, path: &str, headers: &str, body: &str) -> Request {
    let length = if method == "POST" { format!("Content-Length: {}\r\n", body.len()) } else { String::new() };
    let text = format!("{method} {path} HTTP/1.1\r\n{headers}{length}\r\n{body}");
    Request::read(&mut text.as_bytes()).expect("a request")
}

fn status(server: &ProfileServer, method: &str, path: &str, headers: &str) -> u16 {
    let request = request(method, path, headers, "");
    let status = server.answer(&request).status.0;
    assert_eq!(
        server.is_authorized(&request),
        !matches!(status, 400 | 403) && path.contains(TOKEN),
        "{path}"
    );
    status
}

#[test]
fn only_requests_with_token_host_and_origin_are_answered() {
    let server = server();
    let profile = format!("/{TOKEN}/profile.json");
    for host in ["127.0.0.1:8080", "localhost:8080", "LocalHost:8080"] {
        assert_eq!(status(&server, "GET", &profile, &format!("Host: {host}\r\n")), 200, "{host}");
    }
    // With DNS rebinding, `Host` contains the attacker's name for this system.
    for host in
        ["evil.example:8080", "evil.example", "127.0.0.1", "127.0.0.1:8081", "127.0.0.1:8080.evil", ""]
    {
        assert_eq!(status(&server, "GET", &profile, &format!("Host: {host}\r\n")), 403, "{host}");
    }
    assert_eq!(status(&server, "GET", &profile, ""), 403);
    assert_eq!(status(&server, "GET", &profile, "Host: localhost:8080\r\nHost: localhost:8080\r\n"), 400);
    let host = "Host: localhost:8080\r\n";
    for path in [
        "/",
        "/profile.json",
        "//profile.json",
        "/0123/profile.json",
        &format!("/{}/profile.json", &TOKEN[1..]),
    ] {
        assert_eq!(status(&server, "GET", path, host), 404, "{path}");
    }
    let longer = format!("/x{TOKEN}/profile.json");
    assert_eq!(server.answer(&request("GET", &longer, host, "")).status.0, 404);
    assert!(!server.is_authorized(&request("GET", &longer, host, "")));
    for origin in ["null", "https://evil.example", "https://viewer.example.evil", "http://viewer.example"] {
        let headers = format!("{host}Origin: {origin}\r\n");
        assert_eq!(status(&server, "GET", &profile, &headers), 403, "{origin}");
        assert_eq!(status(&server, "OPTIONS", &profile, &headers), 403, "{origin}");
    }
    assert_eq!(status(&server, "GET", &format!("/{TOKEN}/other"), host), 404);
    assert_eq!(status(&server, "GET", &format!("/{TOKEN}/../{TOKEN}/profile.json"), host), 404);
}

#[test]
fn the_viewers_pages_may_read_answers() {
    let server = server();
    let headers = format!(
        "Host: localhost:8080\r\nOrigin: {ORIGIN}\r\nAccess-Control-Request-Private-Network: true\r\n\
         Accept-Encoding: br;q=1, gzip\r\n"
    );
    let path = format!("/{TOKEN}/profile.json?x=1");
    let answer = server.answer(&request("OPTIONS", &path, &headers, ""));
    let value = |response: &Response, name: &str| {
        response.headers.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone())
    };
    assert_eq!(answer.status.0, 204);
    assert_eq!(value(&answer, "Access-Control-Allow-Origin").as_deref(), Some(ORIGIN));
    assert_eq!(value(&answer, "Access-Control-Allow-Private-Network").as_deref(), Some("true"));
    let answer = server.answer(&request("GET", &path, &headers, ""));
    assert_eq!(value(&answer, "Access-Control-Allow-Origin").as_deref(), Some(ORIGIN));
    assert_eq!(value(&answer, "Content-Encoding").as_deref(), Some("gzip"));
    let mut plain = String::new();
    GzDecoder::new(answer.body.as_slice()).read_to_string(&mut plain).expect("gzip");
    let packed: Value = serde_json::from_str(&plain).expect("JSON");
    // The same without compression, and only the headers for HEAD.
    let bare = "Host: localhost:8080\r\nAccept-Encoding: gzip;q=0\r\n";
    let answer = server.answer(&request("GET", &path, bare, ""));
    assert_eq!(serde_json::from_slice::<Value>(&answer.body).expect("JSON"), packed);
    assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("Access-Control")));
    let mut head = Vec::new();
    server.answer(&request("HEAD", &path, bare, "")).write(&mut head).expect("written");
    assert!(head.ends_with(b"\r\n\r\n"));
}

fn ask(server: &ProfileServer, path: &str, body: &Value) -> Value {
    let path = format!("/{TOKEN}/{path}");
    let answer = server.answer(&request("POST", &path, "Host: 127.0.0.1:8080\r\n", &body.to_string()));
    assert_eq!(answer.status.0, 200);
    serde_json::from_slice(&answer.body).expect("JSON")
}

#[test]
fn names_are_those_of_the_profile() {
    let server = server();
    let list = &server.symbols.libraries().list;
    assert_eq!(list.len(), 1);
    let id = list[0].debug_id();
    let body = json!({ "jobs": [{
        "memoryMap": [["libx.so", id], ["libx.so", "0"]],
        "stacks": [[[0, 0x1123], [0, 0x1130], [0, 0x1500], [0, 0x1501], [1, 0x1123], [-1, 5], [7, 5]]],
    }]});
    let answer = ask(&server, "symbolicate/v5", &body);
    let frames = &answer["results"][0]["stacks"][0];
    assert_eq!(
        frames[0],
        json!({
            "frame": 0, "module": "libx.so", "module_offset": "0x1123", "function": "outer",
            "function_offset": "0x0", "file": "/src/a.c", "line": 3,
            "inlines": [{ "function": "inner", "file": "/src/a.c", "line": 9 }],
        })
    );
    assert_eq!((&frames[1]["function"], &frames[1]["function_offset"]), (&json!("outer"), &json!("0xd")));
    assert_eq!(frames[2]["function"], "[libx.so+0x1500]");
    for index in 3..7 {
        assert_eq!(frames[index].get("function"), None, "{index}");
    }
    assert_eq!(
        answer["results"][0]["found_modules"],
        json!({ format!("libx.so/{id}"): true, "libx.so/0": false })
    );
    // A single job without a list.
    assert_eq!(ask(&server, "symbolicate/v5", &body["jobs"][0]), answer);
}

#[test]
fn without_the_image_source_and_code_are_unavailable() {
    let server = server();
    let id = server.symbols.libraries().list[0].debug_id();
    let source =
        json!({ "debugName": "libx.so", "debugId": id, "moduleOffset": "0x1123", "file": "/src/a.c" });
    let answer = ask(&server, "source/v1", &source);
    assert_eq!(answer["error"], "/lib/libx.so: a simulated process has no files");
    let mut other = source.clone();
    other["file"] = json!("/etc/passwd");
    let answer = ask(&server, "source/v1", &other);
    assert_eq!(answer["error"], "the profile names no file `/etc/passwd` at this address");
    let code = json!({ "name": "libx.so", "codeId": "00112233445566778899AABB", "startAddress": "0x1100", "size": "0x10" });
    assert_eq!(ask(&server, "asm/v1", &code)["error"], "/lib/libx.so: a simulated process has no files");
    let unknown = json!({ "debugName": "liby.so", "debugId": id, "startAddress": "0x0", "size": "0x1" });
    assert!(
        ask(&server, "asm/v1", &unknown)["error"]
            .as_str()
            .expect("a text")
            .starts_with("the profile has no library")
    );
}

/// Mutated requests get an answer or an error, and never end the server.
#[test]
fn mutated_requests_are_answered_or_refused() {
    let server = server();
    let id = server.symbols.libraries().list[0].debug_id();
    let texts = [
        (
            "symbolicate/v5",
            json!({ "jobs": [{ "memoryMap": [["libx.so", id]], "stacks": [[[0, 4387], [0, 1]]] }] }),
        ),
        (
            "source/v1",
            json!({ "debugName": "libx.so", "debugId": id, "moduleOffset": "0x1123", "file": "/src/a.c" }),
        ),
        (
            "asm/v1",
            json!({ "debugName": "libx.so", "debugId": id, "startAddress": "0x1123", "size": "0xffffffff" }),
        ),
    ];
    for seed in 0..6_000 {
        let mut rng = Rng::new(seed);
        let (path, text) = &texts[rng.below(3)];
        let mut bytes = text.to_string().into_bytes();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len());
            match rng.below(3) {
                0 => bytes[at] = b"0123456789-x[]{}\",:\\\0\xff"[rng.below(22)],
                1 => bytes.truncate(at + 1),
                _ => bytes.insert(at, b"9[{\""[rng.below(4)]),
            }
        }
        let answer = api::answer(&server.symbols, path, &bytes).expect("a question that is known");
        assert!(serde_json::from_slice::<Value>(&answer).expect("JSON").is_object(), "{seed}");
    }
    let deep = "[".repeat(1 << 20);
    let answer = api::answer(&server.symbols, "symbolicate/v5", deep.as_bytes()).expect("known");
    assert!(String::from_utf8(answer).expect("text").contains("error"));
}

/// Only a request with its intact token, this server and its viewer gets the profile.
#[test]
fn mutated_requests_get_no_profile() {
    let server = server();
    let text = format!(
        "GET /{TOKEN}/profile.speedscope.json HTTP/1.1\r\nHost: localhost:8080\r\nOrigin: {ORIGIN}\r\n\
         Accept-Encoding: gzip\r\n\r\n"
    );
    let (mut answered, mut refused) = (0, 0);
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let mut bytes = text.clone().into_bytes();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len());
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes.truncate(at + 1),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"\r\n :/0\xff"[rng.below(7)]),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let Ok(request) = Request::read(&mut bytes.as_slice()) else { continue };
        let answer = server.answer(&request);
        let mut written = Vec::new();
        answer.write(&mut written).expect("written");
        assert!(written.starts_with(b"HTTP/1.1 "), "{seed}");
        let host = request.header("host").ok().flatten().map(str::to_ascii_lowercase);
        // A repeated header does not count.
        let is_of_viewer = matches!(request.header("origin"), Ok(None) | Ok(Some(ORIGIN)));
        let may_have = request.target.starts_with(&format!("/{TOKEN}/"))
            && host.is_some_and(|host| ["localhost:8080", "127.0.0.1:8080"].contains(&host.as_str()))
            && is_of_viewer;
        assert_eq!(server.is_authorized(&request), may_have, "{seed}");
        assert!(may_have || answer.status.0 >= 400, "{seed}");
        (answered, refused) = (answered + u32::from(may_have), refused + u32::from(!may_have));
    }
    assert!(answered > 100 && refused > 100, "{answered} answered, {refused} refused");
}
