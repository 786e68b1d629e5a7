//! Parses stop replies: why the target stopped, or how it exited. Pure.
//!
//! Format: "Debugging with GDB", E.3 "Stop Reply Packets"; lldb's extensions: docs/resources/lldbgdbremote.md
//! in LLVM.

use super::hex;
use crate::sources::ExitStatus;

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
    hex::number(digits).filter(|number| *number != 0)
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
        let two = |rest: &[u8]| u8::try_from(hex::number(rest.get(..2)?)?).ok();
        match kind {
            b'S' => Some(stopped(two(rest)?, &[])),
            b'T' => Some(stopped(two(rest)?, &rest[2..])),
            b'W' => Some(StopReply::Ended(ExitStatus::Code(one_to_semicolon(rest)?))),
            b'X' => Some(StopReply::Ended(ExitStatus::Signal(one_to_semicolon(rest)?))),
            b'N' => Some(StopReply::Nobody),
            b'O' if hex::decode(rest).is_some() => Some(StopReply::Output),
            _ => None,
        }
    }
}

/// A number of one or more digits: gdbserver sends `W0;process:1f`.
fn one_to_semicolon(rest: &[u8]) -> Option<i32> {
    i32::try_from(hex::number(rest.split(|byte| *byte == b';').next()?)?).ok()
}

fn stopped(signal: u8, pairs: &[u8]) -> StopReply {
    let (mut thread, mut exec, mut threads) = (None, None, Vec::new());
    for pair in pairs.split(|byte| *byte == b';') {
        let Some(colon) = pair.iter().position(|byte| *byte == b':') else { continue };
        let value = &pair[colon + 1..];
        match &pair[..colon] {
            b"thread" => thread = Tid::parse(value),
            b"exec" => exec = Some(hex::text(value).unwrap_or_default()),
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
mod tests {
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
