//! The byte stream to the stub: a TCP connection, or a command's standard input and output. Input: the
//! address of the stub. Output: bytes, or an error of one line. A simulated stub is another [`StubStream`].
//!
//! `ConnectionError` says why a connection failed.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::{self, Error, ErrorKind, io_text};

/// Time limit for connecting, for each address of a host.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for a stub that does not read.
const WRITE: Duration = Duration::from_secs(5);
/// Time for a command to exit after its input was closed, and again after SIGTERM.
const END: Duration = Duration::from_millis(500);

/// The bytes to and from a stub, and the clock of the time limits of its replies.
pub trait StubStream {
    /// Waits up to `at_most` for bytes; returns how many were read, 0 if none arrived.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`], or the system's error.
    fn read(&mut self, into: &mut [u8], at_most: Duration) -> std::result::Result<usize, ConnectionError>;

    /// Sends bytes.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`], [`ConnectionError::Deaf`], or the system's error.
    fn write(&mut self, bytes: &[u8]) -> std::result::Result<(), ConnectionError>;

    /// The time.
    fn now(&self) -> Instant;
}

/// Address of a stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StubAddress {
    /// A TCP port.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A shell command that speaks the protocol on its standard input and output.
    Command(String),
}

impl StubAddress {
    /// Parses `HOST:PORT`, `:PORT` (this machine), `tcp:HOST:PORT` and `|COMMAND`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<StubAddress> {
        if let Some(command) = text.strip_prefix('|') {
            let command = command.trim();
            return (!command.is_empty()).then(|| StubAddress::Command(command.to_owned()));
        }
        let (host, port) = text.strip_prefix("tcp:").unwrap_or(text).rsplit_once(':')?;
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let host = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
            Some(address) => address?,
            // An IPv6 address without brackets is ambiguous.
            None if host.contains([':', '/', ' ']) => return None,
            None => host,
        };
        let host = if host.is_empty() { "localhost" } else { host };
        Some(StubAddress::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for StubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StubAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            StubAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            StubAddress::Command(command) => write!(f, "|{command}"),
        }
    }
}

/// An open connection to a stub. Dropping it closes the connection, and ends the command that it started.
pub(super) struct Transport {
    stream: Stream,
    command: Option<StubCommand>,
}

impl Transport {
    /// Connects, or starts the command.
    ///
    /// # Errors
    /// [`ErrorKind::Attach`]: why there is no connection, and what to check.
    pub(super) fn open(place: &StubAddress) -> error::Result<Transport> {
        let (stream, command) = match place {
            StubAddress::Tcp { host, port } => (Stream::Tcp(connect(place, host, *port)?), None),
            StubAddress::Command(text) => {
                let (stream, command) = start(text)?;
                (stream, Some(command))
            }
        };
        Ok(Transport { stream, command })
    }
}

impl StubStream for Transport {
    fn read(&mut self, into: &mut [u8], at_most: Duration) -> std::result::Result<usize, ConnectionError> {
        if !self.stream.wait_readable(at_most) {
            return Ok(0);
        }
        match self.stream.read(into) {
            Ok(0) => Err(ConnectionError::Closed),
            Ok(count) => Ok(count),
            Err(error) if is_passing(&error) => Ok(0),
            Err(error) if is_closed(&error) => Err(ConnectionError::Closed),
            Err(error) => Err(ConnectionError::System(io_text(&error))),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::result::Result<(), ConnectionError> {
        self.stream.write_all(bytes).map_err(|error| match error {
            error if is_passing(&error) => ConnectionError::Deaf(WRITE),
            error if is_closed(&error) => ConnectionError::Closed,
            error => ConnectionError::System(io_text(&error)),
        })
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stream.close();
        drop(self.command.take());
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof, WriteZero,
    };
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof | WriteZero
    )
}

fn connect(place: &StubAddress, host: &str, port: u16) -> error::Result<TcpStream> {
    let failed = |why: &str| {
        Error::new(
            ErrorKind::Attach,
            format!("cannot connect to {place}: {why}; is the stub listening there?"),
        )
    };
    let addresses = (host, port).to_socket_addrs().map_err(|error| failed(&io_text(&error)))?;
    let mut why = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                // Requests are small, and each waits for its reply.
                let set = stream.set_nodelay(true).and_then(|()| stream.set_write_timeout(Some(WRITE)));
                set.map_err(|error| failed(&io_text(&error)))?;
                return Ok(stream);
            }
            Err(error) => why = io_text(&error),
        }
    }
    Err(failed(&why))
}

/// The byte stream of the connection.
enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixStream),
}

impl Stream {
    #[cfg(unix)]
    fn wait_readable(&self, at_most: Duration) -> bool {
        use std::os::fd::AsFd;
        let fd = match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        };
        super::sys::wait_readable(fd, at_most)
    }

    /// Without poll(2), the read itself waits.
    #[cfg(not(unix))]
    fn wait_readable(&self, at_most: Duration) -> bool {
        let Stream::Tcp(stream) = self;
        stream.set_read_timeout(Some(at_most.max(Duration::from_millis(1)))).is_ok()
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.write_all(bytes),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }

    fn close(&mut self) {
        // It may already be closed.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            #[cfg(unix)]
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// A command started as a stub. Dropping it ends the command and its descendants.
struct StubCommand {
    child: std::process::Child,
}

impl Drop for StubCommand {
    fn drop(&mut self) {
        // Its input is closed: most stubs then exit.
        if self.ends_within(END) {
            return;
        }
        #[cfg(unix)]
        {
            super::sys::end_group(self.child.id());
            if self.ends_within(END) {
                return;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl StubCommand {
    fn ends_within(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if begun.elapsed() < time => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) => return false,
                _ => return true,
            }
        }
    }
}

/// Starts a command in a separate process group: a Ctrl-C at the terminal is for us, and would end many a
/// stub with its target.
#[cfg(unix)]
fn start(text: &str) -> error::Result<(Stream, StubCommand)> {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    let failed =
        |error: &io::Error| Error::new(ErrorKind::Attach, format!("cannot run `{text}`: {}", io_text(error)));
    let (ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
    let output = theirs.try_clone().map_err(|error| failed(&error))?;
    ours.set_write_timeout(Some(WRITE)).map_err(|error| failed(&error))?;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text).process_group(0);
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::from(OwnedFd::from(output)));
    let child = crate::sources::spawn_as_we_began(&mut command).map_err(|error| failed(&error))?;
    // The command holds the other ends: ours report its exit.
    drop(command);
    Ok((Stream::Unix(ours), StubCommand { child }))
}

#[cfg(not(unix))]
fn start(text: &str) -> error::Result<(Stream, StubCommand)> {
    let why = format!("cannot run `{text}`: this system has no sockets for it; give HOST:PORT");
    Err(Error::new(ErrorKind::Attach, why))
}

// ---- Why the connection to a stub failed: one line for people, without the stub's name, which the caller adds.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses_as_debuggers_write_them() {
        let tcp = |host: &str, port| Some(StubAddress::Tcp { host: host.to_owned(), port });
        assert_eq!(StubAddress::parse("board:3333"), tcp("board", 3333));
        assert_eq!(StubAddress::parse(":1234"), tcp("localhost", 1234));
        assert_eq!(StubAddress::parse("tcp:10.0.0.2:1234"), tcp("10.0.0.2", 1234));
        assert_eq!(StubAddress::parse("tcp::1234"), tcp("localhost", 1234));
        assert_eq!(StubAddress::parse("[::1]:1234"), tcp("::1", 1234));
        let openocd = "| openocd -c 'gdb_port pipe'";
        assert_eq!(
            StubAddress::parse(openocd),
            Some(StubAddress::Command("openocd -c 'gdb_port pipe'".to_owned()))
        );
        for wrong in ["", "board", "1234", ":0", ":65536", "::1:1234", "[::1:1234", "|", "| ", "/dev/ttyS0:1"]
        {
            assert_eq!(StubAddress::parse(wrong), None, "{wrong}");
        }
        assert_eq!(
            StubAddress::parse("[::1]:1234").map(|place| place.to_string()).as_deref(),
            Some("[::1]:1234")
        );
    }
}
