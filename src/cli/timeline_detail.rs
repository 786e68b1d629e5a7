//! Resolution of sample times in the timeline, for the summary; empty if each sample has its own
//! time.

use super::text::{duration, plural};
use crate::recording::Timeline;
use crate::recording::timeline::Detail;

/// The line, by cause; `None` if all times are kept.
#[must_use]
pub fn summary_line(timeline: &Timeline, hz: u32) -> Option<String> {
    let mut causes = Vec::new();
    match timeline.detail() {
        Detail::Samples => {}
        Detail::Runs => causes.push("samples in a row with one stack have one time".to_owned()),
        Detail::Steps(step_ns) => causes.push(format!("in steps of {}", duration(step_ns))),
        Detail::TimesOnly(step_ns) => {
            causes.push(format!("in steps of {}, without stacks", duration(step_ns)));
        }
    }
    let dropped = (u128::from(timeline.dropped_ns()) * u128::from(hz)).div_ceil(1_000_000_000) as u64;
    if dropped > 0 {
        causes.push(format!("none for {} of threads beyond the limit", plural(dropped, "sample")));
    }
    if timeline.events_dropped() > 0 {
        causes.push(format!("none for {}", plural(timeline.events_dropped(), "event")));
    }
    let bytes = size(timeline.memory_max_bytes());
    let why = format!("--timeline-memory {bytes} is full; a larger one keeps more");
    (!causes.is_empty()).then(|| format!("{}: {why}", causes.join(", ")))
}

/// A size in the syntax of the option.
fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::timeline::{EventKind, TimedSample};
    use crate::trie::NodeId;

    fn sample(at_ns: u64, node: NodeId) -> TimedSample {
        TimedSample { at_ns, node, weight_ns: 1_000_000, cpu: None }
    }

    /// A thread with a different stack at each sample, in this much memory.
    fn timeline(memory_bytes: usize, samples: u64) -> Timeline {
        let mut timeline = Timeline::new(0, 1000, memory_bytes);
        let thread = timeline.add_thread(1, 1, 0, true);
        for at in 1..=samples {
            timeline.add_sample(thread, sample(at * 1_000_000, NodeId(1 + (at % 5) as u32)));
        }
        timeline
    }

    #[test]
    fn each_cause_is_named_with_the_limit() {
        assert_eq!(summary_line(&timeline(64 << 10, 100), 1000), None);
        assert_eq!(
            summary_line(&timeline(64 << 10, 100_000), 1000).as_deref(),
            Some("in steps of 128 ms: --timeline-memory 64K is full; a larger one keeps more")
        );
        let mut many = timeline(64 << 10, 1);
        for id in 2..2000 {
            let thread = many.add_thread(id, 1, 0, false);
            many.add_sample(thread, sample(5_000_000, NodeId(1)));
        }
        (0..1000).for_each(|at| many.add_event(EventKind::Exec, 1, at, "sh"));
        let said = summary_line(&many, 1000).expect("something is left out");
        assert!(said.contains(" samples of threads beyond the limit, none for "), "{said}");
        assert!(said.contains(" events: --timeline-memory 64K is full"), "{said}");
    }

    #[test]
    fn sizes_use_the_syntax_of_the_option() {
        assert_eq!([64 << 20, 65 << 10, 2 << 30, 100_001].map(size), ["64M", "65K", "2G", "100001"]);
    }
}
