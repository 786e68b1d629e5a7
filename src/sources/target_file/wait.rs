//! File operations for a target in worker threads, with a bounded wait.
//!
//! A FUSE or network file system can leave any system call on a file unanswered, and a target can mount one.
//! The sampling thread hands the operation to a worker and waits for at most [`WAIT_MAX`]; a worker that
//! hangs is abandoned. Only time in which the worker sleeps counts, so that load on the machine has no
//! effect. Hanging places are recorded per process ([`Patience`]), and all waits of a run together are
//! bounded, too ([`WAITS_MAX`]).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::binary::OpenError;

/// Longest wait for opening one file.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// Longest wait for a file that is copied, which reads all of it.
const COPY_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest total wait for the files of one process.
const PROCESS_WAIT_MAX: Duration = Duration::from_secs(2);
/// Longest total wait for the files of a run, after which each one has [`LATE_WAIT`].
const WAITS_MAX: Duration = Duration::from_secs(3);
const LATE_WAIT: Duration = Duration::from_millis(10);
/// Most workers hanging at one time; with more, no file is opened.
const STUCK_MAX: usize = 256;
/// Poll interval for a worker that has not answered.
const SLICE: Duration = Duration::from_millis(10);
/// Longest wait for a worker that gets no CPU, in slices: ten minutes.
const SLICES_MAX: u32 = 60_000;
/// A worker's stack; it calls the system and parses nothing.
const STACK_BYTES: usize = 256 << 10;

/// Location of a file operation: those known to hang are not tried again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileLocation {
    /// The device of a mapped file, as the kernel states it.
    #[cfg(any(target_os = "linux", test))]
    Device(u64),
    /// The directory of a path named by the target.
    Directory(String),
}

impl FileLocation {
    /// The directory of a path.
    pub(crate) fn of(path: &str) -> FileLocation {
        FileLocation::Directory(path.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned())
    }
}

/// Places that hung among the files of one process, and the total wait for them.
#[derive(Debug)]
pub(crate) struct Patience {
    workers: &'static Workers,
    waited_ms: AtomicU64,
    silent: Mutex<HashSet<FileLocation>>,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { workers: &WORKERS, waited_ms: AtomicU64::new(0), silent: Mutex::default() }
    }
}

impl Patience {
    /// With workers of its own, which the calling thread starts: they have its rights.
    pub(super) fn with_own_workers() -> Patience {
        Patience { workers: Box::leak(Box::new(Workers::new())), ..Patience::default() }
    }

    /// Runs an operation in another thread and waits for its result, with a bound.
    ///
    /// # Errors
    /// [`OpenError::TimedOut`], or the error of the operation.
    pub(crate) fn wait_for<T: Send + 'static>(
        &self,
        place: FileLocation,
        work: impl FnOnce(&Copying) -> Result<T, OpenError> + Send + 'static,
    ) -> Result<T, OpenError> {
        let silent = || self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if self.waited_ms.load(Relaxed) >= PROCESS_WAIT_MAX.as_millis() as u64 || silent().contains(&place) {
            return Err(OpenError::TimedOut);
        }
        let (result, waited) = self.workers.wait_for(work);
        self.waited_ms.fetch_add(waited.as_millis() as u64, Relaxed);
        result.unwrap_or_else(|| {
            silent().insert(place);
            Err(OpenError::TimedOut)
        })
    }
}

/// Set by an operation before it reads a whole file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copying(Arc<AtomicBool>);

impl Copying {
    /// Notes that the file is read as a whole from now on.
    pub(super) fn begin(&self) {
        self.0.store(true, Relaxed);
    }
}

/// All workers of this program.
static WORKERS: Workers = Workers::new();

type Work = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
struct Worker {
    work: Sender<Work>,
    /// Its thread id; 0 until it runs.
    tid: Arc<AtomicI32>,
}

/// Idle threads, and the total wait for hanging ones.
#[derive(Debug)]
struct Workers {
    idle: Mutex<Vec<Worker>>,
    waited_ms: AtomicU64,
    stuck: AtomicUsize,
}

impl Workers {
    const fn new() -> Workers {
        Workers { idle: Mutex::new(Vec::new()), waited_ms: AtomicU64::new(0), stuck: AtomicUsize::new(0) }
    }

    /// The result of an operation, `None` if it hangs; and the waiting time, if longer than any local file
    /// system takes.
    fn wait_for<T: Send + 'static>(
        &'static self,
        work: impl FnOnce(&Copying) -> Result<T, OpenError> + Send + 'static,
    ) -> (Option<Result<T, OpenError>>, Duration) {
        if self.stuck.load(Relaxed) >= STUCK_MAX {
            return (None, Duration::ZERO);
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let known = idle().pop();
        let Some(worker) = known.or_else(start) else {
            return (Some(Err(OpenError::Source("no thread could be started to open it"))), Duration::ZERO);
        };
        let (copying, abandoned) = (Copying::default(), Arc::new(AtomicBool::new(false)));
        let (answer, answered) = mpsc::sync_channel(1);
        let (in_worker, was_abandoned) = (copying.clone(), Arc::clone(&abandoned));
        let sent = worker.work.send(Box::new(move || {
            let _ = answer.send(work(&in_worker));
            if was_abandoned.load(Relaxed) {
                self.stuck.fetch_sub(1, Relaxed);
            }
        }));
        let mut asleep = Duration::ZERO;
        let mut slices = 0;
        let result = loop {
            match answered.recv_timeout(SLICE) {
                Ok(result) => {
                    idle().push(worker);
                    break Some(result);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    debug_assert!(sent.is_ok());
                    break Some(Err(OpenError::Source("opening it failed")));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            slices += 1;
            if !runs(worker.tid.load(Relaxed)) {
                asleep += SLICE;
            }
            if asleep >= self.limit(&copying) || slices >= SLICES_MAX {
                abandoned.store(true, Relaxed);
                self.stuck.fetch_add(1, Relaxed);
                // It may have answered in between.
                match answered.try_recv() {
                    Ok(result) => {
                        self.stuck.fetch_sub(1, Relaxed);
                        break Some(result);
                    }
                    Err(_) => break None,
                }
            }
        };
        self.waited_ms.fetch_add(asleep.as_millis() as u64, Relaxed);
        (result, asleep)
    }

    fn limit(&self, copying: &Copying) -> Duration {
        match copying.0.load(Relaxed) {
            _ if self.waited_ms.load(Relaxed) >= WAITS_MAX.as_millis() as u64 => LATE_WAIT,
            true => COPY_WAIT_MAX,
            false => WAIT_MAX,
        }
    }
}

/// Ends idle workers: later ones have the privileges of the thread that starts them.
#[cfg(target_os = "linux")] // on other systems all threads have the same privileges
pub(crate) fn end_idle_workers() {
    WORKERS.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Starts a worker. It ends when all senders are gone.
fn start() -> Option<Worker> {
    let (work, todo) = mpsc::channel::<Work>();
    let tid = Arc::new(AtomicI32::new(0));
    let own = Arc::clone(&tid);
    let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        own.store(super::own_tid::own_tid(), Relaxed);
        while let Ok(work) = todo.recv() {
            work();
        }
    });
    started.ok().map(|_| Worker { work, tid })
}

/// Whether a thread of this process runs or waits for a CPU, as far as the system reports.
fn runs(tid: i32) -> bool {
    if tid == 0 {
        return true;
    }
    let stat = std::fs::read(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    state == Some(&b'R')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers for one test, independent of the waits of others.
    fn patience() -> (Patience, &'static Workers) {
        let workers: &'static Workers = Box::leak(Box::new(Workers::new()));
        (Patience { workers, ..Patience::default() }, workers)
    }

    fn why<T>(result: Result<T, OpenError>) -> Option<String> {
        result.err().map(|why| why.to_string())
    }

    fn no_answer() -> Option<String> {
        Some("its file system does not answer".to_owned())
    }

    /// An operation that hangs until the sender is dropped.
    fn hang(until: mpsc::Receiver<()>) -> impl FnOnce(&Copying) -> Result<u8, OpenError> + Send {
        move |_| {
            let _ = until.recv();
            Ok(1)
        }
    }

    #[test]
    fn a_hanging_operation_is_abandoned_and_its_place_avoided() {
        let (patience, workers) = patience();
        let (release, until) = mpsc::channel();
        let silent = FileLocation::of("/mnt/a");
        assert_eq!(patience.wait_for(silent.clone(), |_| Ok(7)).ok(), Some(7));
        assert_eq!(why(patience.wait_for(silent, hang(until))), no_answer());
        assert_eq!(workers.stuck.load(Relaxed), 1);
        // Not started: it would set the flag.
        let begun = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&begun);
        let again = patience.wait_for(FileLocation::of("/mnt/b"), move |_| {
            flag.store(true, Relaxed);
            Ok(())
        });
        assert_eq!(why(again), no_answer());
        assert!(!begun.load(Relaxed));
        assert_eq!(
            patience.wait_for(FileLocation::of("/usr/lib/b"), |_| Ok(7)).ok(),
            Some(7),
            "others answer"
        );
        // A late answer means that the worker is no longer stuck.
        drop(release);
        while workers.stuck.load(Relaxed) > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn many_hanging_places_cost_a_bounded_wait() {
        let (_, workers) = patience();
        let mut releases = Vec::new();
        let mut waited = Duration::ZERO;
        for number in 0..40 {
            let process = Patience { workers, ..Patience::default() };
            let (release, until) = mpsc::channel();
            releases.push(release);
            assert!(process.wait_for(FileLocation::Device(number), hang(until)).is_err());
            waited = Duration::from_millis(workers.waited_ms.load(Relaxed));
        }
        assert!(waited <= WAITS_MAX + WAIT_MAX + LATE_WAIT * 40, "{waited:?}");
        let process = Patience { workers, ..Patience::default() };
        assert_eq!(process.wait_for(FileLocation::Device(1), |_| Ok(7)).ok(), Some(7), "others answer");
    }

    #[test]
    fn a_process_with_only_hanging_files_is_given_up() {
        let (patience, _) = patience();
        let mut releases = Vec::new();
        let mut begun = 0;
        for number in 0..10 {
            let (release, until) = mpsc::channel();
            let (tell, told) = mpsc::channel();
            releases.push(release);
            let hang = hang(until);
            let work = move |copying: &Copying| {
                let _ = tell.send(());
                hang(copying)
            };
            assert!(patience.wait_for(FileLocation::Device(number), work).is_err());
            begun += u64::from(told.recv().is_ok());
        }
        assert_eq!(begun, (PROCESS_WAIT_MAX.as_millis() / WAIT_MAX.as_millis()) as u64);
        assert_eq!(why(patience.wait_for(FileLocation::Device(99), |_| Ok(7))), no_answer());
    }
}
