//! Escapes invisible characters, which can manipulate a terminal, a picture or a page.
//!
//! Names of functions, threads, processes and files come from the target, and profiles come from anybody. A
//! control character moves the cursor of a terminal, a bidi control reverses the rest of a line, and a character
//! without a glyph makes two names look alike. Input: untrusted text. Output: the text with each of these as
//! `\u{202e}`. Nothing else changes, so escaping is idempotent.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character has no glyph and is no space: controls (C0, DEL, C1), format characters (Unicode's Cf:
/// bidi, zero width, tags), line and paragraph separators, variation selectors, fillers, other default ignorable
/// code points, and noncharacters.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{ad}'
            | '\u{34f}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fdd0}'..='\u{fdef}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{16fe4}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    ) || u32::from(c) & 0xfffe == 0xfffe
}

/// Escapes text that is part of one line.
#[must_use]
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape(text, is_invisible)
}

/// Escapes text of several lines; keeps line feeds.
#[must_use]
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| c != '\n' && is_invisible(c))
}

/// Escapes the text of a source file: keeps tabs, and converts CRLF to line feeds.
#[must_use]
pub fn escape_source(text: &str) -> Cow<'_, str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_escaped = |c: char| !matches!(c, '\t' | '\n') && is_invisible(c);
    match text.contains("\r\n") {
        true => Cow::Owned(escape(&text.replace("\r\n", "\n"), is_escaped).into_owned()),
        false => escape(text, is_escaped),
    }
}

/// Escapes a JSON document, with each invisible character in strings as `\u202e`: the values are unchanged.
/// Outside of strings JSON allows no invisible characters but line ends and tabs, which are kept.
#[must_use]
pub fn escape_json(document: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| !matches!(c, '\t' | '\n' | '\r') && is_invisible(c);
    replace(document, is_escaped, |c, out| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    replace(text, is_escaped, |c, out| out.extend(c.escape_unicode()))
}

fn replace(text: &str, is_replaced: impl Fn(char) -> bool, put: impl Fn(char, &mut String)) -> Cow<'_, str> {
    // Fast path: nearly all texts, of which there may be millions, are plain ASCII.
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain || !text.contains(&is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_replaced(c) {
            put(c, &mut out);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// The last component of a path of any system. The backslash of an escaped character is no separator.
#[must_use]
pub fn file_name(path: &str) -> &str {
    let mut end = path.len();
    while let Some(at) = path.get(..end).and_then(|path| path.rfind(['/', '\\'])) {
        let rest = path.get(at + 1..).unwrap_or_default();
        if !(path.get(at..).is_some_and(|rest| rest.starts_with('\\')) && is_escape(rest)) {
            return rest;
        }
        end = at;
    }
    path
}

/// Whether the text after a backslash is an escaped character: `u{202e}`.
fn is_escape(text: &str) -> bool {
    let digits = text.strip_prefix("u{").and_then(|rest| rest.split_once('}')).map(|(digits, _)| digits);
    let code =
        digits.filter(|digits| digits.len() <= 6).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    code.and_then(char::from_u32).is_some_and(is_invisible)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        for (text, escaped) in [
            ("", ""),
            ("a b~", "a b~"),
            (
                "caf\u{e9} \u{4f60}\u{597d} \u{1f980} \u{fffd} a\u{a0}b",
                "caf\u{e9} \u{4f60}\u{597d} \u{1f980} \u{fffd} a\u{a0}b",
            ),
            ("a\u{1b}[31m\n\t\0", "a\\u{1b}[31m\\u{a}\\u{9}\\u{0}"),
            ("\u{7f}\u{85}\u{9b}", "\\u{7f}\\u{85}\\u{9b}"),
            ("\u{202e}\u{2066}\u{2069}\u{200f}\u{61c}", "\\u{202e}\\u{2066}\\u{2069}\\u{200f}\\u{61c}"),
            ("\u{200b}\u{200d}\u{feff}\u{ad}\u{2060}", "\\u{200b}\\u{200d}\\u{feff}\\u{ad}\\u{2060}"),
            ("\u{e0041}\u{fe0f}\u{e0100}\u{3164}", "\\u{e0041}\\u{fe0f}\\u{e0100}\\u{3164}"),
            ("\u{2028}\u{2029}\u{ffff}\u{10fffe}", "\\u{2028}\\u{2029}\\u{ffff}\\u{10fffe}"),
        ] {
            assert_eq!(escape_line(text), escaped);
            assert_eq!(escape_line(escaped), escaped, "again");
        }
        assert_eq!(escape_lines("a\n\u{1b}b\r\n"), "a\n\\u{1b}b\\u{d}\n");
        assert_eq!(escape_source("\u{feff}a\r\n\tb\u{1b}\rc\n"), "a\n\tb\\u{1b}\\u{d}c\n");
    }

    #[test]
    fn escaped_json_has_the_same_values() {
        let text = "a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\u{2028}\n\"\\";
        let document = serde_json::to_string_pretty(&[text]).expect("JSON");
        let escaped = escape_json(&document);
        assert!(!escaped.chars().any(|c| c != '\n' && is_invisible(c)), "{escaped}");
        assert!(escaped.contains("\\u202e\\udb40\\udc41"), "{escaped}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&escaped).expect("JSON"), [text]);
    }

    #[test]
    fn a_file_name_may_contain_escaped_characters() {
        for (path, name) in [
            ("", ""),
            ("a.c", "a.c"),
            ("/x/a.c", "a.c"),
            ("C:\\x\\a.c", "a.c"),
            ("C:\\users", "users"),
            ("/x/", ""),
            ("/x/a\\u{202e}c.b", "a\\u{202e}c.b"),
            ("C:\\u{x}", "u{x}"),
            ("C:\\u{41}", "u{41}"),
            ("C:\\x\\\\u{a}\\u{b}", "\\u{a}\\u{b}"),
        ] {
            assert_eq!(file_name(path), name, "{path}");
        }
    }
}
