//! The table of anonymous mappings of the program, in parts as they were unmapped: distinguishes them from mappings of
//! files, and says which sampled block an unmapped range belongs to. Lock-free: a thread that stops at any point
//! keeps others only from the parts that it holds, and they give up after a while.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Number of parts: as many as Linux allows mappings by default (`vm.max_map_count`).
pub const PARTS: usize = 1 << 16;

/// The memory of a table; initially zero.
#[repr(C)]
#[derive(Debug)]
pub struct MappingTable {
    /// Parts from this index on were never used.
    end: AtomicUsize,
    /// How often a part was split.
    splits: AtomicUsize,
    parts: [MappingPart; PARTS],
}

/// A part of a mapping.
#[repr(C)]
#[derive(Debug)]
struct MappingPart {
    /// `FREE`, `USED`, or the token of the call that has locked it.
    state: AtomicU64,
    /// The sampled block, or 0.
    block: AtomicU64,
    begin: AtomicU64,
    end: AtomicU64,
}

const FREE: u64 = 0;
const USED: u64 = 1;
/// A call spins this often for a part that another one has locked before it waits.
const SPINS_MAX: u32 = 2000;

/// What became of a sampled block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmapResult {
    /// Nothing is left.
    All {
        /// The block.
        block: u64,
    },
    /// Something is left.
    Part {
        /// The block.
        block: u64,
        /// Unmapped bytes.
        bytes: u64,
    },
}

/// Result of [`MappingTable::lock_range`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedParts {
    /// Parts were locked.
    pub any: bool,
    /// Parts were given up.
    pub gave_up: bool,
}

impl MappingTable {
    /// Adds a mapping. `block`: it is sampled. Returns whether there was room.
    pub fn add(&self, block: u64, begin: u64, end: u64) -> bool {
        for (index, part) in self.parts.iter().enumerate() {
            if part.state.load(Ordering::Relaxed) == FREE
                && part.state.compare_exchange(FREE, u64::MAX, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                part.block.store(block, Ordering::Relaxed);
                part.set_range(begin, end);
                self.end.fetch_max(index + 1, Ordering::Relaxed);
                part.state.store(USED, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Locks what the table has of a range for the call with this token, which is above `USED`: parts that reach out of
    /// the range are split, so that others can unmap the rest. `wait` is called while another call has locked a part
    /// of the range; if it returns false, that part is given up.
    pub fn lock_range(
        &self,
        begin: u64,
        end: u64,
        token: u64,
        mut wait: impl FnMut() -> bool,
    ) -> LockedParts {
        let mut locked = LockedParts { any: false, gave_up: false };
        if begin >= end {
            return locked;
        }
        loop {
            let mut splits = self.splits.load(Ordering::SeqCst);
            for part in self.used() {
                let mut spins = 0;
                while part.is_in(begin, end) {
                    match part.state.compare_exchange(USED, token, Ordering::Acquire, Ordering::Acquire) {
                        Ok(_) if part.is_in(begin, end) => {
                            locked.any = true;
                            splits += self.split(part, begin, end);
                            break;
                        }
                        Ok(_) => part.state.store(USED, Ordering::Release),
                        Err(state) if state == FREE || state == token => break,
                        Err(_) if spins < SPINS_MAX => spins += 1,
                        Err(_) if wait() => {}
                        Err(_) => {
                            locked.gave_up = true;
                            break;
                        }
                    }
                    core::hint::spin_loop();
                }
            }
            // A part that another call has split off may lie before those that were looked at.
            if locked.gave_up || self.splits.load(Ordering::SeqCst) == splits {
                return locked;
            }
        }
    }

    /// Splits off what a locked part has outside of a range; returns the number of splits. Without room in the table,
    /// it stays in the part.
    fn split(&self, part: &MappingPart, begin: u64, end: u64) -> usize {
        let block = part.block.load(Ordering::Relaxed);
        let (from, to) = part.range();
        // Both have the range for a moment: nobody misses it.
        let is_split = |is_needed: bool, begin: u64, end: u64| {
            let is_split = is_needed && self.add(block, begin, end);
            self.splits.fetch_add(usize::from(is_split), Ordering::SeqCst);
            is_split
        };
        let mut splits = 0;
        if is_split(from < begin, from, begin) {
            part.begin.store(begin, Ordering::Release);
            splits += 1;
        }
        if is_split(end < to, end, to) {
            part.end.store(end, Ordering::Release);
            splits += 1;
        }
        splits
    }

    /// Unlocks the parts that a call has locked.
    pub fn unlock(&self, token: u64) {
        self.locked(token).for_each(|part| part.state.store(USED, Ordering::Release));
    }

    /// Removes a range from the locked parts, and unlocks what is left of them: of parts that had no room to be split.
    /// A hole in such a part stays in use until it is unmapped with what is around it.
    pub fn unmap(&self, begin: u64, end: u64, token: u64, mut each: impl FnMut(UnmapResult)) {
        for part in self.locked(token) {
            if !part.is_in(begin, end) {
                continue;
            }
            let block = part.block.load(Ordering::Relaxed);
            let (from, to) = part.range();
            let bytes = to.min(end) - from.max(begin);
            let is_rest = match (from < begin, end < to) {
                (false, false) => {
                    part.block.store(0, Ordering::Relaxed);
                    part.state.store(FREE, Ordering::Release);
                    // Of two threads that free the last two parts at once, at least one sees that nothing is left.
                    fence(Ordering::SeqCst);
                    block != 0 && self.has_part_of(block)
                }
                (false, true) => part.resize(end, to),
                (true, false) => part.resize(from, begin),
                (true, true) => {
                    part.resize(from, to);
                    continue;
                }
            };
            if block != 0 {
                each(if is_rest { UnmapResult::Part { block, bytes } } else { UnmapResult::All { block } });
            }
        }
    }

    /// Whether a part belongs to a block.
    fn has_part_of(&self, block: u64) -> bool {
        loop {
            let splits = self.splits.load(Ordering::SeqCst);
            if self.used().any(|part| part.belongs_to(block)) {
                return true;
            }
            // A part that was split off may lie before those that were looked at.
            if self.splits.load(Ordering::SeqCst) == splits {
                return false;
            }
        }
    }

    fn used(&self) -> impl Iterator<Item = &MappingPart> {
        self.parts.iter().take(self.end.load(Ordering::Acquire))
    }

    fn locked(&self, token: u64) -> impl Iterator<Item = &MappingPart> {
        self.used().filter(move |part| part.state.load(Ordering::Relaxed) == token)
    }
}

impl MappingPart {
    fn range(&self) -> (u64, u64) {
        (self.begin.load(Ordering::Acquire), self.end.load(Ordering::Acquire))
    }

    fn set_range(&self, begin: u64, end: u64) {
        self.begin.store(begin, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }

    fn is_in(&self, begin: u64, end: u64) -> bool {
        let (from, to) = self.range();
        self.state.load(Ordering::Acquire) != FREE && from < end && begin < to
    }

    fn belongs_to(&self, block: u64) -> bool {
        self.state.load(Ordering::Acquire) != FREE && self.block.load(Ordering::Relaxed) == block
    }

    /// Changes the range of a locked part and unlocks it; something is left of its block.
    fn resize(&self, begin: u64, end: u64) -> bool {
        self.set_range(begin, end);
        self.state.store(USED, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn table() -> Box<MappingTable> {
        let part = || MappingPart {
            state: AtomicU64::new(FREE),
            block: AtomicU64::new(0),
            begin: AtomicU64::new(0),
            end: AtomicU64::new(0),
        };
        let parts: Vec<MappingPart> = (0..PARTS).map(|_| part()).collect();
        let parts: Box<[MappingPart; PARTS]> = parts.try_into().expect("as many");
        Box::new(MappingTable { end: AtomicUsize::new(0), splits: AtomicUsize::new(0), parts: *parts })
    }

    #[test]
    fn parts_of_mappings_match_a_map_of_pages() {
        std::thread::Builder::new()
            .stack_size(16 << 20)
            .spawn(|| {
                let table = table();
                let mut seed = 7u64;
                let mut below = move |limit: u64| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (seed >> 33) % limit
                };
                // The block of each page, and the pages that are left of each block.
                let (mut pages, mut left) = (BTreeMap::new(), BTreeMap::new());
                for block in 1..20_000u64 {
                    let begin = 1 + below(300);
                    let end = begin + 1 + below(20);
                    let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
                    for page in begin..end {
                        if let Some(of) = pages.remove(&page) {
                            *expected.entry(of).or_default() += 1;
                            *left.get_mut(&of).expect("it has pages") -= 1;
                        }
                    }
                    let token = block + 1;
                    assert_eq!(
                        table.lock_range(begin, end, token, || false),
                        LockedParts { any: !expected.is_empty(), gave_up: false }
                    );
                    let mut found: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
                    table.unmap(begin, end, token, |unmapped| match unmapped {
                        UnmapResult::All { block } => found.entry(block).or_default().1 = true,
                        UnmapResult::Part { block, bytes } => found.entry(block).or_default().0 += bytes,
                    });
                    assert!(table.locked(token).next().is_none());
                    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
                    for (of, (bytes, is_all)) in found {
                        assert_eq!(is_all, left[&of] == 0, "block {of}");
                        assert!(is_all || bytes == expected[&of], "block {of}");
                    }
                    if below(2) == 0 {
                        assert!(table.add(block, begin, end));
                        pages.extend((begin..end).map(|page| (page, block)));
                        left.insert(block, end - begin);
                    }
                }
            })
            .expect("a thread")
            .join()
            .expect("it does not panic");
    }

    fn on_large_stack<R: Send + 'static>(test: fn() -> R) -> R {
        let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(test).expect("a thread");
        thread.join().expect("it does not panic")
    }

    #[test]
    fn a_locked_part_is_given_up_and_stays() {
        let table = on_large_stack(table);
        assert!(table.add(9, 10, 20));
        assert_eq!(table.lock_range(15, 16, 2, || false), LockedParts { any: true, gave_up: false });
        assert_eq!(table.lock_range(14, 17, 3, || false), LockedParts { any: true, gave_up: true });
        for (begin, end) in [(20, 30), (12, 12), (13, 12)] {
            let nothing = LockedParts { any: false, gave_up: false };
            assert_eq!(table.lock_range(begin, end, 4, || false), nothing);
        }
        table.unlock(3);
        // The other call ends meanwhile.
        let mut waits = 0;
        let wait = || {
            waits += 1;
            table.unmap(15, 16, 2, |unmapped| {
                assert_eq!(unmapped, UnmapResult::Part { block: 9, bytes: 1 });
            });
            true
        };
        assert_eq!(table.lock_range(0, 30, 3, wait), LockedParts { any: true, gave_up: false });
        assert_eq!(waits, 1);
        let mut last = None;
        table.unmap(0, 30, 3, |unmapped| last = Some(unmapped));
        assert_eq!(last, Some(UnmapResult::All { block: 9 }));
        assert_eq!(table.lock_range(0, 30, 3, || false), LockedParts { any: false, gave_up: false });
    }

    #[test]
    fn threads_that_unmap_parts_of_a_mapping_at_once_leave_nothing() {
        const THREADS: u64 = 4;
        const PAGES: u64 = 64;
        let table = on_large_stack(table);
        for block in 1..500 {
            assert!(table.add(block, 0, THREADS * PAGES));
            let freed: u64 = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|number| {
                        let table = &table;
                        scope.spawn(move || {
                            let (mut freed, token) = (0, number + 2);
                            // Every fourth page first, so that parts are split.
                            let pages =
                                (0..PAGES).filter(|page| page % 4 == number).map(|page| (page, page + 1));
                            for (begin, end) in pages.chain([(0, PAGES)]) {
                                let at = number * PAGES;
                                let locked = table.lock_range(at + begin, at + end, token, || {
                                    std::thread::yield_now();
                                    true
                                });
                                assert!(!locked.gave_up);
                                table.unmap(at + begin, at + end, token, |unmapped| {
                                    freed += u64::from(unmapped == UnmapResult::All { block });
                                });
                            }
                            freed
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
            });
            // Those that unmap the last parts at once report that each.
            assert!((1..=THREADS).contains(&freed), "{freed}");
            assert!(!table.used().any(|part| part.state.load(Ordering::Acquire) != FREE));
        }
    }
}
