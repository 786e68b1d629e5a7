//! Output files, by descriptors instead of paths. Input: a path and content. Output: a whole file, or an error.
//!
//! A path is resolved once ([`resolve`]): component by component, each opened relative to the one before, which leads
//! to a [`Place`]: an open directory and a name in it. All that follows (the test, the new file, the rename) is
//! relative to that descriptor, so no user who may write to a directory on the way can redirect it. The content goes
//! to a file without a name (O_TMPFILE) or with an unguessable one, and gets the output's name when it is whole.
//! [`Caller`] is the user who called sudo, as whom outputs are created.
//!
//! `cli/file.rs` decides what is refused, and words the messages.

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
