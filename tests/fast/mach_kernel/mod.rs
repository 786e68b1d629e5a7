//! The macOS backend on a simulated kernel (`support/sim_kernel`): recordings against the actual behavior,
//! and the resources that the profiler leaves behind.
//!
//! Times are virtual: nothing here sleeps. `STACKPROF_SEED=N` replays one seed.
mod attach;
mod details;
mod failures;
mod groups;
mod images;
mod killed;
mod leaks;
mod life;
mod recorded;
mod shared_cpus;
mod slow;
mod stacks;
