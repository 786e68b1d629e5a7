//! HTTP/1.1 as far as a viewer in a browser needs it: one request per connection, parsed strictly.
//!
//! Input: a stream from any client, hostile. Output: a [`Request`], or a [`Refusal`] with its status. All
//! sizes are bounded; ambiguous requests (several lengths, transfer encodings, folded lines) are refused. RFC
//! 9112.

use std::io::{self, Read, Write};

/// Most bytes of the request line and the headers.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// Most headers.
pub const HEADERS_MAX: usize = 100;
/// Most bytes of a body: a request for the names of a million addresses has some 20 MB.
pub const BODY_BYTES_MAX: usize = 32 << 20;

/// A supported method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Returns a resource.
    Get,
    /// Returns its headers only.
    Head,
    /// Sends a query.
    Post,
    /// Queries permitted origins (CORS).
    Options,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Path and query, as sent.
    pub target: String,
    /// Names in lower case, and values without the space around them.
    headers: Vec<(String, String)>,
    /// Empty without a body.
    pub body: Vec<u8>,
}

/// Why a request could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client closed the connection, or took too long.
    Gone,
    /// Not valid HTTP/1.1.
    Malformed,
    /// Request line and headers are longer than [`HEAD_BYTES_MAX`], or more than [`HEADERS_MAX`].
    LongHead,
    /// The body is longer than [`BODY_BYTES_MAX`].
    LongBody,
    /// A body without its length.
    NoLength,
    /// An unsupported method.
    Method,
}

impl Refusal {
    /// The response status; `None` if the client is gone.
    #[must_use]
    pub fn status(self) -> Option<Status> {
        Some(match self {
            Refusal::Gone => return None,
            Refusal::Malformed => Status::BAD_REQUEST,
            Refusal::LongHead => Status(431, "Request Header Fields Too Large"),
            Refusal::LongBody => Status(413, "Content Too Large"),
            Refusal::NoLength => Status(411, "Length Required"),
            Refusal::Method => Status(405, "Method Not Allowed"),
        })
    }
}

/// A status code and its reason phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16, pub &'static str);

impl Status {
    /// Success.
    pub const OK: Status = Status(200, "OK");
    /// Success without content.
    pub const NO_CONTENT: Status = Status(204, "No Content");
    /// The request is malformed.
    pub const BAD_REQUEST: Status = Status(400, "Bad Request");
    /// Not for this client.
    pub const FORBIDDEN: Status = Status(403, "Forbidden");
    /// The resource does not exist.
    pub const NOT_FOUND: Status = Status(404, "Not Found");
}

impl Request {
    /// The value of a header, if present.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] for a repeated header.
    pub fn header(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let mut values = self.headers.iter().filter(|(other, _)| other == name);
        let first = values.next().map(|(_, value)| value.as_str());
        if values.next().is_some() { Err(Refusal::Malformed) } else { Ok(first) }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// Why it could not be read.
    pub fn read(stream: &mut dyn Read) -> Result<Request, Refusal> {
        let (head, mut body) = read_head(stream)?;
        let mut request = parse_head(&head)?;
        if request.header("transfer-encoding")?.is_some() {
            return Err(Refusal::NoLength);
        }
        let length = match request.header("content-length")? {
            Some(text) => {
                let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                if !is_number {
                    return Err(Refusal::Malformed);
                }
                // A number beyond 64 bits is too long, too.
                text.parse::<u64>().unwrap_or(u64::MAX)
            }
            None if request.method == Method::Post => return Err(Refusal::NoLength),
            None => 0,
        };
        let length = usize::try_from(length).ok().filter(|length| *length <= BODY_BYTES_MAX);
        let length = length.ok_or(Refusal::LongBody)?;
        // Bytes beyond the stated length would be another request.
        let missing = length.checked_sub(body.len()).ok_or(Refusal::Malformed)?;
        // Memory grows with received bytes, not with the stated length.
        let read = stream.take(missing as u64).read_to_end(&mut body);
        if read.is_ok_and(|read| read == missing) {
            request.body = body;
            Ok(request)
        } else {
            Err(Refusal::Gone)
        }
    }
}

/// Reads up to the empty line; returns the head without it, and the bytes after it.
fn read_head(stream: &mut dyn Read) -> Result<(Vec<u8>, Vec<u8>), Refusal> {
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = match stream.read(&mut piece) {
            Ok(0) => return Err(Refusal::Gone),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Err(Refusal::Gone),
        };
        // The end may be split across two pieces.
        let from = head.len().saturating_sub(3);
        head.extend_from_slice(&piece[..read]);
        let end = head[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|at| from + at);
        if end.unwrap_or(head.len()) > HEAD_BYTES_MAX {
            return Err(Refusal::LongHead);
        }
        if let Some(end) = end {
            let body = head.split_off(end + 4);
            head.truncate(end);
            return Ok((head, body));
        }
    }
}

fn parse_head(head: &[u8]) -> Result<Request, Refusal> {
    let text = std::str::from_utf8(head).map_err(|_| Refusal::Malformed)?;
    // Printable characters, and spaces and tabs between them: other parsers treat a lone CR or NUL
    // differently.
    let is_plain = |line: &str| line.bytes().all(|byte| (0x20..0x7f).contains(&byte) || byte == b'\t');
    let mut lines = text.split("\r\n");
    let first = lines.next().filter(|line| is_plain(line)).ok_or(Refusal::Malformed)?;
    let mut words = first.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") || !target.starts_with('/') {
        return Err(Refusal::Malformed);
    }
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        _ => return Err(Refusal::Method),
    };
    let mut headers = Vec::new();
    for line in lines {
        if headers.len() == HEADERS_MAX {
            return Err(Refusal::LongHead);
        }
        let (name, value) = line.split_once(':').filter(|_| is_plain(line)).ok_or(Refusal::Malformed)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(Refusal::Malformed);
        }
        headers.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
    }
    Ok(Request { method, target: target.to_owned(), headers, body: Vec::new() })
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Code and reason phrase.
    pub status: Status,
    /// Headers in addition to the common ones.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Send only the length of the body.
    pub is_head: bool,
}

impl Response {
    /// A line of text.
    #[must_use]
    pub fn text(status: Status, text: &str) -> Response {
        let headers = vec![("Content-Type", "text/plain; charset=utf-8".to_owned())];
        Response { status, headers, body: format!("{text}\n").into_bytes(), is_head: false }
    }

    /// JSON.
    #[must_use]
    pub fn json(body: Vec<u8>) -> Response {
        let headers = vec![("Content-Type", "application/json".to_owned())];
        Response { status: Status::OK, headers, body, is_head: false }
    }

    /// Writes the response.
    ///
    /// # Errors
    /// Errors of the stream.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Status(number, words) = self.status;
        let mut head = format!("HTTP/1.1 {number} {words}\r\nContent-Length: {}\r\n", self.body.len());
        // No response is a page, and no cache may store it.
        head += "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
                 Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n";
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        out.write_all(head.as_bytes())?;
        if !self.is_head {
            out.write_all(&self.body)?;
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn read(text: &str) -> Result<Request, Refusal> {
        Request::read(&mut text.as_bytes())
    }

    #[test]
    fn requests_are_read_from_pieces_of_any_size() {
        /// A stream that returns one byte at a time.
        struct Slow<'t>(&'t [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
                into[0] = *first;
                self.0 = rest;
                Ok(1)
            }
        }
        let text = "POST /a?b HTTP/1.1\r\nHost:  x:1 \r\nContent-Length: 3\r\n\r\nabc";
        let whole = read(text).expect("a request");
        assert_eq!((whole.method, whole.target.as_str()), (Method::Post, "/a?b"));
        assert_eq!(whole.header("host"), Ok(Some("x:1")));
        assert_eq!(whole.body, b"abc");
        assert_eq!(Request::read(&mut Slow(text.as_bytes())), Ok(whole));
        assert_eq!(read("GET / HTTP/1.0\r\n\r\n").expect("a request").body, b"");
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        use Refusal::{Gone, LongBody, LongHead, Malformed, Method, NoLength};
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(HEAD_BYTES_MAX));
        for (text, why) in [
            ("", Gone),
            ("GET / HTTP/1.1\r\n", Gone),
            ("GET / HTTP/1.1\n\n", Gone),
            ("GET /\r\n\r\n", Malformed),
            ("GET  / HTTP/1.1\r\n\r\n", Malformed),
            ("GET / HTTP/2\r\n\r\n", Malformed),
            ("GET http://x/ HTTP/1.1\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\r\nHost x\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\r\nHost: x\r\n y\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\r\nHost: x\ny: z\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\r\nHost: \0\r\n\r\n", Malformed),
            ("POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc", Malformed),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", Malformed),
            ("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nabc", Malformed),
            ("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabc", Gone),
            ("POST / HTTP/1.1\r\n\r\n", NoLength),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", NoLength),
            ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", LongBody),
            ("POST / HTTP/1.1\r\nContent-Length: 33554433\r\n\r\n", LongBody),
            ("PUT / HTTP/1.1\r\n\r\n", Method),
            (many.as_str(), LongHead),
            (long.as_str(), LongHead),
        ] {
            assert_eq!(read(text), Err(why), "{text:.80}");
        }
        let twice = read("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n").expect("a request");
        assert_eq!(twice.header("host"), Err(Malformed));
    }

    /// A request with changed bytes is read or refused; one without an end does not make memory grow.
    #[test]
    fn changed_requests_are_read_or_refused() {
        let text = b"POST /0123/symbolicate/v5 HTTP/1.1\r\nHost: 127.0.0.1:1\r\nOrigin: https://a.b\r\n\
                     Content-Length: 12\r\n\r\n{\"jobs\":[]}\n";
        for seed in 0..20_000 {
            let mut rng = Rng::new(seed);
            let mut changed = text.to_vec();
            for _ in 0..=rng.below(4) {
                let at = rng.below(changed.len());
                match rng.below(3) {
                    0 => changed[at] = rng.next() as u8,
                    1 => changed.truncate(at + 1),
                    _ => changed.insert(at, b"\r\n :\0"[rng.below(5)]),
                }
            }
            if let Ok(request) = Request::read(&mut changed.as_slice()) {
                assert!(request.body.len() <= BODY_BYTES_MAX && request.target.starts_with('/'), "{seed}");
            }
        }
        let endless = Request::read(&mut io::repeat(b'a'));
        assert_eq!(endless, Err(Refusal::LongHead));
    }
}
