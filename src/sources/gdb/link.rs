//! Packets to and from a stub, over a byte stream: acknowledgement and retransmission if the stub requires
//! them, a queue of notifications, and a deadline for every wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::connection_error::ConnectionError;
use super::packet::{self, Decoder, Item};
use super::transport::StubStream;
use crate::sources::signals;

/// Most consecutive damaged packets in one direction.
const TRIES: u32 = 3;
/// Most queued packets, and notifications.
const WAITING_MAX: usize = 65_536;
/// The byte that interrupts a running target.
const INTERRUPT: u8 = 3;
/// Longest single wait, so that the end of this process is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// Bytes per read.
const READ_BYTES: usize = 64 << 10;

/// Packets to and from a stub, in order.
pub(super) struct Link {
    stream: Box<dyn StubStream>,
    /// Bytes of one read.
    buffer: Vec<u8>,
    decoder: Decoder,
    items: VecDeque<Item>,
    packets: VecDeque<Vec<u8>>,
    notifications: VecDeque<Vec<u8>>,
    /// Both sides acknowledge packets.
    acknowledges: bool,
    /// The last packet as sent, for retransmission, and its number of transmissions.
    sent: Vec<u8>,
    sends: u32,
    /// Consecutive damaged packets.
    damaged: u32,
    /// Requests without a reply.
    unanswered: u64,
    /// A waiting caller was already notified that this process is about to end.
    given_up: bool,
}

impl Link {
    /// Starts the connection.
    ///
    /// # Errors
    /// The connection is already closed.
    pub(super) fn new(stream: Box<dyn StubStream>) -> Result<Link, ConnectionError> {
        let mut link = Link {
            stream,
            buffer: vec![0; READ_BYTES],
            decoder: Decoder::default(),
            items: VecDeque::new(),
            packets: VecDeque::new(),
            notifications: VecDeque::new(),
            acknowledges: true,
            sent: Vec::new(),
            sends: 0,
            damaged: 0,
            unanswered: 0,
            given_up: false,
        };
        // gdb begins with it, and lldb-server waits for it.
        link.stream.write(b"+")?;
        Ok(link)
    }

    /// The time, by which replies are due.
    pub(super) fn now(&self) -> Instant {
        self.stream.now()
    }

    /// Disables acknowledgements from here on.
    pub(super) fn stop_acknowledging(&mut self) {
        self.acknowledges = false;
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The connection is closed, or the stub does not read.
    pub(super) fn send(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        self.unanswered += 1;
        self.send_order(body)
    }

    /// Sends a command with a reply that comes at the next event, not on completion.
    ///
    /// # Errors
    /// See [`Link::send`].
    pub(super) fn send_order(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        self.sent = packet::encode(body);
        self.sends = 1;
        self.stream.write(&self.sent)
    }

    /// Sends several packets at once; only without acknowledgements.
    ///
    /// # Errors
    /// See [`Link::send`].
    pub(super) fn send_all<'b>(
        &mut self,
        bodies: impl Iterator<Item = &'b [u8]>,
    ) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        for body in bodies {
            self.unanswered += 1;
            bytes.extend(packet::encode(body));
        }
        self.stream.write(&bytes)
    }

    /// Interrupts a running target; the reply follows when it has stopped.
    ///
    /// # Errors
    /// See [`Link::send`].
    pub(super) fn interrupt(&mut self) -> Result<(), ConnectionError> {
        self.unanswered += 1;
        self.stream.write(&[INTERRUPT])
    }

    /// The next packet, if one arrives before `until`.
    ///
    /// # Errors
    /// The connection is closed, or the input is not a packet.
    pub(super) fn packet(&mut self, until: Instant) -> Result<Option<Vec<u8>>, ConnectionError> {
        loop {
            if let Some(packet) = self.packets.pop_front() {
                return Ok(Some(packet));
            }
            let left = until.saturating_duration_since(self.now());
            self.pump(left)?;
            if self.packets.is_empty() && left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Takes a notification that has arrived.
    pub(super) fn notification(&mut self) -> Option<Vec<u8>> {
        self.notifications.pop_front()
    }

    /// Waits up to `at_most` for input; returns whether there is a packet or notification.
    ///
    /// # Errors
    /// See [`Link::packet`].
    pub(super) fn wait(&mut self, at_most: Duration) -> Result<bool, ConnectionError> {
        if !self.has_any() {
            self.pump(at_most)?;
        }
        Ok(self.has_any())
    }

    fn has_any(&self) -> bool {
        !self.packets.is_empty() || !self.notifications.is_empty()
    }

    /// Waits until all requests have replies, discarding these, or until the deadline: a stub may never read
    /// its last requests if the connection is closed while it is busy.
    pub(super) fn settle(&mut self, until: Instant) {
        while self.unanswered > 0 && self.now() < until {
            self.packets.clear();
            self.notifications.clear();
            let left = until.saturating_duration_since(self.now());
            if let Err(ConnectionError::Closed | ConnectionError::System(_) | ConnectionError::Deaf(_)) =
                self.pump(left)
            {
                return;
            }
        }
    }

    fn pump(&mut self, at_most: Duration) -> Result<(), ConnectionError> {
        // Once: the following requests release the target.
        if signals::is_ending() && !std::mem::replace(&mut self.given_up, true) {
            return Err(ConnectionError::GivenUp);
        }
        let count = self.stream.read(&mut self.buffer, at_most.min(LOOK))?;
        self.decoder.take(self.buffer.get(..count).unwrap_or_default(), &mut self.items);
        while let Some(item) = self.items.pop_front() {
            match item {
                Item::Packet(body) => {
                    self.damaged = 0;
                    self.unanswered = self.unanswered.saturating_sub(1);
                    if self.acknowledges {
                        self.stream.write(b"+")?;
                    }
                    self.packets.push_back(body);
                }
                Item::Notification(body) => self.notifications.push_back(body),
                Item::Damaged(why) => {
                    self.damaged += 1;
                    if !self.acknowledges || self.damaged >= TRIES {
                        return Err(ConnectionError::Nonsense(why.to_owned()));
                    }
                    self.stream.write(b"-")?;
                }
                Item::Nack if self.acknowledges => {
                    if self.sends >= TRIES {
                        return Err(ConnectionError::Nonsense(format!("{TRIES} refusals of one packet")));
                    }
                    self.sends += 1;
                    self.unanswered += 1;
                    let sent = std::mem::take(&mut self.sent);
                    self.stream.write(&sent)?;
                    self.sent = sent;
                }
                Item::Ack | Item::Nack => {}
            }
        }
        if self.packets.len().max(self.notifications.len()) > WAITING_MAX {
            return Err(ConnectionError::Nonsense("packets without end that nobody asked for".to_owned()));
        }
        Ok(())
    }
}
