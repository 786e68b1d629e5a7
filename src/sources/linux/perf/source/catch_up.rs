//! Rings are read between the records of a batch, too: to walk one may take long, with images of programs that nobody has
//! read yet, and longest on a machine that is loaded.
//!
//! Input: time; output: records in the queue of the next batch (`stack/read_ahead.rs`: how many), and resident pages
//! of files within their bound.

/// While a batch is walked rings are polled this often, nanoseconds.
const POLL_NS: u64 = 2_000_000;

/// When rings were polled.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    polled_ns: u64,
}

impl CatchUp {
    /// Whether it is time to poll rings.
    pub(super) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns.saturating_sub(self.polled_ns) >= POLL_NS;
        if is_due {
            self.polled_ns = now_ns;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_polled_at_intervals() {
        let mut catch_up = CatchUp::default();
        let polls = (1..=1_000).filter(|at| catch_up.is_due(POLL_NS + at * POLL_NS / 10)).count();
        assert_eq!(polls, 100);
    }
}
