//! The macOS backend over a simulated kernel (`support/sim_kernel`): recordings against
//! what really happened, and what is left of the profiler afterwards.
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
