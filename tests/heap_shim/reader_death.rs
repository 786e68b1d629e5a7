//! The reader dies (`kill -9` of stackprof) at each moment of a program that advances step by step: the program
//! continues undisturbed, and all its allocations are recorded or counted as lost.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

use stackprof::sources::heap::ring as reader;

use crate::program::{Directory, Settings, fixtures, log_of, said};
use crate::ring::{Record, Ring};

/// A program in the mode `steps`, which takes a step on request.
struct Stepper {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    said: Vec<u8>,
}

impl Stepper {
    fn start(directory: &Directory) -> Stepper {
        Stepper::of(directory.start_with(&fixtures().calls, &["steps"], Stdio::piped()))
    }

    fn of(mut child: Child) -> Stepper {
        let output = BufReader::new(child.stdout.take().unwrap());
        Stepper { child, output, said: Vec::new() }
    }

    /// Triggers a step, and waits for its end.
    fn step(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b".").unwrap();
        self.output.read_until(b'\n', &mut self.said).unwrap();
    }

    /// Runs it to its end.
    fn finish(mut self) -> Output {
        drop(self.child.stdin.take());
        self.output.read_to_end(&mut self.said).unwrap();
        let mut output = self.child.wait_with_output().unwrap();
        output.stdout = self.said;
        output
    }
}

/// Output of the program without the shim.
fn without(steps: usize) -> (Option<i32>, String, String) {
    let mut command = Command::new(&fixtures().calls);
    command.arg("steps").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut stepper = Stepper::of(command.spawn().unwrap());
    (0..steps).for_each(|_| stepper.step());
    said(&stepper.finish())
}

/// Sampled allocations left in the ring, and lost ones.
fn rest(ring: &Ring) -> usize {
    let left = ring.take_all();
    let allocations = left.iter().filter(|record| matches!(record, Record::Allocation(_)));
    allocations.count() + ring.lost_allocations().0 as usize
}

/// Records are taken one by one; the reader dies after this many, before or after it has released the
/// space.
#[test]
fn reader_dies_at_any_record_of_a_ring_that_fills_and_wraps() {
    const STEPS: usize = 48;
    let settings = Settings { data_size: 8192, stack_size: 256, set_slots: 1 << 12, ..Settings::all() };
    let expected = without(STEPS);
    let mut totals = Vec::new();
    let (mut index, mut is_past_the_end) = (0, false);
    while !is_past_the_end {
        for is_given_back in [true, false] {
            let directory = Directory::new(settings);
            let mut program = Stepper::start(&directory);
            let (mut taken, mut allocations) = (0, 0);
            for _ in 0..STEPS {
                program.step();
                let ring = directory.ring().unwrap();
                while taken < index
                    && let Some(record) = ring.take_unless(taken + 1 == index && !is_given_back)
                {
                    taken += 1;
                    allocations += usize::from(matches!(record, Record::Allocation(_)));
                }
            }
            let output = program.finish();
            assert_eq!(said(&output), expected, "the reader died at record {index}");
            let ring = directory.ring().unwrap();
            assert!(taken < index || ring.lost_allocations().0 > 0 || index + 40 > 2 * STEPS, "{index}");
            // A record that was not released has been zeroed, and stops the reader.
            if is_given_back {
                totals.push(allocations + rest(&ring));
                assert!(
                    *totals.last().unwrap() >= log_of(&output).iter().filter(|call| call.what == '+').count()
                );
            }
            is_past_the_end |= taken < index;
        }
        index += 1;
    }
    assert!(index > STEPS, "{index}");
    assert!(totals.iter().all(|total| *total == totals[0]), "{totals:?}");
}

/// The reader of stackprof, which takes the available records after each step and dies after one, with a ring that is
/// populated at once and one that is populated and released in pieces.
#[test]
fn reader_dies_after_any_step() {
    for (data_size, steps, stride) in [(8192, 48, 1), (1 << 19, 1600, 100)] {
        let settings = Settings { data_size, stack_size: 1 << 16, set_slots: 1 << 12, ..Settings::all() };
        let expected = without(steps);
        let mut totals = Vec::new();
        for last in (0..=steps).step_by(stride) {
            let directory = Directory::new(settings);
            let mut program = Stepper::start(&directory);
            let mut ring = None;
            let mut records = Vec::new();
            for step in 0..steps {
                program.step();
                if step < last {
                    let path = directory.path().join(&directory.ring().unwrap().name);
                    let ring = ring.get_or_insert_with(|| reader::Ring::open(&path).unwrap().unwrap());
                    ring.take(false, u64::MAX, &mut records).unwrap();
                }
            }
            assert_eq!(said(&program.finish()), expected, "the reader died after step {last}");
            // What it had not released is available again.
            let path = directory.path().join(&directory.ring().unwrap().name);
            let mut ring = ring.unwrap_or_else(|| reader::Ring::open(&path).unwrap().unwrap());
            while ring.take(true, u64::MAX, &mut records).unwrap().bytes > 0 {}
            let is_allocation = |record: &&reader::Record| matches!(record, reader::Record::Allocation(_));
            let lost: u64 = ring.lost_allocations().iter().map(|(count, _)| count).sum();
            assert!(lost > 0 || last > steps / 10, "{last}");
            assert_eq!(ring.no_space(), 0);
            totals.push(records.iter().filter(is_allocation).count() as u64 + lost);
        }
        assert!(totals.iter().all(|total| *total == totals[0]), "{totals:?}");
    }
}

/// `stackprof heap` itself, killed after each step of a program that a shell starts: the program's output and exit code
/// are the same, and the next recording removes what the killed one left.
#[test]
fn stackprof_is_killed_after_any_step() {
    const STEPS: usize = 60;
    let expected = lines_of(&without(STEPS).1) + "exit 0\n";
    let (runtime, out) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
    let left = || fs::read_dir(runtime.path()).unwrap().count();
    for last in 1..=STEPS + 1 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stackprof"));
        command.args(["heap", "-q", "--every", "1", "-o"]).arg(out.path().join("out.folded"));
        command.args(["--", "/bin/sh", "-c", "\"$0\" steps; echo exit $?"]).arg(&fixtures().calls);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut program = Stepper::of(command.spawn().unwrap());
        for step in 1..=STEPS {
            program.step();
            assert_eq!(left(), 1, "one directory while a recording runs");
            if step == last {
                program.child.kill().unwrap();
            }
        }
        let output = program.finish();
        assert_eq!(output.status.success(), last > STEPS, "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(lines_of(&text), expected, "stackprof was killed after step {last}");
    }
    assert!(out.path().join("out.folded").exists());
    assert_eq!(left(), 0, "the last recording was not killed");
}

/// The lines without addresses.
fn lines_of(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("log "));
    lines.map(|line| format!("{line}\n")).collect()
}
