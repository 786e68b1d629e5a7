//! Output files, by descriptors instead of paths.
//!
//! A path is resolved once ([`resolve`]): component by component, each opened relative to the
//! one before, which leads to a [`Place`]: an open directory and a name in it. All that follows
//! (the test, the new file, the rename) is relative to that descriptor, so nobody who may write
//! to a directory on the way can lead it elsewhere. The content goes to a file without a name
//! (O_TMPFILE) or with one that nobody can guess, and gets the output's name when it is whole.
//! [`Caller`] is the user who called sudo, as whom outputs are made.
//!
//! What is refused, and in which words, is decided in `cli/file.rs`.

mod caller;
mod calls;
mod place;
mod resolve;
mod step;
mod unfinished;

pub use caller::Caller;
pub use calls::{Status, duplicate as open_file};
pub use place::Place;
pub use resolve::{Goal, Refusal, Resolved, Trust, make_directories, resolve};
#[cfg(test)]
pub(crate) use step::{Step, hook};
pub use unfinished::{Unfinished, remove_unfinished};
