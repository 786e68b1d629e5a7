//! What happens when a stub fails: no panic, no wait beyond the limits, one line that says what is wrong, and
//! the target runs on where the stub lets it.

use stackprof::clock::Clock;
use stackprof::live::Live;
use stackprof::sampler::{self, Options};
use stackprof::sources::Target;
use stackprof::sources::gdb::InitialState;
use stackprof::walk::UnwindMethod;

use super::fake::{Fake, Fate, Kind, Manner, Wrong};
use super::targets::{ARM_WITHOUT_REGISTERS, CORTEX_M, X86_64};
use super::{Rng, rounds};
use crate::sampler::recording;

/// Longest visit: ten seconds for the first answer, five for any other, thirty for all answers of a description
/// together, two and five for detaching.
const VISIT_NS_MAX: u64 = 52_000_000_000;

/// Attaches, takes all stacks twice and leaves; what was said, and what became of the target.
fn visit(manner: Manner) -> (Result<usize, String>, Fate) {
    let fake = Fake::start(manner);
    let said = fake.attach(InitialState::Running).and_then(|mut target| {
        let mut stacks = 0;
        for _ in 0..2 {
            let snapshot = sampler::snapshot(&mut target, &fake.clock, 64, UnwindMethod::Auto);
            stacks = snapshot.map_err(|error| error.to_string())?.stacks.len();
        }
        Ok(stacks)
    });
    let fate = fake.fate();
    let took_ns = fake.clock.now_ns();
    assert!(took_ns < VISIT_NS_MAX, "{manner:?} took {took_ns} ns");
    assert!(fate.harm.is_empty(), "{manner:?}: {:?}", fate.harm);
    if let Err(said) = &said {
        assert!(!said.contains('\n') && said.len() < 300, "{manner:?}: {said}");
    }
    (said, fate)
}

/// The answers that an undisturbed visit has.
fn answers(manner: Manner) -> usize {
    let (stacks, fate) = visit(manner);
    assert_eq!(stacks, Ok(manner.threads.max(1)));
    assert!(fate.runs && fate.detached, "{fate:?}");
    assert!(manner.no_ack || fate.acks > fate.answers, "{fate:?}");
    fate.answers
}

/// What was said at each visit, and what became of the target.
type Outcomes = Vec<(Manner, Result<usize, String>, Fate)>;

/// Visits stubs of all these manners.
fn visit_all(manners: impl IntoIterator<Item = Manner>) -> Outcomes {
    let outcome = |manner| {
        let (said, fate) = visit(manner);
        (manner, said, fate)
    };
    manners.into_iter().map(outcome).collect()
}

fn every_manner() -> [Manner; 8] {
    let all_stop = Manner::all_stop();
    [
        all_stop,
        Manner::non_stop(),
        Manner { no_ack: false, ..all_stop },
        Manner { threads: 0, xml: None, ..all_stop },
        Manner::board(),
        Manner::handler(),
        Manner::old_board(),
        Manner::debugserver(),
    ]
}

fn tells_its_processor(manner: &Manner) -> bool {
    manner.xml.is_some() || manner.kind == Kind::Debugserver
}

/// At every answer in turn, each of these.
fn at_each(wrongs: impl Fn(usize) -> Vec<Wrong>) -> Outcomes {
    let mut manners = Vec::new();
    for manner in every_manner() {
        // A stub that tells nothing of its processor is refused at once.
        let count = if tells_its_processor(&manner) { answers(manner) } else { 8 };
        let wrongs = (0..count).flat_map(&wrongs);
        manners.extend(wrongs.map(|wrong| Manner { wrong, ..manner }));
    }
    visit_all(manners)
}

/// Two random packets at every answer in turn.
fn nonsense() -> Outcomes {
    let mut outcomes = Vec::new();
    for round in 0..rounds(1) {
        let mut random = Rng::new(round);
        let seeds: Vec<u64> = (0..200).map(|_| random.next()).collect();
        let seed = |at: usize| seeds[at % seeds.len()];
        outcomes.extend(at_each(|at| vec![Wrong::Nonsense(at, seed(at)), Wrong::Garbage(at, seed(at))]));
    }
    outcomes
}

fn endless() -> Outcomes {
    let mut manners = Vec::new();
    for at in [0, 3, 9, 14, 20] {
        for manner in [Manner::all_stop(), Manner::non_stop()] {
            manners.extend([Wrong::Endless(at), Wrong::Flood(at)].map(|wrong| Manner { wrong, ..manner }));
        }
    }
    visit_all(manners)
}

#[test]
fn a_stub_that_behaves_gives_a_stack_of_each_thread() {
    for manner in every_manner().into_iter().filter(tells_its_processor) {
        assert!(answers(manner) > 20, "{manner:?}");
    }
    let alone = Manner { threads: 0, ..Manner::all_stop() };
    answers(alone);
}

#[test]
fn a_connection_that_is_closed_at_any_answer_is_told_at_once() {
    for (manner, said, _) in at_each(|at| vec![Wrong::Closed(at)]) {
        // The last answer is that to detaching, which nobody misses.
        if let Err(said) = said {
            assert!(
                said.contains("closed the connection") || said.contains("does not tell"),
                "{manner:?}: {said}"
            );
        }
    }
}

#[test]
fn a_stub_that_falls_silent_at_any_answer_is_left_and_lets_its_target_run() {
    for (manner, said, fate) in at_each(|at| vec![Wrong::Silent(at)]) {
        if let Err(said) = said {
            let told =
                said.contains("did not answer") || said.contains("within") || said.contains("does not tell");
            assert!(told, "{manner:?}: {said}");
        }
        assert!(fate.runs, "{manner:?}: {fate:?}");
    }
}

#[test]
fn an_answer_that_comes_too_late_is_never_taken_for_another() {
    for (manner, said, fate) in at_each(|at| vec![Wrong::Late(at)]) {
        assert!(fate.runs, "{manner:?}: {said:?} {fate:?}");
    }
}

#[test]
fn damaged_answers_are_asked_for_again_or_told() {
    for (manner, said, fate) in at_each(|at| vec![Wrong::Checksum(at), Wrong::Truncated(at)]) {
        assert!(fate.runs, "{manner:?}: {said:?} {fate:?}");
    }
}

#[test]
fn nonsense_is_told_and_the_target_runs_on() {
    for (manner, said, fate) in nonsense() {
        assert!(fate.runs, "{manner:?}: {said:?} {fate:?}");
    }
}

#[test]
fn a_target_that_is_said_to_have_ended_is_let_go_all_the_same() {
    for (manner, said, fate) in at_each(|at| vec![Wrong::Ended(at)]) {
        assert!(fate.runs, "{manner:?}: {said:?} {fate:?}");
    }
}

#[test]
fn answers_without_end_come_to_an_end() {
    for (manner, said, _) in endless() {
        assert!(said.is_err(), "{manner:?}");
    }
}

#[test]
fn threads_without_end_are_refused() {
    for wrong in [Wrong::Threads, Wrong::ThreadsAgain] {
        for (manner, said, fate) in visit_all(
            [Manner::all_stop(), Manner::non_stop(), Manner::board()]
                .map(|manner| Manner { wrong, ..manner }),
        ) {
            let said = said.unwrap_err();
            assert!(
                said.contains("more than 16384 threads") || said.contains("did not come to an end"),
                "{manner:?}: {said}"
            );
            assert!(fate.runs, "{manner:?}: {fate:?}");
        }
    }
}

#[test]
fn a_slow_stub_is_no_fault() {
    for manner in [Manner::all_stop(), Manner::non_stop()] {
        let (said, fate) = visit(Manner { wrong: Wrong::Slow, ..manner });
        assert_eq!(said, Ok(3));
        assert!(fate.runs && fate.detached);
    }
}

#[test]
fn contradictory_descriptions_are_refused() {
    let cases: [(&str, &str); 7] = [
        ("<target><architecture>mips</architecture></target>", "`mips`"),
        ("<target><architecture>armeb</architecture></target>", "big-endian"),
        (
            "<target><architecture>i386:x86-64</architecture><feature><reg name=\"rax\" bitsize=\"64\"/></feature></target>",
            "`rdx` is missing",
        ),
        (
            "<target><architecture>i386:x86-64</architecture><reg name=\"rax\" bitsize=\"64\" regnum=\"1\"/><reg name=\"rbx\" bitsize=\"64\" regnum=\"1\"/></target>",
            "one number",
        ),
        ("<target><xi:include href=\"loop.xml\"/></target>", "without end"),
        ("<target><xi:include href=\"none.xml\"/></target>", "but not that"),
        ("<target", "not XML"),
    ];
    for (xml, expected) in cases {
        let (said, fate) = visit(Manner { xml: Some(xml), ..Manner::all_stop() });
        let said = said.unwrap_err();
        assert!(said.contains(expected), "{said}");
        assert!(fate.runs && fate.detached, "{fate:?}");
    }
    assert!(X86_64.contains("rip"));
}

#[test]
fn contradictory_descriptions_of_a_board_are_refused() {
    let replaced = |from: &str, to: &str| {
        assert!(CORTEX_M.contains(from));
        CORTEX_M.replacen(from, to, 1)
    };
    let cases = [
        (
            replaced("<reg name=\"r0\" bitsize=\"32\"/>", "<reg name=\"r0\" bitsize=\"64\"/>"),
            "`r0` with 64 bits",
        ),
        (replaced("<reg name=\"lr\" bitsize=\"32\"/>", ""), "`lr` is missing"),
        (replaced("<reg name=\"pc\" bitsize=\"32\"/>", ""), "`pc` is missing"),
        (replaced("<reg name=\"lr\"", "<reg name=\"r13\""), "`r13` is described twice"),
        (replaced("xpsr\" bitsize=\"32\" regnum=\"25\"", "xpsr\" bitsize=\"32\" regnum=\"4\""), "one number"),
        (replaced("</feature>", "<reg name=\"cpsr\" bitsize=\"32\"/></feature>"), "is described twice"),
        (replaced("<reg name=\"sp\"", "<reg name=\"sp\" offset=\"4294967295\""), ""),
    ];
    for (xml, expected) in cases {
        // Held to the end of the program: a stub of each description.
        let xml: &'static str = Box::leak(xml.into_boxed_str());
        let (said, fate) = visit(Manner { xml: Some(xml), ..Manner::board() });
        if !expected.is_empty() {
            let said = said.unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
        assert!(fate.runs && fate.detached, "{fate:?}");
    }
    assert!(!ARM_WITHOUT_REGISTERS.contains("reg"));
}

fn options() -> Options {
    let duration_ns = Some(500_000_000);
    Options { timeline_bytes: 0, duration_ns, max_depth: 64, max_stop: 0.5, ..recording::options(200, 1) }
}

#[test]
fn a_recording_weighs_the_time_between_its_stops() {
    for manner in [Manner::all_stop(), Manner::non_stop()] {
        let fake = Fake::start(manner);
        let mut target = fake.attach(InitialState::Running).unwrap();
        let begun_ns = fake.clock.now_ns();
        let profile = sampler::record(&mut target, &fake.clock, &options(), &Live::default()).unwrap();
        let took_ns = fake.clock.now_ns() - begun_ns;
        drop(target);
        let fate = fake.fate();
        assert!(fate.runs && fate.detached, "{fate:?}");
        assert_eq!(profile.stats.cut_short, None);
        assert!((500_000_000..510_000_000).contains(&took_ns), "{took_ns}");
        // Three threads that always run, for half a second at 200 Hz; less the stops, which begin a moment after they
        // are requested.
        let stats = &profile.stats;
        let running_ns = 3 * (stats.duration_ns - stats.stopped_ns)..3 * stats.duration_ns;
        assert!(running_ns.contains(&stats.target_cpu_ns) && fate.stops > 90, "{stats:?}");
        let counts = stats.samples + stats.samples_lost.values().sum::<u64>();
        let expected = stats.target_cpu_ns * 200 / 1_000_000_000;
        assert!(counts.abs_diff(expected) <= 3, "{counts} of {expected}: {stats:?}");
    }
}

#[test]
fn what_was_recorded_before_the_connection_was_lost_is_kept() {
    for manner in [Manner::all_stop(), Manner::non_stop()] {
        let until = answers(manner) + 60;
        let fake = Fake::start(Manner { wrong: Wrong::Closed(until), ..manner });
        let mut target = fake.attach(InitialState::Running).unwrap();
        let options = Options { duration_ns: Some(60_000_000_000), ..options() };
        let profile = sampler::record(&mut target, &fake.clock, &options, &Live::default()).unwrap();
        let why = profile.stats.cut_short.unwrap();
        assert!(why.contains("closed the connection"), "{why}");
        assert!(profile.stats.samples > 0);
        let mut threads = Vec::new();
        target.threads(&mut threads);
        assert_eq!(threads.len(), 3);
    }
}
