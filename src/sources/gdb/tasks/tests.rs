//! A fake kernel in simulated memory.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;

use super::{Form, Lists, *};

const BASE: u64 = 0x2000_0000;
const CURRENT: u64 = BASE;
const RUNNING: u64 = BASE + 4;
const READY: u64 = BASE + 0x100;
const DELAYED: u64 = BASE + 0x200;
const TCBS: u64 = BASE + 0x1000;
const TCB_SPACE: u64 = 0x100;
const FORM: Form = Form {
    list_bytes: 20,
    number: 0,
    end: 8,
    next: 4,
    owner: 12,
    container: 16,
    item_bytes: 20,
    name: None,
    stack: None,
};

struct Memory {
    bytes: Vec<u8>,
    reads: usize,
}

impl Memory {
    fn new() -> Memory {
        Memory { bytes: vec![0; 0x8000], reads: 0 }
    }

    fn put(&mut self, at: u64, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            let at = (at - BASE) as usize + 4 * index;
            self.bytes[at..at + 4].copy_from_slice(&(*word as u32).to_le_bytes());
        }
    }

    fn read(&mut self, ranges: &[Range]) -> Result<Vec<Vec<u8>>, Infallible> {
        self.reads += 1;
        let one = |range: &Range| {
            let from = usize::try_from(range.at.wrapping_sub(BASE)).unwrap_or(usize::MAX);
            let bytes = self.bytes.get(from..).unwrap_or_default();
            bytes[..range.bytes.min(bytes.len())].to_vec()
        };
        Ok(ranges.iter().map(one).collect())
    }

    /// Writes a list and its tasks.
    fn list(&mut self, at: u64, tasks: &[u64]) {
        let end = at + FORM.end;
        let item = |task: u64| TCBS + task * TCB_SPACE + 8;
        let next = |index: usize| tasks.get(index).map_or(end, |task| item(*task));
        self.put(at, &[tasks.len() as u64, end, 0xffff_ffff, next(0), end]);
        for (index, task) in tasks.iter().enumerate() {
            let tcb = TCBS + task * TCB_SPACE;
            // One configuration-dependent word before the items, two behind priority and stack.
            self.put(tcb, &[BASE + 0x4000, 0, 7, next(index + 1), end, tcb, at]);
            self.put(tcb + 28, &[0, 0, 0, tcb, 0, 3, BASE + 0x3000, 0, 0]);
            let name = format!("task {task}\0");
            let at = (tcb + 64 - BASE) as usize;
            self.bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
    }
}

fn tasks(lists: &[(u64, usize)]) -> Tasks {
    let lists = lists.iter().map(|(at, count)| Lists { at: *at, count: *count }).collect();
    Tasks::new(Kernel { current: CURRENT, running: Some(RUNNING), lists, form: FORM })
}

fn names(tasks: &Tasks) -> Vec<&str> {
    tasks.known().iter().map(|task| &*task.name).collect()
}

fn update(tasks: &mut Tasks, memory: &mut Memory, now_ns: u64) -> bool {
    tasks.update(&mut |ranges: &[Range]| memory.read(ranges), now_ns).unwrap()
}

#[test]
fn tasks_are_those_of_all_lists_and_the_running_one() {
    let mut memory = Memory::new();
    memory.list(READY, &[2]);
    memory.list(READY + 20, &[0, 1, 5]);
    memory.list(DELAYED, &[4]);
    let mut tasks = tasks(&[(READY, 2), (DELAYED, 1)]);
    memory.put(CURRENT, &[TCBS + TCB_SPACE, 0]);
    assert!(!update(&mut tasks, &mut memory, 1));
    assert_eq!((tasks.current(), tasks.known()), (None, [].as_slice()), "no scheduler yet");
    memory.put(RUNNING, &[1]);
    assert!(update(&mut tasks, &mut memory, 2), "the running one is new");
    assert_eq!(names(&tasks), ["task 0", "task 1", "task 2", "task 4", "task 5"]);
    assert_eq!(tasks.current(), Some(TCBS + TCB_SPACE));
    let reads = memory.reads;
    assert!(!update(&mut tasks, &mut memory, 3));
    assert_eq!(memory.reads, reads + 1, "one question, which task runs");
}

#[test]
fn a_task_missing_twice_is_dropped() {
    let mut memory = Memory::new();
    memory.list(READY, &[0, 1]);
    memory.put(CURRENT, &[TCBS, 1]);
    let mut tasks = tasks(&[(READY, 1)]);
    assert!(update(&mut tasks, &mut memory, 0));
    memory.list(READY, &[0]);
    assert!(!update(&mut tasks, &mut memory, LIST_NS));
    assert_eq!(names(&tasks).len(), 2, "its list may have been in motion");
    assert!(update(&mut tasks, &mut memory, 2 * LIST_NS));
    assert_eq!(names(&tasks), ["task 0"]);
}

#[test]
fn names_are_found_by_debug_information() {
    let mut memory = Memory::new();
    memory.list(READY, &[0]);
    memory.put(CURRENT, &[TCBS, 1]);
    let mut tasks = tasks(&[(READY, 1)]);
    tasks.kernel.form.name = Some((64, 5));
    memory.bytes[(TCBS + 64 - BASE) as usize + 4] = 0;
    update(&mut tasks, &mut memory, 0);
    assert_eq!(names(&tasks), ["task"]);
    tasks.kernel.form.name = Some((u64::from(u32::MAX), 5));
    assert_eq!(tasks.name(TCBS, &[0; 32]), None);
}

#[test]
fn a_stack_pointer_is_on_the_nearest_stack_below_it() {
    let mut memory = Memory::new();
    memory.list(READY, &[0, 1, 2]);
    let stacks = [BASE + 0x3000, BASE + 0x3400, BASE + 0x3200];
    for (task, stack) in (0..).zip(stacks) {
        // Behind both items and the priority.
        memory.put(TCBS + task * TCB_SPACE + 8 + 2 * FORM.item_bytes + 4, &[stack]);
    }
    memory.put(CURRENT, &[TCBS, 1]);
    for stack in [None, Some(8 + 2 * FORM.item_bytes + 4)] {
        let mut tasks = tasks(&[(READY, 1)]);
        tasks.kernel.form.stack = stack;
        update(&mut tasks, &mut memory, 0);
        let owners = |sp: u64| {
            (0..3).filter(|task| tasks.is_on_stack_of(TCBS + task * TCB_SPACE, sp)).collect::<Vec<u64>>()
        };
        assert_eq!(
            [0x2ffc, 0x3000, 0x31fc, 0x3200, 0x3600].map(|at| owners(BASE + at)),
            [vec![], vec![0], vec![0], vec![2], vec![1]]
        );
    }
    // An impossible beginning of a stack.
    memory.put(TCBS + 8 + 2 * FORM.item_bytes + 4, &[0xffff_fff0]);
    let mut tasks = tasks(&[(READY, 1)]);
    update(&mut tasks, &mut memory, 0);
    assert!((0..3).all(|task| !tasks.is_on_stack_of(TCBS + task * TCB_SPACE, BASE + 0x3204)));
}

#[test]
fn malformed_lists_end() {
    // Lists that lead to themselves, to each other, to nothing, with impossible counts.
    for seed in 0..200 {
        let mut random = crate::rng::Rng::new(seed);
        let mut memory = Memory::new();
        for at in (0..0x4000).step_by(4) {
            let word = match random.below(4) {
                0 => BASE + random.below(0x4000) as u64,
                1 => READY + 20 * random.below(8) as u64,
                2 => random.below(64) as u64,
                _ => random.next(),
            };
            memory.put(BASE + at, &[word]);
        }
        memory.put(RUNNING, &[1]);
        let mut tasks = tasks(&[(READY, 8), (DELAYED, 1), (u64::MAX - 4, 1)]);
        update(&mut tasks, &mut memory, 0);
        assert!(tasks.known().len() <= TASKS_MAX && memory.reads < 2 * TASKS_MAX);
        let tcbs: Vec<u64> = tasks.known().iter().map(|task| task.tcb).collect();
        let saved = tasks.saved(&tcbs, true, &|_| true, &mut |ranges: &[Range]| memory.read(ranges));
        assert_eq!(saved.unwrap().len(), tcbs.len());
    }
    let mut memory = Memory::new();
    memory.list(READY, &[0]);
    memory.put(READY, &[0xffff_ffff]);
    memory.put(TCBS + 8 + FORM.next, &[TCBS + 8]);
    memory.put(CURRENT, &[TCBS, 1]);
    let mut tasks = tasks(&[(READY, 1)]);
    update(&mut tasks, &mut memory, 0);
    assert_eq!(names(&tasks), ["task 0"], "a list of one that is its own next");
    assert!(memory.reads < TASKS_MAX + 8, "{}", memory.reads);
}
