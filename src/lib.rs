//! stackprof: a native sampling profiler.
//!
//! Data moves down this list only; `tests/layering.rs` checks it.
//!
//! ```text
//! sources     a process: threads, stop, registers, memory, images (the OS calls)
//! sampler     ticks, which threads to stop, what was lost
//! walk        registers + stack bytes -> addresses + why the walk ended
//! trie        one node per (parent, address), counts
//! images      which image an address belongs to, and where in it
//! binary      what is in the files of images
//! recording   trie + images + losses
//! symbol      once per unique address -> names
//! profile     recording + names, saved; formats of files; views
//! flamegraph  the picture
//! diff        two profiles -> what changed
//! gate        several profiles a side -> a verdict
//! cli         the command line, the only module that prints
//! ```
//!
//! The program is what people use; the library is the same code, for tools that read its profiles. A profile of any
//! format that stackprof reads becomes a [`profile::Saved`] ([`profile::formats::detect`]), which
//! [`profile::views`] shows by function, by thread or as a tree of calls:
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
//! A recording goes from [`sources`] through [`sampler::record`] to a [`recording::Profile`], and with the names of
//! [`symbol::symbolicate`] to [`profile::Saved::from_recording`]; `cli/record.rs` is that order.

pub mod addr;
pub mod arch;
pub mod binary;
pub mod clock;
pub mod diff;
pub mod error;
pub mod escape;
pub mod flamegraph;
pub mod gate;
pub mod images;
pub mod interruption;
pub mod live;
pub mod module_offset;
pub mod profile;
pub mod recording;
pub mod rng;
pub mod sampler;
pub mod sources;
pub mod symbol;
pub mod trie;
pub mod walk;

pub mod cli;

/// How long tests take.
#[cfg(test)]
#[path = "../tests/support/cpu_time.rs"]
mod cpu_time;
