//! The writer of a ring: reserves space for a record, and commits it. `shared_memory.rs` defines the
//! layout and its rules. Lock-free, for any number of threads; a full ring refuses at once.
//!
//! Where the next record goes is in memory of the process's own. The ring has copies of that for the reader, and the
//! reader's position, which is checked: whoever else can write to the file cannot direct where this process writes.
#![allow(unsafe_code)]

use super::shared_memory::{
    Allocation, COMMITTED, DATA_OFFSET, Free, Kind, LostAllocations, RECORD_ALIGNMENT, RESERVED, RingHeader,
    SIZE_CLASSES, Word, allocation_limit, piece_size, size_class,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Has the kernel populate mapped memory; returns whether there was space.
pub type Populate = fn(*mut u8, usize) -> bool;

/// Positions of a ring, in private memory. All zero for a new ring.
#[repr(C)]
#[derive(Debug)]
pub struct Positions {
    /// Bytes reserved since the ring was created.
    write: AtomicU64,
    /// Bytes released by the reader: its last valid position.
    read: AtomicU64,
    /// Counts below it have memory; a multiple of the piece size.
    populated: AtomicU64,
    /// Nonzero while a thread is backing a piece.
    is_populating: AtomicU32,
}

impl Positions {
    /// All of the ring has memory.
    pub fn set_populated(&self) {
        self.populated.store(u64::MAX, Ordering::Release);
    }
}

/// A mapped ring.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    base: *mut u8,
    data_size: u64,
    positions: &'a Positions,
    populate: Populate,
}

/// Why there is no room for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The ring is full.
    Full,
    /// The file system is.
    Space,
}

/// Reserved space for a record; its word is stored.
#[derive(Debug)]
pub struct Reservation {
    record: *mut u8,
    length: u32,
}

impl<'a> Ring<'a> {
    /// The ring mapped at an address.
    ///
    /// # Safety
    /// `DATA_OFFSET + data_size` bytes are mapped there while the ring is used, `data_size` is a power of two, the
    /// positions are those of this ring, and only writers and one reader change the data.
    pub unsafe fn new(base: *mut u8, data_size: u64, positions: &'a Positions, populate: Populate) -> Self {
        Self { base, data_size, positions, populate }
    }

    /// The ring's header.
    pub fn header(&self) -> &RingHeader {
        // SAFETY: mapped, as `new` demands; the fields that change are atomic.
        unsafe { &*self.base.cast() }
    }

    /// Reserves an allocation record of `length` bytes.
    pub fn reserve_allocation(&self, length: u32) -> Result<Reservation, NoRoom> {
        self.reserve(length, Kind::Allocation, allocation_limit(self.data_size))
    }

    /// Reserves a free record.
    pub fn reserve_free(&self, kind: Kind) -> Result<Reservation, NoRoom> {
        self.reserve(size_of::<Free>() as u32, kind, self.data_size)
    }

    /// Bytes released by the reader. A position that it cannot have reached, with `write` bytes reserved, is ignored.
    fn read_position(&self, write: u64) -> u64 {
        let known = self.positions.read.load(Ordering::Relaxed);
        // Acquire: the reader has zeroed the released bytes.
        let published = self.header().read.load(Ordering::Acquire);
        let is_valid =
            published > known && published <= write && published.is_multiple_of(RECORD_ALIGNMENT as u64);
        if !is_valid {
            return known;
        }
        known.max(self.positions.read.fetch_max(published, Ordering::Relaxed)).max(published)
    }

    /// Bytes released by the reader, and whether it can release more: it releases whole pieces.
    pub fn progress(&self) -> (u64, bool) {
        let write = self.positions.write.load(Ordering::Relaxed);
        let read = self.read_position(write);
        (read, write.saturating_sub(read) >= 2 * piece_size(self.data_size))
    }

    fn reserve(&self, length: u32, kind: Kind, limit: u64) -> Result<Reservation, NoRoom> {
        let header = self.header();
        let size = self.data_size;
        let mut write = self.positions.write.load(Ordering::Relaxed);
        let (pad, record_at) = loop {
            let offset = write & (size - 1);
            let pad = if u64::from(length) <= size - offset { 0 } else { size - offset };
            let end = write + pad + u64::from(length);
            let read = self.read_position(write);
            if read > write {
                // Others wrote, and the reader read that, since `write` was loaded.
                write = self.positions.write.load(Ordering::Relaxed);
                continue;
            }
            if end - read > limit {
                return Err(NoRoom::Full);
            }
            // One piece more than needed, limited to what the reader has released.
            let ahead = (end + piece_size(size)).min(read + size);
            if ahead > self.positions.populated.load(Ordering::Acquire) && !self.populate_ahead(end, ahead) {
                return Err(NoRoom::Space);
            }
            let reserved = &self.positions.write;
            match reserved.compare_exchange_weak(write, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    header.write.fetch_max(end, Ordering::Relaxed);
                    break (pad, (offset + pad) & (size - 1));
                }
                Err(now) => write = now,
            }
        };
        if pad > 0 {
            // Padding is smaller than a record, so its length fits into 32 bits.
            self.store_word((size - pad) as usize, word(pad as u32, Kind::Pad, 0, COMMITTED));
        }
        self.store_word(record_at as usize, word(length, kind, 0, RESERVED));
        // SAFETY: within the data, as is all of the record: it does not wrap.
        let record = unsafe { self.base.add(DATA_OFFSET + record_at as usize) };
        Ok(Reservation { record, length })
    }

    /// Populates pieces up to `ahead` in one thread, while others continue to `end` as long as that is populated: threads that
    /// populate the same pages wait for each other in the kernel. Returns whether `end` is populated.
    fn populate_ahead(&self, end: u64, ahead: u64) -> bool {
        let Positions { populated, is_populating, .. } = self.positions;
        let is_populated = || populated.load(Ordering::Acquire) >= end;
        if is_populating.swap(1, Ordering::Acquire) == 1 {
            return is_populated() || self.populate_to(end);
        }
        let is_done = self.populate_to(ahead) || is_populated();
        is_populating.store(0, Ordering::Release);
        is_done
    }

    /// Populates pieces up to a count. The reader has released what was there: `end` is at most the ring's size beyond `read`.
    /// Concurrent calls repeat the work.
    fn populate_to(&self, end: u64) -> bool {
        let piece = piece_size(self.data_size);
        loop {
            let populated = self.positions.populated.load(Ordering::Acquire);
            if populated >= end {
                return true;
            }
            let offset = (populated & (self.data_size - 1)) as usize;
            // SAFETY: within the data.
            let address = unsafe { self.base.add(DATA_OFFSET + offset) };
            if !(self.populate)(address, piece as usize) {
                return false;
            }
            let _ = self.positions.populated.compare_exchange(
                populated,
                populated + piece,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
    }

    /// Backs all of the ring, so that writers need no more system calls.
    #[cfg(any(test, not(target_vendor = "apple")))]
    pub fn pin(&self) {
        // Before it is populated: the reader fills holes that it makes after this.
        self.header().is_pinned.store(1, Ordering::SeqCst);
        // SAFETY: where the data begins.
        let data = unsafe { self.base.add(DATA_OFFSET) };
        if (self.populate)(data, self.data_size as usize) {
            self.positions.set_populated();
        }
    }

    fn store_word(&self, offset: usize, word: u64) {
        // SAFETY: offsets of records are multiples of RECORD_ALIGNMENT within the mapped data.
        let stored = unsafe { &*self.base.add(DATA_OFFSET + offset).cast::<AtomicU64>() };
        stored.store(word, Ordering::Release);
    }

    /// Counts an allocation that did not fit.
    pub fn lose_allocation(&self, size: u64, why: NoRoom) {
        let lost = &self.header().lost_allocations[size_class(size)];
        lost.count.fetch_add(1, Ordering::Relaxed);
        lost.bytes.fetch_add(size, Ordering::Relaxed);
        self.count_no_space(why);
    }

    /// Counts a free that did not fit.
    pub fn lose_free(&self, why: NoRoom) {
        self.header().lost_frees.fetch_add(1, Ordering::Relaxed);
        self.count_no_space(why);
    }

    fn count_no_space(&self, why: NoRoom) {
        self.header().no_space.fetch_add(u64::from(why == NoRoom::Space), Ordering::Relaxed);
    }
}

const fn word(length: u32, kind: Kind, flags: u8, state: u8) -> u64 {
    Word { length, flags, kind: kind as u8, state }.encode()
}

impl Reservation {
    /// Destination of an allocation's stack bytes, and its size.
    pub fn stack(&self) -> (*mut u8, usize) {
        let fixed = size_of::<Allocation>();
        // SAFETY: an allocation record is at least that long.
        (unsafe { self.record.add(fixed) }, self.length as usize - fixed)
    }

    /// Stores an allocation and makes it readable. The rest of the reservation becomes padding.
    pub fn commit_allocation(self, mut record: Allocation, flags: u8) {
        let used = super::shared_memory::allocation_length(record.stack_size).min(self.length);
        record.word = word(self.length, Kind::Allocation, 0, RESERVED);
        // SAFETY: reserved for it, and aligned; the reader reads nothing before the word is committed.
        unsafe { self.record.cast::<Allocation>().write(record) };
        if used < self.length {
            self.store_word(used as usize, word(self.length - used, Kind::Pad, 0, COMMITTED));
        }
        self.store_word(0, word(used, Kind::Allocation, flags, COMMITTED));
    }

    /// Stores a free and makes it readable.
    pub fn commit_free(self, mut record: Free, kind: Kind) {
        record.word = word(self.length, kind, 0, RESERVED);
        // SAFETY: reserved for it, and aligned.
        unsafe { self.record.cast::<Free>().write(record) };
        self.store_word(0, word(self.length, kind, 0, COMMITTED));
    }

    fn store_word(&self, offset: usize, word: u64) {
        // SAFETY: within the record; lengths of records are multiples of RECORD_ALIGNMENT.
        let stored = unsafe { &*self.record.add(offset).cast::<AtomicU64>() };
        stored.store(word, Ordering::Release);
    }
}

/// State of the ring of a process, in memory that a child of fork does not inherit; all zero before there is one.
#[repr(C)]
pub struct RingState {
    /// One of the states in process.rs.
    pub state: AtomicU32,
    /// Whether this is the process of PID.
    pub is_owner: AtomicU32,
    pub positions: Positions,
    /// Samples lost while another thread created the ring, by size class: the ring's first losses.
    lost_before_ring: [LostAllocations; SIZE_CLASSES],
}

impl RingState {
    /// Moves what was lost before there was a ring into it.
    pub fn move_lost(&self, header: &RingHeader) {
        for (before, lost) in self.lost_before_ring.iter().zip(&header.lost_allocations) {
            let count = before.count.swap(0, Ordering::Relaxed);
            header.lost_before_ring.fetch_add(count, Ordering::Relaxed);
            lost.count.fetch_add(count, Ordering::Relaxed);
            lost.bytes.fetch_add(before.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts an allocation of this size that is lost.
    pub fn count_lost(&self, size: u64) {
        let lost = &self.lost_before_ring[size_class(size)];
        lost.count.fetch_add(1, Ordering::Relaxed);
        lost.bytes.fetch_add(size, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared_memory::{FREE_LENGTH, REGISTERS, allocation_length};
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::vec::Vec;

    struct Memory(*mut u8, usize);

    impl Memory {
        fn new(data_size: usize) -> (Self, Ring<'static>) {
            Self::with(data_size, |_, _| true)
        }

        fn with(data_size: usize, populate: Populate) -> (Self, Ring<'static>) {
            let memory = Self(
                // SAFETY: the size is not 0.
                unsafe { alloc_zeroed(Self::layout(data_size)) },
                data_size,
            );
            let positions = std::boxed::Box::leak(std::boxed::Box::new(Positions {
                write: AtomicU64::new(0),
                read: AtomicU64::new(0),
                populated: AtomicU64::new(0),
                is_populating: AtomicU32::new(0),
            }));
            // SAFETY: as large as it says, zero is valid for all fields of a header, and only this test uses it.
            let ring = unsafe { Ring::new(memory.0, data_size as u64, positions, populate) };
            (memory, ring)
        }

        fn layout(data_size: usize) -> Layout {
            Layout::from_size_align(DATA_OFFSET + data_size, 64).expect("a size")
        }

        /// Takes the record at the reader's position.
        fn take(&self) -> Option<(Word, Vec<u8>)> {
            // SAFETY: the header of `new`.
            let header = unsafe { &*self.0.cast::<RingHeader>() };
            let read = header.read.load(Ordering::Relaxed);
            // SAFETY: within the data.
            let at = unsafe { self.0.add(DATA_OFFSET + (read as usize & (self.1 - 1))) };
            // SAFETY: aligned, as positions of records are.
            let word = Word::decode(unsafe { &*at.cast::<AtomicU64>() }.load(Ordering::Acquire));
            if word.state != COMMITTED {
                return None;
            }
            // SAFETY: committed records lie within the data.
            let bytes = unsafe { core::slice::from_raw_parts_mut(at, word.length as usize) };
            let copied = bytes.to_vec();
            bytes.fill(0);
            header.read.store(read + u64::from(word.length), Ordering::Release);
            Some((word, copied))
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.0, Self::layout(self.1)) };
        }
    }

    // SAFETY: in the test with threads, writers use atomics and memory that they reserved.
    unsafe impl Sync for Ring<'_> {}
    // SAFETY: as above.
    unsafe impl Send for Ring<'_> {}

    fn allocation(address: u64, stack_size: u32) -> Allocation {
        Allocation {
            word: 0,
            time_ns: 1,
            address,
            size: 100,
            tid: 7,
            function: 1,
            stack_size,
            images: 0,
            registers: [0; REGISTERS],
        }
    }

    fn free(address: u64) -> Free {
        Free { word: 0, time_ns: 2, address, tid: 7, pages: 0 }
    }

    #[test]
    fn records_are_read_in_order_across_the_end() {
        let (memory, ring) = Memory::new(4096);
        let mut pads = 0;
        for n in 0..1000u64 {
            let stack_size = (n * 37 % 1500) as u32;
            let room = ring.reserve_allocation(allocation_length(1500)).expect("an empty ring has room");
            while let Some((word, _)) = memory.take() {
                assert_eq!(word.kind, Kind::Pad as u8, "not readable before it is committed");
                pads += 1;
            }
            room.commit_allocation(allocation(n, stack_size), 3);
            ring.reserve_free(Kind::Free).expect("room").commit_free(free(n), Kind::Free);
            let mut taken = Vec::new();
            while let Some((word, bytes)) = memory.take() {
                if word.kind == Kind::Pad as u8 {
                    pads += 1;
                } else {
                    taken.push((word, u64::from_le_bytes(bytes[16..24].try_into().expect("eight"))));
                }
            }
            assert_eq!(taken.len(), 2);
            assert_eq!((taken[0].0.kind, taken[0].0.flags, taken[0].1), (Kind::Allocation as u8, 3, n));
            assert_eq!(taken[0].0.length, allocation_length(stack_size));
            assert_eq!((taken[1].0.kind, taken[1].1), (Kind::Free as u8, n));
        }
        assert!(pads > 100, "the end of the ring was reached");
    }

    /// Fills the ring repeatedly: fitting records are kept, others refused, and space is released.
    #[test]
    fn a_full_ring_refuses_allocations_before_frees() {
        for offset in 0..64 {
            let (memory, ring) = Memory::new(4096);
            for _ in 0..offset {
                ring.reserve_free(Kind::Free).expect("room").commit_free(free(1), Kind::Free);
                memory.take().expect("committed");
            }
            let mut allocations = 0;
            while let Ok(room) = ring.reserve_allocation(allocation_length(200)) {
                room.commit_allocation(allocation(1, 200), 0);
                allocations += 1;
            }
            assert!((8..=9).contains(&allocations), "{allocations} at {offset}");
            let mut frees = 0;
            while let Ok(room) = ring.reserve_free(Kind::Free) {
                room.commit_free(free(2), Kind::Free);
                frees += 1;
            }
            assert!(frees >= 4096 / 8 / FREE_LENGTH, "{frees} at {offset}");
            let mut kinds = [0; 5];
            while let Some((word, _)) = memory.take() {
                kinds[word.kind as usize] += 1;
            }
            assert_eq!((kinds[Kind::Allocation as usize], kinds[Kind::Free as usize]), (allocations, frees));
            assert!(ring.reserve_allocation(allocation_length(200)).is_ok());
        }
    }

    /// A process that has the file changes the positions in it: at any time, to any value.
    #[test]
    fn what_others_write_into_the_header_directs_nothing() {
        let (memory, ring) = Memory::new(4096);
        let header = ring.header();
        let mut written = 0u64;
        for round in 0..200u64 {
            let hostile =
                [u64::MAX, 1 << 63, 0, written + 16, written.wrapping_sub(16), 7, 4096][round as usize % 7];
            let room = ring.reserve_free(Kind::Free).expect("room");
            let at = room.record as u64 - memory.0 as u64 - DATA_OFFSET as u64;
            assert_eq!(at, written % 4096, "round {round}");
            room.commit_free(free(1), Kind::Free);
            written += u64::from(FREE_LENGTH);
            memory.take().expect("committed");
            let read = header.read.load(Ordering::Relaxed);
            for field in [&header.write, &header.read, &header.lost_frees, &header.no_space] {
                field.store(hostile, Ordering::Relaxed);
            }
            // No position beyond what was written, and none before an earlier one.
            let seen = ring.read_position(written);
            assert!(seen <= written && written - seen <= 4096, "round {round}: {seen}");
            header.read.store(read, Ordering::Relaxed);
        }
    }

    #[test]
    fn losses_are_counted_by_size() {
        let (_memory, ring) = Memory::new(4096);
        ring.lose_allocation(100, NoRoom::Full);
        ring.lose_allocation(127, NoRoom::Space);
        ring.lose_allocation(1 << 20, NoRoom::Full);
        ring.lose_free(NoRoom::Space);
        let lost = |class: usize| {
            let lost = &ring.header().lost_allocations[class];
            (lost.count.load(Ordering::Relaxed), lost.bytes.load(Ordering::Relaxed))
        };
        assert_eq!((lost(7), lost(21), lost(0)), ((2, 227), (1, 1 << 20), (0, 0)));
        assert_eq!(ring.header().lost_frees.load(Ordering::Relaxed), 1);
        assert_eq!(ring.header().no_space.load(Ordering::Relaxed), 2);
    }

    std::thread_local! {
        /// Populated memory, and how much more can be populated.
        static BACKED: std::cell::RefCell<(Vec<(usize, usize)>, usize)> = const { std::cell::RefCell::new((Vec::new(), 0)) };
    }

    fn back_while_there_is_space(address: *mut u8, size: usize) -> bool {
        BACKED.with_borrow_mut(|(pieces, left)| {
            let is_space = *left >= size;
            if is_space {
                *left -= size;
                pieces.push((address as usize, size));
            }
            is_space
        })
    }

    #[test]
    fn pieces_are_backed_before_use_and_failures_counted() {
        let (memory, ring) = Memory::with(16384, back_while_there_is_space);
        let piece = piece_size(16384) as usize;
        let data = memory.0 as usize + DATA_OFFSET;
        // No memory is available at first.
        assert_eq!(ring.reserve_free(Kind::Free).err(), Some(NoRoom::Space));
        for round in 0..20 {
            BACKED.set((Vec::new(), 3 * piece));
            let mut written = 0;
            while let Ok(room) = ring.reserve_free(Kind::Free) {
                let begin = room.record as usize;
                let is_populated = |(address, size): &(usize, usize)| {
                    (*address..address + size).contains(&begin) && begin + 32 <= address + size
                };
                let is_in = BACKED.with_borrow(|(pieces, _)| pieces.iter().any(is_populated));
                assert!(is_in, "{:#x} in round {round}", begin - data);
                room.commit_free(free(1), Kind::Free);
                written += 1;
            }
            assert_eq!(written, 3 * piece / 32);
            assert_eq!(ring.reserve_free(Kind::Free).err(), Some(NoRoom::Space));
            while memory.take().is_some() {}
        }
    }

    #[test]
    fn a_pinned_ring_is_backed_once() {
        let (memory, ring) = Memory::with(16384, back_while_there_is_space);
        BACKED.set((Vec::new(), 16384));
        ring.pin();
        for _ in 0..10_000 {
            ring.reserve_free(Kind::Free).expect("room").commit_free(free(1), Kind::Free);
            memory.take().expect("committed");
        }
        assert_eq!(BACKED.take().0, [(memory.0 as usize + DATA_OFFSET, 16384)]);
    }

    #[test]
    fn threads_write_concurrently() {
        let (memory, ring) = Memory::new(1 << 16);
        let per_thread = 20_000u64;
        let mut next = [0u64; 4];
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    for n in 0..per_thread {
                        let room = loop {
                            if let Ok(room) = ring.reserve_allocation(allocation_length(64)) {
                                break room;
                            }
                            std::thread::yield_now();
                        };
                        room.commit_allocation(allocation(thread << 32 | n, (n % 64) as u32), 0);
                    }
                });
            }
            while next != [per_thread; 4] {
                let Some((word, bytes)) = memory.take() else {
                    std::thread::yield_now();
                    continue;
                };
                if word.kind == Kind::Allocation as u8 {
                    let address = u64::from_le_bytes(bytes[16..24].try_into().expect("eight"));
                    let thread = (address >> 32) as usize;
                    assert_eq!(address & 0xffff_ffff, next[thread], "of one thread in order");
                    next[thread] += 1;
                }
            }
        });
    }
}
