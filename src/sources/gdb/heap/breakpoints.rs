//! Breakpoints at functions and at their return addresses: set, stepped over, and cleared.
//!
//! Packets: "Debugging with GDB", E.2 (`Z1` is a hardware breakpoint, `Z0` one in memory; `vCont;s` a step).
//! Hardware breakpoints are tried first: they write no memory, and the code of boards is in flash.

use std::time::Duration;

use super::super::connection_error::ConnectionError;
use super::super::run::STOP;
use super::super::run_state::unexpected;
use super::super::session::{ANSWER, Stub};
use super::super::stop_reply::{StopReply, Tid};
use crate::arch::Arch;
use crate::sources::signals::Hold;

/// Most breakpoints at a time: calls that have not returned, in as many threads.
const BREAKPOINTS_MAX: usize = 4096;

/// A code address as breakpoint packets encode it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodePlace {
    /// Address of the instruction.
    pub(super) at: u64,
    /// The protocol's "kind": bytes of the instruction, or of the breakpoint that replaces it.
    kind: u8,
}

impl CodePlace {
    /// The place of an entry or a return address. On 32-bit Arm the last bit marks T32.
    pub(super) fn of(arch: Arch, address: u64) -> CodePlace {
        match arch {
            Arch::Arm if address & 1 == 1 => CodePlace { at: address & !1, kind: 2 },
            Arch::Arm | Arch::Aarch64 => CodePlace { at: address, kind: 4 },
            Arch::X86 | Arch::X86_64 => CodePlace { at: address, kind: 1 },
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Breakpoint {
    place: CodePlace,
    /// `0` or `1`: the type of the packet that set it.
    packet: char,
    /// Number of users.
    users: u32,
}

/// The breakpoints set in a target.
#[derive(Debug, Default)]
pub(super) struct Breakpoints(Vec<Breakpoint>);

impl Breakpoints {
    /// Whether a breakpoint is set at an address.
    pub(super) fn is_at(&self, at: u64) -> bool {
        self.0.iter().any(|breakpoint| breakpoint.place.at == at)
    }

    /// Sets a breakpoint, or shares an existing one. The target is stopped.
    ///
    /// # Errors
    /// The stub has none left, or cannot be reached.
    pub(super) fn set(&mut self, stub: &mut Stub, place: CodePlace) -> Result<(), ConnectionError> {
        if let Some(known) = self.0.iter_mut().find(|breakpoint| breakpoint.place.at == place.at) {
            known.users += 1;
            return Ok(());
        }
        if self.0.len() == BREAKPOINTS_MAX {
            return Err(ConnectionError::Nonsense(format!(
                "calls that never return, {BREAKPOINTS_MAX} of them"
            )));
        }
        let mut refused = Vec::new();
        for packet in ['1', '0'] {
            refused = stub.call(format!("Z{packet},{:x},{}", place.at, place.kind).as_bytes())?;
            if refused == b"OK" {
                self.0.push(Breakpoint { place, packet, users: 1 });
                return Ok(());
            }
        }
        Err(unexpected("Z0", &refused))
    }

    /// Drops one user; clears the breakpoint after the last one. The target is stopped.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn release(&mut self, stub: &mut Stub, at: u64) -> Result<(), ConnectionError> {
        let Some(index) = self.0.iter().position(|breakpoint| breakpoint.place.at == at) else {
            return Ok(());
        };
        self.0[index].users -= 1;
        if self.0[index].users == 0 {
            let breakpoint = self.0.swap_remove(index);
            order(stub, 'z', breakpoint)?;
        }
        Ok(())
    }

    /// Steps a thread over the breakpoint that it is stopped at, if any. The target is stopped.
    ///
    /// # Errors
    /// The stub cannot be reached, or the step does not end.
    pub(super) fn step_over(&mut self, stub: &mut Stub, tid: Tid, at: u64) -> Result<(), ConnectionError> {
        let Some(breakpoint) = self.0.iter().find(|breakpoint| breakpoint.place.at == at).copied() else {
            return Ok(());
        };
        order(stub, 'z', breakpoint)?;
        let stepped = stub.step(tid);
        if !stub.run.ended {
            order(stub, 'Z', breakpoint)?;
        }
        stepped
    }

    /// Clears all breakpoints, ignoring errors. The target is stopped.
    pub(super) fn clear(&mut self, stub: &mut Stub) {
        for breakpoint in self.0.drain(..) {
            let _ = order(stub, 'z', breakpoint);
        }
    }
}

fn order(stub: &mut Stub, letter: char, breakpoint: Breakpoint) -> Result<(), ConnectionError> {
    let Breakpoint { place, packet, .. } = breakpoint;
    let question = format!("{letter}{packet},{:x},{}", place.at, place.kind);
    let answer = stub.call(question.as_bytes())?;
    if answer == b"OK" { Ok(()) } else { Err(unexpected(&question[..2], &answer)) }
}

impl Stub {
    /// Waits up to `at_most` for the running target to stop by itself; returns the thread if the stub reports
    /// it. `None`: it still runs. All-stop mode only.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn await_stop(&mut self, at_most: Duration) -> Result<Option<Option<Tid>>, ConnectionError> {
        if !self.link.wait(at_most)? {
            return Ok(None);
        }
        let reply = self.answer(b"vCont;c", ANSWER)?;
        let thread = match StopReply::parse(&reply) {
            Some(StopReply::Stopped { thread, .. }) => thread,
            _ => None,
        };
        self.stopped_all(&reply)?;
        if self.run.running {
            return Ok(None);
        }
        self.run.hold.get_or_insert_with(Hold::of_stopped_target);
        Ok(Some(thread))
    }

    /// Runs one instruction of a thread; the others stay stopped.
    fn step(&mut self, tid: Tid) -> Result<(), ConnectionError> {
        let question = match (self.offers.continues, self.run.has_one_thread) {
            (true, false) => format!("vCont;s:{tid}"),
            (true, true) => "vCont;s".to_owned(),
            (false, _) => "s".to_owned(),
        };
        self.run.running = true;
        self.link.send_order(question.as_bytes())?;
        while self.run.running {
            let reply = self.answer(b"vCont;s", STOP)?;
            self.stopped_all(&reply)?;
        }
        Ok(())
    }
}
