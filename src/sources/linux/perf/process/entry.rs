//! One process among those that are sampled: what can be asked of it, what records told of it, and
//! the CPU time that its samples share.
//!
//! Much of it outlives the process: one that ran for two milliseconds is named by what the records
//! said of it, and by the files of the process that started it.

use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hashbrown::HashMap;
use libc::pid_t;

use super::super::cpu_time::share::LeftForLate;
use super::super::cpu_time::wakeup_charge::WakeupCharge;
use super::super::ring::record::Id;
use super::super::ring::sys;
use super::super::stack::missing_pages::MissingPages;
use super::mmap_history::MmapHistory;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, MappingKind, OpenError};
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::images::{self, Maps};
use crate::sources::linux::{sys as linux_sys, threads};
use crate::sources::{Capture, Fault, Observed, Process, ThreadId};

/// So long records alone tell of the memory of a new program, nanoseconds.
const RECORDS_HOLD_NS: u64 = 1_000_000_000;

/// See the top of this file.
pub(in super::super) struct ProcessEntry {
    pid: pid_t,
    /// The thread through which /proc shows the memory: the first, until it has left.
    memory_of: pid_t,
    process: Process,
    maps: Maps,
    files: Arc<TargetFiles>,
    /// They are those of the process that started it.
    files_inherited: bool,
    /// Executable memory by what the records say, or as it was last read.
    pub(in super::super) mapped: MmapHistory,
    /// Where the first thread's stack begins; the inner value once it was asked.
    main_stack_top: Option<Option<Avma>>,
    /// Names that threads gave themselves.
    pub(in super::super) names: HashMap<pid_t, String>,
    /// What each thread that was sampled used, as far as its samples say, nanoseconds.
    pub(in super::super) threads: HashMap<pid_t, u64>,
    /// Of the command that is to be run, nothing was seen yet.
    pub(in super::super) waits_for_exec: bool,
    /// A new program was named and has not run yet; what code it has.
    in_exec: bool,
    new_code: Vec<Range<Avma>>,
    /// Since when all of its executable memory is known from records (monotonic clock): a new
    /// program was named then, or the process was started.
    from_records_ns: Option<u64>,
    /// The engine was told of it.
    pub(in super::super) told: bool,
    /// The time of the last record of it (monotonic clock).
    pub(in super::super) seen_ns: u64,
    /// Threads that are told to have ended in the batch, and in the batch before.
    pub(in super::super) leaving: Vec<Id>,
    pub(in super::super) left: Vec<Id>,
    /// The first thread is among those that have ended.
    pub(in super::super) first_left: bool,
    /// Samples in the batch.
    pub(in super::super) samples: u64,
    /// The batches left until what is known of it is forgotten, once it has ended.
    pub(in super::super) ends_in: Option<u8>,
    pub(in super::super) clock: CpuClock,
    absent: MissingPages,
    /// CPU time from before its threads ran.
    pub(in super::super) owed: WakeupCharge,
}

/// The CPU clock of a process, and how much of it samples stand for.
#[derive(Debug, Default)]
pub(in super::super) struct CpuClock {
    /// When it was sampled first, if it was known then; and when it was asked last.
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    /// Up to which samples have been weighed.
    weighed_ns: Option<u64>,
    /// Its clock when sampling was ended: what is used after that is not recorded.
    ended_ns: Option<u64>,
    /// It began while it was recorded, and no samples of it were weighed yet.
    is_new: bool,
    /// What all samples so far weigh.
    pub(in super::super) told_ns: u64,
    /// What those weigh that did not fit into a ring.
    pub(in super::super) dropped_ns: u64,
    /// What ticks that come on time do not tell of.
    pub(in super::super) left: LeftForLate,
}

impl CpuClock {
    /// Begins to count: what was used before is nobody's.
    pub(in super::super) fn begin(&mut self, pid: pid_t) {
        self.last_ns = sys::process_cpu_ns(pid);
        (self.first_ns, self.weighed_ns) = (self.last_ns, self.last_ns);
    }

    /// Begins to count for a process that ran before it was sampled, whose clock was at this when the recording
    /// began.
    pub(in super::super) fn begin_at(&mut self, clock_ns: u64) {
        (self.first_ns, self.weighed_ns) = (Some(clock_ns), Some(clock_ns));
    }

    /// The process was started while it was recorded: its clock began with it.
    pub(in super::super) fn begins_now(&mut self) {
        self.is_new = true;
    }

    /// What the samples of this batch share, `samples` and more that were dropped. `None` where
    /// the clock does not tell: it was not asked before, or the process is gone. Where some were `dropped`, nobody
    /// knows whose, the clock of a new process tells from its beginning on; else each of its first samples stands for
    /// a period, and so for those that others like it were too short for.
    pub(in super::super) fn share_ns(&mut self, pid: pid_t, dropped: bool) -> Option<u64> {
        self.share_at(self.now_ns(pid), dropped)
    }

    fn now_ns(&self, pid: pid_t) -> Option<u64> {
        self.ended_ns.or_else(|| sys::process_cpu_ns(pid))
    }

    /// Sampling has ended, with the clock at this; what it counts from now on is not recorded.
    pub(in super::super) fn stop_at(&mut self, clock_ns: Option<u64>) {
        self.ended_ns = clock_ns;
    }

    fn share_at(&mut self, now_ns: Option<u64>, dropped: bool) -> Option<u64> {
        self.last_ns = now_ns.or(self.last_ns);
        let at_first_ns = (std::mem::take(&mut self.is_new) && dropped).then_some(0);
        if at_first_ns.is_some() {
            self.first_ns = at_first_ns;
        }
        let before_ns = std::mem::replace(&mut self.weighed_ns, now_ns).or(at_first_ns);
        Some(now_ns?.saturating_sub(before_ns?))
    }

    /// Asks the clock a last time.
    pub(in super::super) fn end(&mut self, pid: pid_t) {
        self.last_ns = self.now_ns(pid).or(self.last_ns);
    }

    /// CPU time that was used while it was sampled, as far as is known: a process that is gone has
    /// no clock, and its samples, and how many did not fit, tell what it used at its end.
    pub(in super::super) fn used_ns(&self) -> u64 {
        let by_clock = self.first_ns.zip(self.last_ns);
        let by_samples = self.told_ns + self.dropped_ns;
        by_clock.map_or(0, |(first_ns, last_ns)| last_ns.saturating_sub(first_ns)).max(by_samples)
    }
}

impl ProcessEntry {
    /// A process that runs, or one that is about to run a command.
    pub(in super::super) fn new(process: Process, files: Arc<TargetFiles>) -> ProcessEntry {
        let pid = pid_t::try_from(process.pid).unwrap_or(0);
        ProcessEntry {
            pid,
            memory_of: threads::living(pid).unwrap_or(pid),
            process,
            maps: Maps::default(),
            files,
            files_inherited: false,
            mapped: MmapHistory::default(),
            main_stack_top: None,
            names: HashMap::new(),
            threads: HashMap::new(),
            waits_for_exec: false,
            in_exec: false,
            new_code: Vec::new(),
            from_records_ns: None,
            told: false,
            seen_ns: 0,
            leaving: Vec::new(),
            left: Vec::new(),
            first_left: false,
            samples: 0,
            ends_in: None,
            clock: CpuClock::default(),
            absent: MissingPages::default(),
            owed: WakeupCharge::default(),
        }
    }

    /// Another process like this one: `started` by it just now, or one that was found.
    pub(in super::super) fn new_for(&self, pid: pid_t, started: bool) -> ProcessEntry {
        let name = if started { self.process.name.clone() } else { name_of(pid) };
        let pid = pid.unsigned_abs();
        let process = Process { pid, name, command: String::new(), ..self.process.clone() };
        ProcessEntry {
            files_inherited: true,
            mapped: if started { self.mapped.clone() } else { MmapHistory::default() },
            ..ProcessEntry::new(process, Arc::clone(&self.files))
        }
    }

    /// Its number.
    pub(in super::super) fn pid(&self) -> pid_t {
        self.pid
    }

    /// The command runs now, as this process.
    pub(in super::super) fn set_spawned(&mut self, process: Process) {
        self.process = process;
        self.take_own_files();
    }

    /// Looks at the files through the process itself, as long as it is there. One that has ended
    /// has no root any more; what it was forked from had the same.
    fn take_own_files(&mut self) {
        let files = TargetFiles::of(self.pid);
        if files.has_root() {
            self.files = Arc::new(files);
        }
        self.files_inherited = false;
    }

    /// It runs another program, of this name.
    pub(in super::super) fn replaced(&mut self, name: &str) {
        name.clone_into(&mut self.process.name);
        self.main_stack_top = None;
        self.in_exec = true;
        self.new_code.clear();
        self.absent.forget();
    }

    /// What it is now, where records may be missing: its memory is read, and the name of another program is given
    /// out. A name that is not that of its file is one that it gave itself (prctl(2), `PR_SET_NAME`).
    pub(in super::super) fn look_anew(&mut self) -> Option<String> {
        self.from_records_ns = None;
        let name = name_of(self.pid);
        let file = fs::read_link(format!("/proc/{}/exe", self.pid)).ok()?;
        let of_file = file.file_name()?.as_encoded_bytes().starts_with(name.as_bytes());
        if name.is_empty() || !of_file || name == self.process.name || self.waits_for_exec {
            return None;
        }
        self.process.name.clone_from(&name);
        self.names.insert(self.pid, name.clone());
        (self.main_stack_top, self.in_exec) = (None, false);
        self.absent.forget();
        Some(name)
    }

    /// It has mapped code; its memory for the engine changes with the engine's time.
    pub(in super::super) fn mapped_now(&mut self, mapping: &Mapping) {
        if self.in_exec {
            self.new_code.push(mapping.avma.clone());
        }
    }

    /// It runs another program from now on, of which records tell.
    pub(in super::super) fn exec_at(&mut self, at_ns: u64) {
        self.mapped.clear();
        self.from_records_ns = Some(at_ns);
    }

    /// It was started with a copy of this memory, which may be unknown.
    pub(in super::super) fn forked_at(&mut self, mapped: MmapHistory, at_ns: u64) {
        self.from_records_ns = (!mapped.list().is_empty()).then_some(at_ns);
        self.mapped = mapped;
    }

    /// The name of a thread, which what it starts has, too, until it is named itself.
    pub(in super::super) fn name_of(&mut self, tid: pid_t) -> Option<String> {
        if let Some(name) = self.names.get(&tid) {
            return Some(name.clone());
        }
        let name = threads::name(self.pid, tid)?;
        self.names.insert(tid, name.clone());
        Some(name)
    }

    /// The threads that have another name by now than records told of, with that name.
    pub(in super::super) fn names_anew(&mut self) -> Vec<(pid_t, String)> {
        let now = self.threads.keys().filter_map(|tid| Some((*tid, threads::name(self.pid, *tid)?)));
        let named: Vec<_> = now.filter(|(tid, now)| self.names.get(tid) != Some(now)).collect();
        self.names.extend(named.iter().cloned());
        named
    }

    /// What the copy of the stack of this thread lacked is there for the next one.
    pub(in super::super) fn bring_in_stack(&mut self, tid: pid_t, capture: &Capture, most_bytes: u32) {
        if !capture.stack.is_empty() {
            self.absent.bring_in(tid, capture, most_bytes);
        }
    }

    /// Until a new program runs, registers are those of the one that it replaced.
    pub(in super::super) fn sampled(&mut self, capture: &mut Capture) {
        if self.in_exec {
            let pc = capture.registers.pc();
            self.in_exec = !self.new_code.iter().any(|code| code.contains(&pc));
            capture.only_kernel |= self.in_exec && !capture.kernel.is_empty();
        }
    }

    /// Its name.
    pub(in super::super) fn name(&self) -> &str {
        &self.process.name
    }

    /// The stack pointer that the first thread began with.
    pub(in super::super) fn main_stack_top(&mut self) -> Option<Avma> {
        let pid = self.pid;
        *self.main_stack_top.get_or_insert_with(|| threads::start_stack(pid))
    }

    /// Whether its program is one of 32 bits; `None` where the process is gone.
    pub(in super::super) fn is_of_32_bits(&mut self) -> Option<bool> {
        self.main_stack_top().map(images::is_of_32_bits)
    }

    /// Whether the process has ended: nothing of it runs.
    pub(in super::super) fn has_ended(&self) -> bool {
        threads::living(self.pid).is_none()
    }
}

/// What a process is shown under: its name, or that of a kind of kernel threads (`[kworker]`).
fn name_of(pid: pid_t) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned();
    let of_kernel = fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|command| command.is_empty())
        && fs::read_link(format!("/proc/{pid}/exe")).is_err();
    match name.split(['/', ':']).next() {
        Some(kind) if of_kernel => format!("[{kind}]"),
        _ => name,
    }
}

impl Observed for ProcessEntry {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        if self.files_inherited {
            self.take_own_files();
        }
        Arc::clone(&self.files) as Arc<dyn Files>
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let tid = pid_t::try_from(thread.0).ok()?;
        self.names.get(&tid).cloned().or_else(|| threads::name(self.pid, tid))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        out.clear();
        // What /proc shows is of now, and may be another program already; what was unmapped is not
        // in records, and matters after a while only.
        if self.from_records_ns.is_some_and(|since_ns| sys::monotonic_ns() < since_ns + RECORDS_HOLD_NS) {
            out.extend_from_slice(self.mapped.list());
            self.maps.place_moved_text(self.memory_of, out);
            return if out.is_empty() { Err(Fault::Transient("nothing is mapped yet")) } else { Ok(()) };
        }
        // After an exec the first thread has the memory again.
        self.memory_of = self.pid;
        let read = self.maps.read_through(&mut self.memory_of, self.threads.keys().copied(), out);
        if read.is_ok() {
            self.maps.place_moved_text(self.memory_of, out);
            self.mapped.replace(out);
            return read;
        }
        // It is ending, or has ended.
        out.extend_from_slice(self.mapped.list());
        if out.is_empty() { read } else { Ok(()) }
    }

    /// By MMAP2 records, mprotect(2) included (mm/mprotect.c, `mprotect_fixup`).
    fn tells_of_mappings(&self) -> bool {
        true
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.maps.bytes(self.memory_of, mapping).or_else(|why| match mapping.kind {
            MappingKind::File if !matches!(why, OpenError::NoAnswer) => {
                // It has gone. While it ran nobody could write to its program (ETXTBSY), but since.
                let ago = Duration::from_nanos(sys::monotonic_ns().saturating_sub(self.seen_ns));
                let seen = SystemTime::now().checked_sub(ago);
                self.files
                    .open_same(&self.maps.patience, &mapping.path, mapping.identity, seen)
                    .unwrap_or(Err(why))
            }
            // All processes have the same.
            MappingKind::Vdso => images::own_vdso().ok_or(why),
            MappingKind::File | MappingKind::Anonymous | MappingKind::Registered => Err(why),
        })
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        linux_sys::read_memory(self.memory_of, from.0, into)
            .map_err(|_| Fault::Transient("memory not mapped"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_samples_were_dropped_the_clock_of_a_new_process_tells_from_its_beginning() {
        let mut clock = CpuClock::default();
        clock.begins_now();
        assert_eq!(clock.share_at(Some(700), true), Some(700));
        assert_eq!(clock.share_at(Some(900), true), Some(200));
        assert_eq!(clock.used_ns(), 900);
    }

    #[test]
    fn what_is_used_after_the_end_of_sampling_is_not_shared() {
        let own = std::process::id().cast_signed();
        let mut clock = CpuClock::default();
        clock.begin_at(1_000);
        clock.stop_at(Some(1_600));
        assert_eq!((clock.share_ns(own, false), clock.share_ns(own, false)), (Some(600), Some(0)));
        clock.end(own);
        assert_eq!(clock.used_ns(), 600);
    }

    #[test]
    fn without_drops_first_samples_stand_for_a_period_each() {
        let mut clock = CpuClock::default();
        clock.begins_now();
        assert_eq!(clock.share_at(Some(700), false), None);
        assert_eq!(clock.share_at(Some(900), true), Some(200), "its beginning was told of");
    }

    #[test]
    fn a_process_that_was_found_counts_from_the_beginning_of_the_recording() {
        let mut clock = CpuClock::default();
        clock.begin_at(5_000);
        assert_eq!(clock.share_at(Some(5_700), true), Some(700));
        let mut unknown = CpuClock::default();
        assert_eq!(unknown.share_at(Some(5_700), true), None);
    }
}
