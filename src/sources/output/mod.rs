//! Output files, by descriptors instead of paths. Input: a path and content. Output: a whole file, or an
//! error.
//!
//! A path is resolved once ([`resolve`]), component by component, each opened relative to the one before. The
//! result is an [`OutputPlace`]: an open directory and a name in it. Every later step (test, new file, rename) is
//! relative to that descriptor, so no user with write access to a directory of the path can redirect it. The
//! content goes to a nameless file (O_TMPFILE) or one with an unguessable name, and gets the output's name
//! when it is complete. [`Caller`] is the user who called sudo, as whom outputs are created.
//!
//! `cli/file.rs` decides what is refused, and words the messages.

mod caller;
mod calls;
mod place;
mod step;
mod unfinished;

pub use caller::Caller;
#[cfg(target_os = "linux")]
pub(crate) use caller::file_uid;
pub use calls::{Status, duplicate as open_file};
pub use place::{Goal, OutputPlace, Refusal, Resolved, Trust, make_directories, resolve};
#[cfg(test)]
pub(crate) use step::{Step, hook};
pub use unfinished::{Unfinished, remove_unfinished};
