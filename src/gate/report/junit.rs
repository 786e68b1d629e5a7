//! The verdict as JUnit XML for CI systems.
//!
//! Valid by both schemas in use: junit-10.xsd of Jenkins' xUnit plugin and the stricter JUnit.xsd
//! (windyroad). The latter requires a time stamp and a host; both are constant, so that the same recordings
//! give the same bytes. Text from profiles is data: it cannot end an element, and characters that XML or a
//! terminal forbids are escaped.

use std::fmt::Write as _;

use super::{fails, function_line, headline, judged, path_text, text, total};
use crate::escape::{escape_line, escape_lines};
use crate::gate::verdict::Report;

/// One test case for the total, and one for each function that failed or that cost moved to.
#[must_use]
pub fn junit(report: &Report, top: usize) -> String {
    let functions: Vec<_> = judged(report).collect();
    let failures =
        functions.iter().filter(|row| fails(report, row)).count() + usize::from(report.total_grown);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    let _ = writeln!(
        out,
        "  <testsuite id=\"0\" package=\"stackprof\" name=\"stackprof gate\" tests=\"{}\" failures=\"{failures}\" \
         errors=\"0\" time=\"0\" timestamp=\"1970-01-01T00:00:00\" hostname=\"localhost\">",
        functions.len() + 1
    );
    out.push_str("    <properties/>\n");
    let text_of_total = report.total_grown.then(|| format!("total: {}", total(report)));
    case(&mut out, report, "total", text_of_total.as_deref());
    for row in functions {
        let mut text = function_line(report, row);
        if let Some(place) = &row.place {
            let _ = write!(text, "; {:.0}% of it at {}", 100.0 * place.part, path_text(place));
        }
        case(
            &mut out,
            report,
            &format!("function {}", row.name),
            fails(report, row).then_some(text.as_str()),
        );
    }
    let _ = writeln!(out, "    <system-out>{}</system-out>", escape_xml(&text::text(report, top)));
    out.push_str("    <system-err/>\n  </testsuite>\n</testsuites>\n");
    out
}

fn case(out: &mut String, report: &Report, name: &str, failure: Option<&str>) {
    let name = escape_xml(&escape_line(name));
    let _ = write!(out, "    <testcase classname=\"stackprof.gate\" name=\"{name}\" time=\"0\"");
    match failure {
        None => out.push_str("/>\n"),
        Some(text) => {
            let _ = writeln!(
                out,
                ">\n      <failure type=\"regression\" message=\"{}\">{}</failure>\n    </testcase>",
                escape_xml(&escape_line(text)),
                escape_xml(&headline(report))
            );
        }
    }
}

/// Escapes text for an element or attribute.
fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in escape_lines(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn no_text_leaves_its_element() {
        let mut rng = Rng::new(31);
        let parts = [
            "]]>",
            "</failure>",
            "\"",
            "'",
            "&",
            "&lt;",
            "\0",
            "\u{1b}[31m",
            "\r\n",
            "\u{fffe}",
            "\u{202e}",
            "é",
            "<!--",
        ];
        for _ in 0..2000 {
            let text: String = (0..8).map(|_| parts[rng.below(parts.len())]).collect();
            let escaped = escape_xml(&text);
            assert!(
                !escaped.contains(['<', '>', '"', '\'', '\0', '\u{1b}', '\r', '\u{fffe}', '\u{202e}']),
                "{escaped:?}"
            );
            let back = escaped
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&apos;", "'");
            assert_eq!(back.replace("&amp;", "&"), escape_lines(&text), "{escaped}");
        }
    }
}
