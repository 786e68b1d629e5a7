//! When the images of a process are read again (`ImageRefresh`): after they changed, or when a stack leads to code
//! in no image, but never so often that reads exceed a share of the time. `ImageLoads` are the files mapped
//! meanwhile.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::captures::Sample;
use crate::binary::{Mapping, MappingKind};
use crate::images::{GdbJit, Images, JitCode, LibraryCounts, Loader};
use crate::sources::{Fault, Observed};

/// Interval at which mappings are read to notice unloaded images.
const REFRESH_NS: u64 = 1_000_000_000;
/// Minimum interval between reads when stacks lead out of the known code; backs off while reads change nothing.
const RETRY_NS: u64 = 2_000_000;
const RETRY_MAX_NS: u64 = 50_000_000;
/// Maximum of that interval if the target reports new mappings: a read then only helps after a lost report.
const RETRY_REPORTED_MAX_NS: u64 = REFRESH_NS;
/// Room for mappings that is kept from read to read: most processes have fewer.
const MAPPINGS_KEPT: usize = 64;
/// Attempts to list the mappings in one read.
const LIST_TRIES: u32 = 3;
/// Maximum share of time for reading mappings: 1/20. Opening and parsing files is excluded: each is opened once, and
/// a starting program loads its libraries right after the first read.
const COST_SHARE: u64 = 20;

/// Times of the reads of one process's images.
#[derive(Debug, Default)]
pub(super) struct ImageRefresh {
    /// The list of a read, empty between reads: processes of a whole machine have many.
    mappings: Vec<Mapping>,
    /// JIT code in anonymous mappings.
    registered: GdbJit,
    loads: ImageLoads,
    /// End of the last read.
    read_ns: u64,
    /// Start of the last read: mappings up to then are known.
    covers_ns: u64,
    wait_ns: u64,
    /// Minimum wait until the next read, from the cost of the last one.
    cost_ns: u64,
    /// Consecutive reads without changes.
    unchanged_reads: u32,
    /// The target reported a change that was not read yet.
    changed: bool,
    loader: Option<Loader>,
    /// Libraries that the process had loaded and unloaded before the last read and after it.
    libraries: Option<[LibraryCounts; 2]>,
}

impl ImageRefresh {
    /// Time up to which the images are known: the start of the last read.
    pub(super) fn covers_ns(&self) -> u64 {
        self.covers_ns
    }

    /// The libraries that a process has loaded and unloaded now, if its memory is read cheaply.
    pub(super) fn loader_counts(&self, process: &mut dyn Observed) -> Option<LibraryCounts> {
        let loader = self.loader.filter(|_| process.reads_memory_cheaply())?;
        loader.counts(&mut |at, into: &mut [u8]| process.read_memory(at, into).unwrap_or(0))
    }

    /// Whether the images are those of a sample: none was loaded between the two, or, if they were read later, none was
    /// unloaded.
    pub(super) fn is_of(&self, sample: &Sample) -> bool {
        let Some([before, after]) = sample.libraries else { return true };
        let is_newer = self.covers_ns > sample.at_ns;
        self.libraries.is_some_and(|[first, last]| {
            first.loads == after.loads || is_newer && last.unloads == before.unloads
        })
    }

    /// Consecutive reads without changes.
    pub(super) fn unchanged_reads(&self) -> u32 {
        self.unchanged_reads
    }

    /// Paths of the files mapped since the first read of the program, each once.
    pub(super) fn take_new_paths(&mut self) -> Vec<String> {
        std::mem::take(&mut self.loads.new)
    }

    /// Handles an exec.
    pub(super) fn begin_program(&mut self) {
        self.registered = GdbJit::default();
        self.loads = ImageLoads::default();
        (self.loader, self.libraries) = (None, None);
    }

    /// Notes that the target reported a change.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Whether images may be read for a stack that leads to code in none.
    pub(super) fn may_retry(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.read_ns) >= self.wait_ns
    }

    /// Whether the process reported changes since the last read.
    pub(super) fn has_changed(&self) -> bool {
        self.changed
    }

    /// Whether a read is due: the images changed, or may have. `wanted`: stacks are deferred until it.
    pub(super) fn is_due(&self, now_ns: u64, wanted: bool) -> bool {
        now_ns.saturating_sub(self.read_ns)
            >= match (self.changed, wanted) {
                (true, _) => self.cost_ns,
                (false, true) => self.wait_ns,
                (false, false) => self.wait_ns.max(REFRESH_NS),
            }
    }

    /// Reads the images; returns whether they changed. On failure the known ones stay: later addresses may then be
    /// unknown, which the summary shows.
    pub(super) fn read(
        &mut self,
        process: &mut dyn Observed,
        now_ns: &dyn Fn() -> u64,
        images: &mut Images,
        number: u32,
        jit: &mut JitCode,
    ) -> bool {
        let before_ns = now_ns();
        let mut changed = false;
        let first = self.loader_counts(process);
        let mut listed = process.mappings(&mut self.mappings);
        for _ in 1..LIST_TRIES {
            // A list read while mappings change is mostly consistent a moment later. Without images there are no
            // names, and the walk cannot tell a leaf without a frame record.
            if matches!(listed, Err(Fault::Transient(_))) {
                listed = process.mappings(&mut self.mappings);
            }
        }
        let mut opening_ns = 0;
        if listed.is_ok() {
            changed = self.update_with_jit(process, now_ns, &mut opening_ns, images, number);
            if changed {
                self.loads.update(&self.mappings);
            }
            jit.update(number, &self.mappings, images);
            let last = self.loader_counts(process);
            self.libraries = first.zip(last).map(|(first, last)| [first, last]);
            if self.loader.is_none() && process.reads_memory_cheaply() {
                let before_ns = now_ns();
                let mut read = |at, into: &mut [u8]| process.read_memory(at, into).unwrap_or(0);
                self.loader = Loader::find(images.of(number), &mut read);
                if self.loader.is_some() {
                    opening_ns += now_ns().saturating_sub(before_ns);
                }
            }
        }
        self.mappings.clear();
        self.mappings.shrink_to(MAPPINGS_KEPT);
        self.unchanged_reads = if changed { 0 } else { self.unchanged_reads.saturating_add(1) };
        self.changed = false;
        self.covers_ns = before_ns;
        self.read_ns = now_ns();
        let each_time_ns = (self.read_ns - before_ns).saturating_sub(opening_ns);
        self.cost_ns = each_time_ns.saturating_mul(COST_SHARE);
        // Torn stacks request reads repeatedly: back off while nothing changes.
        let most_ns = if process.reports_mmaps() { RETRY_REPORTED_MAX_NS } else { RETRY_MAX_NS };
        let backed_off_ns = if changed { 0 } else { (self.wait_ns * 2).min(most_ns) };
        self.wait_ns = backed_off_ns.max(self.cost_ns).max(RETRY_NS);
        changed
    }

    /// Updates from the list of mappings of this process, and reads the JIT code registered in anonymous ones.
    /// `opening_ns` is set to the time spent opening files.
    fn update_with_jit(
        &mut self,
        process: &mut dyn Observed,
        now_ns: &dyn Fn() -> u64,
        opening_ns: &mut u64,
        images: &mut Images,
        number: u32,
    ) -> bool {
        let changed = self.update(process, now_ns, opening_ns, images, number);
        if !self.mappings.iter().any(|mapping| mapping.kind == MappingKind::Anonymous) {
            return changed;
        }
        let mut read = |at, into: &mut [u8]| process.read_memory(at, into).unwrap_or(0);
        let found_jit_files = self.registered.update(number, images, &mut read);
        changed | (found_jit_files && self.update(process, now_ns, opening_ns, images, number))
    }

    fn update(
        &mut self,
        process: &mut dyn Observed,
        now_ns: &dyn Fn() -> u64,
        opening_ns: &mut u64,
        images: &mut Images,
        number: u32,
    ) -> bool {
        let before_ns = now_ns();
        images.set_program_path(number, process.program_path(&self.mappings));
        let opened_ns = now_ns();
        let placed = self.registered.place_in(&self.mappings);
        let registered = &mut self.registered;
        let mut opens = false;
        let mut open = |mapping: &Mapping| {
            opens = true;
            registered.open(mapping).unwrap_or_else(|| process.image_bytes(mapping))
        };
        let changed = images.update(number, placed.as_ref().unwrap_or(&self.mappings), &mut open);
        // A new image is parsed, too: from a disk it takes long.
        *opening_ns += if opens { now_ns() } else { opened_ns }.saturating_sub(before_ns);
        self.registered.drop_file_bytes();
        changed
    }
}

// ---- Files that a process maps after its mappings were first read: the images loaded while it is recorded.

/// Maximum number of files tracked per process.
const FILES_MAX: usize = 4096;

/// Files mapped by the current program of a process.
#[derive(Debug, Default)]
pub(super) struct ImageLoads {
    /// Hashes of the paths; `None` before the first read.
    known: Option<HashSet<u64>>,
    /// Paths seen for the first time.
    pub(super) new: Vec<String>,
}

impl ImageLoads {
    /// Updates from a list of mappings. The first list is the baseline.
    pub(super) fn update(&mut self, mappings: &[Mapping]) {
        let is_first = self.known.is_none();
        let known = self.known.get_or_insert_default();
        for mapping in mappings.iter().filter(|mapping| mapping.kind == MappingKind::File) {
            let mut hasher = DefaultHasher::new();
            mapping.path.hash(&mut hasher);
            if known.len() < FILES_MAX && known.insert(hasher.finish()) && !is_first {
                self.new.push(mapping.path.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::addr::Avma;
    use crate::binary::{ImageBytes, OpenError};
    use crate::sources::{Process, ThreadId};

    /// Takes 1 ms to list its mappings and 100 ms to open a file. Each list has one mapping more.
    struct Slow<'c> {
        now_ns: &'c Cell<u64>,
        files: u64,
    }

    impl Observed for Slow<'_> {
        fn process(&self) -> &Process {
            unreachable!("nobody asks")
        }
        fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
            self.now_ns.set(self.now_ns.get() + 1_000_000);
            self.files += 1;
            out.clear();
            out.extend((1..=self.files).map(|file| {
                Mapping::of_file(
                    Avma(file << 20)..Avma((file << 20) + 0x1000),
                    0,
                    format!("/lib/{file}.so"),
                    (1, file),
                )
            }));
            Ok(())
        }
        fn reports_mmaps(&self) -> bool {
            true
        }
        fn image_bytes(&mut self, _: &Mapping) -> Result<ImageBytes, OpenError> {
            self.now_ns.set(self.now_ns.get() + 100_000_000);
            Err(OpenError::Deleted)
        }
    }

    #[test]
    fn the_time_to_open_files_does_not_delay_the_next_read() {
        let (mut images, mut jit, mut refresh) =
            (Images::default(), JitCode::default(), ImageRefresh::default());
        let now_ns = Cell::new(0);
        let mut process = Slow { now_ns: &now_ns, files: 20 };
        refresh.read(&mut process, &|| now_ns.get(), &mut images, 0, &mut jit);
        refresh.note_change();
        // Twenty times the cost of listing.
        let read_ns = now_ns.get();
        assert!(!refresh.is_due(read_ns + 19_000_000, true) && refresh.is_due(read_ns + 20_000_000, true));
        assert_eq!((images.images().len(), read_ns), (21, 2_101_000_000));
    }

    #[test]
    fn images_are_those_of_a_sample_if_nothing_was_loaded_or_unloaded_between() {
        let counts = |loads, unloads| LibraryCounts { loads, unloads };
        let (early, late) = (10, 30);
        for (list, covers_ns, sample, expected) in [
            // The same libraries.
            ([counts(5, 0); 2], early, [counts(5, 0); 2], true),
            // Unloaded since: what the stack leads to was not.
            ([counts(5, 0); 2], early, [counts(5, 1); 2], true),
            // Loaded since, perhaps at the address of one that was unloaded.
            ([counts(5, 0); 2], early, [counts(6, 1); 2], false),
            ([counts(5, 0); 2], early, [counts(6, 0); 2], false),
            // Read after the sample: only loaded since; unloaded too; while it was taken; while they were read.
            ([counts(7, 1); 2], late, [counts(6, 1); 2], true),
            ([counts(7, 2); 2], late, [counts(6, 1); 2], false),
            ([counts(7, 1); 2], late, [counts(5, 0), counts(6, 1)], false),
            ([counts(7, 1), counts(7, 2)], late, [counts(6, 1); 2], false),
        ] {
            let refresh = ImageRefresh { libraries: Some(list), covers_ns, ..ImageRefresh::default() };
            let sample = Sample {
                thread: ThreadId(1),
                capture: Box::default(),
                libraries: Some(sample),
                at_ns: 20,
                waiting: false,
                off_cpu_ns: 0,
            };
            assert_eq!(refresh.is_of(&sample), expected, "{list:?} {covers_ns} {sample:?}");
            assert!(!ImageRefresh::default().is_of(&sample), "nothing was read");
            assert!(refresh.is_of(&Sample { libraries: None, ..sample }), "where they are not known");
        }
    }

    /// A process without mappings.
    struct Empty {
        reports: bool,
    }

    impl Observed for Empty {
        fn process(&self) -> &Process {
            unreachable!("nobody asks")
        }
        fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
            out.clear();
            Ok(())
        }
        fn reports_mmaps(&self) -> bool {
            self.reports
        }
        fn image_bytes(&mut self, _: &Mapping) -> Result<ImageBytes, OpenError> {
            unreachable!("there is no image")
        }
    }

    /// Number of times mappings are listed in 10 s while stacks constantly lead out of the known code.
    fn listed_in_ten_seconds(reports: bool, report_every_ms: u64) -> u64 {
        let (mut images, mut jit, mut refresh) =
            (Images::default(), JitCode::default(), ImageRefresh::default());
        let now_ns = Cell::new(0);
        let mut listed = 0;
        for ms in 1..=10_000 {
            now_ns.set(ms * 1_000_000);
            if ms % report_every_ms == 0 {
                refresh.note_change();
            }
            if refresh.may_retry(now_ns.get()) || refresh.is_due(now_ns.get(), true) {
                refresh.read(&mut Empty { reports }, &|| now_ns.get(), &mut images, 0, &mut jit);
                listed += 1;
            }
        }
        listed
    }

    #[test]
    fn unknown_code_causes_few_reads_if_new_mappings_are_reported() {
        let (silent, telling) = (listed_in_ten_seconds(false, 20_000), listed_in_ten_seconds(true, 20_000));
        assert!((190..=210).contains(&silent), "{silent} times");
        assert!((10..=20).contains(&telling), "{telling} times");
        // A report takes effect at once.
        let reported = listed_in_ten_seconds(true, 100);
        assert!(reported >= 100, "{reported} times");
    }
}

#[cfg(test)]
mod image_loads_tests {
    use super::*;
    use crate::addr::Avma;

    fn mapping(number: u64, path: &str, kind: MappingKind) -> Mapping {
        let start = number << 20;
        Mapping {
            avma: Avma(start)..Avma(start + 4096),
            file_offset: 0,
            path: path.into(),
            kind,
            identity: (1, number),
        }
    }

    #[test]
    fn only_new_files_are_loads_and_each_counts_once() {
        let mut loads = ImageLoads::default();
        let file = |number, path| mapping(number, path, MappingKind::File);
        loads.update(&[file(1, "/bin/prog")]);
        assert_eq!(loads.new, [""; 0]);
        let more = [
            file(1, "/bin/prog"),
            file(2, "/lib/a.so"),
            file(3, "/lib/a.so"),
            mapping(4, "", MappingKind::Anonymous),
        ];
        loads.update(&more);
        loads.update(&more);
        assert_eq!(loads.new, ["/lib/a.so"]);
    }
}
