//! Random processes: a seed replays, and the accounting balances for every seed.

use super::*;

fn sampled(seed: u64) -> (Seen, Rc<SimLedger>, SimConfig) {
    let config = SimConfig::from_seed(seed);
    let (mut target, clock, _) = start(&config);
    let ledger = target.ledger();
    let books = Rc::clone(&ledger);
    let seen = sample(&mut target, &clock, 97, |target, thread, capture| {
        for (number, address) in books.last_capture().expect("captured").addresses.iter().enumerate() {
            let at = address.0 - u64::from(number > 0);
            let mapped = target.mapped().any(|(_, module)| module.text.contains(&Avma(at)));
            assert!(mapped, "seed {seed}: frame {number} at {address} is not in a mapped image");
        }
        let whole = !books.faults().contains_key("short stack");
        if whole {
            assert_walks(target, &books, thread, capture);
        }
    });
    (seen, ledger, config)
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_does_not() {
    let [first, second, other] = [11, 11, 12].map(|seed| sampled(seed).0.trace);
    assert!(first.len() > 100);
    assert!(first == second, "seed 11 does not replay");
    assert!(first != other);
}

#[test]
fn for_every_seed_stacks_walk_and_the_accounting_balances() {
    let mut kinds = std::collections::BTreeSet::new();
    let mut captures = 0;
    for seed in 0..150 {
        let (seen, ledger, config) = sampled(seed);
        assert_eq!(seen.exits, 1, "seed {seed}");
        assert_eq!((ledger.stopped(), ledger.stops()), (0, ledger.resumes()), "seed {seed}");
        assert_eq!(seen.captures, ledger.captures(), "seed {seed}");
        assert_eq!(ledger.interrupted_stopped(), 0, "seed {seed}");
        assert_eq!(ledger.interrupted_waiting(), 0, "seed {seed}");
        let truth = ledger.truth();
        let told: u64 = seen.ended.iter().map(|(_, cpu_ns)| cpu_ns).sum();
        assert_eq!(truth.values().sum::<u64>(), told, "seed {seed}");
        for (thread, cpu_ns) in &seen.ended {
            let own: u64 = truth.iter().filter(|((id, _), _)| id == thread).map(|(_, ns)| ns).sum();
            assert_eq!(own, *cpu_ns, "seed {seed}, {thread:?}");
        }
        let cpu_ns = told + ledger.idle_cpu_ns();
        assert_eq!(cpu_ns % config.cpus as u64, 0, "seed {seed}");
        assert!(cpu_ns <= config.cpus as u64 * config.exit_ns, "seed {seed}");
        assert_eq!(ledger.captures_by_stack().values().sum::<u64>(), seen.captures, "seed {seed}");
        captures += seen.captures;
        kinds.extend(ledger.faults().into_keys());
        kinds.extend(config.exec.map(|_| "(exec)"));
        kinds.extend(config.threads.iter().any(|thread| !thread.looping).then_some("(ends)"));
        kinds.extend(config.images.iter().any(|image| image.unload_ns.is_some()).then_some("(plugin)"));
    }
    assert!(captures > 10_000, "{captures}");
    for kind in
        ["die before interrupt", "die before collect", "short stack", "unreadable", "long stop", "clock jump"]
    {
        assert!(kinds.contains(kind), "no seed has `{kind}`: {kinds:?}");
    }
    for kind in ["(exec)", "(ends)", "(plugin)"] {
        assert!(kinds.contains(kind), "no seed has {kind}");
    }
}

#[test]
fn seeded_processes_stay_within_their_stated_bounds() {
    for seed in 0..300 {
        let config = SimConfig::from_seed(seed);
        assert_eq!(config.check(), Ok(()), "seed {seed}");
        let plain = config.clone().without_faults().with_frame_pointers();
        assert!(plain.faults.is_empty());
        assert!(plain.threads.iter().flat_map(|thread| &thread.script).all(|phase| !phase.frameless_leaf));
        assert!((1..=8).contains(&config.threads.len()) && (1..=4).contains(&config.cpus), "seed {seed}");
        let depth = |thread: &SimThread| thread.script.iter().map(|phase| phase.stack.len()).max();
        assert!(config.threads.iter().all(|thread| depth(thread) <= Some(60)), "seed {seed}");
        let functions: usize = config.images.iter().map(|image| image.functions.len()).sum();
        assert!((5..=60).contains(&functions), "seed {seed}: {functions}");
    }
}

#[test]
#[should_panic(expected = "no function 9 in simulated image 0")]
fn an_inconsistent_config_is_refused_with_the_reason() {
    let _ = start(&process(Arch::X86_64, 1, vec![vec![run(1, &[0, 9])]]));
}
