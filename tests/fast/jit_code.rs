//! JIT code: cached analysis is valid while its bytes are unchanged, and code that is replaced in place is
//! walked by its new content.

use stackprof::addr::Avma;
use stackprof::arch::{Registers, X86_64};
use stackprof::binary::{Mapping, OpenError};
use stackprof::images::{CodeMemory, Images, JitCode, RECHECK_INTERVAL_NS, TargetCode};
use stackprof::walk::{self, Frames, StackBytes, StackEnd, UnwindMethod, Unwinder, WalkResult};

const START: u64 = 0x7000_0000_0000;
const BYTES: usize = 64 << 10;
const STACK: u64 = 0x7fff_0000_1000;
/// Offsets of functions, far enough apart for separate blocks.
const LEAF: u64 = 0x100;
const CALLER: u64 = 0x5000;
const OTHER: u64 = 0xa000;

/// A process with only JIT code.
struct Process {
    memory: Vec<u8>,
    images: Images,
    jit: JitCode,
    unwinder: Unwinder,
    now_ns: u64,
    reads: usize,
    read_bytes: usize,
}

impl Process {
    fn new() -> Process {
        let mapping = Mapping::anonymous(Avma(START)..Avma(START + BYTES as u64));
        let (mut images, mut jit) = (Images::default(), JitCode::default());
        let mappings = [mapping];
        images.update(0, &mappings, &mut |_| Err(OpenError::Anonymous));
        jit.update(0, &mappings, &images);
        let memory = vec![0xcc; BYTES];
        Process { memory, images, jit, unwinder: Unwinder::default(), now_ns: 1, reads: 0, read_bytes: 0 }
    }

    fn write(&mut self, at: u64, code: &[u8]) {
        self.memory[at as usize..at as usize + code.len()].copy_from_slice(code);
    }

    /// Writes a function with a frame of this size, which ends three instructions after its entry.
    fn write_leaf(&mut self, frame: u8) {
        //              sub $frame,%rsp         nop   add $frame,%rsp         ret
        self.write(LEAF, &[0x48, 0x83, 0xec, frame, 0x90, 0x48, 0x83, 0xc4, frame, 0xc3]);
    }

    /// The offsets of the frames of a thread at the leaf's nop.
    fn walk(&mut self) -> Vec<u64> {
        self.walk_at(LEAF + 4, &[0, START + CALLER + 5, START + OTHER + 5, 0], u64::MAX).0
    }

    /// Like `walk`, for a thread at `pc` with these words on its stack and this budget; also returns why the
    /// walk ended.
    fn walk_at(&mut self, pc: u64, words: &[u64], budget: u64) -> (Vec<u64>, WalkResult) {
        let bytes: Vec<u8> = words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let mut gpr = [0; 16];
        gpr[X86_64::RSP] = STACK;
        let registers = Registers::X86_64(X86_64 { gpr, rip: START + pc, fs_base: 0 });
        let Process { memory, images, jit, unwinder, now_ns, reads, read_bytes } = self;
        let mut read = |at: Avma, into: &mut [u8]| {
            *reads += 1;
            *read_bytes += into.len();
            let from = &memory[(at.0 - START) as usize..];
            let len = from.len().min(into.len());
            into[..len].copy_from_slice(&from[..len]);
            len
        };
        jit.check(*now_ns, &mut read, |is_gone| unwinder.forget(is_gone));
        jit.begin_walk(budget);
        let mut frames = Frames::default();
        let walked = loop {
            let memory = CodeMemory::new(&mut read);
            let code = TargetCode { images: images.of(0), jit, memory: Some(&memory) };
            let input = walk::Input {
                stack_top: Some(Avma(STACK + 32)),
                max_depth: 16,
                ..walk::Input::new(StackBytes { base: Avma(STACK), bytes: &bytes }, &code)
            };
            match walk::unwind(UnwindMethod::Auto, &registers, &input, unwinder, &mut frames) {
                Ok(walked) => break walked,
                Err(needs) => jit.read(needs, &mut read),
            }
        };
        (frames.addresses.iter().map(|lookup| lookup.at().0 - START).collect(), walked)
    }

    fn reads(&mut self) -> usize {
        std::mem::take(&mut self.reads)
    }
}

/// A process with the leaf and two functions that call it.
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
fn unchanged_code_is_analysed_once() {
    let mut process = process();
    let stack = process.walk();
    assert_eq!(stack[..2], [LEAF + 4, CALLER + 4]);
    let first = process.reads();
    // The end of the stack is examined in each walk.
    assert_eq!(process.walk(), stack);
    let known = process.reads();
    assert!(known < first, "{first} reads, then {known}");
    for _ in 0..3 {
        process.now_ns += RECHECK_INTERVAL_NS;
        assert_eq!(process.walk(), stack);
        let compared = process.reads() - known;
        assert!((1..=6).contains(&compared), "{compared} reads");
        assert_eq!((process.walk(), process.reads()), (stack.clone(), known), "nothing was learned again");
    }
}

#[test]
fn code_replaced_in_place_is_noticed() {
    let mut process = process();
    assert_eq!(process.walk()[..2], [LEAF + 4, CALLER + 4]);
    process.write_leaf(16);
    assert_eq!(process.walk()[..2], [LEAF + 4, CALLER + 4], "not before it is looked at");
    process.now_ns += RECHECK_INTERVAL_NS;
    assert_eq!(process.walk()[..2], [LEAF + 4, OTHER + 4]);
    // And back: analysis since then depends on the code in between.
    process.write_leaf(8);
    process.now_ns += RECHECK_INTERVAL_NS;
    assert_eq!(process.walk()[..2], [LEAF + 4, CALLER + 4]);
}

#[test]
fn replaced_code_invalidates_only_its_dependents() {
    let mut process = process();
    let stack = process.walk();
    process.write(OTHER + 0x2000, &[0x90]);
    process.now_ns += RECHECK_INTERVAL_NS;
    process.reads();
    assert_eq!(process.walk(), stack);
    process.reads();
    process.write(LEAF + 0x40, &[0x90]);
    process.now_ns += RECHECK_INTERVAL_NS;
    let before = process.walk();
    let all = process.reads();
    process.now_ns += RECHECK_INTERVAL_NS;
    assert_eq!((process.walk(), before), (stack.clone(), stack));
    let compared = process.reads();
    assert!(all > compared, "the leaf's block was read to be compared and to be learned: {all}, {compared}");
}

/// As if all of memory is executable: a stack of pointers to data, each a potential return address.
#[test]
fn words_other_than_return_addresses_are_not_followed() {
    let mut process = process();
    // ud2: nothing follows.
    process.write(LEAF, &[0x0f, 0x0b]);
    let words: Vec<u64> = (0..400).map(|word| START + 0x1000 + word * 0x75).collect();
    let (frames, _) = process.walk_at(LEAF, &words, u64::MAX);
    assert_eq!(frames, [LEAF]);
    let (reads, bytes) = (process.reads(), std::mem::take(&mut process.read_bytes));
    assert!(bytes < 400 * 64 + 64 * 1024, "{bytes} bytes in {reads} reads");
    // A repetition requests nothing.
    let (frames, _) = process.walk_at(LEAF, &words, u64::MAX);
    assert_eq!((frames, process.reads()), (vec![LEAF], 0));
    // After a call it is a return address, and so is the return point of a signal handler.
    process.now_ns += RECHECK_INTERVAL_NS;
    process.write_leaf(8);
    process.write(OTHER + 0x40, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]);
    let words = [0, START + CALLER + 5, START + OTHER + 0x40, 0];
    let (frames, _) = process.walk_at(LEAF + 4, &words, u64::MAX);
    assert_eq!(frames[..3], [LEAF + 4, CALLER + 4, OTHER + 0x40]);
}

#[test]
fn without_budget_a_walk_ends_at_unknown_code() {
    let mut process = process();
    let words = [0, START + CALLER + 5, START + OTHER + 5, 0];
    let (frames, walked) = process.walk_at(LEAF + 4, &words, 0);
    assert_eq!((frames, process.jit.end_round()), (vec![LEAF + 4], (0, true)));
    assert_ne!(walked.ended, StackEnd::Root);
    // Enough for the leaf, but not for its caller: nothing replaces it.
    let whole = process.walk();
    let (all, _) = process.jit.end_round();
    let mut ended_at = Vec::new();
    for budget in 0..all {
        let mut fresh = self::process();
        let (frames, _) = fresh.walk_at(LEAF + 4, &words, budget);
        assert_eq!(frames, whole[..frames.len()], "with {budget}");
        let (_, over) = fresh.jit.end_round();
        assert!(over || frames.len() == whole.len(), "with {budget}");
        ended_at.push(frames.len());
        // Known code costs nothing.
        assert_eq!(fresh.walk_at(LEAF + 4, &words, u64::MAX).0, whole);
        assert_eq!(fresh.walk_at(LEAF + 4, &words, 0).0, whole);
    }
    assert!(ended_at.contains(&1) && ended_at.is_sorted(), "{ended_at:?}");
}

/// A stack search follows calls to where the walk is stuck, which is unproductive in code that keeps its
/// frames elsewhere, and costs as much at each new program counter.
#[test]
fn unproductive_calls_are_followed_less() {
    const ENTRIES: u64 = 0x1000;
    const CALLS: u64 = 0x3000;
    const STUCK: u64 = 0x8000;
    let mut process = Process::new();
    process.write(ENTRIES, &[0x90; 0x400]);
    process.write(ENTRIES + 0x400, &[0xc3]);
    let mut words = Vec::new();
    for call in 0..32 {
        let (at, entry) = (CALLS + 5 * call, ENTRIES + 8 * call);
        let distance = (entry as i32 - (at as i32 + 5)).to_le_bytes();
        process.write(at, &[&[0xe8], &distance[..], &[0x0f, 0x0b]].concat());
        // The following ones overwrite the code behind it: each is still a return address.
        words.push(START + at + 5);
    }
    let mut cost = Vec::new();
    for number in 0..160 {
        process.write(STUCK + 2 * number, &[0x0f, 0x0b]);
        process.walk_at(STUCK + 2 * number, &words, u64::MAX);
        cost.push(process.jit.end_round().0);
    }
    // The rest check whether it has become productive.
    let cheap = cost[80..].iter().filter(|now| **now * 4 < cost[1]).count();
    assert!(cheap >= 70, "{cost:?}");
}
