//! A simulated stub: answers as gdbserver or a board would for a made-up target, or as debugserver does, with
//! faults at a chosen answer, and notes what it was told to do with its target. Its time passes only while the
//! profiler waits for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use stackprof::clock::{Clock, FakeClock};
use stackprof::sources::gdb::{self, ConnectionError, GdbTarget, InitialState, StubAddress, StubStream};

use super::Rng;
use super::targets::{
    ARM_WITHOUT_REGISTERS, CORTEX_M, CORTEX_M_SYSTEM, HOST_INFO, MACH_LOAD, PROCESS_INFO, PROCESS_SP,
    PROCESS_SP_QUESTION, STACK_END, X86_64, arm_registers, in_digits, memory, register_info, registers,
};

/// What goes wrong, from the answer of this number (0 is the first) on or with it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Nothing.
    Nothing,
    /// One answer has a wrong checksum.
    Checksum(usize),
    /// One answer ends in the middle.
    Truncated(usize),
    /// No answer from there on, but what is sent is read and done.
    Silent(usize),
    /// One answer comes later than it may.
    Late(usize),
    /// The connection is closed instead.
    Closed(usize),
    /// One answer is random bytes.
    Garbage(usize, u64),
    /// One answer is random text in a packet of the right form.
    Nonsense(usize, u64),
    /// One answer is that the process has ended, which it has not.
    Ended(usize),
    /// One answer never ends.
    Endless(usize),
    /// Packets that nobody asked for, instead of an answer.
    Flood(usize),
    /// Every answer is late by some milliseconds.
    Slow,
    /// The list of threads has 2^32 of them.
    Threads,
    /// The list of threads is parts without end that have none of its own.
    ThreadsAgain,
}

/// What the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A process of x86_64.
    X86_64,
    /// A Cortex-M board.
    Board,
    /// The same, in a handler of an exception, and its stub tells the process stack pointer.
    Handler,
    /// A board of 32-bit Arm whose stub sends registers in gdb's order of old.
    OldBoard,
    /// A process of macOS behind debugserver.
    Debugserver,
}

/// How the stub behaves where it behaves well.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) kind: Kind,
    /// All-stop or non-stop mode.
    pub(crate) non_stop: bool,
    /// Packets need not be acknowledged.
    pub(crate) no_ack: bool,
    /// Threads of the target; 0 is a stub that has no lists.
    pub(crate) threads: usize,
    /// target.xml, if it has one.
    pub(crate) xml: Option<&'static str>,
    pub(crate) wrong: Wrong,
}

impl std::fmt::Debug for Manner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Manner { kind, non_stop, no_ack, threads, wrong, .. } = self;
        write!(f, "{kind:?}, {wrong:?}, non-stop {non_stop}, without acks {no_ack}, {threads} threads")
    }
}

impl Manner {
    pub(crate) fn all_stop() -> Manner {
        Manner {
            kind: Kind::X86_64,
            non_stop: false,
            no_ack: true,
            threads: 3,
            xml: Some(X86_64),
            wrong: Wrong::Nothing,
        }
    }

    pub(crate) fn board() -> Manner {
        Manner { kind: Kind::Board, threads: 1, xml: Some(CORTEX_M), ..Manner::all_stop() }
    }

    pub(crate) fn handler() -> Manner {
        Manner { kind: Kind::Handler, xml: Some(CORTEX_M_SYSTEM), ..Manner::board() }
    }

    pub(crate) fn old_board() -> Manner {
        Manner { kind: Kind::OldBoard, threads: 0, xml: Some(ARM_WITHOUT_REGISTERS), ..Manner::all_stop() }
    }

    pub(crate) fn debugserver() -> Manner {
        Manner { kind: Kind::Debugserver, xml: None, ..Manner::all_stop() }
    }

    pub(crate) fn non_stop() -> Manner {
        Manner { non_stop: true, ..Manner::all_stop() }
    }
}

/// What became of the target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate {
    /// It runs.
    pub(crate) runs: bool,
    pub(crate) detached: bool,
    pub(crate) stops: usize,
    /// Answers that were sent, or should have been.
    pub(crate) answers: usize,
    /// Acknowledgements of them, and the one at the start.
    pub(crate) acks: usize,
    /// Packets with a wrong checksum, and anything that writes memory or registers, or sets a breakpoint.
    pub(crate) harm: Vec<String>,
    /// Signals that were passed on.
    pub(crate) delivered: Vec<u8>,
}

/// Time of a read.
const POLL_NS: u64 = 1_000;
/// Time until a reply arrives.
const REPLY_NS: u64 = 10_000;
/// What late answers take, the first and any other: more than the 10 s and 5 s that the profiler waits for them.
const LATE_FIRST_NS: u64 = 10_500_000_000;
const LATE_NS: u64 = 5_500_000_000;
/// What each answer of a slow stub takes.
const SLOW_NS: u64 = 4_000_000;

/// Time of a read of what is sent without end, as of 6 MB/s: the longest packet that is accepted comes to its limit
/// before the wait for an answer does.
const TORRENT_NS: u64 = 10_000_000;

/// A stub for one connection, and its clock.
pub(crate) struct Fake {
    pub(crate) clock: FakeClock,
    server: Rc<RefCell<Server>>,
}

impl Fake {
    pub(crate) fn start(manner: Manner) -> Fake {
        Fake::with_images(manner, "{\"images\":[]}".to_owned())
    }

    /// One that lists these images, in debugserver's words.
    pub(crate) fn with_images(manner: Manner, images: String) -> Fake {
        let clock = FakeClock::default();
        let server = Server {
            manner,
            fate: Fate::default(),
            clock: clock.clone(),
            received: Vec::new(),
            sent: VecDeque::new(),
            busy_ns: 0,
            is_silent: false,
            torrent: None,
            is_closed: false,
            pieces: Rng::new(7),
            acks: true,
            non_stop: false,
            queue: 0,
            last: Vec::new(),
            images,
        };
        Fake { clock, server: Rc::new(RefCell::new(server)) }
    }

    /// Attaches the profiler.
    pub(crate) fn attach(&self, begin: InitialState) -> Result<GdbTarget, String> {
        let place = StubAddress::parse("simulated:1").unwrap();
        let connection =
            Connection { server: Rc::clone(&self.server), clock: self.clock.clone(), start: Instant::now() };
        let attached =
            gdb::attach_to_stream(Box::new(connection), &place, begin, Box::new(self.clock.clone()));
        attached.map_err(|error| error.to_string())
    }

    /// What became of the target so far.
    pub(crate) fn fate(&self) -> Fate {
        self.server.borrow().fate.clone()
    }
}

/// The profiler's end of the connection.
struct Connection {
    server: Rc<RefCell<Server>>,
    clock: FakeClock,
    start: Instant,
}

impl StubStream for Connection {
    fn read(&mut self, into: &mut [u8], at_most: Duration) -> Result<usize, ConnectionError> {
        let until_ns = self.clock.now_ns() + at_most.as_nanos() as u64;
        let read = self.server.borrow_mut().reply(into, until_ns);
        self.clock.advance(POLL_NS);
        read
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.server.borrow_mut().receive(bytes)
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.clock.now_ns())
    }
}

impl Drop for Connection {
    /// What the stub has not read by now is lost: the worst that the close of a socket does.
    fn drop(&mut self) {
        self.server.borrow_mut().is_closed = true;
    }
}

struct Server {
    manner: Manner,
    fate: Fate,
    clock: FakeClock,
    /// Bytes that it has not read yet: it is busy, or they are no whole packet.
    received: Vec<u8>,
    /// Bytes that were sent, and when they arrive.
    sent: VecDeque<(u64, Vec<u8>)>,
    /// It reads nothing before this time.
    busy_ns: u64,
    /// It sends nothing more, not even acknowledgements.
    is_silent: bool,
    /// What it sends without end, and where in it the next read begins.
    torrent: Option<(Vec<u8>, usize)>,
    is_closed: bool,
    /// Sizes of the pieces in which bytes arrive.
    pieces: Rng,
    acks: bool,
    non_stop: bool,
    /// Threads whose stops are not told yet, in non-stop mode.
    queue: usize,
    /// The last answer, as it should have been.
    last: Vec<u8>,
    /// The answer to debugserver's question for images.
    images: String,
}

impl Server {
    fn receive(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        if self.is_closed {
            return Err(ConnectionError::Closed);
        }
        self.received.extend_from_slice(bytes);
        self.work();
        Ok(())
    }

    /// Handles what it has received, unless it is busy or waits for its own bytes to be read.
    fn work(&mut self) {
        let mut received = std::mem::take(&mut self.received);
        while !self.is_closed
            && self.torrent.is_none()
            && self.busy_ns <= self.clock.now_ns()
            && let Some(body) = self.next_body(&mut received)
        {
            self.handle(&body);
        }
        self.received = received;
    }

    /// Works on until `until_ns`, or until something that it has sent arrives.
    fn work_until(&mut self, until_ns: u64) {
        loop {
            self.work();
            let arrives_ns = self.sent.front().map_or(u64::MAX, |(at_ns, _)| *at_ns);
            let is_busy = self.busy_ns > self.clock.now_ns() && !self.received.is_empty();
            if !is_busy || self.busy_ns > until_ns.min(arrives_ns) {
                return;
            }
            self.clock.advance_to(self.busy_ns);
        }
    }

    /// Bytes for the profiler, which waits for them until `until_ns`.
    fn reply(&mut self, into: &mut [u8], until_ns: u64) -> Result<usize, ConnectionError> {
        self.work_until(until_ns);
        let Some((at_ns, mut bytes)) = self.sent.pop_front() else {
            return self.reply_without_end(into, until_ns);
        };
        if at_ns > until_ns {
            self.sent.push_front((at_ns, bytes));
            self.clock.advance_to(until_ns);
            return Ok(0);
        }
        self.clock.advance_to(at_ns);
        let piece = if self.pieces.below(4) == 0 { 1 + self.pieces.below(20) } else { usize::MAX };
        let count = piece.min(bytes.len()).min(into.len());
        let rest = bytes.split_off(count);
        into[..count].copy_from_slice(&bytes);
        if !rest.is_empty() {
            self.sent.push_front((at_ns, rest));
        }
        Ok(count)
    }

    fn reply_without_end(&mut self, into: &mut [u8], until_ns: u64) -> Result<usize, ConnectionError> {
        if self.is_closed {
            return Err(ConnectionError::Closed);
        }
        let Some((bytes, at)) = &mut self.torrent else {
            self.clock.advance_to(until_ns);
            return Ok(0);
        };
        self.clock.advance(TORRENT_NS);
        for byte in &mut *into {
            *byte = bytes[*at];
            *at = (*at + 1) % bytes.len();
        }
        Ok(into.len())
    }

    /// The next packet, or Ctrl-C as a packet of its own.
    fn next_body(&mut self, bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
        loop {
            match bytes.first()? {
                3 => {
                    bytes.remove(0);
                    return Some(vec![3]);
                }
                b'$' => {
                    let end = bytes.iter().position(|byte| *byte == b'#')?;
                    if bytes.len() < end + 3 {
                        return None;
                    }
                    let body = bytes[1..end].to_vec();
                    if bytes[end + 1..end + 3] != *checksum(&body).as_bytes() {
                        self.fate.harm.push(format!("a wrong checksum of {}", body.escape_ascii()));
                    }
                    bytes.drain(..end + 3);
                    if self.acks {
                        self.write(b"+");
                    }
                    return Some(body);
                }
                b'-' => {
                    bytes.remove(0);
                    let last = self.last.clone();
                    self.write(&last);
                }
                b'+' => {
                    bytes.remove(0);
                    self.fate.acks += 1;
                }
                _ => drop(bytes.remove(0)),
            }
        }
    }

    fn handle(&mut self, body: &[u8]) {
        let text = String::from_utf8_lossy(body).into_owned();
        let harmful = ["M", "X", "G", "P", "Z", "z", "k", "vKill", "vRun", "s", "S", "vFile:pwrite"];
        if harmful.iter().any(|start| text.starts_with(start)) {
            self.fate.harm.push(text.clone());
        }
        let threads = self.manner.threads;
        let answer = match text.as_str() {
            "\u{3}" => {
                if !self.fate.runs {
                    return;
                }
                self.fate.runs = false;
                self.fate.stops += 1;
                format!("T02thread:01;{}", self.threads_in_stop())
            }
            _ if text.starts_with("qSupported") => {
                let xml = if self.manner.xml.is_some() { ";qXfer:features:read+" } else { "" };
                let non_stop = if self.manner.non_stop { ";QNonStop+" } else { "" };
                format!("PacketSize=1000{xml}{non_stop}")
            }
            "QStartNoAckMode" if self.manner.no_ack => {
                self.send("OK");
                self.acks = false;
                return;
            }
            "QNonStop:1" if self.manner.non_stop => {
                self.non_stop = true;
                "OK".to_owned()
            }
            "vCont?" => "vCont;c;C;t".to_owned(),
            "?" => {
                self.queue = threads.saturating_sub(1);
                format!("T05thread:1;{}", self.threads_in_stop())
            }
            "QThreadSuffixSupported" | "QListThreadsInStopReply" | "QSetDetachOnError:1"
                if self.is_lldbs() =>
            {
                "OK".to_owned()
            }
            "qHostInfo" if self.is_lldbs() => HOST_INFO.to_owned(),
            "qProcessInfo" if self.is_lldbs() => PROCESS_INFO.to_owned(),
            "jThreadsInfo" if self.is_lldbs() => "[{\"tid\":1,\"name\":\"main\"}]".to_owned(),
            _ if self.is_lldbs() && text.starts_with("jGetLoadedDynamicLibrariesInfos:") => {
                self.images.clone()
            }
            _ if self.is_lldbs() && text.starts_with("qRegisterInfo") => register_info(&text),
            _ if self.is_lldbs() && text.starts_with("g;") => self.registers(),
            "vStopped" => self.next_stop(),
            "qC" => "QC1".to_owned(),
            "qfThreadInfo" if threads > 0 => match self.manner.wrong {
                Wrong::ThreadsAgain => "m1".to_owned(),
                _ => {
                    let list: Vec<String> = (1..=threads).map(|tid| format!("{tid:x}")).collect();
                    format!("m{}", list.join(","))
                }
            },
            "qsThreadInfo" if threads > 0 => match self.manner.wrong {
                Wrong::Threads => {
                    let list: Vec<String> = (0..200).map(|tid| format!("{:x}", 0x1000 + tid)).collect();
                    format!("m{}", list.join(","))
                }
                Wrong::ThreadsAgain => "m1".to_owned(),
                _ => "l".to_owned(),
            },
            "g" => self.registers(),
            PROCESS_SP_QUESTION if self.manner.kind == Kind::Handler => {
                in_digits((PROCESS_SP as u32).to_le_bytes().into_iter())
            }
            _ if text.starts_with("Hg") => "OK".to_owned(),
            _ if text.starts_with("qXfer:features:read:") => self.features(&text),
            _ if text.starts_with('m') => memory(&text),
            _ if text.starts_with("vCont;t") => {
                let stopped = self.fate.runs;
                self.fate.runs = false;
                self.fate.stops += 1;
                self.send("OK");
                if stopped && threads > 0 {
                    self.queue = threads - 1;
                    self.write(&packet('%', "Stop:T00thread:1;"));
                }
                return;
            }
            _ if text == "c" || text.starts_with("vCont;c") || text.starts_with("vCont;C") => {
                if let Some(signal) = text.strip_prefix("vCont;C") {
                    self.fate.delivered.extend(u8::from_str_radix(&signal[..2], 16));
                }
                self.fate.runs = true;
                if !self.non_stop {
                    return;
                }
                "OK".to_owned()
            }
            _ if text.starts_with('D') => {
                (self.fate.runs, self.fate.detached) = (true, true);
                "OK".to_owned()
            }
            _ => String::new(),
        };
        self.send(&answer);
    }

    fn is_lldbs(&self) -> bool {
        self.manner.kind == Kind::Debugserver
    }

    /// What lldb's stubs add to stops.
    fn threads_in_stop(&self) -> String {
        if !self.is_lldbs() {
            return String::new();
        }
        let threads: Vec<String> = (1..=self.manner.threads).map(|tid| format!("{tid:x}")).collect();
        format!("threads:{};", threads.join(","))
    }

    fn registers(&self) -> String {
        match self.manner.kind {
            Kind::X86_64 => registers(),
            Kind::Board => arm_registers(0, 0x0100_0000),
            Kind::Handler => arm_registers(0, 0x0100_000f),
            Kind::OldBoard => arm_registers(25, 0x13),
            Kind::Debugserver => {
                let mut words = [0u64; 33];
                (words[31], words[32]) = (STACK_END - 0x1000, MACH_LOAD + 0x40);
                in_digits(words.iter().flat_map(|word| word.to_le_bytes()))
            }
        }
    }

    fn next_stop(&mut self) -> String {
        let Some(left) = self.queue.checked_sub(1) else { return "OK".to_owned() };
        self.queue = left;
        format!("T00thread:{:x};", self.manner.threads - left)
    }

    fn features(&self, text: &str) -> String {
        let (name, range) = text["qXfer:features:read:".len()..].rsplit_once(':').unwrap();
        let xml = self.manner.xml.unwrap_or_default();
        let (offset, length) = range.split_once(',').unwrap();
        let number = |digits: &str| usize::from_str_radix(digits, 16).unwrap();
        let (offset, length) = (number(offset).min(xml.len()), number(length));
        let end = xml.len().min(offset + length);
        if name != "target.xml" && !xml.contains("loop.xml") {
            return "E00".to_owned();
        }
        let kind = if end == xml.len() { 'l' } else { 'm' };
        format!("{kind}{}", &xml[offset..end])
    }

    /// Sends an answer, if nothing is wrong with it.
    fn send(&mut self, answer: &str) {
        let number = self.fate.answers;
        self.fate.answers += 1;
        let mut wire = packet('$', answer);
        self.last.clone_from(&wire);
        let is = |at: usize| at == number;
        match self.manner.wrong {
            Wrong::Checksum(at) if is(at) => {
                let last = wire.len() - 1;
                wire[last] = if wire[last] == b'0' { b'1' } else { b'0' };
            }
            Wrong::Truncated(at) if is(at) => wire.truncate(1 + answer.len() / 2),
            Wrong::Silent(at) if is(at) => self.is_silent = true,
            Wrong::Late(at) if is(at) => self.work_for(if number == 0 { LATE_FIRST_NS } else { LATE_NS }),
            Wrong::Closed(at) if is(at) => {
                self.is_closed = true;
                return;
            }
            Wrong::Garbage(at, seed) if is(at) => {
                let mut random = Rng::new(seed);
                wire = (0..1 + random.below(400)).map(|_| random.next() as u8).collect();
            }
            Wrong::Nonsense(at, seed) if is(at) => {
                let mut random = Rng::new(seed);
                let length = random.below(60);
                let text: String = (0..length).map(|_| (b'%' + random.below(90) as u8) as char).collect();
                wire = packet('$', &text.replace(['}', '*'], "m"));
            }
            Wrong::Ended(at) if is(at) => wire = packet('$', "W00"),
            Wrong::Endless(at) if is(at) => {
                self.write(b"$");
                self.torrent = Some((vec![b'0'; 4096], 0));
                return;
            }
            Wrong::Flood(at) if is(at) => {
                self.torrent = Some(([packet('%', "Stop:"), packet('$', "O61")].concat(), 0));
                return;
            }
            Wrong::Slow => self.work_for(SLOW_NS),
            _ => {}
        }
        self.write(&wire);
    }

    /// Is busy for this time; requests that come meanwhile wait for it.
    fn work_for(&mut self, time_ns: u64) {
        self.busy_ns = self.busy_ns.max(self.clock.now_ns()) + time_ns;
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.is_closed || self.is_silent || self.torrent.is_some() {
            return;
        }
        self.sent.push_back((self.busy_ns.max(self.clock.now_ns()) + REPLY_NS, bytes.to_vec()));
    }
}

fn packet(kind: char, body: &str) -> Vec<u8> {
    let body = body.replace('}', "}]");
    let sum = checksum(body.as_bytes());
    format!("{kind}{body}#{sum}").into_bytes()
}

fn checksum(body: &[u8]) -> String {
    format!("{:02x}", body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)))
}
