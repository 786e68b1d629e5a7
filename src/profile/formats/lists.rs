//! Lists of numbers out of a JSON file, one behind the other.
//!
//! Input: `[[1,2],[3]]`. Output: [`Lists`]. A list of its own for each would take fourteen times
//! the text of short ones.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

/// Lists of numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lists {
    items: Vec<u32>,
    /// Where each ends in `items`.
    ends: Vec<u32>,
}

impl Lists {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The lists.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts
            .zip(&self.ends)
            .map(|(start, end)| self.items.get(*start as usize..*end as usize).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Lists {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Lists, D::Error> {
        from.deserialize_seq(Outer)
    }
}

struct Outer;

impl<'de> Visitor<'de> for Outer {
    type Value = Lists;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of lists of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Lists, A::Error> {
        let mut lists = Lists::default();
        while from.next_element_seed(Inner(&mut lists.items))?.is_some() {
            let end = u32::try_from(lists.items.len()).map_err(|_| A::Error::custom("too many numbers"))?;
            lists.ends.push(end);
        }
        Ok(lists)
    }
}

/// Adds one list.
struct Inner<'l>(&'l mut Vec<u32>);

impl<'de> DeserializeSeed<'de> for Inner<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Inner<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(item) = from.next_element()? {
            self.0.push(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_length_come_back() {
        for text in ["[]", "[[]]", "[[1,2],[],[4294967295]]", "[[],[7],[]]"] {
            let lists: Lists = serde_json::from_str(text).expect("reads");
            let plain: Vec<Vec<u32>> = serde_json::from_str(text).expect("reads");
            assert_eq!(lists.iter().collect::<Vec<_>>(), plain, "{text}");
            assert_eq!(lists.len(), plain.len());
        }
        for text in ["[1]", "[[-1]]", "[[1.5]]", "[[4294967296]]", "[[1]", "{}"] {
            assert!(serde_json::from_str::<Lists>(text).is_err(), "{text}");
        }
    }
}
