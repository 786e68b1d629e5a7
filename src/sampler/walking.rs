//! Walking a capture with the images it needs, and keeping these up to date: they are
//! read again when a stack leads to code that is in none.

use super::Recording;
use crate::images::{ImageCode, TargetCode};
use crate::sources::{Capture, Fault, ThreadId};
use crate::walk::{self, Ended, How, StackBytes};

/// Mappings are read again this often to notice images that were unloaded.
const REFRESH_IMAGES_NS: u64 = 1_000_000_000;
/// Mappings are read again this long after the last time at the earliest when a stack
/// leads out of the known code, and less and less often while that changes nothing.
const RETRY_IMAGES_NS: u64 = 2_000_000;
const RETRY_IMAGES_MAX_NS: u64 = 50_000_000;
/// Tries to list the mappings at one time.
const LIST_TRIES: u32 = 3;
/// Times that one stack is walked to read the code made at run time that it leads to: each leads
/// further up.
const MADE_ROUNDS_MAX: u32 = 64;
/// Reading mappings may take this share of the time, at most: 1/20.
const REFRESH_COST: u64 = 20;

impl Recording<'_> {
    /// Walks a capture into `self.frames`, with the images it needs.
    pub(super) fn walk(&mut self, id: ThreadId, capture: &Capture) -> Ended {
        if !self.images.contains(capture.registers.pc()) {
            self.retry_images();
        }
        let ended = self.walk_with_known_images(id, capture);
        // A torn chain, or a library that was loaded since?
        if matches!(ended, Ended::BadFrame | Ended::Undescribed | Ended::Scanned) && self.retry_images() {
            return self.walk_with_known_images(id, capture);
        }
        ended
    }

    pub(super) fn walk_with_known_images(&mut self, id: ThreadId, capture: &Capture) -> Ended {
        let sp = capture.registers.sp();
        let stack = StackBytes { base: capture.stack_base, bytes: &capture.stack };
        if self.made.is_old(self.clock.now_ns()) {
            let made = &self.made;
            self.unwinder.forget(&|at| made.contains(at));
        }
        self.made.begin_walk();
        let mut rounds_left = MADE_ROUNDS_MAX;
        let Some(account) = self.accounts.get_mut(&id) else { return Ended::BadFrame };
        loop {
            let code = TargetCode { images: ImageCode(&self.images), made: &self.made };
            let input = walk::Input {
                stack,
                stack_top: account.stack_top,
                stack_limit: capture.stack_limit,
                fp_always: self.target.process().fp_always,
                max_depth: self.options.max_depth,
                code_mask: self.target.process().code_mask,
                code: &code,
            };
            let how = if self.target.process().cfi { self.options.unwind } else { How::FramePointer };
            let frames = &mut self.frames;
            let walked = walk::unwind(how, &capture.registers, &input, &mut self.unwinder, frames);
            let target = &mut *self.target;
            let mut read = |at, into: &mut [u8]| target.read_memory(at, into).unwrap_or(0);
            if rounds_left > 0 && self.made.fill(&mut read) {
                rounds_left -= 1;
                continue;
            }
            let needed = walked.reached.0.saturating_sub(sp.0) as usize;
            let max_bytes = self.budget.window_max_bytes();
            let copied = stack.end().0.saturating_sub(sp.0) as usize;
            account.window.fit(&walked, needed, copied, max_bytes);
            // A thread that already ran when we came: where was it born?
            if walked.ended.is_complete() || account.stack_top.is_some() || account.birth_searches_left == 0 {
                return walked.ended;
            }
            account.birth_searches_left -= 1;
            account.stack_top =
                walk::find_birth(capture.registers.arch(), stack, walked.reached, &ImageCode(&self.images));
            if account.stack_top.is_none() {
                account.window.reach(needed.saturating_add(walk::SEARCH_BYTES as usize), max_bytes);
                return walked.ended;
            }
        }
    }

    /// Reads the images again unless that was done just now; whether they changed.
    fn retry_images(&mut self) -> bool {
        let since_ns = self.clock.now_ns().saturating_sub(self.images_read_ns);
        since_ns >= self.images_wait_ns && self.read_images()
    }

    /// Reads the images that the target says have changed. In a storm of changes not each
    /// time: what reading costs is limited, and the next tick that may will.
    pub(super) fn images_changed(&mut self) {
        // Those captured before belong to the images of before.
        self.walk_captured();
        self.settle_postponed(None);
        self.images_changed = true;
        if self.images_are_old() {
            self.read_images();
        }
    }

    /// Brings the images up to date; whether they changed. A failure leaves the known
    /// ones: later addresses may then be unknown, which the summary shows.
    pub(super) fn read_images(&mut self) -> bool {
        let before_ns = self.clock.now_ns();
        let mut mappings = std::mem::take(&mut self.mappings);
        let mut changed = false;
        let mut listed = self.target.mappings(&mut mappings);
        for _ in 1..LIST_TRIES {
            // A list in motion is mostly whole a moment later. Without images there are
            // no names, and the walk cannot tell a leaf without a frame record.
            if matches!(listed, Err(Fault::Transient(_))) {
                listed = self.target.mappings(&mut mappings);
            }
        }
        if listed.is_ok() {
            let target = &mut self.target;
            changed = self.images.update(&mappings, &mut |mapping| target.image_bytes(mapping));
            self.made.update(&mappings, &self.images);
            if changed {
                self.unwinder.images_changed();
            }
        }
        self.images_fruitless = if changed { 0 } else { self.images_fruitless.saturating_add(1) };
        self.images_changed = false;
        self.mappings = mappings;
        self.images_read_ns = self.clock.now_ns();
        let cost_ns = (self.images_read_ns - before_ns).saturating_mul(REFRESH_COST);
        self.images_cost_ns = cost_ns;
        // Torn stacks ask again and again: less often the longer nothing changes.
        let backed_off_ns = if changed { 0 } else { (self.images_wait_ns * 2).min(RETRY_IMAGES_MAX_NS) };
        self.images_wait_ns = backed_off_ns.max(cost_ns).max(RETRY_IMAGES_NS);
        changed
    }

    /// Whether it is time to read the images: they have changed, or may have.
    pub(super) fn images_are_old(&self) -> bool {
        let since_ns = self.clock.now_ns().saturating_sub(self.images_read_ns);
        since_ns
            >= if self.images_changed {
                self.images_cost_ns
            } else if self.postponed.is_empty() {
                self.images_wait_ns.max(REFRESH_IMAGES_NS)
            } else {
                self.images_wait_ns
            }
    }
}
