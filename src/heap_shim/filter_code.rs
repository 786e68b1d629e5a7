//! Whether code of the program can restrict its system calls by itself: with a system call in its own code, which the
//! functions of libc that the shim replaces do not see.
//!
//! Input: the code of the images that a program is loaded with, but libc. Looked for: the number of `seccomp`, or those of
//! `prctl` and PR_SET_SECCOMP, in registers, and a system call soon after, or a call of a function that makes one. Code that
//! computes the number is not found, nor is what is loaded later or more than [`BYTES_MAX`].
#![allow(unsafe_code)]

use super::system::weak_symbol;
use core::ffi::c_void;

/// Most bytes of code to look at: reading them takes a millisecond.
const BYTES_MAX: usize = 8 << 20;

/// Bytes at a place in code.
#[derive(Clone, Copy)]
struct Code {
    begin: *const u8,
    length: usize,
}

/// `struct dl_phdr_info` of dl_iterate_phdr(3), as far as it is needed.
#[repr(C)]
struct Image {
    base: usize,
    name: *const u8,
    headers: *const ProgramHeader,
    header_count: u16,
}

/// `Elf64_Phdr` (elf.h).
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: usize,
    physical: usize,
    file_size: usize,
    size: usize,
    alignment: u64,
}

const FOUND: i32 = 1;
const END: i32 = 2;

/// Whether an image of this process other than libc and this library can.
pub fn is_suspect() -> bool {
    // SAFETY: the type in dl_iterate_phdr(3).
    type Iterate = unsafe extern "C" fn(
        unsafe extern "C" fn(*const Image, usize, *mut c_void) -> i32,
        *mut c_void,
    ) -> i32;
    let of_libc = weak_symbol!("dl_iterate_phdr");
    if of_libc.is_null() {
        return false;
    }
    // SAFETY: the function of that name has this type in every libc.
    let iterate: Iterate = unsafe { core::mem::transmute(of_libc) };
    let mut left = BYTES_MAX;
    // SAFETY: the function takes what is passed; it ends with the call.
    unsafe { iterate(visit, (&raw mut left).cast()) == FOUND }
}

// SAFETY: called by dl_iterate_phdr with an image that is loaded.
unsafe extern "C" fn visit(image: *const Image, _: usize, left: *mut c_void) -> i32 {
    const LOAD: u32 = 1;
    const EXECUTABLE_AND_READABLE: u32 = 5;
    let skipped = [weak_symbol!("clock_gettime").addr(), (is_suspect as fn() -> bool as *const ()).addr()];
    // SAFETY: the image, and as many headers as it says.
    let (base, headers) = unsafe {
        let image = &*image;
        (image.base, core::slice::from_raw_parts(image.headers, image.header_count.into()))
    };
    let codes = headers.iter().filter(|header| {
        header.kind == LOAD && header.flags & EXECUTABLE_AND_READABLE == EXECUTABLE_AND_READABLE
    });
    for header in codes {
        let begin = base.wrapping_add(header.address);
        let range = begin..begin.wrapping_add(header.size);
        if skipped.iter().any(|address| range.contains(address)) {
            return 0;
        }
        let code = Code {
            begin: core::ptr::with_exposed_provenance(begin),
            length: header.file_size.min(header.size),
        };
        // SAFETY: the variable of `is_suspect`.
        let left = unsafe { &mut *left.cast::<usize>() };
        let Some(rest) = left.checked_sub(code.length) else { return END };
        *left = rest;
        if code.can_filter() {
            return FOUND;
        }
    }
    0
}

#[cfg(target_arch = "x86_64")]
impl Code {
    /// `seccomp`, `prctl` and PR_SET_SECCOMP (asm/unistd_64.h, linux/prctl.h).
    const SECCOMP: u32 = 317;
    const PRCTL: u32 = 157;
    const PR_SET_SECCOMP: u32 = 22;
    /// Distance within which the instructions of one call are.
    const NEAR: usize = 48;
    /// Functions that a wrapper of system calls calls one in another.
    const WRAPPERS_MAX: u32 = 2;

    fn can_filter(self) -> bool {
        let mut at = 1;
        while let Some(found) = self.next_candidate(at) {
            // mov to eax, for `syscall` or a wrapper in assembly; to edi, for a wrapper in C.
            let is_number = matches!(self.byte(found - 1), 0xb8 | 0xbf);
            let is_call = is_number && self.calls_kernel(found + 4, Self::WRAPPERS_MAX);
            if is_call && (self.word(found) == Self::SECCOMP || self.has_near(found, Self::PR_SET_SECCOMP)) {
                return true;
            }
            at = found + 1;
        }
        false
    }

    fn byte(self, at: usize) -> u8 {
        // SAFETY: within the code.
        if at < self.length { unsafe { *self.begin.add(at) } } else { 0 }
    }

    fn word(self, at: usize) -> u32 {
        u32::from_le_bytes([self.byte(at), self.byte(at + 1), self.byte(at + 2), self.byte(at + 3)])
    }

    /// The first place from `at` on where a number of interest may be. Looks at pieces, without branches: that is compiled to
    /// vector instructions.
    fn next_candidate(self, mut at: usize) -> Option<usize> {
        const PIECE: usize = 256;
        let is_candidate = |[a, b, c, d]: [u8; 4]| {
            let is_seccomp = (a == Self::SECCOMP as u8) & (b == (Self::SECCOMP >> 8) as u8);
            (is_seccomp | (a == Self::PRCTL as u8) & (b == 0)) & (c == 0) & (d == 0)
        };
        while at + PIECE + 4 <= self.length {
            let mut any = false;
            for offset in 0..PIECE {
                // SAFETY: within the code.
                any |= is_candidate(unsafe { self.begin.add(at + offset).cast::<[u8; 4]>().read() });
            }
            if any {
                break;
            }
            at += PIECE;
        }
        (at..self.length.saturating_sub(4)).find(|at| matches!(self.word(*at), Self::SECCOMP | Self::PRCTL))
    }

    /// Whether a few instructions have a `syscall` among them, or a call or jump to a function whose first ones have.
    fn calls_kernel(self, from: usize, wrappers: u32) -> bool {
        (from..from + Self::NEAR).any(|at| match (self.byte(at), self.byte(at + 1)) {
            (0x0f, 0x05) => true,
            (0xe8 | 0xe9, _) if wrappers > 0 => {
                let distance = self.word(at + 1).cast_signed() as isize;
                let target = (at + 5).wrapping_add_signed(distance);
                target < self.length && self.calls_kernel(target, wrappers - 1)
            }
            _ => false,
        })
    }

    /// Whether a number is moved to a register nearby.
    fn has_near(self, at: usize, number: u32) -> bool {
        let from = at.saturating_sub(Self::NEAR).max(1);
        let mut near = from..at + Self::NEAR;
        near.any(|near| self.word(near) == number && matches!(self.byte(near - 1), 0xb8..=0xbf))
    }
}

#[cfg(target_arch = "aarch64")]
impl Code {
    /// Whether `seccomp` is called: `mov x8, #277` or `mov w8, #277`, or that number in the first register of a function
    /// that calls; and a `svc #0`.
    fn can_filter(self) -> bool {
        const MOVZ_277: u32 = 0x5280_22a0;
        const SVC: u32 = 0xd400_0001;
        let is_number = |word: u32| word & 0x7fff_ffe0 == MOVZ_277 && matches!(word & 31, 0 | 8);
        self.words().any(is_number) && self.words().any(|word| word == SVC)
    }

    fn words(self) -> impl Iterator<Item = u32> {
        // SAFETY: within the code; instructions are aligned.
        (0..self.length / 4).map(move |index| unsafe { self.begin.cast::<u32>().add(index).read() })
    }
}
