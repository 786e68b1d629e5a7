//! Linux: processes sampled with ptrace.
//!
//! PTRACE_SEIZE once, then for each sample PTRACE_INTERRUPT, wait, PTRACE_GETREGSET, process_vm_readv, PTRACE_CONT.
//! /proc shows whether a thread ran, so a waiting thread is never touched.
//!
//! Only the thread that seized may make ptrace calls, and when it exits the kernel releases everything without a
//! stop (no EINTR, no register touched). So a target is traced by a dedicated thread (`sys.rs`), which exits with
//! the target, also by panic, and while the profiler is suspended.
//!
//! A sample: `target.rs` polls the thread (`on_cpu.rs`) and requests a stop. It waits for stops and finds this one,
//! of whatever kind. The request reads the thread (`stop.rs`), an interrupted call is repaired (`timed_wait.rs`),
//! and the thread continues as its guard is dropped (`stop.rs`).
//!
//! | file | what it is |
//! |---|---|
//! | `seize.rs` | begins a trace: of running processes, of a command, again after the profiler was suspended; filters that forbid tracing |
//! | `sys.rs` | system calls; the thread that executes them |
//! | `target.rs` | what the sampler calls; waits for stops and exits, queues events, knows what ends a recording |
//! | `tracees.rs` | traced processes (mappings, files, names) and threads: start, `exec`, exit |
//! | `on_cpu.rs` | the status of a thread by /proc; whether a stopped one was on a CPU; the tracer's own time on it |
//! | `stop.rs` | stop requests; a stopped thread, its registers, stack bytes and prefetched ranges, and how it continues |
//! | `registers.rs` | registers by processor, repair of interrupted calls |
//! | `timed_wait.rs` | waits that were restarted, and their deadlines |

mod on_cpu;
mod registers;
mod seize;
mod stop;
mod sys;
mod target;
mod timed_wait;
mod tracees;

pub(super) use seize::{attach, launch};
pub(super) use sys::{Tracer, block_signal};
pub use target::LinuxTarget;
