//! `stackprof open`: shows a profile in a viewer, through a server in this process or as a page in
//! a file.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use super::args::Verbosity;
use super::args::open::{Open, Viewer, ViewerOptions, origin};
use super::embedded_code::EmbeddedCode;
use super::file::OutputFiles;
use super::{messages, saved_files, system};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::profile::formats::html;
use crate::profile::{Full, SavedProfile};
use crate::server::http::{Request, Response};
use crate::server::symbols::Symbols;
use crate::server::{FIREFOX_PATH, ProfileServer, SPEEDSCOPE_PATH};
use crate::sources::Role;
use crate::sources::user_files::UserFiles;
use crate::sources::viewer::browser;
use crate::sources::viewer::browser::{NotOpened, Opening};
use crate::sources::viewer::loopback::{self, Activity, Connection, Listener};

/// URL of the Firefox Profiler.
const FIREFOX: &str = "https://profiler.firefox.com";
/// URL of speedscope.
const SPEEDSCOPE: &str = "https://www.speedscope.app";

/// Time for the opener of files to refuse.
const OPENING_TIME: Duration = Duration::from_secs(2);

/// Opens a saved profile.
///
/// # Errors
/// One line: an invalid profile, or no server can be started.
pub fn run(open: &Open) -> Result<()> {
    let sources = Arc::new(UserFiles::of_caller());
    system::restrict_to_symbolizing(&OutputFiles::new());
    let (name, saved) = saved_files::read(open.path(), saved_files::strictness(open.strict), None)?;
    if saved.total() == 0 {
        let why = format!("{name}: the profile has no samples; record for longer, or with --idle");
        return Err(Error::new(ErrorKind::NoData, why));
    }
    show(saved, &name, None, Code::Served(sources), &open.viewer, open.common.verbosity())
}

/// What source and instructions are read by.
pub(super) enum Code<'c> {
    /// They are embedded in a page, too.
    Embedded(&'c EmbeddedCode),
    /// They are served only.
    Served(Arc<UserFiles>),
}

/// Serves a profile until viewers stop requesting it. `source`: how its stacks were sampled.
///
/// # Errors
/// One line: no server can be started, or a page cannot be written.
pub(super) fn show(
    saved: SavedProfile,
    title: &str,
    source: Option<&str>,
    code: Code<'_>,
    viewer_options: &ViewerOptions,
    verbosity: Verbosity,
) -> Result<()> {
    // From here on, requests are answered, and only messages and the page are written.
    system::restrict(Role::Watching);
    let (code, files) = match code {
        Code::Embedded(code) => (Some(code), Arc::clone(code.sources())),
        Code::Served(files) => (None, files),
    };
    let viewer = viewer_options.viewer.clone().unwrap_or_else(|| {
        if loopback::has_route() {
            return Viewer::Firefox;
        }
        messages::note("no network: the profile opens as a page of its own (--viewer says otherwise)");
        Viewer::Html
    });
    match viewer {
        Viewer::Html => page(&saved, title, source, code, viewer_options, verbosity),
        Viewer::Firefox => serve(saved, files, FIREFOX, viewer_options, verbosity),
        Viewer::Speedscope => serve(saved, files, SPEEDSCOPE, viewer_options, verbosity),
        Viewer::Hosted(address) => serve(saved, files, &address, viewer_options, verbosity),
    }
}

/// Writes the page and opens it.
fn page(
    saved: &SavedProfile,
    title: &str,
    source: Option<&str>,
    code: Option<&EmbeddedCode>,
    viewer_options: &ViewerOptions,
    verbosity: Verbosity,
) -> Result<()> {
    let too_large = |full: Full| Error::new(ErrorKind::Output, full.to_string()).caused_by(full);
    let mut page = html::Page::of(saved, title, source).map_err(too_large)?;
    if let Some(code) = code {
        page.embed(&mut code.reader()).map_err(too_large)?;
    }
    let mut text = Vec::new();
    let failed = |error: std::io::Error| {
        let why = format!("the page cannot be written: {}; write it with -o FILE.html", io_text(&error));
        Error::new(ErrorKind::Output, why).caused_by(error)
    };
    page.write(&mut text).map_err(failed)?;
    let path = browser::write("profile.html", &text).map_err(failed)?;
    print_address(&path.display().to_string(), viewer_options, verbosity)?;
    if !viewer_options.no_browser {
        // This process ends now, and then nothing more can be said.
        if let Some(opening) = start_browser(path.as_os_str(), false) {
            let _ = opening.recv_timeout(OPENING_TIME);
        }
    }
    Ok(())
}

/// Prints the opened address; if no browser is started, also with `--quiet`.
fn print_address(address: &str, viewer_options: &ViewerOptions, verbosity: Verbosity) -> Result<()> {
    if verbosity != Verbosity::Quiet || viewer_options.no_browser {
        messages::result(&format!("{address}\n"))?;
    }
    Ok(())
}

fn start_browser(what: &OsStr, is_address: bool) -> Option<Opening> {
    let failed = |why: NotOpened| messages::note(&format!("{why}; open the line above in your browser"));
    let open = if is_address { browser::open_address } else { browser::open };
    open(what, Box::new(failed)).map_err(failed).ok()
}

fn serve(
    saved: SavedProfile,
    files: Arc<UserFiles>,
    viewer: &str,
    viewer_options: &ViewerOptions,
    verbosity: Verbosity,
) -> Result<()> {
    let failed = |error: std::io::Error| {
        let why = format!("cannot serve the profile: {}; --viewer html needs no server", io_text(&error));
        Error::new(ErrorKind::System, why).caused_by(error)
    };
    let listener = Listener::bind().map_err(failed)?;
    let token = loopback::token().map_err(failed)?;
    let symbols = Symbols::new(saved, files);
    if verbosity == Verbosity::Verbose {
        for problem in symbols.problems() {
            messages::note(problem);
        }
    }
    let base = format!("http://127.0.0.1:{}/{token}", listener.port());
    let address = address(viewer, &base);
    let origin = origin(viewer).unwrap_or_default();
    let server = ProfileServer::new(token, listener.port(), origin, symbols);
    print_address(&address, viewer_options, verbosity)?;
    if !viewer_options.no_browser {
        start_browser(OsStr::new(&address), true);
    }
    if verbosity != Verbosity::Quiet {
        messages::note("serving the profile to your browser; Ctrl-C ends");
    }
    let answer =
        move |connection: &mut Connection, activity: &Activity| answer(&server, connection, activity);
    listener.serve(viewer_options.timeout(), Arc::new(answer)).map_err(failed)
}

/// Answers one connection.
fn answer(server: &ProfileServer, connection: &mut Connection, activity: &Activity) {
    let request = match Request::read(connection) {
        Ok(request) => request,
        Err(refusal) => {
            if let Some(status) = refusal.status() {
                let _ = Response::text(status, status.1).write(connection);
            }
            return;
        }
    };
    // Unauthorized requests do not keep the server alive.
    let active = server.is_authorized(&request).then(|| activity.begin_request(connection));
    let _ = server.answer(&request).write(connection);
    drop(active);
}

/// The viewer's address with the profile's address in it.
fn address(viewer: &str, base: &str) -> String {
    if viewer == SPEEDSCOPE {
        return format!("{viewer}/#profileURL={}", encode(&format!("{base}/{SPEEDSCOPE_PATH}")));
    }
    let profile = encode(&format!("{base}/{FIREFOX_PATH}"));
    format!("{viewer}/from-url/{profile}/?symbolServer={}", encode(base))
}

/// Percent-encodes all but unreserved characters (RFC 3986).
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_match_what_viewers_read() {
        let base = "http://127.0.0.1:8080/ab";
        assert_eq!(
            address(FIREFOX, base),
            "https://profiler.firefox.com/from-url/http%3A%2F%2F127.0.0.1%3A8080%2Fab%2Fprofile.json/?symbolServer=\
             http%3A%2F%2F127.0.0.1%3A8080%2Fab"
        );
        assert_eq!(
            address(SPEEDSCOPE, base),
            "https://www.speedscope.app/#profileURL=http%3A%2F%2F127.0.0.1%3A8080%2Fab%2Fprofile.speedscope.json"
        );
        assert!(address("http://localhost:4242", base).starts_with("http://localhost:4242/from-url/http%3A"));
    }
}
