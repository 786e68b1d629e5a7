//! Code that was made at run time: what a walk learned of it is kept while its bytes are what they
//! were, and code that is replaced in place is walked by what it is now.

use stackprof::addr::Avma;
use stackprof::arch::{Registers, X86_64};
use stackprof::binary::{Mapping, MappingKind, OpenError};
use stackprof::images::{ImageCode, Images, KEPT_NS, Made, TargetCode};
use stackprof::walk::{self, Frames, How, StackBytes, Unwinder};

const START: u64 = 0x7000_0000_0000;
const BYTES: usize = 64 << 10;
const STACK: u64 = 0x7fff_0000_1000;
/// Where functions are; far enough from each other to be in blocks that are read by themselves.
const LEAF: u64 = 0x100;
const CALLER: u64 = 0x5000;
const OTHER: u64 = 0xa000;

/// A process whose only code is what it made.
struct Process {
    memory: Vec<u8>,
    images: Images,
    made: Made,
    unwinder: Unwinder,
    now_ns: u64,
    reads: usize,
}

impl Process {
    fn new() -> Process {
        let mapping = Mapping {
            avma: Avma(START)..Avma(START + BYTES as u64),
            file_offset: 0,
            path: String::new(),
            kind: MappingKind::Anonymous,
            identity: (0, 0),
        };
        let (mut images, mut made) = (Images::default(), Made::default());
        let mappings = [mapping];
        images.update(&mappings, &mut |_| Err(OpenError::Anonymous));
        made.update(&mappings, &images);
        let memory = vec![0xcc; BYTES];
        Process { memory, images, made, unwinder: Unwinder::default(), now_ns: 1, reads: 0 }
    }

    fn write(&mut self, at: u64, code: &[u8]) {
        self.memory[at as usize..at as usize + code.len()].copy_from_slice(code);
    }

    /// A function with a frame of so many bytes, which ends three instructions behind its entry.
    fn write_leaf(&mut self, frame: u8) {
        //              sub $frame,%rsp         nop   add $frame,%rsp         ret
        self.write(LEAF, &[0x48, 0x83, 0xec, frame, 0x90, 0x48, 0x83, 0xc4, frame, 0xc3]);
    }

    /// The offsets of the frames of a thread that is at the nop of the leaf.
    fn walk(&mut self) -> Vec<u64> {
        let words = [0, START + CALLER + 5, START + OTHER + 5, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let mut gpr = [0; 16];
        gpr[X86_64::RSP] = STACK;
        let registers = Registers::X86_64(X86_64 { gpr, rip: START + LEAF + 4, fs_base: 0 });
        let Process { memory, images, made, unwinder, now_ns, reads } = self;
        let mut read = |at: Avma, into: &mut [u8]| {
            *reads += 1;
            let from = &memory[(at.0 - START) as usize..];
            let len = from.len().min(into.len());
            into[..len].copy_from_slice(&from[..len]);
            len
        };
        made.check(*now_ns, &mut read, |is_gone| unwinder.forget(is_gone));
        made.begin_walk();
        let mut frames = Frames::default();
        loop {
            let code = TargetCode { images: ImageCode(images), made };
            let input = walk::Input {
                stack_top: Some(Avma(STACK + 32)),
                max_depth: 16,
                ..walk::Input::new(StackBytes { base: Avma(STACK), bytes: &bytes }, &code)
            };
            walk::unwind(How::Auto, &registers, &input, unwinder, &mut frames);
            if !made.fill(&mut read) {
                break;
            }
        }
        frames.addresses.iter().map(|lookup| lookup.at().0 - START).collect()
    }

    fn reads(&mut self) -> usize {
        std::mem::take(&mut self.reads)
    }
}

/// A process with the leaf, and two functions that call it.
fn process() -> Process {
    let mut process = Process::new();
    process.write_leaf(8);
    for caller in [CALLER, OTHER] {
        // call; ret
        process.write(caller, &[0xe8, 0, 0, 0, 0, 0xc3]);
    }
    process
}

#[test]
fn code_that_stays_what_it_is_is_learned_once() {
    let mut process = process();
    let stack = process.walk();
    assert_eq!(stack[..2], [LEAF + 4, CALLER + 4]);
    let first = process.reads();
    // Where the stack ends is looked at in each walk.
    assert_eq!(process.walk(), stack);
    let known = process.reads();
    assert!(known < first, "{first} reads, then {known}");
    for _ in 0..3 {
        process.now_ns += KEPT_NS;
        assert_eq!(process.walk(), stack);
        let compared = process.reads() - known;
        assert!((1..=6).contains(&compared), "{compared} reads");
        assert_eq!((process.walk(), process.reads()), (stack.clone(), known), "nothing was learned again");
    }
}

#[test]
fn code_that_is_replaced_in_place_is_noticed() {
    let mut process = process();
    assert_eq!(process.walk()[..2], [LEAF + 4, CALLER + 4]);
    process.write_leaf(16);
    assert_eq!(process.walk()[..2], [LEAF + 4, CALLER + 4], "not before it is looked at");
    process.now_ns += KEPT_NS;
    assert_eq!(process.walk()[..2], [LEAF + 4, OTHER + 4]);
    // And back: what was learned since rests on what it was in between.
    process.write_leaf(8);
    process.now_ns += KEPT_NS;
    assert_eq!(process.walk()[..2], [LEAF + 4, CALLER + 4]);
}

#[test]
fn code_that_is_replaced_elsewhere_costs_what_rests_on_it_only() {
    let mut process = process();
    let stack = process.walk();
    process.write(OTHER + 0x2000, &[0x90]);
    process.now_ns += KEPT_NS;
    process.reads();
    assert_eq!(process.walk(), stack);
    process.reads();
    process.write(LEAF + 0x40, &[0x90]);
    process.now_ns += KEPT_NS;
    let before = process.walk();
    let all = process.reads();
    process.now_ns += KEPT_NS;
    assert_eq!((process.walk(), before), (stack.clone(), stack));
    let compared = process.reads();
    assert!(all > compared, "the leaf's block was read to be compared and to be learned: {all}, {compared}");
}
