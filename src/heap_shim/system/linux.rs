//! System calls and thread-local words on Linux. Calls are made directly: `errno` is unchanged, and other
//! libraries that interpose libc functions do not see them.
#![allow(unsafe_code)]

use super::process::is_filtered;
use super::sample::OWN_STACK_SIZE;
use core::ptr::null;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const FSTAT: usize = 5;
    pub const MMAP: usize = 9;
    pub const MUNMAP: usize = 11;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const PWRITE64: usize = 18;
    pub const SCHED_YIELD: usize = 24;
    pub const MADVISE: usize = 28;
    pub const NANOSLEEP: usize = 35;
    pub const GETPID: usize = 39;
    pub const GETRUSAGE: usize = 98;
    pub const FTRUNCATE: usize = 77;
    pub const GETEUID: usize = 107;
    pub const PRCTL: usize = 157;
    pub const GETTID: usize = 186;
    pub const CLOCK_GETTIME: usize = 228;
    pub const OPENAT: usize = 257;
    pub const UNLINKAT: usize = 263;
    pub const FALLOCATE: usize = 285;
    pub const PRLIMIT64: usize = 302;
    pub const PROCESS_VM_READV: usize = 310;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const UNLINKAT: usize = 35;
    pub const FTRUNCATE: usize = 46;
    pub const FALLOCATE: usize = 47;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const PWRITE64: usize = 68;
    pub const FSTAT: usize = 80;
    pub const NANOSLEEP: usize = 101;
    pub const CLOCK_GETTIME: usize = 113;
    pub const SCHED_YIELD: usize = 124;
    pub const RT_SIGACTION: usize = 134;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const GETRUSAGE: usize = 165;
    pub const PRCTL: usize = 167;
    pub const GETPID: usize = 172;
    pub const GETEUID: usize = 175;
    pub const GETTID: usize = 178;
    pub const MUNMAP: usize = 215;
    pub const MMAP: usize = 222;
    pub const MADVISE: usize = 233;
    pub const PRLIMIT64: usize = 261;
    pub const PROCESS_VM_READV: usize = 270;
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

/// Terminates the process at once.
pub fn trap() -> ! {
    loop {
        // SAFETY: an invalid instruction: SIGILL or SIGTRAP.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            core::arch::asm!("ud2");
            #[cfg(target_arch = "aarch64")]
            core::arch::asm!("brk #1");
        }
    }
}

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

    /// The word of `unloads::Unload`, or 0.
    pub fn unload(self) -> u64 {
        // SAFETY: the calling thread's own.
        unsafe { (*self.0).unload }
    }

    /// Sets the word of `unloads::Unload`.
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

#[path = "usage_linux.rs"]
mod usage;
pub use usage::peak_resident_bytes;
#[path = "directory_linux.rs"]
mod directory;
use directory::Descriptor;
pub use directory::{Directory, RingError};

#[path = "signals_linux.rs"]
mod signals;
pub use signals::{BlockedSignals, observe_syscall, set_action, set_handler};

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

/// Value of an environment variable.
pub enum Variable {
    /// libc has no environment yet.
    NotYet,
    /// It is not set.
    Absent,
    /// A C string.
    Present(*const u8),
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
