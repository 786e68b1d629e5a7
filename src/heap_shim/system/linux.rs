//! System calls and thread-local words on Linux. Calls are made directly: `errno` is unchanged, and other
//! libraries that interpose libc functions do not see them.
#![allow(unsafe_code)]

use super::files::{FileName, RingError};
use super::process::{Variable, enter_seccomp, is_filtered};
use super::sample::OWN_STACK_SIZE;
use super::shared_memory::Refusal;
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};

/// System calls by their numbers on x86_64 and on aarch64.
macro_rules! numbers {
    ($($name:ident: $x86_64:literal, $aarch64:literal;)+) => {
        mod number {
            $(pub const $name: usize = if cfg!(target_arch = "x86_64") { $x86_64 } else { $aarch64 };)+
        }
    };
}

numbers! {
    READ: 0, 63;
    WRITE: 1, 64;
    CLOSE: 3, 57;
    FSTAT: 5, 80;
    MMAP: 9, 222;
    MUNMAP: 11, 215;
    RT_SIGACTION: 13, 134;
    RT_SIGPROCMASK: 14, 135;
    PWRITE64: 18, 68;
    SCHED_YIELD: 24, 124;
    MADVISE: 28, 233;
    NANOSLEEP: 35, 101;
    GETPID: 39, 172;
    GETRUSAGE: 98, 165;
    FTRUNCATE: 77, 46;
    GETEUID: 107, 175;
    PRCTL: 157, 167;
    GETTID: 186, 178;
    CLOCK_GETTIME: 228, 113;
    OPENAT: 257, 56;
    UNLINKAT: 263, 35;
    FALLOCATE: 285, 47;
    PRLIMIT64: 302, 261;
    PROCESS_VM_READV: 310, 270;
}

// The same on both processors.
const AT_FDCWD: usize = -100isize as usize;
const O_RDONLY: usize = 0;
const O_CLOEXEC: usize = 0o2_000_000;
const EINTR: isize = 4;
const PROT_READ_WRITE: usize = 3;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;
const MADV_WIPEONFORK: usize = 18;
const MADV_POPULATE_WRITE: usize = 23;
const PR_GET_NAME: usize = 16;
const CLOCK_MONOTONIC: usize = 1;
const CLOCK_MONOTONIC_COARSE: usize = 6;
/// The smallest page size of any Linux.
const PAGE_SIZE: usize = 4096;

const O_RDWR: usize = 2;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_NONBLOCK: usize = 0o4000;
#[cfg(target_arch = "x86_64")]
const O_DIRECTORY: usize = 0o200_000;
#[cfg(target_arch = "x86_64")]
const O_NOFOLLOW: usize = 0o400_000;
#[cfg(target_arch = "aarch64")]
const O_DIRECTORY: usize = 0o40_000;
#[cfg(target_arch = "aarch64")]
const O_NOFOLLOW: usize = 0o100_000;
const EEXIST: isize = 17;
const EOPNOTSUPP: isize = 95;
const ENOSYS: isize = 38;
const MADV_DONTFORK: usize = 10;
const RLIMIT_FSIZE: usize = 1;
const MAP_SHARED: usize = 1;

/// A system call; negative results are `-errno`.
///
/// # Safety
/// The requirements of the call on its arguments.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel changes rcx, r11 and what the arguments specify.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    result
}

/// A system call; negative results are `-errno`.
///
/// # Safety
/// The requirements of the call on its arguments.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let result: isize;
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel changes x0 and what the arguments specify.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    result
}

/// A system call with arguments that are numbers, or point to data that outlives it.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {{
        let given = [$($argument as usize),*];
        let mut arguments = [0; 6];
        let mut index = 0;
        while index < given.len() {
            arguments[index] = given[index];
            index += 1;
        }
        // SAFETY: each use passes what this call requires.
        unsafe { call(number::$number, arguments) }
    }};
}

/// The address of a symbol of the program's libraries, or null: a weak reference, since no library is required
/// to have it.
macro_rules! weak_symbol {
    ($name:literal) => {{
        let address: *const ();
        // SAFETY: loads the symbol's entry of the global offset table.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!(concat!(".weak ", $name), concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address, options(nostack, readonly, preserves_flags));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!(concat!(".weak ", $name), concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address, options(nostack, readonly, preserves_flags));
        }
        address
    }};
}
pub(crate) use weak_symbol;

/// State of a thread; initially zero. The entry points rely on `left` being first.
#[repr(C)]
struct ThreadWords {
    left: u64,
    guard: u64,
    generation: u32,
    tid: u32,
    stack_low: u64,
    stack_base: u64,
    unload: u64,
}

/// The entry points reserve this much (`entry/`).
const _: () = assert!(size_of::<ThreadWords>() == 48);

/// The thread-local words of the calling thread.
#[derive(Clone, Copy)]
pub struct Thread(*mut ThreadWords);

impl Thread {
    /// Those of the calling thread.
    pub fn current() -> Self {
        let words: *mut ThreadWords;
        // SAFETY: adds the variable's offset to the thread pointer (System V ABI, initial-exec).
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("mov {0}, qword ptr fs:[0]",
                "add {0}, qword ptr [rip + stackprof_heap_thread@GOTTPOFF]",
                out(reg) words, options(nostack, readonly));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("mrs {0}, tpidr_el0", "adrp {1}, :gottprel:stackprof_heap_thread",
                "ldr {1}, [{1}, :gottprel_lo12:stackprof_heap_thread]", "add {0}, {0}, {1}",
                out(reg) words, out(reg) _, options(nostack, readonly));
        }
        Self(words)
    }

    /// Bytes until the next sample; the entry points subtract from them.
    pub fn bytes_to_sample(self) -> u64 {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).left }
    }

    /// Sets the bytes until the next sample.
    pub fn set_bytes_to_sample(self, left: u64) {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).left = left }
    }

    /// The stack pointer of the allocation in progress on the thread, or 0.
    pub fn active_sp(self) -> u64 {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).guard }
    }

    /// Sets the stack pointer of the allocation in progress.
    pub fn set_active_sp(self, guard: u64) {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).guard = guard }
    }

    /// The word of `images::Unload`, or 0.
    pub fn unload(self) -> u64 {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).unload }
    }

    /// Sets the word of `images::Unload`.
    pub fn set_unload(self, unload: u64) {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).unload = unload }
    }

    /// The generation of the other words; initially 0.
    pub fn generation(self) -> u32 {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).generation }
    }

    /// Starts a generation: gets the thread id.
    pub fn set_generation(self, generation: u32) {
        let tid = if is_filtered() { 0 } else { call!(GETTID) as u32 };
        // SAFETY: the calling thread's own.
        unsafe {
            (*self.0).generation = generation;
            (*self.0).tid = tid;
        }
    }

    /// The thread id.
    pub fn tid(self) -> u32 {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).tid }
    }

    /// Lowest address of the part of the thread's own stack that has been read as a whole, up to its base: it stays
    /// mapped while the thread runs; and the base, or 0 if libc does not provide it.
    pub fn stack(self) -> (u64, u64) {
        // SAFETY: the calling thread's own.
        let words = unsafe { &mut *self.0 };
        if words.stack_base == 0 && !is_filtered() {
            words.stack_base = self.own_base();
            words.stack_low = words.stack_base;
        }
        (words.stack_low, words.stack_base)
    }

    /// Assumes that the thread's stack is mapped from its stack pointer on, if it is the main thread: the kernel keeps other
    /// mappings away from that stack.
    pub fn assume_stack(self) {
        let (_, base) = self.stack();
        if self.tid() == pid() && base != 0 {
            // SAFETY: the calling thread's own.
            unsafe { (*self.0).stack_low = base.saturating_sub(OWN_STACK_SIZE) };
        }
    }

    /// Records that the bytes from `sp` up to `end` were read. They belong to the thread's own stack if they reach its
    /// known part: other stacks are not adjacent, since each has a guard page below it.
    pub fn add_to_stack(self, sp: u64, end: u64) {
        let (low, _) = self.stack();
        if sp < low && low <= end {
            // SAFETY: the calling thread's own.
            unsafe { (*self.0).stack_low = sp };
        }
    }

    /// An address above all frames of the thread's own stack, in the same mapping: for the main thread, the
    /// start of the program's arguments; for others, their control block. 0 if libc does not provide it.
    fn own_base(self) -> u64 {
        if self.tid() == pid() {
            let stack_end = weak_symbol!("__libc_stack_end").cast::<u64>();
            // SAFETY: a variable of glibc's loader of this type.
            return if stack_end.is_null() { 0 } else { unsafe { *stack_end } };
        }
        let pointer: u64;
        // SAFETY: reads the thread pointer.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly));
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("mrs {0}, tpidr_el0", out(reg) pointer, options(nostack, nomem));
        }
        pointer
    }
}

/// The largest resident set that the process has had, bytes; 0 if the kernel does not say.
pub fn peak_resident_bytes() -> u64 {
    const RUSAGE_SELF: usize = 0;
    // `struct rusage`: two times of two words, and 14 numbers, the first of which is `ru_maxrss` in KiB (getrusage(2)).
    let mut usage = [0u64; 18];
    let result = call!(GETRUSAGE, RUSAGE_SELF, usage.as_mut_ptr());
    if result < 0 { 0 } else { usage[4] * 1024 }
}

/// Bytes of a page, to which the kernel rounds mappings.
pub fn page_size() -> u64 {
    const AT_PAGESZ: usize = 6;
    // SAFETY: the type in getauxval(3).
    type Getauxval = unsafe extern "C" fn(usize) -> usize;
    let getauxval = weak_symbol!("getauxval");
    if cfg!(target_arch = "x86_64") || getauxval.is_null() {
        return 4096;
    }
    // SAFETY: the function of that name has this type in every libc.
    let getauxval: Getauxval = unsafe { core::mem::transmute(getauxval) };
    // SAFETY: reads a vector that the kernel wrote.
    unsafe { getauxval(AT_PAGESZ) as u64 }
}

/// Lets other threads run.
pub fn yield_now() {
    call!(SCHED_YIELD);
}

/// Waits a moment, in which a reader makes room for some hundred records.
pub fn pause() {
    if is_filtered() {
        return core::hint::spin_loop();
    }
    let moment = [0i64, 50_000];
    call!(NANOSLEEP, &raw const moment, null::<u8>());
}

/// Result of `getpid()`, also in a child that shares its parent's memory.
pub fn pid() -> u32 {
    call!(GETPID) as u32
}

/// CLOCK_MONOTONIC, by libc if available: no system call. In a process that restricts its system calls, with the
/// resolution of a kernel tick: strict seccomp also forbids the time stamp counter (kernel/seccomp.c, `disable_TSC`).
pub fn now_ns() -> u64 {
    let mut time = [0i64; 2];
    let clock = if is_filtered() { CLOCK_MONOTONIC_COARSE } else { CLOCK_MONOTONIC };
    let of_libc = weak_symbol!("clock_gettime");
    if of_libc.is_null() {
        call!(CLOCK_GETTIME, clock, &raw mut time);
    } else {
        // SAFETY: the function of that name in libc has this type.
        let clock_gettime: extern "C" fn(i32, *mut [i64; 2]) -> i32 =
            unsafe { core::mem::transmute(of_libc) };
        clock_gettime(clock as i32, &raw mut time);
    }
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// Copies `length` bytes of stack, or up to the end of mapped memory. Returns how many, and whether the
/// system refused: then those in the page of `from`.
///
/// # Safety
/// The buffer has room for them, and the byte at `from` is readable.
pub unsafe fn copy_stack(from: u64, to: *mut u8, length: usize) -> (usize, bool) {
    let local = [to as usize, length];
    let remote = [from as usize, length];
    if !is_filtered() {
        let copied = call!(PROCESS_VM_READV, pid(), &raw const local, 1, &raw const remote, 1, 0);
        if copied >= 0 {
            return (copied as usize, false);
        }
    }
    let in_page = (PAGE_SIZE - from as usize % PAGE_SIZE).min(length);
    // SAFETY: a page is mapped as a whole, and other threads do not write this one's frames.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to, in_page) };
    (in_page, true)
}

/// Looks up a variable in libc's current environment.
pub fn variable(name: &str) -> Variable {
    let environ = weak_symbol!("environ").cast::<*const *const u8>();
    // SAFETY: a variable of libc of this type.
    let mut entry = if environ.is_null() { null() } else { unsafe { *environ } };
    if entry.is_null() {
        return Variable::NotYet;
    }
    // SAFETY: the list ends with a null pointer, each string with zero; a comparison stops at the first
    // difference.
    unsafe {
        while !(*entry).is_null() {
            let text = *entry;
            let is_it = name.bytes().enumerate().all(|(at, byte)| *text.add(at) == byte);
            if is_it && *text.add(name.len()) == b'=' {
                return Variable::Present(text.add(name.len() + 1));
            }
            entry = entry.add(1);
        }
    }
    Variable::Absent
}

fn open(at: usize, path: *const u8, flags: usize) -> isize {
    loop {
        let descriptor = call!(OPENAT, at, path, flags | O_CLOEXEC, 0o600);
        if descriptor != -EINTR {
            return descriptor;
        }
    }
}

fn map(size: usize, flags: usize, descriptor: isize) -> Option<*mut u8> {
    let address = call!(MMAP, null::<u8>(), size, PROT_READ_WRITE, flags, descriptor, 0);
    (address >= 0 || address < -4095).then_some(address as *mut u8)
}

/// Maps memory that is zero, also in each child of fork.
pub fn map_wiped(size: usize) -> Option<*mut u8> {
    let mapped = map(size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1)?;
    if call!(MADVISE, mapped, size, MADV_WIPEONFORK) < 0 {
        unmap(mapped, size);
        return None;
    }
    Some(mapped)
}

/// Unmaps a mapping.
pub fn unmap(address: *mut u8, size: usize) {
    call!(MUNMAP, address, size);
}

/// Has the kernel allocate pages of a mapping, if there is space. Kernels before 5.14 refuse.
pub fn populate(address: *mut u8, size: usize) -> bool {
    !is_filtered() && call!(MADVISE, address, size, MADV_POPULATE_WRITE) == 0
}

/// The calling thread's name: 16 bytes, the last one zero.
pub fn thread_name(name: *mut [u8; 16]) {
    call!(PRCTL, PR_GET_NAME, name);
}

/// Closes a descriptor at its end.
struct Descriptor(isize);

impl Descriptor {
    fn new(descriptor: isize) -> Option<Self> {
        (descriptor >= 0).then_some(Self(descriptor))
    }

    /// Its file.
    fn status(&self) -> Option<FileStatus> {
        // `struct stat` (asm/stat.h).
        let mut stat = [0u64; 18];
        if call!(FSTAT, self.0, &raw mut stat) < 0 {
            return None;
        }
        let (mode, user) = if cfg!(target_arch = "x86_64") {
            (stat[3] as u32, (stat[3] >> 32) as u32)
        } else {
            (stat[2] as u32, stat[3] as u32)
        };
        Some(FileStatus { identity: [stat[0], stat[1]], mode, user, size: stat[6] })
    }

    /// Its file, if it belongs to root or to the user that this process runs as, who alone can write to it.
    fn trusted_status(&self) -> Option<FileStatus> {
        let user = call!(GETEUID) as u32;
        self.status().filter(|file| (file.user == 0 || file.user == user) && file.mode & 0o022 == 0)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        call!(CLOSE, self.0);
    }
}

struct FileStatus {
    identity: [u64; 2],
    mode: u32,
    user: u32,
    size: u64,
}

/// An open directory.
pub struct Directory(Descriptor);

impl Directory {
    /// Opens the directory at a path, a C string.
    pub fn open(path: *const u8) -> Option<Self> {
        let directory = Descriptor::new(open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
        directory.map(Self)
    }

    /// Device and inode, if the directory belongs to root or to the user that this process runs as, who alone can change it.
    pub fn identity(&self) -> Option<[u64; 2]> {
        self.0.trusted_status().map(|status| status.identity)
    }

    fn open_file(&self, name: &FileName, flags: usize) -> isize {
        open(self.0.0 as usize, name.as_ptr(), flags | O_NOFOLLOW | O_NONBLOCK)
    }

    /// Reads the beginning of a file; returns the number of bytes.
    pub fn read(&self, name: &FileName, buffer: *mut u8, size: usize) -> usize {
        let file = Descriptor::new(self.open_file(name, O_RDONLY));
        file.map_or(0, |file| call!(READ, file.0, buffer, size).max(0) as usize)
    }

    /// Permanently maps a file of at least this size, if the directory and the file belong to root or to the user that this
    /// process runs as.
    pub fn map_control(&self, name: &FileName, size: usize) -> Option<*mut u8> {
        const S_IFMT: u32 = 0o170_000;
        const S_IFREG: u32 = 0o100_000;
        self.identity()?;
        let file = Descriptor::new(self.open_file(name, O_RDWR))?;
        let status = file.trusted_status()?;
        let is_control = status.mode & S_IFMT == S_IFREG && status.size >= size as u64;
        if is_control { map(size, MAP_SHARED, file.0) } else { None }
    }

    /// Creates a file of zeros, and maps it; a child of fork does not inherit the mapping. Returns whether all of it has
    /// space: a store to another page could raise SIGBUS before it is populated. The first page has space. `is_sparse`: the
    /// other pages need none.
    pub fn make_ring(
        &self,
        name: &FileName,
        size: usize,
        is_sparse: bool,
    ) -> Result<(*mut u8, bool), RingError> {
        // Above this limit the kernel would send SIGXFSZ.
        if file_size_limit() < size as u64 {
            return Err(RingError::Refused(Refusal::Space));
        }
        let descriptor = self.open_file(name, O_RDWR | O_CREAT | O_EXCL);
        if descriptor == -EEXIST {
            return Err(RingError::Exists);
        }
        let file = Descriptor::new(descriptor).ok_or(RingError::Refused(Refusal::Create))?;
        let mapped = if call!(FTRUNCATE, file.0, size) == 0 {
            map(size, MAP_SHARED, file.0).ok_or(Refusal::Map)
        } else {
            Err(Refusal::Space)
        };
        let mapped = mapped.and_then(|address| {
            let is_populated = !(is_sparse && populate(address, PAGE_SIZE));
            let has_space = !is_populated || allocate(file.0, size);
            if !has_space || call!(MADVISE, address, size, MADV_DONTFORK) < 0 {
                unmap(address, size);
                return Err(if has_space { Refusal::Map } else { Refusal::Space });
            }
            Ok((address, is_populated))
        });
        mapped.map_err(|refusal| {
            call!(UNLINKAT, self.0.0, name.as_ptr(), 0);
            RingError::Refused(refusal)
        })
    }

    /// Copies /proc/self/maps into a new file, at most `limit` bytes of it.
    pub fn copy_maps(&self, name: &FileName, buffer: *mut u8, buffer_size: usize, limit: usize) {
        if file_size_limit() < limit as u64 {
            return;
        }
        let maps = open(AT_FDCWD, c"/proc/self/maps".as_ptr().cast(), O_RDONLY);
        let (Some(from), Some(to)) =
            (Descriptor::new(maps), Descriptor::new(self.open_file(name, O_RDWR | O_CREAT | O_EXCL)))
        else {
            return;
        };
        let mut total = 0;
        while total < limit {
            let length = call!(READ, from.0, buffer, buffer_size.min(limit - total));
            if length <= 0 {
                break;
            }
            let mut written = 0;
            while written < length {
                let result = call!(WRITE, to.0, buffer.wrapping_add(written as usize), length - written);
                if result <= 0 {
                    return;
                }
                written += result;
            }
            total += length as usize;
        }
    }
}

fn file_size_limit() -> u64 {
    let mut limit = [u64::MAX; 2];
    call!(PRLIMIT64, 0, RLIMIT_FSIZE, null::<u64>(), &raw mut limit);
    limit[0]
}

fn allocate(descriptor: isize, size: usize) -> bool {
    static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
    let result = loop {
        let result = call!(FALLOCATE, descriptor, 0, 0, size);
        if result != -EINTR {
            break result;
        }
    };
    if result != -EOPNOTSUPP && result != -ENOSYS {
        return result == 0;
    }
    let mut at = 0;
    while at < size {
        let written = call!(PWRITE64, descriptor, ZEROS.as_ptr(), ZEROS.len().min(size - at), at);
        if written <= 0 && written != -EINTR {
            return false;
        }
        at += written.max(0) as usize;
    }
    true
}

/// Number of seccomp filters of the process, from /proc.
pub fn seccomp_filters(buffer: *mut u8, buffer_size: usize) -> u64 {
    let status = open(AT_FDCWD, c"/proc/self/status".as_ptr().cast(), O_RDONLY);
    let Some(status) = Descriptor::new(status) else { return 0 };
    let length = call!(READ, status.0, buffer, buffer_size).max(0) as usize;
    // SAFETY: that many bytes were read into it.
    let text = unsafe { core::slice::from_raw_parts(buffer, length) };
    let name = b"Seccomp_filters:\t";
    let value = text.windows(name.len()).position(|found| found == name).map_or(length, |at| at + name.len());
    let digits = text.iter().skip(value).take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

/// Signals of faults: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS. Their handlers always run.
const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30;

/// The program has installed a handler of another signal. Most that are no servers have none.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);

/// The program sets the action of a signal, whose first word is the handler, SIG_DFL (0) or SIG_IGN (1).
///
/// # Safety
/// Null, or an action of sigaction(2).
pub unsafe extern "C" fn set_action(signal: i32, action: *const usize) {
    // SAFETY: `struct sigaction` begins with the handler in every libc of these processors.
    set_handler(signal, if action.is_null() { 0 } else { unsafe { *action } });
}

/// The program sets the handler of a signal.
pub extern "C" fn set_handler(signal: i32, handler: usize) {
    let is_of_fault = (1..=64).contains(&signal) && FAULTS >> (signal - 1) & 1 != 0;
    if handler > 1 && !is_of_fault {
        HAS_HANDLERS.store(true, Ordering::Relaxed);
    }
}

/// The program makes a system call that may set the action of a signal or restrict its calls.
///
/// # Safety
/// Its arguments are valid.
pub unsafe extern "C" fn observe_syscall(number: usize, signal: i32, action: *const usize) {
    if number == number::RT_SIGACTION {
        // SAFETY: the kernel's action begins with the handler, too.
        unsafe { set_action(signal, action) };
    } else {
        enter_seccomp();
    }
}

/// Blocks signals while it lives: a handler that leaves by `longjmp` or allocates would find a half-written
/// record. Without handlers there is nothing to block, and no system call.
pub struct BlockedSignals(Option<u64>);

impl BlockedSignals {
    /// Blocks signals.
    pub fn new() -> Self {
        const SIG_BLOCK: usize = 0;
        let (blocked, mut before) = (!FAULTS, 0u64);
        if is_filtered() || !HAS_HANDLERS.load(Ordering::Relaxed) {
            return Self(None);
        }
        call!(RT_SIGPROCMASK, SIG_BLOCK, &raw const blocked, &raw mut before, size_of::<u64>());
        Self(Some(before))
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        const SIG_SETMASK: usize = 2;
        if let Some(before) = &self.0 {
            call!(RT_SIGPROCMASK, SIG_SETMASK, &raw const *before, null::<u64>(), size_of::<u64>());
        }
    }
}

/// Registers a function that libc calls in each child of `fork`.
fn at_fork(child: extern "C" fn()) {
    let of_glibc = weak_symbol!("__register_atfork");
    let of_posix = weak_symbol!("pthread_atfork");
    if !of_glibc.is_null() {
        // SAFETY: `int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)` of glibc (LSB 5.0);
        // without a handle, unloading a library does not remove it.
        let register: extern "C" fn(*const (), *const (), extern "C" fn(), *const ()) -> i32 =
            unsafe { core::mem::transmute(of_glibc) };
        register(null(), null(), child, null());
    } else if !of_posix.is_null() {
        // SAFETY: pthread_atfork(3).
        let register: extern "C" fn(*const (), *const (), extern "C" fn()) -> i32 =
            unsafe { core::mem::transmute(of_posix) };
        register(null(), null(), child);
    }
}

/// At load and at exit.
extern "C" fn load() {
    super::real::load();
    if let super::process::Status::Recording(_) = super::process::status() {
        at_fork(super::process::begin_child);
        if super::filter_code::is_suspect() {
            super::process::enter_seccomp();
        }
    }
}

extern "C" fn unload() {
    super::process::end();
}

// SAFETY: the section holds functions without arguments.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

// SAFETY: the section holds functions without arguments.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
