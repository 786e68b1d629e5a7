//! Interned texts: each distinct name is stored once and has a number.
//!
//! Input: names of functions, files, threads. Output: a [`TextId`] each, and its text with invisible characters
//! escaped. All texts share one allocation, so that a million names cost little more than their characters. Not for:
//! one text per stack.

use std::borrow::Cow;
use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::saved::Full;
use crate::escape::escape_line;
use crate::trie::{FrameWords, Key};

/// Most bytes of all texts together; end offsets are 32 bits.
pub const TEXT_BYTES_MAX: usize = 1 << 30;

/// Most distinct texts.
pub const TEXTS_MAX: usize = 1 << 24;

/// Most bytes of a text, without the mark of a cut: a stack repeats its names, so a small profile with a long name
/// would make huge outputs.
pub const NAME_BYTES_MAX: usize = 4096;

/// An interned text: its index in a [`Texts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub u32);

impl TextId {
    /// The empty text, which every [`Texts`] has: "unknown".
    pub const EMPTY: TextId = TextId(0);
}

impl Key for TextId {
    fn words(self) -> FrameWords {
        (0, self.0.into())
    }

    fn from_words((_, number): FrameWords) -> TextId {
        TextId(number as u32)
    }
}

/// Distinct texts, numbered in the order of insertion. Number 0 is the empty text.
#[derive(Clone)]
pub struct Texts {
    bytes: String,
    /// End offset of each text in `bytes`; it starts where the previous one ends.
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Distinct texts that were cut.
    cut: usize,
}

impl Texts {
    /// Contains only the empty text.
    #[must_use]
    pub fn new() -> Texts {
        let mut texts = Texts {
            bytes: String::new(),
            ends: vec![0],
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            cut: 0,
        };
        let hash = texts.hasher.hash_one("");
        texts.index.insert_unique(hash, 0, |_| hash);
        texts
    }

    /// Returns the number of a text, adding it if it is new. Texts come from untrusted programs and
    /// files and go to terminals and pages: their invisible characters are escaped here, for all
    /// formats.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn intern(&mut self, text: &str) -> Result<TextId, Full> {
        // First: a file can refer to a long text any number of times.
        if let Some(short) = cut(text) {
            let known = self.count();
            let id = self.intern(&short)?;
            self.cut += self.count() - known;
            return Ok(id);
        }
        let hash = self.hasher.hash_one(text);
        if let Some(&id) = self.index.find(hash, |&id| self.get(TextId(id)) == text) {
            return Ok(TextId(id));
        }
        // Known texts are already escaped, so only new ones are searched.
        if let Cow::Owned(escaped) = escape_line(text) {
            return self.intern(&escaped);
        }
        if text.len() > TEXT_BYTES_MAX - self.bytes.len() {
            return Err(Full { what: "bytes of names", limit: TEXT_BYTES_MAX });
        }
        if self.ends.len() >= TEXTS_MAX {
            return Err(Full { what: "distinct names", limit: TEXTS_MAX });
        }
        let id = self.ends.len() as u32;
        self.bytes.push_str(text);
        self.ends.push(self.bytes.len() as u32);
        let (bytes, ends, hasher) = (&self.bytes, &self.ends, &self.hasher);
        self.index.insert_unique(hash, id, |&id| hasher.hash_one(at(bytes, ends, id)));
        Ok(TextId(id))
    }

    /// The number of a known text, in its escaped form.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<TextId> {
        let hash = self.hasher.hash_one(text);
        self.index.find(hash, |&id| self.get(TextId(id)) == text).map(|&id| TextId(id))
    }

    /// The text with a number; empty if the number is unknown.
    #[must_use]
    pub fn get(&self, id: TextId) -> &str {
        at(&self.bytes, &self.ends, id.0)
    }

    /// Number of distinct texts that were longer than [`NAME_BYTES_MAX`], and are cut.
    #[must_use]
    pub fn cut_count(&self) -> usize {
        self.cut
    }

    /// Number of distinct texts, including the empty one; all numbers are below it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }
}

/// A text that is too long, escaped, up to a mark with the number of bytes that were cut and a hash of the text: texts of
/// up to 64 KiB that differ stay different, and longer ones that differ at their end or in many places. `None` if it is short enough, as each cut text is.
fn cut(text: &str) -> Option<String> {
    /// Longest mark: an ellipsis, 20 digits, 16 digits, and the words between them.
    const MARK_BYTES: usize = 3 + 20 + 16 + "[+ bytes, #]".len();
    /// Words of the hash, evenly spaced: the time does not grow with the text.
    const WORDS_MAX: usize = 8192;
    if text.len() <= NAME_BYTES_MAX + MARK_BYTES {
        return None;
    }
    let up_to = |text: &str| (0..=NAME_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let kept = &text[..up_to(text)];
    let shown = escape_line(kept);
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let (_, end) = text.as_bytes().split_at(text.len() - NAME_BYTES_MAX);
    let sparse = words.iter().step_by(words.len().div_ceil(WORDS_MAX).max(1)).chain(end.as_chunks::<8>().0);
    let sparse = sparse.map(|word| u64::from_le_bytes(*word)).chain(rest.iter().copied().map(u64::from));
    // FNV-1a of words: the same in each run.
    let hash = sparse.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash ^ word).rotate_left(23).wrapping_mul(0x0100_0000_01b3)
    });
    Some(format!("{}…[+{} bytes, #{hash:016x}]", &shown[..up_to(&shown)], text.len() - kept.len()))
}

fn at<'a>(bytes: &'a str, ends: &[u32], id: u32) -> &'a str {
    let Some(&end) = ends.get(id as usize) else { return "" };
    let start = id.checked_sub(1).and_then(|before| ends.get(before as usize)).copied().unwrap_or(0);
    bytes.get(start as usize..end as usize).unwrap_or_default()
}

impl Default for Texts {
    fn default() -> Texts {
        Texts::new()
    }
}

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Texts({} texts, {} bytes)", self.ends.len(), self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_one_number() {
        let mut texts = Texts::new();
        let names = ["main", "", "é", "main", "a;b", ""];
        let ids: Vec<u32> = names.iter().map(|name| texts.intern(name).expect("fits").0).collect();
        assert_eq!(ids, [1, 0, 2, 1, 3, 0]);
        assert_eq!(texts.get(TextId(2)), "é");
        assert_eq!(texts.get(TextId(9)), "");
        assert_eq!(texts.find("a;b"), Some(TextId(3)));
        assert_eq!(texts.find("a"), None);
        assert_eq!(texts.count(), 4);
    }

    #[test]
    fn a_text_and_its_escaped_form_are_equal() {
        let mut texts = Texts::new();
        let ids = ["a\u{202e}b", "a\\u{202e}b", "a\u{202e}b"].map(|text| texts.intern(text).expect("fits"));
        assert_eq!(ids, [TextId(1); 3]);
        assert_eq!((texts.get(TextId(1)), texts.count()), ("a\\u{202e}b", 2));
    }

    #[test]
    fn long_texts_are_cut_once_and_stay_different() {
        let mut texts = Texts::new();
        let long = |end: &str| "é".repeat(500_000) + end;
        let ids = ["1", "2", "1"].map(|end| texts.intern(&long(end)).expect("fits").0);
        assert_eq!(ids, [1, 2, 1]);
        assert_eq!(texts.cut_count(), 2);
        let (one, other) = (texts.get(TextId(1)).to_owned(), texts.get(TextId(2)));
        assert!(one.starts_with("éé") && one.ends_with(']') && one.contains("…[+995905 bytes, #"), "{one}");
        assert!(one != other && one.len() < NAME_BYTES_MAX + 60);
        // Another profile keeps it as it is.
        let mut copy = Texts::new();
        let id = copy.intern(&one).expect("fits");
        assert_eq!((copy.get(id), copy.cut_count()), (&*one, 0));
        assert_eq!(cut(&"a".repeat(NAME_BYTES_MAX)), None);
        // Of very long ones some words are compared: time does not grow with the length.
        let mut other_at = |bytes: usize, place: usize| {
            let mut text = "a".repeat(bytes);
            text.replace_range(place..=place, "b");
            texts.intern(&text).expect("fits")
        };
        let [first, skipped, sampled, last] =
            [9000, 9001, 16 * 8 * 1000, (1 << 20) - 1].map(|place| other_at(1 << 20, place));
        assert!(first == skipped && first != sampled && first != last && sampled != last);
        let [even, odd] = [32 << 10, (32 << 10) + 8].map(|place| other_at(64 << 10, place));
        assert!(even != odd, "of 64 KiB all are compared");
        let hidden = copy.intern(&"\u{202e}".repeat(1 << 20)).expect("fits");
        assert!(copy.get(hidden).starts_with("\\u{202e}") && copy.get(hidden).len() < NAME_BYTES_MAX + 60);
    }

    #[test]
    fn texts_are_found_after_the_index_has_grown() {
        let mut texts = Texts::new();
        let ids: Vec<TextId> =
            (0..5000).map(|n| texts.intern(&format!("function {n}")).expect("fits")).collect();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(texts.get(*id), format!("function {n}"));
            assert_eq!(texts.find(&format!("function {n}")), Some(*id));
        }
    }
}
