//! When a recorder reads the images of processes, and whether those that it has are those of a sample.

use super::super::image_refresh::ImageRefresh;
use super::super::recorded_process::ProcessIndex;
use super::super::sample::Sample;
use super::Recorder;
use crate::images::LibraryCounts;
use crate::recording::timeline::EventKind;
use crate::sources::Observed;

impl Recorder<'_> {
    /// The libraries that a process has loaded and unloaded now, where that is known.
    pub(in super::super) fn library_counts(
        &self,
        of: ProcessIndex,
        process: &mut dyn Observed,
    ) -> Option<LibraryCounts> {
        self.processes.refresh(of)?.library_counts(process)
    }

    /// Whether the images of a sample's process are known as they were when it was taken.
    pub(super) fn has_images_of(&self, sample: &Sample) -> bool {
        let of = self.threads.get(&sample.thread).map(|account| account.process);
        of.and_then(|of| self.processes.refresh(of)).is_none_or(|refresh| refresh.is_of(sample))
    }

    /// Reads the images of a process; returns whether they changed.
    pub fn read_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) -> bool {
        let changed = self.processes.read_images(of, process, self.clock);
        self.note_image_loads();
        changed
    }

    /// Reads the images if they changed or may have. Reads are rate-limited, so not every one of many changes
    /// causes one.
    pub fn refresh_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        let (now_ns, wanted) = (self.clock.now_ns(), self.has_deferred(of));
        if self.processes.refresh(of).is_some_and(|refresh| refresh.is_due(now_ns, wanted)) {
            self.read_images(of, process);
        }
    }

    /// Reads images known to have changed, at any cost: deferred samples cannot wait longer.
    pub(in super::super) fn read_wanted_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        if self.has_deferred(of) {
            self.read_changed_images(of, process);
        }
    }

    /// Reads images known to have changed, at any cost: the stack about to be walked will be reused for long.
    pub(in super::super) fn read_changed_images(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        if self.processes.refresh(of).is_some_and(ImageRefresh::has_changed) {
            self.read_images(of, process);
        }
    }

    /// Handles a reported change of images. Earlier samples are walked first.
    pub fn images_changed(&mut self, of: ProcessIndex, process: &mut dyn Observed) {
        self.processes.note_change(of);
        self.refresh_images(of, process);
    }

    /// Marks the images of a process as unread: the next walk reads them.
    pub(in super::super) fn forget_images_read(&mut self, of: ProcessIndex) {
        self.processes.forget_images_read(of);
    }

    /// Number of a process's current address space.
    pub(super) fn space(&self, of: ProcessIndex) -> u32 {
        self.processes.images_of(of).map_or(0, |images| images.space())
    }

    /// Records files loaded by processes as events.
    pub(super) fn note_image_loads(&mut self) {
        for load in self.processes.take_loads() {
            self.stacks.add_event(EventKind::ImageLoad, load.pid, load.at_ns, &load.path);
        }
    }
}
