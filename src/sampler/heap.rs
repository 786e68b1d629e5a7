//! Sampled allocations: walked and inserted as any sample, then kept by their nodes until they are freed.
//!
//! Input: the events of a source of allocations; output: [`HeapRecording`]. Each sampled allocation is one count in the
//! trie, whatever it stands for.

use super::recorder::Recorder;
use super::sample::Sample;
use super::weights::periods_ns;
use crate::addr::LookupAvma;
use crate::heap::{HeapModel, SamplingRate};
use crate::recording::HeapRecording;
use crate::sources::pushed::{AllocationLosses, SampledAllocation, SampledFree, SourceEvent};
use crate::sources::{Capture, Observed};
use crate::walk::Frames;

/// As much of a stack as captures of allocations may have: the source decides.
const STACK_MAX_BYTES: usize = 64 << 10;

impl Recorder<'_> {
    /// Expects allocations that are sampled once in so many bytes, if the source reports any.
    pub(super) fn begin_heap(&mut self, every_bytes: Option<u64>) {
        self.heap = every_bytes.map(|every_bytes| HeapRecording {
            model: HeapModel::new(SamplingRate::new(every_bytes)),
            losses: AllocationLosses::default(),
        });
    }

    /// Walks the stack of an allocation and keeps that by its node. Gives the capture back.
    pub(super) fn take_allocation(
        &mut self,
        process: &mut dyn Observed,
        pid: u32,
        sample: Sample,
        allocation: SampledAllocation,
        frames: &mut Frames,
    ) -> Box<Capture> {
        self.stats.samples_pushed += 1;
        let (id, at_ns) = (sample.thread, sample.at_ns);
        let (ended, _) = self.walk(process, id, &sample.capture, STACK_MAX_BYTES, frames);
        self.ask_name(process, id);
        // Where the allocator returns to: the call is in front of it.
        if let Some(leaf) = frames.addresses.first_mut() {
            *leaf = LookupAvma(leaf.0.saturating_sub(1));
        }
        let weight_ns = periods_ns(1, self.options.hz);
        let node = self.insert(&sample, ended, frames, weight_ns, false);
        if let Some(heap) = &mut self.heap {
            let SampledAllocation { pointer, bytes, untracked } = allocation;
            if untracked {
                heap.model.allocate_untracked(bytes, node);
            } else {
                heap.model.allocate(pid, pointer, bytes, at_ns, node);
            }
        }
        sample.capture
    }

    /// Takes a free of sampled memory, or takes one back.
    pub(super) fn take_free(&mut self, pid: u32, at_ns: u64, event: &SourceEvent) {
        let Some(heap) = &mut self.heap else { return };
        match *event {
            SourceEvent::Free(SampledFree { pointer, may_be_inherited }) => {
                heap.model.free(pid, pointer, at_ns, may_be_inherited);
            }
            SourceEvent::Restore { pointer } => heap.model.restore(pid, pointer),
            _ => {}
        }
    }

    /// A process has ended, or runs another program.
    pub(super) fn end_heap(&mut self, pid: u32) {
        if let Some(heap) = &mut self.heap {
            heap.model.end_process(pid);
        }
    }
}
