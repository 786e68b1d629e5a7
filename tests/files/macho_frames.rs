//! Whether the link register has the caller in real macOS programs, compared with their compact unwind
//! information.
//!
//! `scripts/check-macho-symbols.sh` downloads the programs and runs this with `STACKPROF_MACHO_DIR`; without
//! that it prints SKIP. Each arm64 image below the directory is walked at every instruction of two kinds with
//! an independently known result: in functions that are frameless in `__unwind_info` the caller is in lr;
//! after an instruction that addresses memory below fp, in a function with a frame, the frame record exists.
//!
//! Format: LLVM libunwind, include/mach-o/compact_unwind_encoding.h.

use stackprof::addr::Avma;
use stackprof::arch::{Aarch64, Registers};
use stackprof::binary::macho::{self, CPU_ARM64, MachO};
use stackprof::binary::{ImageBytes, Mapping};
use stackprof::images::Images;
use stackprof::walk::{self, Frames, StackBytes, UnwindMethod, Unwinder};

const LOADED: u64 = 0x1_4000_0000;
const STACK: u64 = 0x1_6fdf_0000;

/// `UNWIND_ARM64_MODE_FRAMELESS`, `UNWIND_ARM64_MODE_FRAME`, shifted right by 24.
const FRAMELESS: u32 = 2;
const FRAME: u32 = 4;

/// Least number of instructions of each kind in the script's packages.
const INSTRUCTIONS_MIN: u64 = 50_000;

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    frameless: u64,
    framed: u64,
    wrong: u64,
}

#[test]
fn the_link_register_is_used_according_to_unwind_information() {
    let Some((dir, files)) = crate::real_macho::files() else { return };
    let mut total = Tally::default();
    eprintln!("{:>9} {:>9} {:>6}  file", "frameless", "framed", "wrong");
    for path in files {
        let data = std::fs::read(&path).unwrap();
        for slice in macho::slices(&data).unwrap_or_default() {
            let range = slice.range.start as usize..slice.range.end as usize;
            let Some(bytes) = data.get(range).filter(|_| slice.cpu_type == CPU_ARM64) else { continue };
            let tally = compare(bytes);
            let shown = path.strip_prefix(&dir).unwrap().display();
            eprintln!("{:>9} {:>9} {:>6}  {shown}", tally.frameless, tally.framed, tally.wrong);
            total.frameless += tally.frameless;
            total.framed += tally.framed;
            total.wrong += tally.wrong;
        }
    }
    eprintln!("{total:?}");
    assert!(total.frameless >= INSTRUCTIONS_MIN && total.framed >= INSTRUCTIONS_MIN, "too little code");
    assert_eq!(total.wrong, 0);
}

fn compare(bytes: &[u8]) -> Tally {
    let mut tally = Tally::default();
    let macho = MachO::parse(bytes).unwrap();
    let entries = unwind_info(bytes).map(entries).unwrap_or_default();
    let mapping = Mapping::of_file(
        Avma(LOADED)..Avma(LOADED + (macho.text.end - macho.text.start)),
        0,
        "/image",
        (1, 1),
    );
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(ImageBytes::new(bytes.to_vec())));
    for pair in entries.windows(2) {
        let ((start, encoding), (end, _)) = (pair[0], pair[1]);
        let mode = encoding >> 24 & 0xf;
        for pc in (start..end.min(bytes.len() as u32)).step_by(4) {
            let (before, word) = (u32_at(bytes, pc as usize - 4), u32_at(bytes, pc as usize));
            let uses_link = match mode {
                // `udf` and `nop` between functions belong to none.
                FRAMELESS if word >> 16 != 0 && word != 0xd503_201f => {
                    tally.frameless += 1;
                    true
                }
                // Directly after: the walker itself interprets the instruction.
                FRAME if pc > start && addresses_frame(before) && !addresses_frame(word) => {
                    tally.framed += 1;
                    false
                }
                _ => continue,
            };
            if shows_link_register(&images, u64::from(pc), u64::from(entries[0].0)) != uses_link {
                tally.wrong += 1;
                if tally.wrong <= 5 {
                    eprintln!("  {word:#010x} at {pc:#x}, in {start:#x}..{end:#x} of mode {mode}");
                }
            }
        }
    }
    tally
}

/// ldur, stur and related instructions with [x29, #-N].
fn addresses_frame(word: u32) -> bool {
    word & 0x3b30_0fe0 == 0x3810_03a0
}

/// Whether the walk uses the link register as the caller; it points elsewhere than the record.
fn shows_link_register(images: &Images, pc: u64, code: u64) -> bool {
    let record: Vec<u8> =
        [0, LOADED + code + 0x100].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    let mut registers = Aarch64 { pc: LOADED + pc, sp: STACK, ..Aarch64::default() };
    registers.x[Aarch64::FP] = STACK;
    registers.x[Aarch64::LR] = LOADED + code + 0x200;
    if registers.pc == registers.x[Aarch64::LR] {
        registers.x[Aarch64::LR] += 4;
    }
    let text = images.of(0);
    let input = walk::Input {
        fp_always: true,
        max_depth: 9,
        address_mask: (1 << 47) - 1,
        ..walk::Input::new(StackBytes { base: Avma(STACK), bytes: &record }, &text)
    };
    let mut found = Frames::default();
    let registers = Registers::Aarch64(registers);
    walk::unwind(UnwindMethod::FramePointer, &registers, &input, &mut Unwinder::default(), &mut found)
        .expect("all code is in images");
    assert!(matches!(found.addresses.len(), 2 | 3), "{:x?}", found.addresses);
    found.addresses.len() == 3
}

/// The content of the section `__unwind_info`.
fn unwind_info(bytes: &[u8]) -> Option<&[u8]> {
    let mut at = 32;
    for _ in 0..u32_at(bytes, 16) {
        if u32_at(bytes, at) == 0x19 {
            for section in 0..u32_at(bytes, at + 64) as usize {
                let section = at + 72 + 80 * section;
                if bytes[section..].starts_with(b"__unwind_info\0") {
                    let (size, offset) = (u32_at(bytes, section + 40), u32_at(bytes, section + 48));
                    return bytes.get(offset as usize..(offset + size) as usize).filter(|it| !it.is_empty());
                }
            }
        }
        at += u32_at(bytes, at + 4) as usize;
    }
    None
}

/// Offset from the start of `__TEXT` and encoding of each entry, ascending.
fn entries(info: &[u8]) -> Vec<(u32, u32)> {
    let word = |at: usize| u32_at(info, at);
    let half = |at: usize| usize::from(u16::from_le_bytes([info[at], info[at + 1]]));
    let (common, common_count) = (word(4) as usize, word(8) as usize);
    let mut entries = Vec::new();
    for index in 0..word(24) as usize {
        let index = word(20) as usize + 12 * index;
        let (first, page) = (word(index), word(index + 4) as usize);
        if page == 0 {
            entries.push((first, 0));
            continue;
        }
        let (from, count) = (page + half(page + 4), half(page + 6));
        for entry in 0..count {
            if word(page) == 2 {
                entries.push((word(from + 8 * entry), word(from + 8 * entry + 4)));
                continue;
            }
            let packed = word(from + 4 * entry);
            let encoding = match (packed >> 24) as usize {
                number if number < common_count => word(common + 4 * number),
                number => word(page + half(page + 8) + 4 * (number - common_count)),
            };
            entries.push((first + (packed & 0xff_ffff), encoding));
        }
    }
    entries
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
