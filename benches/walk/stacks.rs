//! The stacks that are walked. Recorded: of this bench's own work, which keeps frame
//! records, and of perl, which like most distributed programs does not. Composed: random call
//! sites of the same code, one above the other, with the registers that their rows say are
//! saved. Output: sets of stacks with the images they need.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::linux::Walker;
use object::{Object, ObjectSection, ObjectSegment};
use stackprof::addr::Avma;
use stackprof::arch::{Registers, X86_64};
use stackprof::binary::frame_rule::{AnyRow, Cfa, Column, RETURN_ADDRESS, Row};
use stackprof::binary::{ImageBytes, Mapping, OpenError};
use stackprof::clock::{Clock, RealClock};
use stackprof::images::Images;
use stackprof::sources::{Capture, Fault, Observed, StopOutcome, Target, TargetEvent, linux};
use stackprof::walk::Code;

/// The argument that makes this program the recorded one.
pub(super) const WORK: &str = "--work";
/// How long a recorded program runs, at most.
const WORK_FOR: Duration = Duration::from_secs(3);
const RECORDED: usize = 48;
const STACK_BYTES: usize = 128 << 10;
const SEED: u64 = 88_172_645_463_325_252;
/// Call sites in a set that fits into framehop's cache.
const SITES: usize = 160;
/// Places of framehop's cache, which an address has by its remainder.
const FRAMEHOP_PLACES: u64 = 509;
const PAGE_BYTES: u64 = 4096;
const STACK: u64 = 0x7ffd_0000_0000;
const RBP: u8 = X86_64::RBP as u8;
const RSP: u8 = X86_64::RSP as u8;

/// A copied stack and the registers that belong to it.
#[derive(Clone)]
pub(super) struct Stack {
    pub base: Avma,
    pub bytes: Vec<u8>,
    pub registers: Registers,
    /// Stack pointer at the thread's first instruction, where it is known.
    pub top: Option<Avma>,
}

/// Stacks that are walked one after the other.
pub(super) struct Set {
    pub name: String,
    pub stacks: Vec<Stack>,
    /// All its code keeps frame records.
    pub records: bool,
    /// Everything learned is forgotten before each pass.
    pub cold: bool,
}

/// A mapped file.
pub(super) struct Module {
    pub bias: u64,
    pub mapping: Mapping,
    pub bytes: Vec<u8>,
}

/// A process: its code, and stacks if it was recorded.
pub(super) struct Program {
    name: &'static str,
    pub images: Images,
    pub modules: Vec<Module>,
    recorded: Vec<Stack>,
}

/// This process itself, of whose code stacks are composed.
pub(super) fn own() -> Program {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mapping = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, flags, offset, _, inode, path] = fields[..] else { return None };
        let (start, end) = range.split_once('-')?;
        (flags.contains('x') && path.starts_with('/')).then(|| {
            Mapping::of_file(
                Avma(number(start))..Avma(number(end)),
                number(offset),
                path,
                (1, inode.parse().unwrap()),
            )
        })
    };
    let mappings: Vec<Mapping> = maps.lines().filter_map(mapping).collect();
    Program::new("own", &mappings, &mut |mapping| Ok(ImageBytes::new(std::fs::read(&mapping.path)?)))
}

/// Programs recorded now; those that cannot be are said to be skipped.
pub(super) fn recorded() -> Vec<Program> {
    linux::prepare();
    let sorts = "alarm 3; sub f { my $n = shift; return 1 if $n < 1; \
                 my @x = sort { f($n - 1); $a <=> $b } 3, 1, 2; scalar @x } f(4 + $_ % 3) for 1 .. 1e9;";
    let own = std::env::current_exe().unwrap().into_os_string();
    let commands =
        [("rust", vec![own, WORK.into()]), ("perl", vec!["perl".into(), "-e".into(), sorts.into()])];
    let mut programs = Vec::new();
    for (name, command) in commands {
        match record(name, &command) {
            Ok(program) => programs.push(program),
            Err(why) => println!("SKIP recorded {name}: {why}"),
        }
    }
    programs
}

fn record(name: &'static str, command: &[OsString]) -> Result<Program, String> {
    let clock = RealClock::new();
    let source = linux::Source::Launch(linux::Launch {
        words: command.to_vec(),
        account: None,
        environment: Vec::new(),
    });
    let recorded = linux::with_target(&source, clock.clone(), |target| {
        let mut recorded = Vec::new();
        let mut threads = Vec::new();
        let mut random = Random(SEED);
        // Behind the loading of libraries.
        let mut until_ns = clock.now_ns() + 300_000_000;
        let give_up_ns = clock.now_ns() + WORK_FOR.as_nanos() as u64;
        let mut capture = Capture::with_capacity(STACK_BYTES);
        let text = |fault: Fault| fault.to_string();
        while recorded.len() < RECORDED && clock.now_ns() < give_up_ns {
            while target.next(until_ns, &mut capture).map_err(text)? != TargetEvent::Timeout {}
            target.threads(&mut threads);
            let Some(&(thread, top)) = threads.first() else { break };
            target.interrupt(thread, STACK_BYTES, true).map_err(text)?;
            let wait_ns = clock.now_ns() + 100_000_000;
            loop {
                let event = target.next(wait_ns, &mut capture).map_err(text)?;
                if let TargetEvent::Stopped { outcome: StopOutcome::Captured, .. } = event {
                    let (base, registers) = (capture.stack_base, capture.registers);
                    recorded.push(Stack { base, bytes: capture.stack.clone(), registers, top });
                }
                if matches!(event, TargetEvent::Timeout | TargetEvent::Stopped { .. }) {
                    break;
                }
            }
            until_ns = clock.now_ns() + 1_000_000 + random.below(2_000_000);
        }
        let mut mappings = Vec::new();
        target.mappings(&mut mappings).map_err(text)?;
        let program = Program::new(name, &mappings, &mut |mapping| target.image_bytes(mapping));
        Ok::<_, String>(Program { recorded, ..program })
    });
    let program = recorded.map_err(|error| error.to_string())??;
    if program.recorded.is_empty() { Err("it had ended".to_owned()) } else { Ok(program) }
}

/// What the recorded Rust program does: evaluates an expression by recursion, sorts, formats.
pub(super) fn work() {
    enum Term {
        Leaf(u64),
        Sum(Vec<Term>),
        Sorted(Box<Term>),
    }
    fn grow(random: &mut Random, depth: u64) -> Term {
        match random.below(4) {
            _ if depth == 0 => Term::Leaf(random.below(99)),
            0 => Term::Sorted(Box::new(grow(random, depth.saturating_sub(4)))),
            _ => Term::Sum((0..2).map(|_| grow(random, depth - 1)).collect()),
        }
    }
    fn evaluate(term: &Term) -> u64 {
        match term {
            Term::Leaf(value) => *value,
            Term::Sum(terms) => terms.iter().map(evaluate).fold(0, u64::wrapping_add),
            Term::Sorted(term) => {
                let mut words: Vec<String> = (0..4).map(|index| format!("{:x}", 977 * index % 64)).collect();
                words.sort_by_cached_key(|word| word.len() as u64 + evaluate(term) % 7);
                words.iter().map(|word| word.len() as u64).sum()
            }
        }
    }
    let begun = Instant::now();
    let mut random = Random(SEED);
    while begun.elapsed() < WORK_FOR {
        let depth = 4 + random.below(7);
        black_box(evaluate(&grow(&mut random, depth)));
    }
}

impl Set {
    fn new(name: &str, stacks: Vec<Stack>) -> Set {
        Set { name: name.to_owned(), stacks, records: false, cold: false }
    }

    /// Who can walk it.
    pub(super) fn walkers(&self) -> &'static [Walker] {
        if self.records { Walker::ALL } else { &Walker::ALL[..2] }
    }
}

impl Program {
    fn new(
        name: &'static str,
        mappings: &[Mapping],
        bytes: &mut dyn FnMut(&Mapping) -> Result<ImageBytes, OpenError>,
    ) -> Program {
        let mut images = Images::default();
        images.update(0, mappings, bytes);
        let mut module = |mapping: &Mapping| {
            let bytes = bytes(mapping).ok()?.bytes().to_vec();
            let file = object::File::parse(&*bytes).ok()?;
            // Mappings begin at the page that their segment begins in.
            let holds = |segment: &object::Segment<'_, '_>| {
                segment.file_range().0 & !(PAGE_BYTES - 1) == mapping.file_offset
            };
            let segment = file.segments().find(holds)?;
            let svma = (segment.address() + mapping.file_offset).wrapping_sub(segment.file_range().0);
            Some(Module { bias: mapping.avma.start.0.wrapping_sub(svma), mapping: mapping.clone(), bytes })
        };
        let modules = mappings.iter().filter_map(&mut module).collect();
        Program { name, images, modules, recorded: Vec::new() }
    }

    /// The recorded stacks that `keep` keeps.
    pub(super) fn recorded_set(&self, mut keep: impl FnMut(&Stack) -> bool) -> Set {
        let stacks: Vec<Stack> = self.recorded.iter().filter(|stack| keep(stack)).cloned().collect();
        let (kept, all) = (stacks.len(), self.recorded.len());
        assert!(2 * kept > all, "{}: both walk only {kept} of {all} recorded stacks alike", self.name);
        let name = format!("recorded {}, {kept} of {all}", self.name);
        Set::new(&name, stacks)
    }

    /// Sets composed of this program's code, of call sites that `is_whole` agrees to (asked
    /// with a stack of one that calls itself, deeper than start code is, and whether it keeps a
    /// frame record): walks through some code, such as that of longjmp, are never complete.
    pub(super) fn composed_sets(&self, is_whole: &mut dyn FnMut(&Stack, bool) -> bool) -> Vec<Set> {
        let mut sets = Vec::new();
        let (start, mut random) = (self.start(), Random(SEED));
        let mut sites = self.sites();
        sites.retain(|site| {
            is_whole(&compose(&[site; 8], start, &mut random), site.row.cfa == Cfa::Register(RBP, 16))
        });
        let (mut records, mut frameless) = (Vec::new(), Vec::new());
        for site in &sites {
            if site.row.cfa == Cfa::Register(RBP, 16) { records.push(site) } else { frameless.push(site) }
        }
        let mut random = Random(SEED);
        for depth in [2, 10, 40] {
            let frameless = without_collisions(&frameless, self.start(), &mut random);
            let stacks = self.compose(&frameless, 8, depth, &mut random);
            sets.push(Set::new("saved registers", stacks));
            let records = without_collisions(&records, self.start(), &mut random);
            let stacks = self.compose(&records, 8, depth, &mut random);
            sets.push(Set { records: true, ..Set::new("frame records", stacks) });
        }
        let sites: Vec<&Site> = sites.iter().collect();
        sets.push(Set::new("any, many addresses", self.compose(&sites, 64, 40, &mut random)));
        let stacks = self.compose(&sites, 8, 40, &mut random);
        sets.push(Set { cold: true, ..Set::new("any, caches empty", stacks) });
        sets
    }

    /// Every call whose return address has an ordinary row.
    fn sites(&self) -> Vec<Site> {
        let mut sites = BTreeMap::new();
        for module in &self.modules {
            let file = object::File::parse(&*module.bytes).unwrap();
            let Some(text) = file.section_by_name(".text") else { continue };
            let (start, text) = (module.bias + text.address(), text.data().unwrap());
            for (at, call) in text.windows(5).enumerate() {
                let to = i64::from(i32::from_le_bytes(call[1..].try_into().unwrap()));
                let leads_into_text = usize::try_from(at as i64 + 5 + to).is_ok_and(|to| to < text.len());
                let address = start + at as u64 + 5;
                if call[0] == 0xe8
                    && leads_into_text
                    && let Some(AnyRow::X86_64(row)) = self.images.of(0).row(Avma(address - 1))
                    && is_ordinary(&row)
                {
                    sites.insert(address, Site { address, row: *row });
                }
            }
        }
        sites.into_values().collect()
    }

    /// Stacks of random sites, from a leaf at a call down to `_start`.
    fn compose(&self, sites: &[&Site], count: usize, depth: usize, random: &mut Random) -> Vec<Stack> {
        let start = self.start();
        (0..count)
            .map(|_| {
                let chosen: Vec<&Site> =
                    (1..depth).map(|_| sites[random.below(sites.len() as u64) as usize]).collect();
                compose(&chosen, start, random)
            })
            .collect()
    }

    /// The address that `_start`'s call of the C library would return to. It calls through
    /// memory: ff 15.
    fn start(&self) -> u64 {
        let first = self.modules.iter().find(|module| !module.mapping.path.contains(".so")).unwrap();
        let file = object::File::parse(&*first.bytes).unwrap();
        let entry = file.entry();
        let text = file.section_by_name(".text").unwrap();
        let code = text.data_range(entry, 64).unwrap().unwrap();
        let call =
            code.windows(2).position(|call| call == [0xff, 0x15]).expect("_start calls through memory");
        first.bias + entry + call as u64 + 6
    }
}

/// A call: the address that it returns to, and the row there.
struct Site {
    address: u64,
    row: Row,
}

/// Whether a frame can be composed by a row: the CFA on rsp, or a frame record.
fn is_ordinary(row: &Row) -> bool {
    let saved = |register: usize| matches!(row.columns[register], Column::At(at) if (-512..-8).contains(&at));
    let kept = |register: usize| row.columns[register] == Column::Same || saved(register);
    let on_stack_pointer =
        matches!(row.cfa, Cfa::Register(RSP, size) if (16..1024).contains(&size) && size % 8 == 0);
    let is_record = row.cfa == Cfa::Register(RBP, 16) && row.columns[RBP as usize] == Column::At(-16);
    !row.signal
        && row.columns[RETURN_ADDRESS] == Column::At(-8)
        && (on_stack_pointer || is_record)
        && (0..RETURN_ADDRESS).all(kept)
}

/// Random sites, no two of which have the same place in framehop's cache, nor that of `start`.
fn without_collisions<'a>(sites: &[&'a Site], start: u64, random: &mut Random) -> Vec<&'a Site> {
    let place = |address: u64| (address - 1) % FRAMEHOP_PLACES;
    let mut places = BTreeMap::new();
    for _ in 0..20 * SITES {
        let site = sites[random.below(sites.len() as u64) as usize];
        if places.len() < SITES && place(site.address) != place(start) {
            places.entry(place(site.address)).or_insert(site);
        }
    }
    places.into_values().collect()
}

/// A stack on which each site called the one before it, and `start` called the last.
fn compose(sites: &[&Site], start: u64, random: &mut Random) -> Stack {
    // From the leaf up: where each frame begins and ends.
    let mut ends = Vec::new();
    let mut end = 0;
    for site in sites {
        end += match site.row.cfa {
            Cfa::Register(RSP, size) => size as u64,
            _ => 32 + 8 * random.below(24),
        };
        ends.push(end);
    }
    let mut words: Vec<u64> = (0..end / 8 + 8).map(|_| random.below(1 << 40)).collect();
    // From the root down: what each frame keeps in rbp.
    let mut rbp = 0;
    for (index, site) in sites.iter().enumerate().rev() {
        let end = ends[index];
        let mut put = |at: i64, word: u64| words[(end.wrapping_add_signed(at) / 8) as usize] = word;
        put(-8, sites.get(index + 1).map_or(start, |caller| caller.address));
        let is_record = site.row.cfa == Cfa::Register(RBP, 16);
        if let Column::At(at) = site.row.columns[RBP as usize] {
            put(at, rbp);
            rbp = if is_record { STACK + end - 16 } else { random.below(1 << 40) };
        }
    }
    let mut registers = X86_64 { rip: sites[0].address - 1, ..X86_64::default() };
    registers.gpr[X86_64::RSP] = STACK;
    registers.gpr[X86_64::RBP] = rbp;
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Stack { base: Avma(STACK), bytes, registers: Registers::X86_64(registers), top: None }
}

/// Random numbers by xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
