//! Linux: processes sampled with ptrace.
//!
//! PTRACE_SEIZE once, then for each sample PTRACE_INTERRUPT, wait, PTRACE_GETREGSET, process_vm_readv, PTRACE_CONT.
//! /proc shows whether a thread ran, so a waiting thread is never touched.
//!
//! Only the thread that seized may make ptrace calls, and when it exits the kernel releases everything
//! without a stop (no EINTR, no register touched). So a target is traced by a dedicated thread (`sys.rs`),
//! which exits with the target, also by panic, and while the profiler is suspended.
//!
//! A sample: `target.rs` polls the thread (`on_cpu.rs`) and requests a stop. It waits for stops and
//! finds this one, of whatever kind. The request reads the thread (`stop.rs`), an interrupted call is repaired
//! (`timed_wait.rs`), and the thread continues as its guard is dropped (`stop.rs`).
//!
//! | file | what it is |
//! |---|---|
//! | `attach.rs` | begins a trace: of running processes, of a command |
//! | `seize.rs` | seizes threads that run; again after the profiler was suspended |
//! | `sys.rs` | the thread that traces |
//! | `target.rs` | waits for stops and exits, hands them on; `ptrace/target.rs` is what the sampler calls |
//! | `tracees.rs` | traced processes and threads: start, `exec`, exit |
//! | `tracees.rs` | a process: its mappings, files, names |
//! | `thread.rs` `on_cpu.rs` | a thread; its status by /proc |
//! | `stop.rs` | pending stop requests; one stop: registers and stack bytes |
//! | `on_cpu.rs` | whether a stopped thread was on a CPU; the tracer's own time on it |
//! | `registers.rs` | registers by processor, repair of interrupted calls |
//! | `prefetch.rs` | prefetched ranges of the stack |
//! | `stop.rs` | a stopped thread, and how it continues |
//! | `timed_wait.rs` | waits that were restarted, and their deadlines |
//! | `seize.rs` | filters that forbid tracing |
//! | `target.rs` | events that the sampler has not requested yet |
//! | `target.rs` | the processes that the recording ends with |
//! | `sys.rs` | system calls |

mod on_cpu;
mod registers;
mod seize;
mod stop;
mod sys;
mod target;
mod timed_wait;
mod tracees;

pub(super) use self::seize::{attach, launch};
pub(super) use self::sys::Tracer;
pub(super) use sys::block_signal;
pub use target::LinuxTarget;
