//! Tasks of FreeRTOS behind a stub that does not know them (QEMU, OpenOCD without `-rtos`): their list and
//! names, the running one, and the registers of the others.
//!
//! `Tasks` reads them, `Port` finds the saved registers of one, `Kernel` the variables and the layout of lists.
//!
//! Input: the kernel's variables (`Kernel`) and the memory of a stopped target; hostile, so lists are bounded, and
//! invalid ones are ignored. Output: tasks and registers. A list being changed at a stop may lack some: a task is
//! dropped when it is missing twice.

#[cfg(test)]
mod tests;

use super::memory::Range;
use crate::arch::Arm;
use crate::binary::elf::functions;

/// Most tasks.
const TASKS_MAX: usize = 512;
/// Most lists to walk: more than any configuration has priorities.
const LISTS_MAX: usize = 512;
/// Bytes of a task control block to search for its name.
const TCB_BYTES: usize = 256;
/// Longest name (`configMAX_TASK_NAME_LEN` is 16 unless configured).
const NAME_BYTES_MAX: usize = 64;
/// Word offsets behind the items of a task control block: priority, stack (`pxStack`), and
/// configuration-dependent members before the name.
const STACK_WORD: usize = 1;
const WORDS_BEFORE_NAME: usize = 2;
const MORE_WORDS_BEFORE_NAME: usize = 8;
/// Interval of reading all lists, nanoseconds.
const LIST_NS: u64 = 100_000_000;
/// Most consecutive lists that a known task may be missing from.
const MISSING_MAX: u8 = 1;

/// Reads memory: each range up to the first unreadable byte.
pub(super) type Read<'r, E> = dyn FnMut(&[Range]) -> Result<Vec<Vec<u8>>, E> + 'r;

/// A task, by the address of its control block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) tcb: u64,
    pub(super) name: String,
    /// Lowest address of its stack, if known.
    stack: Option<u64>,
    missing: u8,
}

/// The known tasks of FreeRTOS and the running one.
pub(super) struct Tasks {
    kernel: Kernel,
    /// Sorted by address.
    tasks: Vec<Task>,
    /// The running task; `None` before there is a scheduler.
    current: Option<u64>,
    listed_ns: Option<u64>,
}

impl Tasks {
    pub(super) fn new(kernel: Kernel) -> Tasks {
        Tasks { kernel, tasks: Vec::new(), current: None, listed_ns: None }
    }

    /// The known tasks, sorted by address.
    pub(super) fn known(&self) -> &[Task] {
        &self.tasks
    }

    /// The running task; `None` before there is a scheduler.
    pub(super) fn current(&self) -> Option<u64> {
        self.current
    }

    /// Whether a task is known.
    pub(super) fn contains(&self, tcb: u64) -> bool {
        self.tasks.binary_search_by_key(&tcb, |task| task.tcb).is_ok()
    }

    /// Reads the running task and, at intervals or if it is a new one, the list of tasks. Returns whether
    /// that changed.
    ///
    /// # Errors
    /// Errors of `read`.
    pub(super) fn update<E>(&mut self, read: &mut Read<'_, E>, now_ns: u64) -> Result<bool, E> {
        let word = |at: u64| Range { at, bytes: 4 };
        let questions: Vec<Range> =
            std::iter::once(self.kernel.current).chain(self.kernel.running).map(word).collect();
        let answers = read(&questions)?;
        let mut words = answers.iter().map(|bytes| word_at(bytes, 0));
        let current = words.next().flatten().filter(|tcb| *tcb != 0);
        let runs = words.next().is_none_or(|runs| runs.is_some_and(|runs| runs != 0));
        self.current = current.filter(|_| runs);
        let due = self.listed_ns.is_none_or(|listed_ns| now_ns.saturating_sub(listed_ns) >= LIST_NS);
        if !due && self.current.is_none_or(|tcb| self.contains(tcb)) {
            return Ok(false);
        }
        self.listed_ns = Some(now_ns);
        let listed = match self.current {
            Some(_) => self.list(read)?,
            // The lists are under construction.
            None => Vec::new(),
        };
        self.take(listed, read)
    }

    /// Reads the tasks in all lists.
    fn list<E>(&self, read: &mut Read<'_, E>) -> Result<Vec<u64>, E> {
        let form = self.kernel.form;
        let ranges: Vec<Range> = self
            .kernel
            .lists
            .iter()
            .map(|lists| Range { at: lists.at, bytes: lists.count * form.list_bytes as usize })
            .collect();
        // Lists with items: address, the next item, and the number of remaining ones.
        let mut walks: Vec<(u64, u64, usize)> = Vec::new();
        for (lists, bytes) in self.kernel.lists.iter().zip(read(&ranges)?) {
            for (index, list) in bytes.chunks_exact(form.list_bytes as usize).enumerate() {
                let at = lists.at + index as u64 * form.list_bytes;
                let number = word_at(list, form.number).unwrap_or(0);
                let first = word_at(list, form.end + form.next);
                let left = usize::try_from(number).unwrap_or(usize::MAX).min(TASKS_MAX);
                if let Some(first) = first.filter(|_| left > 0 && walks.len() < LISTS_MAX) {
                    walks.push((at, first, left));
                }
            }
        }
        let mut found: Vec<u64> = Vec::new();
        // One item of each list at a time: as many round trips as the longest list has items.
        while !walks.is_empty() && found.len() < TASKS_MAX {
            let ranges: Vec<Range> = walks
                .iter()
                .map(|(_, item, _)| Range { at: *item, bytes: form.item_bytes as usize })
                .collect();
            let items = read(&ranges)?;
            let mut items = items.iter();
            walks.retain_mut(|(list, next, left)| {
                let Some(item) = items.next() else { return false };
                let is_in_it = word_at(item, form.container) == Some(*list);
                let (Some(owner), true) = (word_at(item, form.owner).filter(|owner| *owner != 0), is_in_it)
                else {
                    return false;
                };
                found.push(owner);
                *left -= 1;
                *next = word_at(item, form.next).unwrap_or(*list);
                *left > 0 && *next != *list + form.end
            });
        }
        found.truncate(TASKS_MAX);
        Ok(found)
    }

    /// Merges a new list; requests the names of new tasks.
    fn take<E>(&mut self, mut listed: Vec<u64>, read: &mut Read<'_, E>) -> Result<bool, E> {
        // During a switch it is in no list.
        listed.extend(self.current);
        listed.sort_unstable();
        listed.dedup();
        let before = self.tasks.len();
        self.tasks.retain_mut(|task| {
            let is_listed = listed.binary_search(&task.tcb).is_ok();
            task.missing = if is_listed { 0 } else { task.missing + 1 };
            task.missing <= MISSING_MAX
        });
        let mut changed = self.tasks.len() != before;
        let new: Vec<u64> = listed.into_iter().filter(|tcb| !self.contains(*tcb)).collect();
        let ranges: Vec<Range> = new.iter().map(|at| Range { at: *at, bytes: TCB_BYTES }).collect();
        if new.is_empty() {
            return Ok(changed);
        }
        for (tcb, bytes) in new.into_iter().zip(read(&ranges)?) {
            if self.tasks.len() < TASKS_MAX && !bytes.is_empty() {
                let name = self.name(tcb, &bytes).unwrap_or_default();
                let stack = self.stack(tcb, &bytes);
                self.tasks.push(Task { tcb, name, stack, missing: 0 });
                changed = true;
            }
        }
        self.tasks.sort_by_key(|task| task.tcb);
        Ok(changed)
    }

    /// The name in a task control block that begins with these bytes.
    fn name(&self, tcb: u64, bytes: &[u8]) -> Option<String> {
        if let Some((offset, length)) = self.kernel.form.name {
            let offset = usize::try_from(offset).ok()?;
            let end = offset.saturating_add(length as usize).min(bytes.len());
            return text(bytes.get(offset..end)?);
        }
        let from = self.behind_items(tcb, bytes)? + 4 * WORDS_BEFORE_NAME;
        let places = (0..=MORE_WORDS_BEFORE_NAME).map(|words| from + 4 * words);
        places.filter_map(|at| text(bytes.get(at..)?)).next()
    }

    /// Offset of the member behind the items of a task control block.
    fn behind_items(&self, tcb: u64, bytes: &[u8]) -> Option<usize> {
        // Both items point to their owner, whatever precedes them.
        let form = self.kernel.form;
        let item_bytes = form.item_bytes as usize;
        let owns = |at: usize| word_at(bytes, at as u64 + form.owner) == Some(tcb);
        let first = (0..bytes.len()).step_by(4).find(|at| owns(*at) && owns(at + item_bytes))?;
        Some(first + 2 * item_bytes)
    }

    /// Lowest address of the stack in a task control block that begins with these bytes: below
    /// `pxTopOfStack`.
    fn stack(&self, tcb: u64, bytes: &[u8]) -> Option<u64> {
        let usual = || Some((self.behind_items(tcb, bytes)? + 4 * STACK_WORD) as u64);
        let stack = word_at(bytes, self.kernel.form.stack.or_else(usual)?)?;
        word_at(bytes, 0).filter(|top| stack != 0 && stack <= *top).map(|_| stack)
    }

    /// Whether a stack pointer is on this task's stack: of all stacks that begin below it, the task's is the
    /// nearest. False while the beginning of any of them is unknown.
    pub(super) fn is_on_stack_of(&self, tcb: u64, sp: u64) -> bool {
        let stacks: Option<Vec<(u64, u64)>> =
            self.tasks.iter().map(|task| Some((task.stack?, task.tcb))).collect();
        let below = stacks.unwrap_or_default().into_iter().filter(|(stack, _)| *stack <= sp).max();
        below.is_some_and(|(_, owner)| owner == tcb)
    }

    /// The registers of suspended tasks, each `None` if no port of FreeRTOS saved them in this form.
    /// `is_code`: whether a value may be a program counter.
    ///
    /// # Errors
    /// Errors of `read`.
    pub(super) fn saved<E>(
        &self,
        tcbs: &[u64],
        m_profile: bool,
        is_code: &dyn Fn(u64) -> bool,
        read: &mut Read<'_, E>,
    ) -> Result<Vec<Option<Arm>>, E> {
        // `pxTopOfStack` is the first member of a task control block.
        let ranges: Vec<Range> = tcbs.iter().map(|at| Range { at: *at, bytes: 4 }).collect();
        let tops = read(&ranges)?;
        let tops: Vec<u64> = tops.iter().map(|bytes| word_at(bytes, 0).unwrap_or(0)).collect();
        let ranges: Vec<Range> = tops.iter().map(|at| Range { at: *at, bytes: 4 * WORDS_MAX }).collect();
        let stacks = read(&ranges)?;
        let registers = |(top, bytes): (&u64, &Vec<u8>)| {
            let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
            registers(*top, &words, m_profile, is_code)
        };
        Ok(tops.iter().zip(&stacks).map(registers).collect())
    }
}

/// The word at an offset.
fn word_at(bytes: &[u8], offset: u64) -> Option<u64> {
    let word = bytes.get(usize::try_from(offset).ok()?..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word).into())
}

/// The name at the start of these bytes: printable characters with a terminating zero.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().take(NAME_BYTES_MAX).position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let is_name = !text.trim().is_empty() && !text.chars().any(char::is_control);
    is_name.then(|| text.to_owned())
}

// ---- The registers of a suspended task, from its stack, where FreeRTOS's ports for Arm save them.
//
// The words identify the port: each has EXC_RETURN at a different offset or none, and the exception frame must be
// valid. Sources: FreeRTOS-Kernel V11, portable/GCC/{ARM_CM0, ARM_CM3, ARM_CM4F, ARM_CM7, ARM_CM33, ARM_CM33_NTZ,
// ARM_CA9}/port*.{c,S}; exception frames: Armv7-M ARM, B1.5.6.

/// Most words needed: ARM_CA9's for a task with floating point.
const WORDS_MAX: usize = 84;
const _: () = assert!(WORDS_MAX >= 2 + 65 + 16);
/// EXC_RETURN of a task in thread mode on the process stack: Mode and SPSEL (Armv8-M ARM, D1.2.95), with ones
/// above them.
const EXC_RETURN_ONES: u32 = 0xffff_ff80;
const EXC_RETURN_TASK: u32 = 0xc;
/// Clear in EXC_RETURN if floating-point registers were saved.
const BASIC_FRAME: u32 = 1 << 4;
const BASIC_FRAME_WORDS: usize = 8;
const EXTENDED_FRAME_WORDS: usize = 26;
/// s16 to s31, saved by ports if the frame has the others.
const FLOATS_SAVED: usize = 16;
/// xPSR: T32, the exception number (0 in a task), and the bit for a word of alignment padding.
const XPSR_T: u32 = 1 << 24;
const XPSR_EXCEPTION: u32 = 0x1ff;
const XPSR_PADDED: u32 = 1 << 9;
/// Mode bits of CPSR: System, in which ARM_CA9 runs its tasks.
const CPSR_MODE: u32 = 0x1f;
const CPSR_SYSTEM: u32 = 0x1f;

/// Layout of a port: word offset of r4, and of EXC_RETURN if it is saved.
#[derive(Clone, Copy)]
struct Port {
    r4: usize,
    exc_return: Option<usize>,
}

/// In the order in which they are tried: the most specific first.
const PORTS: [Port; 4] = [
    // ARM_CM4F, ARM_CM7: r4 to r11, EXC_RETURN.
    Port { r4: 0, exc_return: Some(8) },
    // ARM_CM33_NTZ: PSPLIM, EXC_RETURN, r4 to r11.
    Port { r4: 2, exc_return: Some(1) },
    // ARM_CM33: the secure context, PSPLIM, EXC_RETURN, r4 to r11.
    Port { r4: 3, exc_return: Some(2) },
    // ARM_CM0, ARM_CM3: r4 to r11.
    Port { r4: 0, exc_return: None },
];

/// The registers of a task with these `words` at `top`. `is_code`: whether a value may be a program counter.
fn registers(top: u64, words: &[u32], m_profile: bool, is_code: &dyn Fn(u64) -> bool) -> Option<Arm> {
    if m_profile {
        return PORTS.iter().find_map(|port| by_port(*port, top, words, is_code));
    }
    of_a_profile(top, words, is_code)
}

fn by_port(port: Port, top: u64, words: &[u32], is_code: &dyn Fn(u64) -> bool) -> Option<Arm> {
    let word = |index: usize| words.get(index).copied();
    let mut frame = port.r4 + 8;
    let mut extended = false;
    if let Some(at) = port.exc_return {
        let exc_return = word(at)?;
        if exc_return & EXC_RETURN_ONES != EXC_RETURN_ONES || exc_return & EXC_RETURN_TASK != EXC_RETURN_TASK
        {
            return None;
        }
        frame = frame.max(at + 1);
        if exc_return & BASIC_FRAME == 0 {
            (extended, frame) = (true, frame + FLOATS_SAVED);
        }
    }
    let (lr, pc, xpsr) = (word(frame + 5)?, word(frame + 6)?, word(frame + 7)?);
    if xpsr & XPSR_T == 0 || xpsr & XPSR_EXCEPTION != 0 || pc & 1 != 0 || !is_code(pc.into()) {
        return None;
    }
    let frame_words = if extended { EXTENDED_FRAME_WORDS } else { BASIC_FRAME_WORDS };
    let padding = usize::from(xpsr & XPSR_PADDED != 0);
    let sp = top.checked_add(4 * (frame + frame_words + padding) as u64)?;
    let mut r = [0u64; 16];
    for (number, into) in r.iter_mut().enumerate() {
        *into = match number {
            0..=3 => word(frame + number)?.into(),
            4..=11 => word(port.r4 + number - 4)?.into(),
            12 => word(frame + 4)?.into(),
            Arm::SP => sp,
            Arm::LR => lr.into(),
            _ => pc.into(),
        };
    }
    Some(Arm { r, cpsr: Some(xpsr), m_profile: true })
}

/// ARM_CA9: floating-point flag and registers (FPSCR, d0 to d31), critical nesting depth, r0 to r12, lr, pc,
/// CPSR.
fn of_a_profile(top: u64, words: &[u32], is_code: &dyn Fn(u64) -> bool) -> Option<Arm> {
    let has_floats = *words.first()? != 0;
    let nesting = if has_floats { 1 + 1 + 64 } else { 1 };
    let saved = words.get(nesting + 1..nesting + 17)?;
    let (pc, cpsr) = (saved[14], saved[15]);
    if cpsr & CPSR_MODE != CPSR_SYSTEM || !is_code((pc & !1).into()) {
        return None;
    }
    let sp = top.checked_add(4 * (nesting + 17) as u64)?;
    let mut r = [0u64; 16];
    for (into, word) in r.iter_mut().zip(saved) {
        *into = (*word).into();
    }
    (r[Arm::SP], r[Arm::LR], r[Arm::PC]) = (sp, saved[13].into(), pc.into());
    Some(Arm { r, cpsr: Some(cpsr), m_profile: false })
}

// ---- Locates FreeRTOS's tasks: the addresses of its variables, and the layout of its lists and task control
// blocks.
//
// Source: FreeRTOS-Kernel V10 and V11, `tasks.c` (the variables, and `TCB_t`, with `pxTopOfStack` as its required
// first member) and `include/list.h`. Layouts depend on the configuration: debug information has them; without it
// the usual one is recognised by the size of a list.

/// Most ready lists, one for each priority (`configMAX_PRIORITIES`).
const PRIORITIES_MAX: u64 = 256;
/// Sizes of a `List_t`: with a mini list item at its end, and with a full one (`configUSE_MINI_LIST_ITEM`).
const LIST_BYTES: [u64; 2] = [20, 28];
/// Largest plausible structure.
const BYTES_MAX: u64 = 4096;

/// Consecutive lists in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lists {
    /// Address of the first one.
    at: u64,
    count: usize,
}

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    /// Size of a list.
    list_bytes: u64,
    /// `uxNumberOfItems` and `xListEnd` of a list.
    number: u64,
    end: u64,
    /// `pxNext` of an item, and of the end of a list.
    next: u64,
    /// `pvOwner` and `pxContainer` of an item.
    owner: u64,
    container: u64,
    /// Size of an item.
    item_bytes: u64,
    /// `pcTaskName` of a task control block and its length, if known.
    name: Option<(u64, u64)>,
    /// `pxStack` of a task control block, if known.
    stack: Option<u64>,
}

/// Locations of FreeRTOS's tasks: variables, lists and control blocks. Addresses are those stated in the
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// `pxCurrentTCB`.
    current: u64,
    /// `xSchedulerRunning`.
    running: Option<u64>,
    lists: Vec<Lists>,
    form: Form,
}

impl Kernel {
    /// Finds the variables in a 32-bit Arm file; `None` without FreeRTOS, or if it is unsupported: for
    /// several cores (`pxCurrentTCBs`), or with lists of unknown layout.
    pub(crate) fn find(file: &[u8]) -> Option<Kernel> {
        const NAMES: [&str; 7] = [
            "pxCurrentTCB",
            "xSchedulerRunning",
            "pxReadyTasksLists",
            "xDelayedTaskList1",
            "xDelayedTaskList2",
            "xPendingReadyList",
            "xSuspendedTaskList",
        ];
        let found = functions::find_variables(file, &NAMES);
        let at = |index: usize| Some(found[index]?.svma.0);
        let (current, ready, delayed) = (at(0)?, found[2]?, found[3]?);
        let form = Form::described(file).or_else(|| Form::usual(delayed.bytes))?;
        let priorities = ready.bytes / form.list_bytes;
        if !(1..=PRIORITIES_MAX).contains(&priorities) {
            return None;
        }
        let one = |index: usize| at(index).map(|at| Lists { at, count: 1 });
        let mut lists = vec![Lists { at: ready.svma.0, count: priorities as usize }];
        lists.extend((3..NAMES.len()).filter_map(one));
        Some(Kernel { current, running: at(1), lists, form })
    }
}

impl Form {
    /// Layout from debug information.
    fn described(file: &[u8]) -> Option<Form> {
        let found = functions::find_structures(file, &["xLIST", "xLIST_ITEM", "tskTaskControlBlock"]);
        let [Some(list), Some(item), task] = found.as_slice() else { return None };
        let name = task.as_ref().and_then(|task| task.offset("pcTaskName").zip(task.count("pcTaskName")));
        let stack = task.as_ref().and_then(|task| task.offset("pxStack"));
        let form = Form {
            list_bytes: list.bytes,
            number: list.offset("uxNumberOfItems")?,
            end: list.offset("xListEnd")?,
            next: item.offset("pxNext")?,
            owner: item.offset("pvOwner")?,
            // Name before V10.
            container: item.offset("pxContainer").or_else(|| item.offset("pvContainer"))?,
            item_bytes: item.bytes,
            name: name.filter(|(offset, length)| *offset < BYTES_MAX && (1..BYTES_MAX).contains(length)),
            stack,
        };
        form.is_sound().then_some(form)
    }

    /// Layout of the usual configuration with this list size.
    fn usual(list_bytes: u64) -> Option<Form> {
        LIST_BYTES.contains(&list_bytes).then_some(Form {
            list_bytes,
            number: 0,
            end: 8,
            next: 4,
            owner: 12,
            container: 16,
            item_bytes: 20,
            name: None,
            stack: None,
        })
    }

    /// Whether all offsets are inside of their structures.
    fn is_sound(&self) -> bool {
        let within = |offset: u64, bytes: u64| bytes <= BYTES_MAX && offset.saturating_add(4) <= bytes;
        within(self.number, self.list_bytes)
            && within(self.end.saturating_add(self.next), self.list_bytes)
            && [self.next, self.owner, self.container]
                .into_iter()
                .all(|offset| within(offset, self.item_bytes))
    }
}

#[cfg(test)]
mod context_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// r0 to r3, r12, lr, pc, xPSR.
    const FRAME: [u32; 8] = [100, 101, 102, 103, 112, 0x201, 0x300, XPSR_T];
    const TOP: u64 = 0x2000_0100;

    fn is_code(at: u64) -> bool {
        (0x200..0x1000).contains(&at)
    }

    fn found(words: &[u32]) -> Option<Arm> {
        registers(TOP, words, true, &is_code)
    }

    fn words(parts: &[&[u32]]) -> Vec<u32> {
        parts.concat()
    }

    const R4: [u32; 8] = [4, 5, 6, 7, 8, 9, 10, 11];

    fn check(arm: Arm, words: u64) {
        let expected = [100, 101, 102, 103, 4, 5, 6, 7, 8, 9, 10, 11, 112, TOP + 4 * words, 0x201, 0x300];
        assert_eq!(arm.r, expected);
        assert!(arm.m_profile);
    }

    #[test]
    fn each_port_is_recognised_by_its_words() {
        check(found(&words(&[&R4, &FRAME])).unwrap(), 16);
        check(found(&words(&[&R4, &[0xffff_fffd], &FRAME])).unwrap(), 17);
        let floats = [7u32; 16];
        check(found(&words(&[&R4, &[0xffff_ffed], &floats, &FRAME, &[0; 18]])).unwrap(), 51);
        check(found(&words(&[&[0x2000_0000, 0xffff_ffbc], &R4, &FRAME])).unwrap(), 18);
        check(found(&words(&[&[0, 0x2000_0000, 0xffff_fffd], &R4, &FRAME])).unwrap(), 19);
    }

    #[test]
    fn alignment_padding_is_above_the_frame() {
        let mut frame = FRAME;
        frame[7] |= XPSR_PADDED;
        let mut arm = found(&words(&[&R4, &frame])).unwrap();
        assert_eq!(arm.r[Arm::SP], TOP + 4 * 17);
        arm.r[Arm::SP] -= 4;
        check(arm, 16);
    }

    #[test]
    fn an_invalid_frame_is_none() {
        for (at, word) in [(6, 0x10u32), (6, 0x301), (7, 0), (7, XPSR_T | 15)] {
            let mut frame = FRAME;
            frame[at] = word;
            assert_eq!(found(&words(&[&R4, &frame])), None, "{at} {word:#x}");
        }
        assert_eq!(found(&words(&[&R4, &FRAME])[..15]), None);
        assert_eq!(found(&[]), None);
        assert_eq!(registers(u64::MAX, &words(&[&R4, &FRAME]), true, &is_code), None);
    }

    #[test]
    fn a_profile_tasks_have_all_registers_in_order() {
        let core: Vec<u32> = (0..13).chain([0x205, 0x400, 0x6000_001f]).collect();
        let arm = |words: &[u32]| registers(TOP, words, false, &is_code);
        let plain = arm(&words(&[&[0, 0], &core])).unwrap();
        assert_eq!((plain.r[0], plain.r[12], plain.r[Arm::LR], plain.r[Arm::PC]), (0, 12, 0x205, 0x400));
        assert_eq!(plain.r[Arm::SP], TOP + 4 * 18);
        let floats = arm(&words(&[&[1], &[9; 65], &[0], &core])).unwrap();
        assert_eq!((floats.r[Arm::SP], floats.cpsr), (TOP + 4 * 83, Some(0x6000_001f)));
        let user: Vec<u32> = core[..15].iter().copied().chain([0x10]).collect();
        assert_eq!(arm(&words(&[&[0, 0], &user])), None);
    }
}

#[cfg(test)]
mod kernel_tests {
    use super::*;

    #[test]
    fn layouts_are_recognised_only_by_known_list_sizes() {
        assert_eq!(Form::usual(20).map(|form| (form.end, form.owner)), Some((8, 12)));
        assert!(Form::usual(28).is_some_and(|form| form.is_sound()));
        assert_eq!(Form::usual(32), None, "with bytes that check for damage");
        assert_eq!(Kernel::find(b"\x7fELF\x01\x01\x01"), None);
    }

    #[test]
    fn offsets_outside_of_their_structure_are_refused() {
        let form = Form::usual(20);
        let damaged = form.map(|form| Form { owner: 18, ..form });
        assert_eq!(damaged.map(|form| form.is_sound()), Some(false));
        let huge = form.map(|form| Form { end: u64::MAX - 2, ..form });
        assert_eq!(huge.map(|form| form.is_sound()), Some(false));
    }
}
