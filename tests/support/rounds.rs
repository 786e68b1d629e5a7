//! Number of repetitions and seeds of randomized tests.
//!
//! `STACKPROF_ROUNDS=F` multiplies all repetitions by F: 10 for a long search, 0.1 for a quick run, by
//! default 1. At least one is always done. `STACKPROF_SEED=N` runs seed N alone. Tests that measure frequencies keep
//! their numbers, which their limits depend on.
#![allow(dead_code, reason = "each test uses a part")]

use std::ops::Range;

/// Scales `usual` by `STACKPROF_ROUNDS`, at least 1.
pub(crate) fn rounds(usual: u64) -> u64 {
    let Ok(text) = std::env::var("STACKPROF_ROUNDS") else { return usual };
    let factor: f64 = text.parse().expect("STACKPROF_ROUNDS must be a number");
    assert!(factor.is_finite() && factor > 0.0, "STACKPROF_ROUNDS must be above 0");
    ((usual as f64 * factor).round() as u64).max(1)
}

/// Whether at least the usual number is tried, so that every expected case must occur.
pub(crate) fn as_usual() -> bool {
    one_seed().is_none() && rounds(1_000) >= 1_000
}

/// The seed in `STACKPROF_SEED`.
pub(crate) fn one_seed() -> Option<u64> {
    let text = std::env::var("STACKPROF_SEED").ok()?;
    Some(text.parse().expect("STACKPROF_SEED must be a number"))
}

/// The seeds to try: as many as `usual`, scaled by [`rounds`], or the requested one.
pub(crate) fn seeds(usual: Range<u64>) -> Range<u64> {
    match one_seed() {
        Some(seed) => seed..seed + 1,
        None => usual.start..usual.start + rounds(usual.end - usual.start),
    }
}
