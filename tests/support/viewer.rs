//! A raw client of `stackprof open`, which can do things that no browser does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A running `stackprof open --no-browser`; killed on drop.
pub(crate) struct Server {
    child: Child,
    /// The line that it printed.
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) token: String,
}

/// A response of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The value of a header, if there is one.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }
}

impl Server {
    /// Starts it and waits for the line with its address.
    pub(crate) fn start(mut command: Command) -> Server {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut address = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut address).unwrap();
        let decoded = address.trim().replace("%3A", ":").replace("%2F", "/");
        let place = decoded.split_once("http://127.0.0.1:").map(|(_, place)| place.to_owned());
        let place = place.unwrap_or_else(|| panic!("{command:?}: no address in {address:?}"));
        let (port, rest) = place.split_once('/').unwrap();
        let token = rest.split('/').next().unwrap().to_owned();
        Server { child, address: address.trim().to_owned(), port: port.parse().unwrap(), token }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// Sends raw bytes and reads the response; `None` if the connection was closed without one.
    pub(crate) fn send(&self, bytes: &[u8]) -> Option<Answer> {
        let mut stream = self.connect();
        // It may refuse before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, head, body: answer[end + 4..].to_vec() })
    }

    /// Sends a request below the token, with these headers in addition to `Host`.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let (token, port, length) = (&self.token, self.port, body.len());
        let length = if method == "POST" { format!("Content-Length: {length}\r\n") } else { String::new() };
        let text = format!(
            "{method} /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{headers}{length}\r\n{body}"
        );
        self.send(text.as_bytes()).unwrap_or_else(|| panic!("no answer to {text}"))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "")
    }

    pub(crate) fn post(&self, path: &str, body: &serde_json::Value) -> serde_json::Value {
        let answer = self.ask("POST", path, "", &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Waits for its exit.
    pub(crate) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
