//! Compares the trie with expected content: small tries by hand, large ones with a plain map.

#![allow(clippy::print_stderr)]

use std::collections::{BTreeMap, HashMap, HashSet};

use super::tables::Fingerprint;
use super::*;
use crate::rng::Rng;

/// Prints the seed of a failing test.
struct ShowSeed(u64);

impl Drop for ShowSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

/// A key like that of recorded stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Frame {
    Root(u32),
    Code { space: u32, address: u64 },
}

impl Key for Frame {
    fn words(self) -> FrameWords {
        match self {
            Frame::Root(root) => (0, root.into()),
            Frame::Code { space, address } => (1 << 32 | u64::from(space), address),
        }
    }

    fn from_words((place, address): FrameWords) -> Frame {
        match place {
            0 => Frame::Root(address as u32),
            _ => code(place as u32, address),
        }
    }
}

impl StackKey for Frame {
    type Head = (u32, u32);
    type Word = u64;

    fn head((root, _): (u32, u32)) -> Frame {
        Frame::Root(root)
    }

    fn word((_, space): (u32, u32), address: u64) -> Frame {
        code(space, address)
    }

    fn bits((root, space): (u32, u32)) -> u64 {
        u64::from(root) << 32 | u64::from(space)
    }
}

type Trie = super::Trie<Frame>;

fn code(space: u32, address: u64) -> Frame {
    Frame::Code { space, address }
}

/// The path that `Trie::insert` creates for these arguments.
fn path(root: u32, space: u32, leaf_first: &[u64]) -> Vec<Frame> {
    let codes = leaf_first.iter().rev().map(|&address| code(space, address));
    std::iter::once(Frame::Root(root)).chain(codes).collect()
}

/// All stacks in the trie's own order.
fn stacks(trie: &Trie) -> Vec<(Vec<Frame>, u64)> {
    let mut all = Vec::new();
    trie.for_each_stack(|frames, count| {
        all.push((frames.iter().map(|&f| trie.frame(f).expect("a frame of the trie")).collect(), count))
    });
    all
}

/// Checks every property of the trie that depends on the stacks.
#[track_caller]
fn check_against(trie: &Trie, expected: &HashMap<Vec<Frame>, u64>) {
    let sorted: BTreeMap<_, _> = expected.iter().filter(|(_, count)| **count > 0).collect();
    let sorted: Vec<_> = sorted.into_iter().map(|(frames, count)| (frames.clone(), *count)).collect();
    assert_eq!(stacks(trie), sorted);
    assert_eq!(trie.distinct_stacks(), sorted.len());
    assert_eq!(trie.total(), sorted.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count)));
    let prefixes: HashSet<&[Frame]> =
        expected.keys().flat_map(|frames| (0..=frames.len()).map(|len| &frames[..len])).collect();
    assert_eq!(trie.node_count(), prefixes.len().max(1), "one node a distinct path, and the top");
    let frames: HashSet<Frame> = expected.keys().flatten().copied().collect();
    assert_eq!(trie.frames().len(), frames.len());
    assert_eq!(trie.frames().collect::<HashSet<_>>(), frames);
    for id in 0..trie.node_count() as u32 {
        let mut node = NodeId(id);
        let mut frames = Vec::new();
        while let Some(frame) = trie.key(node) {
            frames.push(frame);
            node = trie.parent(node).expect("a node with a frame has a parent");
        }
        frames.reverse();
        assert_eq!(node, NodeId(0));
        assert_eq!(trie.count(NodeId(id)), expected.get(&frames).copied().unwrap_or(0));
    }
}

/// A stack from few addresses, so that prefixes, recursion and repetitions are frequent.
fn random_stack(random: &mut Rng) -> (u32, u32, Vec<u64>) {
    let depth = random.below(12);
    let mut addresses: Vec<u64> = (0..depth).map(|_| 0x1000 + random.below(3) as u64).collect();
    if random.below(8) == 0 {
        addresses.extend(std::iter::repeat_n(0x1000, random.below(20)));
    }
    if random.below(8) == 0 {
        addresses.push([0, u64::MAX, 1 << 63][random.below(3)]);
    }
    (random.below(3) as u32, random.below(2) as u32, addresses)
}

#[test]
fn a_small_trie_is_as_drawn() {
    let mut trie = Trie::new();
    //   root 7 ── main ── a ── b      leaf first: b a main
    //              └───── c
    let (main, a, b, c) = (0x10, 0x20, 0x30, 0x15);
    let leaf = trie.insert((7, 0), &[b, a, main], 2).expect("fits");
    assert_eq!(trie.insert((7, 0), &[b, a, main], 3), Ok(leaf));
    trie.insert((7, 0), &[c, main], 1).expect("fits");
    let root = trie.insert((7, 0), &[], 4).expect("fits");
    trie.add(leaf, 10);
    assert_eq!(
        stacks(&trie),
        [
            (vec![Frame::Root(7)], 4),
            (vec![Frame::Root(7), code(0, main), code(0, c)], 1),
            (vec![Frame::Root(7), code(0, main), code(0, a), code(0, b)], 15),
        ]
    );
    assert_eq!((trie.total(), trie.distinct_stacks()), (20, 3));
    assert_eq!((trie.node_count(), trie.frame_count()), (6, 5));
    assert_eq!(trie.parent(root), Some(NodeId(0)));
    assert_eq!((trie.parent(NodeId(0)), trie.frame_of(NodeId(0)), trie.count(NodeId(0))), (None, None, 0));
    assert_eq!(trie.key(leaf), Some(code(0, b)));
    assert_eq!(
        trie.frames().collect::<Vec<_>>(),
        [Frame::Root(7), code(0, main), code(0, a), code(0, b), code(0, c)]
    );
}

#[test]
fn random_stacks_count_as_in_a_map() {
    for seed in 1..=40 {
        let _seed = ShowSeed(seed);
        let mut random = Rng::new(seed);
        let mut trie = Trie::new();
        let mut map = HashMap::new();
        for _ in 0..random.below(3000) {
            let (root, space, addresses) = random_stack(&mut random);
            let weight = random.below(4) as u64;
            let frames = path(root, space, &addresses);
            let leaf = match random.below(4) {
                0 => trie.insert_path(&frames, weight),
                1 => trie.insert((root, space), &addresses, 0).inspect(|&leaf| trie.add(leaf, weight)),
                _ => trie.insert((root, space), &addresses, weight),
            };
            let before = map.get(&frames).copied().unwrap_or(0);
            assert_eq!(trie.count(leaf.expect("fits")), before + weight);
            map.insert(frames, before + weight);
        }
        check_against(&trie, &map);
    }
}

#[test]
fn merges_are_unions_in_any_order() {
    for seed in 1..=20 {
        let _seed = ShowSeed(seed);
        let mut random = Rng::new(seed);
        let mut map: HashMap<Vec<Frame>, u64> = HashMap::new();
        let parts: Vec<Trie> = (0..4)
            .map(|_| {
                let mut part = Trie::new();
                for _ in 0..random.below(200) {
                    let (root, space, addresses) = random_stack(&mut random);
                    let weight = random.below(3) as u64;
                    part.insert((root, space), &addresses, weight).expect("fits");
                    *map.entry(path(root, space, &addresses)).or_default() += weight;
                }
                part
            })
            .collect();
        for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
            let mut union = Trie::new();
            for index in order {
                union.merge(&parts[index]).expect("fits");
            }
            check_against(&union, &map);
            // Merged stacks are found again by their whole stack.
            let (root, space, addresses) = random_stack(&mut random);
            let known = map.get(&path(root, space, &addresses)).copied().unwrap_or(0);
            let leaf = union.insert((root, space), &addresses, 1).expect("fits");
            assert_eq!(union.count(leaf), known + 1);
        }
    }
}

#[test]
fn the_order_of_insertion_has_no_influence() {
    let mut random = Rng::new(9);
    let mut samples: Vec<_> = (0..500).map(|_| random_stack(&mut random)).collect();
    let mut seen = None;
    for _ in 0..5 {
        let mut trie = Trie::new();
        for (root, space, addresses) in &samples {
            trie.insert((*root, *space), addresses, 1).expect("fits");
        }
        assert_eq!(seen.get_or_insert_with(|| stacks(&trie)), &stacks(&trie));
        for index in (1..samples.len()).rev() {
            samples.swap(index, random.below(index + 1));
        }
    }
}

#[test]
fn a_full_node_table_refuses_new_stacks_only() {
    // The top, the root and two frames.
    let mut trie = Trie::with_limits(4, 100);
    trie.insert((0, 0), &[2, 1], 1).expect("fits exactly");
    let before = (stacks(&trie), trie.frames().collect::<Vec<_>>());
    assert_eq!(trie.insert((0, 0), &[3, 2, 1], 1), Err(Full::Nodes));
    assert_eq!(trie.insert((0, 0), &[9, 8, 7, 6, 5], 1), Err(Full::Nodes));
    assert_eq!(trie.insert_path(&[Frame::Root(1)], 1), Err(Full::Nodes));
    assert_eq!((stacks(&trie), trie.frames().collect::<Vec<_>>()), before, "no trace of what was refused");
    trie.insert((0, 0), &[2, 1], 1).expect("known by its whole stack");
    trie.insert((0, 0), &[1], 1).expect("known as a prefix");
    assert_eq!((trie.total(), trie.distinct_stacks(), trie.node_count()), (3, 2, 4));
    assert!(Full::Nodes.to_string().contains("NODES_MAX"));
}

#[test]
fn a_full_frame_table_refuses_new_frames_only() {
    let mut trie = Trie::with_limits(100, 3);
    trie.insert((0, 0), &[2, 1], 1).expect("fits exactly");
    assert_eq!(trie.insert((0, 0), &[2, 9, 1], 1), Err(Full::Frames));
    assert_eq!(trie.insert((1, 0), &[1], 1), Err(Full::Frames));
    assert_eq!(trie.insert((0, 1), &[1], 1), Err(Full::Frames), "another space is another frame");
    assert_eq!((trie.node_count(), trie.frame_count()), (4, 3));
    trie.insert((0, 0), &[1, 1, 2], 1).expect("a new stack of known frames");
    assert_eq!((trie.total(), trie.distinct_stacks()), (2, 2));
    assert!(Full::Frames.to_string().contains("FRAMES_MAX"));
}

#[test]
fn frames_of_a_refused_stack_are_forgotten() {
    let mut trie = Trie::with_limits(100, 4);
    trie.insert((0, 0), &[1], 1).expect("fits");
    assert_eq!(trie.insert((0, 0), &[13, 12, 11, 1], 1), Err(Full::Frames));
    trie.insert((0, 0), &[22, 21, 1], 1).expect("there is room for two frames still");
    assert_eq!(trie.frames().collect::<Vec<_>>(), [Frame::Root(0), code(0, 1), code(0, 21), code(0, 22)]);
    assert_eq!(stacks(&trie).len(), 2);
}

#[test]
fn a_merge_keeps_everything_that_fits() {
    let mut other = Trie::new();
    other.insert((0, 0), &[2, 1], 5).expect("fits");
    other.insert((0, 0), &[4, 3, 1], 7).expect("fits");
    other.insert((0, 0), &[1], 1).expect("fits");
    let mut trie = Trie::with_limits(4, 100);
    assert_eq!(trie.merge(&other), Err(Full::Nodes));
    assert_eq!((trie.total(), trie.distinct_stacks(), trie.node_count()), (6, 2, 4));
}

#[test]
fn tiny_limits_leave_only_the_top() {
    let mut trie = Trie::with_limits(0, 0);
    assert_eq!(trie.insert((0, 0), &[1], 1), Err(Full::Nodes));
    assert_eq!(trie.insert_path(&[], 3), Ok(NodeId(0)));
    assert_eq!(stacks(&trie), [(vec![], 3)]);
}

#[test]
fn deep_stacks_need_no_recursion() {
    const DEPTH: u64 = 65_536;
    let mut trie = Trie::new();
    let recursion: Vec<u64> = vec![0x1000; DEPTH as usize];
    let chain: Vec<u64> = (0..DEPTH).collect();
    for _ in 0..2 {
        trie.insert((0, 0), &recursion, 1).expect("fits");
        trie.insert((0, 0), &chain, 2).expect("fits");
    }
    trie.insert((0, 0), &chain[1..], 1).expect("fits");
    let mut seen = Vec::new();
    trie.for_each_stack(|frames, count| seen.push((frames.len() as u64, count)));
    assert_eq!(seen, [(DEPTH + 1, 2), (DEPTH, 1), (DEPTH + 1, 4)]);
    assert_eq!(trie.node_count() as u64, 2 + 2 * DEPTH);
    let mut copy = Trie::new();
    copy.merge(&trie).expect("fits");
    assert_eq!(stacks(&copy), stacks(&trie));
}

#[test]
fn counts_saturate() {
    let mut trie = Trie::new();
    let leaf = trie.insert((0, 0), &[1], u64::MAX - 1).expect("fits");
    trie.insert((0, 0), &[1], 5).expect("known");
    trie.add(leaf, u64::MAX);
    trie.insert((0, 0), &[2], 5).expect("fits");
    assert_eq!((trie.count(leaf), trie.total()), (u64::MAX, u64::MAX));
    let copy = trie.clone();
    trie.merge(&copy).expect("fits");
    assert_eq!((trie.count(leaf), trie.total(), trie.distinct_stacks()), (u64::MAX, u64::MAX, 2));
}

#[test]
fn numbers_of_another_trie_are_harmless() {
    let mut trie = Trie::new();
    for id in [1, 4096, u32::MAX] {
        trie.add(NodeId(id), 1);
        assert_eq!(trie.count(NodeId(id)), 0);
        assert_eq!((trie.parent(NodeId(id)), trie.frame_of(NodeId(id))), (None, None));
        assert_eq!(trie.frame(FrameId(id)), None);
    }
    assert_eq!(trie.total(), 0);
}

#[test]
fn a_known_stack_takes_no_memory() {
    let mut trie = Trie::new();
    let mut random = Rng::new(3);
    let samples: Vec<_> = (0..300).map(|_| random_stack(&mut random)).collect();
    let mut bytes = None;
    for _ in 0..3 {
        for (root, space, addresses) in &samples {
            trie.insert((*root, *space), addresses, 1).expect("fits");
        }
        assert_eq!(*bytes.get_or_insert(trie.memory_bytes()), trie.memory_bytes());
    }
}

/// A million stacks with minimal differences.
fn similar_stacks(mut visit: impl FnMut(u32, u32, &[u64])) {
    let mut random = Rng::new(11);
    // Single bits of every word, of the root and of the space, at every length, including odd ends.
    for depth in 0..=50 {
        let mut stack: Vec<u64> =
            (0..depth).map(|_| 0x5581_2c40_0000 + random.below(4 << 20) as u64).collect();
        visit(0, 0, &stack);
        for bit in 0..32 {
            visit(1 << bit, 0, &stack);
            visit(0, 1 << bit, &stack);
        }
        for word in 0..depth {
            for bit in 0..64 {
                stack[word] ^= 1 << bit;
                visit(0, 0, &stack);
                stack[word] ^= 1 << bit;
            }
        }
    }
    // The same bit in two words of different lanes, blocks and halves.
    let mut stack: Vec<u64> = (0..24).map(|_| random.next() >> 16).collect();
    for first in 0..stack.len() {
        for second in 0..first {
            for bit in 0..64 {
                stack[first] ^= 1 << bit;
                stack[second] ^= 1 << bit;
                visit(12, 0, &stack);
                stack[first] ^= 1 << bit;
                stack[second] ^= 1 << bit;
            }
            stack.swap(first, second);
            visit(12, 1, &stack);
            stack.swap(first, second);
        }
        stack.rotate_left(1);
        visit(12, 2, &stack);
    }
    // All orders of nine words, across two lanes (Heap's algorithm).
    let mut nine: Vec<u64> = (0..9).map(|word| 0x7f00_0000_1000 + 16 * word).collect();
    let mut cursor = [0; 9];
    visit(13, 0, &nine);
    let mut index = 1;
    while index < nine.len() {
        if cursor[index] < index {
            nine.swap(if index % 2 == 0 { 0 } else { cursor[index] }, index);
            visit(13, 0, &nine);
            cursor[index] += 1;
            index = 1;
        } else {
            cursor[index] = 0;
            index += 1;
        }
    }
    // Recursion of every depth to 2,000, of zeros and of one address, and small numbers.
    let zeros = [0; 2000];
    let ones = [0x1000; 2000];
    for depth in 0..2000 {
        visit(14, 0, &zeros[..depth]);
        visit(15, 0, &ones[..depth]);
    }
    for pair in 0..600_000 {
        visit(16, 0, &[pair % 775, pair / 775, 0x1000]);
    }
    // Different functions below the same deep recursion: of one function, of two alternating ones, of code
    // addresses and of frame numbers from a saved profile.
    let mut deep = [0; 1026];
    for (kind, again) in
        (17..).zip([[3, 3], [3, 4], [0x5555_5555_61d0; 2], [0x7fff_f7a1_0c33, 0x5555_5555_61d0]])
    {
        for (word, again) in deep.iter_mut().skip(2).zip(again.iter().cycle()) {
            *word = *again;
        }
        for pair in 0..4_000 {
            (deep[0], deep[1]) = (again[0] + 8 * (pair % 63), again[1] + pair / 63);
            visit(kind, 0, &deep);
        }
    }
}

#[test]
fn similar_stacks_have_different_fingerprints() {
    let mut prints = Vec::new();
    similar_stacks(|root, space, stack| prints.push(Fingerprint::of(Frame::bits((root, space)), stack)));
    assert!(prints.len() >= 1_000_000, "{}", prints.len());
    let distinct = |mut values: Vec<u64>| {
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    assert_eq!(distinct(prints.iter().map(|print| print.hash).collect()), prints.len());
    // Any 32 bits alone collide as often as random numbers: n^2 / 2^33 pairs.
    let expected = (prints.len() as f64).powi(2) / (1u64 << 33) as f64;
    let checks: Vec<u64> = prints.iter().map(|print| u64::from(print.check)).collect();
    let low: Vec<u64> = prints.iter().map(|print| print.hash & 0xffff_ffff).collect();
    let high: Vec<u64> = prints.iter().map(|print| print.hash >> 32).collect();
    for (name, bits) in [("check", checks), ("low half", low), ("high half", high)] {
        let collisions = (bits.len() - distinct(bits)) as f64;
        assert!(
            (collisions - expected).abs() < 5.0 * expected.sqrt(),
            "{name}: {collisions} collisions, {expected:.0} expected"
        );
    }
    // Hash and check are independent: equal checks do not imply similar hashes.
    let mut both: Vec<u64> =
        prints.iter().map(|print| u64::from(print.check) << 32 | print.hash >> 32).collect();
    both.sort_unstable();
    both.dedup();
    assert_eq!(both.len(), prints.len());
}

#[test]
fn recounting_merges_stacks_of_equal_places_and_drops_old_weights() {
    let mut trie = Trie::new();
    // Two spaces, which are not part of a sort key, and roots in reverse order.
    trie.insert((1, 0), &[3, 1], 30).expect("fits");
    trie.insert((0, 0), &[9], 20).expect("fits");
    trie.insert((1, 1), &[2, 1], 40).expect("fits");
    trie.insert((1, 1), &[4, 3, 1], 5).expect("fits");
    trie.insert((1, 0), &[1], 10).expect("fits");
    trie.insert((1, 1), &[3, 1], 31).expect("fits");
    let key = |frame| match frame {
        Frame::Root(root) => (0, u64::MAX - u64::from(root)),
        Frame::Code { address, .. } => (1, address),
    };
    let mut seen = Vec::new();
    trie.recount(key, |weight| {
        seen.push(weight);
        weight / 20
    });
    // Stacks of equal keys in either order.
    seen[2..4].sort_unstable();
    assert_eq!(seen, [10, 40, 30, 31, 5, 20]);
    assert_eq!((trie.total(), trie.distinct_stacks()), (2 + 1 + 1 + 1, 4));
    let mut counts = Vec::new();
    trie.for_each_stack(|_, count| counts.push(count));
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 1, 2]);
}
