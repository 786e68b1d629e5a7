//! The workload of `stackprof demo`: a target on any machine. Two threads spend 50, 30, 15 and 5 % of their CPU
//! time in four functions at the bottom of a recursion, for about three seconds.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Hidden first argument that runs the workload.
pub const WORKLOAD: &str = "demo-workload";

const RUN_TIME: Duration = Duration::from_secs(3);
const DEPTH: u32 = 12;
/// Rounds of arithmetic per percent and turn; a turn takes about a millisecond.
const ROUNDS_PER_PERCENT: u64 = 10_000;

/// Runs the workload.
pub fn work() {
    let end = Instant::now() + RUN_TIME;
    let worker = std::thread::Builder::new().name("worker".to_owned());
    let second = worker.spawn(move || recurse_until(end));
    recurse_until(end);
    if let Ok(second) = second {
        let _ = second.join();
    }
}

#[inline(never)]
fn recurse_until(end: Instant) {
    while Instant::now() < end {
        recurse(black_box(DEPTH));
    }
}

#[inline(never)]
fn recurse(depth: u32) -> u64 {
    if depth > 0 {
        // Not a tail call, so that each level stays on the stack.
        return black_box(recurse(depth - 1)).wrapping_add(1);
    }
    let sum = burn_50_percent().wrapping_add(burn_30_percent());
    black_box(sum.wrapping_add(burn_15_percent()).wrapping_add(burn_5_percent()))
}

/// Xorshift: each round depends on the previous one, so that time is proportional to rounds. A macro, so that the
/// time is in the functions named after it, and in none that is inlined there.
macro_rules! burn {
    ($percent:literal, $seed:literal) => {{
        let mut value: u64 = black_box($seed);
        let mut rounds = $percent * ROUNDS_PER_PERCENT;
        while rounds > 0 {
            value ^= value << 13;
            value ^= value >> 7;
            value ^= value << 17;
            rounds -= 1;
        }
        black_box(value)
    }};
}

#[inline(never)]
fn burn_50_percent() -> u64 {
    burn!(50, 1)
}

#[inline(never)]
fn burn_30_percent() -> u64 {
    burn!(30, 2)
}

#[inline(never)]
fn burn_15_percent() -> u64 {
    burn!(15, 3)
}

#[inline(never)]
fn burn_5_percent() -> u64 {
    burn!(5, 4)
}
