//! Operations on whole profiles: merges several, removes addresses or labels from one, selects another value type
//! as its counts, attributes allocations to the callers of the allocator.
//!
//! Input: [`SavedProfile`] profiles. Output: a [`SavedProfile`], by way of a [`SavedBuilder`].

use std::collections::HashMap;

use super::about::About;
use super::builder::{MergeError, Remap, SavedBuilder, Tables};
use super::saved::{Full, LabelsId, SavedProfile, StackFrame, StackRoot, StackValues};
use super::timeline::Timeline;
use super::views::leaks::is_wrapper;
use crate::trie::NodeId;

impl SavedBuilder {
    /// Adds another profile: its stacks and its metadata.
    ///
    /// # Errors
    /// [`MergeError`] if the counts cannot be added, or a table is full.
    pub fn merge(&mut self, other: &SavedProfile) -> Result<(), MergeError> {
        self.saved.about.merge(&other.about).map_err(MergeError::Metadata)?;
        Ok(self.add_stacks(other)?)
    }

    /// Adds the stacks of another profile.
    ///
    /// # Errors
    /// [`Full`] if they do not all fit.
    pub fn add_stacks(&mut self, other: &SavedProfile) -> Result<(), Full> {
        let tables = Remap::new(other).all(self)?;
        self.add_remapped(other, &tables, |node| other.trie.count(node)).map(drop)
    }

    /// A copy of a profile with this metadata and the counts from `count`, its tables and its nodes in the copy.
    pub(super) fn copied(
        other: &SavedProfile,
        about: About,
        count: impl Fn(NodeId) -> u64,
    ) -> Result<(SavedBuilder, Tables, Vec<NodeId>), Full> {
        let mut builder = SavedBuilder::new(about);
        let tables = Remap::new(other).all(&mut builder)?;
        let nodes = builder.add_remapped(other, &tables, count)?;
        Ok((builder, tables, nodes))
    }

    /// Adds the stacks of another profile, with already mapped frames and roots and the counts from
    /// `count`. Returns the mapping of its nodes.
    pub(super) fn add_remapped(
        &mut self,
        other: &SavedProfile,
        tables: &Tables,
        count: impl Fn(NodeId) -> u64,
    ) -> Result<Vec<NodeId>, Full> {
        other.trie.try_map_nodes(NodeId(0), |there, frame, caller| {
            let here = |table: &[u32], index: u32| table.get(index as usize).copied().unwrap_or(u32::MAX);
            let node = match frame {
                StackFrame::Root(root) => self.root_node(here(&tables.roots, root))?,
                StackFrame::Frame(frame) => self.child_node(*caller, here(&tables.frames, frame))?,
            };
            self.count(node, count(there))?;
            Ok::<NodeId, Full>(node)
        })
    }

    /// Copies the times of samples from another profile; `nodes` maps its nodes.
    pub(super) fn add_timeline(
        &mut self,
        other: &SavedProfile,
        timeline: &Timeline,
        nodes: &[NodeId],
    ) -> Result<(), Full> {
        self.add_times(other, timeline.with_nodes(|node| nodes.get(node.0 as usize).copied()))
    }

    /// Copies times of samples with mapped nodes and the texts of another profile.
    pub(super) fn add_times(&mut self, other: &SavedProfile, timeline: Timeline) -> Result<(), Full> {
        self.saved.timeline = Some(timeline.with_texts(|text| self.saved.texts.intern(other.text(text)))?);
        Ok(())
    }
}

impl SavedProfile {
    /// The profile without addresses: merges stacks with the same functions and lines. For formats
    /// with names only, which would repeat them.
    ///
    /// # Errors
    /// [`Full`] if they do not all fit.
    pub fn without_addresses(&self) -> Result<SavedProfile, Full> {
        let mut builder = SavedBuilder::new(self.about.clone());
        let mut tables = Remap::new(self).all(&mut builder)?;
        for (index, frame) in self.frames.iter().enumerate() {
            let lines = builder.so_far().frames.get(tables.frames.get(index).copied().unwrap_or(0) as usize);
            let lines = lines.map(|frame| builder.so_far().lines_of(frame).to_vec()).unwrap_or_default();
            let bare = if frame.lines.is_empty() {
                builder.named_frame(&self.place_of(frame))?
            } else {
                builder.frame(0, None, &lines)?
            };
            if let Some(slot) = tables.frames.get_mut(index) {
                *slot = bare;
            }
        }
        let nodes = builder.add_remapped(self, &tables, |node| self.trie.count(node))?;
        if let Some(timeline) = &self.timeline {
            builder.add_timeline(self, timeline, &nodes)?;
        }
        Ok(builder.finish())
    }

    /// The profile without labels: stacks that differ in them only are merged.
    ///
    /// # Errors
    /// [`Full`] if the counts do not fit.
    pub fn without_labels(&self) -> Result<SavedProfile, Full> {
        let mut bare = self.clone();
        for root in &mut bare.roots {
            *root = StackRoot { labels: LabelsId::NONE, ..*root };
        }
        bare.labels.clear();
        let (mut builder, _, nodes) =
            SavedBuilder::copied(&bare, bare.about.clone(), |node| bare.trie.count(node))?;
        if let Some(timeline) = &bare.timeline {
            builder.add_timeline(&bare, timeline, &nodes)?;
        }
        Ok(builder.finish())
    }
}

// ---- The values of a profile with several.

impl SavedProfile {
    /// Sets the values of its stacks, of which one type is counted; their nodes are those of its trie.
    pub fn set_values(&mut self, values: StackValues) {
        self.values = Some(values);
    }

    /// The values of its stacks, if each has several.
    #[must_use]
    pub fn values(&self) -> Option<&StackValues> {
        self.values.as_ref()
    }
}

// ---- Attributes the allocations of a heap profile to the callers in the table of leaks.

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
    #![allow(clippy::unwrap_used)]

    use super::super::saved::{LABEL_SETS_MAX, LABELS_MAX, Label, LabelValue};
    use super::*;
    use crate::about::About;

    #[test]
    fn sets_are_equal_in_any_order_and_bounded() {
        let mut builder = SavedBuilder::new(About::default());
        let [a, b] = ["a", "b"].map(|text| builder.text(text).unwrap());
        let number = |value| Label { key: a, value: LabelValue::Number(value, b) };
        let text = Label { key: b, value: LabelValue::Text(a) };
        assert_eq!(builder.labels(&mut Vec::new()), Some(LabelsId::NONE));
        assert_eq!(builder.labels(&mut vec![text, number(1)]), Some(LabelsId(1)));
        assert_eq!(builder.labels(&mut vec![number(1), text, text]), Some(LabelsId(1)));
        for value in 2..=LABEL_SETS_MAX as i64 {
            assert!(builder.labels(&mut vec![number(value)]).is_some());
        }
        assert_eq!(builder.labels(&mut vec![number(0)]), None);
        assert_eq!(builder.labels(&mut vec![number(7)]), Some(LabelsId(7)));
        // The labels of all sets together are bounded, too.
        const EACH: usize = 4096;
        let mut builder = SavedBuilder::new(About::default());
        let [a, b] = ["a", "b"].map(|text| builder.text(text).unwrap());
        let mut add = |set: usize| {
            let values = (set * EACH) as i64..((set + 1) * EACH) as i64;
            builder.labels(
                &mut values.map(|value| Label { key: a, value: LabelValue::Number(value, b) }).collect(),
            )
        };
        assert!((0..LABELS_MAX / EACH).all(|set| add(set).is_some()));
        assert_eq!(add(LABELS_MAX / EACH), None);
    }
}

#[cfg(test)]
mod value_types_tests {
    use super::super::about::About;
    use super::super::formats::detect::{self, Strictness};
    use super::super::formats::{otlp, pprof};
    use super::super::saved::StackRoot;
    use super::super::saved::ValueType;
    use super::*;

    /// Two stacks; one of them has nothing in use.
    fn heap() -> SavedProfile {
        let about = About {
            unit: "bytes".into(),
            value_type: Some("inuse_space".into()),
            sampled_every: Some(524_288),
            ..About::default()
        };
        let mut builder = SavedBuilder::new(about);
        let process = builder.text("prog").expect("fits");
        let root = StackRoot::of(process);
        let root = builder.root(root).expect("fits");
        let types = [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_space", "bytes")];
        let types = types.map(|(kind, unit)| ValueType { kind: kind.into(), unit: unit.into() });
        let mut values = StackValues::new(types.to_vec());
        for (name, row) in [("keep", [3, 3000, 2000]), ("churn", [7, 70, 0])] {
            let main = builder.named_frame("main").expect("fits");
            let leaf = builder.named_frame(name).expect("fits");
            let node = builder.add(root, &[main, leaf], row[2]).expect("fits");
            values.add(node, &row);
        }
        let mut saved = builder.finish();
        saved.values = Some(values);
        saved
    }

    fn stacks(saved: &SavedProfile) -> Vec<String> {
        let mut stacks = Vec::new();
        saved.for_each_stack(|_, frames, count| {
            let mut names = Vec::new();
            frames
                .iter()
                .for_each(|frame| saved.names_of(*frame, false, &mut |name| names.push(name.to_owned())));
            stacks.push(format!("{} {count}", names.join(";")));
        });
        stacks.sort();
        stacks
    }

    fn read(bytes: &[u8], kind: Option<&str>) -> Result<SavedProfile, String> {
        let read = detect::read_of_type(bytes, "a.pb.gz", 0, Strictness::Strict, kind);
        read.map(|read| {
            assert_eq!(read.remarks, [""; 0]);
            read.saved
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn each_type_of_a_file_can_be_read() {
        let mut bytes = Vec::new();
        pprof::write::write(&heap(), &mut bytes).expect("written");
        let shown = read(&bytes, None).expect("read");
        assert_eq!((shown.about.unit.as_str(), shown.about.sampled_every), ("bytes", Some(524_288)));
        assert_eq!(shown.about.value_type.as_deref(), Some("inuse_space"));
        assert_eq!(stacks(&shown), ["main;keep 2000"]);
        let space = read(&bytes, Some("alloc_space")).expect("read");
        assert_eq!(
            (space.about.unit.as_str(), stacks(&space)),
            ("bytes", vec!["main;churn 70".into(), "main;keep 3000".into()])
        );
        let objects = read(&bytes, Some("alloc_objects")).expect("read");
        assert_eq!(objects.about.unit, "alloc_objects");
        assert_eq!(stacks(&objects), ["main;churn 7", "main;keep 3"]);
        let why = read(&bytes, Some("inuse_objects")).expect_err("there is none");
        let expected = "a.pb.gz: it has no values of type `inuse_objects`; it has alloc_objects, alloc_space, inuse_space";
        assert_eq!(why, expected);
        // Converted alone to a file, it keeps its type name.
        let mut bytes = Vec::new();
        pprof::write::write(&space, &mut bytes).expect("written");
        let again = read(&bytes, Some("alloc_space")).expect("read");
        assert_eq!(
            (stacks(&again), again.about.value_type.as_deref()),
            (stacks(&space), Some("alloc_space"))
        );
    }

    #[test]
    fn each_type_of_an_otlp_file_can_be_read() {
        let mut bytes = Vec::new();
        otlp::write::write(&heap(), false, &mut bytes).expect("written");
        let shown = read(&bytes, None).expect("read");
        assert_eq!((shown.about.unit.as_str(), shown.about.sampled_every), ("bytes", Some(524_288)));
        assert_eq!(shown.about.value_type.as_deref(), Some("inuse_space"));
        assert_eq!(stacks(&shown), ["main;keep 2000"]);
        for (kind, unit, expected) in [
            ("alloc_space", "bytes", ["main;churn 70", "main;keep 3000"]),
            ("alloc_objects", "alloc_objects", ["main;churn 7", "main;keep 3"]),
        ] {
            let read = read(&bytes, Some(kind)).expect("read");
            let about = (read.about.unit.as_str(), read.about.value_type.as_deref());
            assert_eq!((about, stacks(&read)), ((unit, Some(kind)), expected.map(String::from).to_vec()));
        }
        let why = read(&bytes, Some("inuse_objects")).expect_err("there is none");
        let expected = "a.pb.gz: it has no values of type `inuse_objects`; it has alloc_objects, alloc_space, inuse_space";
        assert_eq!(why, expected);
    }

    #[test]
    fn an_otlp_file_reports_that_nothing_is_in_use() {
        let mut heap = heap();
        let mut values = StackValues::new(heap.values().expect("some").types().to_vec());
        let rows: Vec<_> =
            heap.values().expect("some").rows().map(|(node, row)| (node, row.to_vec())).collect();
        rows.iter().for_each(|(node, row)| values.add(*node, &[row[0], row[1], 0]));
        heap.values = Some(values);
        let mut bytes = Vec::new();
        otlp::write::write(&heap, true, &mut bytes).expect("written");
        let shown = read(&bytes, None).expect("read");
        assert_eq!((shown.total(), shown.about.value_type.as_deref()), (0, Some("inuse_space")));
    }

    #[test]
    fn a_type_is_refused_if_there_is_only_one_value() {
        let why = read(b"p;main 3\n", Some("inuse_space")).expect_err("refused");
        assert_eq!(
            why,
            "a.pb.gz: its stacks have one value, samples; --type inuse_space is for pprof and OTLP"
        );
    }

    #[test]
    fn values_of_different_types_are_not_added() {
        let heap = heap();
        let mut bytes = Vec::new();
        pprof::write::write(&heap, &mut bytes).expect("written");
        let space = read(&bytes, Some("alloc_space")).expect("it is there");
        let mut builder = SavedBuilder::new(heap.about.clone());
        let refused = builder.merge(&space).expect_err("refused").to_string();
        assert_eq!(refused, "one counts inuse_space, the other alloc_space");
    }
}

#[cfg(test)]
mod without_wrappers_tests {
    use super::super::formats::detect::{self, Strictness};

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
