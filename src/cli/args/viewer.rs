//! How a profile is shown: which viewer, whether a browser is started, how long the server waits.

use std::ffi::OsStr;
use std::time::Duration;

use super::values::{bad, number};
use crate::cli::flags::ViewerFlags;
use crate::error::Result;

/// How long the server waits after the last request.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Longest `--timeout` in seconds: a year.
const TIMEOUT_MAX_S: f64 = 366.0 * 86_400.0;

/// What shows a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Viewer {
    /// The Firefox Profiler.
    Firefox,
    /// speedscope.
    Speedscope,
    /// A page of our own, in a file.
    Html,
    /// A Firefox Profiler at another address, without a slash at its end.
    Hosted(String),
}

/// How a profile is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The viewer; `None` is the Firefox Profiler, and the page where there is no network.
    pub viewer: Option<Viewer>,
    /// Whether a browser is started.
    pub browser: bool,
    /// How long the server waits after the last request; `None` is without an end.
    pub timeout: Option<Duration>,
}

impl Default for Opening {
    fn default() -> Opening {
        Opening { viewer: None, browser: true, timeout: Some(TIMEOUT_DEFAULT) }
    }
}

/// Checks how a profile is shown.
pub(super) fn opening(flags: &ViewerFlags) -> Result<Opening> {
    let viewer = flags.viewer.as_deref().map(viewer).transpose()?;
    let expected = "seconds, 0 or more (60 or 0.5)";
    let timeout = match &flags.timeout {
        None => Some(TIMEOUT_DEFAULT),
        Some(text) => {
            let seconds = number("--timeout", text, expected, |s: f64| (0.0..=TIMEOUT_MAX_S).contains(&s))?;
            Some(Duration::from_secs_f64(seconds)).filter(|timeout| !timeout.is_zero())
        }
    };
    Ok(Opening { viewer, browser: !flags.no_browser, timeout })
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
        _ => Err(bad("--viewer", text, expected)),
    }
}

/// Scheme and host of an address, as browsers name it in `Origin`; `None` for what is no address of a page.
#[must_use]
pub fn origin(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let port = match scheme.as_str() {
        "https" => ":443",
        "http" => ":80",
        _ => return None,
    };
    // Behind it would be another address than the one that was meant.
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
    fn origins_are_those_that_browsers_send() {
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
