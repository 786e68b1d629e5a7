//! Executing a loaded program, one instruction at a time, and judging a walk at each.
//!
//! Input: images, a method of walking. Output: a verdict for every instruction boundary,
//! with its class (see [`crate::shadow`]). Memory and registers are those that a profiler
//! would have copied from a stopped thread.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stackprof::addr::Avma;
use stackprof::images::Images;
use stackprof::arch::{Aarch64, Registers, X86_64};
use stackprof::walk::{StackEnd, StackBytes, Unwinder};
use unicorn_engine::{
    Arch as Cpu, Arm64CpuModel, Mode, Prot, RegisterARM64 as A, RegisterARM64CP, RegisterX86 as X, Unicorn,
    X86Insn,
};

use crate::fixtures::Arch;
use crate::load::Image;
use crate::shadow::{Class, Executed, Judged, Point, Shadow};

/// `machdep.virtual_address_size` of 16 KiB kernels: signatures lie above.
pub const ADDRESS_BITS: u32 = 47;
/// Bits of an address; return addresses and frame pointers have nothing above.
pub const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

const STACK: std::ops::Range<u64> = 0x1_6fd0_0000..0x1_6fe0_0000;
/// Bytes of the stack that are copied at most; no fixture needs more.
const STACK_BYTES: u64 = 256 << 10;
/// Instructions at most: the programs end by themselves long before.
const BOUNDARIES_MAX: usize = 2_000_000;
/// `EXCP_SWI` of qemu/target/arm/cpu.h.
const EXCEPTION_SVC: u32 = 2;
/// The smaller page of the two processors.
const PAGE: u64 = 0x1000;

/// A thread at an instruction boundary, as a profiler sees it.
pub struct Boundary<'a> {
    pub arch: Arch,
    pub registers: Registers,
    pub stack: StackBytes<'a>,
    /// Where the memory of the stack ends.
    pub stack_limit: Avma,
    pub images: &'a Images,
}

/// A way to unwind: fills the look-up addresses, leaf first, and says why it ended.
/// What it keeps from walk to walk is the `Unwinder`'s.
pub type Method = fn(&Boundary<'_>, &mut Unwinder, &mut Vec<u64>) -> StackEnd;

/// What a walk found at a boundary, compared with the truth.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// The addresses are exactly the true ones.
    pub exact: bool,
    pub ended: StackEnd,
    /// The first frame that is wrong, from the leaf on, and what was found there; 0 is nothing.
    pub differs_at: (usize, u64),
}

pub struct Outcome {
    pub judged: Vec<Judged<Verdict>>,
    /// The function and offset of each judged address, and of what was found for it.
    pub names: BTreeMap<u64, String>,
    /// Boundaries at which the link register held a signed return address.
    pub signed: u64,
    /// Time in the method alone.
    pub walking: Duration,
}

struct Run {
    arch: Arch,
    method: Method,
    images: Images,
    unwinder: Unwinder,
    shadow: Shadow<Verdict>,
    stop: u64,
    last: Option<Last>,
    stack: Vec<u8>,
    found: Vec<u64>,
    boundaries: usize,
    signed: u64,
    walking: Duration,
    finished: bool,
}

/// The instruction that is being executed between two boundaries.
struct Last {
    address: u64,
    bytes: [u8; 16],
    length: usize,
}

pub fn execute(arch: Arch, loaded: &[&Image], method: Method) -> Outcome {
    let (cpu, mode) = match arch {
        Arch::Arm64 => (Cpu::ARM64, Mode::LITTLE_ENDIAN),
        Arch::X86_64 => (Cpu::X86, Mode::MODE_64),
    };
    let program = loaded[0];
    let mut functions: Vec<_> = loaded.iter().flat_map(|image| image.functions.iter().cloned()).collect();
    functions.sort_by_key(|function| function.start);
    let mut images = Images::default();
    let mappings: Vec<_> = (0..).zip(loaded).map(|(number, image)| image.mapping(number)).collect();
    images.update(0, &mappings, &mut |mapping| Ok(loaded[mapping.identity.1 as usize].image_bytes()));

    // A new thread: nothing but a zero as return address on its stack, and no frame.
    // thread_start gets the program's function as its argument.
    let sp = STACK.end - 0x100;
    let [start, main] = ["_thread_start", "_run"].map(|name| {
        loaded.iter().find_map(|image| image.symbols.get(name)).copied().expect("a symbol")
    });
    let entry = Point { pc: start, sp, fp: 0, link: 0 };
    let run = Run {
        arch,
        method,
        images,
        unwinder: Unwinder::default(),
        shadow: Shadow::new(functions, entry),
        stop: program.symbols["_stop"],
        last: None,
        stack: Vec::new(),
        found: Vec::new(),
        boundaries: 0,
        signed: 0,
        walking: Duration::ZERO,
        finished: false,
    };
    let mut machine = Unicorn::new_with_data(cpu, mode, run).unwrap();
    if arch == Arch::Arm64 {
        sign_pointers(&mut machine);
    }
    for image in loaded {
        for (range, bytes) in &image.segments {
            let length = (range.end - range.start).next_multiple_of(PAGE);
            machine.mem_map(range.start, length, Prot::ALL).unwrap();
            machine.mem_write(range.start, bytes).unwrap();
        }
    }
    machine.mem_map(STACK.start, STACK.end - STACK.start, Prot::ALL).unwrap();
    match arch {
        Arch::Arm64 => machine.reg_write(A::SP, sp).and_then(|()| machine.reg_write(A::X0, main)).unwrap(),
        Arch::X86_64 => machine.reg_write(X::RSP, sp).and_then(|()| machine.reg_write(X::RDI, main)).unwrap(),
    }
    machine.add_code_hook(1, 0, at_boundary).unwrap();
    // System calls do nothing.
    match arch {
        Arch::Arm64 => machine.add_intr_hook(|_, number| assert_eq!(number, EXCEPTION_SVC, "an exception")),
        Arch::X86_64 => machine.add_insn_sys_hook(X86Insn::SYSCALL, 1, 0, |_| {}),
    }
    .unwrap();
    let ended = machine.emu_start(entry.pc, 0, 0, 0);
    let pc = machine.pc_read().unwrap_or_default();
    let run = machine.get_data_mut();
    assert!(run.finished, "{}: {ended:?} at {pc:#x}", program.path.display());
    run.shadow.finish();
    let judged = std::mem::take(&mut run.shadow.judged);
    let found = judged.iter().map(|judged| judged.verdict.differs_at.1);
    let known = |pc: &u64| loaded.iter().any(|image| image.text.contains(pc));
    let addresses = judged.iter().map(|judged| judged.pc).chain(found.filter(known));
    let names = addresses.map(|pc| (pc, run.shadow.name(pc))).collect();
    Outcome { judged, names, signed: run.signed, walking: run.walking }
}

/// Makes the `pac` and `aut` instructions work as they do for arm64e programs on macOS: the
/// keys A and B sign what lies above 47 bits of address. The keys themselves are zero.
fn sign_pointers<D>(machine: &mut Unicorn<'_, D>) {
    machine.ctl_set_cpu_model(Arm64CpuModel::MAX as i32).unwrap();
    // Arm Architecture Reference Manual for A-profile, D19.2: registers by op1, CRn, CRm, op2.
    let mut set = |[op1, crn, crm, op2]: [u32; 4], bits: u64| {
        let mut register = RegisterARM64CP::new().op0(3).op1(op1).crn(crn).crm(crm).op2(op2);
        machine.reg_read_arm64_coproc(&mut register).unwrap();
        let value = register.val | bits;
        machine.reg_write_arm64_coproc(&register.val(value)).unwrap();
    };
    set([0, 1, 0, 0], 0b11 << 30); // SCTLR_EL1: EnIA, EnIB
    set([0, 2, 0, 2], 64 - u64::from(ADDRESS_BITS)); // TCR_EL1: T0SZ
    set([4, 1, 1, 0], 1 << 41); // HCR_EL2: API, no trap
    // SCR_EL3: API, no trap; RW and NS, without which HCR_EL2 has no effect.
    set([6, 1, 1, 0], 1 << 17 | 1 << 10 | 1);
}

fn at_boundary(machine: &mut Unicorn<'_, Run>, address: u64, length: u32) {
    let arch = machine.get_data().arch;
    let registers = registers(machine, arch, address);
    let mut stack = std::mem::take(&mut machine.get_data_mut().stack);
    let sp = registers.sp().0;
    assert!(STACK.contains(&sp), "the stack pointer is {sp:#x} at {address:#x}");
    stack.resize(STACK.end.min(sp + STACK_BYTES).saturating_sub(sp) as usize, 0);
    machine.mem_read(sp, &mut stack).unwrap();
    let mut bytes = [0; 16];
    machine.mem_read(address, &mut bytes[..length as usize]).unwrap();

    let run = machine.get_data_mut();
    let bytes_there = StackBytes { base: Avma(sp), bytes: &stack };
    let (fp, link) = match &registers {
        Registers::Aarch64(r) => (r.x[Aarch64::FP], r.x[Aarch64::LR]),
        Registers::X86_64(r) => (r.gpr[X86_64::RBP], bytes_there.word(Avma(sp)).unwrap_or_default()),
        Registers::X86(_) | Registers::Arm(_) => unreachable!("not emulated"),
    };
    let now = Point { pc: address, sp, fp, link };
    if let Some(last) = &run.last {
        run.shadow.step(executed(arch, last), now);
    }
    run.last = Some(Last { address, bytes, length: length as usize });
    run.boundaries += 1;
    run.finished = address == run.stop;
    if run.finished || run.boundaries == BOUNDARIES_MAX {
        machine.emu_stop().unwrap();
        return;
    }
    let stack_limit = Avma(STACK.end);
    let boundary = Boundary { arch, registers, stack: bytes_there, stack_limit, images: &run.images };
    run.signed += u64::from(arch == Arch::Arm64 && link & !ADDRESS_MASK != 0);
    let before = Instant::now();
    let ended = (run.method)(&boundary, &mut run.unwinder, &mut run.found);
    run.walking += before.elapsed();
    let frames = run.found.iter().copied();
    let exact = run.shadow.expected(now).eq(frames.clone());
    let right = run.shadow.expected(now).zip(frames).take_while(|(expected, found)| expected == found).count();
    let differs_at = (right, run.found.get(right).copied().unwrap_or(0));
    run.shadow.judge(now, Verdict { exact, ended, differs_at }, |at| bytes_there.word(Avma(at)));
    run.stack = stack;
}

/// What an instruction was, by its encoding alone.
fn executed(arch: Arch, last: &Last) -> Executed {
    let call = Executed::Call { returns_to: last.address + last.length as u64 };
    let [first, second, third, fourth, ..] = last.bytes;
    match arch {
        Arch::Arm64 => match u32::from_le_bytes([first, second, third, fourth]) {
            word if word & 0xfc00_0000 == 0x9400_0000 || word & 0xffff_fc1f == 0xd63f_0000 => call,
            // ret, retaa, retab
            0xd65f_03c0 | 0xd65f_0bff | 0xd65f_0fff => Executed::Return { pops: 0 },
            _ => Executed::Other,
        },
        Arch::X86_64 => match (first, second) {
            (0xe8, _) => call,
            (0xff, modrm) if modrm >> 3 & 7 == 2 => call,
            (0x40..=0x4f, 0xff) if third >> 3 & 7 == 2 => call,
            (0xc3, _) => Executed::Return { pops: 8 },
            (0xc2, _) => Executed::Return { pops: 8 + u64::from(u16::from_le_bytes([second, third])) },
            _ => Executed::Other,
        },
    }
}

fn registers<D>(machine: &Unicorn<'_, D>, arch: Arch, pc: u64) -> Registers {
    let read = |register: i32| machine.reg_read(register).unwrap();
    match arch {
        Arch::Arm64 => {
            let mut x = [0; 31];
            // x0 to x28 are numbered one after the other.
            for (register, value) in (A::X0 as i32..=A::X28 as i32).zip(&mut x) {
                *value = read(register);
            }
            x[Aarch64::FP] = read(A::X29 as i32);
            x[Aarch64::LR] = read(A::X30 as i32);
            Registers::Aarch64(Aarch64 { x, sp: read(A::SP as i32), pc })
        }
        Arch::X86_64 => {
            // In the order of DWARF numbers.
            let order = [
                X::RAX,
                X::RDX,
                X::RCX,
                X::RBX,
                X::RSI,
                X::RDI,
                X::RBP,
                X::RSP,
                X::R8,
                X::R9,
                X::R10,
                X::R11,
                X::R12,
                X::R13,
                X::R14,
                X::R15,
            ];
            let gpr = order.map(|register| read(register as i32));
            Registers::X86_64(X86_64 { gpr, rip: pc, fs_base: 0 })
        }
    }
}

/// Whether walks of a class must be exact where compilers keep frame pointers.
pub fn must_be_exact(arch: Arch, class: Class) -> bool {
    match arch {
        Arch::Arm64 => matches!(class, Class::Framed | Class::Leaf),
        Arch::X86_64 => class == Class::Framed,
    }
}
