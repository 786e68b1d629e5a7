//! Events: what is opened in the kernel, for whom.
//!
//! On every CPU, for all that runs there ([`options::Scope::Cpus`]): one clock and one ring for each CPU,
//! however many threads come and go; a program in the kernel says which processes are sampled. Its
//! timer ticks whatever runs, so where a thread is found does not depend on when it was switched
//! to. An event beside it, which samples nothing, records programs, threads and images: of what did not fit
//! into the ring the kernel counts for each event, and so samples are counted apart from these. It takes rights over
//! the whole machine (CAP_PERFMON, or kernel.perf_event_paranoid ≤ 0).
//!
//! Where waits are recorded there is a second event beside each of these, which writes into the same
//! ring: it samples a thread that leaves its CPU, and records each context switch. For waits alone the first
//! one counts only, and samples nothing. Where no waits are recorded, there is such a second event, too, which is enabled
//! at intervals (`cpu_time/wakeup_latency.rs`).
//!
//! Without these rights, for the threads of some processes ([`options::Scope::Threads`]): an event for each thread
//! and CPU, inherited by what it starts; one ring for each CPU, which all share.

mod attributes;
pub(super) mod cpus;
mod duplicate_events;
mod lost_samples;
pub(super) mod options;
pub(super) mod rings;
pub(super) mod set;
pub(super) mod thread_events;
pub(super) mod tick_rates;
