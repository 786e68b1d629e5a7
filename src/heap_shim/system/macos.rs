//! Calls of libSystem and thread-specific words on macOS. Failing calls set `errno`; once the ring exists, no call
//! made here does.
#![allow(unsafe_code)]

use super::files::{FileName, RingError};
use super::process::Variable;
use super::shared_memory::Refusal;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

// SAFETY: functions of libSystem, with the types of its headers. Variadic ones are called with the arguments
// they take.
#[link(name = "System")]
unsafe extern "C" {
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn openat(directory: c_int, name: *const c_char, flags: c_int, ...) -> c_int;
    #[cfg_attr(target_arch = "x86_64", link_name = "fstat$INODE64")]
    fn fstat(descriptor: c_int, status: *mut [u64; 18]) -> c_int;
    fn geteuid() -> u32;
    fn read(descriptor: c_int, into: *mut c_void, length: usize) -> isize;
    fn nanosleep(time: *const [i64; 2], left: *mut [i64; 2]) -> c_int;
    fn minherit(at: *mut c_void, size: usize, inherit: c_int) -> c_int;
    fn close(descriptor: c_int) -> c_int;
    fn write(descriptor: c_int, from: *const c_void, length: usize) -> isize;
    fn pwrite(descriptor: c_int, from: *const c_void, length: usize, offset: i64) -> isize;
    fn unlinkat(directory: c_int, name: *const c_char, flags: c_int) -> c_int;
    fn mmap(
        at: *mut c_void,
        size: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(at: *mut c_void, size: usize) -> c_int;
    fn getpid() -> c_int;
    fn sched_yield() -> c_int;
    fn getrlimit(resource: c_int, limit: *mut [u64; 2]) -> c_int;
    fn getenv(name: *const c_char) -> *const c_char;
    fn clock_gettime_nsec_np(clock: c_int) -> u64;
    fn pthread_key_create(key: *mut usize, destructor: *const c_void) -> c_int;
    fn pthread_setspecific(key: usize, value: *const c_void) -> c_int;
    fn pthread_getspecific(key: usize) -> *mut c_void;
    fn pthread_threadid_np(thread: usize, id: *mut u64) -> c_int;
    fn pthread_self() -> usize;
    fn pthread_get_stackaddr_np(thread: usize) -> u64;
    fn pthread_get_stacksize_np(thread: usize) -> u64;
    fn pthread_atfork(prepare: *const c_void, parent: *const c_void, child: extern "C" fn()) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const u32, before: *mut u32) -> c_int;
    fn mach_vm_read_overwrite(task: u32, at: u64, size: u64, to: u64, copied: *mut u64) -> c_int;
    fn __error() -> *mut c_int;
    static mach_task_self_: u32;
}

const O_RDONLY: c_int = 0;
const O_WRONLY: c_int = 1;
const O_RDWR: c_int = 2;
const O_NONBLOCK: c_int = 4;
const O_APPEND: c_int = 8;
const O_NOFOLLOW: c_int = 0x100;
const O_CREAT: c_int = 0x200;
const O_EXCL: c_int = 0x800;
const O_DIRECTORY: c_int = 0x10_0000;
const O_CLOEXEC: c_int = 0x100_0000;
const EEXIST: c_int = 17;
const EINTR: c_int = 4;
const RLIMIT_FSIZE: c_int = 1;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_FIXED: c_int = 0x10;
const MAP_ANON: c_int = 0x1000;
const CLOCK_UPTIME_RAW: c_int = 8;
/// The smallest page size of any Mac.
const PAGE_SIZE: usize = 4096;

/// Offset of the thread's counter from the register that points to the thread-specific words; 0 before there are
/// keys. The entry points read it. The layout is that of libpthread: a key is an index (`_PTHREAD_TSD_SLOT`).
pub static LEFT_OFFSET: AtomicUsize = AtomicUsize::new(0);
static GUARD_KEY: AtomicUsize = AtomicUsize::new(0);
static GENERATION_KEY: AtomicUsize = AtomicUsize::new(0);

/// The thread-specific words of the calling thread: initially zero, also before there are keys.
#[derive(Clone, Copy)]
pub struct Thread;

impl Thread {
    /// Those of the calling thread.
    pub fn current() -> Self {
        Self
    }

    fn get(key: usize) -> u64 {
        // SAFETY: a key of this library, or 0, which is never a key.
        if key == 0 { 0 } else { unsafe { pthread_getspecific(key) as u64 } }
    }

    fn set(key: usize, value: u64) {
        if key != 0 {
            // SAFETY: a key of this library.
            unsafe { pthread_setspecific(key, value as *const c_void) };
        }
    }

    /// Bytes until the next sample; the entry points subtract from them.
    pub fn bytes_to_sample(self) -> u64 {
        Self::get(LEFT_OFFSET.load(Ordering::Relaxed) / size_of::<usize>())
    }

    /// Sets the bytes until the next sample.
    pub fn set_bytes_to_sample(self, left: u64) {
        Self::set(LEFT_OFFSET.load(Ordering::Relaxed) / size_of::<usize>(), left);
    }

    /// The stack pointer of the allocation in progress on the thread, or 0.
    pub fn active_sp(self) -> u64 {
        Self::get(GUARD_KEY.load(Ordering::Relaxed))
    }

    /// Sets the stack pointer of the allocation in progress.
    pub fn set_active_sp(self, guard: u64) {
        Self::set(GUARD_KEY.load(Ordering::Relaxed), guard);
    }

    /// The generation of the other words; initially 0.
    pub fn generation(self) -> u32 {
        Self::get(GENERATION_KEY.load(Ordering::Relaxed)) as u32
    }

    /// Starts a generation.
    pub fn set_generation(self, generation: u32) {
        Self::set(GENERATION_KEY.load(Ordering::Relaxed), u64::from(generation));
    }

    /// The low half of the thread id.
    pub fn tid(self) -> u32 {
        let mut id = 0;
        // SAFETY: of the calling thread, into a variable.
        unsafe { pthread_threadid_np(0, &raw mut id) };
        id as u32
    }

    /// The mapped part of the thread's own stack: the kernel maps all of it when the thread starts.
    pub fn stack(self) -> (u64, u64) {
        // SAFETY: of the calling thread.
        let (base, size) = unsafe {
            let thread = pthread_self();
            (pthread_get_stackaddr_np(thread), pthread_get_stacksize_np(thread))
        };
        (base.saturating_sub(size), base)
    }

    /// Known from the start.
    pub fn add_to_stack(self, _: u64, _: u64) {}
}

/// Blocks signals while it lives: a handler that leaves by `longjmp` or allocates would find a half-written
/// record. Does not block signals of faults: their handlers always run.
pub struct BlockedSignals(u32);

impl BlockedSignals {
    /// Blocks signals.
    pub fn new() -> Self {
        // SIGILL, SIGTRAP, SIGABRT, SIGFPE, SIGBUS, SIGSEGV, SIGSYS.
        const OF_FAULTS: u32 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 9 | 1 << 10 | 1 << 11;
        const SIG_BLOCK: c_int = 1;
        let (blocked, mut before) = (!OF_FAULTS, 0);
        // SAFETY: sets are 32 bits wide.
        unsafe { pthread_sigmask(SIG_BLOCK, &raw const blocked, &raw mut before) };
        Self(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        const SIG_SETMASK: c_int = 3;
        // SAFETY: sets are 32 bits wide.
        unsafe { pthread_sigmask(SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

/// Lets other threads run.
pub fn yield_now() {
    // SAFETY: takes nothing.
    unsafe { sched_yield() };
}

/// The process id.
pub fn pid() -> u32 {
    // SAFETY: takes nothing.
    unsafe { getpid() as u32 }
}

/// CLOCK_UPTIME_RAW.
pub fn now_ns() -> u64 {
    // SAFETY: a clock's number.
    unsafe { clock_gettime_nsec_np(CLOCK_UPTIME_RAW) }
}

/// Copies `length` bytes of stack; if some are not mapped, a half, a quarter and so on, at least those in the page of
/// `from`. Returns how many, and whether there may be more.
///
/// # Safety
/// The buffer has room for them, and the byte at `from` is readable.
pub unsafe fn copy_stack(from: u64, to: *mut u8, length: usize) -> (usize, bool) {
    let mut copied = 0;
    let mut wanted = length as u64;
    while wanted >= PAGE_SIZE as u64 {
        // SAFETY: copies within this task, and fails where memory is not mapped.
        let result =
            unsafe { mach_vm_read_overwrite(mach_task_self_, from, wanted, to as u64, &raw mut copied) };
        if result == 0 {
            return (wanted as usize, wanted < length as u64);
        }
        wanted /= 2;
    }
    let in_page = (PAGE_SIZE - from as usize % PAGE_SIZE).min(length);
    // SAFETY: a page is mapped as a whole, and other threads do not write this one's frames.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to, in_page) };
    (in_page, true)
}

/// dyld initializes this library, after libSystem, which it needs.
static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// Looks up a variable, and creates the keys of the thread-specific words.
pub fn variable(name: &str) -> Variable {
    if !IS_LOADED.load(Ordering::Acquire) {
        return Variable::NotYet;
    }
    let mut text = [0u8; 32];
    let room = text.len() - 1;
    text.iter_mut().take(room).zip(name.bytes()).for_each(|(to, byte)| *to = byte);
    // SAFETY: ends with zero.
    let value = unsafe { getenv(text.as_ptr().cast()) };
    if value.is_null() || !make_keys() {
        return Variable::Absent;
    }
    Variable::Present(value.cast())
}

fn make_keys() -> bool {
    let mut keys = [0; 3];
    for key in &mut keys {
        // SAFETY: a variable for the key; no destructor.
        if unsafe { pthread_key_create(&raw mut *key, null()) } != 0 {
            return false;
        }
    }
    let [left, guard, generation] = keys;
    GUARD_KEY.store(guard, Ordering::Relaxed);
    GENERATION_KEY.store(generation, Ordering::Relaxed);
    LEFT_OFFSET.store(left * size_of::<usize>(), Ordering::Release);
    true
}

fn map(size: usize, flags: c_int, descriptor: c_int) -> Option<*mut u8> {
    // SAFETY: no fixed address.
    let address = unsafe { mmap(null_mut(), size, PROT_READ_WRITE, flags, descriptor, 0) };
    (address as isize != -1).then_some(address.cast())
}

/// Memory that is zero in each child of fork: address and size. The kernel does not do that here (minherit(2) shares,
/// copies or removes), so `begin_child` does.
static WIPED: [(AtomicPtr<u8>, AtomicUsize); 2] =
    [const { (AtomicPtr::new(null_mut()), AtomicUsize::new(0)) }; 2];

/// Maps memory that is zero, also in each child of fork.
pub fn map_wiped(size: usize) -> Option<*mut u8> {
    let size = size.next_multiple_of(16384);
    let (address, bytes) = WIPED.iter().find(|(address, _)| address.load(Ordering::Relaxed).is_null())?;
    let mapped = map(size, MAP_PRIVATE | MAP_ANON, -1)?;
    bytes.store(size, Ordering::Relaxed);
    address.store(mapped, Ordering::Relaxed);
    Some(mapped)
}

/// Called by libSystem in a child of fork, which has one thread.
extern "C" fn begin_child() {
    for (address, bytes) in &WIPED {
        let (address, bytes) = (address.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        if !address.is_null() {
            let flags = MAP_PRIVATE | MAP_ANON | MAP_FIXED;
            // SAFETY: replaces a mapping of this library by new pages.
            unsafe { mmap(address.cast(), bytes, PROT_READ_WRITE, flags, -1, 0) };
        }
    }
    super::process::begin_child();
}

/// Unmaps a mapping.
pub fn unmap(address: *mut u8, size: usize) {
    // SAFETY: a mapping of this library.
    unsafe { munmap(address.cast(), size) };
}

/// Waits a moment, in which a reader makes room for some hundred records.
pub fn pause() {
    // SAFETY: the calling thread's errno, and a time.
    unsafe {
        let errno = *__error();
        nanosleep(&[0, 50_000], null_mut());
        *__error() = errno;
    }
}

/// An open directory.
pub struct Directory(c_int);

/// Closes a descriptor at its end.
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: an open descriptor that nothing else closes.
        unsafe { close(self.0) };
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(Descriptor(self.0));
    }
}

/// Device and inode, mode and size of a file that belongs to root or to the user that this process runs as, who alone can
/// write to it.
fn trusted_status(descriptor: c_int) -> Option<([u64; 2], u32, u64)> {
    // `struct stat` with 64-bit inodes (sys/stat.h).
    let mut stat = [0u64; 18];
    // SAFETY: room for one.
    if unsafe { fstat(descriptor, &raw mut stat) } != 0 {
        return None;
    }
    let (device, mode, user) = (stat[0] as u32, (stat[0] >> 32) as u32 & 0xffff, stat[2] as u32);
    // SAFETY: takes nothing.
    let is_trusted = (user == 0 || user == unsafe { geteuid() }) && mode & 0o022 == 0;
    is_trusted.then_some(([device.into(), stat[1]], mode, stat[12]))
}

impl Directory {
    /// Opens the directory at a path, a C string.
    pub fn open(path: *const u8) -> Option<Self> {
        let flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        // SAFETY: a C string.
        let descriptor = unsafe { open(path.cast(), flags) };
        (descriptor >= 0).then_some(Self(descriptor))
    }

    /// Device and inode, if the directory belongs to root or to the user that this process runs as, who alone can change it.
    pub fn identity(&self) -> Option<[u64; 2]> {
        trusted_status(self.0).map(|(identity, ..)| identity)
    }

    fn open_file(&self, name: &FileName, flags: c_int) -> c_int {
        let mode: c_int = 0o600;
        // SAFETY: a C string.
        unsafe { openat(self.0, name.as_ptr().cast(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode) }
    }

    /// Reads the beginning of a file; returns the number of bytes.
    pub fn read(&self, name: &FileName, buffer: *mut u8, size: usize) -> usize {
        let descriptor = self.open_file(name, O_RDONLY);
        if descriptor < 0 {
            return 0;
        }
        let file = Descriptor(descriptor);
        // SAFETY: a buffer of that size.
        unsafe { read(file.0, buffer.cast(), size) }.max(0) as usize
    }

    /// Permanently maps a file of at least this size, if the directory and the file belong to root or to the user that this
    /// process runs as.
    pub fn map_control(&self, name: &FileName, size: usize) -> Option<*mut u8> {
        const S_IFMT: u32 = 0o170_000;
        const S_IFREG: u32 = 0o100_000;
        self.identity()?;
        let descriptor = self.open_file(name, O_RDWR);
        if descriptor < 0 {
            return None;
        }
        let file = Descriptor(descriptor);
        let (_, mode, length) = trusted_status(file.0)?;
        let is_control = mode & S_IFMT == S_IFREG && length >= size as u64;
        if is_control { map(size, MAP_SHARED, file.0) } else { None }
    }

    /// Creates a file and maps it; a child of fork does not inherit the mapping. Writes its zeros, so that all of it has space
    /// (else a store could raise SIGBUS).
    pub fn make_ring(&self, name: &FileName, size: usize, _: bool) -> Result<(*mut u8, bool), RingError> {
        const VM_INHERIT_NONE: c_int = 2;
        let mut limit = [u64::MAX; 2];
        // SAFETY: two words.
        unsafe { getrlimit(RLIMIT_FSIZE, &raw mut limit) };
        // Above this limit the kernel would send SIGXFSZ.
        if limit[0] < size as u64 {
            return Err(RingError::Refused(Refusal::Space));
        }
        let descriptor = self.open_file(name, O_RDWR | O_CREAT | O_EXCL);
        if descriptor < 0 {
            // SAFETY: the calling thread's errno.
            let is_there = unsafe { *__error() } == EEXIST;
            return Err(if is_there { RingError::Exists } else { RingError::Refused(Refusal::Create) });
        }
        let file = Descriptor(descriptor);
        let mapped = if write_zeros(file.0, size) {
            map(size, MAP_SHARED, file.0).ok_or(Refusal::Map)
        } else {
            Err(Refusal::Space)
        };
        let mapped = mapped.and_then(|address| {
            // SAFETY: the new mapping.
            if unsafe { minherit(address.cast(), size, VM_INHERIT_NONE) } != 0 {
                unmap(address, size);
                return Err(Refusal::Map);
            }
            Ok((address, true))
        });
        mapped.map_err(|refusal| {
            // SAFETY: a C string.
            unsafe { unlinkat(self.0, name.as_ptr().cast(), 0) };
            RingError::Refused(refusal)
        })
    }

    /// Creates a file with the image list.
    pub fn copy_maps(&self, name: &FileName, _: *mut u8, _: usize, _: usize) {
        super::images::write(self, name);
    }

    /// Appends to a file, which is created if `is_new`.
    pub fn append(&self, name: &FileName, is_new: bool, text: &[u8]) {
        // SAFETY: the calling thread's errno.
        let errno = unsafe { *__error() };
        let descriptor = self.open_file(name, O_WRONLY | if is_new { O_CREAT | O_EXCL } else { O_APPEND });
        let mut at = 0;
        while descriptor >= 0 && at < text.len() {
            // SAFETY: that many bytes are there.
            let written = unsafe { write(descriptor, text.as_ptr().add(at).cast(), text.len() - at) };
            // SAFETY: the calling thread's errno.
            if written <= 0 && unsafe { *__error() } != EINTR {
                break;
            }
            at += written.max(0) as usize;
        }
        // SAFETY: opened above, if it was; the calling thread's errno.
        unsafe {
            if descriptor >= 0 {
                close(descriptor);
            }
            *__error() = errno;
        }
    }
}

/// Not needed: rings have space when they are created.
pub fn populate(_: *mut u8, _: usize) -> bool {
    false
}

fn write_zeros(descriptor: c_int, size: usize) -> bool {
    static ZEROS: [u8; 16384] = [0; 16384];
    let mut at = 0;
    while at < size {
        // SAFETY: that many bytes are there.
        let written =
            unsafe { pwrite(descriptor, ZEROS.as_ptr().cast(), ZEROS.len().min(size - at), at as i64) };
        // SAFETY: the calling thread's errno.
        if written <= 0 && unsafe { *__error() } != EINTR {
            return false;
        }
        at += written.max(0) as usize;
    }
    true
}

/// Maps memory that is zero.
pub fn map_zero(size: usize) -> Option<*mut u8> {
    map(size, MAP_PRIVATE | MAP_ANON, -1)
}

/// macOS has no seccomp.
pub fn seccomp_filters(_: *mut u8, _: usize) -> u64 {
    0
}

/// Threads have only their own names.
pub fn thread_name(_: *mut [u8; 16]) {}

extern "C" fn load() {
    IS_LOADED.store(true, Ordering::Release);
    if let super::process::Status::Recording(_) = super::process::status() {
        // SAFETY: a function without arguments.
        unsafe { pthread_atfork(null(), null(), begin_child) };
        super::images::follow();
    }
}

extern "C" fn unload() {
    super::process::end();
}

// SAFETY: the section holds functions without arguments.
#[used]
#[unsafe(link_section = "__DATA,__mod_init_func,mod_init_funcs")]
static LOAD: extern "C" fn() = load;

// SAFETY: the section holds functions without arguments.
#[used]
#[unsafe(link_section = "__DATA,__mod_term_func,mod_term_funcs")]
static UNLOAD: extern "C" fn() = unload;
