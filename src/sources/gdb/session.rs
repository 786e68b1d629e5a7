//! Requests and replies: features of the stub, one packet after another or many in flight, and long objects
//! in pieces. Independent of threads and stops (`run.rs`).

use std::time::{Duration, Instant};

use super::link::Link;
use super::run::{StopReply, Tid};
use super::transport::ConnectionError;

/// Granularity at which failed reads of a process's memory are retried: no system has smaller pages.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Time limit for the first reply: a stub that was just started is not ready at once.
const FIRST: Duration = Duration::from_secs(10);
/// Time limit for any other reply.
pub(super) const ANSWER: Duration = Duration::from_secs(5);
/// Most requests in flight, and their bytes: they fit into any socket's buffer, so that a stub that blocks
/// until its replies are read never blocks us.
const FLIGHT_PACKETS: usize = 64;
const FLIGHT_BYTES: usize = 4096;
/// Bounds of the packet sizes used.
const PACKET_BYTES_LEAST: usize = 256;
const PACKET_BYTES_MOST: usize = 128 << 10;
/// Features that we offer. `xmlRegisters` makes stubs for Intel send their description.
const QUESTION: &[u8] =
    b"qSupported:multiprocess+;xmlRegisters=i386,arm,aarch64;exec-events+;vContSupported+;no-resumed+";

/// Features that a stub reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Features {
    /// Most characters of a packet.
    pub(super) packet_bytes: usize,
    pub(super) multiprocess: bool,
    pub(super) non_stop: bool,
    pub(super) features_xml: bool,
    pub(super) threads_xml: bool,
    pub(super) auxv: bool,
    pub(super) exec_file: bool,
    pub(super) libraries_svr4: bool,
    pub(super) pass_signals: bool,
    /// Replies to `x` have a `b` before the bytes (gdb 16).
    pub(super) binary_memory: bool,
    /// It has lldb's extensions: registers of any thread by a suffix, signals in the system's numbering.
    pub(super) lldb: bool,
    /// `vCont` supports these actions.
    pub(super) continues: bool,
    pub(super) continues_with_signal: bool,
    pub(super) stops_threads: bool,
}

impl Features {
    /// Parses the reply to `qSupported`.
    pub(super) fn parse(answer: &[u8]) -> Features {
        let mut offers = Features { packet_bytes: 400, ..Features::default() };
        for feature in answer.split(|byte| *byte == b';') {
            if let Some(size) = feature.strip_prefix(b"PacketSize=") {
                let size = super::link::number(size).and_then(|size| usize::try_from(size).ok());
                offers.packet_bytes = size.unwrap_or(offers.packet_bytes);
            }
            let Some(name) = feature.strip_suffix(b"+") else { continue };
            match name {
                b"multiprocess" => offers.multiprocess = true,
                b"QNonStop" => offers.non_stop = true,
                b"qXfer:features:read" => offers.features_xml = true,
                b"qXfer:threads:read" => offers.threads_xml = true,
                b"qXfer:auxv:read" => offers.auxv = true,
                b"qXfer:exec-file:read" => offers.exec_file = true,
                b"qXfer:libraries-svr4:read" => offers.libraries_svr4 = true,
                b"QPassSignals" => offers.pass_signals = true,
                b"binary-upload" => offers.binary_memory = true,
                _ => {}
            }
        }
        offers.packet_bytes = offers.packet_bytes.clamp(PACKET_BYTES_LEAST, PACKET_BYTES_MOST);
        offers
    }
}

/// A connected stub. See `run.rs` for stops, `threads.rs`, `memory.rs` for requests.
pub(super) struct Stub {
    pub(super) link: Link,
    pub(super) offers: Features,
    /// Many requests may be in flight.
    pipelines: bool,
    /// The deadline of all requests, their total time, and their subject.
    limit: Option<(Instant, Duration, &'static str)>,
    /// Granularity of the end of memory, bytes.
    pub(super) memory_ends_at: u64,
    pub(super) run: super::run::Run,
}

impl Stub {
    /// A stub in unknown state.
    pub(super) fn new(link: Link) -> Stub {
        let (offers, run) = (Features::default(), super::run::Run::default());
        Stub { link, offers, pipelines: false, limit: None, memory_ends_at: PAGE_BYTES, run }
    }

    /// Queries the stub's features and configures the connection.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn greet(&mut self) -> Result<(), ConnectionError> {
        self.link.send(QUESTION)?;
        let answer = self.answer(QUESTION, FIRST)?;
        self.offers = Features::parse(&answer);
        if self.call(b"QStartNoAckMode")? == b"OK" {
            self.link.stop_acknowledging();
            self.pipelines = self.answers_both()?;
        }
        // Each of these changes the form of later replies, if supported.
        if self.call(b"QThreadSuffixSupported")? == b"OK" {
            self.offers.lldb = true;
            self.call(b"QListThreadsInStopReply")?;
            // In case we are killed: without it debugserver kills its target.
            self.call(b"QSetDetachOnError:1")?;
        }
        let actions = self.call(b"vCont?")?;
        if let Some(actions) = actions.strip_prefix(b"vCont") {
            let has = |action: &[u8]| actions.split(|byte| *byte == b';').any(|other| other == action);
            self.offers.continues = has(b"c");
            self.offers.continues_with_signal = has(b"C");
            self.offers.stops_threads = has(b"t");
        }
        Ok(())
    }

    /// Sets a deadline for all requests from here on; `what` is their subject, for people.
    pub(super) fn within(&mut self, time: Duration, what: &'static str) {
        self.limit = Some((self.link.now() + time, time, what));
    }

    /// Removes the deadline.
    pub(super) fn without_limit(&mut self) {
        self.limit = None;
    }

    /// Sends a request and waits for the reply. Not while the target runs in all-stop mode: the reply would
    /// be the next stop.
    ///
    /// # Errors
    /// No reply in time, or an invalid one.
    pub(super) fn call(&mut self, body: &[u8]) -> Result<Vec<u8>, ConnectionError> {
        self.link.send(body)?;
        self.answer(body, ANSWER)
    }

    /// The reply to a request that was sent.
    pub(super) fn answer(&mut self, question: &[u8], time: Duration) -> Result<Vec<u8>, ConnectionError> {
        let now = self.link.now();
        let mut until = now + time;
        if let Some((limit, time, what)) = self.limit {
            if now >= limit {
                return Err(ConnectionError::Endless(what, time));
            }
            until = until.min(limit.max(now + Duration::from_millis(1)));
        }
        loop {
            match self.link.packet(until)? {
                // QEMU 7 reports the stop at connection without a request.
                Some(answer) if !tells_of_stops(question) && is_stop(&answer) => {}
                Some(answer) => return Ok(answer),
                None => {
                    return match self.limit {
                        Some((limit, time, what)) if self.link.now() >= limit => {
                            Err(ConnectionError::Endless(what, time))
                        }
                        _ => Err(ConnectionError::Silent(shown(question), time)),
                    };
                }
            }
        }
    }

    /// Sends all these requests in the fewest round trips; returns the replies in the same order.
    ///
    /// # Errors
    /// See [`Stub::call`], for any of them.
    pub(super) fn flight(&mut self, questions: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, ConnectionError> {
        let mut answers = Vec::with_capacity(questions.len());
        if !self.pipelines {
            for question in questions {
                answers.push(self.call(question)?);
            }
            return Ok(answers);
        }
        let (mut sent, mut bytes) = (0, 0);
        while answers.len() < questions.len() {
            let first = sent;
            while let Some(next) = questions.get(sent)
                && (sent == answers.len()
                    || sent - answers.len() < FLIGHT_PACKETS && bytes + next.len() <= FLIGHT_BYTES)
            {
                bytes += next.len();
                sent += 1;
            }
            if sent > first {
                self.link.send_all(questions[first..sent].iter().map(Vec::as_slice))?;
            }
            let question = &questions[answers.len()];
            answers.push(self.answer(question, ANSWER)?);
            bytes -= question.len();
        }
        Ok(answers)
    }

    /// Reads an object of limited size in pieces (`qXfer`); `None` if it does not exist.
    ///
    /// # Errors
    /// See [`Stub::call`]; or the object is larger.
    pub(super) fn transfer(
        &mut self,
        object: &str,
        annex: &str,
        most: usize,
    ) -> Result<Option<Vec<u8>>, ConnectionError> {
        let mut bytes = Vec::new();
        loop {
            // The leading letter and escapes have to fit as well.
            let piece = self.offers.packet_bytes.saturating_sub(64).max(64);
            let question = format!("qXfer:{object}:read:{annex}:{:x},{piece:x}", bytes.len());
            let answer = self.call(question.as_bytes())?;
            let Some((kind, rest)) = answer.split_first() else { return Ok(None) };
            match kind {
                b'm' if rest.is_empty() => {
                    return Err(ConnectionError::Nonsense(format!("an empty piece of `{object}`")));
                }
                b'm' | b'l' => bytes.extend_from_slice(rest),
                _ => return Ok(None),
            }
            if bytes.len() > most {
                return Err(ConnectionError::Nonsense(format!("more than {most} bytes of `{object}`")));
            }
            if *kind == b'l' {
                return Ok(Some(bytes));
            }
        }
    }

    /// Whether the stub replies to both of two requests in flight. Some drop input that arrives before they
    /// have replied.
    fn answers_both(&mut self) -> Result<bool, ConnectionError> {
        let questions = [b"qC".as_slice(), b"qC"];
        self.link.send_all(questions.into_iter())?;
        self.answer(questions[0], ANSWER)?;
        Ok(self.link.packet(self.link.now() + ANSWER)?.is_some())
    }

    /// Selects an existing thread for requests without a thread: the one selected last may have exited, and
    /// gdbserver 13 fails an assertion if none was ever selected.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn choose_any_thread(&mut self) -> Result<(), ConnectionError> {
        let Some(first) = self.run.threads.first().copied() else { return Ok(()) };
        match self.thread_words(first) {
            (Some(choose), _) => self.call(&choose).map(drop),
            _ => Ok(()),
        }
    }

    /// The suffix that selects a thread, or the packet to send before.
    pub(super) fn thread_words(&self, tid: Tid) -> (Option<Vec<u8>>, String) {
        if self.run.has_one_thread {
            (None, String::new())
        } else if self.offers.lldb {
            (None, format!(";thread:{:04x};", tid.tid))
        } else {
            (Some(format!("Hg{tid}").into_bytes()), String::new())
        }
    }
}

/// Whether a request is answered by a stop reply.
fn tells_of_stops(question: &[u8]) -> bool {
    matches!(question, b"?" | b"Ctrl-C" | b"vStopped") || question.starts_with(b"vCont;")
}

/// Whether a reply is a stop reply; no other requested reply has its form.
fn is_stop(answer: &[u8]) -> bool {
    matches!(StopReply::parse(answer), Some(StopReply::Stopped { .. } | StopReply::Ended(_)))
}

/// The beginning of a request, for people.
fn shown(question: &[u8]) -> String {
    let end = question.iter().position(|byte| matches!(byte, b':' | b',' | b';'));
    let end = end.unwrap_or(question.len()).min(24);
    String::from_utf8_lossy(&question[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_features_of_gdbserver() {
        let offers = Features::parse(
            b"PacketSize=47ff;QPassSignals+;QProgramSignals+;qXfer:libraries-svr4:read+;\
              qXfer:auxv:read+;QNonStop+;multiprocess+;qXfer:threads:read+;hwbreak+;vForkEvents-",
        );
        assert!(offers.non_stop && offers.multiprocess && offers.auxv && offers.threads_xml);
        assert!(!offers.features_xml && !offers.binary_memory);
        assert_eq!(offers.packet_bytes, 0x47ff);
    }

    #[test]
    fn packet_sizes_are_clamped() {
        let size = |answer: &[u8]| Features::parse(answer).packet_bytes;
        assert_eq!(size(b""), 400);
        assert_eq!(size(b"PacketSize=0"), PACKET_BYTES_LEAST);
        assert_eq!(size(b"PacketSize=ffffffffffffffff"), PACKET_BYTES_MOST);
        assert_eq!(size(b"PacketSize=nonsense"), 400);
    }
}
