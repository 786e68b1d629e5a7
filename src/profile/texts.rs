//! Interned texts: each distinct name once, as a number.
//!
//! Input: names of functions, files, threads. Output: a [`TextId`] each, and the text
//! behind one, in which what cannot be seen is escaped. All texts lie in one allocation, so that a million names cost little more
//! than their letters. Not for: one text per stack.

use std::borrow::Cow;
use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::full::Full;
use crate::escape::escape_line;
use crate::trie::{FrameWords, Key};

/// Most bytes of all texts together; the ends are kept in 32 bits.
pub const MAX_TEXT_BYTES: usize = 1 << 30;

/// Most distinct texts.
pub const MAX_TEXTS: usize = 1 << 24;

/// An interned text: its place in a [`Texts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextId(pub u32);

impl TextId {
    /// The empty text, which every [`Texts`] has: "not told".
    pub const EMPTY: TextId = TextId(0);
}

impl Key for TextId {
    fn words(self) -> FrameWords {
        (0, self.0.into())
    }

    fn of((_, number): FrameWords) -> TextId {
        TextId(number as u32)
    }
}

/// Distinct texts, numbered in the order in which they came. Number 0 is the empty text.
#[derive(Clone)]
pub struct Texts {
    bytes: String,
    /// Where each text ends in `bytes`; it begins where the one before it ends.
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Texts {
    /// Only the empty text.
    #[must_use]
    pub fn new() -> Texts {
        let mut texts = Texts {
            bytes: String::new(),
            ends: vec![0],
            index: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        };
        let hash = texts.hasher.hash_one("");
        texts.index.insert_unique(hash, 0, |_| hash);
        texts
    }

    /// The number of a text, which is known from now on. Texts come from programs and files of
    /// anybody and go to terminals and pages: their invisible characters are escaped here, for
    /// all forms of a profile at once.
    ///
    /// # Errors
    /// [`Full`] if it is new and does not fit.
    pub fn intern(&mut self, text: &str) -> Result<TextId, Full> {
        let hash = self.hasher.hash_one(text);
        if let Some(&id) = self.index.find(hash, |&id| self.get(TextId(id)) == text) {
            return Ok(TextId(id));
        }
        // What is known is escaped, so that only new texts are searched.
        if let Cow::Owned(escaped) = escape_line(text) {
            return self.intern(&escaped);
        }
        if text.len() > MAX_TEXT_BYTES - self.bytes.len() {
            return Err(Full { what: "bytes of names", limit: MAX_TEXT_BYTES });
        }
        if self.ends.len() >= MAX_TEXTS {
            return Err(Full { what: "distinct names", limit: MAX_TEXTS });
        }
        let id = self.ends.len() as u32;
        self.bytes.push_str(text);
        self.ends.push(self.bytes.len() as u32);
        let (bytes, ends, hasher) = (&self.bytes, &self.ends, &self.hasher);
        self.index.insert_unique(hash, id, |&id| hasher.hash_one(at(bytes, ends, id)));
        Ok(TextId(id))
    }

    /// The number of a text that is known, as it is kept: escaped.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<TextId> {
        let hash = self.hasher.hash_one(text);
        self.index.find(hash, |&id| self.get(TextId(id)) == text).map(|&id| TextId(id))
    }

    /// The text of a number; empty for one that was never given.
    #[must_use]
    pub fn get(&self, id: TextId) -> &str {
        at(&self.bytes, &self.ends, id.0)
    }

    /// How many distinct texts there are, the empty one included; their numbers are those below it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }
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
    fn a_text_has_one_number() {
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
    fn a_text_and_its_escaped_form_are_one() {
        let mut texts = Texts::new();
        let ids = ["a\u{202e}b", "a\\u{202e}b", "a\u{202e}b"].map(|text| texts.intern(text).expect("fits"));
        assert_eq!(ids, [TextId(1); 3]);
        assert_eq!((texts.get(TextId(1)), texts.count()), ("a\\u{202e}b", 2));
    }

    #[test]
    fn many_texts_are_found_again_after_the_index_grew() {
        let mut texts = Texts::new();
        let ids: Vec<TextId> =
            (0..5000).map(|n| texts.intern(&format!("function {n}")).expect("fits")).collect();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(texts.get(*id), format!("function {n}"));
            assert_eq!(texts.find(&format!("function {n}")), Some(*id));
        }
    }
}
