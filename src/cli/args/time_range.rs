//! Parses time ranges of a recording: `--from 2.5s --to 4s`, `--base 0s..5s`.

use std::ffi::{OsStr, OsString};
use std::ops::Range;

use super::values::{invalid_value, usage};
use crate::error::Result;

/// Nanoseconds since the recording began; `None` if neither end is given.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn time_range(from: Option<&OsStr>, to: Option<&OsStr>) -> Result<Option<Range<u64>>> {
    if from.is_none() && to.is_none() {
        return Ok(None);
    }
    let start = from.map_or(Ok(0), |text| time("--from", text))?;
    let end = to.map_or(Ok(u64::MAX), |text| time("--to", text))?;
    if start < end {
        return Ok(Some(start..end));
    }
    let (from, to) = (from.unwrap_or(OsStr::new("0")), to.unwrap_or_default());
    Err(usage(format!(
        "--from {} --to {}: nothing lies between; give a later end",
        from.to_string_lossy(),
        to.to_string_lossy()
    )))
}

/// The value of an option that may be given only once.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn once<'a>(option: &str, given: &'a [OsString]) -> Result<Option<&'a OsStr>> {
    match given {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        [first, second, ..] => Err(usage(format!(
            "{option} is given twice, `{}` and `{}`; give one",
            first.display(),
            second.display()
        ))),
    }
}

/// A range in one word, `FROM..TO`; either end may be omitted.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn range(option: &str, text: &OsStr) -> Result<Range<u64>> {
    let refused = || invalid_value(option, text, "two times since the recording began, such as 2.5s..4s");
    let (from, to) = text.to_str().and_then(|text| text.split_once("..")).ok_or_else(refused)?;
    // `0s...5s` would be `0s..` and `.5s`, which nobody means.
    if to.starts_with('.') {
        return Err(refused());
    }
    let end = |text: &str, open| match text {
        "" => Ok(open),
        _ => time(option, OsStr::new(text)).map_err(|_| refused()),
    };
    let (start, end) = (end(from, 0)?, end(to, u64::MAX)?);
    match start < end {
        true => Ok(start..end),
        false => Err(usage(format!("{option} `{from}..{to}`: nothing lies between; give a later end"))),
    }
}

fn time(option: &str, text: &OsStr) -> Result<u64> {
    let expected = "a time since the recording began, such as 2.5s, 300ms or 1m";
    let refused = || invalid_value(option, text, expected);
    let written = text.to_str().ok_or_else(refused)?;
    let number = written.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns = match &written[number.len()..] {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        "m" | "min" => 60e9,
        _ => return Err(refused()),
    };
    let number = number.parse::<f64>().map_err(|_| refused())?;
    // 2^63 nanoseconds are 292 years.
    let ns = Some(number * unit_ns).filter(|ns| (0.0..9.2e18).contains(ns)).ok_or_else(refused)?;
    Ok(ns.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(from: &str, to: &str) -> Result<Option<Range<u64>>> {
        let given = |text| Some(OsStr::new(text)).filter(|text: &&OsStr| !text.is_empty());
        time_range(given(from), given(to))
    }

    #[test]
    fn times_have_units_and_either_end_may_be_open() {
        for (from, to, expected) in [
            ("2.5s", "4s", 2_500_000_000..4_000_000_000),
            ("2.5", "", 2_500_000_000..u64::MAX),
            ("", "300ms", 0..300_000_000),
            ("1m", "2min", 60_000_000_000..120_000_000_000),
            ("5us", "7000ns", 5_000..7_000),
        ] {
            assert_eq!(parse(from, to).expect("a range"), Some(expected), "{from} {to}");
        }
        assert_eq!(parse("", "").expect("none"), None);
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for (from, to, expected) in [
            ("4s", "2s", "--from 4s --to 2s: nothing lies between; give a later end"),
            ("0", "0", "--from 0 --to 0: nothing lies between; give a later end"),
            ("-1s", "", "--from `-1s`: expected a time since the recording began, such as 2.5s, 300ms or 1m"),
            ("", "soon", "--to `soon`: expected a time since the recording began, such as 2.5s, 300ms or 1m"),
            ("nan", "", "--from `nan`: expected a time since the recording began, such as 2.5s, 300ms or 1m"),
            (
                "1e30s",
                "",
                "--from `1e30s`: expected a time since the recording began, such as 2.5s, 300ms or 1m",
            ),
        ] {
            assert_eq!(parse(from, to).expect_err("refused").to_string(), expected);
        }
    }
}
