//! Serves a profile to a viewer in a browser: which requests are answered, and how.
//!
//! Input: an HTTP request. Output: a response, or a refusal. Requests are answered if their path begins with
//! the token, `Host` is this server (a page of another site with a name that resolves to this system sends
//! its own) and `Origin`, if sent, is the viewer's. Not for: sockets, which are in `sources`.

mod api;
pub mod http;
pub mod symbols;
#[cfg(test)]
mod tests;

use std::io::{Read, Write};
use std::sync::OnceLock;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use crate::profile::formats::{firefox, speedscope};
use http::{Method, Request, Response, Status};
use symbols::Symbols;

/// The profile for the Firefox Profiler, below the token.
pub const FIREFOX_PATH: &str = "profile.json";
/// The profile for speedscope, below the token.
pub const SPEEDSCOPE_PATH: &str = "profile.speedscope.json";

/// A profile, and the clients it is served to.
pub struct ProfileServer {
    /// Prefix of paths: a secret of the user who started this server.
    token: String,
    /// The listening port, which `Host` must contain.
    port: u16,
    /// Scheme and host of the viewer, as browsers send it: `https://profiler.firefox.com`.
    origin: String,
    symbols: Symbols,
    /// Created at the first request, gzipped.
    firefox: OnceLock<Result<Vec<u8>, String>>,
    speedscope: OnceLock<Result<Vec<u8>, String>>,
}

impl ProfileServer {
    /// Serves `symbols` at a port to pages of `origin`.
    #[must_use]
    pub fn new(token: String, port: u16, origin: String, symbols: Symbols) -> ProfileServer {
        ProfileServer { token, port, origin, symbols, firefox: OnceLock::new(), speedscope: OnceLock::new() }
    }

    /// Whether a request has the token, the host and the origin.
    #[must_use]
    pub fn is_authorized(&self, request: &Request) -> bool {
        self.authorize(request).is_ok()
    }

    /// Answers a request.
    #[must_use]
    pub fn answer(&self, request: &Request) -> Response {
        let mut response = match self.authorize(request) {
            Err(refusal) => return refusal,
            Ok(path) => self.serve(request, path),
        };
        response.is_head = request.method == Method::Head;
        response.headers.push(("Vary", "Origin, Accept-Encoding".to_owned()));
        if let Ok(Some(origin)) = request.header("origin") {
            response.headers.push(("Access-Control-Allow-Origin", origin.to_owned()));
        }
        response
    }

    /// The path below the token of an authorized request.
    fn authorize<'r>(&self, request: &'r Request) -> Result<&'r str, Response> {
        let forbidden = |text| Response::text(Status::FORBIDDEN, text);
        let header =
            |name| request.header(name).map_err(|_| Response::text(Status::BAD_REQUEST, "duplicate header"));
        let host = header("host")?.unwrap_or_default();
        let is_this = |name: &str| host.eq_ignore_ascii_case(&format!("{name}:{}", self.port));
        if !is_this("127.0.0.1") && !is_this("localhost") {
            return Err(forbidden("this server is not at that host"));
        }
        let path = request.target.split(['?', '#']).next().unwrap_or_default();
        let (token, path) = path.strip_prefix('/').and_then(|path| path.split_once('/')).unwrap_or_default();
        if !is_same(token, &self.token) {
            return Err(Response::text(Status::NOT_FOUND, "not found"));
        }
        if header("origin")?.is_some_and(|origin| origin != self.origin) {
            return Err(forbidden("pages of that site may not ask"));
        }
        Ok(path)
    }

    fn serve(&self, request: &Request, path: &str) -> Response {
        match (request.method, path) {
            (Method::Options, _) => preflight(request),
            (Method::Get | Method::Head, FIREFOX_PATH) => {
                let made = self.firefox.get_or_init(|| {
                    let (saved, libraries) = (self.symbols.saved(), self.symbols.libraries());
                    gzipped(|out| firefox::write_addresses(saved, libraries, out))
                });
                document(request, made)
            }
            (Method::Get | Method::Head, SPEEDSCOPE_PATH) => {
                let saved = self.symbols.saved();
                let made = self.speedscope.get_or_init(|| gzipped(|out| speedscope::write(saved, None, out)));
                document(request, made)
            }
            (Method::Post, _) => match api::answer(&self.symbols, path, &request.body) {
                Some(json) => Response::json(json),
                None => Response::text(Status::NOT_FOUND, "not found"),
            },
            (Method::Get | Method::Head, _) => Response::text(Status::NOT_FOUND, "not found"),
        }
    }
}

/// Compares two texts in constant time.
fn is_same(one: &str, other: &str) -> bool {
    let differs = one.bytes().zip(other.bytes()).fold(0, |differs, (one, other)| differs | (one ^ other));
    one.len() == other.len() && differs == 0
}

/// Answers the preflight request for a page of another origin (CORS, Private Network Access).
fn preflight(request: &Request) -> Response {
    let mut headers = vec![
        ("Access-Control-Allow-Methods", "GET, POST, OPTIONS".to_owned()),
        ("Access-Control-Allow-Headers", "Content-Type".to_owned()),
    ];
    if let Ok(Some("true")) = request.header("access-control-request-private-network") {
        headers.push(("Access-Control-Allow-Private-Network", "true".to_owned()));
    }
    Response { status: Status::NO_CONTENT, headers, body: Vec::new(), is_head: false }
}

fn gzipped(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<Vec<u8>, String> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    write(&mut gzip).and_then(|()| gzip.finish()).map_err(|error| error.to_string())
}

/// A profile, gzipped if the client accepts that.
fn document(request: &Request, made: &Result<Vec<u8>, String>) -> Response {
    let gzip = match made {
        Ok(gzip) => gzip,
        Err(why) => return Response::text(Status(500, "Internal Server Error"), why),
    };
    let accepts = |encoding: &str| {
        let mut parts = encoding.split(';').map(str::trim);
        parts.next() == Some("gzip") && parts.next().is_none_or(|weight| !matches!(weight, "q=0" | "q=0.0"))
    };
    let header = request.header("accept-encoding").ok().flatten().unwrap_or_default();
    if header.split(',').any(|encoding| accepts(encoding.trim())) {
        let mut response = Response::json(gzip.clone());
        response.headers.push(("Content-Encoding", "gzip".to_owned()));
        return response;
    }
    let mut plain = Vec::new();
    match GzDecoder::new(gzip.as_slice()).read_to_end(&mut plain) {
        Ok(_) => Response::json(plain),
        Err(error) => Response::text(Status(500, "Internal Server Error"), &error.to_string()),
    }
}
