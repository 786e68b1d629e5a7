//! Bytes until the next sample: intervals of a Poisson process. Input: a seed and a mean. Output: intervals.
//!
//! A thread's counter starts at an interval; each allocation subtracts its size, and is sampled if the size
//! is at least the rest. The intervals are geometric, so that an allocation of `n` bytes is sampled with a
//! probability of exactly `1 - exp(-n / mean)`, independent of previous allocations.

use core::sync::atomic::{AtomicU64, Ordering};

/// Random numbers shared by all threads (splitmix64).
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    /// A sequence determined by the seed.
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Restarts with a seed.
    pub fn reseed(&self, seed: u64) {
        self.0.store(seed, Ordering::Relaxed);
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut x = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }
}

/// The next interval, at least 1. With a mean of 1, every allocation is sampled: the interval is 0.
pub fn draw(random: &Random, mean_bytes: u64) -> u64 {
    if mean_bytes <= 1 {
        return 0;
    }
    // In (0, 1]: all multiples of 2^-53, and never 0.
    let uniform = ((random.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    1 + (-natural_logarithm(uniform) * mean_bytes as f64) as u64
}

/// The natural logarithm of a positive normal number, which `core` lacks. Error below 1e-13.
pub fn natural_logarithm(x: f64) -> f64 {
    const LN_2: f64 = core::f64::consts::LN_2;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52 & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); the argument is at most 0.1716.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    let mut divisor = 17.0;
    while divisor > 0.0 {
        sum = sum * square + 1.0 / divisor;
        divisor -= 2.0;
    }
    2.0 * s * sum + exponent as f64 * LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_match_std() {
        let random = Random::new(1);
        for _ in 0..100_000 {
            let x = ((random.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            assert!((natural_logarithm(x) - x.ln()).abs() <= 1e-13 * x.ln().abs().max(1.0), "{x}");
        }
        for x in [1.0, 0.5, 2.0, f64::MIN_POSITIVE, 1e300, 1.0 / (1u64 << 53) as f64] {
            assert!((natural_logarithm(x) - x.ln()).abs() <= 1e-13 * x.ln().abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn intervals_have_the_requested_mean_and_variance() {
        for mean in [2u64, 100, 4096, 512 << 10, 1 << 40] {
            let random = Random::new(mean);
            let n = 4_000_000u32;
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..n {
                let interval = draw(&random, mean) as f64;
                sum += interval;
                squares += interval * interval;
            }
            // Of the geometric distribution with 1 - p = exp(-1 / mean).
            let p = -(-1.0 / mean as f64).exp_m1();
            let (expected, variance) = (1.0 / p, (1.0 - p) / (p * p));
            let found = sum / f64::from(n);
            // Four standard errors of 4 million intervals: 0.2 %.
            let error = 4.0 * (variance / f64::from(n)).sqrt();
            assert!((found - expected).abs() <= error, "mean {mean}: {found}, not {expected} ± {error}");
            let found = squares / f64::from(n) - found * found;
            assert!((found / variance - 1.0).abs() <= 0.01, "mean {mean}: variance {found}, not {variance}");
        }
    }

    /// The reader's estimate of bytes is unbiased for each size.
    #[test]
    fn weights_of_samples_add_up_to_the_allocated_bytes() {
        let mean = 4096u64;
        let random = Random::new(7);
        let mut left = draw(&random, mean);
        let sizes = [1u64, 16, 100, 1000, 4096, 10_000, 1 << 20];
        let rounds = 400_000;
        let mut sampled = [0u64; 7];
        for _ in 0..rounds {
            for (size, sampled) in sizes.iter().zip(&mut sampled) {
                if *size >= left {
                    *sampled += 1;
                    left = draw(&random, mean);
                } else {
                    left -= size;
                }
            }
        }
        for (size, sampled) in sizes.iter().zip(sampled) {
            let p = -(-(*size as f64) / mean as f64).exp_m1();
            let expected = p * f64::from(rounds);
            let error = 4.0 * (expected * (1.0 - p)).sqrt() + 1e-6;
            assert!(
                (sampled as f64 - expected).abs() <= error,
                "{size} bytes: {sampled}, not {expected} ± {error}"
            );
        }
    }

    #[test]
    fn a_mean_of_one_samples_every_allocation() {
        let random = Random::new(3);
        assert!((0..100).all(|_| draw(&random, 1) == 0));
    }
}
