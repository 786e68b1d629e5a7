//! Restarts system calls that our stop interrupted, if the kernel itself does not check the result (aarch64,
//! and 32-bit Arm on it). Input: where a thread waited before the stop request, and where it is stopped.
//! Output: where it continues.

use crate::addr::Avma;
use crate::sources::linux::proc;

/// State of a thread's calls that is not in its registers.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// The call in which it waited before the stop request.
    waits: Option<proc::BlockedCall>,
    /// Program counter and first argument of a restarted call.
    made_again: Option<(u64, u64)>,
}

/// State of a thread stopped after a system call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallSite {
    pub(super) pc: u64,
    pub(super) sp: u64,
    /// The register of the first argument and of the result.
    pub(super) first: u64,
    /// System call number.
    pub(super) number: i64,
    /// Length of the call instruction before the program counter.
    pub(super) svc_bytes: u64,
}

impl Calls {
    /// Records the wait that the system reports.
    #[cfg(test)]
    pub(super) fn waits_in(&mut self, text: &[u8]) {
        self.waits = proc::waiting(text);
    }

    /// Called before a stop request to a thread that may be waiting.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn before_stop(&mut self, tid: libc::pid_t) {
        self.waits = std::fs::read(format!("/proc/{tid}/syscall")).ok().and_then(|text| proc::waiting(&text));
    }

    /// Restarts a call. Its result has overwritten the first argument, and the kernel no longer checks it. So
    /// a thread that was waiting is reset to its `svc`, with the original argument, if the call `fails`
    /// because of our stop and may be restarted. A handler would then return there, and not to an EINTR; the
    /// tracer sees each signal before its handler runs, and undoes this.
    ///
    /// Returns where the thread continues, and its first argument, with `None` for `-EINTR` as the result.
    /// Returns `None` if nothing has to change.
    pub(super) fn make_again(
        &mut self,
        at: &CallSite,
        fails: bool,
        is_handled: impl FnOnce() -> bool,
    ) -> Option<(u64, Option<u64>)> {
        let waited = self.waits.take();
        if let Some((pc, first)) = self.made_again
            && (pc, first) == (at.pc, at.first)
        {
            let undone = is_handled().then(|| (pc.wrapping_add(at.svc_bytes), None));
            if undone.is_some() {
                self.made_again = None;
            }
            return undone;
        }
        let here = |waited: &proc::BlockedCall| {
            (waited.number, waited.sp, waited.pc) == (at.number, Avma(at.sp), Avma(at.pc))
        };
        let waited = waited.filter(here)?;
        if !fails || is_handled() {
            return None;
        }
        let pc = at.pc.wrapping_sub(at.svc_bytes);
        self.made_again = Some((pc, waited.first));
        Some((pc, Some(waited.first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EINTR: u64 = (-4i64).cast_unsigned();

    fn waiting() -> Calls {
        let mut calls = Calls::default();
        calls.waits_in(b"22 0x5 0x1000 0x10 0xffff 0x0 0x8 0x7ff0 0x4004");
        calls
    }

    fn behind_the_call() -> CallSite {
        CallSite { pc: 0x4004, sp: 0x7ff0, first: EINTR, number: 22, svc_bytes: 4 }
    }

    #[test]
    fn a_call_is_restarted_with_its_original_argument() {
        let mut calls = waiting();
        assert_eq!(calls.make_again(&behind_the_call(), true, || false), Some((0x4000, Some(5))));
        // A signal with a handler before the restart: its handler has to cause the EINTR.
        let set_back = CallSite { pc: 0x4000, first: 5, ..behind_the_call() };
        assert_eq!(calls.make_again(&set_back, false, || false), None);
        assert_eq!(calls.make_again(&set_back, false, || true), Some((0x4004, None)));
        assert_eq!(calls.make_again(&set_back, false, || true), None, "once");
    }

    #[test]
    fn other_states_are_left_alone() {
        assert_eq!(waiting().make_again(&behind_the_call(), true, || true), None, "a handler runs");
        assert_eq!(waiting().make_again(&behind_the_call(), false, || false), None, "it did not fail");
        let elsewhere = CallSite { sp: 0x7fe0, ..behind_the_call() };
        assert_eq!(waiting().make_again(&elsewhere, true, || false), None);
        assert_eq!(Calls::default().make_again(&behind_the_call(), true, || false), None);
    }
}
