//! How long a thread stands still per sample, as the thread itself sees it.
//!
//! `cargo bench --bench pause`: a process spins reading the clock and notes each gap; it
//! is sampled 997 times a second in turn by stackprof's sampler and by a bare loop of the
//! same five system calls (PTRACE_INTERRUPT, waitpid, PTRACE_GETREGSET,
//! process_vm_readv, PTRACE_CONT). Asserts that the sampler's median gap is at most 1.5
//! times the bare one. `--quick` runs shorter and asserts nothing.
#![allow(unsafe_code, clippy::print_stdout, clippy::unwrap_used)]

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("SKIP the pause bench measures ptrace, which is Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use stackprof::clock::RealClock;
    use stackprof::live::Live;
    use stackprof::sampler::{self, Options};
    use stackprof::sources::linux;
    use stackprof::walk::UnwindMethod;

    const HZ: u32 = 997;
    /// A gap shorter than this is the loop itself.
    const GAP_NS: u64 = 1_000;
    /// Bytes of stack that both copy: what the sampler settles on for a shallow stack.
    const STACK_BYTES: usize = 8 << 10;
    const ALLOWED: f64 = 1.5;

    pub(super) fn main() {
        let args: Vec<String> = std::env::args().collect();
        if let Some(at) = args.iter().position(|arg| arg == "spin") {
            return spin(Duration::from_millis(args[at + 1].parse().unwrap()));
        }
        let quick = cfg!(debug_assertions) || args.iter().any(|arg| arg == "--quick" || arg == "--test");
        let (rounds, length) = if quick { (1, 500) } else { (7, 2_000) };
        linux::prepare();
        println!("gaps seen by a spinning thread, {rounds} alternating rounds of {length} ms at {HZ} Hz");
        println!("{:<28} {:>8} {:>9} {:>9} {:>9}", "sampled by", "gaps", "p50 ns", "p90 ns", "p99 ns");
        let mut medians: [Vec<u64>; 4] = Default::default();
        for _ in 0..rounds {
            for (which, medians) in medians.iter_mut().enumerate() {
                let mut spinner = Spinner::start(length + 200);
                std::thread::sleep(Duration::from_millis(100));
                let pid = spinner.child.id();
                let name = match which {
                    0 => "nobody",
                    1 => bare(pid, length, true),
                    2 => bare(pid, length, false),
                    _ => sampler(pid, length),
                };
                let gaps = spinner.gaps();
                let at = |share: f64| gaps.get((gaps.len() as f64 * share) as usize).copied().unwrap_or(0);
                println!("{name:<28} {:>8} {:>9} {:>9} {:>9}", gaps.len(), at(0.5), at(0.9), at(0.99));
                medians.push(at(0.5));
            }
        }
        let [_, polling, waiting, sampler] = medians.map(|mut medians| {
            medians.sort_unstable();
            medians[medians.len() / 2]
        });
        let floor = polling.min(waiting);
        let ratio = sampler as f64 / floor as f64;
        println!(
            "median of p50: bare polling {polling} ns, bare waiting {waiting} ns, stackprof {sampler} ns"
        );
        let verdict = if ratio <= ALLOWED { "PASS" } else { "FAIL" };
        println!("{verdict} stackprof / the shorter bare one = {ratio:.2} (at most {ALLOWED})");
        if ratio > ALLOWED && !quick {
            std::process::exit(1);
        }
    }

    /// The sampled process: notes each gap between two readings of the clock.
    fn spin(length: Duration) {
        let start = Instant::now();
        let mut gaps = Vec::with_capacity(1 << 20);
        let mut last = start;
        while last - start < length {
            let now = Instant::now();
            let gap = (now - last).as_nanos() as u64;
            if gap > GAP_NS && gaps.len() < gaps.capacity() {
                gaps.push(gap);
            }
            last = now;
        }
        for gap in gaps {
            println!("{gap}");
        }
    }

    struct Spinner {
        child: Child,
    }

    impl Spinner {
        fn start(length_ms: u64) -> Spinner {
            let program = std::env::current_exe().unwrap();
            let arguments = ["spin".to_owned(), length_ms.to_string()];
            let child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
            Spinner { child }
        }

        fn gaps(&mut self) -> Vec<u64> {
            let lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
            let mut gaps: Vec<u64> = lines.map_while(|line| line.ok()?.parse().ok()).collect();
            let _ = self.child.wait();
            gaps.sort_unstable();
            gaps
        }
    }

    fn sampler(pid: u32, length_ms: u64) -> &'static str {
        let options = Options {
            timeline_bytes: 0,
            linger_ns: 0,
            block_age_min_ns: 0,
            max_stop: 1.0,
            hz: HZ,
            duration_ns: Some(length_ms * 1_000_000),
            idle: false,
            off_cpu: false,
            threads: false,
            max_depth: 1024,
            unwind: UnwindMethod::Auto,
            seed: 1,
        };
        let clock = RealClock::new();
        let profile = linux::with_target(&linux::Source::Attach(pid), clock.clone(), |target| {
            sampler::record(target, &clock, &options, &Live::default()).unwrap()
        });
        assert!(profile.unwrap().stats.stops > 0, "the sampler sampled nothing");
        "stackprof"
    }

    /// The five system calls and nothing else; in a thread of its own, whose end releases
    /// the process.
    fn bare(pid: u32, length_ms: u64, poll: bool) -> &'static str {
        let sample = move || {
            let tid = pid as libc::pid_t;
            let mut stack = vec![0u8; STACK_BYTES];
            let flags = libc::__WALL | if poll { libc::WNOHANG } else { 0 };
            // SAFETY: numbers and addresses of live local objects of the sizes given.
            unsafe {
                libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong);
                libc::setpriority(libc::PRIO_PROCESS, 0, -20);
                assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, tid, 0usize, 0usize), 0);
            }
            let start = Instant::now();
            for tick in 1..u64::from(HZ) * length_ms / 1000 {
                let due = Duration::from_nanos(tick * 1_000_000_000 / u64::from(HZ));
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                // SAFETY: as above; `registers` and `stack` outlive the calls that fill them.
                unsafe {
                    let mut registers: libc::user_regs_struct = std::mem::zeroed();
                    let mut iov = libc::iovec {
                        iov_base: (&raw mut registers).cast(),
                        iov_len: size_of::<libc::user_regs_struct>(),
                    };
                    if libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0usize, 0usize) != 0 {
                        return;
                    }
                    let mut status = 0;
                    while libc::waitpid(tid, &raw mut status, flags) == 0 {}
                    libc::ptrace(libc::PTRACE_GETREGSET, tid, libc::NT_PRSTATUS, &raw mut iov);
                    #[cfg(target_arch = "x86_64")]
                    let sp = registers.rsp;
                    #[cfg(target_arch = "aarch64")]
                    let sp = registers.sp;
                    let local = libc::iovec { iov_base: stack.as_mut_ptr().cast(), iov_len: STACK_BYTES };
                    let remote = libc::iovec { iov_base: sp as *mut libc::c_void, iov_len: STACK_BYTES };
                    libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0);
                    libc::ptrace(libc::PTRACE_CONT, tid, 0usize, 0usize);
                }
            }
        };
        let _ = std::thread::spawn(sample).join();
        if poll { "five calls, polling waitpid" } else { "five calls, sleeping waitpid" }
    }
}
