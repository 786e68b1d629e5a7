//! stackprof on live programs on Linux: the real binary, real ptrace and perf_event, C programs compiled at
//! test time (`tests/fixtures`). Only for behavior of a real kernel; simulated kernels cover the rest. Each
//! test waits for its condition, never for a time: a busy machine makes it longer, but not fail. If ptrace is
//! not permitted each test prints `SKIP reason`, unless `STACKPROF_NO_SKIP=1` makes that a failure;
//! `STACKPROF_SEED` replays random choices.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../support/live.rs"]
mod support;

#[cfg(target_arch = "x86_64")] // as for the stubs that it shares code with
mod boards;
mod command_end;
mod copies;
mod counts;
mod dump;
mod families;
#[cfg(target_arch = "x86_64")] // other kernels do not show how they continue a wait
mod filtered;
#[cfg(target_arch = "x86_64")] // its program's architecture
mod gdb_stub;
mod handlers;
#[cfg(target_arch = "x86_64")] // as for the shim
mod heap;
mod heap_attached;
mod hostile_files;
mod images;
mod inheritance;
mod invisible_names;
mod killed;
mod lifecycle;
mod nameless;
mod narrow;
mod own_signals;
#[cfg(target_arch = "x86_64")] // its code's architecture
mod pe;
mod privileges;
mod program_names;
mod refusals;
mod rewritten;
mod rights;
#[cfg(target_arch = "x86_64")] // supported architecture of these runtimes
mod runtimes;
mod signals;
mod trees;
mod waiting;
mod waits;
