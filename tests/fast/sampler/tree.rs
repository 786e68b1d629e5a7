//! Several processes in one recording: each sample belongs to its own process, with names of its code, and
//! counts and losses add up.

use super::*;
use stackprof::clock::FakeClock;
use stackprof::live::Live;
use stackprof::recording::Recording;
use stackprof::rng::Rng;
use stackprof::sources::sim::{SimProcess, SimTree};
use stackprof::symbol::{self, Names};
use stackprof::trie::FrameId;

/// The process with this number in its names; seeded ones have the same code at the same places.
fn numbered(mut config: SimConfig, pid: u32) -> SimConfig {
    config.pid = pid;
    config.name = format!("p{pid}");
    for function in config.images.iter_mut().flat_map(|image| &mut image.functions) {
        function.name = format!("p{pid}_{}", function.name);
    }
    config
}

struct Tree {
    profile: Recording,
    names: Names,
    /// CPU time by process, nanoseconds.
    truth: BTreeMap<u32, u64>,
    /// CPU time of those with numbers from 2000 on, by leaf.
    leaves: BTreeMap<String, u64>,
}

fn record_tree(first: SimConfig, others: Vec<SimProcess>, options: &Options) -> Tree {
    let clock = FakeClock::default();
    let mut target = SimTree::new(first, others, clock.clone());
    let profile = sampler::record(&mut target, &clock, options, &Live::default()).unwrap();
    let ledgers = target.ledgers().to_vec();
    drop(target);
    let (mut truth, mut leaves) = (BTreeMap::new(), BTreeMap::new());
    for (pid, ledger) in ledgers {
        assert_eq!((ledger.stopped(), ledger.stops()), (0, ledger.resumes()), "pid {pid}");
        assert_eq!(ledger.interrupted_stopped(), 0, "pid {pid}: job control is left alone");
        if !options.idle {
            assert_eq!(ledger.interrupted_waiting(), 0, "pid {pid}: waiting threads are left alone");
        }
        truth.insert(pid, ledger.truth().values().sum());
        for ((_, names), ns) in ledger.truth().into_iter().filter(|_| pid >= 2000) {
            *leaves.entry(names.last().cloned().unwrap_or_default()).or_default() += ns;
        }
    }
    let frames = profile.trie.frames().enumerate().map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbol::symbolicate(frames, &profile.images, &symbol::Options::default());
    Tree { profile, names, truth, leaves }
}

impl Tree {
    /// Counts by process; checks that each named frame belongs to that process.
    fn counts(&self) -> BTreeMap<u32, u64> {
        let mut counts = BTreeMap::new();
        self.profile.trie.for_each_stack(|frames, count| {
            let Some(Frame::Root(root)) = self.profile.trie.frame(frames[0]) else { panic!("no root") };
            let group = &self.profile.stack_groups[root.group as usize];
            let program = &self.profile.programs[group.program as usize];
            assert_eq!(program.name, format!("p{}", program.pid));
            if let Some(thread) = &group.thread {
                assert!(
                    (0..100).contains(&(thread.id - u64::from(program.pid))),
                    "{thread:?} of {program:?}"
                );
            }
            *counts.entry(program.pid).or_default() += count;
            for name in frames[1..].iter().flat_map(|frame| self.names.get(*frame)).map(ToString::to_string) {
                let own = name.starts_with(&format!("p{}_", program.pid)) || name.starts_with('[');
                assert!(own, "{name} under process {}", program.pid);
            }
        });
        counts
    }

    fn real_counts(&self, pid: u32) -> f64 {
        self.truth[&pid] as f64 * f64::from(self.profile.hz) / 1e9
    }

    /// [`Recorded::check_balance`] for all processes together.
    fn check_balance(&self) {
        let stats = &self.profile.stats;
        let told = (stats.samples + stats.samples_lost.values().sum::<u64>()) as f64;
        let real: f64 = self.truth.keys().map(|pid| self.real_counts(*pid)).sum();
        let threads = stats.threads_seen as f64;
        let alive = 0.004 * f64::from(self.profile.hz);
        let slack = threads * (1.0 + alive) + 1.0;
        assert!(
            told <= real + threads && told >= real - slack,
            "{told} of {real} (slack {slack}): {stats:?}"
        );
    }
}

fn of_seed(seed: u64) -> (SimConfig, Vec<SimProcess>) {
    let mut rng = Rng::new(seed);
    let others = (1..=rng.within(1, 5)).map(|number| {
        let config = numbered(seeded(seed * 16 + number), 1000 + 100 * number as u32);
        SimProcess { start_ns: rng.within(0, 1_900 * MS), config }
    });
    let others = others.collect();
    (numbered(seeded(seed * 16), 1000), others)
}

#[test]
fn each_process_has_its_own_names_and_time_for_every_seed() {
    for seed in seeds(0..25) {
        let _replay = replay(seed);
        let (first, others) = of_seed(seed);
        let ends_ns = first.exit_ns;
        let begun = 1 + others.iter().filter(|other| other.start_ns < ends_ns).count() as u64;
        let tree = record_tree(first, others, &options(499, seed));
        let counts = tree.counts();
        tree.check_balance();
        // Faults can end a process early, the first of them all processes.
        assert!(tree.profile.stats.processes_seen <= begun, "{:?}", tree.profile.stats);
        assert_eq!(tree.profile.stats.processes_seen, tree.truth.len() as u64);
        for pid in tree.truth.keys() {
            let (shown, real) = (counts.get(pid).copied().unwrap_or(0) as f64, tree.real_counts(*pid));
            assert!(shown <= real + 16.0, "pid {pid}: {shown} counts of {real}");
        }
    }
}

#[test]
fn wall_clock_time_is_kept_by_process() {
    for seed in seeds(0..12) {
        let _replay = replay(seed);
        let (first, others) = of_seed(seed);
        let tree = record_tree(first, others, &idle(199, seed));
        let counts = tree.counts();
        for pid in tree.truth.keys() {
            assert!(counts.contains_key(pid) || tree.real_counts(*pid) < 20.0, "pid {pid} is missing");
        }
    }
}

/// The CPUs of the first process are shared by all. Each lives for three ticks, with the same code at the
/// same addresses.
#[test]
fn short_processes_have_names_of_their_own_code() {
    let _replay = replay(7);
    for arch in ARCHES {
        let first = numbered(process(arch, 4, 3, vec![vec![run(500, &[0, 1]), wait(1_500, &[0, 2])]]), 1000);
        let others = (0..400u32).map(|number| {
            let start_ns = (20 + 7 * u64::from(number)) * MS;
            let mut config = process(arch, 1, 3, vec![vec![run(3_000, &[0, 1, 2]), run(300, &[0, 3])]]);
            config.exit_ns = start_ns + 3_300_000;
            SimProcess { start_ns, config: numbered(config, 2000 + 100 * number) }
        });
        let others: Vec<SimProcess> = others.collect();
        let tree = record_tree(first, others, &options(997, 7));
        tree.check_balance();
        let counts = tree.counts();
        let short: u64 = counts.iter().filter(|(pid, _)| **pid >= 2000).map(|(_, count)| count).sum();
        let real: f64 = tree.truth.keys().filter(|pid| **pid >= 2000).map(|pid| tree.real_counts(*pid)).sum();
        // CPU time after the last sample of a process is in the first sample of another one only if both have
        // the same name, and is reported as lost here: half a period or so of three.
        assert!(
            short as f64 > 0.7 * real && (short as f64) < 1.05 * real,
            "{short} of {real:.0} in {}",
            tree.truth.len()
        );
        assert!(tree.profile.stats.stacks_incomplete.is_empty(), "{:?}", tree.profile.stats);
        assert_eq!(tree.profile.stats.processes_seen, 401);
    }
}

/// Short processes of one program: their time adds up in the profile, attributed to the phases that used it,
/// including the startup.
#[test]
fn short_processes_of_one_program_lose_no_time() {
    let _replay = replay(8);
    let first =
        numbered(process(Arch::X86_64, 4, 9, vec![vec![run(500, &[0, 1]), wait(1_500, &[0, 2])]]), 1000);
    let others = (0..2000u32).map(|number| {
        let start_ns = 20 * MS + u64::from(number) * 4_300_001;
        let phases = vec![run(600, &[0, 5]), run(600, &[0, 6]), run(600, &[0, 7])];
        let mut config = process(Arch::X86_64, 1, 9, vec![phases]);
        config.exit_ns = start_ns + 1_800_000;
        config.pid = 2000 + 100 * number;
        config.name = "short".to_owned();
        SimProcess { start_ns, config }
    });
    let options = Options { threads: false, ..options(997, 8) };
    let tree = record_tree(first, others.collect(), &options);
    tree.check_balance();
    let profile = &tree.profile;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    profile.trie.for_each_stack(|frames, count| {
        let Some(Frame::Root(root)) = profile.trie.frame(frames[0]) else { panic!("no root") };
        let group = &profile.stack_groups[root.group as usize];
        let leaf = frames.last().and_then(|leaf| tree.names.get(*leaf).first());
        if profile.programs[group.program as usize].name == "short" {
            *counts.entry(leaf.map_or_else(String::new, ToString::to_string)).or_default() += count;
        }
    });
    let real: f64 = tree.truth.keys().filter(|pid| **pid >= 2000).map(|pid| tree.real_counts(*pid)).sum();
    let all: u64 = counts.values().sum();
    assert!((all as f64 / real - 1.0).abs() < 0.03, "{all} counts of {real}");
    for (function, ns) in &tree.leaves {
        let shown = counts.get(function).copied().unwrap_or(0) as f64 / all as f64;
        let share = tree.profile.hz as f64 * *ns as f64 / 1e9 / real;
        // About 3,500 samples: four standard deviations.
        assert!((shown - share).abs() < 0.032, "{shown} of the time in {function}, not {share}: {counts:?}");
    }
    assert_eq!(tree.leaves.len(), 3);
}
