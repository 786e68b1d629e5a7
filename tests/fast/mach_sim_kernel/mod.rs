//! The simulated kernel itself: each rule that it is strict about is seen to refuse.
mod client;
mod memory;
mod process;
mod rights;
