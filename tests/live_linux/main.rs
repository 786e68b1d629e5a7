//! stackprof against live programs on Linux: the real binary, real ptrace, C programs
//! compiled at test time (`tests/fixtures`). Each bears others beside it; those that record the whole
//! machine, change its settings or start thousands of threads run alone, whatever the number of test
//! threads. Where ptrace is not permitted each test prints `SKIP reason`, unless
//! `STACKPROF_NO_SKIP=1` makes that a failure; `STACKPROF_MEASURE=1` also asserts rates,
//! which need a quiet machine; `STACKPROF_SEED` replays random choices.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../support/live.rs"]
mod support;

#[cfg(target_arch = "x86_64")] // as the stubs that it shares code with
mod boards;
mod by_kernel;
mod by_kernel_many;
mod by_kernel_refused;
mod by_kernel_tree;
mod by_kernel_waits;
mod by_ptrace_tree;
mod by_threads;
mod command_end;
mod counts;
mod deep;
mod dump;
mod families;
#[cfg(target_arch = "x86_64")] // elsewhere the kernel does not show how it continues a wait
mod filtered;
mod frames;
#[cfg(target_arch = "x86_64")] // what its program is
mod gdb_stub;
mod handlers;
mod hostile_files;
mod images;
mod inheritance;
mod invisible_names;
mod killed;
mod lifecycle;
mod nameless;
mod narrow;
mod own_signals;
mod pe;
mod privileges;
mod program_names;
mod refusals;
mod rewritten;
#[cfg(target_arch = "x86_64")] // what it knows of these runtimes
mod runtimes;
mod shares;
mod signals;
mod untold;
mod waiting;
mod wakes;
