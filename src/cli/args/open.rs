//! `stackprof open`: its options, which are the request (`Open`), and the viewer that shows a profile, also after a
//! recording (`ViewerOptions`). No I/O.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueHint};
use clap::{Args, Parser};

use super::record::CommonOptions;
use super::values::{Stop, check, expected, number, parse_flags, usage};

/// `stackprof open ...`
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(
    name = "stackprof open",
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
    mut_arg("verbose", |arg| arg.help("Also print which images and files cannot be shown, and why"))
)]
pub struct Open {
    /// How it is shown.
    #[command(flatten)]
    pub viewer: ViewerOptions,
    /// Refuse a file with lines or samples that are not understood. Without
    /// this they are left out and counted, up to half of them
    #[arg(long, help_heading = "Input")]
    pub strict: bool,
    /// What every command takes.
    #[command(flatten)]
    pub common: CommonOptions,
    #[arg(hide = true, value_parser = OsStringValueParser::new().map(PathBuf::from), value_hint = ValueHint::AnyPath)]
    profile: Vec<PathBuf>,
}

impl Open {
    /// The file; `-` is standard input.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.profile.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// Parses the arguments after `open`.
pub(super) fn parse(words: &[OsString], launch: Option<Vec<OsString>>) -> Result<Open, Stop> {
    const FORM: &str = "stackprof open PROFILE";
    let mut open: Open = parse_flags(words, |_| None)?;
    open.profile.extend(launch.into_iter().flatten().map(PathBuf::from));
    if let Some(other) = open.profile.get(1) {
        let other = other.display();
        let why = format!(
            "one profile at a time; unexpected argument `{other}` (stackprof render A B -o both.pb.gz merges)"
        );
        return Err(usage(why).into());
    }
    check(&[
        (open.profile.is_empty(), &format!("missing argument PROFILE: {FORM}")),
        (open.path().as_os_str().is_empty(), &format!("a profile's name is empty; name a file: {FORM}")),
    ])?;
    Ok(open)
}

// ---- The viewer that shows a profile: which one, whether a browser is started, timeout of the server.

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

/// Which viewer.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Viewer")]
pub struct ViewerOptions {
    /// firefox, speedscope, html (a page in a file), or the address of a Firefox
    /// Profiler that you host [default: firefox; html without a network]
    #[arg(long, value_name = "NAME|URL", value_parser = viewer())]
    pub viewer: Option<Viewer>,
    /// Start no browser: print the address
    #[arg(long)]
    pub no_browser: bool,
    /// Exit after this many seconds without a request, counted from the first
    /// request; 0 is never [default: 60]
    #[arg(long, value_name = "SECS", value_parser = timeout(), allow_hyphen_values = true)]
    pub(super) timeout: Option<Duration>,
}

impl ViewerOptions {
    /// Timeout of the server after the last request; `None` waits forever.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        Some(self.timeout.unwrap_or(TIMEOUT_DEFAULT)).filter(|timeout| !timeout.is_zero())
    }
}

fn timeout() -> impl TypedValueParser<Value = Duration> {
    expected("seconds, 0 or more (60 or 0.5)", |text| {
        number(text).filter(|seconds| (0.0..=TIMEOUT_MAX_S).contains(seconds)).map(Duration::from_secs_f64)
    })
}

fn viewer() -> impl TypedValueParser<Value = Viewer> {
    let known = "firefox, speedscope, html, or an address that begins with https:// or http://";
    expected(known, |text| match text {
        "firefox" => Some(Viewer::Firefox),
        "speedscope" => Some(Viewer::Speedscope),
        "html" => Some(Viewer::Html),
        address => origin(address).map(|_| Viewer::Hosted(address.trim_end_matches('/').to_owned())),
    })
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
    use crate::cli::args::tests::parsed;
    use crate::cli::args::{Command, Verbosity};

    #[test]
    fn every_option_is_parsed() {
        let Ok(Command::Open(open)) = parsed("open a.pb.gz") else { panic!("no open") };
        assert_eq!((open.path(), &open.viewer), (Path::new("a.pb.gz"), &ViewerOptions::default()));
        assert_eq!(open.viewer.timeout(), Some(TIMEOUT_DEFAULT));
        let line = "open --viewer http://LOCALHOST:4242/ --no-browser --timeout 0 --strict -q -- -x";
        let Ok(Command::Open(open)) = parsed(line) else { panic!("no open") };
        let viewer = Some(Viewer::Hosted("http://LOCALHOST:4242".to_owned()));
        let shown = &open.viewer;
        assert_eq!((&shown.viewer, shown.no_browser, shown.timeout()), (&viewer, true, None));
        assert!(open.strict && open.common.verbosity() == Verbosity::Quiet && open.path() == Path::new("-x"));
    }

    #[test]
    fn a_recording_is_opened_like_a_file() {
        let Ok(Command::Record(record)) = parsed("--open --viewer speedscope --no-browser --pid 1") else {
            panic!("no recording")
        };
        let expected =
            ViewerOptions { viewer: Some(Viewer::Speedscope), no_browser: true, ..ViewerOptions::default() };
        assert_eq!((record.recording.output.open, record.recording.output.viewer), (true, expected));
        for option in ["--viewer html", "--no-browser", "--timeout 5"] {
            let name = option.split(' ').next().unwrap_or_default();
            let refused = parsed(&format!("{option} --pid 1")).expect_err("refused").to_string();
            assert_eq!(refused, format!("{name} is for a profile that is opened; add --open"));
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
