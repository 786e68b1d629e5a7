//! Samples that the kernel dropped, or did not take while throttled: their number and CPU time.
//!
//! Input: loss and throttle records, numbers of samples that did not fit into rings. Output: dropped samples of a
//! batch, and their time. Their process is unknown; they are attributed in proportion to the samples that arrived.

use hashbrown::HashMap;

use super::super::ring::record::{PerfRecord, SampleId};
use super::share::prefix_share_ns;

/// Dropped samples, and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DroppedSamples {
    pub(super) samples: u64,
    /// Of these, samples not taken while their event was throttled.
    pub(super) throttled: u64,
    ns: u64,
}

impl DroppedSamples {
    /// The time of this many of them.
    pub(super) fn part_ns(self, samples: u64) -> u64 {
        prefix_share_ns(self.ns, self.samples, samples)
    }
}

/// Samples dropped since the last batch that had samples.
#[derive(Debug)]
pub(super) struct Losses {
    /// Nanoseconds between two samples of a thread that runs all the time.
    period_ns: u64,
    dropped: DroppedSamples,
    /// Records read in the batch, and lost records of any kind, if the kernel does not count samples separately.
    records: u64,
    lost_records: u64,
    /// By CPU: start of the throttling of its event.
    throttled_since_ns: HashMap<u32, u64>,
}

impl Losses {
    pub(super) fn new(period_ns: u64) -> Losses {
        Losses {
            period_ns,
            dropped: DroppedSamples::default(),
            records: 0,
            lost_records: 0,
            throttled_since_ns: HashMap::new(),
        }
    }

    /// Reads a record of any kind.
    pub(super) fn push_record(&mut self, id: SampleId, record: &PerfRecord<'_>) {
        self.records += 1;
        match record {
            PerfRecord::Lost(records) => self.lost_records += records,
            PerfRecord::Throttle => {
                self.throttled_since_ns.insert(id.cpu, id.time_ns);
            }
            PerfRecord::Unthrottle => {
                if let Some(since_ns) = self.throttled_since_ns.remove(&id.cpu) {
                    let samples = id.time_ns.saturating_sub(since_ns) / self.period_ns;
                    self.drop_samples(samples, self.period_ns);
                    self.dropped.throttled += samples;
                }
            }
            _ => {}
        }
    }

    /// Adds dropped samples, with this period.
    pub(super) fn drop_samples(&mut self, samples: u64, period_ns: u64) {
        self.dropped.samples += samples;
        self.dropped.ns += samples * period_ns;
    }

    /// Discards the counts of `PERF_RECORD_LOST`: the kernel counts lost samples separately.
    pub(super) fn ignore_lost_records(&mut self) {
        self.lost_records = 0;
    }

    /// The dropped samples of a batch, which has this many `samples`. If the kernel does not count lost samples
    /// separately, their share among lost records is that among the records that were read. A batch without samples
    /// keeps them for the next one, whose samples show their process, unless it is the `last`.
    pub(super) fn end_batch(&mut self, samples: u64, last: bool) -> DroppedSamples {
        let guessed = self.lost_records.saturating_mul(samples) / self.records.max(1);
        self.drop_samples(guessed, self.period_ns);
        (self.records, self.lost_records) = (0, 0);
        if samples == 0 && !last { DroppedSamples::default() } else { std::mem::take(&mut self.dropped) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push_record(losses: &mut Losses, time_ns: u64, cpu: u32, record: &PerfRecord<'_>) {
        losses.push_record(SampleId { time_ns, cpu, ..SampleId::default() }, record);
    }

    #[test]
    fn each_cpu_is_throttled_separately() {
        let mut losses = Losses::new(1_000_000);
        push_record(&mut losses, 1_000_000, 0, &PerfRecord::Throttle);
        push_record(&mut losses, 5_000_000, 1, &PerfRecord::Throttle);
        push_record(&mut losses, 4_000_000, 0, &PerfRecord::Unthrottle);
        push_record(&mut losses, 7_000_000, 1, &PerfRecord::Unthrottle);
        push_record(&mut losses, 9_000_000, 1, &PerfRecord::Unthrottle);
        assert_eq!(
            losses.end_batch(1, false),
            DroppedSamples { samples: 3 + 2, throttled: 3 + 2, ns: 5_000_000 }
        );
    }

    #[test]
    fn dropped_samples_are_kept_until_others_show_their_process() {
        let mut losses = Losses::new(1_000_000);
        losses.drop_samples(5, 1_000_000);
        assert_eq!(losses.end_batch(0, false).samples, 0);
        assert_eq!(losses.end_batch(1, false).samples, 5);
        losses.drop_samples(5, 1_000_000);
        assert_eq!(losses.end_batch(0, true).samples, 5, "no other batch comes");
    }

    #[test]
    fn without_sample_counts_lost_records_have_the_usual_share_of_samples() {
        let mut losses = Losses::new(1_000_000);
        for time_ns in 0..99 {
            push_record(&mut losses, time_ns, 0, &PerfRecord::SwitchIn { direct: false });
        }
        push_record(&mut losses, 99, 0, &PerfRecord::Lost(1_000));
        assert_eq!(losses.end_batch(10, false).samples, 100);
        push_record(&mut losses, 100, 0, &PerfRecord::Lost(1_000));
        losses.ignore_lost_records();
        assert_eq!(losses.end_batch(10, false).samples, 0);
    }
}
