//! The trie beside the simplest thing that could work: a hash map from stack to count.
//!
//! Input: 1 M samples of depth 50 out of 20,000 distinct stacks, made from a fixed seed.
//! Output: nanoseconds an insertion and live heap bytes of both, and PASS or FAIL lines;
//! exit 1 on FAIL. Each round starts empty, so first sights are in the figures.
//! `--quick` takes fewer samples and rounds and judges memory and results only; `--no-times`
//! judges the same of all rounds, for machines on which other programs run.

// The counting allocator needs it; nothing else here does.
#![allow(unsafe_code)]
#![allow(clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashSet;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use stackprof::addr::LookupAvma;
use stackprof::recording::{Frame, Root};
use stackprof::trie::Trie;

/// The map as one would write it: hashbrown with foldhash, its default. Of plain numbers, which are hashed
/// all at once: those of a type of their own are one by one.
type Map = hashbrown::HashMap<Vec<u64>, u64>;

const BEGIN: Root = Root { group: 0, complete: true, fiber: false, waiting: false };
const DEPTH: usize = 50;
const DISTINCT: usize = 20_000;
const CALL_SITES: usize = 8_000;
const SEED: u64 = 0x7472_6965;

/// Counts the bytes asked for and not yet given back.
struct Counting;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no block.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `block` came from `System.alloc` with this `layout`, through `alloc` above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// xorshift64*: enough for made-up stacks.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * end as u128) >> 64) as usize
    }
}

/// The distinct stacks, leaf first, one after the other.
struct Stacks {
    words: Vec<u64>,
    addresses: Vec<LookupAvma>,
    /// Mean share of the root side that a stack has from its predecessor.
    shared: f64,
}

impl Stacks {
    /// A chain, as a thread that calls and returns leaves it: each stack is the one before
    /// with its innermost 1, 2, … frames replaced, 10 on average (a geometric distribution).
    fn chain(random: &mut Random) -> Stacks {
        let sites: Vec<u64> =
            (0..CALL_SITES).map(|_| 0x5581_2c40_0000 + random.below(4 << 20) as u64).collect();
        let mut stack = [0; DEPTH];
        let mut words = Vec::with_capacity(DISTINCT * DEPTH);
        let mut seen = HashSet::new();
        let mut replaced = DEPTH;
        let mut replaced_sum = 0;
        while seen.len() < DISTINCT {
            for address in &mut stack[..replaced] {
                *address = sites[random.below(CALL_SITES)];
            }
            if seen.insert(stack) {
                words.extend_from_slice(&stack);
                replaced_sum += replaced;
            }
            replaced = 1;
            while replaced < DEPTH && random.below(10) != 0 {
                replaced += 1;
            }
        }
        let addresses = words.iter().map(|word| LookupAvma(*word)).collect();
        Stacks { words, addresses, shared: 1.0 - replaced_sum as f64 / (DISTINCT * DEPTH) as f64 }
    }

    fn get(&self, index: u32) -> &[LookupAvma] {
        // A sampler's stacks have any depth: a constant one would be unrolled into the callers.
        let depth = black_box(DEPTH);
        &self.addresses[index as usize * DEPTH..][..depth]
    }

    fn words(&self, index: u32) -> &[u64] {
        let depth = black_box(DEPTH);
        &self.words[index as usize * DEPTH..][..depth]
    }
}

/// One structure filled from empty: time and memory.
struct Filled {
    ns_per_insert: f64,
    live_bytes: usize,
    total: u64,
    distinct: usize,
}

fn fill<T>(
    samples: &[u32],
    new: impl FnOnce() -> T,
    mut insert: impl FnMut(&mut T, u32),
    result: impl FnOnce(&T) -> (u64, usize),
) -> Filled {
    let before = LIVE_BYTES.load(Relaxed);
    let start = Instant::now();
    let mut table = new();
    for &index in samples {
        insert(&mut table, index);
    }
    let elapsed = black_box(start.elapsed());
    let live_bytes = LIVE_BYTES.load(Relaxed) - before;
    let (total, distinct) = result(&table);
    Filled { ns_per_insert: elapsed.as_nanos() as f64 / samples.len() as f64, live_bytes, total, distinct }
}

fn fill_map(stacks: &Stacks, samples: &[u32]) -> Filled {
    let insert = |map: &mut Map, index| {
        let stack = stacks.words(index);
        match map.get_mut(stack) {
            Some(count) => *count += 1,
            None => {
                map.insert(stack.to_vec(), 1);
            }
        }
    };
    fill(samples, Map::new, insert, |map| (map.values().sum(), map.len()))
}

fn fill_trie(stacks: &Stacks, samples: &[u32]) -> Filled {
    let insert = |trie: &mut Trie<Frame>, index| {
        black_box(trie.insert((BEGIN, 0), stacks.get(index), 1)).expect("20,000 stacks fit");
    };
    let mut claimed_bytes = 0;
    let filled = fill(samples, Trie::new, insert, |trie| {
        claimed_bytes = trie.memory_bytes();
        (trie.total(), trie.distinct_stacks())
    });
    assert_eq!(claimed_bytes, filled.live_bytes, "memory_bytes() is what the allocator counted");
    filled
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median times of the map and of the trie, and the last round's memory.
struct Compared {
    map_ns: f64,
    trie_ns: f64,
    map_bytes: usize,
    trie_bytes: usize,
}

/// Turn and turn about, so that a noisy neighbour meets both.
fn compare(name: &str, stacks: &Stacks, samples: &[u32], rounds: usize) -> Compared {
    let (mut map_ns, mut trie_ns) = (Vec::new(), Vec::new());
    let (mut map_bytes, mut trie_bytes) = (0, 0);
    for _ in 0..rounds {
        let map = fill_map(stacks, samples);
        let trie = fill_trie(stacks, samples);
        assert_eq!(map.total, samples.len() as u64);
        assert_eq!((map.total, map.distinct), (trie.total, trie.distinct), "{name} order: the counts agree");
        map_ns.push(map.ns_per_insert);
        trie_ns.push(trie.ns_per_insert);
        (map_bytes, trie_bytes) = (map.live_bytes, trie.live_bytes);
    }
    let compared = Compared { map_ns: median(map_ns), trie_ns: median(trie_ns), map_bytes, trie_bytes };
    println!(
        "{name:<8}{:>10.1}{:>10.1}{:>8.2}{:>12.2}{:>10.2}{:>8.2}",
        compared.map_ns,
        compared.trie_ns,
        compared.trie_ns / compared.map_ns,
        compared.map_bytes as f64 / 1e6,
        compared.trie_bytes as f64 / 1e6,
        compared.trie_bytes as f64 / compared.map_bytes as f64,
    );
    compared
}

fn main() -> ExitCode {
    // `cargo bench` and `cargo test` add --bench or --test; they mean nothing here.
    // Times of a debug build say nothing.
    let asked = |option: &str| std::env::args().any(|arg| arg == option);
    let quick = cfg!(debug_assertions) || asked("--quick");
    let (samples, rounds) = if quick { (100_000, 3) } else { (1_000_000, 11) };

    let mut random = Random(SEED);
    let stacks = Stacks::chain(&mut random);
    let thread_order: Vec<u32> = (0..samples).map(|sample| (sample % DISTINCT) as u32).collect();
    let random_order: Vec<u32> = (0..samples).map(|_| random.below(DISTINCT) as u32).collect();

    println!(
        "{samples} insertions, depth {DEPTH}, {DISTINCT} distinct stacks, {:.0} % shared with the one before; \
         median of {rounds} rounds",
        stacks.shared * 100.0
    );
    println!("order       map ns   trie ns   ratio      map MB   trie MB   ratio");
    let thread = compare("thread", &stacks, &thread_order, rounds);
    let random = compare("random", &stacks, &random_order, rounds);

    let memory = thread.trie_bytes.max(random.trie_bytes) as f64 / thread.map_bytes as f64;
    let mut verdicts = vec![("trie memory at most 0.8 of the map's", memory <= 0.8)];
    if !quick && !asked("--no-times") {
        verdicts.push(("trie not slower than the map, thread order", thread.trie_ns <= thread.map_ns));
        verdicts.push(("trie not slower than the map, random order", random.trie_ns <= random.map_ns));
    }
    for (claim, holds) in &verdicts {
        println!("{} {claim}", if *holds { "PASS" } else { "FAIL" });
    }
    if verdicts.iter().all(|(_, holds)| *holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
