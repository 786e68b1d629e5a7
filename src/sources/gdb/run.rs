//! Stops and continues the whole target, and handles stop replies.
//!
//! `Run` is the run state of target and threads, `StopReply` a parsed stop reply.
//!
//! The mode depends on the stub: in *all-stop* mode the byte 3 stops everything, and a running target cannot
//! be queried; in *non-stop* mode `vCont;t` stops threads, each thread reports its stop separately, and files
//! and memory can be read at any time. A signal of the target for which a stub stops is forwarded.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashSet;

use super::link;
use super::session::{ANSWER, Stub};
use super::transport::ConnectionError;
use crate::sources::ExitStatus;
use crate::sources::signals::Hold;

/// Time for all threads to stop after the request.
pub(super) const STOP: Duration = Duration::from_secs(5);
/// Time for an orderly detach, and time to wait afterwards for a stub that does not reply: it may never read
/// the detach request if the connection is closed while it is busy.
const DETACH: Duration = Duration::from_secs(2);
const LAST: Duration = Duration::from_secs(5);
/// Time to wait for a stub to detach after it reported the exit of its process.
const LAST_OF_ENDED: Duration = Duration::from_millis(200);
/// If threads that should stop are silent for this long, their list is requested again.
const QUIET: Duration = Duration::from_millis(5);
/// Stops acknowledged in one batch.
const STOPS_AT_ONCE: usize = 256;
/// Last signal of a program in gdb's numbering (include/gdb/signals.def).
const LAST_SIGNAL: u8 = 0x96;
const SIGINT: u8 = 2;
const SIGTRAP: u8 = 5;
/// SIGSTOP in gdb's and macOS's numbering, and in Linux's, which lldb-server sends.
const SIGSTOP: u8 = 0x11;
const SIGSTOP_LINUX: u8 = 0x13;

impl Stub {
    /// Determines the state of the target and stops it.
    ///
    /// # Errors
    /// There is no target, or the stub cannot be reached.
    pub(super) fn begin(&mut self) -> Result<(), ConnectionError> {
        // lldb-server 19 sends notifications with wrong checksums, and cannot detach while its target runs.
        if self.offers.non_stop && self.offers.stops_threads && !self.offers.lldb {
            self.run.non_stop = self.call(b"QNonStop:1")? == b"OK";
        }
        let mut reply = self.call(b"?")?;
        loop {
            match StopReply::parse(&reply) {
                Some(StopReply::Stopped { thread, threads, .. }) => {
                    self.run.pid = self.run.pid.or(thread.and_then(|thread| thread.pid));
                    self.run.stopped.extend(thread.map(|thread| thread.tid));
                    self.run.threads.extend(threads);
                }
                Some(StopReply::Ended(_) | StopReply::Nobody) => {
                    return Err(ConnectionError::Nonsense(
                        "that it has no process; start it with one".to_owned(),
                    ));
                }
                Some(StopReply::Output) => {}
                None if self.run.non_stop => break,
                None => return Err(unexpected("?", &reply)),
            }
            if !self.run.non_stop {
                break;
            }
            // One thread per reply, until all were reported.
            reply = self.call(b"vStopped")?;
            if self.run.stopped.len() > THREADS_MAX {
                return Err(too_many());
            }
        }
        let current = self.call(b"qC")?;
        let current = current.strip_prefix(b"QC").and_then(Tid::parse);
        self.run.pid = self.run.pid.or(current.and_then(|current| current.pid));
        self.list_threads()?;
        if self.run.threads.is_empty() {
            self.run.has_one_thread = true;
            self.run.threads.push(current.unwrap_or(Tid { pid: None, tid: 1 }));
        }
        if self.run.non_stop && self.run.threads.iter().any(|tid| !self.run.stopped.contains(&tid.tid)) {
            // A previous client has continued some.
            self.run.running = true;
            self.stop()?;
        }
        self.pass_signals()
    }

    /// Makes the stub deliver the program's signals without a stop, except those used for stops.
    fn pass_signals(&mut self) -> Result<(), ConnectionError> {
        if !self.offers.pass_signals {
            return Ok(());
        }
        let ours: &[u8] = match (self.run.non_stop, self.offers.lldb) {
            (true, false) => &[SIGTRAP],
            _ => &[SIGTRAP, SIGINT, SIGSTOP, SIGSTOP_LINUX],
        };
        let signals = (1..=LAST_SIGNAL).filter(|signal| !ours.contains(signal));
        let list: Vec<String> = signals.map(|signal| format!("{signal:x}")).collect();
        // If refused, signals are forwarded from here.
        self.call(format!("QPassSignals:{}", list.join(";")).as_bytes()).map(drop)
    }

    /// Whether files and memory can be read in the current state.
    pub(super) fn can_be_asked(&self) -> bool {
        self.run.non_stop || !self.run.running
    }

    /// Stops the target. Returns whether it is stopped; false if it has exited.
    ///
    /// # Errors
    /// It did not stop in time, or the stub cannot be reached.
    pub(super) fn stop(&mut self) -> Result<bool, ConnectionError> {
        if self.run.running && !self.run.ended {
            self.run.hold.get_or_insert_with(Hold::of_stopped_target);
            if self.run.non_stop { self.stop_threads()? } else { self.interrupt()? }
        }
        Ok(!self.run.ended)
    }

    fn interrupt(&mut self) -> Result<(), ConnectionError> {
        self.link.interrupt()?;
        self.run.owed_interrupts += 1;
        let mut silent = true;
        while self.run.running && !self.run.ended {
            let reply = self.answer(b"Ctrl-C", STOP).map_err(|broken| match broken {
                ConnectionError::Endless(..) | ConnectionError::Silent(..) if silent => {
                    ConnectionError::Unstopped(STOP)
                }
                broken => broken,
            })?;
            silent = false;
            self.stopped_all(&reply)?;
        }
        Ok(())
    }

    /// Handles a stop reply in all-stop mode.
    pub(super) fn stopped_all(&mut self, reply: &[u8]) -> Result<(), ConnectionError> {
        match StopReply::parse(reply) {
            Some(StopReply::Stopped { signal, thread, exec, threads }) => {
                self.run.running = false;
                if !threads.is_empty() {
                    self.run.threads = sorted(threads);
                }
                if let Some(path) = exec {
                    self.run.news.push_back(TargetChange::Exec(path, thread));
                } else if self.run.owed_interrupts > 0 && self.is_of_a_stop(signal) {
                    self.run.owed_interrupts -= 1;
                } else {
                    self.note_signal(thread, signal);
                }
                Ok(())
            }
            Some(StopReply::Ended(status)) => {
                self.ended(status);
                Ok(())
            }
            Some(StopReply::Nobody) => {
                self.ended(ExitStatus::Unknown);
                Ok(())
            }
            Some(StopReply::Output) => Ok(()),
            None => Err(unexpected("vCont;c", reply)),
        }
    }

    fn ended(&mut self, status: ExitStatus) {
        self.run.ended = true;
        self.run.running = false;
        self.run.news.push_back(TargetChange::Ended(status));
    }

    /// Whether stubs report a requested stop with this signal.
    fn is_of_a_stop(&self, signal: u8) -> bool {
        let lldb = self.offers.lldb && signal == SIGSTOP_LINUX;
        matches!(signal, 0 | SIGINT | SIGTRAP | SIGSTOP) || lldb
    }

    /// Records a signal to forward to the program. Not SIGTRAP: stubs report an `exec` with it to clients
    /// that did not enable that event, and it would kill the program.
    fn note_signal(&mut self, thread: Option<Tid>, signal: u8) {
        if signal != 0 && signal != SIGTRAP {
            let thread = thread.or(self.run.threads.first().copied());
            self.run.deliver.extend(thread.map(|thread| (thread, signal)));
        }
    }

    fn stop_threads(&mut self) -> Result<(), ConnectionError> {
        let stop = format!("vCont;t{}", self.all_threads());
        let questions = [stop.into_bytes(), b"qfThreadInfo".to_vec(), b"qsThreadInfo".to_vec()];
        let answers = self.flight(&questions)?;
        if answers[0] != b"OK" {
            return Err(unexpected("vCont;t", &answers[0]));
        }
        self.finish_list(&answers[1..])?;
        loop {
            self.take_notifications()?;
            let stands = |tid: &Tid| self.run.stopped.contains(&tid.tid);
            if self.run.ended || self.run.threads.iter().all(stands) {
                break;
            }
            if !self.link.wait(QUIET)? {
                // Some may have exited meanwhile; `answer` limits the time.
                self.list_threads()?;
            }
        }
        self.run.running = false;
        Ok(())
    }

    /// The protocol's notation for all threads of the process.
    fn all_threads(&self) -> String {
        match self.run.pid {
            Some(pid) if self.offers.multiprocess => format!(":p{pid:x}.-1"),
            _ => ":-1".to_owned(),
        }
    }

    /// Consumes the stops that threads report in non-stop mode.
    fn take_notifications(&mut self) -> Result<(), ConnectionError> {
        while let Some(notification) = self.link.notification() {
            let Some(reply) = notification.strip_prefix(b"Stop:") else { continue };
            self.stopped_one(reply)?;
            // Acknowledging one returns the next. Too many acknowledgements do no harm.
            let mut more = true;
            while more {
                let left = self.run.threads.len().saturating_sub(self.run.stopped.len());
                let questions = vec![b"vStopped".to_vec(); (left + 1).min(STOPS_AT_ONCE)];
                for reply in self.flight(&questions)? {
                    if reply == b"OK" || reply.first() == Some(&b'E') {
                        more = false;
                    } else {
                        self.stopped_one(&reply)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles the stop reply of one thread.
    fn stopped_one(&mut self, reply: &[u8]) -> Result<(), ConnectionError> {
        match StopReply::parse(reply) {
            Some(StopReply::Stopped { signal, thread, exec, .. }) => {
                let Some(thread) = thread else { return Err(unexpected("vStopped", reply)) };
                self.run.stopped.insert(thread.tid);
                if self.run.stopped.len() > THREADS_MAX {
                    return Err(too_many());
                }
                if let Some(path) = exec {
                    self.run.news.push_back(TargetChange::Exec(path, Some(thread)));
                } else if !(self.offers.lldb && self.is_of_a_stop(signal)) {
                    self.note_signal(Some(thread), signal);
                }
            }
            Some(StopReply::Ended(status)) => self.ended(status),
            Some(StopReply::Output | StopReply::Nobody) => {}
            None => return Err(unexpected("vStopped", reply)),
        }
        Ok(())
    }

    /// Resumes the target.
    ///
    /// # Errors
    /// The stub refuses, or cannot be reached.
    pub(super) fn go(&mut self) -> Result<(), ConnectionError> {
        if self.run.running || self.run.ended {
            return Ok(());
        }
        self.run.hold = None;
        let signals = std::mem::take(&mut self.run.deliver);
        if self.run.non_stop {
            let mut actions = String::new();
            for (thread, signal) in signals {
                actions += &format!(";C{signal:02x}:{thread}");
            }
            let question = format!("vCont{actions};c{}", self.all_threads());
            self.run.stopped.clear();
            self.run.running = true;
            let answer = self.call(question.as_bytes())?;
            return if answer == b"OK" { Ok(()) } else { Err(unexpected("vCont;c", &answer)) };
        }
        let question = match signals.first() {
            Some((_, signal)) if !self.offers.continues_with_signal => format!("C{signal:02x}"),
            Some((thread, signal)) => format!("vCont;C{signal:02x}:{thread};c"),
            None if self.offers.continues => "vCont;c".to_owned(),
            None => "c".to_owned(),
        };
        self.run.running = true;
        self.link.send_order(question.as_bytes())
    }

    /// Waits up to `at_most` for an event of the running target, and resumes it.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn attend(&mut self, at_most: Duration) -> Result<(), ConnectionError> {
        if !self.link.wait(at_most)? {
            return Ok(());
        }
        if !self.run.non_stop {
            let reply = self.answer(b"vCont;c", ANSWER)?;
            self.stopped_all(&reply)?;
            return self.go();
        }
        self.take_notifications()?;
        // They stopped without a request: with a signal, or for an exec.
        let signals = std::mem::take(&mut self.run.deliver);
        let mut stopped: Vec<u64> = self.run.stopped.drain().collect();
        stopped.sort_unstable();
        for tid in stopped {
            let signal = signals.iter().find(|(thread, _)| thread.tid == tid);
            let thread = Tid { pid: self.run.pid.filter(|_| self.offers.multiprocess), tid };
            let question = match signal {
                Some((_, signal)) => format!("vCont;C{signal:02x}:{thread}"),
                None => format!("vCont;c:{thread}"),
            };
            // Continuing a thread that has exited does no harm.
            self.call(question.as_bytes())?;
        }
        Ok(())
    }

    /// Detaches, leaving the target running. `broken`: the stub has failed; it gets a detach request with
    /// hardly any wait.
    pub(super) fn detach(&mut self, broken: bool) {
        if self.run.ended {
            // There is nothing to release, unless the exit report was wrong.
            self.order_detach(LAST_OF_ENDED);
        } else {
            self.detach_as_it_is(broken);
        }
        self.run.hold = None;
    }

    fn detach_as_it_is(&mut self, broken: bool) {
        self.within(DETACH, "detaching");
        if broken || self.detach_in_order().is_err() {
            if self.run.running && !self.run.non_stop {
                let _ = self.link.interrupt();
            }
            self.order_detach(LAST);
        }
    }

    /// Sends a detach request, ignores the reply, and waits up to this long until the stub has read it.
    fn order_detach(&mut self, at_most: Duration) {
        let detach = self.detach_words();
        if self.link.send(detach.as_bytes()).is_ok() {
            self.link.settle(self.link.now() + at_most);
        }
    }

    fn detach_in_order(&mut self) -> Result<(), ConnectionError> {
        if !self.run.non_stop {
            self.stop()?;
            if !self.run.deliver.is_empty() {
                // Detaching would discard the pending signal.
                self.go()?;
                self.stop()?;
            }
        }
        if self.run.ended {
            self.order_detach(LAST_OF_ENDED);
            return Ok(());
        }
        let detach = self.detach_words();
        let answer = self.call(detach.as_bytes())?;
        if answer == b"OK" {
            return Ok(());
        }
        // The stub cannot detach: resume the target and close the connection.
        self.go()
    }

    fn detach_words(&self) -> String {
        match self.run.pid {
            Some(pid) if self.offers.multiprocess => format!("D;{pid:x}"),
            _ => "D".to_owned(),
        }
    }
}

// ---- The run state of a target and its threads.

/// An event of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetChange {
    /// It executed a new program; its path, if known.
    Exec(String, Option<Tid>),
    /// It has exited.
    Ended(ExitStatus),
}

/// Run state of a target.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The stub has no threads: packets need not name one.
    pub(super) has_one_thread: bool,
    /// Each thread reports its stop separately, and files and memory can be read while others run.
    pub(super) non_stop: bool,
    /// Prevents suspension and end of this process while the target is stopped.
    pub(super) hold: Option<Hold>,
    /// The target is believed to run.
    pub(super) running: bool,
    /// The process, if the stub reports it.
    pub(super) pid: Option<u64>,
    /// Its threads, sorted by number.
    pub(super) threads: Vec<Tid>,
    /// Threads known to be stopped, in non-stop mode.
    pub(super) stopped: HashSet<u64>,
    /// Interrupts sent that have not stopped the target yet: a later stop is due to them.
    pub(super) owed_interrupts: u32,
    /// Signals to deliver on resumption.
    pub(super) deliver: Vec<(Tid, u8)>,
    pub(super) news: VecDeque<TargetChange>,
    pub(super) ended: bool,
}

/// Most threads of a target.
pub(super) const THREADS_MAX: usize = 16_384;

/// Error for too many threads.
pub(super) fn too_many() -> ConnectionError {
    ConnectionError::Nonsense(format!("more than {THREADS_MAX} threads"))
}

/// Sorts by number and removes duplicates.
pub(super) fn sorted(mut threads: Vec<Tid>) -> Vec<Tid> {
    threads.sort_unstable_by_key(|thread| thread.tid);
    threads.dedup_by_key(|thread| thread.tid);
    threads
}

/// Error for an invalid reply.
pub(super) fn unexpected(question: &str, answer: &[u8]) -> ConnectionError {
    let mut text = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
    text.retain(|c| !c.is_control());
    ConnectionError::Nonsense(format!("`{text}` in answer to `{question}`"))
}

// ---- Parses stop replies: why the target stopped, or how it exited.
//
// Format: "Debugging with GDB", E.3 "Stop Reply Packets"; lldb's extensions: docs/resources/lldbgdbremote.md in
// LLVM.

/// Most threads taken from one reply.
const REPLY_THREADS_MAX: usize = 4096;

/// A thread in the protocol's notation: `p1f.20` with the process, `20` without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid {
    /// The process, if the stub reports it.
    pub pid: Option<u64>,
    /// The thread.
    pub tid: u64,
}

impl Tid {
    /// Parses `p1f.20`, `20` and `p1f` (`None`, as the thread is unknown).
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Tid> {
        let Some(rest) = text.strip_prefix(b"p") else {
            return Some(Tid { pid: None, tid: real(text)? });
        };
        let dot = rest.iter().position(|byte| *byte == b'.')?;
        Some(Tid { pid: Some(real(&rest[..dot])?), tid: real(&rest[dot + 1..])? })
    }
}

impl std::fmt::Display for Tid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "p{pid:x}.{:x}", self.tid),
            None => write!(f, "{:x}", self.tid),
        }
    }
}

/// A number other than "all" (-1) and "any" (0).
fn real(digits: &[u8]) -> Option<u64> {
    link::number(digits).filter(|number| *number != 0)
}

/// A parsed stop reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReply {
    /// A thread is stopped; in all-stop mode all others are, too.
    Stopped {
        /// In the stub's numbering; 0 for none.
        signal: u8,
        /// The thread, if known.
        thread: Option<Tid>,
        /// The process executed a new program, with this path, if known.
        exec: Option<String>,
        /// All threads, if the stub lists them.
        threads: Vec<Tid>,
    },
    /// The process has exited.
    Ended(ExitStatus),
    /// Output of the program: the target runs on.
    Output,
    /// No thread is left that could run.
    Nobody,
}

impl StopReply {
    /// Parses a stop reply; `None` for anything else.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<StopReply> {
        let (kind, rest) = body.split_first()?;
        let two = |rest: &[u8]| u8::try_from(link::number(rest.get(..2)?)?).ok();
        match kind {
            b'S' => Some(stopped(two(rest)?, &[])),
            b'T' => Some(stopped(two(rest)?, &rest[2..])),
            b'W' => Some(StopReply::Ended(ExitStatus::Code(one_to_semicolon(rest)?))),
            b'X' => Some(StopReply::Ended(ExitStatus::Signal(one_to_semicolon(rest)?))),
            b'N' => Some(StopReply::Nobody),
            b'O' if link::decode(rest).is_some() => Some(StopReply::Output),
            _ => None,
        }
    }
}

/// A number of one or more digits: gdbserver sends `W0;process:1f`.
fn one_to_semicolon(rest: &[u8]) -> Option<i32> {
    i32::try_from(link::number(rest.split(|byte| *byte == b';').next()?)?).ok()
}

fn stopped(signal: u8, pairs: &[u8]) -> StopReply {
    let (mut thread, mut exec, mut threads) = (None, None, Vec::new());
    for pair in pairs.split(|byte| *byte == b';') {
        let Some(colon) = pair.iter().position(|byte| *byte == b':') else { continue };
        let value = &pair[colon + 1..];
        match &pair[..colon] {
            b"thread" => thread = Tid::parse(value),
            b"exec" => exec = Some(link::text(value).unwrap_or_default()),
            b"reason" if value == b"exec" => exec = exec.or(Some(String::new())),
            b"threads" => {
                let list = value.split(|byte| *byte == b',');
                threads.extend(list.filter_map(Tid::parse).take(REPLY_THREADS_MAX));
            }
            _ => {}
        }
    }
    StopReply::Stopped { signal, thread, exec, threads }
}

#[cfg(test)]
mod stop_reply_tests {
    use super::*;

    #[test]
    fn parses_replies_of_gdbserver_qemu_and_lldb() {
        let thread = |pid, tid| Some(Tid { pid, tid });
        let stopped = |signal, thread| StopReply::Stopped { signal, thread, exec: None, threads: Vec::new() };
        assert_eq!(
            StopReply::parse(b"T0006:0*,;07:60e2*\";10:5d8de4f7;thread:p1e5d.1e5d;core:1;"),
            Some(stopped(0, thread(Some(0x1e5d), 0x1e5d)))
        );
        assert_eq!(StopReply::parse(b"T02thread:01;"), Some(stopped(2, thread(None, 1))));
        assert_eq!(StopReply::parse(b"S05"), Some(stopped(5, None)));
        let Some(StopReply::Stopped { threads, .. }) =
            StopReply::parse(b"T13thread:a1;name:work;threads:a1,a2,a3;00:00;")
        else {
            panic!("no stop")
        };
        assert_eq!(threads.len(), 3);
        let exec = StopReply::parse(b"T05exec:2f62696e2f6c73;thread:p7.7;");
        assert!(matches!(exec, Some(StopReply::Stopped { exec: Some(path), .. }) if path == "/bin/ls"));
        assert_eq!(StopReply::parse(b"W07;process:1e5d"), Some(StopReply::Ended(ExitStatus::Code(7))));
        assert_eq!(StopReply::parse(b"W0;process:11bd"), Some(StopReply::Ended(ExitStatus::Code(0))));
        assert_eq!(StopReply::parse(b"X09"), Some(StopReply::Ended(ExitStatus::Signal(9))));
        assert_eq!(StopReply::parse(b"O68690a"), Some(StopReply::Output));
    }

    #[test]
    fn other_replies_are_none() {
        for body in [b"".as_slice(), b"OK", b"E01", b"T", b"T0", b"Tzz", b"S", b"W", b"Xg0"] {
            assert_eq!(StopReply::parse(body), None, "{:?}", String::from_utf8_lossy(body));
        }
        assert_eq!(Tid::parse(b"p1.-1"), None);
        assert_eq!(Tid::parse(b"p1"), None);
        assert_eq!(Tid::parse(b"0"), None);
        assert_eq!(Tid::parse(b"p0.1"), None);
    }
}
