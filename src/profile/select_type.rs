//! Selects another value type as the counts of a profile.

use super::builder::SavedBuilder;
use super::full::Full;
use super::remap::Remap;
use super::saved::SavedProfile;
use super::values::StackValues;

impl SavedProfile {
    /// The values of its stacks, if each has several.
    #[must_use]
    pub fn values(&self) -> Option<&StackValues> {
        self.values.as_ref()
    }

    /// The profile with the values of another type as its counts; `None` if it lacks that type.
    ///
    /// # Errors
    /// [`Full`] if the sum of the values does not fit into 64 bits.
    pub fn select_type(&self, kind: &str) -> Result<Option<SavedProfile>, Full> {
        let Some(values) = &self.values else { return Ok(None) };
        let Some(index) = values.index(kind) else { return Ok(None) };
        let mut builder = SavedBuilder::new(self.about.clone());
        let tables = Remap::new(self).all(&mut builder)?;
        let value = |node| values.of(node).and_then(|values| values.get(index)).copied().unwrap_or(0);
        let nodes = builder.add_remapped(self, &tables, value)?;
        let mut moved = StackValues::new(values.types().to_vec());
        for (node, row) in values.rows() {
            if let Some(here) = nodes.get(node.0 as usize) {
                moved.add(*here, row);
            }
        }
        for (node, estimates) in values.inuse() {
            if let Some(here) = nodes.get(node.0 as usize) {
                moved.add_inuse(*here, estimates);
            }
        }
        if let Some(of) = values.types().get(index) {
            of.counted_unit().clone_into(&mut builder.about().unit);
        }
        builder.about().value_type = Some(kind.to_owned());
        let mut saved = builder.finish();
        saved.values = Some(moved);
        Ok(Some(saved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::about::About;
    use crate::profile::formats::detect::{self, Strictness};
    use crate::profile::formats::{otlp, pprof};
    use crate::profile::saved::StackRoot;
    use crate::profile::values::ValueType;

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
    fn another_type_can_be_shown() {
        let heap = heap();
        let space = heap.select_type("alloc_space").expect("fits").expect("it is there");
        assert_eq!((space.about.unit.as_str(), space.total()), ("bytes", 3070));
        let objects = space.select_type("alloc_objects").expect("fits").expect("it is there");
        assert_eq!(
            (objects.about.unit.as_str(), stacks(&objects)),
            ("alloc_objects", vec!["main;churn 7".into(), "main;keep 3".into()])
        );
        assert!(heap.select_type("other").expect("fits").is_none());
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
        let space = heap.select_type("alloc_space").expect("fits").expect("it is there");
        let mut builder = SavedBuilder::new(heap.about.clone());
        let refused = builder.merge(&space).expect_err("refused").to_string();
        assert_eq!(refused, "one counts inuse_space, the other alloc_space");
    }
}
