//! The command line: the only module that prints, and the one that knows exit codes.
//!
//! `args.rs` turns the arguments into validated values, `messages.rs` is the one place
//! that writes to the terminal, `summary.rs` and `stats.rs` tell how a recording went,
//! `progress.rs` tells it while it goes.

pub mod args;
pub mod clap_text;
pub mod flags;
pub mod messages;
pub mod progress;
pub mod stats;
pub mod summary;
pub mod text;

use crate::error::{Error, ErrorKind};

/// The exit code for an error: 1 error, 2 wrong usage, 4 nothing was sampled.
/// (3, a regression, is a verdict of `gate` and no error.)
#[must_use]
pub fn exit_code(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Usage => 2,
        ErrorKind::NoData => 4,
        ErrorKind::Attach | ErrorKind::Input | ErrorKind::Output | ErrorKind::System => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        for (kind, code) in [
            (ErrorKind::Attach, 1),
            (ErrorKind::Input, 1),
            (ErrorKind::Output, 1),
            (ErrorKind::System, 1),
            (ErrorKind::Usage, 2),
            (ErrorKind::NoData, 4),
        ] {
            assert_eq!(exit_code(&Error::new(kind, "x")), code, "{kind:?}");
        }
    }
}
