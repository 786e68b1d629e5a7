//! Orders values of all rings by time: each ring is in order, and rings are read one after another.
//!
//! Input: values with their times. Output: the values of a batch, sorted once. Values with equal times keep their
//! order.

use super::super::ring::record::SampleId;

/// Values not yet released.
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct Queue<T> {
    values: Vec<(SampleId, T)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { values: Vec::new() }
    }
}

impl<T> Queue<T> {
    /// Adds a value.
    pub(in crate::sources::linux::perf) fn push(&mut self, id: SampleId, value: T) {
        self.values.push((id, value));
    }

    /// All values, in order of arrival.
    pub(in crate::sources::linux::perf) fn iter(&self) -> impl Iterator<Item = &(SampleId, T)> {
        self.values.iter()
    }

    /// Releases all values, in time order. A later batch may hold earlier ones.
    pub(in crate::sources::linux::perf) fn release_all(&mut self) -> Vec<(SampleId, T)> {
        self.release_before(u64::MAX)
    }

    /// Releases the values before this time, in time order (the watermark: all rings were read up to it).
    pub(in crate::sources::linux::perf) fn release_before(
        &mut self,
        watermark_ns: u64,
    ) -> Vec<(SampleId, T)> {
        self.values.sort_by_key(|(id, _)| id.time_ns);
        if watermark_ns == u64::MAX {
            return std::mem::take(&mut self.values);
        }
        let due = self.values.partition_point(|(id, _)| id.time_ns < watermark_ns);
        let later = self.values.split_off(due);
        std::mem::replace(&mut self.values, later)
    }

    /// Takes back the empty buffer of a batch, if the queue has none.
    pub(in crate::sources::linux::perf) fn reuse(&mut self, buffer: Vec<(SampleId, T)>) {
        if self.values.capacity() == 0 {
            self.values = buffer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(time_ns: u64) -> SampleId {
        SampleId { time_ns, ..SampleId::default() }
    }

    fn values(released: Vec<(SampleId, u32)>) -> Vec<u32> {
        released.into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn values_are_released_up_to_the_watermark_in_time_order() {
        let mut queue = Queue::default();
        for (time_ns, value) in [(30, 3), (10, 1), (40, 4), (20, 2)] {
            queue.push(id(time_ns), value);
        }
        assert_eq!(values(queue.release_before(30)), [1, 2], "the watermark itself waits");
        queue.push(id(35), 5);
        assert_eq!(values(queue.release_before(36)), [3, 5]);
        assert_eq!(values(queue.release_all()), [4]);
    }

    #[test]
    fn values_with_equal_times_keep_their_order() {
        let mut queue = Queue::default();
        for value in 0..100 {
            queue.push(id(u64::from(value % 3)), value);
        }
        let released = values(queue.release_all());
        assert!(released.chunk_by(|a, b| a % 3 == b % 3).all(|same| same.is_sorted()), "{released:?}");
    }
}
