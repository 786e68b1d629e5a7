//! Tests of the simulated process through the `Target` trait alone: a small sampler and a small frame pointer
//! walk, both deliberately naive.

mod faults;
mod images;
mod schedule;
mod seeds;
mod stacks;

use std::rc::Rc;

use crate::addr::Avma;
use crate::arch::{Aarch64, Arch, RED_ZONE_BYTES, Registers, X86_64};
use crate::clock::{Clock, FakeClock};
use crate::sources::{Activity, Capture, ExitStatus, Fault, StopOutcome, Target, TargetEvent, ThreadId};

use super::*;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const STACK_BYTES: usize = 1 << 20;
pub(super) const LEADER: ThreadId = ThreadId(4242);
pub(super) const SECOND_THREAD: ThreadId = ThreadId(4243);

/// Function `n` of the first image.
pub(super) fn f(function: usize) -> FunctionId {
    FunctionId { image: 0, function }
}

pub(super) fn run(ms: u64, stack: &[usize]) -> SimPhase {
    phase(SimActivity::Run, ms, stack)
}

pub(super) fn wait(ms: u64, stack: &[usize]) -> SimPhase {
    phase(SimActivity::Wait, ms, stack)
}

pub(super) fn phase(activity: SimActivity, ms: u64, stack: &[usize]) -> SimPhase {
    SimPhase::new(activity, ms * MS, &stack.iter().map(|n| f(*n)).collect::<Vec<_>>())
}

/// A process with one image, the functions `f0` to `f5` and these looping scripts.
pub(super) fn process(arch: Arch, cpus: usize, scripts: Vec<Vec<SimPhase>>) -> SimConfig {
    let mut config = SimConfig::new(arch, cpus, 10 * SECOND);
    let names = ["f0", "f1", "f2", "f3", "f4", "f5"];
    config.images.push(SimImage::new("/sim/libalpha.so", Avma(0x5500_0100_0000), &names));
    for (number, script) in scripts.into_iter().enumerate() {
        config.threads.push(SimThread::looping(&format!("t{number}"), script));
    }
    config
}

pub(super) fn start(config: &SimConfig) -> (SimTarget, FakeClock, Capture) {
    let clock = FakeClock::default();
    (SimTarget::new(config.clone(), clock.clone()), clock, Capture::with_capacity(STACK_BYTES))
}

/// All events up to `until_ns`.
pub(super) fn events(target: &mut SimTarget, until_ns: u64) -> Vec<TargetEvent> {
    let mut capture = Capture::with_capacity(STACK_BYTES);
    let mut events = Vec::new();
    while let Ok(event) = target.next(until_ns, &mut capture) {
        if event == TargetEvent::Timeout {
            break;
        }
        events.push(event);
    }
    events
}

pub(super) fn stopped(thread: ThreadId, outcome: StopOutcome) -> TargetEvent {
    TargetEvent::Stopped { thread, outcome }
}

/// The results of a sampling run, as text for comparison; and some sums.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) trace: Vec<String>,
    pub(super) captures: u64,
    /// Threads and the CPU time reported at their end.
    pub(super) ended: Vec<(ThreadId, u64)>,
    pub(super) exits: u64,
}

/// Samples at `hz` until the end of the process: stops each runnable thread that used CPU since the last tick, and
/// passes each capture to `check`.
pub(super) fn sample(
    target: &mut SimTarget,
    clock: &FakeClock,
    hz: u64,
    mut check: impl FnMut(&mut SimTarget, ThreadId, &Capture),
) -> Seen {
    let mut seen = Seen::default();
    let mut capture = Capture::with_capacity(STACK_BYTES);
    let mut threads = Vec::new();
    let mut last = std::collections::BTreeMap::new();
    let period_ns = SECOND / hz;
    let mut tick_ns = clock.now_ns();
    'ticks: loop {
        tick_ns = (tick_ns + period_ns).max(clock.now_ns());
        target.threads(&mut threads);
        for (thread, _) in &threads {
            let Ok(status) = target.poll(*thread) else { continue };
            seen.trace.push(format!("{} {thread:?} {status:?}", clock.now_ns()));
            let before = last.insert(*thread, status);
            if status.activity == Activity::Runnable && before != Some(status) {
                let asked = target.interrupt(*thread, STACK_BYTES, false);
                seen.trace.push(format!("{} {asked:?}", clock.now_ns()));
            }
        }
        loop {
            match target.next(tick_ns, &mut capture) {
                Ok(TargetEvent::Timeout) => break,
                Ok(event) => {
                    seen.trace.push(format!("{} {event:?}", clock.now_ns()));
                    match event {
                        TargetEvent::Stopped { thread, outcome: StopOutcome::Captured } => {
                            seen.captures += 1;
                            check(target, thread, &capture);
                        }
                        TargetEvent::ThreadExited { thread, cpu_ns: Some(cpu_ns) } => {
                            seen.ended.push((thread, cpu_ns));
                        }
                        TargetEvent::Exited(_) => seen.exits += 1,
                        _ => {}
                    }
                }
                Err(Fault::Gone) => break 'ticks,
                Err(fault) => panic!("{fault}"),
            }
        }
    }
    seen
}

/// Program counter and return addresses, by following the frame records to 0.
pub(super) fn walk(capture: &Capture, address_mask: u64) -> Vec<Avma> {
    let (base, mut fp) = match capture.registers {
        Registers::X86_64(r) => (r.gpr[X86_64::RSP], r.gpr[X86_64::RBP]),
        Registers::Aarch64(r) => (r.sp, r.x[Aarch64::FP]),
        Registers::X86(_) | Registers::Arm(_) => unreachable!("not simulated"),
    };
    let word = |at: u64| word_at(capture, Avma(at));
    let mut addresses = vec![capture.registers.pc()];
    while fp != 0 {
        assert!(fp >= base && fp % 8 == 0, "frame record at {fp:#x} below {base:#x}");
        let (Some(next), Some(address)) = (word(fp), word(fp + 8)) else { break };
        assert!(next == 0 || next > fp, "records go up");
        addresses.push(Avma(address & address_mask));
        fp = next;
    }
    addresses
}

/// The word at an address of the copied stack.
fn word_at(capture: &Capture, at: Avma) -> Option<u64> {
    let offset = usize::try_from(at.0.checked_sub(capture.stack_base.0)?).ok()?;
    capture.stack.get(offset..offset + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// Asserts that the last capture walks to exactly the true stack.
pub(super) fn assert_walks(target: &SimTarget, ledger: &Rc<SimLedger>, thread: ThreadId, capture: &Capture) {
    let truth = ledger.last_capture().expect("a capture");
    let seed = target.config.seed;
    assert_eq!(truth.thread, thread, "seed {seed}");
    assert_eq!(truth.names.len(), truth.addresses.len(), "seed {seed}");
    let mut walked = walk(capture, target.process().address_mask);
    if walked.len() + 1 == truth.addresses.len() {
        // A frameless leaf: its caller is only where the call put it.
        let caller = match capture.registers {
            Registers::X86_64(_) => word_at(capture, capture.registers.sp()).expect("copied"),
            Registers::Aarch64(r) => r.x[Aarch64::LR],
            Registers::X86(_) | Registers::Arm(_) => unreachable!("not simulated"),
        };
        walked.insert(1, Avma(caller));
    }
    assert_eq!(walked, truth.addresses, "seed {seed}");
}
