//! Targets behind a stub of the gdb remote protocol: a stub of ours with seeded faults. Real stubs with
//! real programs are in `tests/live_linux`.

#[path = "../../support/seeds.rs"]
mod support;

mod debugserver;
mod fake;
mod faults;
mod two_stacks;

use stackprof::rng::Rng;
use support::rounds::rounds;
