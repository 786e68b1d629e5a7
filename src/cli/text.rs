//! Formats numbers for people; shared by the summary and the progress line. Pure functions; none of
//! them rounds "almost all" to 100% or "a few" to 0%.

use crate::escape::escape_line;
use crate::sources::ExitStatus;

/// `work (pid 4242)`; the placeholder for several processes has no number.
#[must_use]
pub fn process(name: &str, pid: u32) -> String {
    let name = escape_line(name);
    if pid == 0 { name.into_owned() } else { format!("{name} (pid {pid})") }
}

/// `1 sample`, `2 samples`.
#[must_use]
pub fn plural(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Digits in groups: `12,365`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the unit that keeps them short: `850 B`, `12.3 KiB`, `4.0 GiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = "B";
    for larger in UNITS {
        // Limit of the rounded value: 1023.96 KiB would print as 1024.0.
        if value < 1023.95 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    format!("{value:.1} {unit}")
}

/// A duration in the unit that keeps it short: `850 ns`, `41 us`, `0.3 ms`, `12.0 s`.
#[must_use]
pub fn duration(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..99_500 => format!("{:.0} us", value / 1e3),
        99_500..9_950_000 => format!("{:.1} ms", value / 1e6),
        9_950_000..999_500_000 => format!("{:.0} ms", value / 1e6),
        _ => format!("{:.1} s", value / 1e9),
    }
}

/// `part` of `whole` in percent with one decimal. `100%` and `0%` only where exact; `<0.1%` for less
/// than 0.05%.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    match part {
        0 => "0%".to_string(),
        _ if part >= whole => "100%".to_string(),
        _ if u128::from(part) * 2_000 < u128::from(whole) => "<0.1%".to_string(),
        _ => format!("{:.1}%", (100.0 * part as f64 / whole as f64).clamp(0.1, 99.9)),
    }
}

/// Causes with their counts, the most frequent first: `14 deeper than copied, 5 broken frame chain`.
/// Omits causes with a count of zero.
#[must_use]
pub fn causes<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let mut counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    counts.iter().map(|(cause, count)| format!("{count} {cause}")).collect::<Vec<_>>().join(", ")
}

/// A name of at most `chars_max` characters; a longer one loses its middle.
#[must_use]
pub fn shortened(name: &str, chars_max: usize) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= chars_max {
        return name.to_owned();
    }
    let end = chars_max.saturating_sub(1) / 2;
    let begin = chars_max.saturating_sub(1 + end);
    let (begin, end) = (chars.iter().take(begin), chars.iter().skip(chars.len() - end));
    begin.chain(['…'].iter()).chain(end).collect()
}

/// How a process ended: `it was ended by signal 11 (SIGSEGV)`.
pub(super) fn exit_clause(status: ExitStatus) -> String {
    match status {
        ExitStatus::Code(code) => format!("it exited with code {code}"),
        ExitStatus::Signal(number) => format!("it was ended by {}", signal(number)),
        ExitStatus::Unknown => "it exited".to_owned(),
    }
}

/// How a command ended, as profiles keep it: `status 0`, `signal 6 (SIGABRT)`.
pub(super) fn exit_status(status: ExitStatus) -> Option<String> {
    match status {
        ExitStatus::Code(code) => Some(format!("status {code}")),
        ExitStatus::Signal(number) => Some(signal(number)),
        ExitStatus::Unknown => None,
    }
}

/// A signal by number and name: `signal 11 (SIGSEGV)`.
pub(super) fn signal(number: i32) -> String {
    signal_name(number).map_or(format!("signal {number}"), |name| format!("signal {number} ({name})"))
}

/// Names of the signals that end programs and have the same number on Linux and macOS.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_loses_its_middle() {
        assert_eq!(shortened("abcdefghij", 10), "abcdefghij");
        assert_eq!(shortened("abcdefghijk", 10), "abcde…hijk");
        assert_eq!(shortened("äöüäöüäöüäöü", 5), "äö…öü");
    }

    #[test]
    fn bytes_are_short() {
        for (number, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(number), expected);
        }
    }

    #[test]
    fn durations_choose_their_unit() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1 us"),
            (8_400, "8 us"),
            (99_499, "99 us"),
            (99_500, "0.1 ms"),
            (300_000, "0.3 ms"),
            (9_940_000, "9.9 ms"),
            (9_950_000, "10 ms"),
            (999_499_999, "999 ms"),
            (999_500_000, "1.0 s"),
            (12_040_000_000, "12.0 s"),
        ] {
            assert_eq!(duration(ns), text, "{ns}");
        }
        assert!(duration(u64::MAX).ends_with(" s"));
    }

    #[test]
    fn percentages_are_exact_at_both_ends() {
        for (part, whole, text) in [
            (0, 10, "0%"),
            (10, 10, "100%"),
            (1, 100_000, "<0.1%"),
            (1, 2_000, "0.1%"),
            (99_999, 100_000, "99.9%"),
            (998, 1000, "99.8%"),
            (0, 0, "0%"),
        ] {
            assert_eq!(percent(part, whole), text);
        }
    }

    #[test]
    fn numbers_and_words() {
        assert_eq!(plural(1, "sample"), "1 sample");
        assert_eq!(plural(0, "sample"), "0 samples");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(12_365), "12,365");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(causes([("a", 5), ("b", 14), ("none", 0), ("c", 5)]), "14 b, 5 a, 5 c");
        assert_eq!(causes([("none", 0)]), "");
        assert_eq!(process("a\u{1b}[31mé\n", 0), "a\\u{1b}[31mé\\u{a}");
    }
}
