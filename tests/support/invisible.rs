//! Invisible characters and terminal control sequences, and a check of outputs for them.
#![allow(dead_code, reason = "each test uses a part")]

/// At least one of each kind: controls, bidi, zero width, fillers, selectors, tags, separators.
pub(crate) const INVISIBLE: &str = "\u{1}\u{7}\u{8}\t\n\u{b}\u{c}\r\u{1b}\u{1f}\u{7f}\u{80}\u{85}\u{90}\u{9b}\u{9c}\u{9d}\u{9f}\
     \u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180e}\u{200b}\u{200c}\u{200d}\u{200e}\u{200f}\
     \u{2028}\u{2029}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2060}\u{2061}\u{2062}\u{2063}\u{2064}\
     \u{2066}\u{2067}\u{2068}\u{2069}\u{206a}\u{206f}\u{3164}\u{fe00}\u{fe0f}\u{feff}\u{ffa0}\
     \u{fff9}\u{fffa}\u{fffb}\u{ffff}\u{110bd}\u{1d173}\u{e0001}\u{e0020}\u{e0041}\u{e007f}\u{e0100}\u{e01ef}";

/// Each of `characters` in escaped form.
pub(crate) fn escaped(characters: &str) -> String {
    characters.chars().map(|c| format!("\\u{{{:x}}}", u32::from(c))).collect()
}

/// Fails if a text contains one of [`INVISIBLE`] except newlines.
pub(crate) fn assert_visible(what: &str, text: &str) {
    let found = text.chars().find(|c| *c != '\n' && INVISIBLE.contains(*c));
    assert!(found.is_none(), "{what} has {found:?}: {}", text.escape_debug());
}
