//! Why the connection to a stub failed: one line for people, without the stub's name, which the caller adds.

use std::fmt;
use std::time::Duration;

/// Why a stub cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// The other end is closed.
    Closed,
    /// No reply to this request in this time.
    Silent(String, Duration),
    /// The stub does not read what is sent.
    Deaf(Duration),
    /// It still replies, but this did not complete in this time.
    Endless(&'static str, Duration),
    /// No reply to a stop request in this time.
    Unstopped(Duration),
    /// The reply does not fit the request.
    Nonsense(String),
    /// Error of the system.
    System(String),
    /// Abandoned: a signal is about to end this process.
    GivenUp,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionError::Closed => f.write_str("closed the connection"),
            ConnectionError::Silent(request, time) => {
                write!(f, "did not answer `{request}` within {} s", time.as_secs())
            }
            ConnectionError::Deaf(time) => {
                write!(f, "did not read what it was sent within {} s", time.as_secs())
            }
            ConnectionError::Endless(what, time) => {
                write!(f, "did not come to an end with {what} within {} s", time.as_secs())
            }
            // The stub reads nothing while the program runs.
            ConnectionError::Unstopped(time) => write!(
                f,
                "did not stop its target within {} s of being asked to; QEMU's emulation of single programs (qemu-arm -g) cannot",
                time.as_secs()
            ),
            ConnectionError::Nonsense(what) => write!(f, "sent {what}"),
            ConnectionError::GivenUp => f.write_str("was given up on a signal"),
            ConnectionError::System(why) => write!(f, "cannot be reached: {why}"),
        }
    }
}
