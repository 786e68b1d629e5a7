//! Targets behind a stub of the gdb remote protocol: a simulated stub with seeded faults. Real stubs with
//! real programs are in `tests/live_linux`.

mod debugserver;
mod fake;
mod faults;
mod targets;
mod two_stacks;

use stackprof::rng::Rng;

use crate::seeds::rounds::rounds;
