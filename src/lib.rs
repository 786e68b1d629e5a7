//! stackprof: a native sampling profiler.
//!
//! Data moves down this list only; `tests/layering.rs` checks it.
//!
//! ```text
//! sources     processes: threads, stops, the kernel's samples, memory, images (the OS calls)
//! sampler     ticks, selection of threads to stop, weights, losses
//! walk        registers + stack bytes -> frames + reason why the walk ended
//! trie        one node per (parent, address), counts
//! heap        sampled allocations -> bytes in use by stack, their sampling error
//! images      address -> image + address in it
//! binary      contents of the files of images
//! recording   trie + images + losses
//! symbol      each unique address once -> names
//! conversion  recording + names -> a saved profile
//! profile     saved profiles; formats of files; views
//! disassembly machine code -> text
//! server      HTTP requests of a viewer in a browser -> responses from a profile
//! flamegraph  the picture
//! diff        two profiles -> what changed
//! gate        several profiles per side -> a verdict
//! cli         the command line, the only module that prints
//! ```
//!
//! The program is a thin wrapper around this library, which tools can use to read profiles. [`profile::formats::detect`]
//! reads a profile of any supported format into a [`profile::SavedProfile`]; [`profile::views`] show it by function, by
//! thread or as a call tree:
//!
//! ```
//! use stackprof::profile::FunctionTable;
//! use stackprof::profile::formats::detect;
//!
//! let text = "app;main;parse 3\napp;main;print 1\n";
//! let saved = detect::read(text.as_bytes(), "example", 0)?;
//! let functions = FunctionTable::of(&saved, false).expect("few names");
//! let hottest = &functions.rows()[0];
//! assert_eq!((functions.text(hottest.name), hottest.self_count), ("parse", 3));
//! # Ok::<(), stackprof::error::Error>(())
//! ```
//!
//! `cli/record.rs` has the order of a recording: [`sources`], [`sampler::record`], a [`recording::Recording`], names by
//! [`symbol::symbolicate`], [`conversion::saved_profile`].

pub use ::profile;
pub use ::profile::{diff, error, escape, flamegraph, gate, heap, module_offset, rng, trie};
use unwind::leb128;
pub use unwind::{addr, arch, binary, images, walk};

pub mod clock;
pub mod conversion;
pub mod disassembly;
pub mod interruption;
pub mod live;
pub mod recording;
pub mod sampler;
pub mod server;
pub mod sources;
pub mod symbol;

pub mod cli;

/// CPU time of tests.
#[cfg(test)]
#[path = "../tests/support/cpu_time.rs"]
mod cpu_time;
/// The seeds that tests run.
#[cfg(test)]
#[path = "../tests/support/rounds.rs"]
mod rounds;
/// What a test lacks.
#[cfg(test)]
#[path = "../tests/support/skip.rs"]
mod skip;
