//! How exact stack walks are: real Mach-O code executed instruction by instruction.
//!
//! Compiles the programs of tests/fixtures/macho in several ways, runs each in an emulator,
//! walks the stack at every instruction boundary as the profiler does, and compares all
//! addresses with the calls that were really made. Prints a table, writes every wrong
//! address to a report, and fails below the bar of [`machine::must_be_exact`].
//! scripts/exactness-macho.sh runs it.

mod fixtures;
mod load;
mod machine;
mod report;
mod shadow;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use stackprof::addr::Avma;
use stackprof::arch::{Aarch64, Registers, X86_64};
use stackprof::images::ImageView;
use stackprof::walk::{self, StackEnd, Frames, UnwindMethod, Unwinder};

use fixtures::{Arch, FramePointers, PROGRAMS, Variant};
use load::Image;
use machine::{ADDRESS_MASK, Boundary, Method};
use report::Report;
use shadow::Class;

/// Ways to unwind that are measured, by name.
const METHODS: [(&str, Method); 3] = [("fp", by_frame_pointers), ("cfi", by_cfi), ("auto", by_auto)];

/// Where the images are loaded: neither at the addresses they are linked at, nor equally far off.
const PROGRAM_SLIDE: u64 = 0x04a1_0000;
const LIBRARY_SLIDE: u64 = 0x1_8abc_0000;
const PTHREAD_SLIDE: u64 = 0x1_9def_0000;

fn by_frame_pointers(boundary: &Boundary<'_>, unwinder: &mut Unwinder, found: &mut Vec<u64>) -> StackEnd {
    unwind(UnwindMethod::FramePointer, boundary, unwinder, found)
}

fn by_cfi(boundary: &Boundary<'_>, unwinder: &mut Unwinder, found: &mut Vec<u64>) -> StackEnd {
    unwind(UnwindMethod::Cfi, boundary, unwinder, found)
}

fn by_auto(boundary: &Boundary<'_>, unwinder: &mut Unwinder, found: &mut Vec<u64>) -> StackEnd {
    unwind(UnwindMethod::Auto, boundary, unwinder, found)
}

fn unwind(how: UnwindMethod, boundary: &Boundary<'_>, unwinder: &mut Unwinder, found: &mut Vec<u64>) -> StackEnd {
    let code = boundary.images.of(0);
    let mut frames = Frames::default();
    let walked = walk::unwind(how, &boundary.registers, &input(boundary, &code), unwinder, &mut frames).expect("all code is in images");
    found.clear();
    found.extend(frames.addresses.iter().map(|address| address.0));
    walked.ended
}

/// What the macOS backend is to say of a thread.
fn input<'a>(boundary: &Boundary<'a>, code: &'a ImageView<'a>) -> walk::Input<'a> {
    walk::Input {
        stack_limit: Some(boundary.stack_limit),
        fp_always: boundary.arch == Arch::Arm64,
        max_depth: 512,
        address_mask: ADDRESS_MASK,
        ..walk::Input::new(boundary.stack, code)
    }
}

/// A method that is wrong on purpose: it never looks at the link register or at rsp.
fn by_records_alone(boundary: &Boundary<'_>, _: &mut Unwinder, found: &mut Vec<u64>) -> StackEnd {
    found.clear();
    found.push(boundary.registers.pc().0);
    let fp = match &boundary.registers {
        Registers::Aarch64(registers) => registers.x[Aarch64::FP],
        Registers::X86_64(registers) => registers.gpr[X86_64::RBP],
        Registers::X86(_) | Registers::Arm(_) => unreachable!("not emulated"),
    };
    let mut record = Avma(fp & ADDRESS_MASK);
    while let (Some(saved), Some(word)) = (boundary.stack.word(record), boundary.stack.word(record + 8)) {
        if word & ADDRESS_MASK == 0 {
            break;
        }
        found.push((word & ADDRESS_MASK) - 1);
        if saved & ADDRESS_MASK <= record.0 {
            break;
        }
        record = Avma(saved & ADDRESS_MASK);
    }
    StackEnd::Root
}

fn main() -> ExitCode {
    let directory = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("exactness"), PathBuf::from);
    let started = Instant::now();
    let mut report = Report::default();
    let mut proof = Report::default();
    for arch in [Arch::Arm64, Arch::X86_64] {
        for frames in FramePointers::all(arch) {
            for optimisation in ["O0", "O2", "Oz"] {
                let variant = Variant { arch, optimisation, frames };
                let name = format!("{}-{optimisation}-{}", arch.name(), frames.name());
                let built = fixtures::build(variant, &directory.join(name));
                let library = Image::load(&built.dylib, LIBRARY_SLIDE, arch, &[]);
                let pthread = Image::load(&built.pthread, PTHREAD_SLIDE, arch, &[]);
                for (program, path) in PROGRAMS.iter().zip(&built.programs) {
                    let image = Image::load(path, PROGRAM_SLIDE, arch, &[&library]);
                    let images = [&image, &library, &pthread];
                    for (method, walk) in METHODS {
                        report.add(program, variant, method, &machine::execute(arch, &images, walk), &images);
                    }
                    if frames == FramePointers::KeptButInLeaves && *program == "calls.c" {
                        let outcome = machine::execute(arch, &images, by_records_alone);
                        proof.add(program, variant, "records", &outcome, &images);
                    }
                }
            }
        }
    }
    let path = directory.join("report.txt");
    std::fs::write(&path, report.details()).unwrap();
    print!("{}", report.table());
    println!("\nthe worst of each program: {}", path.display());
    println!("{} ns per walk, {:.1} s in all", report.walk_ns(), started.elapsed().as_secs_f64());
    let mut failures = report.failures();
    // What cannot fail proves nothing: walks that lose the caller of each leaf must be seen as wrong.
    let [leaf, framed] = [Class::Leaf, Class::Framed].map(|class| proof.exact_share(class));
    println!("a method without link register: {framed:.2} % exact in framed code, {leaf:.2} % in leaves");
    if leaf > 0.0 || framed < 100.0 {
        failures.push(
            "the harness takes walks without the caller of a leaf for exact, or others for wrong".into(),
        );
    }
    for failure in &failures {
        println!("BELOW THE BAR: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
