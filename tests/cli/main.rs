//! The command line as users see it: the built program is run, and its exit code, both streams and its files
//! are compared with the specification.
//!
//! Needs no privileges except to trace its own children. A test that the machine does not allow prints SKIP
//! with the reason; `STACKPROF_NO_SKIP=1` makes that a failure.
#![allow(clippy::unwrap_used)]

mod bad_input;
#[cfg(unix)]
mod codesign;
mod compare;
mod completions;
mod help;
mod hostile_directory;
mod html;
mod invisible;
#[cfg(unix)]
mod open;
mod outputs;
#[cfg(unix)]
mod perf_regression;
#[path = "../support/programs.rs"]
mod programs;
mod readers;
mod recording;
mod render;
#[cfg(target_os = "linux")]
mod signals;
#[path = "../support/skip.rs"]
mod skip;
mod support;
mod times;
#[cfg(unix)]
mod unwritable;
#[cfg(unix)]
#[path = "../support/viewer.rs"]
mod viewer;
mod wrong_invocations;
