//! Which images a process had when a sample was taken: libraries are unloaded, and others take their addresses.
//!
//! Input: the list that each sample names (`shared_memory::Allocation`), lists of the shim, and what is mapped now. Output:
//! for each time the mappings that are certain.

use std::collections::VecDeque;

use super::process::HeapProcess;
use crate::binary::Mapping;
use crate::sources::Fault;

/// Lists that are kept parsed: of threads that record at once, each may name another one.
const PARSED_MAX: usize = 8;
/// Lists whose files are kept: a thread that is preempted while it records names an older one.
const FILES_MAX: usize = 256;

/// The lists of a process, in the order of its samples.
#[derive(Debug, Default)]
pub(super) struct ImageLists {
    /// The list from a time on, for times that have not come.
    due: VecDeque<(u64, u32)>,
    /// The list at the time of the current event, and the one of the last sample that was read.
    current: u32,
    last: u32,
    /// Lists that samples have named and that have files, the latest last.
    named: VecDeque<u32>,
    parsed: VecDeque<(u32, Vec<Mapping>)>,
    /// The latest list that was certain, and its number.
    known: (u32, Vec<Mapping>),
    /// What is in the first list of the program and in each one that was certain since; `None` before there was one.
    in_all: Option<Vec<Mapping>>,
}

impl ImageLists {
    /// Whether a sample names another list than the previous one.
    pub(super) fn is_new(&self, images: u32) -> bool {
        self.last != images
    }

    /// From this time on, samples name this list.
    pub(super) fn begin_list(&mut self, at_ns: u64, images: u32) {
        self.last = images;
        self.due.push_back((at_ns, images));
    }

    /// From this time on, it runs another program.
    pub(super) fn begin_program(&mut self, at_ns: u64) {
        self.begin_list(at_ns, 0);
        (self.known, self.in_all) = ((0, Vec::new()), None);
        self.named.clear();
        self.parsed.clear();
    }

    /// Sets the time of the current event.
    pub(super) fn set_time(&mut self, at_ns: u64, process: &mut impl HeapProcess) {
        while let Some((_, list)) = self.due.front().copied().filter(|(from_ns, _)| *from_ns <= at_ns) {
            self.due.pop_front();
            self.current = list;
            if !self.named.contains(&list) {
                self.named.push_back(list);
            }
            if self.named.len() > FILES_MAX
                && let Some(oldest) = self.named.pop_front()
            {
                process.forget_list(oldest);
            }
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
        let number = self.current;
        // What is mapped now, if nothing was unloaded since, or else as the shim listed it.
        let is_current = || unloads() <= u64::from(number);
        let mut read = Err(Fault::Gone);
        if is_current() {
            read = process.mappings(out);
        }
        // Asked again: what was read may be newer.
        let is_certain = if is_current() { read.is_ok() } else { self.listed(number, process, out) };
        if is_certain {
            self.known.0 = number;
            self.known.1.clone_from(out);
            let mut in_all = self.in_all.take().unwrap_or_else(|| {
                let mut first = Vec::new();
                process.listed(None, &mut first);
                first
            });
            in_all.retain(|mapping| has(out, mapping));
            self.in_all = Some(in_all);
            return Ok(());
        }
        let (known, list) = &self.known;
        if *known == number && !list.is_empty() {
            out.clone_from(list);
            return Ok(());
        }
        // The process had no room for the list, or ended before it was read: images that it had in all others and has now.
        let mut now = Vec::new();
        let is_read = process.mappings(&mut now).is_ok();
        match &self.in_all {
            Some(in_all) => out.clone_from(in_all),
            None if process.listed(None, out) => {}
            None => out.clear(),
        }
        out.retain(|mapping| !is_read || has(&now, mapping));
        if out.is_empty() { read.and(Err(Fault::Gone)) } else { Ok(()) }
    }

    /// The list that the shim made with a number; false if there is none.
    fn listed(&mut self, number: u32, process: &mut impl HeapProcess, out: &mut Vec<Mapping>) -> bool {
        if let Some((_, list)) = self.parsed.iter().find(|(parsed, _)| *parsed == number) {
            out.clone_from(list);
            return true;
        }
        let is_listed = process.listed(Some(number), out);
        if is_listed {
            if self.parsed.len() == PARSED_MAX {
                self.parsed.pop_front();
            }
            self.parsed.push_back((number, out.clone()));
        }
        is_listed
    }
}

/// Whether a sorted list has a mapping.
fn has(list: &[Mapping], mapping: &Mapping) -> bool {
    let found = list.binary_search_by_key(&mapping.avma.start, |other| other.avma.start);
    found.is_ok_and(|index| list[index] == *mapping)
}
