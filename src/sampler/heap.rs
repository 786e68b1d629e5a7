//! Sampled allocations: kept by the nodes of their stacks until they are freed.
//!
//! Input: the events of a source of allocations, and where each stack is in the trie; output: [`HeapRecording`]. Each
//! sampled allocation is one count in the trie, whatever it stands for.

use crate::heap::{HeapModel, SamplingRate};
use crate::recording::HeapRecording;
use crate::sources::pushed::{AllocationLosses, SampledAllocation, SampledFree, SourceEvent};
use crate::trie::NodeId;

/// The sampled allocations of a recording; none where its source reports none.
#[derive(Default)]
pub(super) struct SampledHeap(Option<HeapRecording>);

impl SampledHeap {
    /// Of allocations that are sampled once in so many bytes, if any are.
    pub(super) fn new(every_bytes: Option<u64>) -> SampledHeap {
        SampledHeap(every_bytes.map(|every_bytes| HeapRecording {
            model: HeapModel::new(SamplingRate::new(every_bytes)),
            losses: AllocationLosses::default(),
        }))
    }

    /// Keeps an allocation of a process, whose stack is this node.
    pub(super) fn allocate(
        &mut self,
        pid: u32,
        allocation: SampledAllocation,
        at_ns: u64,
        node: Option<NodeId>,
    ) {
        let Some(heap) = &mut self.0 else { return };
        let SampledAllocation { pointer, bytes, untracked } = allocation;
        if untracked {
            heap.model.allocate_untracked(bytes, node);
        } else {
            heap.model.allocate(pid, pointer, bytes, at_ns, node);
        }
    }

    /// Takes a free of sampled memory, or takes one back.
    pub(super) fn take_free(&mut self, pid: u32, at_ns: u64, event: &SourceEvent) {
        let Some(heap) = &mut self.0 else { return };
        match *event {
            SourceEvent::Free(SampledFree { pointer, may_be_inherited }) => {
                heap.model.free(pid, pointer, at_ns, may_be_inherited);
            }
            SourceEvent::Restore { pointer } => heap.model.restore(pid, pointer),
            _ => {}
        }
    }

    /// A process has ended, or runs another program.
    pub(super) fn end_process(&mut self, pid: u32) {
        if let Some(heap) = &mut self.0 {
            heap.model.end_process(pid);
        }
    }

    /// What is left at the end.
    pub(super) fn finish(self) -> Option<HeapRecording> {
        self.0
    }
}
