//! Processes of a recorder share facts that walks learn about files.

use super::super::recorder::unknown_status;
use super::{FIRST, *};
use crate::addr::Avma;
use crate::arch::{Arch, Registers, X86_64};
use crate::binary::elf::build;
use crate::binary::{ImageBytes, Mapping, OpenError};
use crate::clock::FakeClock;
use crate::sampler::recorder::UNKNOWN_THREAD;
use crate::sampler::{Options, Recorder, Sample};
use crate::sources::{Capture, Fault, Process};
use crate::walk::{Frames, UnwindMethod};

const STACK: u64 = 0x7fff_0000;
/// Offset of a return in the code of the library.
const RETURN: u64 = 0x804;

/// A process with only the code of a library, mapped at this address.
struct Mapped {
    process: Process,
    start: u64,
}

impl Observed for Mapped {
    fn process(&self) -> &Process {
        &self.process
    }
    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        out.clear();
        out.push(Mapping::of_file(
            Avma(self.start)..Avma(self.start + 0x1000),
            build::TEXT,
            "/lib/libwork.so",
            (8, 1),
        ));
        Ok(())
    }
    fn image_bytes(&mut self, _: &Mapping) -> Result<ImageBytes, OpenError> {
        // Only `nop`, and one `ret`.
        let mut bytes = build::file(build::X86_64, &[]);
        bytes[(build::TEXT + RETURN) as usize] = 0xc3;
        Ok(ImageBytes::new(bytes))
    }
}

fn process(pid: u32, start: u64) -> Mapped {
    let process = Process {
        pid,
        name: "work".to_owned(),
        command: String::new(),
        arch: Arch::X86_64,
        backend: "sim",
        backend_why: String::new(),
        cpus: 1,
        address_mask: u64::MAX,
        fp_always: false,
        cfi: true,
        stops_interrupt_syscalls: false,
        stops_hold_all: false,
    };
    Mapped { process, start }
}

/// The thread of a process, and a capture of it just before the return.
fn capture(mapped: &Mapped) -> (ThreadId, Capture) {
    let mut capture = Capture::with_capacity(64);
    let mut gpr = [0; 16];
    gpr[X86_64::RSP] = STACK;
    capture.registers = Registers::X86_64(X86_64 { gpr, rip: mapped.start + RETURN - 4, fs_base: 0 });
    capture.stack_base = Avma(STACK);
    capture.stack.resize(64, 0);
    (ThreadId(mapped.process.pid.into()), capture)
}

fn options() -> Options {
    Options {
        timeline_bytes: 0,
        block_age_min_ns: 0,
        hz: 997,
        duration_ns: None,
        idle: false,
        off_cpu: false,
        linger_ns: 0,
        threads: true,
        max_depth: 64,
        unwind: UnwindMethod::Auto,
        seed: 1,
        max_stop: 1.0,
    }
}

/// Adds the thread of a process and walks its stack.
fn walk(recorder: &mut Recorder<'_>, of: ProcessIndex, mapped: &mut Mapped) {
    let (thread, capture) = capture(mapped);
    recorder.add_thread(of, mapped, thread, None, unknown_status(), true);
    recorder.read_images(of, mapped);
    recorder.walk(mapped, thread, &capture, 1 << 16, &mut Frames::default()).expect("known");
}

#[test]
fn facts_about_a_file_are_shared_by_all_processes() {
    let clock = FakeClock::default();
    let options = options();
    let (mut first, mut second) = (process(7, 0x5555_0000_0000), process(8, 0x7f00_0000_0000));
    let recorder = || Recorder::new(&clock, &options, &process(7, 0).process);
    let facts_after = |recorder: &Recorder<'_>| recorder.processes().facts_learned();
    let mut alone = recorder();
    walk(&mut alone, FIRST, &mut first);
    let learned = facts_after(&alone);
    assert!(learned > 0);
    // The second process alone teaches the recorder the same facts.
    let mut other = recorder();
    let of = other.add_process(8, "work").expect("room");
    walk(&mut other, of, &mut second);
    assert_eq!(facts_after(&other), learned);
    // The first one adds no others.
    walk(&mut other, FIRST, &mut first);
    assert_eq!(facts_after(&other), learned);
    // Facts survive the end of their process.
    other.end_process(of);
    assert_eq!(facts_after(&other), learned);
}

#[test]
fn a_sample_of_an_unknown_thread_has_its_own_loss_reason() {
    let (clock, options) = (FakeClock::default(), options());
    let mut mapped = process(7, 0x5555_0000_0000);
    let mut recorder = Recorder::new(&clock, &options, &mapped.process);
    walk(&mut recorder, FIRST, &mut mapped);
    let (thread, capture) = capture(&mapped);
    recorder.remove_thread(thread, None, "ended");
    let sample = Sample {
        thread,
        capture: Box::new(capture),
        libraries: None,
        at_ns: 0,
        waiting: false,
        off_cpu_ns: 0,
    };
    let mut frames = Frames::default();
    let outcome = recorder.add_sample(&mut mapped, sample, 5_000_000, 1 << 16, &mut frames);
    assert!(outcome.stack.is_none() && frames.addresses.is_empty());
    let stats = recorder.finish(&mapped).stats;
    assert_eq!(Vec::from_iter(stats.samples_lost), [(UNKNOWN_THREAD, 5)]);
    assert!(stats.samples == 0 && stats.stacks_incomplete.is_empty());
}
