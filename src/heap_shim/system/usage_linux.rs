//! What the process has used, by the kernel's account.

use super::{call, number};

/// The largest resident set that the process has had, bytes; 0 if the kernel does not say.
pub fn peak_resident_bytes() -> u64 {
    const RUSAGE_SELF: usize = 0;
    // `struct rusage`: two times of two words, and 14 numbers, the first of which is `ru_maxrss` in KiB (getrusage(2)).
    let mut usage = [0u64; 18];
    let result = call!(GETRUSAGE, RUSAGE_SELF, usage.as_mut_ptr());
    if result < 0 { 0 } else { usage[4] * 1024 }
}
