//! Tasks of FreeRTOS behind a stub that does not know them (QEMU, OpenOCD without `-rtos`): their list and
//! names, the running one, and the registers of the others.
//!
//! Input: the kernel's variables (`kernel.rs`) and the memory of a stopped target; hostile, so lists are
//! bounded, and invalid ones are ignored. Output: tasks and registers (`context.rs`). A list being changed at
//! a stop may lack some: a task is dropped when it is missing twice.

mod context;
mod kernel;

use super::memory::Range;
use crate::arch::Arm;

pub(super) use kernel::Kernel;

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
        let ranges: Vec<Range> =
            tops.iter().map(|at| Range { at: *at, bytes: 4 * context::WORDS_MAX }).collect();
        let stacks = read(&ranges)?;
        let registers = |(top, bytes): (&u64, &Vec<u8>)| {
            let words: Vec<u32> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
            context::registers(*top, &words, m_profile, is_code)
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

#[cfg(test)]
mod tests;
