//! Hashes: a whole stack to 96 bits in one pass, and the small keys of the other tables.
//!
//! Seeds are fixed: a stack has the same fingerprint in every run. Not cryptographic: a target that is built to
//! collide can merge its own stacks with each other, no more.

use super::limits::FrameWords;

/// Digits of pi: nothing-up-my-sleeve numbers.
const PI: [u64; 11] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
    0x4528_21e6_38d0_1377,
    0xbe54_66cf_34e9_0c6c,
    0xc0ac_29b7_c97c_50dd,
    0x3f84_d5b5_b547_0917,
    0x9216_d5d9_8979_fb1b,
    0xd131_0ba6_98df_b5ac,
    0x2ffd_72db_d01a_dfb7,
];

/// The fingerprint of a whole stack.
///
/// Stacks that differ in one word, or in two that are absorbed together, have different states. If the rest
/// behaves like random numbers, two different stacks share all 96 bits with probability 2^-96, and 2^-64 if they
/// differ in no more than two words. Debug builds also compare the whole path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Hash table key, and the first 64 bits of the comparison.
    pub(super) hash: u64,
    /// 32 more bits, from the same 128-bit state by another function.
    pub(super) check: u32,
}

/// 128 bits of state. Absorbing into a 64-bit state loses a word with probability 2^-64 before any bit of the
/// result is compared; so the state is wider than the fingerprint.
type Lane = (u64, u64);

/// Odd, so that multiplication is invertible: fractional parts of the golden ratio (Knuth, The Art of Computer
/// Programming, 6.4) and of the square root of 3.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbb67_ae85_84ca_a73b];

/// Absorbs two words. A bijection of the state: different states never become equal by absorbing equal words,
/// however many. Recursion repeats a word a thousand times, and a step that only behaves like random numbers loses
/// the state before it.
///
/// With `u = x * f`, `v = y * g`: `l = v ^ high(u)`, `r = low(u) ^ rotl(l, 29)`. From `l` and `r` follow low(u),
/// then x, then high(u), v and y. A difference in a word is spread over 64 bits before the next word meets it,
/// which cancels it with 2^-64; without the high half, a difference in a few high bits would remain one.
#[inline(always)]
fn absorb((left, right): Lane, a: u64, b: u64) -> Lane {
    let u = u128::from(left ^ a) * u128::from(FACTORS[0]);
    let v = (right ^ b).wrapping_mul(FACTORS[1]);
    let left = v ^ (u >> 64) as u64;
    (left, u as u64 ^ left.rotate_left(29))
}

/// The middle bits of a product depend on every bit of both factors; folding puts them everywhere.
#[inline(always)]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}

impl Fingerprint {
    /// The fingerprint of a stack. Four independent lanes hide the latency of multiplication.
    #[inline]
    pub(super) fn of<W: Copy + Into<u64>>(head: u64, leaf_first: &[W]) -> Fingerprint {
        let mut a = (PI[0], PI[1]);
        let mut b = (PI[2], PI[3]);
        let mut c = (PI[4], PI[5]);
        let mut d = (PI[6], PI[7]);
        let (blocks, mut rest) = leaf_first.as_chunks::<8>();
        for block in blocks {
            let [w0, w1, w2, w3, w4, w5, w6, w7] = *block;
            a = absorb(a, w0.into(), w1.into());
            b = absorb(b, w2.into(), w3.into());
            c = absorb(c, w4.into(), w5.into());
            d = absorb(d, w6.into(), w7.into());
        }
        if let [w0, w1, tail @ ..] = rest {
            a = absorb(a, (*w0).into(), (*w1).into());
            rest = tail;
        }
        if let [w0, w1, tail @ ..] = rest {
            b = absorb(b, (*w0).into(), (*w1).into());
            rest = tail;
        }
        if let [w0, w1, tail @ ..] = rest {
            c = absorb(c, (*w0).into(), (*w1).into());
            rest = tail;
        }
        if let [w0] = rest {
            d = absorb(d, (*w0).into(), 0);
        }
        // Halves change sides, so that equal differences in two lanes do not cancel. The head and the length come
        // after the words: in a seed the head would be xored with the first word, and their bits would be
        // indistinguishable. The length distinguishes an odd end from one with a trailing zero.
        let ab = absorb(a, b.1, b.0);
        let cd = absorb(c, d.1 ^ head, d.0 ^ leaf_first.len() as u64);
        let (left, right) = absorb(ab, cd.1, cd.0);
        // The low bits of a product's low half and the high bits of its high half are biased; so both parts of the
        // fingerprint are folded from the whole state.
        Fingerprint {
            hash: fold(left ^ PI[8], right ^ PI[9]),
            check: fold(left.wrapping_add(right.rotate_left(32)), PI[10]) as u32,
        }
    }
}

/// Hash of a frame: equally good for the low and the high bits of either word.
#[inline]
pub(super) fn of_frame((a, b): FrameWords) -> u64 {
    fold(a ^ PI[0], b ^ PI[1])
}

/// Hash of a node's key: its parent and its frame.
#[inline]
pub(super) fn of_node(parent: u32, frame: u32) -> u64 {
    fold((u64::from(parent) << 32 | u64::from(frame)) ^ PI[4], PI[5])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `1 / factor` modulo 2^64, by Newton's method.
    fn inverse(factor: u64) -> u64 {
        (0..6)
            .fold(factor, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse))))
    }

    #[test]
    fn the_previous_state_follows_from_the_next_one() {
        let mut lane = (PI[0], PI[1]);
        for step in 0..100_000_u64 {
            // Addresses, small numbers, zeros, all bits.
            let (a, b) = match step % 4 {
                0 => (0x5555_5555_0000 + step, 0x7fff_f7a1_0c33),
                1 => (step % 7, step % 5),
                2 => (0, 0),
                _ => (u64::MAX, u64::MAX << (step % 64)),
            };
            let (left, right) = absorb(lane, a, b);
            let x = (right ^ left.rotate_left(29)).wrapping_mul(inverse(FACTORS[0]));
            let high = ((u128::from(x) * u128::from(FACTORS[0])) >> 64) as u64;
            let y = (left ^ high).wrapping_mul(inverse(FACTORS[1]));
            assert_eq!((x ^ a, y ^ b), lane, "step {step}");
            lane = (left, right);
        }
    }
}
