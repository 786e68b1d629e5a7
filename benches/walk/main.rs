//! The cost of walking, beside framehop on the same stacks.
//!
//! `cargo bench --bench walk`: nanoseconds per frame of `auto`, and of `fp` where the code
//! keeps frame records, in alternating rounds. The stacks are recorded ones of real programs
//! and composed ones (`stacks.rs`). Both sides give the list of look-up addresses, and the
//! bench ends with an error where the lists differ. framehop's cache has 509 places, so the
//! addresses of the sets that are held to the bar fit into it without collision; the other
//! sets show what happens where they do not, and at addresses that are new. Asserts that
//! `auto` and `fp` take at most 1.2 times framehop's time.
//!
//! `--instructions` counts instructions instead, by valgrind: the same on a busy machine.
//! `--quick` and debug builds measure too little to assert anything.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod framehop_side;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod instructions;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stacks;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("SKIP the walk bench records programs of Linux on x86_64");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    linux::main();
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux {
    use std::collections::BTreeSet;
    use std::hint::black_box;
    use std::time::Instant;

    use stackprof::addr::LookupAvma;
    use stackprof::images::ImageView;
    use stackprof::walk::{self, Frames, Input, StackBytes, StackEnd, UnwindMethod, Unwinder};

    use crate::framehop_side::Framehop;
    use crate::instructions;
    use crate::stacks::{self, Program, Set, Stack};

    const ALLOWED: f64 = 1.2;
    /// Rounds are many and short, so that most are not interrupted on a busy machine.
    const ROUNDS: usize = 500;
    const ROUND_NS: u64 = 60_000;

    /// Who walks.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Walker {
        Framehop,
        Auto,
        FramePointer,
    }

    impl Walker {
        pub(super) const ALL: &[Walker] = &[Walker::Framehop, Walker::Auto, Walker::FramePointer];

        pub(super) fn name(self) -> &'static str {
            match self {
                Walker::Framehop => "framehop",
                Walker::Auto => "auto",
                Walker::FramePointer => "fp",
            }
        }
    }

    /// One walker with its caches, and what it found last.
    pub(super) struct State<'a> {
        walker: Walker,
        code: ImageView<'a>,
        framehop: Framehop,
        unwinder: Unwinder,
        frames: Frames,
        ended: Option<StackEnd>,
    }

    impl<'a> State<'a> {
        pub(super) fn new(walker: Walker, program: &'a Program) -> State<'a> {
            State {
                walker,
                code: program.images.of(0),
                framehop: Framehop::new(program),
                unwinder: Unwinder::default(),
                frames: Frames::default(),
                ended: None,
            }
        }

        fn of(set: &Set, program: &'a Program) -> Vec<State<'a>> {
            set.walkers().iter().map(|walker| State::new(*walker, program)).collect()
        }

        fn forget(&mut self) {
            match self.walker {
                Walker::Framehop => self.framehop.forget(),
                _ => self.unwinder.images_changed(),
            }
        }

        /// Walks and returns the number of frames; 0 if the stack is not complete.
        pub(super) fn walk(&mut self, stack: &Stack) -> usize {
            let how = match self.walker {
                Walker::Framehop => {
                    self.framehop.walk(stack);
                    return black_box(self.framehop.addresses.len());
                }
                Walker::Auto => UnwindMethod::Auto,
                Walker::FramePointer => UnwindMethod::FramePointer,
            };
            let input = Input {
                stack_top: stack.top,
                max_depth: 1024,
                ..Input::new(StackBytes { base: stack.base, bytes: &stack.bytes }, &self.code)
            };
            let walked = walk::unwind(how, &stack.registers, &input, &mut self.unwinder, &mut self.frames)
                .expect("all code is in images");
            self.ended = Some(walked.ended);
            black_box(if walked.ended == StackEnd::Root { self.frames.addresses.len() } else { 0 })
        }

        fn addresses(&self) -> &[LookupAvma] {
            match self.walker {
                Walker::Framehop => &self.framehop.addresses,
                _ => &self.frames.addresses,
            }
        }
    }

    pub(super) fn main() {
        let args: Vec<String> = std::env::args().skip(1).collect();
        if args.first().is_some_and(|arg| arg == stacks::WORK) {
            return stacks::work();
        }
        let quick = cfg!(debug_assertions) || args.iter().any(|arg| arg == "--quick" || arg == "--test");
        let own = stacks::own();
        let mut both = [Walker::Framehop, Walker::Auto].map(|walker| State::new(walker, &own));
        let mut all =
            [Walker::Framehop, Walker::Auto, Walker::FramePointer].map(|walker| State::new(walker, &own));
        let composed = own.composed_sets(&mut |stack, keeps_records| {
            if keeps_records { alike(&mut all, stack) } else { alike(&mut both, stack) }
        });
        if let Some(at) = args.iter().position(|arg| arg == instructions::ONE) {
            return instructions::one(&own, &composed, &args[at + 1..]);
        }
        for set in &composed {
            let mut walkers = State::of(set, &own);
            for stack in &set.stacks {
                let alike = alike(&mut walkers, stack);
                let found = walkers.iter().map(|walker| (walker.walker, walker.ended, walker.addresses()));
                assert!(alike, "{}: {:x?}", set.name, found.collect::<Vec<_>>());
            }
        }
        if args.iter().any(|arg| arg == "--instructions") {
            return instructions::table(&own, &composed);
        }
        let recorded = stacks::recorded();
        let mut sets: Vec<(&Program, Set)> = composed.into_iter().map(|set| (&own, set)).collect();
        for program in &recorded {
            let mut walkers = [Walker::Framehop, Walker::Auto].map(|walker| State::new(walker, program));
            sets.push((program, program.recorded_set(|stack| alike(&mut walkers, stack))));
        }
        let rounds = if quick { 3 } else { ROUNDS };
        println!("ns per frame: least of {rounds} alternating rounds (median)");
        let mut slow = Vec::new();
        for (program, set) in &sets {
            let times = times(program, set, rounds);
            let mut line = format!("{:<64}", describe(program, set).0);
            for (walker, times) in &times {
                line += &format!("  {} {:.1} ({:.1})", walker.name(), times[0], times[times.len() / 2]);
            }
            let framehops = times[0].1[0];
            for (walker, times) in &times[1..] {
                let ratio = times[0] / framehops;
                line += &format!("  {}/framehop {ratio:.2}", walker.name());
                if ratio > ALLOWED && !set.cold {
                    slow.push(format!("{} of {}: {ratio:.2} times framehop's time", walker.name(), set.name));
                }
            }
            println!("{line}");
        }
        assert!(quick || slow.is_empty(), "more than {ALLOWED}: {slow:#?}");
    }

    /// A set in words, and how many frames it has.
    pub(super) fn describe(program: &Program, set: &Set) -> (String, usize) {
        let mut state = State::new(Walker::Auto, program);
        let mut addresses = BTreeSet::<LookupAvma>::new();
        let mut frames = 0;
        for stack in &set.stacks {
            frames += state.walk(stack);
            addresses.extend(state.addresses());
        }
        let (stacks, distinct) = (set.stacks.len(), addresses.len());
        let depth = frames as f64 / stacks as f64;
        (format!("{}: {stacks} stacks of {depth:.1} frames, {distinct} addresses", set.name), frames)
    }

    /// Whether all walkers walk a stack to its root and find the same.
    fn alike(walkers: &mut [State<'_>], stack: &Stack) -> bool {
        let whole = walkers.iter_mut().all(|walker| walker.walk(stack) > 0);
        whole && walkers.windows(2).all(|pair| pair[0].addresses() == pair[1].addresses())
    }

    /// Nanoseconds per frame of each walker, sorted.
    fn times(program: &Program, set: &Set, rounds: usize) -> Vec<(Walker, Vec<f64>)> {
        let mut states = State::of(set, program);
        let mut times: Vec<(Walker, Vec<f64>)> =
            set.walkers().iter().map(|walker| (*walker, Vec::new())).collect();
        for round in 0..=rounds {
            for (state, (_, times)) in states.iter_mut().zip(&mut times) {
                let mut frames = 0;
                if set.cold {
                    state.forget();
                }
                let begun = Instant::now();
                loop {
                    frames += set.stacks.iter().map(|stack| state.walk(stack)).sum::<usize>();
                    if set.cold || begun.elapsed().as_nanos() as u64 >= ROUND_NS {
                        break;
                    }
                }
                let spent_ns = begun.elapsed().as_nanos() as u64;
                // The first round warms the caches.
                if round > 0 {
                    times.push(spent_ns as f64 / frames as f64);
                }
            }
        }
        times.iter_mut().for_each(|(_, times)| times.sort_by(f64::total_cmp));
        times
    }
}
