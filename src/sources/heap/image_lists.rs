//! Which images a process had when a sample was taken: libraries are unloaded, and others take their addresses.
//!
//! Input: the list that each sample names (`shared_memory::image_list`), lists of the shim, and what is mapped now. Output: for each
//! time the mappings that are certain. An address that may be of two images is of none.

use std::collections::VecDeque;

use super::process::HeapProcess;
use super::shared_memory::image_list;
use crate::binary::{Mapping, MappingKind};
use crate::sources::Fault;

/// A list of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ListId {
    number: u32,
    /// Code may be in the next list instead.
    is_changing: bool,
}

/// The lists of a process, in the order of its samples.
#[derive(Debug, Default)]
pub(super) struct ImageLists {
    /// The list from a time on, for times that have not come.
    due: VecDeque<(u64, ListId)>,
    /// The list at the time of the current event, and the one of the last sample that was read.
    current: ListId,
    last: ListId,
    /// The latest list that was certain, and its number.
    known: (u32, Vec<Mapping>),
    /// What is in the first list of the program and in each one that was certain since; `None` before there was one.
    in_all: Option<Vec<Mapping>>,
}

impl ImageLists {
    /// Whether a sample names another list than the previous one.
    pub(super) fn is_new(&self, images: u32) -> bool {
        self.last != ListId::of(images)
    }

    /// From this time on, samples name this list.
    pub(super) fn begin_list(&mut self, at_ns: u64, images: u32) {
        self.last = ListId::of(images);
        self.due.push_back((at_ns, self.last));
    }

    /// From this time on, it runs another program.
    pub(super) fn begin_program(&mut self, at_ns: u64) {
        self.begin_list(at_ns, 0);
        (self.known, self.in_all) = ((0, Vec::new()), None);
    }

    /// Sets the time of the current event.
    pub(super) fn set_time(&mut self, at_ns: u64, process: &mut impl HeapProcess) {
        while let Some((_, list)) = self.due.front().copied().filter(|(from_ns, _)| *from_ns <= at_ns) {
            self.due.pop_front();
            // Samples of threads may be out of order by one list.
            if list.number > self.current.number
                && let Some(over) = self.current.number.checked_sub(1)
            {
                process.forget_list(over);
            }
            self.current = list;
        }
    }

    /// The mappings that are certain at the current time. `unloads`: how many the process has begun now.
    ///
    /// # Errors
    /// Nothing is known.
    pub(super) fn mappings(
        &mut self,
        process: &mut impl HeapProcess,
        unloads: &dyn Fn() -> u64,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        let ListId { number, is_changing } = self.current;
        if !is_changing {
            return self.list(number, process, unloads, out);
        }
        let mut before = Vec::new();
        self.list(number, process, unloads, &mut before)?;
        self.list(number.saturating_add(1), process, unloads, out)?;
        *out = between(&before, out);
        Ok(())
    }

    /// The list with a number: what is mapped now, if nothing was unloaded since, or else as the shim listed it.
    fn list(
        &mut self,
        number: u32,
        process: &mut impl HeapProcess,
        unloads: &dyn Fn() -> u64,
        out: &mut Vec<Mapping>,
    ) -> Result<(), Fault> {
        let is_current = || unloads() <= u64::from(number);
        let mut read = Err(Fault::Gone);
        if is_current() {
            read = process.mappings(out);
        }
        // Asked again: what was read may be newer.
        let is_certain = if is_current() { read.is_ok() } else { process.listed(Some(number), out) };
        if is_certain {
            self.known.0 = number;
            self.known.1.clone_from(out);
            let mut in_all = self.in_all.take().unwrap_or_else(|| {
                let mut first = Vec::new();
                process.listed(None, &mut first);
                first
            });
            in_all.retain(|mapping| {
                let found = out.binary_search_by_key(&mapping.avma.start, |other| other.avma.start);
                found.is_ok_and(|index| out[index] == *mapping)
            });
            self.in_all = Some(in_all);
            return Ok(());
        }
        let (known, list) = &self.known;
        if *known == number && !list.is_empty() {
            out.clone_from(list);
            return Ok(());
        }
        // The process had no room for the list, or ended before it was read: images that it had in all others.
        match &self.in_all {
            Some(in_all) => out.clone_from(in_all),
            None if process.listed(None, out) => {}
            None => out.clear(),
        }
        if out.is_empty() { read.and(Err(Fault::Gone)) } else { Ok(()) }
    }
}

impl ListId {
    fn of(images: u32) -> ListId {
        let (number, is_changing) = image_list::decode(images);
        ListId { number, is_changing }
    }
}

/// The mappings at a moment between two lists; what differs between them is not known.
fn between(before: &[Mapping], after: &[Mapping]) -> Vec<Mapping> {
    let overlaps =
        |one: &Mapping, other: &Mapping| one.avma.start < other.avma.end && other.avma.start < one.avma.end;
    let is_same = |one: &Mapping, other: &Mapping| {
        let base = |mapping: &Mapping| mapping.file_offset.wrapping_sub(mapping.avma.start.0);
        (&one.kind, one.identity, &one.path, base(one))
            == (&other.kind, other.identity, &other.path, base(other))
    };
    let is_certain = |mapping: &&Mapping, others: &[Mapping]| {
        let first = others.partition_point(|other| other.avma.end <= mapping.avma.start);
        others[first..]
            .iter()
            .take_while(|other| overlaps(mapping, other))
            .all(|other| is_same(mapping, other))
    };
    let (mut all, unknown): (Vec<Mapping>, Vec<Mapping>) =
        before.iter().cloned().partition(|mapping| is_certain(&mapping, after));
    let is_new = |mapping: &&Mapping| !before.iter().any(|other| overlaps(mapping, other));
    all.extend(after.iter().filter(is_new).cloned());
    // Memory without a file: what a later list has there is not taken for it.
    all.extend(unknown.into_iter().map(|mapping| Mapping {
        file_offset: 0,
        path: String::new(),
        kind: MappingKind::Anonymous,
        identity: (0, 0),
        ..mapping
    }));
    all.sort_by_key(|mapping| mapping.avma.start);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;

    fn mapping(start: u64, end: u64, file: u64) -> Mapping {
        Mapping {
            avma: Avma(start)..Avma(end),
            file_offset: 0,
            path: format!("/{file}"),
            kind: MappingKind::File,
            identity: (1, file),
        }
    }

    #[test]
    fn between_two_lists_an_address_of_two_images_is_of_none() {
        let program = mapping(0x1000, 0x2000, 1);
        let (first, second, larger) =
            (mapping(0x5000, 0x6000, 2), mapping(0x5000, 0x6000, 3), mapping(0x4800, 0x7000, 4));
        let other = mapping(0x9000, 0xa000, 5);
        let anonymous = |mapping: &Mapping| Mapping {
            path: String::new(),
            kind: MappingKind::Anonymous,
            identity: (0, 0),
            ..mapping.clone()
        };
        let (unknown, around) = (anonymous(&first), anonymous(&larger));
        for (before, after, expected) in [
            (vec![&program], vec![&program], vec![&program]),
            // Unloaded; loaded; both.
            (vec![&program, &first], vec![&program], vec![&program, &first]),
            (vec![&program], vec![&program, &first], vec![&program, &first]),
            (vec![&program, &first], vec![&program, &other], vec![&program, &first, &other]),
            // Another one at its address, or around it.
            (vec![&program, &first], vec![&program, &second], vec![&program, &unknown]),
            (vec![&first], vec![&program, &larger], vec![&program, &unknown]),
            (vec![&larger], vec![&first, &other], vec![&around, &other]),
        ] {
            let owned = |list: &[&Mapping]| list.iter().copied().cloned().collect::<Vec<_>>();
            assert_eq!(between(&owned(&before), &owned(&after)), owned(&expected), "{before:?} {after:?}");
        }
    }
}
