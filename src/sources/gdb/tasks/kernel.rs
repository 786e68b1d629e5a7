//! Locates FreeRTOS's tasks: the addresses of its variables, and the layout of its lists and task control
//! blocks. Input: the firmware's file, hostile. Output: addresses and offsets. Pure.
//!
//! Source: FreeRTOS-Kernel V10 and V11, `tasks.c` (the variables, and `TCB_t`, with `pxTopOfStack` as its
//! required first member) and `include/list.h`. Layouts depend on the configuration: debug information has
//! them; without it the usual one is recognised by the size of a list.

use crate::binary::elf::{structures, variables};

/// Most ready lists, one for each priority (`configMAX_PRIORITIES`).
const PRIORITIES_MAX: u64 = 256;
/// Sizes of a `List_t`: with a mini list item at its end, and with a full one (`configUSE_MINI_LIST_ITEM`).
const LIST_BYTES: [u64; 2] = [20, 28];
/// Largest plausible structure.
const BYTES_MAX: u64 = 4096;

/// Consecutive lists in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lists {
    /// Address of the first one.
    pub(super) at: u64,
    pub(super) count: usize,
}

/// Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Size of a list.
    pub(super) list_bytes: u64,
    /// `uxNumberOfItems` and `xListEnd` of a list.
    pub(super) number: u64,
    pub(super) end: u64,
    /// `pxNext` of an item, and of the end of a list.
    pub(super) next: u64,
    /// `pvOwner` and `pxContainer` of an item.
    pub(super) owner: u64,
    pub(super) container: u64,
    /// Size of an item.
    pub(super) item_bytes: u64,
    /// `pcTaskName` of a task control block and its length, if known.
    pub(super) name: Option<(u64, u64)>,
    /// `pxStack` of a task control block, if known.
    pub(super) stack: Option<u64>,
}

/// Locations of FreeRTOS's tasks: variables, lists and control blocks. Addresses are those stated in the
/// file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sources::gdb) struct Kernel {
    /// `pxCurrentTCB`.
    pub(super) current: u64,
    /// `xSchedulerRunning`.
    pub(super) running: Option<u64>,
    pub(super) lists: Vec<Lists>,
    pub(super) form: Form,
}

impl Kernel {
    /// Finds the variables in a 32-bit Arm file; `None` without FreeRTOS, or if it is unsupported: for
    /// several cores (`pxCurrentTCBs`), or with lists of unknown layout.
    pub(in crate::sources::gdb) fn find(file: &[u8]) -> Option<Kernel> {
        const NAMES: [&str; 7] = [
            "pxCurrentTCB",
            "xSchedulerRunning",
            "pxReadyTasksLists",
            "xDelayedTaskList1",
            "xDelayedTaskList2",
            "xPendingReadyList",
            "xSuspendedTaskList",
        ];
        let found = variables::find(file, &NAMES);
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
        let found = structures::find(file, &["xLIST", "xLIST_ITEM", "tskTaskControlBlock"]);
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
mod tests {
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
