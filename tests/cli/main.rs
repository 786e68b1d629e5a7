//! The command line as its users meet it: the built program is run, and its exit code,
//! both streams and the files it leaves are compared with the contract.
//!
//! Needs no privileges but those to trace its own children. What a machine does not
//! allow is printed as SKIP with its reason; `STACKPROF_NO_SKIP=1` makes that a failure.
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
mod support;
mod times;
#[cfg(unix)]
mod unwritable;
#[cfg(unix)]
#[path = "../support/viewer.rs"]
mod viewer;
mod wrong_invocations;
