//! A stub of ours: answers as gdbserver or a board would for a made-up target, or as debugserver does, with
//! faults at a chosen answer, and notes what it was told to do with its target.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

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

pub(crate) const X86_64: &str = "<target><architecture>i386:x86-64</architecture><feature name=\"c\">\
    <reg name=\"rax\" bitsize=\"64\"/><reg name=\"rbx\" bitsize=\"64\"/><reg name=\"rcx\" bitsize=\"64\"/>\
    <reg name=\"rdx\" bitsize=\"64\"/><reg name=\"rsi\" bitsize=\"64\"/><reg name=\"rdi\" bitsize=\"64\"/>\
    <reg name=\"rbp\" bitsize=\"64\"/><reg name=\"rsp\" bitsize=\"64\"/><reg name=\"r8\" bitsize=\"64\"/>\
    <reg name=\"r9\" bitsize=\"64\"/><reg name=\"r10\" bitsize=\"64\"/><reg name=\"r11\" bitsize=\"64\"/>\
    <reg name=\"r12\" bitsize=\"64\"/><reg name=\"r13\" bitsize=\"64\"/><reg name=\"r14\" bitsize=\"64\"/>\
    <reg name=\"r15\" bitsize=\"64\"/><reg name=\"rip\" bitsize=\"64\"/></feature></target>";

/// The registers of a core of the M profile; its feature is still open.
macro_rules! cortex_m {
    () => {
        "<target><architecture>arm</architecture>\
    <feature name=\"org.gnu.gdb.arm.m-profile\"><reg name=\"r0\" bitsize=\"32\"/><reg name=\"r1\" bitsize=\"32\"/>\
    <reg name=\"r2\" bitsize=\"32\"/><reg name=\"r3\" bitsize=\"32\"/><reg name=\"r4\" bitsize=\"32\"/>\
    <reg name=\"r5\" bitsize=\"32\"/><reg name=\"r6\" bitsize=\"32\"/><reg name=\"r7\" bitsize=\"32\"/>\
    <reg name=\"r8\" bitsize=\"32\"/><reg name=\"r9\" bitsize=\"32\"/><reg name=\"r10\" bitsize=\"32\"/>\
    <reg name=\"r11\" bitsize=\"32\"/><reg name=\"r12\" bitsize=\"32\"/><reg name=\"sp\" bitsize=\"32\"/>\
    <reg name=\"lr\" bitsize=\"32\"/><reg name=\"pc\" bitsize=\"32\"/>\
    <reg name=\"xpsr\" bitsize=\"32\" regnum=\"25\"/>"
    };
}
pub(crate) const CORTEX_M: &str = concat!(cortex_m!(), "</feature></target>");
/// With the stack pointers, as QEMU 8 and OpenOCD describe them.
pub(crate) const CORTEX_M_SYSTEM: &str = concat!(
    cortex_m!(),
    "</feature><feature name=\"org.gnu.gdb.arm.m-system\"><reg name=\"msp\" bitsize=\"32\"/>\
     <reg name=\"psp\" bitsize=\"32\" regnum=\"27\"/></feature></target>"
);
pub(crate) const ARM_WITHOUT_REGISTERS: &str = "<target><architecture>arm</architecture></target>";

/// What debugserver says of its process and images; `IMAGES` is in place of the list of images.
const HOST_INFO: &str = "cputype:16777228;cpusubtype:2;ostype:macosx;vendor:apple;endian:little;ptrsize:8;";
const PROCESS_INFO: &str =
    "pid:1f;parent-pid:1;cputype:100000c;cpusubtype:2;ptrsize:8;ostype:macosx;endian:little;";
/// Where debugserver's process has its program.
pub(crate) const MACH_LOAD: u64 = 0x1_0400_0000;

/// Where the made-up stacks are: 64 KiB that end here.
pub(crate) const STACK_END: u64 = 0x7000_0000;
const STACK_BYTES: u64 = 0x1_0000;
/// The process stack pointer, in the same memory, and its number.
pub(crate) const PROCESS_SP: u64 = STACK_END - 0x400;
const PROCESS_SP_QUESTION: &str = "p1b";

/// What became of the target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate {
    /// It runs.
    pub(crate) runs: bool,
    pub(crate) detached: bool,
    pub(crate) stops: usize,
    /// Answers that were sent, or should have been.
    pub(crate) answers: usize,
    /// Anything that writes memory or registers, or sets a breakpoint.
    pub(crate) harm: Vec<String>,
    /// Signals that were passed on.
    pub(crate) delivered: Vec<u8>,
}

/// A stub that listens. It serves one connection.
pub(crate) struct Fake {
    pub(crate) port: u16,
    fate: Arc<Mutex<Fate>>,
    server: Option<JoinHandle<()>>,
}

impl Fake {
    pub(crate) fn start(manner: Manner) -> Fake {
        Fake::with_images(manner, "{\"images\":[]}".to_owned())
    }

    /// One that lists these images, in debugserver's words.
    pub(crate) fn with_images(manner: Manner, images: String) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let fate = Arc::new(Mutex::new(Fate::default()));
        let known = Arc::clone(&fate);
        let serve = move || {
            let (stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            let mut server = Server {
                stream,
                manner,
                fate: known,
                acks: true,
                non_stop: false,
                queue: 0,
                last: Vec::new(),
                images,
            };
            // It ends with the connection.
            let _ = server.serve();
        };
        Fake { port, fate, server: Some(std::thread::spawn(serve)) }
    }

    /// What became of the target, after the connection was closed.
    pub(crate) fn fate(mut self) -> Fate {
        self.server.take().unwrap().join().unwrap();
        self.fate.lock().unwrap().clone()
    }
}

struct Server {
    stream: TcpStream,
    manner: Manner,
    fate: Arc<Mutex<Fate>>,
    acks: bool,
    non_stop: bool,
    /// Threads whose stops are not told yet, in non-stop mode.
    queue: usize,
    /// The last answer, as it should have been.
    last: Vec<u8>,
    /// The answer to debugserver's question for images.
    images: String,
}

type Served = std::io::Result<()>;

impl Server {
    fn serve(&mut self) -> Served {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let read = self.stream.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            bytes.extend_from_slice(&buffer[..read]);
            while let Some(body) = self.next_body(&mut bytes)? {
                self.handle(&body)?;
            }
        }
    }

    /// The next packet, or Ctrl-C as a packet of its own.
    fn next_body(&mut self, bytes: &mut Vec<u8>) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            match bytes.first() {
                None => return Ok(None),
                Some(3) => {
                    bytes.remove(0);
                    return Ok(Some(vec![3]));
                }
                Some(b'$') => {
                    let Some(end) = bytes.iter().position(|byte| *byte == b'#') else { return Ok(None) };
                    if bytes.len() < end + 3 {
                        return Ok(None);
                    }
                    let body = bytes[1..end].to_vec();
                    bytes.drain(..end + 3);
                    if self.acks {
                        self.write(b"+");
                    }
                    return Ok(Some(body));
                }
                Some(b'-') => {
                    bytes.remove(0);
                    let last = self.last.clone();
                    self.write(&last);
                }
                Some(_) => drop(bytes.remove(0)),
            }
        }
    }

    fn handle(&mut self, body: &[u8]) -> Served {
        let text = String::from_utf8_lossy(body).into_owned();
        let fate = Arc::clone(&self.fate);
        let mut fate = fate.lock().unwrap();
        let harmful = ["M", "X", "G", "P", "Z", "z", "k", "vKill", "vRun", "s", "S", "vFile:pwrite"];
        if harmful.iter().any(|start| text.starts_with(start)) {
            fate.harm.push(text.clone());
        }
        let threads = self.manner.threads;
        let answer = match text.as_str() {
            "\u{3}" => {
                if !fate.runs {
                    return Ok(());
                }
                fate.runs = false;
                fate.stops += 1;
                format!("T02thread:01;{}", self.threads_in_stop())
            }
            _ if text.starts_with("qSupported") => {
                let xml = if self.manner.xml.is_some() { ";qXfer:features:read+" } else { "" };
                let non_stop = if self.manner.non_stop { ";QNonStop+" } else { "" };
                format!("PacketSize=1000{xml}{non_stop}")
            }
            "QStartNoAckMode" if self.manner.no_ack => {
                drop(fate);
                self.send("OK")?;
                self.acks = false;
                return Ok(());
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
                let stopped = fate.runs;
                fate.runs = false;
                fate.stops += 1;
                drop(fate);
                self.send("OK")?;
                if stopped && threads > 0 {
                    self.queue = threads - 1;
                    self.write(&packet('%', "Stop:T00thread:1;"));
                }
                return Ok(());
            }
            _ if text == "c" || text.starts_with("vCont;c") || text.starts_with("vCont;C") => {
                if let Some(signal) = text.strip_prefix("vCont;C") {
                    fate.delivered.extend(u8::from_str_radix(&signal[..2], 16));
                }
                fate.runs = true;
                if !self.non_stop {
                    return Ok(());
                }
                "OK".to_owned()
            }
            _ if text.starts_with('D') => {
                (fate.runs, fate.detached) = (true, true);
                "OK".to_owned()
            }
            _ => String::new(),
        };
        drop(fate);
        self.send(&answer)
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
    fn send(&mut self, answer: &str) -> Served {
        let number = {
            let mut fate = self.fate.lock().unwrap();
            fate.answers += 1;
            fate.answers - 1
        };
        let mut wire = packet('$', answer);
        self.last.clone_from(&wire);
        let is = |at: usize| at == number;
        match self.manner.wrong {
            Wrong::Checksum(at) if is(at) => {
                let last = wire.len() - 1;
                wire[last] = if wire[last] == b'0' { b'1' } else { b'0' };
            }
            Wrong::Truncated(at) if is(at) => wire.truncate(1 + answer.len() / 2),
            Wrong::Silent(at) if number >= at => return Ok(()),
            Wrong::Late(at) if is(at) => std::thread::sleep(Duration::from_millis(5_500)),
            Wrong::Closed(at) if is(at) => {
                self.stream.shutdown(std::net::Shutdown::Both)?;
                return Ok(());
            }
            Wrong::Garbage(at, seed) if is(at) => {
                let mut random = super::Rng::new(seed);
                wire = (0..1 + random.below(400)).map(|_| random.next() as u8).collect();
            }
            Wrong::Nonsense(at, seed) if is(at) => {
                let mut random = super::Rng::new(seed);
                let length = random.below(60);
                let text: String = (0..length).map(|_| (b'%' + random.below(90) as u8) as char).collect();
                wire = packet('$', &text.replace(['}', '*'], "m"));
            }
            Wrong::Ended(at) if is(at) => wire = packet('$', "W00"),
            Wrong::Endless(at) if is(at) => {
                // As much as is read.
                self.stream.write_all(b"$")?;
                let piece = [b'0'; 4096];
                loop {
                    self.stream.write_all(&piece)?;
                }
            }
            Wrong::Flood(at) if is(at) => loop {
                self.stream.write_all(&packet('%', "Stop:"))?;
                self.stream.write_all(&packet('$', "O61"))?;
            },
            Wrong::Slow => std::thread::sleep(Duration::from_millis(4)),
            _ => {}
        }
        self.write(&wire);
        Ok(())
    }

    /// Writes, if somebody reads: the profiler may have left, but what it asked for before is still to be read.
    fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }
}

fn packet(kind: char, body: &str) -> Vec<u8> {
    // What would end or change the packet is escaped.
    let body = body.replace('}', "}]");
    let sum = body.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
    format!("{kind}{body}#{sum:02x}").into_bytes()
}

/// All zero, but the stack pointer and the program counter.
fn registers() -> String {
    let mut words = [0u64; 17];
    words[7] = STACK_END - 0x1000;
    words[16] = 0x40_1000;
    in_digits(words.iter().flat_map(|word| word.to_le_bytes()))
}

fn in_digits(bytes: impl Iterator<Item = u8>) -> String {
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// r0 to pc, so many words of something else, and the status register.
fn arm_registers(between: usize, status: u32) -> String {
    let mut words = [0u32; 16];
    (words[13], words[15]) = ((STACK_END - 0x1000) as u32, 0x1000);
    let more = std::iter::repeat_n(0, between).chain([status]);
    in_digits(words.into_iter().chain(more).flat_map(u32::to_le_bytes))
}

/// x0 to x30, sp and pc of arm64.
fn register_info(question: &str) -> String {
    let number = usize::from_str_radix(&question["qRegisterInfo".len()..], 16).unwrap();
    let name = match number {
        0..=30 => format!("x{number}"),
        31 => "sp".to_owned(),
        32 => "pc".to_owned(),
        _ => return "E45".to_owned(),
    };
    format!(
        "name:{name};bitsize:64;offset:{};encoding:uint;format:hex;set:General Purpose Registers;",
        8 * number
    )
}

fn memory(text: &str) -> String {
    let Some((at, length)) = text[1..].split_once(',') else { return "E01".to_owned() };
    let (Ok(at), Ok(length)) = (u64::from_str_radix(at, 16), u64::from_str_radix(length, 16)) else {
        return "E01".to_owned();
    };
    let stack = STACK_END - STACK_BYTES..=STACK_END;
    if length > 0x800 || !stack.contains(&at) || !stack.contains(&at.saturating_add(length)) {
        return "E01".to_owned();
    }
    "00".repeat(length as usize)
}
