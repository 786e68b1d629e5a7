//! Targets behind a stub of the gdb remote protocol: a stub of ours with seeded faults. Real stubs with
//! real programs are in `tests/live_linux`.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "../support/rounds.rs"]
mod support;

mod fake;
mod faults;

pub(crate) use support::rounds;

/// xorshift64*: <https://vigna.di.unimi.it/ftp/papers/xorshift.pdf>.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of_seed(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}
