//! `stackprof open`: the file and how to show it (`Open`), and the viewer that shows a profile, also after a
//! recording (`ViewerOptions`). No I/O.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use super::values::{ParsedFlags, Verbosity, invalid_value, number, parse_flags, usage, verbosity};
use crate::cli::flags::{CommonFlags, TEMPLATE, ViewerFlags};
use crate::error::Result;

/// `stackprof open ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof open",
    version,
    about = "Look at a saved profile in the Firefox Profiler, speedscope, or a page of its own.",
    override_usage = "stackprof open PROFILE [OPTIONS]",
    before_help = "The viewer is a web page. It asks a server in this process for the profile, for
source and assembly. Only your browser reaches it: at 127.0.0.1, by a secret in
the address. Nothing is uploaded. Ctrl-C ends it.

Examples:
  stackprof open a.pb.gz                       in the Firefox Profiler
  stackprof open a.pb.gz --viewer speedscope
  stackprof open a.pb.gz --viewer html         one page, without a network
  stackprof open a.pb.gz --no-browser          print the address only
  stackprof --open -- ./prog                   record, then look at it
",
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("verbose", |arg| arg.help("Also print which images and files cannot be shown, and why"))
)]
pub(crate) struct OpenFlags {
    #[command(flatten)]
    viewer: ViewerFlags,
    /// Refuse a file with lines or samples that are not understood. Without
    /// this they are left out and counted, up to half of them
    #[arg(long, help_heading = "Input")]
    strict: bool,
    #[command(flatten)]
    common: CommonFlags,
    #[arg(
        hide = true,
        value_hint = clap::ValueHint::AnyPath,
        value_parser = clap::builder::OsStringValueParser::new()
    )]
    profile: Vec<OsString>,
}

/// A profile to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The file; `-` is standard input.
    pub profile: PathBuf,
    /// Viewer options.
    pub viewer_options: ViewerOptions,
    /// Whether a file that is only partly understood is refused.
    pub strict: bool,
    /// Verbosity on standard error.
    pub verbosity: Verbosity,
}

/// Parses the arguments after `open`.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn parse(words: &[OsString], launch: Option<&[OsString]>) -> Result<ParsedFlags<Open>> {
    const FORM: &str = "stackprof open PROFILE";
    let mut flags: OpenFlags = match parse_flags("stackprof open", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(ParsedFlags::Print(text)),
    };
    flags.profile.extend(launch.unwrap_or_default().iter().cloned());
    let profile = match flags.profile.as_slice() {
        [] => return Err(usage(format!("missing argument PROFILE: {FORM}"))),
        [profile] if profile.is_empty() => {
            return Err(usage(format!("the profile's name is empty; name a file: {FORM}")));
        }
        [profile] => profile.into(),
        [_, other, ..] => {
            let other = other.display();
            return Err(usage(format!(
                "one profile at a time; unexpected argument `{other}` (stackprof render A B -o both.pb.gz merges)"
            )));
        }
    };
    Ok(ParsedFlags::Flags(Open {
        profile,
        viewer_options: viewer_options(&flags.viewer)?,
        strict: flags.strict,
        verbosity: verbosity(&flags.common)?,
    }))
}

// ---- Options of the viewer that shows a profile: which one, whether a browser is started, timeout of the server.

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
    use super::Viewer;
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::args::tests::parsed;

    #[test]
    fn every_option_is_parsed() {
        let Ok(Command::Open(open)) = parsed("open a.pb.gz") else { panic!("no open") };
        assert_eq!((open.profile, open.viewer_options), (PathBuf::from("a.pb.gz"), ViewerOptions::default()));
        let line = "open --viewer http://LOCALHOST:4242/ --no-browser --timeout 0 --strict -q -- -x";
        let Ok(Command::Open(open)) = parsed(line) else { panic!("no open") };
        let viewer = Some(Viewer::Hosted("http://LOCALHOST:4242".to_owned()));
        assert_eq!(open.viewer_options, ViewerOptions { viewer, browser: false, timeout: None });
        assert!(open.strict && open.verbosity == Verbosity::Quiet && open.profile.as_os_str() == "-x");
    }

    #[test]
    fn a_recording_is_opened_like_a_file() {
        let Ok(Command::Record(record)) = parsed("--open --viewer speedscope --no-browser --pid 1") else {
            panic!("no recording")
        };
        let expected =
            ViewerOptions { viewer: Some(Viewer::Speedscope), browser: false, ..ViewerOptions::default() };
        assert_eq!(record.output.open, Some(expected));
        for option in ["--viewer html", "--no-browser", "--timeout 5"] {
            let name = option.split(' ').next().unwrap_or_default();
            let refused = parsed(&format!("{option} --pid 1")).expect_err("refused").to_string();
            assert_eq!(refused, format!("{name} is for a profile that is opened; add --open"));
        }
    }

    #[test]
    fn invalid_options_are_refused() {
        for (line, expected) in [
            ("open", "missing argument PROFILE: stackprof open PROFILE"),
            (
                "open a b",
                "one profile at a time; unexpected argument `b` (stackprof render A B -o both.pb.gz merges)",
            ),
            (
                "open a --viewer chrome",
                "--viewer `chrome`: expected firefox, speedscope, html, or an address that begins with https:// or \
                 http://",
            ),
            ("open a --timeout -1", "--timeout `-1`: expected seconds, 0 or more (60 or 0.5)"),
        ] {
            assert_eq!(parsed(line).expect_err("refused").to_string(), expected);
        }
    }
}

#[cfg(test)]
mod viewer_tests {
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
