//! The set of sampled blocks, with a filter in front: distinguishes the free of a sampled block from all
//! others. Lock-free: a thread that stops at any point blocks no other.
//!
//! The filter has a counter for each hash of an address: 0 means "not in the set", and most frees read nothing
//! else. The set is a table with linear probing in fixed memory provided by the caller.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Number of the filter's counters: 32 KiB, which stay in the processor's cache.
pub const FILTER_SIZE: usize = 1 << FILTER_BITS;

/// Width of a counter's index, bits.
pub const FILTER_BITS: u32 = 15;

/// Lowest address bit that `filter_index` uses; it takes `FILTER_BITS` of them. Adjacent blocks have adjacent
/// counters, so that a program with good locality reads few cache lines.
pub const FILTER_SHIFT: u32 = 4;

/// A deleted slot: a lookup continues, an insertion may reuse it.
const DELETED: u64 = 1;

/// Slots that a lookup reads from the first one on, and then at each of some other places. With half of the slots in use,
/// insertions hardly ever fail.
const FIRST_PROBES: usize = 64;
const OTHER_PROBES: usize = 8;
const OTHER_PLACES: u64 = 8;

/// The counter of an address. The entry points compute the same in assembly.
pub const fn filter_index(address: u64) -> usize {
    (address >> FILTER_SHIFT) as usize & (FILTER_SIZE - 1)
}

/// Addresses of sampled blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockSet<'a> {
    slots: &'a [AtomicU64],
    filter: &'a [AtomicU8; FILTER_SIZE],
}

impl<'a> BlockSet<'a> {
    /// A set in this memory, which must be zero. The number of slots is a power of two.
    pub fn new(slots: &'a [AtomicU64], filter: &'a [AtomicU8; FILTER_SIZE]) -> Self {
        Self { slots, filter }
    }

    /// Adds an address; returns whether it is in the set now, as there may be no slot for it.
    pub fn insert(&self, address: u64) -> bool {
        if self.find(address).is_some() {
            return true;
        }
        self.add_to_filter(address);
        for slot in self.probes(address) {
            let mut found = slot.load(Relaxed);
            while found <= DELETED {
                match slot.compare_exchange_weak(found, address, Relaxed, Relaxed) {
                    Ok(_) => return true,
                    Err(now) => found = now,
                }
            }
        }
        self.take_from_filter(address);
        false
    }

    /// Whether an address is in the set.
    pub fn contains(&self, address: u64) -> bool {
        self.find(address).is_some()
    }

    /// Removes an address; returns whether it was in the set.
    pub fn remove(&self, address: u64) -> bool {
        let Some(slot) = self.find(address) else { return false };
        // If two threads free one block, which is a bug of the program, only one of them removes
        // it.
        let is_removed = slot.compare_exchange(address, DELETED, Relaxed, Relaxed).is_ok();
        if is_removed {
            self.take_from_filter(address);
        }
        is_removed
    }

    fn find(&self, address: u64) -> Option<&'a AtomicU64> {
        if address <= DELETED || self.counter(address).load(Relaxed) == 0 {
            return None;
        }
        self.probes(address)
            .map(|slot| (slot, slot.load(Relaxed)))
            .take_while(|(_, found)| *found != 0)
            .find(|(_, found)| *found == address)
            .map(|(slot, _)| slot)
    }

    fn probes(&self, address: u64) -> impl Iterator<Item = &'a AtomicU64> + use<'a> {
        let slots = self.slots;
        let mask = slots.len().wrapping_sub(1);
        // Blocks of one page of the program share a page of the table, so that few pages of it are touched: allocators have
        // classes of 8 bytes. Pages that are full of them fill their part of the table, and others find no slot in it.
        let mixed = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let page = mixed(address >> 12);
        let first = (page << 9 | (page >> 23 ^ address >> 3) & 0x1ff) as usize;
        let others = (1..=OTHER_PLACES).flat_map(move |place| {
            let first =
                (mixed(address.rotate_left(29) ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93)) << 3) as usize;
            (0..OTHER_PROBES).map(move |step| first.wrapping_add(step))
        });
        let all = (0..FIRST_PROBES).map(move |step| first.wrapping_add(step)).chain(others);
        all.filter_map(move |at| slots.get(at & mask))
    }

    fn counter(&self, address: u64) -> &AtomicU8 {
        // In bounds: the index has FILTER_BITS bits.
        &self.filter[filter_index(address)]
    }

    fn add_to_filter(&self, address: u64) {
        let _ = self.counter(address).fetch_update(Relaxed, Relaxed, |count| count.checked_add(1));
    }

    /// Decrements a counter. A saturated counter has lost its count, and stays.
    fn take_from_filter(&self, address: u64) {
        let _ = self.counter(address).fetch_update(Relaxed, Relaxed, |count| {
            if count == u8::MAX { None } else { count.checked_sub(1) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::HashSet;
    use std::vec::Vec;

    fn memory(slots: usize) -> (Vec<AtomicU64>, Box<[AtomicU8; FILTER_SIZE]>) {
        let filter: Vec<AtomicU8> = (0..FILTER_SIZE).map(|_| AtomicU8::new(0)).collect();
        ((0..slots).map(|_| AtomicU64::new(0)).collect(), filter.try_into().expect("as many"))
    }

    /// Reproducible random numbers.
    fn numbers(mut seed: u64) -> impl FnMut() -> u64 {
        move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 20
        }
    }

    #[test]
    fn contains_what_was_inserted_and_not_removed() {
        let (slots, filter) = memory(1 << 12);
        let set = BlockSet::new(&slots, &filter);
        let mut truth = HashSet::new();
        let mut next = numbers(5);
        for _ in 0..200_000 {
            let address = (next() % 3000) * 16 + 0x7f00_0000_0000;
            if next().is_multiple_of(2) {
                // Up to 3000 of 4096 slots: a few insertions fail.
                if set.insert(address) {
                    truth.insert(address);
                }
            } else {
                assert_eq!(set.remove(address), truth.remove(&address), "{address:#x}");
            }
        }
        for step in 0..3000 {
            let address = step * 16 + 0x7f00_0000_0000;
            assert_eq!(set.contains(address), truth.contains(&address));
        }
        for address in truth {
            assert!(set.remove(address));
        }
        assert!(filter.iter().all(|count| matches!(count.load(Relaxed), 0 | u8::MAX)));
    }

    #[test]
    fn a_full_set_refuses_insertions_and_keeps_its_content() {
        let (slots, filter) = memory(64);
        let set = BlockSet::new(&slots, &filter);
        let inserted: Vec<u64> = (1..=100).map(|n| n * 32).filter(|address| set.insert(*address)).collect();
        assert_eq!(inserted.len(), 64);
        assert!(inserted.iter().all(|address| set.contains(*address)));
        assert!(set.remove(inserted[0]) && set.insert(5_000_000 * 16));
        assert!(!set.insert(6_000_000 * 16) && !set.contains(6_000_000 * 16));
    }

    #[test]
    fn half_full_it_has_a_slot_for_each() {
        let mut next = numbers(9);
        let mut random: Vec<u64> = (0..1 << 19).map(|_| (next() << 4) | 0x10).collect();
        random.dedup();
        // Pages full of small blocks, as allocators with a class for each size have them: side by side, and scattered.
        let pages = |size: u64, page: fn(u64) -> u64| {
            let page_of = move |number: u64| 0x7f00_0000_0000 + (page(number) << 12);
            (0..1u64 << 19)
                .map(move |number| page_of((number * size) >> 12) + ((number * size) & 0xfff))
                .collect()
        };
        let scattered = |number: u64| (number * 1009) & 0xff_ffff;
        for (blocks, what) in [
            (random, "random"),
            (pages(8, |number| number), "8 bytes"),
            (pages(8, scattered), "8 bytes, scattered"),
            (pages(16, |number| number), "16 bytes"),
            (pages(32, scattered), "32 bytes, scattered"),
        ] {
            let (slots, filter) = memory(1 << 20);
            let set = BlockSet::new(&slots, &filter);
            let refused = blocks.iter().filter(|block| !set.insert(**block)).count();
            assert!(refused * 10_000 <= blocks.len(), "{what}: {refused}");
            assert!(blocks.iter().filter(|block| !set.remove(**block)).count() == refused, "{what}");
        }
    }

    #[test]
    fn a_saturated_counter_stays() {
        let (slots, filter) = memory(1 << 12);
        let set = BlockSet::new(&slots, &filter);
        // All share one counter, which saturates at 255.
        let addresses: Vec<u64> = (1..=400u64).map(|n| n << (FILTER_SHIFT + FILTER_BITS)).collect();
        assert!(addresses.iter().all(|address| filter_index(*address) == 0));
        assert!(addresses.iter().all(|address| set.insert(*address)));
        assert!(addresses.iter().all(|address| set.contains(*address)));
        assert!(addresses.iter().all(|address| set.remove(*address)));
        assert_eq!(filter[0].load(Relaxed), u8::MAX);
    }

    #[test]
    fn null_is_never_in_the_set() {
        let (slots, filter) = memory(64);
        filter.iter().for_each(|count| count.store(u8::MAX, Relaxed));
        let set = BlockSet::new(&slots, &filter);
        assert!(!set.contains(0) && !set.remove(0) && !set.remove(1));
    }

    #[test]
    fn concurrent_threads_do_not_interfere() {
        let (slots, filter) = memory(1 << 14);
        let set = BlockSet::new(&slots, &filter);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let mut next = numbers(thread);
                    let mut own = HashSet::new();
                    for _ in 0..50_000 {
                        // The bits above the alignment are the number of the thread.
                        let address = (next() % 500 * 4 + thread) * 16 + 0x5500_0000_0000;
                        if next().is_multiple_of(2) {
                            assert!(set.insert(address));
                            own.insert(address);
                        } else {
                            assert_eq!(set.remove(address), own.remove(&address));
                        }
                    }
                    assert!(own.iter().all(|address| set.remove(*address)));
                });
            }
        });
        assert!(filter.iter().all(|count| count.load(Relaxed) == 0));
    }
}
