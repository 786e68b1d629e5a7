//! Sampled allocations, kept by stack node until they are freed.
//!
//! Input: the events of an allocation source, and each stack's node in the trie; output: [`HeapRecording`]. Each
//! sampled allocation is one count in the trie, whatever its weight.

use crate::heap::{HeapModel, SamplingRate};
use crate::recording::HeapRecording;
use crate::sources::pushed::{AllocationLosses, SampledAllocation, SampledFree, SourceEvent};
use crate::trie::NodeId;

/// Sampled allocations of a recording; `None` if the source reports none.
#[derive(Default)]
pub(super) struct SampledHeap(Option<HeapRecording>);

impl SampledHeap {
    /// `every_bytes`: allocations are sampled once per this many bytes, if at all. Blocks count as in use at the end if
    /// they are at least `age_min_ns` old.
    pub(super) fn new(every_bytes: Option<u64>, age_min_ns: u64) -> SampledHeap {
        SampledHeap(every_bytes.map(|every_bytes| HeapRecording {
            model: HeapModel::new(SamplingRate::new(every_bytes)).with_age_min_ns(age_min_ns),
            losses: AllocationLosses::default(),
        }))
    }

    /// Keeps an allocation of a process, with the node of its stack.
    pub(super) fn allocate(
        &mut self,
        pid: u32,
        allocation: SampledAllocation,
        at_ns: u64,
        node: Option<NodeId>,
    ) {
        let Some(heap) = &mut self.0 else { return };
        let SampledAllocation { block, bytes, untracked } = allocation;
        if untracked {
            heap.model.allocate_untracked(bytes, node);
        } else {
            heap.model.allocate(pid, block, bytes, at_ns, node);
        }
    }

    /// Handles a free of sampled memory or of a part of it, or the revocation of one.
    pub(super) fn handle_free(&mut self, pid: u32, at_ns: u64, event: &SourceEvent) {
        let Some(heap) = &mut self.0 else { return };
        match *event {
            SourceEvent::Free(SampledFree { block, may_be_inherited }) => {
                heap.model.free(pid, block, at_ns, may_be_inherited);
            }
            SourceEvent::Shrink { block, bytes } => heap.model.shrink(pid, block, bytes, at_ns),
            SourceEvent::Restore { block } => heap.model.restore(pid, block),
            _ => {}
        }
    }

    /// Handles the exit or exec of a process.
    pub(super) fn end_process(&mut self, pid: u32, at_ns: u64) {
        if let Some(heap) = &mut self.0 {
            heap.model.end_process(pid, at_ns);
        }
    }

    /// The allocations that are live at the end.
    pub(super) fn finish(self) -> Option<HeapRecording> {
        self.0
    }
}
