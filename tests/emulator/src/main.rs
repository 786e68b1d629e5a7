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

use stackprof::sampler::ImageCode;
use stackprof::walk::{self, Ended};

use fixtures::{Arch, Frames, PROGRAMS, Variant};
use load::Image;
use machine::{ADDRESS_MASK, Boundary, Method};

/// Ways to unwind that are measured, by name.
const METHODS: [(&str, Method); 1] = [("fp", by_frame_pointers)];

/// Where the images are loaded: neither at the addresses they are linked at, nor equally far off.
const PROGRAM_SLIDE: u64 = 0x04a1_0000;
const LIBRARY_SLIDE: u64 = 0x1_8abc_0000;

fn by_frame_pointers(boundary: &Boundary<'_>, found: &mut Vec<u64>) -> Ended {
    let input = walk::Input {
        stack: boundary.stack,
        stack_top: None,
        stack_limit: Some(boundary.stack_limit),
        fp_always: boundary.arch == Arch::Arm64,
        max_depth: 512,
        code_mask: ADDRESS_MASK,
        code: &ImageCode(boundary.images),
    };
    walk::walk(&boundary.registers, &input, found).ended
}

fn main() -> ExitCode {
    let directory =
        std::env::args_os().nth(1).map_or_else(|| PathBuf::from("target/exactness"), PathBuf::from);
    let mut report = report::Report::default();
    for arch in [Arch::Arm64, Arch::X86_64] {
        for frames in Frames::all(arch) {
            for optimisation in ["O0", "O2", "Oz"] {
                let variant = Variant { arch, optimisation, frames };
                let name = format!("{}-{optimisation}-{}", arch.name(), frames.name());
                let built = fixtures::build(variant, &directory.join(name));
                let library = Image::load(&built.library, LIBRARY_SLIDE, arch, &[]);
                for (program, path) in PROGRAMS.iter().zip(&built.programs) {
                    let image = Image::load(path, PROGRAM_SLIDE, arch, &[&library]);
                    for (method, walk) in METHODS {
                        let outcome = machine::execute(arch, &[&image, &library], walk);
                        report.add(program, variant, method, &outcome, &[&image, &library]);
                    }
                }
            }
        }
    }
    let text = report.details();
    let path = directory.join("report.txt");
    std::fs::write(&path, text).unwrap();
    print!("{}", report.table());
    println!("each wrong address: {}", path.display());
    let failures = report.failures();
    for failure in &failures {
        println!("BELOW THE BAR: {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
