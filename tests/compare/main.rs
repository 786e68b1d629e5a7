//! `diff` and `gate`: how often the gate is right, and what both tell their users.
#![allow(clippy::unwrap_used)]

mod diff;
mod dominant;
mod gate;
mod power;
// Shared with the tests of the rest of the command line, which use more of it.
#[allow(dead_code)]
#[path = "../cli/support.rs"]
mod support;
