//! Attributes the allocations of a heap profile to the callers in the table of leaks.
//!
//! Input: a [`SavedProfile`]. Output: another one with stacks that end before [allocation
//! wrappers](super::views::leaks::is_wrapper): self counts then show who allocates, instead of `malloc` or `operator
//! new` for every stack.

use std::collections::HashMap;

use super::builder::SavedBuilder;
use super::full::Full;
use super::remap::Remap;
use super::saved::SavedProfile;
use super::views::leaks::is_wrapper;

impl SavedProfile {
    /// Removes the innermost allocation wrappers. Stacks of only wrappers are unchanged.
    ///
    /// # Errors
    /// [`Full`] if a table is full.
    pub fn without_wrappers(&self) -> Result<SavedProfile, Full> {
        let mut builder = SavedBuilder::new(self.about.clone());
        let mut remap = Remap::new(self);
        // By frame: how many of its outermost functions remain if it is the innermost, and the frame of these.
        let mut left: HashMap<u32, (usize, Option<u32>)> = HashMap::new();
        let mut full = Ok(());
        let mut add = |root: u32, frames: &[u32], count: u64| {
            let root = remap.root(&mut builder, root)?;
            let mut path = Vec::with_capacity(frames.len());
            let mut inner = frames;
            while let Some((frame, outer)) = inner.split_last() {
                let functions =
                    *left.entry(*frame).or_insert_with(|| (self.without_inner_wrappers(*frame), None));
                if functions.0 == 0 {
                    inner = outer;
                    continue;
                }
                let part = match functions {
                    (_, Some(known)) => known,
                    (functions, None) => remap.frame_part(&mut builder, *frame, 0..functions)?,
                };
                left.insert(*frame, (functions.0, Some(part)));
                path.push(part);
                break;
            }
            let outer = if inner.is_empty() { frames } else { &inner[..inner.len() - 1] };
            let outer = outer.iter().map(|frame| remap.frame(&mut builder, *frame));
            let mut stack = outer.collect::<Result<Vec<u32>, Full>>()?;
            stack.append(&mut path);
            builder.add(root, &stack, count).map(drop)
        };
        self.for_each_numbered_stack(|root, frames, count| {
            if full.is_ok() {
                full = add(root, frames, count);
            }
        });
        full?;
        Ok(builder.finish())
    }

    /// How many functions of a frame remain, counted from the outermost, without its innermost wrappers.
    fn without_inner_wrappers(&self, frame: u32) -> usize {
        let (mut index, mut left) = (0, 0);
        self.names_of(frame, false, &mut |name| {
            index += 1;
            if !is_wrapper(name) {
                left = index;
            }
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::formats::detect::{self, Strictness};

    #[test]
    fn allocations_belong_to_callers_of_wrappers() {
        let text = "p;main;load(int);std::vector<int>::push_back;operator new(unsigned long);malloc 7\n\
                    p;main;malloc 3\np;main;std::sort;compare 2\np;operator new(unsigned long) 1\n";
        let read = detect::read_of_type(text.as_bytes(), "a.folded", 0, Strictness::Strict, None);
        let saved = read.expect("it is one").saved.without_wrappers().expect("fits");
        let mut stacks = Vec::new();
        saved.for_each_stack(|_, frames, count| {
            let mut names = Vec::new();
            frames
                .iter()
                .for_each(|frame| saved.names_of(*frame, false, &mut |name| names.push(name.to_owned())));
            stacks.push(format!("{} {count}", names.join(";")));
        });
        stacks.sort();
        let expected =
            ["main 3", "main;load(int) 7", "main;std::sort;compare 2", "operator new(unsigned long) 1"];
        assert_eq!(stacks, expected);
    }
}
