//! Events: what is opened in the kernel, for which CPUs and threads.
//!
//! With rights over the whole machine (CAP_PERFMON, or kernel.perf_event_paranoid ≤ 0), on every CPU
//! ([`attributes::Scope::Cpus`]): one clock and one ring per CPU, however many threads come and go; a BPF program
//! selects processes. The timer ticks whatever runs, so where a thread is sampled does not depend on when it was
//! switched to. A second event without samples records exec, threads and mmap: the kernel counts losses per event, so
//! lost samples are counted separately.
//!
//! A third event per CPU writes into the same ring, samples threads that leave their CPU, and records context
//! switches. If waits are recorded it is always on, and with waits alone the first one only counts. Otherwise it is
//! enabled at intervals (`cpu_time/wakeup.rs`).
//!
//! Without these rights, for the threads of some processes ([`attributes::Scope::Threads`]): an event for each thread
//! and CPU, inherited by new threads and processes; one ring per CPU, which all share.

pub(super) mod attributes;
pub(super) mod set;
pub(super) mod thread_events;
