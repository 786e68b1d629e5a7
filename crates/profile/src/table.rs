//! Tables: distinct items with a number each, lists of items, and what the items of one table became in another.

use std::collections::HashMap;
use std::hash::Hash;

/// Distinct items, numbered in the order of first use, and found by a key: by default the item itself.
#[derive(Clone, Debug)]
pub(crate) struct Numbered<K, T = K> {
    items: Vec<T>,
    numbers: HashMap<K, u32>,
}

impl<K, T> Default for Numbered<K, T> {
    fn default() -> Numbered<K, T> {
        Numbered { items: Vec::new(), numbers: HashMap::new() }
    }
}

impl<K: Eq + Hash, T> Numbered<K, T> {
    /// The number of the item with a key; `item` creates it if the key is new.
    pub(crate) fn number_with(&mut self, key: K, item: impl FnOnce() -> T) -> u32 {
        *self.numbers.entry(key).or_insert_with(|| {
            self.items.push(item());
            self.items.len() as u32 - 1
        })
    }

    /// The number of a known key.
    pub(crate) fn find(&self, key: &K) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// The items, by number.
    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }

    /// The items, by number, without their keys.
    pub(crate) fn into_items(self) -> Vec<T> {
        self.items
    }

    /// The items, by number. Their keys stay.
    pub(crate) fn items_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<K: Clone + Eq + Hash> Numbered<K> {
    /// The number of an item, which is added if it is new.
    pub(crate) fn number(&mut self, item: K) -> u32 {
        *self.numbers.entry(item).or_insert_with_key(|item| {
            self.items.push(item.clone());
            self.items.len() as u32 - 1
        })
    }
}

/// Lists of items, stored one after the other: separate lists would take many times the memory if they are short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lists<T> {
    items: Vec<T>,
    /// End of each list in `items`.
    ends: Vec<u32>,
}

impl<T> Default for Lists<T> {
    fn default() -> Lists<T> {
        Lists { items: Vec::new(), ends: Vec::new() }
    }
}

impl<T> Lists<T> {
    /// Adds an item to the list that has not ended.
    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    /// Ends a list: the next item begins another one. False if there are more items than can be numbered.
    pub(crate) fn end(&mut self) -> bool {
        let end = u32::try_from(self.items.len());
        self.ends.push(end.unwrap_or(u32::MAX));
        end.is_ok()
    }

    /// Number of lists.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A list; empty if the index is out of range.
    pub(crate) fn get(&self, index: usize) -> &[T] {
        let end = |index: usize| self.ends.get(index).map(|end| *end as usize);
        let start = index.checked_sub(1).map_or(Some(0), end);
        start.zip(end(index)).and_then(|(start, end)| self.items.get(start..end)).unwrap_or_default()
    }

    /// The lists.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[T]> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// What the items of a table became, by number.
#[derive(Clone, Debug)]
pub(crate) struct Memo<T>(Vec<Option<T>>);

impl<T: Copy> Memo<T> {
    /// Of a table with this many items, none of which is converted.
    pub(crate) fn new(items: usize) -> Memo<T> {
        Memo(vec![None; items])
    }

    /// What an item became, if it is known.
    pub(crate) fn get(&self, number: usize) -> Option<T> {
        self.0.get(number).copied().flatten()
    }

    /// Notes what an item became, and returns that.
    pub(crate) fn put(&mut self, number: usize, converted: T) -> T {
        if let Some(slot) = self.0.get_mut(number) {
            *slot = Some(converted);
        }
        converted
    }
}
