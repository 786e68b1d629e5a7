//! Facts that one process learned about a file are known in other processes that map it, and nothing else is.

use std::cell::Cell;

use super::*;
use crate::walk::FilePlace;

/// Start of the caller's code in a mapping, after the range that look-ups before an address may examine.
const CALLER: u64 = 0x80;
/// Its callee.
const CALLEE: u64 = 0xa0;
/// Another caller of that callee.
const OTHER_CALLER: u64 = 0xc0;
/// An address with an unusual row.
const UNUSUAL: u64 = 0xe0;
const MAPPED_BYTES: u64 = 0x140;
/// Distance of another mapping of the process from the start of this one.
const NEIGHBOUR: u64 = 0x1000;

/// A mapping of a file.
#[derive(Clone)]
struct Mapped {
    start: u64,
    image: u32,
    bytes: Vec<u8>,
}

/// A process's mappings, and the number of requests for them.
struct Process {
    mapped: Vec<Mapped>,
    queries: Cell<u32>,
}

impl Process {
    fn new(mapped: &[Mapped]) -> Process {
        Process { mapped: mapped.to_vec(), queries: Cell::new(0) }
    }

    fn find(&self, at: Avma) -> Option<(&Mapped, u64)> {
        self.mapped.iter().find_map(|mapped| {
            let offset = at.0.checked_sub(mapped.start)?;
            (offset < mapped.bytes.len() as u64).then_some((mapped, offset))
        })
    }

    fn ask(&self, at: Avma) -> Option<(&Mapped, u64)> {
        self.queries.set(self.queries.get() + 1);
        self.find(at)
    }
}

impl Code for Process {
    fn is_code(&self, at: Avma) -> bool {
        self.ask(at).is_some()
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        let (mapped, offset) = self.ask(at)?;
        mapped.bytes.get(offset as usize..)
    }
    fn row(&self, lookup: Avma) -> Option<AnyRow> {
        let (_, offset) = self.ask(lookup)?;
        let mut row: Row = Row::new(Cfa::Register(10, 16));
        row.columns[RETURN_ADDRESS] = Column::At(-8);
        (offset == UNUSUAL).then(|| row.into())
    }
    fn file_place(&self, at: Avma) -> Option<FilePlace> {
        let (mapped, _) = self.find(at)?;
        let range = Avma(mapped.start)..Avma(mapped.start + mapped.bytes.len() as u64);
        Some(FilePlace { image: mapped.image, file_offset: 0x2000, mapped: range })
    }
}

/// Two functions that call a third one, which consists of these bytes.
fn file(image: u32, start: u64, callee: &[u8]) -> Mapped {
    let mut bytes = vec![0xcc; MAPPED_BYTES as usize];
    let mut put = |at: u64, code: &[u8]| bytes[at as usize..][..code.len()].copy_from_slice(code);
    // sub $8,%rsp; call; add $8,%rsp; ret
    put(CALLER, &[0x48, 0x83, 0xec, 0x08, 0xe8, 0x17, 0, 0, 0, 0x48, 0x83, 0xc4, 0x08, 0xc3]);
    put(CALLEE, callee);
    // push %rbx; call; pop %rbx; ret
    put(OTHER_CALLER, &[0x53, 0xe8, 0xda, 0xff, 0xff, 0xff, 0x5b, 0xc3]);
    // call *%rax; ret
    put(UNUSUAL - 1, &[0xff, 0xd0, 0xc3]);
    Mapped { start, image, bytes }
}

/// xor %eax,%eax; ret
const RETURNS: &[u8] = &[0x31, 0xc0, 0xc3];
/// jmp to the neighbour's first instruction
const JUMPS_AWAY: &[u8] = &[0xe9, 0x5b, 0x0f, 0, 0];

/// Program counters and return addresses of a process.
fn addresses(start: u64) -> Vec<CodeAddress> {
    let pcs = [CALLER, CALLER + 4, CALLER + 9, CALLER + 13, CALLEE, CALLEE + 2, OTHER_CALLER + 1];
    let returns = [CALLER + 9, OTHER_CALLER + 6, UNUSUAL + 1];
    let pcs = pcs.into_iter().map(|at| CodeAddress::Pc(Avma(start + at)));
    pcs.chain(returns.into_iter().map(|at| CodeAddress::Return(Avma(start + at)))).collect()
}

/// All facts of a cache about the addresses of a file, and the number of requests for them.
fn learned(cache: &mut Cache, process: &Process, start: u64) -> (Vec<String>, u32) {
    process.queries.set(0);
    let rules = addresses(start).into_iter().map(|address| {
        let rule = cache.rule(address, process);
        let kept = cache.kept(rule).cloned();
        let saved = rule.is_ordinary().then(|| cache.saved(address, process));
        let rule = if kept.is_some() { rule.with_row(0) } else { rule };
        format!("{rule:?} {saved:?} {kept:?}")
    });
    (rules.collect(), process.queries.get())
}

/// The caches of two processes that share their facts.
fn two() -> (Cache, Cache) {
    let shared = Shared::default();
    (Cache::new(&shared), Cache::new(&shared))
}

const HERE: u64 = 0x5555_0000_0000;
const THERE: u64 = 0x7f12_3456_7000;

#[test]
fn a_second_process_learns_nothing_about_the_same_file() {
    let (mut first, mut second) = two();
    let (rules, queries) = learned(&mut first, &Process::new(&[file(1, HERE, RETURNS)]), HERE);
    assert!(queries > 100, "{queries}");
    assert!(rules.iter().any(|rules| rules.contains("StackPointer") || rules.contains("Rule(")));
    let process = Process::new(&[file(1, THERE, RETURNS)]);
    assert_eq!(learned(&mut second, &process, THERE), (rules.clone(), 0));
    // Its images changed, as for each loaded library.
    second.clear();
    assert_eq!(learned(&mut second, &process, THERE), (rules, 0));
}

#[test]
fn a_file_that_is_mapped_twice_is_learned_once() {
    let (mut cache, _) = two();
    let process = Process::new(&[file(1, HERE, RETURNS), file(1, THERE, RETURNS)]);
    let (rules, queries) = learned(&mut cache, &process, HERE);
    assert!(queries > 100, "{queries}");
    assert_eq!(learned(&mut cache, &process, THERE), (rules, 0));
}

#[test]
fn another_file_and_another_part_of_it_are_learned_separately() {
    let (mut first, mut second) = two();
    let (rules, _) = learned(&mut first, &Process::new(&[file(1, HERE, RETURNS)]), HERE);
    // The same bytes, in a file that replaced the first.
    let (same, queries) = learned(&mut second, &Process::new(&[file(2, THERE, RETURNS)]), THERE);
    assert!(same == rules && queries > 100, "{queries}");
    second.clear();
    let shorter =
        Mapped { bytes: file(1, THERE, RETURNS).bytes[..0x100].to_vec(), ..file(1, THERE, RETURNS) };
    let (same, queries) = learned(&mut second, &Process::new(&[shorter]), THERE);
    assert!(same == rules && queries > 100, "{queries}");
}

#[test]
fn facts_that_depend_on_other_mappings_are_learned_in_each_process() {
    let neighbour =
        |start: u64, bytes: &[u8]| Mapped { start: start + NEIGHBOUR, image: 9, bytes: bytes.to_vec() };
    let (mut first, mut second) = two();
    // In the first process the callee returns, in the second its jump target is unmapped.
    let with = Process::new(&[file(1, HERE, JUMPS_AWAY), neighbour(HERE, &[0xc3])]);
    let without = Process::new(&[file(1, THERE, JUMPS_AWAY)]);
    let (rules, _) = learned(&mut first, &with, HERE);
    let (alone, _) = learned(&mut Cache::default(), &without, THERE);
    assert_ne!(rules, alone, "or this shows nothing");
    assert_eq!(learned(&mut second, &without, THERE).0, alone);
    // The reverse.
    let (mut first, mut second) = two();
    assert_eq!(learned(&mut first, &without, THERE).0, alone);
    assert_eq!(learned(&mut second, &with, HERE).0, rules);
}

#[test]
fn rows_since_a_call_are_known_in_the_second_process() {
    let (mut first, mut second) = two();
    let at = |start: u64, into: u64| CodeAddress::Pc(Avma(start + into));
    let process = Process::new(&[file(1, HERE, RETURNS)]);
    let row = first.by_calls.row(Avma(HERE + CALLER), at(HERE, CALLER + 9), &process).cloned();
    assert!(row.as_ref().is_some_and(|row| row.cfa == Cfa::Register(7, 16)), "{row:?}");
    let again = Process::new(&[file(1, THERE, RETURNS)]);
    assert_eq!(second.by_calls.row(Avma(THERE + CALLER), at(THERE, CALLER + 9), &again).cloned(), row);
    assert_eq!(again.queries.get(), 0);
    // By another entry the row is different.
    let other = second.by_calls.row(Avma(THERE + CALLER + 4), at(THERE, CALLER + 9), &again).cloned();
    assert!(other.is_some_and(|row| row.cfa == Cfa::Register(7, 8)) && again.queries.get() > 0);
}

#[test]
fn callees_in_files_are_followed_once() {
    let (mut first, mut second) = two();
    let returns = |cache: &mut Cache, process: &Process, start: u64| {
        cache.callees.clear();
        cache.callees.returns::<X86_64>(Avma(start + CALLEE), process)
    };
    let process = Process::new(&[file(1, HERE, RETURNS)]);
    assert!(returns(&mut first, &process, HERE) && process.queries.get() > 0);
    let again = Process::new(&[file(1, THERE, RETURNS)]);
    assert!(returns(&mut second, &again, THERE));
    assert_eq!(again.queries.get(), 0);
    // Facts that depend on another mapping are not shared.
    let neighbour = Mapped { start: HERE + NEIGHBOUR, image: 9, bytes: vec![0xc3] };
    let with = Process::new(&[file(2, HERE, JUMPS_AWAY), neighbour]);
    let without = Process::new(&[file(2, THERE, JUMPS_AWAY)]);
    assert!(returns(&mut first, &with, HERE));
    assert!(!returns(&mut second, &without, THERE));
    assert!(returns(&mut first, &with, HERE));
}
