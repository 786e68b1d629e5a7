//! Connections from browsers on this system: a listener at 127.0.0.1, and a check of the peer.
//!
//! Input: a handler of requests. Output: its responses, until there was no request for a while. On Linux a
//! connection is served only if its other end belongs to the user who started this process, even with the
//! right token. Each connection has a thread and a time limit, and their number is limited; a new one ends the
//! oldest that has not sent an authorized request, so that slow ones delay none.

#[cfg(target_os = "linux")]
mod peer;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most connections at a time; browsers open six.
pub const CONNECTIONS_MAX: usize = 32;
/// Time limit for receiving a request.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Time limit for a client that does not read its response.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// Pause after accepting failed for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection with a time limit for its requests.
pub struct Connection {
    stream: TcpStream,
    ends: Instant,
    number: u64,
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(into)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Handles one connection. Returns whether it keeps the server alive.
pub type Serve = dyn Fn(&mut Connection, &Activity) + Send + Sync;

/// Tracks requests in progress.
#[derive(Debug, Default)]
pub struct Activity {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    connections: Vec<OpenConnection>,
    /// Connections so far.
    accepted: u64,
    /// Requests in progress.
    requests: usize,
    /// When the last response was sent.
    last: Option<Instant>,
}

/// A connection that has a thread.
#[derive(Debug)]
struct OpenConnection {
    number: u64,
    stream: TcpStream,
    is_authorized: bool,
}

impl Activity {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks an authorized request as in progress while the result exists.
    #[must_use]
    pub fn begin_request(&self, connection: &Connection) -> ActiveRequest<'_> {
        let mut state = self.state();
        state.requests += 1;
        for open in state.connections.iter_mut().filter(|open| open.number == connection.number) {
            open.is_authorized = true;
        }
        drop(state);
        ActiveRequest(self)
    }

    /// Waits for the first request, then until there was none for `idle`.
    fn wait(&self, idle: Option<Duration>) {
        let mut state = self.state();
        loop {
            let left = match (idle, state.last) {
                (Some(idle), Some(last)) if state.requests == 0 => {
                    let left = idle.saturating_sub(last.elapsed());
                    if left.is_zero() {
                        return;
                    }
                    Some(left)
                }
                _ => None,
            };
            state = match left {
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A request in progress.
#[derive(Debug)]
pub struct ActiveRequest<'a>(&'a Activity);

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.requests -= 1;
        state.last = Some(Instant::now());
        drop(state);
        self.0.changed.notify_all();
    }
}

/// One of the [`CONNECTIONS_MAX`] connections.
struct Slot {
    activity: Arc<Activity>,
    number: u64,
}

impl Slot {
    /// If all are in use, the oldest connection without an authorized request is ended; `None` if there is no such.
    fn take(activity: &Arc<Activity>, stream: &TcpStream) -> Option<Slot> {
        let stream = stream.try_clone().ok()?;
        let mut state = activity.state();
        if state.connections.len() == CONNECTIONS_MAX {
            let idle = state.connections.iter().position(|open| !open.is_authorized)?;
            // Its thread reads the end of the stream.
            let _ = state.connections.remove(idle).stream.shutdown(Shutdown::Both);
        }
        state.accepted += 1;
        let number = state.accepted;
        state.connections.push(OpenConnection { number, stream, is_authorized: false });
        Some(Slot { activity: Arc::clone(activity), number })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.activity.state().connections.retain(|open| open.number != self.number);
    }
}

/// A listener at 127.0.0.1.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    port: u16,
}

impl Listener {
    /// Listens at a port that the system chooses.
    ///
    /// # Errors
    /// The system's error; also if this system cannot identify the peer.
    pub fn bind() -> io::Result<Listener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        #[cfg(target_os = "linux")]
        peer::check()?;
        Ok(Listener { listener, port })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Serves connections until there was no request for `idle`; forever with `None`.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn serve(self, idle: Option<Duration>, serve: Arc<Serve>) -> io::Result<()> {
        let activity = Arc::new(Activity::default());
        let of_listener = Arc::clone(&activity);
        let accept = move || accept(&self.listener, &of_listener, &serve);
        std::thread::Builder::new().name("listener".to_owned()).spawn(accept)?;
        activity.wait(idle);
        Ok(())
    }
}

fn accept(listener: &TcpListener, activity: &Arc<Activity>, serve: &Arc<Serve>) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        // Those of others get no slot. Beyond the limit, or without a thread, the connection is closed.
        if !is_own(&stream) {
            continue;
        }
        let Some(slot) = Slot::take(activity, &stream) else { continue };
        let serve = Arc::clone(serve);
        let answer = move || answer(stream, &slot, &*serve);
        let _ = std::thread::Builder::new().name("connection".to_owned()).spawn(answer);
    }
}

fn answer(stream: TcpStream, slot: &Slot, serve: &Serve) {
    if stream.set_write_timeout(Some(WRITE_TIME)).is_err() || stream.set_nodelay(true).is_err() {
        return;
    }
    let mut connection = Connection { stream, ends: Instant::now() + REQUEST_TIME, number: slot.number };
    serve(&mut connection, &slot.activity);
    // Unread input would make the system reset the connection before the client has read the response.
    let _ = connection.stream.shutdown(Shutdown::Write);
    let mut rest = [0; 4096];
    while connection.read(&mut rest).is_ok_and(|read| read > 0) {}
}

/// Whether the other end belongs to the user of this process.
#[cfg(target_os = "linux")]
fn is_own(stream: &TcpStream) -> bool {
    peer::is_own(stream)
}

/// This system does not report owners: only the token protects.
#[cfg(not(target_os = "linux"))]
fn is_own(_stream: &TcpStream) -> bool {
    true
}

/// 32 unguessable hexadecimal digits.
///
/// # Errors
/// The system has no random numbers.
pub fn token() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether the system has a route to other networks. Sends nothing.
#[must_use]
pub fn has_route() -> bool {
    // Connecting a datagram socket looks up its route; the address is reserved for documentation (RFC 5737).
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .is_ok_and(|socket| socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).is_ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn silent_connections_hold_no_place() {
        let listener = Listener::bind().unwrap();
        let port = listener.port();
        let serve = |connection: &mut Connection, activity: &Activity| {
            let mut request = [0; 4];
            if connection.read_exact(&mut request).is_ok() {
                let _active = activity.begin_request(connection);
                connection.write_all(b"done").unwrap();
            }
        };
        std::thread::spawn(move || listener.serve(None, Arc::new(serve)));
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut silent: Vec<TcpStream> = (0..2 * CONNECTIONS_MAX).map(|_| connect()).collect();
        for _ in 0..3 {
            let mut client = connect();
            client.write_all(b"send").unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "done");
        }
        // The oldest one was ended.
        assert_eq!(silent[0].read(&mut [0]).unwrap_or(0), 0);
    }
}
