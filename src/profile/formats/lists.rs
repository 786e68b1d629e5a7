//! Lists of numbers from a JSON file, concatenated.
//!
//! Input: `[[1,2],[3]]`. Output: [`Lists`]. Separate lists would take fourteen times the memory of the text
//! if they are short. A number that is not an index (-1, 1.5, null) becomes [`NO_INDEX`], so that it costs
//! one list and not the file.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

/// Placeholder for a number that is not an index.
pub(super) const NO_INDEX: u32 = u32::MAX;

/// Lists of numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lists {
    items: Vec<u32>,
    /// End of each list in `items`.
    ends: Vec<u32>,
}

impl Lists {
    /// Number of lists.
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
        from.deserialize_seq(ListsVisitor)
    }
}

struct ListsVisitor;

impl<'de> Visitor<'de> for ListsVisitor {
    type Value = Lists;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of lists of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Lists, A::Error> {
        let mut lists = Lists::default();
        while from.next_element_seed(NumbersVisitor(&mut lists.items))?.is_some() {
            let end = u32::try_from(lists.items.len()).map_err(|_| A::Error::custom("too many numbers"))?;
            lists.ends.push(end);
        }
        Ok(lists)
    }
}

/// Adds one list.
struct NumbersVisitor<'l>(&'l mut Vec<u32>);

impl<'de> DeserializeSeed<'de> for NumbersVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for NumbersVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<(), A::Error> {
        while let Some(Index(item)) = from.next_element()? {
            self.0.push(item);
        }
        Ok(())
    }
}

/// An index in JSON: `3` or `3.0`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index(pub(super) u32);

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Index, D::Error> {
        from.deserialize_any(IndexVisitor)
    }
}

struct IndexVisitor;

impl Visitor<'_> for IndexVisitor {
    type Value = Index;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Index, E> {
        Ok(Index(u32::try_from(number).unwrap_or(NO_INDEX)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Index, E> {
        Ok(Index(u32::try_from(number).unwrap_or(NO_INDEX)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Index, E> {
        let is_index = number.fract() == 0.0 && (0.0..f64::from(NO_INDEX)).contains(&number);
        Ok(Index(if is_index { number as u32 } else { NO_INDEX }))
    }

    fn visit_unit<E: Error>(self) -> Result<Index, E> {
        Ok(Index(NO_INDEX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_any_length_are_read() {
        for text in ["[]", "[[]]", "[[1,2],[],[4294967295]]", "[[],[7],[]]"] {
            let lists: Lists = serde_json::from_str(text).expect("reads");
            let plain: Vec<Vec<u32>> = serde_json::from_str(text).expect("reads");
            assert_eq!(lists.iter().collect::<Vec<_>>(), plain, "{text}");
            assert_eq!(lists.len(), plain.len());
        }
        let odd: Lists =
            serde_json::from_str("[[-1],[1.5,2.0],[4294967296,null,1e300,-0.0]]").expect("reads");
        let none = NO_INDEX;
        assert_eq!(odd.iter().collect::<Vec<_>>(), [&[none][..], &[none, 2], &[none, none, none, 0]]);
        for text in ["[1]", "[[\"1\"]]", "[[1]", "{}"] {
            assert!(serde_json::from_str::<Lists>(text).is_err(), "{text}");
        }
    }
}
