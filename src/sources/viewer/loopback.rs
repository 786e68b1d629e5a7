//! Connections from browsers on this system: a listener at 127.0.0.1, and a check of the peer.
//!
//! Input: a handler of requests. Output: its responses, until there was no request for a while. On Linux a
//! connection is served only if its other end belongs to the user who started this process, even with the
//! right token. Each connection has a thread and a time limit, and their number is limited, so that a slow
//! one delays none.

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
    connections: usize,
    /// Requests in progress.
    requests: usize,
    /// When the last response was sent.
    last: Option<Instant>,
}

impl Activity {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a request as in progress while the result exists.
    #[must_use]
    pub fn begin_request(&self) -> ActiveRequest<'_> {
        self.state().requests += 1;
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
struct Slot(Arc<Activity>);

impl Slot {
    /// `None` if all are in use.
    fn take(activity: &Arc<Activity>) -> Option<Slot> {
        let mut state = activity.state();
        if state.connections == CONNECTIONS_MAX {
            return None;
        }
        state.connections += 1;
        Some(Slot(Arc::clone(activity)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.state().connections -= 1;
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
        // Beyond the limit, or without a thread, the connection is closed.
        let Some(slot) = Slot::take(activity) else { continue };
        let (activity, serve) = (Arc::clone(activity), Arc::clone(serve));
        let answer = move || {
            let _slot = slot;
            if is_own(&stream) {
                answer(stream, &activity, &*serve);
            }
        };
        let _ = std::thread::Builder::new().name("connection".to_owned()).spawn(answer);
    }
}

fn answer(stream: TcpStream, activity: &Activity, serve: &Serve) {
    if stream.set_write_timeout(Some(WRITE_TIME)).is_err() || stream.set_nodelay(true).is_err() {
        return;
    }
    let mut connection = Connection { stream, ends: Instant::now() + REQUEST_TIME };
    serve(&mut connection, activity);
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
