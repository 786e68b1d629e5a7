//! State of the process: settings from the control file, the set of sampled blocks, and the ring, which is
//! created at the first sample. After a fork the child has neither set nor ring, and creates its own.
//!
//! All states change by compare-and-swap, and no thread waits for long: if another thread is changing the state, it
//! yields a few times, and continues without a sample.
#![allow(unsafe_code)]

use super::block_set::{BlockSet, FILTER_SIZE};
use super::files::{
    self, BUFFER_SIZE, Part, RingError, file_name, name, open_directory, release_buffer, take_buffer,
};
use super::interval::{Random, draw};
#[cfg(not(target_vendor = "apple"))]
use super::mappings::MappingTable;
use super::ring::{NoRoom, Reservation, Ring, RingState};
use super::shared_memory::{Allocation, Refusal};
use super::shared_memory::{
    CONTROL_NAME, CONTROL_SIZE, Control, DATA_OFFSET, DATA_SIZE_MAX, DATA_SIZE_MIN, DIRECTORY_VARIABLE,
    MAGIC, MAPS_PREFIX, Origin, PIECE_SIZE_MAX, RING_PREFIX, RingHeader, SET_SLOTS_MAX, STACK_SIZE_MAX,
    piece_size,
};
use super::system;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The filter of the set of sampled blocks; the entry points read it.
pub static FILTER: [AtomicU8; FILTER_SIZE] = [const { AtomicU8::new(0) }; FILTER_SIZE];

/// Random numbers of all threads.
pub static RANDOM: Random = Random::new(0);

/// One of the states below.
static SETUP: AtomicU32 = AtomicU32::new(NOT_BEGUN);
const NOT_BEGUN: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;
/// Nothing is recorded: no control file, or not enough memory.
const OFF: u32 = 3;

// Constant once SETUP is READY.
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(null_mut());
static MEAN_BYTES: AtomicU64 = AtomicU64::new(0);
static DATA_SIZE: AtomicU64 = AtomicU64::new(0);
static STACK_SIZE: AtomicU32 = AtomicU32::new(0);
static SLOTS: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
static SLOT_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The table of mappings, if they are recorded; the entry points read whether there is one.
#[cfg(not(target_vendor = "apple"))]
pub static MAPPINGS: AtomicPtr<MappingTable> = AtomicPtr::new(null_mut());
/// Memory that the kernel zeroes in a child of fork. A child of vfork shares its parent's.
static RING_STATE: AtomicPtr<RingState> = AtomicPtr::new(null_mut());

const NO_RING: u32 = 0;
const MAKING_RING: u32 = 1;
const HAS_RING: u32 = 2;
/// The ring could not be created; there is no second attempt.
const REFUSED: u32 = 3;

// Address of the ring, or after a fork of the parent's.
static RING: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static PID: AtomicU32 = AtomicU32::new(0);
static SEQUENCE: AtomicU32 = AtomicU32::new(0);
/// Changes whenever a ring is created, so that threads detect state left over from another process.
static GENERATION: AtomicU32 = AtomicU32::new(1);
/// How often a thread yields to the one that is creating the ring, before its sample is lost.
const YIELDS_MAX: u32 = 200;
/// Nonzero: the process restricts its system calls (seccomp), and calls by the shim could kill it.
static FILTERED: AtomicU32 = AtomicU32::new(0);

/// Unloads of images that have begun.
pub static UNLOADS: AtomicU32 = AtomicU32::new(0);

/// Settings of a recorded process.
#[derive(Clone, Copy)]
pub struct Settings {
    control: &'static Control,
    /// Mean number of bytes between samples.
    pub mean_bytes: u64,
}

/// Value of an environment variable.
pub enum Variable {
    /// There is no environment yet: libc or, with dyld, this library is not initialized.
    NotYet,
    /// It is not set.
    Absent,
    /// A C string.
    Present(*const u8),
}

/// What a thread can do now.
pub enum Status {
    /// Record samples.
    Recording(Settings),
    /// Nothing yet: there is no environment, or another thread is setting up.
    Later,
    /// Nothing, permanently.
    Off,
}

/// Returns the settings, which the first call reads.
pub fn status() -> Status {
    match SETUP.load(Ordering::Acquire) {
        READY => {}
        OFF => return Status::Off,
        _ => match set_up() {
            READY => {}
            OFF => return Status::Off,
            _ => return Status::Later,
        },
    }
    Status::Recording(settings())
}

/// The settings, once SETUP is READY.
fn settings() -> Settings {
    // SAFETY: mapped permanently before SETUP became READY.
    let control = unsafe { &*CONTROL.load(Ordering::Relaxed) };
    Settings { control, mean_bytes: MEAN_BYTES.load(Ordering::Relaxed) }
}

/// Reserves room in the ring of this process. Where each record counts, waits until the reader has made some: no longer than
/// it takes to see that it makes none.
pub fn reserve(
    ring: &Ring,
    reserve: impl Fn(&Ring) -> Result<Reservation, NoRoom>,
) -> Result<Reservation, NoRoom> {
    let mut reserved = reserve(ring);
    if reserved.is_err() {
        let settings = settings();
        let mut last = None;
        while reserved.is_err() && settings.may_wait() && {
            let (read, can_read_more) = ring.progress();
            can_read_more && settings.has_patience(&mut last, read)
        } {
            system::pause();
            reserved = reserve(ring);
        }
    }
    reserved
}

fn set_up() -> u32 {
    if SETUP.compare_exchange(NOT_BEGUN, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return BUSY;
    }
    let state = match system::variable(DIRECTORY_VARIABLE) {
        Variable::NotYet => NOT_BEGUN,
        Variable::Absent => OFF,
        Variable::Present(value) => {
            // SAFETY: strings of the environment end with zero.
            if unsafe { read_control(value) }.is_some() { READY } else { OFF }
        }
    };
    SETUP.store(state, Ordering::Release);
    state
}

/// Maps the control file in a directory and the memory that it specifies.
///
/// # Safety
/// A C string.
unsafe fn read_control(directory: *const u8) -> Option<()> {
    // SAFETY: a C string.
    let directory = unsafe { files::set_directory(directory) }?;
    let buffer = take_buffer()?;
    let filters = system::seccomp_filters(buffer, BUFFER_SIZE);
    let name = file_name(&[Part::Text(CONTROL_NAME)]);
    let is_filtered = filters > 0 && {
        // Only with calls that the dynamic linker has made, too: the filter may forbid others.
        const _: () = assert!(BUFFER_SIZE >= size_of::<Control>());
        let length = directory.read(&name, buffer, BUFFER_SIZE);
        // SAFETY: that many bytes of the buffer are live; its content has no alignment.
        let control = unsafe { buffer.cast::<Control>().read_unaligned() };
        // More than stackprof has.
        length < size_of::<Control>() || (1..=filters).contains(&control.seccomp_filters)
    };
    release_buffer();
    if is_filtered {
        return None;
    }
    let control = directory.map_control(&name, CONTROL_SIZE)?.cast::<Control>();
    files::note_identity(&directory)?;
    // SAFETY: mapped permanently, of that size; zero is valid for each field.
    let control = unsafe { &*control };
    if control.magic != MAGIC {
        return None;
    }
    control.programs.fetch_add(1, Ordering::Relaxed);
    let refuse = |refusal: Refusal| {
        control.refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
        None
    };
    let data_size = control.data_size;
    let slots = control.set_slots;
    let is_valid = control.mean_bytes > 0
        && data_size.is_power_of_two()
        && (DATA_SIZE_MIN..=DATA_SIZE_MAX).contains(&data_size)
        && slots.is_power_of_two()
        && (64..=SET_SLOTS_MAX).contains(&slots);
    if !is_valid {
        return refuse(Refusal::Control);
    }
    let largest = data_size / 4 - size_of::<Allocation>() as u64;
    let stack_size = u64::from(control.stack_size.min(STACK_SIZE_MAX)).min(largest) as u32 & !15;
    let (Some(table), Some(state)) =
        (system::map_wiped(slots as usize * size_of::<u64>()), system::map_wiped(size_of::<RingState>()))
    else {
        return refuse(Refusal::Map);
    };
    RANDOM.reseed(if control.seed == 0 { seed_from_clock() } else { control.seed });
    CONTROL.store(core::ptr::from_ref(control).cast_mut(), Ordering::Relaxed);
    MEAN_BYTES.store(control.mean_bytes, Ordering::Relaxed);
    DATA_SIZE.store(data_size, Ordering::Relaxed);
    STACK_SIZE.store(stack_size, Ordering::Relaxed);
    SLOTS.store(table.cast(), Ordering::Relaxed);
    SLOT_COUNT.store(slots as usize, Ordering::Relaxed);
    let state: *mut RingState = state.cast();
    // SAFETY: mapped permanently, and zero.
    unsafe { &*state }.is_owner.store(1, Ordering::Relaxed);
    RING_STATE.store(state, Ordering::Relaxed);
    PID.store(system::pid(), Ordering::Relaxed);
    #[cfg(not(target_vendor = "apple"))]
    if control.records_mappings != 0 {
        match system::map_wiped(size_of::<MappingTable>()) {
            Some(table) => MAPPINGS.store(table.cast(), Ordering::Release),
            None => return refuse(Refusal::Map),
        }
    }
    Some(())
}

/// A seed that no other process has.
fn seed_from_clock() -> u64 {
    system::now_ns() ^ u64::from(system::pid()) << 32
}

/// Called by libc in a child of `fork`, which inherits the rest of its thread's interval and the random numbers after
/// it, like its siblings. Reseeds, because samples of processes must be independent: otherwise the error of their sum
/// is underestimated.
pub extern "C" fn begin_child() {
    if SETUP.load(Ordering::Acquire) != READY || is_filtered() {
        return;
    }
    RANDOM.reseed(seed_from_clock() ^ settings().control.seed);
    let thread = system::Thread::current();
    // An unload by a destructor that forks goes on without its list.
    #[cfg(not(target_vendor = "apple"))]
    thread.set_unload(0);
    if thread.generation() != 0 {
        thread.set_bytes_to_sample(draw(&RANDOM, MEAN_BYTES.load(Ordering::Relaxed)));
    }
}

/// Sampled blocks of this process; none before `status` is `Recording`.
pub fn blocks() -> Option<BlockSet<'static>> {
    let slots = SLOTS.load(Ordering::Acquire);
    if slots.is_null() {
        return None;
    }
    // SAFETY: mapped permanently, with that many words; the count was stored before.
    let slots = unsafe { core::slice::from_raw_parts(slots, SLOT_COUNT.load(Ordering::Relaxed)) };
    Some(BlockSet::new(slots, &FILTER))
}

/// The table of mappings, if they are recorded.
#[cfg(not(target_vendor = "apple"))]
pub fn mappings() -> Option<&'static MappingTable> {
    // SAFETY: mapped permanently, of that size; zero is valid for all its fields.
    unsafe { MAPPINGS.load(Ordering::Acquire).as_ref() }
}

fn ring_state() -> Option<&'static RingState> {
    // SAFETY: mapped permanently, of that size; zero is valid for all its fields.
    unsafe { RING_STATE.load(Ordering::Acquire).as_ref() }
}

/// The ring of this process, if it has one.
pub fn ring() -> Option<Ring<'static>> {
    let state = ring_state()?;
    if state.state.load(Ordering::Acquire) != HAS_RING {
        return None;
    }
    let (base, data_size) = (RING.load(Ordering::Relaxed), DATA_SIZE.load(Ordering::Relaxed));
    // SAFETY: the state says that the ring is mapped, and is zeroed in a child, which has another.
    Some(unsafe { Ring::new(base, data_size, &state.positions, system::populate) })
}

/// Number of the process's ring, at least 1: thread state with another number is from the parent.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

impl Settings {
    /// Most bytes of stack to record.
    pub fn stack_size(&self) -> u32 {
        STACK_SIZE.load(Ordering::Relaxed)
    }

    /// Whether stackprof has stopped the recording.
    pub fn is_stopped(&self) -> bool {
        self.control.is_stopped.load(Ordering::Relaxed) != 0
    }

    /// Whether a thread waits for the reader, or for the thread that creates the ring.
    fn may_wait(&self) -> bool {
        let Control { wait_ns, is_stalled, .. } = self.control;
        *wait_ns != 0 && !self.is_stopped() && is_stalled.load(Ordering::Relaxed) == 0
    }

    /// Whether a wait goes on. `last`: a count that increases while others work, and when it was seen first.
    fn has_patience(&self, last: &mut Option<(u64, u64)>, count: u64) -> bool {
        let now_ns = system::now_ns();
        match last {
            Some((before, since_ns)) if *before == count => {
                let goes_on = now_ns.saturating_sub(*since_ns) < self.control.wait_ns;
                if !goes_on {
                    self.control.is_stalled.store(1, Ordering::Relaxed);
                }
                goes_on
            }
            _ => {
                *last = Some((count, now_ns));
                true
            }
        }
    }

    /// Returns the ring, which the first call creates. None: it cannot be created, or another thread is
    /// creating it; then the sample of this size is lost.
    pub fn ring(&self, size: u64) -> Option<Ring<'static>> {
        let own = ring_state()?;
        let RingState { state, is_owner, .. } = own;
        let is_being_made = || state.load(Ordering::Acquire) == MAKING_RING;
        if is_being_made() && !is_filtered() {
            // Threads that begin together: the other one is done soon, or has been preempted.
            (0..YIELDS_MAX).take_while(|_| is_being_made()).for_each(|_| system::yield_now());
            let mut last = None;
            while is_being_made() && self.may_wait() && self.has_patience(&mut last, 0) {
                system::pause();
            }
        }
        match state.load(Ordering::Acquire) {
            HAS_RING => return ring(),
            NO_RING => {}
            MAKING_RING => {
                own.count_lost(size);
                return None;
            }
            _ => return None,
        }
        if is_filtered() {
            let refused = state.compare_exchange(NO_RING, REFUSED, Ordering::Relaxed, Ordering::Relaxed);
            refused.is_ok().then(|| self.count_refusal(Refusal::Filtered));
            return None;
        }
        if state.compare_exchange(NO_RING, MAKING_RING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.ring(size);
        }
        let is_child = is_owner.load(Ordering::Relaxed) == 0;
        let pid = system::pid();
        let next = if !is_child && pid != PID.load(Ordering::Relaxed) {
            // In a child of vfork, which may call exec at any time. The ring is its parent's.
            own.count_lost(size);
            NO_RING
        } else {
            match self.make_ring(own, pid, is_child) {
                Ok(()) => HAS_RING,
                Err(refusal) => {
                    self.count_refusal(refusal);
                    REFUSED
                }
            }
        };
        is_owner.store(1, Ordering::Relaxed);
        state.store(next, Ordering::Release);
        if next == HAS_RING {
            // Of threads that saw it being made.
            // SAFETY: the ring of this process, which stays mapped.
            own.move_lost(unsafe { &*RING.load(Ordering::Relaxed).cast::<RingHeader>() });
        }
        // Another thread may have loaded some meanwhile.
        #[cfg(target_vendor = "apple")]
        super::images::append_images();
        ring()
    }

    fn count_refusal(&self, refusal: Refusal) {
        self.control.refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn make_ring(&self, own: &RingState, pid: u32, is_child: bool) -> Result<(), Refusal> {
        let parent = PID.load(Ordering::Relaxed);
        // Of the parent, after a fork: nothing of it is mapped here.
        let inherited = RING.load(Ordering::Relaxed);
        let data_size = DATA_SIZE.load(Ordering::Relaxed);
        let size = DATA_OFFSET + data_size as usize;
        if is_child {
            // In a child of fork, which has no other thread: locks of the parent's threads are
            // free.
            files::begin_child();
            // A saturated counter also marks blocks allocated before the allocator was looked up.
            for count in FILTER.iter().filter(|count| count.load(Ordering::Relaxed) != u8::MAX) {
                count.store(0, Ordering::Relaxed);
            }
            RING.store(null_mut(), Ordering::Relaxed);
        }
        let directory = open_directory().ok_or(Refusal::Create)?;
        let buffer = take_buffer().ok_or(Refusal::Create)?;
        // Pieces of small rings are smaller than pages.
        let has_pages = piece_size(data_size) == PIECE_SIZE_MAX;
        let mut sequence = 0;
        let mapped = loop {
            match directory.make_ring(&file_name(&name(RING_PREFIX, pid, sequence)), size, has_pages) {
                Err(RingError::Exists) if sequence < 1 << 20 => sequence += 1,
                Err(RingError::Exists) => break Err(Refusal::Create),
                Err(RingError::Refused(refusal)) => break Err(refusal),
                Ok(mapped) => break Ok(mapped),
            }
        };
        if mapped.is_ok() {
            directory.copy_maps(&file_name(&name(MAPS_PREFIX, pid, sequence)), buffer, BUFFER_SIZE, size);
        }
        release_buffer();
        let (base, is_populated) = mapped?;
        let header = base.cast::<RingHeader>();
        // SAFETY: new, of that size, and nobody reads it before its magic is stored.
        unsafe {
            (*header).data_size = data_size;
            (*header).mean_bytes = self.mean_bytes;
            (*header).start_ns = system::now_ns();
            (*header).pid = pid;
            (*header).sequence = sequence;
            (*header).processor = super::entry::PROCESSOR;
            (*header).stack_size = self.stack_size();
            (*header).unloads.store(UNLOADS.load(Ordering::Acquire).into(), Ordering::Relaxed);
            if is_populated {
                (*header).is_pinned.store(1, Ordering::Relaxed);
                own.positions.set_populated();
            }
            (*header).origin = if is_child { Origin::Fork } else { Origin::Program } as u32;
            if is_child {
                (*header).parent_pid = parent;
                (*header).parent_sequence = SEQUENCE.load(Ordering::Relaxed);
                (*header).parent_has_ring = u32::from(!inherited.is_null());
            }
            system::thread_name(&raw mut (*header).comm);
            own.move_lost(&*header);
            (*header).magic.store(MAGIC, Ordering::Release);
        }
        PID.store(pid, Ordering::Relaxed);
        SEQUENCE.store(sequence, Ordering::Relaxed);
        RING.store(base, Ordering::Relaxed);
        GENERATION.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Most bytes of a list of mappings: as many as the ring has.
pub fn maps_limit() -> usize {
    DATA_OFFSET + DATA_SIZE.load(Ordering::Relaxed) as usize
}

/// The name of a file beside the ring.
pub fn ring_name(prefix: &'static str) -> [Part; 4] {
    name(prefix, PID.load(Ordering::Relaxed), SEQUENCE.load(Ordering::Relaxed))
}

/// Whether a seccomp filter may forbid system calls.
pub fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed) != 0
}

/// The process is about to restrict its system calls, or may do so unseen: creates the ring while it can, and makes no calls
/// afterwards.
#[cfg(not(target_vendor = "apple"))]
pub extern "C" fn enter_seccomp() {
    if let Status::Recording(process) = status()
        && !is_filtered()
    {
        let _blocked = system::BlockedSignals::new();
        if ring().is_none() {
            // All of it takes memory.
            DATA_SIZE.fetch_min(super::shared_memory::DEFAULT_DATA_SIZE, Ordering::Relaxed);
        }
        // Of size 0: if another thread is creating it now, nothing is lost.
        if let Some(ring) = process.ring(0) {
            ring.pin();
        }
        let thread = system::Thread::current();
        if thread.generation() == 0 {
            thread.set_bytes_to_sample(draw(&RANDOM, process.mean_bytes));
        }
        thread.set_generation(generation());
        thread.assume_stack();
    }
    FILTERED.store(1, Ordering::Relaxed);
}

/// A library was loaded whose calls do not reach the shim.
#[cfg(not(target_vendor = "apple"))]
static HAS_UNSEEN_LIBRARY: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// The program loads a library whose calls will not reach the shim.
#[cfg(not(target_vendor = "apple"))]
pub extern "C" fn count_unseen_library() {
    if let Status::Recording(settings) = status() {
        settings.control.unseen_libraries.fetch_add(1, Ordering::Relaxed);
        HAS_UNSEEN_LIBRARY.store(true, Ordering::Relaxed);
    }
}

/// The process exits: stores the time and a copy of its maps.
pub fn end() {
    if is_filtered() {
        return;
    }
    #[cfg(not(target_vendor = "apple"))]
    if HAS_UNSEEN_LIBRARY.load(Ordering::Relaxed)
        && let Status::Recording(settings) = status()
    {
        settings.control.peak_with_unseen.fetch_max(system::peak_resident_bytes(), Ordering::Relaxed);
    }
    let Some(ring) = ring() else { return };
    if let Some(directory) = open_directory()
        && let Some(buffer) = take_buffer()
    {
        let [prefix, pid, dot, number] = ring_name(MAPS_PREFIX);
        let name = file_name(&[prefix, pid, dot, number, Part::Text(".end")]);
        directory.copy_maps(&name, buffer, BUFFER_SIZE, maps_limit());
        release_buffer();
    }
    ring.header().end_ns.store(system::now_ns(), Ordering::Release);
}
