//! Whose turn it is: live tests that bear others run beside them, the others alone. Also whether they can
//! run at all.

use std::env;
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Fixture, not_here};

/// Held for reading by live tests that bear each other, for writing by one that does not.
static MACHINE: RwLock<()> = RwLock::new(());

/// The right to run a live test, beside others or alone, until it is dropped.
#[expect(dead_code, reason = "held, and let go when dropped")]
pub(crate) enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// The right to run a live test beside others, as on a machine that does other things, too; `None`,
/// after a line that says why, where ptrace is not permitted. With `STACKPROF_NO_SKIP=1` that is a
/// failure instead.
pub(crate) fn live() -> Option<Turn> {
    permitted(Turn::Shared(MACHINE.read().unwrap_or_else(PoisonError::into_inner)))
}

/// As [`live`], with no other live test beside it: for those that record the whole machine, change
/// its settings, or start so much that others would hardly get a CPU.
pub(crate) fn live_alone() -> Option<Turn> {
    permitted(Turn::Alone(MACHINE.write().unwrap_or_else(PoisonError::into_inner)))
}

fn permitted(turn: Turn) -> Option<Turn> {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let mut target = Fixture::start("shares", ["20"]);
        target.line("ready");
        let mut tracer = Fixture::start("tracer", [target.pid().to_string()]);
        let said = tracer.next_line();
        (said != "tracing").then(|| format!("ptrace does not work here: {said}"))
    });
    let Some(reason) = REFUSED.as_ref() else { return Some(turn) };
    let must = env::var("STACKPROF_NO_SKIP").is_ok_and(|value| value == "1");
    assert!(!must, "STACKPROF_NO_SKIP is set, but {reason}");
    not_here(reason);
    None
}
