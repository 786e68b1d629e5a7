//! Rows of PE functions: known ones, random ones that are executed instruction by instruction, and malformed
//! files.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use super::build::{self, BASE, File, Function, TEXT, info_at};
use super::unwind::{DWARF_NUMBERS, Functions};
use super::*;
use crate::binary::frame_rule::{COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::binary::object::{Format, Object};
use crate::rng::Rng;

const RSP: usize = 7;

/// The row at a byte of `.text`, by the walker's method.
fn row_at(file: &[u8], offset: u32) -> Option<Row> {
    let pe = Pe::parse(file).unwrap();
    let functions = Functions::find(&pe, file)?;
    let at = Svma(BASE) + u64::from(TEXT + offset);
    super::unwind::epilogue_row(&pe, &functions, at).or_else(|| functions.row(at))
}

/// A file with one function.
fn file_of(code: &[u8], info: &[u8]) -> Vec<u8> {
    let functions = vec![Function { begin: TEXT, end: TEXT + code.len() as u32, info: info.to_vec() }];
    File { code: code.to_vec(), functions, ..File::default() }.build()
}

#[test]
fn headers_locate_addresses() {
    let bytes =
        File { code: vec![0x90; 0x1234], exports: vec![("work", TEXT + 16)], ..File::default() }.build();
    assert_eq!(Format::of(&bytes), Ok(Format::Pe));
    let Ok(Object::Pe(pe)) = Object::parse(&bytes) else { panic!("a PE file") };
    assert!(pe.is_x86_64() && pe.image_base == Svma(BASE));
    let at = |offset| pe.svma_of(offset);
    assert_eq!(
        [at(0), at(0x3ff), at(0x400)],
        [Some(Svma(BASE)), Some(Svma(BASE + 0x3ff)), Some(Svma(BASE + 0x1000))]
    );
    assert_eq!(at(0x400 + 0x1233), Some(Svma(BASE + 0x2233)));
    assert_eq!(at(0x400 + 0x1234), None, "what fills the file up");
    assert_eq!(pe.file_offset_of(Svma(BASE + 0x1010)), Some(0x410));
    assert_eq!((pe.export(&bytes, "work"), pe.export(&bytes, "wor")), (Some(TEXT + 16), None));
    assert_eq!(Pe::parse(b"MZ"), Err(FormatError::Damaged(optional_header_magic(&b"MZ"[..]).unwrap_err())));
    assert_eq!((Pe::parse(b""), Pe::parse(b"\x7fELF")), (Err(FormatError::Empty), Err(FormatError::NotPe)));
}

#[test]
fn a_file_matches_its_mapping_except_for_the_load_address() {
    let file = File { code: vec![0x90; 64], ..File::default() }.build();
    let mut memory = file[..0x400].to_vec();
    assert!(same_file(&memory, &file));
    memory[0x40 + 24 + 24..][..8].copy_from_slice(&0x7ff0_0000_0000_u64.to_le_bytes());
    assert!(same_file(&memory, &file));
    memory[0x48] ^= 1;
    assert!(!same_file(&memory, &file), "another time stamp");
    assert!(!same_file(&[], &file) && !same_file(b"MZ", b"MZ"));
}

/// push %rbp; push %rbx; sub $0x28,%rsp; nop; add $0x28,%rsp; pop %rbx; pop %rbp; ret
const PLAIN: &[u8] = &[0x55, 0x53, 0x48, 0x83, 0xec, 0x28, 0x90, 0x48, 0x83, 0xc4, 0x28, 0x5b, 0x5d, 0xc3];
const PLAIN_INFO: &[u8] = &[1, 6, 3, 0, 6, 0x42, 2, 0x30, 1, 0x50, 0, 0];

#[test]
fn each_instruction_has_its_row() {
    let file = file_of(PLAIN, PLAIN_INFO);
    let cfa = |at| row_at(&file, at).map(|row| row.cfa);
    let sp = |bytes| Some(Cfa::Register(RSP as u8, bytes));
    let expected = [(0, 8), (1, 16), (2, 24), (6, 64), (7, 64), (11, 24), (12, 16), (13, 8)];
    assert_eq!(expected.map(|(at, _)| cfa(at)), expected.map(|(_, bytes)| sp(bytes)));
    let row = row_at(&file, 6).unwrap();
    assert_eq!((&row.columns[6], &row.columns[3]), (&Column::At(-16), &Column::At(-24)));
    let row = row_at(&file, 12).unwrap();
    assert_eq!((&row.columns[6], &row.columns[3]), (&Column::At(-16), &Column::Same));
    assert_eq!(cfa(14), None, "behind it");
}

#[test]
fn a_jump_ends_a_function_only_if_it_leads_to_another_one() {
    // The function above with another end, three bytes after an `add`; then a leaf, a function with a prologue,
    // and a part of the first that has its frame.
    let jump = |ending: &[u8]| {
        let mut code = PLAIN[..11].to_vec();
        code.extend(ending);
        code.resize(0x20, 0xcc);
        code.extend(PLAIN);
        code.resize(0x40, 0xcc);
        code.extend([0x90; 16]);
        let function = |begin: u32, end: u32, info: &[u8]| Function {
            begin: TEXT + begin,
            end: TEXT + end,
            info: info.to_vec(),
        };
        let in_frame = [&[1, 0, 3, 0][..], &[0, 0x42, 0, 0x30, 0, 0x50, 0, 0]].concat();
        let functions = vec![
            function(0, 0x1f, PLAIN_INFO),
            function(0x20, 0x2e, PLAIN_INFO),
            function(0x40, 0x50, &in_frame),
        ];
        let file = File { code, functions, ..File::default() }.build();
        row_at(&file, 11).unwrap().cfa == Cfa::Register(RSP as u8, 8)
    };
    // jmp to +0x20, to +0x40, to +0x22 (within), to +0x1f (a leaf), to itself
    assert!(jump(&[0xeb, 0x13]) && !jump(&[0xeb, 0x33]) && !jump(&[0xeb, 0x15]) && jump(&[0xeb, 0x12]));
    assert!(jump(&[0xe9, 0x10, 0, 0, 0]) && jump(&[0xeb, 0xf3]) && !jump(&[0xeb, 0xf4]));
    // jmp *0(%rip); rex.W jmp *%rax; jmp *%rax may belong to a switch
    assert!(jump(&[0xff, 0x25, 0, 0, 0, 0]) && jump(&[0x48, 0xff, 0xe0]) && !jump(&[0xff, 0xe0]));
    assert!(jump(&[0xc2, 8, 0]) && jump(&[0xf3, 0xc3]) && !jump(&[0x90, 0xc3]));
}

#[test]
fn pops_that_undo_no_push_are_no_epilogue() {
    // sub $8,%rsp; nop; pop %rcx; ret: the pop removes alignment.
    let file = file_of(&[0x48, 0x83, 0xec, 8, 0x90, 0x59, 0xc3], &[1, 4, 1, 0, 4, 0x02, 0, 0]);
    let cfa = |at| row_at(&file, at).unwrap().cfa;
    assert_eq!([cfa(5), cfa(6)], [16, 8].map(|bytes| Cfa::Register(RSP as u8, bytes)));
}

#[test]
fn a_frame_register_is_valid_while_the_stack_pointer_moves() {
    // push %rbp; sub $0x40,%rsp; lea 0x20(%rsp),%rbp; nop
    let code = [&[0x55, 0x48, 0x83, 0xec, 0x40, 0x48, 0x8d, 0x6c, 0x24, 0x20][..], &[0x90; 8]].concat();
    let info = [1, 10, 3, 0x25, 10, 0x03, 5, 0x72, 1, 0x50, 0, 0];
    let file = file_of(&code, &info);
    let cfa = |at| row_at(&file, at).unwrap().cfa;
    assert_eq!(cfa(5), Cfa::Register(RSP as u8, 0x50));
    assert_eq!(cfa(10), Cfa::Register(6, 0x30));
    assert_eq!(row_at(&file, 10).unwrap().columns[6], Column::At(-16));
}

#[test]
fn code_interrupted_by_the_processor_has_its_own_registers() {
    // Wine's KiUserExceptionDispatcher: pushframe, stackalloc 0x590.
    let info = [1, 0, 3, 0, 0, 0x01, 0xb2, 0, 0, 0x0a, 0, 0];
    let row = row_at(&file_of(&[0x90; 16], &info), 4).unwrap();
    assert!(row.signal && row.cfa == Cfa::Register(RSP as u8, 0x590 + 40));
    assert_eq!((&row.columns[RETURN_ADDRESS], &row.columns[RSP]), (&Column::At(-40), &Column::At(-16)));
    let with_code = [1, 0, 1, 0, 0, 0x1a, 0, 0];
    assert_eq!(row_at(&file_of(&[0x90; 16], &with_code), 4).unwrap().cfa, Cfa::Register(RSP as u8, 48));
    // Nothing can be pushed before the machine frame.
    let damaged = [1, 0, 2, 0, 0, 0x0a, 0, 0x50];
    assert_eq!(row_at(&file_of(&[0x90; 16], &damaged), 4), None);
}

#[test]
fn codes_of_epilogues_are_skipped() {
    for count in 1..=3_u8 {
        let mut info = vec![2, 6, 3 + count + count % 2, 0];
        info.extend([[3, 0x16], [0x30, 0x06], [0x50, 0x06]].as_flattened()[..2 * usize::from(count)].iter());
        info.resize(4 + 2 * usize::from(count + count % 2), 0);
        info.extend(&PLAIN_INFO[4..]);
        assert_eq!(row_at(&file_of(PLAIN, &info), 6), row_at(&file_of(PLAIN, PLAIN_INFO), 6), "{count}");
    }
    assert_eq!(row_at(&file_of(PLAIN, &[&[3], &PLAIN_INFO[1..]].concat()), 6), None, "version 3");
}

/// Adjacent pieces are one function, with the rows of all entries that they are chained to.
#[test]
fn pieces_lead_to_their_function() {
    let piece = |begin: u32, end: u32, info: Vec<u8>| Function { begin: TEXT + begin, end: TEXT + end, info };
    let chain = |head: &[u8], to: u32, begin: u32, end: u32| {
        let entry = [TEXT + begin, TEXT + end, to].map(u32::to_le_bytes).concat();
        [head, &entry].concat()
    };
    let first = piece(0, 14, PLAIN_INFO.to_vec());
    let at = info_at(std::slice::from_ref(&first), 0);
    // mov %rsi,0x40(%rsp) after the prologue of the first
    let second = piece(14, 24, chain(&[0x21, 5, 2, 0, 5, 0x64, 8, 0], at, 0, 14));
    let apart = piece(0x40, 0x48, chain(&[0x21, 0, 0, 0], at, 0, 14));
    let functions = vec![first, second, apart];
    let file = File { code: vec![0x90; 0x50], functions, ..File::default() }.build();
    let row = row_at(&file, 20).unwrap();
    assert_eq!((row.cfa, &row.columns[4]), (Cfa::Register(RSP as u8, 64), &Column::At(0)));
    let row = row_at(&file, 15).unwrap();
    assert_eq!((row.cfa, &row.columns[4]), (Cfa::Register(RSP as u8, 64), &Column::Same));
    assert_eq!(row_at(&file, 0x44).unwrap().cfa, Cfa::Register(RSP as u8, 64));
    let pe = Pe::parse(&file).unwrap();
    let functions = Functions::find(&pe, &file).unwrap();
    let bounds = |at: u32| {
        let range = functions.function(Svma(BASE) + u64::from(TEXT + at))?;
        Some([range.start, range.end].map(|svma| svma.0 - BASE - u64::from(TEXT)))
    };
    assert_eq!(
        [bounds(3), bounds(20), bounds(0x44), bounds(30)],
        [Some([0, 14]), Some([0, 24]), Some([0x40, 0x48]), None]
    );
    // An entry chained to itself.
    let loops = piece(0, 14, chain(&[0x21, 0, 0, 0], at, 0, 14));
    let file = File { code: vec![0x90; 0x50], functions: vec![loops], ..File::default() }.build();
    assert_eq!(row_at(&file, 3), None);
}

/// A machine for prologues and epilogues, registers by DWARF number.
#[derive(Clone)]
struct Machine {
    registers: [u64; 16],
    memory: HashMap<u64, u64>,
}

/// An instruction of random functions; registers by instruction number.
#[derive(Clone, Copy, Debug)]
enum Op {
    Push(u8),
    /// `sub $n,%rsp`, negative: `add`.
    Sub(i32),
    Store(u8, i32),
    /// `lea n(%rsp),%reg`
    SetFrame(u8, i32),
    Clobber(u8),
    Load(u8, u8, i32),
    /// `lea n(%reg),%rsp`
    Leave(u8, i32),
    Pop(u8),
    Ret,
    Jump,
}

fn number(register: u8) -> usize {
    usize::from(DWARF_NUMBERS[usize::from(register)])
}

impl Op {
    fn bytes(self) -> Vec<u8> {
        let rex = |bit: u8, register: u8| 0x48 | (register >> 3) << bit;
        let long = |head: &[u8], number: i32| [head, &number.to_le_bytes()].concat();
        match self {
            Op::Push(register @ 8..) => vec![0x41, 0x50 + (register & 7)],
            Op::Push(register) => vec![0x50 + register],
            Op::Pop(register @ 8..) => vec![0x41, 0x58 + (register & 7)],
            Op::Pop(register) => vec![0x58 + register],
            Op::Sub(bytes @ 0..) => long(&[0x48, 0x81, 0xec], bytes),
            Op::Sub(bytes) => long(&[0x48, 0x81, 0xc4], -bytes),
            Op::Store(register, at) => long(&[rex(2, register), 0x89, 0x84 | (register & 7) << 3, 0x24], at),
            Op::SetFrame(register, at) => {
                long(&[rex(2, register), 0x8d, 0x84 | (register & 7) << 3, 0x24], at)
            }
            Op::Clobber(register) => long(&[rex(0, register), 0xc7, 0xc0 | register & 7], 0x77),
            Op::Load(register, 4, at) => {
                long(&[rex(2, register), 0x8b, 0x84 | (register & 7) << 3, 0x24], at)
            }
            Op::Load(register, base, at) => {
                long(&[rex(2, register) | base >> 3, 0x8b, 0x80 | (register & 7) << 3 | base & 7], at)
            }
            Op::Leave(base, at) => long(&[rex(0, base), 0x8d, 0xa0 | base & 7], at),
            Op::Ret => vec![0xc3],
            Op::Jump => vec![0x48, 0xff, 0xe0],
        }
    }

    fn run(self, machine: &mut Machine) {
        let sp = machine.registers[RSP];
        let above = |at: i32| sp.wrapping_add_signed(at.into());
        match self {
            Op::Push(register) => {
                machine.memory.insert(sp - 8, machine.registers[number(register)]);
                machine.registers[RSP] = sp - 8;
            }
            Op::Pop(register) => {
                machine.registers[number(register)] = machine.memory[&sp];
                machine.registers[RSP] = sp + 8;
            }
            Op::Sub(bytes) => machine.registers[RSP] = above(-bytes),
            Op::Store(register, at) => {
                _ = machine.memory.insert(above(at), machine.registers[number(register)])
            }
            Op::SetFrame(register, at) => machine.registers[number(register)] = above(at),
            Op::Clobber(register) => machine.registers[number(register)] = 0x77,
            Op::Load(register, base, at) => {
                let from = machine.registers[number(base)].wrapping_add_signed(at.into());
                machine.registers[number(register)] = machine.memory[&from];
            }
            Op::Leave(base, at) => {
                machine.registers[RSP] = machine.registers[number(base)].wrapping_add_signed(at.into());
            }
            Op::Ret | Op::Jump => {}
        }
    }
}

/// A random function that conforms to the ABI, with a compiler's unwind codes for it.
fn function(random: &mut Rng) -> (Vec<Op>, Vec<u8>) {
    let mut kept: Vec<u8> = vec![3, 5, 6, 7, 12, 13, 14, 15];
    for index in (1..kept.len()).rev() {
        kept.swap(index, random.below(index + 1));
    }
    let pushes: Vec<u8> = kept.drain(..random.below(6)).collect();
    let saves: Vec<u8> = kept.drain(..random.below(3)).collect();
    let frame = pushes.first().copied().filter(|_| random.chance(1, 2));
    let size =
        8 * (saves.len() as i32 + random.below(40) as i32 + if random.chance(1, 8) { 70_000 } else { 0 });
    let mut ops: Vec<Op> = Vec::new();
    // Code slots, in prologue order; the first byte is set when they are complete.
    let mut codes: Vec<Vec<u8>> = Vec::new();
    let mut done = 0;
    let mut add = |ops: &mut Vec<Op>, op: Op, code: u8, operand: &[u8]| {
        ops.push(op);
        done += op.bytes().len() as u8;
        codes.push([&[done, code], operand].concat());
    };
    for register in &pushes {
        add(&mut ops, Op::Push(*register), register << 4, &[]);
    }
    let slots = size / 8;
    match slots {
        0 => {}
        1..=16 => add(&mut ops, Op::Sub(size), (slots as u8 - 1) << 4 | 2, &[]),
        _ if slots < 1 << 16 => add(&mut ops, Op::Sub(size), 1, &(slots as u16).to_le_bytes()),
        _ => add(&mut ops, Op::Sub(size), 0x11, &size.to_le_bytes()),
    }
    for (index, register) in saves.iter().enumerate() {
        add(
            &mut ops,
            Op::Store(*register, 8 * index as i32),
            register << 4 | 4,
            &(index as u16).to_le_bytes(),
        );
    }
    let above = 16 * random.below(16).min(size as usize / 16) as i32;
    if let Some(register) = frame {
        add(&mut ops, Op::SetFrame(register, above), 3, &[]);
    }
    let frame_byte = frame.map_or(0, |register| register | (above / 16 * 16) as u8);
    let slots: Vec<u8> = codes.iter().rev().flatten().copied().collect();
    let info = [&[1, done, (slots.len() / 2) as u8, frame_byte], &slots[..], &[0, 0]].concat();

    ops.extend(
        pushes.iter().chain(&saves).filter(|register| Some(**register) != frame).map(|one| Op::Clobber(*one)),
    );
    if frame.is_some() && random.chance(1, 2) {
        // alloca
        ops.push(Op::Sub(16 * random.below(20) as i32));
    }
    let base = frame.map_or((4, 0), |register| (register, above));
    for (index, register) in saves.iter().enumerate() {
        ops.push(Op::Load(*register, base.0, 8 * index as i32 - base.1));
    }
    match frame {
        Some(register) => ops.push(Op::Leave(register, size - above)),
        None if size > 0 => ops.push(Op::Sub(-size)),
        None => {}
    }
    ops.extend(pushes.iter().rev().map(|register| Op::Pop(*register)));
    ops.push(if random.chance(1, 3) { Op::Jump } else { Op::Ret });
    (ops, info)
}

/// The registers of the caller by a row.
fn caller(row: &Row, machine: &Machine) -> [u64; COLUMNS] {
    let Cfa::Register(register, offset) = row.cfa else { panic!("{row:?}") };
    let cfa = machine.registers[usize::from(register)].wrapping_add_signed(offset);
    let mut registers = [0; COLUMNS];
    registers[..16].copy_from_slice(&machine.registers);
    for (value, column) in registers.iter_mut().zip(&row.columns) {
        match column {
            Column::Same => {}
            Column::At(at) => *value = machine.memory[&cfa.wrapping_add_signed(*at)],
            other => panic!("{other:?}"),
        }
    }
    registers[RSP] = cfa;
    registers
}

#[test]
fn each_instruction_of_random_functions_leads_to_the_caller() {
    for seed in 0..400 {
        let mut random = Rng::new(seed);
        let (ops, info) = function(&mut random);
        let code: Vec<u8> = ops.iter().flat_map(|op| op.bytes()).collect();
        let file = file_of(&code, &info);
        let mut machine =
            Machine { registers: std::array::from_fn(|at| 0x1000 + at as u64), memory: HashMap::new() };
        machine.registers[RSP] = 0x7fff_0000_0000;
        machine.memory.insert(machine.registers[RSP], 0x1_4000_5678);
        let mut wanted = [0; COLUMNS];
        wanted[..16].copy_from_slice(&machine.registers);
        wanted[RSP] += 8;
        wanted[RETURN_ADDRESS] = 0x1_4000_5678;
        let mut at = 0;
        for op in &ops {
            let row = row_at(&file, at).unwrap();
            assert_eq!(caller(&row, &machine), wanted, "seed {seed}, +{at:#x} {op:?} of {ops:?}: {row:?}");
            op.run(&mut machine);
            at += op.bytes().len() as u32;
        }
    }
}

#[test]
fn malformed_files_are_refused_or_give_an_answer() {
    let mut random = Rng::new(7);
    for seed in 0..300 {
        let mut of_seed = Rng::new(seed);
        let (ops, info) = function(&mut of_seed);
        let code: Vec<u8> = ops.iter().flat_map(|op| op.bytes()).collect();
        let end = TEXT + code.len() as u32;
        let file = File {
            functions: vec![
                Function { begin: TEXT, end, info },
                Function { begin: end, end: end + 8, info: vec![0x21, 0, 0, 0] },
            ],
            exports: vec![("RtlUserThreadStart", TEXT)],
            code,
            ..File::default()
        };
        let whole = file.build();
        for _ in 0..20 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(6) {
                // Mostly control data: headers, and the data after the code.
                let at = if random.chance(1, 2) { random.below(0x400) } else { random.below(bytes.len()) };
                bytes[at] = if random.chance(1, 3) { 0xff } else { random.next() as u8 };
            }
            bytes.truncate(if random.chance(1, 4) { random.below(bytes.len()) } else { bytes.len() });
            let Ok(pe) = Pe::parse(&bytes) else { continue };
            let (_, _) = (pe.relocations(&bytes), pe.export(&bytes, "RtlUserThreadStart"));
            let Some(functions) = Functions::find(&pe, &bytes) else { continue };
            for at in (0..0x100).step_by(3) {
                let at = pe.image_base.0.checked_add(u64::from(TEXT) + at).map(Svma);
                let Some(at) = at else { continue };
                let (_, _) = (functions.row(at), super::unwind::epilogue_row(&pe, &functions, at));
                let (_, _) = (functions.last_function(at), functions.stack_starts("NTDLL.DLL"));
            }
        }
    }
}

#[test]
fn the_build_helper_places_its_content() {
    let file = file_of(PLAIN, PLAIN_INFO);
    let pe = Pe::parse(&file).unwrap();
    assert_eq!(pe.bytes_at(&file, TEXT).unwrap(), PLAIN);
    assert_eq!(pe.bytes_at(&file, build::RDATA).unwrap()[..12], *PLAIN_INFO);
}

#[test]
fn stack_starts_are_recognized_in_their_library() {
    // Each of 0x10 bytes: two that push nothing, one with the frame of an exception, one without it yet.
    let by_rbp = vec![1, 4, 2, 5, 4, 0x03, 4, 0x50];
    let infos = [vec![1, 0, 0, 0], vec![1, 0, 0, 0], vec![1, 0, 0, 0], by_rbp.clone(), by_rbp];
    let names = ["KiUserApcDispatcher", "KiUserCallbackDispatcher", "KiUserExceptionDispatcher"];
    let names = [names[0], names[1], names[2], "LdrInitializeThunk", "RtlUserThreadStart"];
    let place = [0x30, 0x20, 0x40, 0x10, 0];
    let functions = infos.into_iter().zip((TEXT..).step_by(16));
    let file = File {
        code: vec![0x90; 0x60],
        functions: functions.map(|(info, begin)| Function { begin, end: begin + 16, info }).collect(),
        exports: names.into_iter().zip(place).map(|(name, at)| (name, TEXT + at)).collect(),
        ..File::default()
    };
    let bytes = file.build();
    let pe = Pe::parse(&bytes).unwrap();
    let functions = Functions::find(&pe, &bytes).unwrap();
    let told = |library: &str, at: u32| {
        let at = Svma(BASE) + u64::from(TEXT + at);
        let row = functions.stack_starts(library).row(at, functions.row(at).unwrap());
        (row.columns[RETURN_ADDRESS].clone(), row.signal)
    };
    let elsewhere = crate::binary::frame_rule::CALLED_FROM_ELSEWHERE;
    for begins in [0, 8, 0x10] {
        assert_eq!(told("NTDLL.dll", begins), (Column::Undefined, false));
        assert_eq!(told("other.dll", begins), (Column::At(-8), false));
    }
    assert_eq!(told("ntdll.dll", 0x28), (elsewhere.clone(), false));
    for interrupted in [0x38, 0x48] {
        assert_eq!(told("ntdll.dll", interrupted), (Column::At(-8), true));
        assert_eq!(
            told("ntdll.dll", interrupted & !15),
            (elsewhere.clone(), false),
            "its frame does not stand yet"
        );
    }
}
