//! Options of the viewer that shows a profile: which one, whether a browser is started, timeout of the server.

use std::ffi::OsStr;
use std::time::Duration;

use super::values::{invalid_value, number};
use crate::cli::flags::ViewerFlags;
use crate::error::Result;

/// Default timeout of the server after the last request.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Longest `--timeout` in seconds: a year.
const TIMEOUT_MAX_S: f64 = 366.0 * 86_400.0;

/// A viewer for a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// The Firefox Profiler.
    Firefox,
    /// speedscope.
    Speedscope,
    /// Our own page, in a file.
    Html,
    /// A Firefox Profiler at another address, without a trailing slash.
    Hosted(String),
}

/// Options of the viewer that shows a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewerOptions {
    /// The viewer; `None` is the Firefox Profiler, or the page without a network.
    pub viewer: Option<Viewer>,
    /// Whether a browser is started.
    pub browser: bool,
    /// Timeout of the server after the last request; `None` waits forever.
    pub timeout: Option<Duration>,
}

impl Default for ViewerOptions {
    fn default() -> ViewerOptions {
        ViewerOptions { viewer: None, browser: true, timeout: Some(TIMEOUT_DEFAULT) }
    }
}

/// Parses the viewer options.
pub(super) fn viewer_options(flags: &ViewerFlags) -> Result<ViewerOptions> {
    let viewer = flags.viewer.as_deref().map(viewer).transpose()?;
    let expected = "seconds, 0 or more (60 or 0.5)";
    let timeout = match &flags.timeout {
        None => Some(TIMEOUT_DEFAULT),
        Some(text) => {
            let seconds = number("--timeout", text, expected, |s: f64| (0.0..=TIMEOUT_MAX_S).contains(&s))?;
            Some(Duration::from_secs_f64(seconds)).filter(|timeout| !timeout.is_zero())
        }
    };
    Ok(ViewerOptions { viewer, browser: !flags.no_browser, timeout })
}

fn viewer(text: &OsStr) -> Result<Viewer> {
    let expected = "firefox, speedscope, html, or an address that begins with https:// or http://";
    match text.to_str() {
        Some("firefox") => Ok(Viewer::Firefox),
        Some("speedscope") => Ok(Viewer::Speedscope),
        Some("html") => Ok(Viewer::Html),
        Some(address) if origin(address).is_some() => {
            Ok(Viewer::Hosted(address.trim_end_matches('/').to_owned()))
        }
        _ => Err(invalid_value("--viewer", text, expected)),
    }
}

/// Scheme and host of a URL, as browsers send it in `Origin`; `None` if it is not the URL of a page.
#[must_use]
pub fn origin(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let port = match scheme.as_str() {
        "https" => ":443",
        "http" => ":80",
        _ => return None,
    };
    // Any other character could lead to a host that the user did not mean.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:[]%".contains(&byte);
    let host = rest.split('/').next().filter(|host| !host.is_empty())?;
    if !rest.bytes().all(is_plain) || host.starts_with(':') || host.contains('%') {
        return None;
    }
    let host = host.to_ascii_lowercase();
    Some(format!("{scheme}://{}", host.strip_suffix(port).unwrap_or(&host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_match_what_browsers_send() {
        for (address, expected) in [
            ("https://profiler.firefox.com", Some("https://profiler.firefox.com")),
            ("https://Profiler.Example:443/x", Some("https://profiler.example")),
            ("http://localhost:4242/", Some("http://localhost:4242")),
            ("http://[::1]:80/", Some("http://[::1]")),
            ("https://", None),
            ("https:///x", None),
            ("ftp://x", None),
            ("javascript:alert(1)//://x", None),
            ("https://a@b/", None),
            ("https://a?b", None),
            ("https://a/#b", None),
            ("https://a b", None),
            ("x", None),
        ] {
            assert_eq!(origin(address).as_deref(), expected, "{address}");
        }
    }
}
