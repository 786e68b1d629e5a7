//! Why two profiles cannot be compared: one line for people that names the profile.

use std::error::Error;
use std::fmt;

/// Profiles that cannot be compared, and why. They are named by their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incomparable {
    /// The number of profiles is not two, but this.
    NotTwo(usize),
    /// A profile is empty.
    NoSamples {
        /// The profile.
        source: String,
        /// It has only waiting threads, which were excluded.
        waiting: bool,
    },
    /// They count different things.
    Units {
        /// The base profile and its unit.
        base: (String, String),
        /// The new profile and its unit.
        new: (String, String),
    },
    /// CPU time was requested, and a profile has no sampling rate.
    RateUnknown(String),
}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Incomparable::NotTwo(count) => write!(f, "{count} profiles; diff compares two"),
            Incomparable::NoSamples { source, waiting: false } => {
                write!(f, "{source} has no samples; record for longer")
            }
            Incomparable::NoSamples { source, waiting: true } => {
                write!(f, "{source} has no samples of running threads; --idle compares waiting ones, too")
            }
            Incomparable::Units { base: (base, base_unit), new: (new, new_unit) } => {
                write!(f, "{base} counts {base_unit} and {new} counts {new_unit}")
            }
            Incomparable::RateUnknown(source) => write!(
                f,
                "{source} has no sampling rate, so CPU time cannot be compared; leave out --absolute, or record both as .pb.gz"
            ),
        }
    }
}

impl Error for Incomparable {}
