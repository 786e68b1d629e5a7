//! Random processes: counts and losses add up for every seed.

use super::*;

#[test]
fn counts_and_losses_add_up_for_every_seed() {
    let mut kinds = BTreeSet::new();
    for seed in seeds(0..150) {
        let _replay = replay_sim(seed);
        let recorded = record(&seeded(seed), &options(199, seed));
        recorded.check_balance();
        assert!(recorded.profile.stats.exit_status.is_some());
        kinds.extend(recorded.ledger.faults().into_keys());
    }
    if as_usual() {
        assert!(kinds.len() >= 7, "{kinds:?}");
    }
}

#[test]
fn wall_clock_time_adds_up_for_every_seed() {
    for seed in seeds(0..60) {
        let _replay = replay_sim(seed);
        let recorded = record(&seeded(seed), &idle(199, seed));
        let waited: u64 = recorded.ledger.truth_waiting().values().sum();
        let least = recorded.counts(waited) + recorded.true_counts();
        let told = (recorded.profile.stats.samples + recorded.lost()) as f64;
        // The losses for job control and lack of a CPU add up to this.
        let most = recorded.counts(recorded.now_ns) * recorded.profile.threads().count() as f64;
        let threads = recorded.profile.threads().count() as f64;
        assert!(told <= most + threads && told >= least - 6.0 * threads, "{least} <= {told} <= {most}");
    }
}
