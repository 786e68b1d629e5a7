//! Damaged unwind information: walks end after a bounded number of steps, without a panic. Input: `.eh_frame`
//! of the C library and of this test (a Rust program), mutated from seeds (`support/seeds.rs`), with
//! arbitrary registers and stacks.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::cell::Cell;
use std::ops::Range;

use object::{Object, ObjectSection};
use stackprof::addr::Avma;
use stackprof::arch::{Registers, X86_64};
use stackprof::binary::frame_rule::AnyRow;
use stackprof::binary::{ImageBytes, Mapping, OpenError};
use stackprof::images::ImageView;
use stackprof::images::Images;
use stackprof::walk::{self, Code, Frames, Input, StackBytes, StackEnd, UnwindMethod, Unwinder};

use crate::seeds;
use stackprof::rng::Rng;

const STACK: u64 = 0x7fff_0000_1000;
/// The first mapped address of the images, a multiple of the page size.
const BASE: u64 = 0x5555_5555_0000;
const DEPTH_MAX: usize = 48;
const WALKS: usize = 40;

/// Most code queries of one walk. Looked up are: each frame and its return address, for the first walk and
/// for each of 16 attempts of the stack search, and each of 512 searched words. For one address are read: 512
/// instructions to the return, 96 to a landing pad, 48 of start code, 64 bytes after it, and some 30 more.
const QUESTIONS_MAX: u64 = (17 * 2 * DEPTH_MAX as u64 + 512) * (512 + 96 + 48 + 2 * 64 + 30);

/// The code of images, with a count of queries.
struct Counted<'a> {
    code: ImageView<'a>,
    questions: Cell<u64>,
}

impl Counted<'_> {
    fn ask<T>(&self, answer: T) -> T {
        self.questions.set(self.questions.get() + 1);
        answer
    }
}

impl Code for Counted<'_> {
    fn is_code(&self, at: Avma) -> bool {
        self.ask(self.code.is_code(at))
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.ask(self.code.code(at))
    }
    fn row(&self, lookup: Avma) -> Option<AnyRow> {
        self.ask(self.code.row(lookup))
    }
    fn entry(&self, pc: Avma) -> Option<Avma> {
        self.ask(self.code.entry(pc))
    }
    fn function(&self, pc: Avma) -> Option<Range<Avma>> {
        self.ask(self.code.function(pc))
    }
}

/// A file, its damaged parts, and the ingredients of its stacks.
struct Original {
    bytes: Vec<u8>,
    /// `.eh_frame` and `.eh_frame_hdr` in the file.
    damaged: Vec<Range<usize>>,
    mapping: Mapping,
    /// Addresses after a call.
    returns: Vec<u64>,
}

fn original(bytes: Vec<u8>) -> Original {
    let file = object::File::parse(&*bytes).unwrap();
    let range = |name: &str| {
        let (offset, size) = file.section_by_name(name)?.file_range()?;
        Some(offset as usize..(offset + size) as usize)
    };
    let text = range(".text").unwrap();
    let damaged = vec![range(".eh_frame").unwrap(), range(".eh_frame_hdr").unwrap()];
    // Mapped like the file, from the page of its code on.
    let start = text.start & !0xfff;
    let avma = |offset: usize| BASE + (offset - start) as u64;
    let is_call = |offset: &usize| {
        let distance = bytes.get(offset + 1..offset + 5).map(|d| i32::from_le_bytes(d.try_into().unwrap()));
        let target = distance.map(|distance| *offset as i64 + 5 + i64::from(distance));
        bytes[*offset] == 0xe8 && target.is_some_and(|target| text.contains(&(target.max(0) as usize)))
    };
    let returns: Vec<u64> = text.clone().filter(is_call).map(|offset| avma(offset + 5)).collect();
    assert!(returns.len() > 100, "too few calls: {}", returns.len());
    let mapping = Mapping::of_file(Avma(avma(start))..Avma(avma(text.end)), start as u64, "/damaged", (1, 1));
    drop(file);
    Original { bytes, damaged, mapping, returns }
}

/// Changes a few places or most of them, as by damage or malice.
fn mutate(bytes: &mut [u8], places: &[Range<usize>], random: &mut Rng) {
    for _ in 0..random.pick(&[4, 64, 1000, 8000]) {
        let place = places[random.below(places.len())].clone();
        let at = place.start + random.below(place.len());
        let length = [1, 1, 1, 2, 4, 8, 40][random.below(7)].min(place.end - at);
        let from = place.start + random.below(place.len() - length);
        let kind = random.below(5);
        for offset in 0..length {
            bytes[at + offset] = match kind {
                0 => random.next() as u8,
                1 => 0xff,
                2 => 0,
                // Endless LEB128 numbers.
                3 => 0x80,
                // Bytes of another entry: valid instructions and lengths in the wrong place.
                _ => bytes[from + offset],
            };
        }
    }
}

/// A word as found on stacks: a return address, an address on the stack, or anything.
fn word(original: &Original, random: &mut Rng) -> u64 {
    match random.below(8) {
        0..=3 => random.pick(&original.returns),
        4 | 5 => STACK + 8 * random.below(600) as u64,
        6 => random.next() % 4096,
        _ => random.next(),
    }
}

/// Walks on random stacks; returns the total number of frames found, and the most queries of a walk.
fn walks(images: &Images, original: &Original, random: &mut Rng) -> (u64, u64) {
    let mut unwinder = Unwinder::default();
    let (mut found, mut most) = (0, 0);
    for walk in 0..WALKS {
        let words = random.below(600);
        let bytes: Vec<u8> = (0..words).flat_map(|_| word(original, random).to_le_bytes()).collect();
        let mut registers =
            X86_64 { gpr: std::array::from_fn(|_| word(original, random)), ..X86_64::default() };
        registers.rip = random.pick(&original.returns) + random.below(32) as u64;
        registers.gpr[X86_64::RSP] = STACK;
        let code = Counted { code: images.of(0), questions: Cell::new(0) };
        let input = Input {
            stack_top: (random.below(2) == 0).then_some(Avma(STACK + 8 * words as u64)),
            max_depth: DEPTH_MAX,
            ..Input::new(StackBytes { base: Avma(STACK), bytes: &bytes }, &code)
        };
        let how = [UnwindMethod::Auto, UnwindMethod::Cfi, UnwindMethod::FramePointer][walk % 3];
        let mut out = Frames::default();
        let walked = walk::unwind(how, &Registers::X86_64(registers), &input, &mut unwinder, &mut out)
            .expect("all code is in images");
        let questions = code.questions.get();
        assert!((1..=DEPTH_MAX).contains(&out.addresses.len()), "{how:?}: {} frames", out.addresses.len());
        assert_eq!(out.addresses.len(), out.methods.len());
        assert!(questions <= QUESTIONS_MAX, "{how:?}: {questions} questions");
        assert!(walked.ended != StackEnd::DepthLimit || out.addresses.len() == DEPTH_MAX);
        found += out.addresses.len() as u64 - 1;
        most = most.max(questions);
    }
    (found, most)
}

fn damage(test: &'static str, bytes: Vec<u8>, rounds: u64) {
    let seeds = seeds::rounds::seeds(0..1 + rounds);
    let original = original(bytes);
    let (mut found, mut most, mut rows) = (0, 0, 0);
    for seed in seeds.clone() {
        seeds::with_seed(test, seed, |random| {
            let mut bytes = original.bytes.clone();
            // Seed 0 is the undamaged file.
            if seed > 0 {
                mutate(&mut bytes, &original.damaged, random);
            }
            let mut images = Images::default();
            let bytes = Cell::new(Some(bytes));
            images.update(0, std::slice::from_ref(&original.mapping), &mut |_| {
                bytes.take().map(ImageBytes::new).ok_or(OpenError::Source("asked for twice"))
            });
            let known = (0..200)
                .filter(|_| images.of(0).row(Avma(random.pick(&original.returns) - 1)).is_some())
                .count();
            rows += known;
            assert!(seed > 0 || known > 190, "the undamaged file has {known} rows of 200");
            let (frames, questions) = walks(&images, &original, random);
            found += frames;
            most = most.max(questions);
        });
    }
    println!("{test}: {seeds:?}: {rows} rows, {found} callers found, at most {most} questions in a walk");
    assert!(found > 0, "no walk went anywhere");
}

#[test]
fn damaged_unwind_information_of_the_c_library_is_harmless() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.split_ascii_whitespace().find(|word| word.ends_with("/libc.so.6"));
    let Some(path) = path else {
        return crate::skip::skip("no libc.so.6 is mapped here");
    };
    damage("damaged_unwind_information_of_the_c_library_is_harmless", std::fs::read(path).unwrap(), 50);
}

#[test]
fn damaged_unwind_information_of_a_rust_program_is_harmless() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    damage("damaged_unwind_information_of_a_rust_program_is_harmless", bytes, 30);
}
