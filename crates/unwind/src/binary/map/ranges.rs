//! Addresses of mapped files, for a signal handler, which may take no lock and allocate nothing.
//!
//! Input: ranges of addresses, added and removed. Output: the range of an address, and whether it lost a page.
//! Slots are never freed, but reused: there are as many as ranges existed at once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A range, or space for one. Written only by the thread that has taken it.
#[derive(Debug)]
struct Slot {
    /// Odd while the range is being written (a seqlock): a reader that sees the same even number before and after
    /// has read a consistent range.
    version: AtomicUsize,
    start: AtomicUsize,
    /// Equal to `start` if there is no range.
    end: AtomicUsize,
    lost: AtomicBool,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    fn set(&self, range: &Range<usize>) {
        self.version.fetch_add(1, SeqCst);
        self.start.store(range.start, SeqCst);
        self.end.store(range.end, SeqCst);
        self.lost.store(false, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    /// The range, unless it is being written: that of the calling thread never is.
    fn get(&self) -> Option<Range<usize>> {
        let version = self.version.load(SeqCst);
        let range = self.start.load(SeqCst)..self.end.load(SeqCst);
        (version.is_multiple_of(2) && self.version.load(SeqCst) == version).then_some(range)
    }
}

/// Number of slots added at a time.
const SLOTS: usize = 64;

/// A list that only grows, so it can be read without a lock: `OnceLock::get` is an atomic load.
struct Block {
    slots: [Slot; SLOTS],
    next: OnceLock<Box<Block>>,
}

static FIRST: OnceLock<Box<Block>> = OnceLock::new();

/// Slots without a range. Also locked while a block is added.
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

fn blocks() -> impl Iterator<Item = &'static Block> {
    std::iter::successors(FIRST.get(), |block| block.next.get()).map(|block| &**block)
}

/// A range that is registered until this is dropped.
#[derive(Debug)]
pub(super) struct KnownRange(&'static Slot);

impl KnownRange {
    /// Registers a range, which overlaps no other.
    pub(super) fn new(range: Range<usize>) -> KnownRange {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = free.pop().unwrap_or_else(|| {
            let end = blocks().last().map_or(&FIRST, |last| &last.next);
            let new = || Box::new(Block { slots: [const { Slot::new() }; SLOTS], next: OnceLock::new() });
            let [first, others @ ..] = &end.get_or_init(new).slots;
            free.extend(others);
            first
        });
        slot.set(&range);
        KnownRange(slot)
    }

    /// Whether [`lose`] was called for an address in it.
    pub(super) fn is_lost(&self) -> bool {
        self.0.lost.load(SeqCst)
    }
}

impl Drop for KnownRange {
    fn drop(&mut self) {
        self.0.set(&(0..0));
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// Marks the range that contains an address as lost, and replaces it. Returns whether there is one, and it could
/// be replaced. For the signal handler of a thread that was reading there.
pub(super) fn lose(at: usize, replace: impl FnOnce(Range<usize>) -> bool) -> bool {
    let has_it = |slot: &&Slot| slot.get().is_some_and(|range| range.contains(&at));
    let Some(slot) = blocks().flat_map(|block| &block.slots).find(has_it) else { return false };
    // First, so that a reader of the zeros finds the mark.
    slot.lost.store(true, SeqCst);
    slot.get().is_some_and(replace)
}

/// Calls `visit` with each registered range. None is removed meanwhile, so their addresses stay mapped.
pub(super) fn visit(mut visit: impl FnMut(Range<usize>)) {
    let _free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let ranges = blocks().flat_map(|block| &block.slots).filter_map(Slot::get);
    ranges.filter(|range| !range.is_empty()).for_each(&mut visit);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that no map of this process has.
    const BASE: usize = usize::MAX / 4 * 3;

    #[test]
    fn the_range_of_an_address_is_found_among_any_number() {
        let mut known: Vec<Option<KnownRange>> = (0..3 * SLOTS)
            .map(|number| BASE + number * 0x2000)
            .map(|start| Some(KnownRange::new(start..start + 0x1000)))
            .collect();
        for number in (0..known.len()).step_by(2) {
            known[number] = None;
        }
        for (number, known) in known.iter().enumerate() {
            let start = BASE + number * 0x2000;
            let mut asked = None;
            assert!(!lose(start + 0x1000, |_| true), "behind the end");
            let found = lose(start + 0xfff, |range| {
                asked = Some(range);
                true
            });
            match known {
                None => assert!(!found && asked.is_none()),
                Some(known) => {
                    assert!(found && known.is_lost());
                    assert_eq!(asked, Some(start..start + 0x1000));
                }
            }
        }
        // A reused slot has lost nothing.
        let again = KnownRange::new(BASE..BASE + 0x1000);
        assert!(!again.is_lost());
        assert!(!lose(BASE, |_| false), "it could not be replaced");
    }
}
