//! Damaged unwind information of Mach-O images: no panic, no hang, no memory out of proportion.
//!
//! Real programs (tests/fixtures/unwind_info) are mutated from seeds (`support/seeds.rs`): load commands,
//! `__unwind_info`, `__eh_frame`, code. Rows are read at random addresses, and stacks walked
//! from random registers.

use std::ops::Range;

use stackprof::addr::{Avma, Svma};
use stackprof::arch::{Aarch64, Registers, X86_64};
use stackprof::binary::macho::MachO;
use stackprof::binary::{ImageBytes, Mapping};
use stackprof::images::Images;
use stackprof::walk::{self, Code, Frames, Input, StackBytes, UnwindMethod, Unwinder};

use crate::memory;
use crate::seeds;
use stackprof::rng::Rng;

/// Memory for each byte of a file, and for any file: rules of the addresses that were met.
const MEMORY_FACTOR: usize = 8;
const MEMORY_LEAST: usize = 4 << 20;
const ROUNDS: u64 = 60;
const DEPTH_MAX: usize = 64;
const LOADED: u64 = 0x1_0000_0000;
const STACK: u64 = 0x1_6fdf_0000;

const PROGRAMS: [&[u8]; 2] = [
    include_bytes!("../fixtures/unwind_info/arm64.macho"),
    include_bytes!("../fixtures/unwind_info/x86_64.macho"),
];

/// What of a file steers unwinding, as ranges of its bytes.
fn steering(bytes: &[u8]) -> Vec<Range<usize>> {
    let macho = MachO::parse(bytes).unwrap();
    let at = |range: &Range<Svma>| {
        let start = macho.file_offset_of(range.start).unwrap() as usize;
        start..start + (range.end - range.start) as usize
    };
    let commands = 32..32 + u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize;
    let unwind_info = at(macho.unwind_info.as_ref().unwrap());
    // Its tables; the rest of the page is empty.
    let tables = unwind_info.start..unwind_info.start + 200;
    let eh_frame = at(macho.eh_frame.as_ref().unwrap());
    let code = macho.code.iter().flatten().map(at);
    [commands, tables.clone(), tables, unwind_info, eh_frame].into_iter().chain(code).collect()
}

fn mutate(bytes: &mut [u8], parts: &[Range<usize>], random: &mut Rng) {
    for _ in 0..1 + random.below(40) {
        let part = &parts[random.below(parts.len())];
        let at = part.start + random.below(part.len());
        let byte = random.next() as u8;
        bytes[at] = [0, 0xff, 0x7f, 0x80, byte, bytes[at] ^ 1 << (byte & 7)][random.below(6)];
    }
}

fn registers(is_arm64: bool, pc: u64, random: &mut Rng) -> Registers {
    let mut word = || match random.below(3) {
        0 => LOADED + random.below(0x4000) as u64,
        1 => STACK + random.below(0x200) as u64 * 8,
        _ => random.next() >> random.below(64),
    };
    if is_arm64 {
        Registers::Aarch64(Aarch64 { x: std::array::from_fn(|_| word()), sp: STACK, pc })
    } else {
        let mut gpr = std::array::from_fn(|_| word());
        gpr[X86_64::RSP] = STACK;
        Registers::X86_64(X86_64 { gpr, rip: pc, fs_base: 0 })
    }
}

fn walk_everywhere(bytes: &[u8], is_arm64: bool, random: &mut Rng) {
    let mapping = Mapping::of_file(
        Avma(LOADED)..Avma(LOADED + 0x4000),
        0,
        "/usr/lib/system/libsystem_pthread.dylib",
        (1, 1),
    );
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(ImageBytes::new(bytes.to_vec())));
    let code = images.of(0);
    let mut unwinder = Unwinder::default();
    let mut frames = Frames::default();
    for _ in 0..150 {
        let pc = LOADED + random.below(0x800) as u64 * 4;
        let _ = (images.of(0).body(Avma(pc)), images.of(0).function(Avma(pc)));
        let registers = registers(is_arm64, pc, random);
        let stack: Vec<u8> = (0..256)
            .flat_map(|_| {
                match random.below(3) {
                    0 => LOADED + random.below(0x2000) as u64,
                    1 => STACK + random.below(0x200) as u64 * 8,
                    _ => random.next() >> random.below(64),
                }
                .to_le_bytes()
            })
            .collect();
        let input = Input {
            stack_limit: Some(Avma(STACK + 0x800)),
            fp_always: is_arm64,
            max_depth: DEPTH_MAX,
            address_mask: (1 << 47) - 1,
            ..Input::new(StackBytes { base: Avma(STACK), bytes: &stack }, &code)
        };
        for how in [UnwindMethod::Auto, UnwindMethod::Cfi, UnwindMethod::FramePointer] {
            walk::unwind(how, &registers, &input, &mut unwinder, &mut frames).expect("all code is in images");
            assert!(frames.addresses.len() <= DEPTH_MAX && frames.methods.len() == frames.addresses.len());
        }
    }
}

#[test]
fn damaged_unwind_information_ends_walks_and_takes_little_memory() {
    let _alone = memory::alone();
    let parts = PROGRAMS.map(steering);
    seeds::for_each_seed("damaged_unwind_information_ends_walks_and_takes_little_memory", ROUNDS, |random| {
        let number = random.below(2);
        let mut bytes = PROGRAMS[number].to_vec();
        mutate(&mut bytes, &parts[number], random);
        let used = memory::peak_of(|| walk_everywhere(&bytes, number == 0, random));
        let most = bytes.len() * MEMORY_FACTOR + MEMORY_LEAST;
        assert!(used <= most, "{used} bytes for a file of {}", bytes.len());
    });
}

#[test]
fn whole_programs_have_rows_of_every_kind() {
    let _alone = memory::alone();
    for (bytes, is_arm64) in PROGRAMS.iter().zip([true, false]) {
        let mapping = Mapping::of_file(Avma(LOADED)..Avma(LOADED + 0x4000), 0, "/program", (1, 1));
        let mut images = Images::default();
        images.update(0, &[mapping], &mut |_| Ok(ImageBytes::new(bytes.to_vec())));
        let bodies: Vec<_> = (0..0x2000).filter_map(|at| images.of(0).body(Avma(LOADED + at))).collect();
        let compact = bodies.iter().filter(|body| body.compact).count();
        let dwarf = bodies.len() - compact;
        assert!(compact > 200 && dwarf > 50, "arm64 {is_arm64}: {compact} compact, {dwarf} DWARF");
    }
}
