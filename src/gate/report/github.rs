//! The verdict as workflow commands of GitHub Actions, with other text escaped.
//!
//! The runner reads commands from standard output: lines that begin with `::`, and in its older form `##[`
//! anywhere in a line. Text from profiles must match neither.

use std::fmt::Write as _;

use super::{fails, function_line, headline, judged, path_text, unseen};
use crate::escape::escape_line;
use crate::gate::verdict::{Report, Verdict};

/// Most annotations of one kind that GitHub shows for a step.
const SHOWN_MAX: usize = 10;

/// Annotations: the verdict, then each function that failed or that cost moved to.
#[must_use]
pub fn annotations(report: &Report) -> String {
    let kind = match report.verdict {
        Verdict::Pass => "notice",
        Verdict::Regression => "error",
    };
    let mut out = command(kind, "stackprof gate", &format!("{}. {}", headline(report), unseen(report)));
    for row in judged(report).take(SHOWN_MAX - 1) {
        let kind = if fails(report, row) { "error" } else { "notice" };
        let mut text = function_line(report, row);
        if let Some(place) = &row.place {
            let _ = write!(text, "; {:.0}% of it at {}", 100.0 * place.part, path_text(place));
        }
        out += &command(kind, &format!("stackprof gate: {}", row.name), &text);
    }
    out
}

fn command(kind: &str, title: &str, text: &str) -> String {
    let title = escape_data(title).replace(':', "%3A").replace(',', "%2C");
    format!("::{kind} title={title}::{}\n", escape_data(text))
}

fn escape_data(text: &str) -> String {
    without_commands(&escape_line(text)).replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Text for a log, with commands escaped.
#[must_use]
pub fn without_commands(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let start = line.trim_start();
        let (indent, rest) = line.split_at(line.len() - start.len());
        out.push_str(indent);
        match rest.strip_prefix("::") {
            Some(rest) => {
                out.push_str("\\u{3a}:");
                out.push_str(&rest.replace("##[", "#\\u{23}["));
            }
            None => out.push_str(&rest.replace("##[", "#\\u{23}[")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn no_text_becomes_a_command_or_a_property() {
        let mut rng = Rng::new(5);
        let parts = [
            "::",
            "::error::",
            "##[",
            "#",
            "##[add-mask]",
            "\r",
            "\n",
            "%0A",
            "%",
            ",",
            ":",
            "title=",
            "\u{2028}",
            " ",
            "f",
        ];
        for _ in 0..4000 {
            let text: String = (0..6).map(|_| parts[rng.below(parts.len())]).collect();
            let line = command("error", &text, &text);
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert!(
                line.ends_with('\n') && !line.contains(['\r', '\u{2028}']) && !line.contains("##["),
                "{line:?}"
            );
            let (head, data) = line["::error title=".len()..].split_once("::").expect("data");
            assert!(!head.contains([':', ',']), "{line:?}");
            let decoded =
                data.trim_end_matches('\n').replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%");
            assert_eq!(decoded, without_commands(&escape_line(&text)).trim_end_matches('\n'), "{line:?}");
            let log = without_commands(&text);
            assert!(!log.contains("##["), "{log:?}");
            assert!(log.lines().all(|line| !line.trim_start().starts_with("::")), "{log:?}");
        }
    }

    #[test]
    fn escapes_match_the_runner() {
        assert_eq!(command("notice", "a:b,c%d", "e:f,g%0Ah"), "::notice title=a%3Ab%2Cc%25d::e:f,g%250Ah\n");
    }
}
