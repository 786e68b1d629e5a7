//! Losses over time: cause, amount, and the interval that contains each.

/// Lost time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Cause.
    pub reason: &'static str,
    /// It occurred after this time, nanoseconds since the recording began.
    pub since_ns: u64,
    /// It was noticed at this time.
    pub at_ns: u64,
    /// Amount, nanoseconds.
    pub lost_ns: u64,
}

/// The losses of a recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses(Vec<Loss>);

impl Losses {
    pub(super) fn push(&mut self, loss: Loss) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(self.0.len() / 8 + GROWTH);
        }
        self.0.push(loss);
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Loss>()
    }

    /// All losses, by time.
    pub(super) fn by_time(&self) -> Vec<Loss> {
        let mut losses = self.0.clone();
        losses.sort_by_key(|loss| (loss.at_ns, loss.since_ns, loss.reason));
        losses
    }

    /// Merges losses of one cause that were noticed within one step of `step_ns`.
    pub(super) fn reduce(&mut self, step_ns: u64) {
        let step = |loss: &Loss| loss.at_ns / step_ns.max(1);
        self.0.sort_by_key(|loss| (loss.reason, step(loss), loss.at_ns));
        self.0.dedup_by(|later, kept| {
            let same = (later.reason, step(later)) == (kept.reason, step(kept));
            if same {
                kept.at_ns = later.at_ns;
                kept.since_ns = kept.since_ns.min(later.since_ns);
                kept.lost_ns = kept.lost_ns.saturating_add(later.lost_ns);
            }
            same
        });
        self.0.shrink_to_fit();
    }
}

/// Least growth of the buffer, in addition to an eighth.
const GROWTH: usize = 16;
