//! Converts a heap recording to a saved profile: its stacks with all values, one of which is counted.
//!
//! Input: the recording, its names, and its heap statistics. Output: [`SavedProfile`].

use std::collections::HashMap;

use super::from_recording::{Circumstances, Conversion, about};
use super::full::Full;
use super::inuse_history::InuseHistory;
use super::saved::SavedProfile;
use super::values::{StackValues, ValueType};
use crate::heap::{HeapValues, Moment, NodeValues, ValueKind};
use crate::recording::Recording;
use crate::symbol::Names;

impl SavedProfile {
    /// Converts a heap recording; its counts are the values of `kind`.
    ///
    /// # Errors
    /// [`Full`] if a table is full.
    pub fn from_heap(
        recording: &Recording,
        names: &Names,
        circumstances: Circumstances,
        heap: &HeapValues,
        kind: ValueKind,
    ) -> Result<SavedProfile, Full> {
        let mut about = about(recording, circumstances);
        about.hz = None;
        about.ticks = None;
        about.sampled_every = Some(heap.rate.every_bytes());
        about.is_peak = heap.moment == Moment::Peak;
        about.value_type = Some(kind.name().to_owned());
        let types =
            ValueKind::ALL.map(|kind| ValueType { kind: kind.name().into(), unit: kind.unit().into() });
        types[kind as usize].counted_unit().clone_into(&mut about.unit);
        let mut values = StackValues::new(types.to_vec());
        // Losses are in the unit of the counts; the roots mark incomplete stacks.
        about.incomplete.clear();
        let lost_bytes = lost_bytes(recording, heap);
        about.lost = lost_bytes.filter(|_| kind.unit() == "bytes").into_iter().collect();
        let by_node: HashMap<u32, &NodeValues> =
            heap.nodes.iter().map(|known| (known.node.0, known)).collect();
        let mut conversion = Conversion::new(about, recording, names, circumstances);
        let mut places = HashMap::new();
        let mut full = Ok(());
        recording.trie.for_each_leaf(|node, path, _| {
            let (Some(known), true) = (by_node.get(&node.0), full.is_ok()) else { return };
            full = conversion.add(path, known.values[kind as usize]).map(|here| {
                if let Some(here) = here {
                    values.add(here, &known.values);
                    values.add_inuse(here, known.inuse);
                    places.insert(node, here);
                }
            });
        });
        full?;
        if kind == ValueKind::InuseSpace {
            let stats = &recording.stats;
            let recorded = stats.begun_ns..stats.begun_ns.saturating_add(stats.duration_ns);
            values.history = InuseHistory::of(&heap.history, &recorded, |node| places.get(&node).copied());
        }
        let mut saved = conversion.finish();
        saved.values = Some(values);
        Ok(saved)
    }
}

/// Estimated bytes of lost samples, and the reason.
#[must_use]
pub fn lost_bytes(recording: &Recording, heap: &HeapValues) -> Option<(String, u64)> {
    let losses = &recording.heap.as_ref()?.losses;
    let classes = losses.allocations.iter();
    let bytes = classes.fold(0u64, |sum, (count, bytes)| sum.saturating_add(heap.rate.weigh(*count, *bytes)));
    (bytes > 0).then(|| (RING_FULL.to_owned(), bytes))
}

/// Reason for lost allocation samples.
pub const RING_FULL: &str = "the ring was full";
