//! The bytes of code without a file: JIT code and deleted files. Input: the executable mappings, and reads of the
//! target's memory while it runs. Output: code for the walker, which treats it like other code without unwind
//! information.
//!
//! `JitCode` has the code of a process and `TargetCode` serves a walk; `Dependencies` are the bytes that
//! conclusions depend on, `Glances` a few bytes at a time, `CodeMemory` the reads, `Requests` what one walk lacked.
//!
//! JIT code is replaced without notification. So bytes are read when a walk first needs them and are valid for
//! that walk only. The walker caches its conclusions; every [`RECHECK_INTERVAL_NS`] the bytes that they depend on are read
//! again, and conclusions on changed code are dropped. Nothing is read while a thread is
//! stopped.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;

use hashbrown::{HashMap, HashSet};

use super::code::ImageView;
use super::history::Images;
use crate::addr::Avma;
use crate::binary::{Mapping, MappingKind, mapping};
use crate::walk::{Code, CodeTraits, FilePlace, GLANCE_BYTES, Glance, NeedsBytes};

/// How long conclusions on JIT code are kept before its bytes are read again, nanoseconds.
pub const RECHECK_INTERVAL_NS: u64 = 1_000_000_000;
/// Cost of reading a block, and of a glance (a few bytes), in instructions decoded.
const BLOCK_COST: u64 = 100;
const GLANCE_COST: u64 = 20;
/// Longest instruction: closer to the end of a block, the next block is needed.
const INSTRUCTION_BYTES_MAX: u64 = 15;

/// Whether an image of this name is OpenJDK's virtual machine.
fn is_hotspot(image: &str) -> bool {
    image.starts_with("libjvm.")
}

/// JIT code of a process: its mappings, and the bytes read for the current walk.
#[derive(Debug, Default)]
pub struct JitCode {
    /// Mappings of code without a file; sorted, disjoint.
    regions: Vec<Range<u64>>,
    /// V8 is in the process and generated the code.
    by_v8: bool,
    /// HotSpot is in the process and generated the code.
    by_hotspot: bool,
    /// Bytes read for this walk; disjoint and not adjacent.
    pieces: Vec<Piece>,
    /// Requests of this walk.
    requests: Requests,
    /// Index of the piece requested last.
    last: Cell<usize>,
    /// Blocks that `dependencies` has seen with the content of `pieces`, by first address.
    seen: RefCell<Vec<u64>>,
    dependencies: RefCell<Dependencies>,
    glances: Glances,
    /// When the dependencies were last checked.
    checked_ns: u64,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    /// Shorter than requested where memory is not mapped.
    bytes: Vec<u8>,
    /// End of the requested range.
    end: u64,
    /// End of the region that contains it.
    region_end: u64,
}

impl Piece {
    fn contains(&self, at: u64) -> bool {
        (self.start..self.end).contains(&at)
    }

    /// The bytes between two addresses in it, as far as they were read.
    fn between(&self, start: u64, end: u64) -> &[u8] {
        let known = (self.bytes.len() as u64 + self.start).clamp(start, end);
        let bytes = (start - self.start) as usize..(known - self.start) as usize;
        self.bytes.get(bytes).unwrap_or_default()
    }
}

impl JitCode {
    /// Takes the current executable mappings of a process, sorted by address, after [`Images::update`].
    pub fn update(&mut self, process: u32, mappings: &[Mapping], images: &Images) {
        let current = images.of(process);
        let without_file = |mapping: &&Mapping| {
            // Shared memory has a file that exists in memory only, and can be read like any other.
            mapping.kind == MappingKind::Anonymous
                || current.code(mapping.avma.start).is_none()
                || images.jit_memory(current.space(), mapping.avma.start).is_some()
        };
        let has = |is_runtime: fn(&str) -> bool| {
            images.images_in(current.space()).any(|image| is_runtime(&image.name))
        };
        (self.by_v8, self.by_hotspot) = (has(mapping::contains_v8), has(is_hotspot));
        let regions = mappings.iter().filter(without_file);
        let regions = regions.map(|mapping| mapping.avma.start.0..mapping.avma.end.0).collect();
        if self.regions != regions {
            self.regions = regions;
            self.dependencies.get_mut().clear();
            self.glances.clear();
        }
    }

    /// Whether there is any code without a file.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Whether an address is in code without a file.
    #[must_use]
    pub fn contains(&self, at: Avma) -> bool {
        self.region(at.0).is_some()
    }

    fn region(&self, at: u64) -> Option<&Range<u64>> {
        let after = self.regions.partition_point(|region| region.start <= at);
        self.regions.get(after.checked_sub(1)?).filter(|region| region.contains(&at))
    }

    /// Begins another walk: bytes read before may be stale. `budget`: limit on decoded instructions.
    pub fn begin_walk(&mut self, budget: u64) {
        self.requests.begin(budget);
        self.pieces.clear();
        self.seen.get_mut().clear();
    }

    /// Ends a round of this walk, which may continue with more of its stack. Returns the cost so far in decoded
    /// instructions, reads included, and whether the budget ran out.
    pub fn end_round(&mut self) -> (u64, bool) {
        self.requests.go_on();
        (self.requests.spent(), self.requests.is_over_budget())
    }

    /// Every [`RECHECK_INTERVAL_NS`], reads the dependencies again, and calls `forget` with a predicate: whether the
    /// conclusions on a look-up address no longer hold.
    pub fn check(&mut self, now_ns: u64, read: Read<'_>, forget: impl FnOnce(&dyn Fn(Avma) -> bool)) {
        if self.regions.is_empty() || now_ns.saturating_sub(self.checked_ns) < RECHECK_INTERVAL_NS {
            return;
        }
        self.checked_ns = now_ns;
        self.glances.clear();
        let dependencies = self.dependencies.get_mut();
        let mut bytes = Vec::new();
        let blocks = dependencies.blocks();
        let mut unreadable = Vec::new();
        for &(start, end) in &blocks {
            bytes.resize((end - start) as usize, 0);
            match read(Avma(start), &mut bytes) {
                0 => unreadable.push((start, end)),
                len => _ = dependencies.see(start, end, bytes.get(..len).unwrap_or_default()),
            }
        }
        if !blocks.is_empty() && unreadable.len() == blocks.len() {
            // The process has ended: its last samples are of the earlier code.
            return;
        }
        for (start, end) in unreadable {
            dependencies.see(start, end, &[]);
        }
        let dependencies = self.dependencies.borrow();
        forget(&|lookup: Avma| match dependencies.holds(lookup.0) {
            Some(holds) => !holds || dependencies.is_full(),
            None => self.contains(lookup),
        });
        drop(dependencies);
        self.dependencies.get_mut().forget_changed();
    }

    /// Reads the block that a walk needs and its nearest neighbour, where a function may continue. Adjacent pieces
    /// are read again, so that the code is one piece from one time.
    pub fn read(&mut self, NeedsBytes(Avma(at)): NeedsBytes, read: Read<'_>) {
        self.requests.note_read(2);
        self.requests.spend(2 * BLOCK_COST);
        let Some(region) = self.region(at).cloned() else { return };
        let first = at.saturating_sub(BLOCK_BYTES / 2) & !(BLOCK_BYTES - 1);
        let behind = at.saturating_add(BLOCK_BYTES / 2).saturating_add(BLOCK_BYTES - 1) & !(BLOCK_BYTES - 1);
        let mut range = first.max(region.start)..behind.min(region.end);
        let mut region_end = region.end;
        self.pieces.retain(|piece| {
            let touches = piece.end >= range.start && range.end >= piece.start;
            if touches {
                range = range.start.min(piece.start)..range.end.max(piece.end);
                region_end = region_end.max(piece.region_end);
            }
            !touches
        });
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let len = read(Avma(range.start), &mut bytes);
        bytes.truncate(len);
        self.seen.get_mut().retain(|start| !range.contains(start));
        self.pieces.push(Piece { start: range.start, bytes, end: range.end, region_end });
    }

    /// The bytes of a piece from an address on.
    fn given<'p>(&self, piece: &'p Piece, at: Avma) -> Option<&'p [u8]> {
        if self.requests.is_missing() {
            self.requests.request(at.0);
            return None;
        }
        self.requests.touch(at.0);
        self.requests.spend(1);
        if piece.end - at.0 < INSTRUCTION_BYTES_MAX && piece.end < piece.region_end {
            self.requests.request(piece.end);
        }
        piece.bytes.get((at.0 - piece.start) as usize..).filter(|bytes| !bytes.is_empty())
    }

    /// The piece that contains an address: mostly that of the previous instruction.
    fn piece(&self, at: u64) -> Option<&Piece> {
        if let Some(last) = self.pieces.get(self.last.get()).filter(|last| last.contains(at)) {
            return Some(last);
        }
        let index = self.pieces.iter().position(|piece| piece.contains(at))?;
        self.last.set(index);
        self.pieces.get(index)
    }

    /// Requests bytes, if the address is in code without a file.
    fn request(&self, at: Avma) {
        if self.contains(at) {
            self.requests.request(at.0);
        }
    }

    /// Records that the conclusion on an address depends on the returned blocks, and on the blocks that follow
    /// them, if they were read.
    fn commit_dependencies(&self, lookup: Avma) {
        self.requests.with_dependencies(|touched, is_all| {
            let (mut dependencies, mut seen) = (self.dependencies.borrow_mut(), self.seen.borrow_mut());
            let mut is_known = is_all;
            let mut blocks: Vec<u64> = Vec::new();
            let behind = |block: u64| [Some(block), block.checked_add(BLOCK_BYTES)];
            for block in touched.iter().flat_map(|block| behind(*block)).flatten() {
                for piece in &self.pieces {
                    let start = block.max(piece.start);
                    let end = block.saturating_add(BLOCK_BYTES).min(piece.end);
                    if start >= end || blocks.contains(&start) {
                        continue;
                    }
                    blocks.push(start);
                    if !seen.contains(&start) {
                        match dependencies.see(start, end, piece.between(start, end)) {
                            true => seen.push(start),
                            false => is_known = false,
                        }
                    }
                }
            }
            match is_known {
                true => dependencies.note(lookup.0, &blocks),
                false => dependencies.forget(lookup.0),
            }
        });
    }
}

/// The code of a target: that of its images, and JIT code.
#[derive(Clone, Copy, Debug)]
pub struct TargetCode<'a> {
    /// Code of images.
    pub images: ImageView<'a>,
    /// Code of no image.
    pub jit: &'a JitCode,
    /// Reader for a few bytes of JIT code.
    pub memory: Option<&'a CodeMemory<'a>>,
}

impl Code for TargetCode<'_> {
    fn is_code(&self, at: Avma) -> bool {
        self.images.is_code(at)
    }

    fn code(&self, at: Avma) -> Option<&[u8]> {
        // Bytes already read are JIT code: this avoids a look-up of the image for each instruction.
        if let Some(piece) = self.jit.piece(at.0) {
            return self.jit.given(piece, at);
        }
        let code = self.images.code(at);
        if code.is_none() {
            self.jit.request(at);
        }
        code
    }

    fn glance(&self, at: Avma) -> Glance {
        if let Some(code) = self.images.code(at) {
            return Glance::of(code);
        }
        let memory = self.memory.filter(|_| self.jit.contains(at));
        let Some(memory) = memory else { return self.code(at).map(Glance::of).unwrap_or_default() };
        self.jit.glances.get(at).unwrap_or_else(|| {
            self.jit.requests.spend(GLANCE_COST);
            self.jit.glances.read(at, memory)
        })
    }

    fn traits(&self, at: Avma) -> CodeTraits {
        let is_jit = self.jit.contains(at);
        CodeTraits {
            is_jit,
            keeps_frame_records: self.jit.by_v8 && (is_jit || self.images.is_built_into_v8(at)),
            has_hotspot_headers: self.jit.by_hotspot && is_jit,
        }
    }

    fn file_place(&self, at: Avma) -> Option<FilePlace> {
        self.images.file_place(at).filter(|_| !self.jit.contains(at))
    }

    fn commit_dependencies(&self, lookup: Avma) -> bool {
        let is_whole = self.jit.requests.is_whole();
        if is_whole {
            self.jit.commit_dependencies(lookup);
        }
        is_whole
    }

    fn missing_bytes(&self) -> Option<NeedsBytes> {
        self.jit.requests.missing_bytes()
    }

    fn is_interrupted(&self) -> bool {
        self.jit.requests.is_missing() || self.jit.requests.is_over_budget()
    }

    fn may_follow(&self, lookup: Avma) -> bool {
        let may = self.jit.requests.has_budget() || !self.jit.contains(lookup);
        if !may {
            self.jit.requests.note_over_budget();
        }
        may
    }

    fn note_search(&self, from: Avma, to: Avma) {
        let blocks = (from.0 & !(BLOCK_BYTES - 1)..to.0).step_by(BLOCK_BYTES as usize);
        blocks.for_each(|block| self.jit.requests.touch(block));
    }

    /// Facts about JIT code are in images, too: its compiler registers them.
    fn inner(&self, _at: Avma) -> Option<&dyn Code> {
        Some(&self.images)
    }
}

// ---- The bytes of JIT code that each conclusion depends on: it is kept while they are unchanged. Input: blocks of
// code, and look-up addresses. Output: whether the conclusion on an address still holds. Not for: reading memory,
// and the conclusions themselves, which the walker has.

/// Limit on blocks that are compared; code of 8 MiB.
const BLOCKS_MAX: usize = 1024;
/// Limit on addresses with known dependencies.
const LEARNED_MAX: usize = 65_536;

/// The blocks of JIT code that were read, and which addresses depend on each.
#[derive(Debug, Default)]
struct Dependencies {
    /// By first address.
    blocks: HashMap<u64, Block>,
    /// By look-up address: the first addresses of blocks.
    learned: HashMap<u64, Box<[u64]>>,
    /// Blocks that changed after a conclusion depended on them.
    changed: HashSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// The first address after it.
    end: u64,
    fingerprint: u64,
}

impl Dependencies {
    /// Forgets everything.
    fn clear(&mut self) {
        *self = Dependencies::default();
    }

    /// The known blocks: first address, and first address after it.
    fn blocks(&self) -> Vec<(u64, u64)> {
        self.blocks.iter().map(|(start, block)| (*start, block.end)).collect()
    }

    /// Adds a block as just read, or compares it with the first read. Returns `false` if there is no room for it.
    fn see(&mut self, start: u64, end: u64, bytes: &[u8]) -> bool {
        let fingerprint = fingerprint(bytes);
        if let Some(known) = self.blocks.get(&start) {
            if (known.end, known.fingerprint) != (end, fingerprint) {
                self.changed.insert(start);
            }
            return true;
        }
        let has_room = self.blocks.len() < BLOCKS_MAX;
        if has_room {
            self.blocks.insert(start, Block { end, fingerprint });
        }
        has_room
    }

    /// Records that the conclusion on an address depends on these blocks, which have all been seen, in addition to
    /// earlier ones.
    fn note(&mut self, lookup: u64, blocks: &[u64]) {
        let has_room = self.learned.len() < LEARNED_MAX;
        match self.learned.get_mut(&lookup) {
            Some(known) if blocks.iter().all(|block| known.contains(block)) => {}
            Some(known) => {
                let more = blocks.iter().filter(|block| !known.contains(block));
                *known = known.iter().chain(more).copied().collect();
            }
            None if has_room => {
                self.learned.insert(lookup, blocks.into());
            }
            None => {}
        }
    }

    /// Records that the conclusion on an address has an unknown dependency.
    fn forget(&mut self, lookup: u64) {
        self.learned.remove(&lookup);
    }

    /// Whether the conclusion on an address held at the last comparison; `None` if its dependencies were not
    /// recorded.
    fn holds(&self, lookup: u64) -> Option<bool> {
        let blocks = self.learned.get(&lookup)?;
        Some(!blocks.iter().any(|block| self.changed.contains(block)))
    }

    /// Drops the blocks that have changed, and what depended on them; all of them if the table is full, since code
    /// that no longer runs may have filled it.
    fn forget_changed(&mut self) {
        if self.blocks.len() >= BLOCKS_MAX || self.learned.len() >= LEARNED_MAX {
            return self.clear();
        }
        let changed = std::mem::take(&mut self.changed);
        if changed.is_empty() {
            return;
        }
        self.learned.retain(|_, blocks| !blocks.iter().any(|block| changed.contains(block)));
        self.blocks.retain(|start, _| !changed.contains(start));
    }

    /// Whether [`Dependencies::forget_changed`] will drop everything.
    fn is_full(&self) -> bool {
        self.blocks.len() >= BLOCKS_MAX || self.learned.len() >= LEARNED_MAX
    }
}

/// A 64-bit hash of the bytes: different ones collide with probability 2^-64. Each step is a bijection of the
/// state before it and of the word, so a difference in one word is always detected. Four lanes hide the latency of
/// multiplication.
fn fingerprint(bytes: &[u8]) -> u64 {
    // Odd: the fractional part of the golden ratio (Knuth, The Art of Computer Programming, 6.4).
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes = [1, 2, 3, 4];
    let (chunks, rest) = bytes.as_chunks::<32>();
    for chunk in chunks {
        let (words, _) = chunk.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = mixed(*lane, u64::from_le_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    let rest = rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let last = words.chain([rest, bytes.len() as u64]);
    lanes.into_iter().chain(last).fold(0, mixed)
}

// ---- A few bytes of JIT code at an address, read during a walk. A walk that needs a block of code must be
// repeated, which is too expensive for words that only resemble return addresses (all memory of Chez Scheme is
// executable).

/// Limit on cached glances.
const KEPT_MAX: usize = 1 << 14;

/// Bytes read, by address.
#[derive(Debug, Default)]
struct Glances(RefCell<HashMap<u64, Glance>>);

impl Glances {
    /// Forgets all.
    fn clear(&mut self) {
        self.0.get_mut().clear();
    }

    /// The bytes read at an address before.
    fn get(&self, at: Avma) -> Option<Glance> {
        self.0.borrow().get(&at.0).copied()
    }

    /// Reads the bytes at an address.
    fn read(&self, at: Avma, memory: &CodeMemory<'_>) -> Glance {
        let mut bytes = [0; GLANCE_BYTES];
        let len = memory.read(at, &mut bytes);
        let glance = Glance::of(bytes.get(..len).unwrap_or_default());
        let mut kept = self.0.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(at.0, glance);
        glance
    }
}

// ---- Reads a target's memory while it runs. Input: an address. Output: bytes, or that they cannot be read.

/// Reads memory from an address on. Returns the number of bytes read.
pub type Read<'a> = &'a mut dyn FnMut(Avma, &mut [u8]) -> usize;

/// The memory of a target, for walks.
pub struct CodeMemory<'a>(RefCell<Read<'a>>);

impl<'a> CodeMemory<'a> {
    /// Wraps a reader.
    pub fn new(read: Read<'a>) -> CodeMemory<'a> {
        CodeMemory(RefCell::new(read))
    }

    /// Reads from an address on.
    fn read(&self, at: Avma, into: &mut [u8]) -> usize {
        self.0.borrow_mut()(at, into)
    }
}

impl fmt::Debug for CodeMemory<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CodeMemory")
    }
}

// ---- Requests of one walk for JIT code: the address of missing bytes, the number of decoded instructions, and the
// blocks that its next conclusion depends on.

/// Bytes are read in blocks of this size, a power of two; more than a walker decodes from one address (see
/// [`Code::note_search`]).
const BLOCK_BYTES: u64 = 8 << 10;
/// Limit on blocks that one walk reads, two at once, before it is repeated: enough code for a deep stack.
const REQUEST_BLOCKS_MAX: usize = 512;

/// The requests of one walk.
#[derive(Debug, Default)]
struct Requests {
    /// Address of the missing bytes.
    missing: Cell<Option<u64>>,
    /// Readable bytes were missing since the last conclusion.
    lacked: Cell<bool>,
    /// Bytes were withheld since the last conclusion, because the walk reached its limit of reads.
    refused: Cell<bool>,
    blocks_read: usize,
    /// Limit on decoded instructions, and their number so far.
    budget: u64,
    spent: Cell<u64>,
    /// A search was skipped because the budget was spent.
    is_over_budget: Cell<bool>,
    /// Blocks with bytes returned since the last conclusion, by aligned address.
    touched: RefCell<Vec<u64>>,
}

impl Requests {
    /// Begins a walk, with this budget of instructions.
    fn begin(&mut self, budget: u64) {
        let touched = std::mem::take(&mut self.touched);
        *self = Requests { budget, touched, ..Requests::default() };
        self.touched.get_mut().clear();
    }

    /// Continues the walk, possibly with more of its stack.
    fn go_on(&mut self) {
        self.missing.set(None);
        self.touched.get_mut().clear();
    }

    /// Requests bytes from an address on, which have not been read.
    fn request(&self, at: u64) {
        if self.is_missing() {
            self.lacked.set(true);
        } else if self.blocks_read < REQUEST_BLOCKS_MAX {
            self.missing.set(Some(at));
            self.lacked.set(true);
        } else {
            self.refused.set(true);
        }
    }

    /// Whether bytes are missing. No others are returned until they are read, since the rest of the walk is void.
    fn is_missing(&self) -> bool {
        self.missing.get().is_some()
    }

    /// The bytes that the walk needs before it is repeated.
    fn missing_bytes(&self) -> Option<NeedsBytes> {
        self.missing.get().filter(|_| !self.is_over_budget.get()).map(|at| NeedsBytes(Avma(at)))
    }

    /// Records that blocks were read.
    fn note_read(&mut self, blocks: usize) {
        self.go_on();
        self.blocks_read += blocks;
    }

    /// Records that bytes of a block were returned.
    fn touch(&self, at: u64) {
        let block = at & !(BLOCK_BYTES - 1);
        let mut touched = self.touched.borrow_mut();
        if touched.last() != Some(&block) {
            touched.push(block);
        }
    }

    /// Whether the current look-up had all bytes that it requested; if not, its result is void. Begins the next
    /// one.
    fn is_whole(&self) -> bool {
        let is_whole = !self.lacked.take();
        if !is_whole {
            self.touched.borrow_mut().clear();
        }
        is_whole
    }

    /// Calls `act` with the blocks that the look-up depends on, and whether those are all.
    fn with_dependencies(&self, act: impl FnOnce(&[u64], bool)) {
        let mut touched = self.touched.borrow_mut();
        touched.sort_unstable();
        touched.dedup();
        let is_all = !self.refused.take() && !touched.is_empty();
        act(&touched, is_all);
        touched.clear();
    }

    fn spend(&self, instructions: u64) {
        self.spent.set(self.spent.get().saturating_add(instructions));
    }

    fn spent(&self) -> u64 {
        self.spent.get()
    }

    fn has_budget(&self) -> bool {
        self.spent.get() < self.budget
    }

    /// Records that a search was skipped because the budget was spent.
    fn note_over_budget(&self) {
        self.is_over_budget.set(true);
    }

    fn is_over_budget(&self) -> bool {
        self.is_over_budget.get()
    }
}

#[cfg(test)]
mod tests {
    use super::REQUEST_BLOCKS_MAX;
    use super::*;

    const START: u64 = 0x7000_0000_1000;

    impl JitCode {
        fn code(&self, at: Avma) -> Option<&[u8]> {
            if let Some(piece) = self.piece(at.0) {
                return self.given(piece, at);
            }
            self.request(at);
            None
        }
    }

    /// Whether readable bytes were missing since the last call.
    fn lacks(jit: &JitCode) -> bool {
        !jit.requests.is_whole()
    }

    /// Reads the bytes that the walk needs. Returns whether it needed any.
    fn fill(jit: &mut JitCode, read: Read<'_>) -> bool {
        let needs = jit.requests.missing_bytes();
        needs.into_iter().for_each(|needs| jit.read(needs, &mut *read));
        needs.is_some()
    }

    fn jit(bytes: u64) -> JitCode {
        let mut jit = JitCode::default();
        let mapping = Mapping::anonymous(Avma(START)..Avma(START + bytes));
        jit.update(0, &[mapping], &Images::default());
        jit
    }

    /// Fills each byte with the number of its page.
    fn page_numbers(at: Avma, into: &mut [u8]) -> usize {
        for (index, byte) in into.iter_mut().enumerate() {
            *byte = ((at.0 - START + index as u64) >> 12) as u8;
        }
        into.len()
    }

    #[test]
    fn requested_code_is_read_once_and_in_one_piece() {
        let mut jit = jit(0x9000);
        assert_eq!((jit.code(Avma(START - 1)), lacks(&jit)), (None, false), "no code at all");
        assert_eq!((jit.code(Avma(START + 8)), lacks(&jit)), (None, true));
        assert!(fill(&mut jit, &mut page_numbers));
        assert!(!fill(&mut jit, &mut page_numbers), "nothing more is wanted");
        // Blocks are aligned, the region is not.
        let bytes = jit.code(Avma(START)).map(|bytes| (bytes.len(), bytes[0]));
        assert_eq!(bytes, Some((0x3000, 0)));
        assert!(!lacks(&jit));
        assert_eq!(jit.code(Avma(START + 0x2ff8)).map(<[u8]>::len), Some(8));
        assert!(lacks(&jit), "an instruction may go on in the next block");
        assert_eq!((jit.code(Avma(START)), lacks(&jit)), (None, true), "the walk is made again");
        assert_eq!((jit.code(Avma(START - 1)), lacks(&jit)), (None, false));
        assert!(fill(&mut jit, &mut page_numbers));
        let bytes = jit.code(Avma(START + 0x2ff8)).map(|bytes| (bytes.len(), bytes[8]));
        assert_eq!((bytes, lacks(&jit)), (Some((0x2008, 3)), false));
        jit.begin_walk(u64::MAX);
        assert_eq!((jit.code(Avma(START)), lacks(&jit)), (None, true), "another walk reads anew");
    }

    #[test]
    fn unreadable_memory_is_not_requested_again() {
        let mut jit = jit(0x9000);
        assert_eq!((jit.code(Avma(START + 0x2000)), lacks(&jit)), (None, true));
        assert!(fill(&mut jit, &mut |_, _| 0));
        assert_eq!((jit.code(Avma(START + 0x2000)), lacks(&jit)), (None, false));
        assert!(!fill(&mut jit, &mut |_, _| 0));
    }

    /// Whether conclusions on `START` and on the fourth block after it survive a check that reads by `read`.
    fn kept_after(read: Read<'_>) -> (bool, bool) {
        let mut jit = jit(0x20_000);
        let far = Avma(START + 0x10_000);
        for at in [Avma(START), far] {
            jit.begin_walk(u64::MAX);
            assert_eq!(jit.code(at), None);
            assert!(fill(&mut jit, &mut page_numbers));
            assert!(jit.code(at).is_some());
            jit.commit_dependencies(at);
        }
        let mut kept = (true, true);
        jit.check(RECHECK_INTERVAL_NS, read, |is_forgotten| {
            kept = (!is_forgotten(Avma(START)), !is_forgotten(far))
        });
        kept
    }

    #[test]
    fn conclusions_are_dropped_with_the_code_but_not_with_the_process() {
        assert_eq!(kept_after(&mut page_numbers), (true, true));
        assert_eq!(kept_after(&mut |_, _| 0), (true, true), "the process has ended");
        let unmapped = &mut |at: Avma, into: &mut [u8]| {
            if at.0 < START + 0x8000 { 0 } else { page_numbers(at, into) }
        };
        assert_eq!(kept_after(unmapped), (false, true), "a part was unmapped");
        let replaced = &mut |at: Avma, into: &mut [u8]| {
            let len = page_numbers(at, into);
            if at.0 < START + 0x8000 {
                into[0] ^= 1;
            }
            len
        };
        assert_eq!(kept_after(replaced), (false, true));
    }

    #[test]
    fn a_walk_reads_a_limited_number_of_blocks() {
        let mut jit = jit(1 << 30);
        let mut reads = 0;
        for block in 0..2 * REQUEST_BLOCKS_MAX as u64 {
            let _ = jit.code(Avma(START + 4 * block * BLOCK_BYTES));
            fill(&mut jit, &mut |_, _| {
                reads += 1;
                0
            });
        }
        assert_eq!((reads, lacks(&jit)), (REQUEST_BLOCKS_MAX / 2, true));
        assert_eq!((jit.code(Avma(START + (1 << 29))), lacks(&jit)), (None, false));
    }
}

#[cfg(test)]
mod dependencies_tests {
    use super::*;

    #[test]
    fn conclusions_on_a_changed_block_no_longer_hold() {
        let mut dependencies = Dependencies::default();
        assert!(dependencies.see(0, 4, &[1, 2, 3, 4]) && dependencies.see(8, 12, &[5, 6, 7, 8]));
        dependencies.note(1, &[0]);
        dependencies.note(2, &[8]);
        dependencies.note(2, &[0]);
        assert!(dependencies.see(0, 4, &[1, 2, 3, 4]));
        assert_eq!([1, 2, 3].map(|lookup| dependencies.holds(lookup)), [Some(true), Some(true), None]);
        // Also after the block changes back: something may have been learned in between.
        assert!(dependencies.see(8, 12, &[5, 6, 7, 9]) && dependencies.see(8, 12, &[5, 6, 7, 8]));
        assert_eq!([1, 2].map(|lookup| dependencies.holds(lookup)), [Some(true), Some(false)]);
        dependencies.forget_changed();
        assert_eq!([1, 2].map(|lookup| dependencies.holds(lookup)), [Some(true), None]);
        assert_eq!(dependencies.blocks(), [(0, 4)]);
        dependencies.forget(1);
        assert_eq!(dependencies.holds(1), None);
    }

    #[test]
    fn a_full_table_is_cleared() {
        let mut dependencies = Dependencies::default();
        for start in 0..BLOCKS_MAX as u64 {
            assert!(dependencies.see(start, start + 1, &[0]));
        }
        dependencies.note(7, &[7]);
        assert!(!dependencies.see(u64::MAX, u64::MAX, &[0]) && dependencies.see(7, 8, &[0]));
        assert!(dependencies.is_full());
        dependencies.forget_changed();
        assert!(!dependencies.is_full() && dependencies.holds(7).is_none());
    }

    #[test]
    fn any_byte_and_the_length_change_the_fingerprint() {
        let bytes: Vec<u8> = (0..8192 + 13).map(|index| (index * 7 + index / 256) as u8).collect();
        let before = fingerprint(&bytes);
        for at in [0, 1, 7, 8, 31, 32, 4095, 4096, 8190, 8191, 8192, 8200, 8204] {
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                assert_ne!(fingerprint(&other), before, "byte {at}, bit {bit}");
            }
        }
        assert_ne!(fingerprint(&bytes[..8204]), before);
        assert_ne!(fingerprint(&[0; 8]), fingerprint(&[0; 9]));
        assert_ne!(fingerprint(&[]), fingerprint(&[0; 32]));
    }
}
