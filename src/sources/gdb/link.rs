//! Packets to and from a stub, over a byte stream (`Link`): acknowledgement and retransmission if the stub requires
//! them, a queue of notifications, and a deadline for every wait. `Decoder` and `encode` are the encoding of
//! packets, and functions for hexadecimal digits follow.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::transport::{ConnectionError, StubStream};
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
    /// The connection is closed, or the stub does not read.
    pub(super) fn send_order(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        self.sent = encode(body);
        self.sends = 1;
        self.stream.write(&self.sent)
    }

    /// Sends several packets at once; only without acknowledgements.
    ///
    /// # Errors
    /// The connection is closed, or the stub does not read.
    pub(super) fn send_all<'b>(
        &mut self,
        bodies: impl Iterator<Item = &'b [u8]>,
    ) -> Result<(), ConnectionError> {
        let mut bytes = Vec::new();
        for body in bodies {
            self.unanswered += 1;
            bytes.extend(encode(body));
        }
        self.stream.write(&bytes)
    }

    /// Interrupts a running target; the reply follows when it has stopped.
    ///
    /// # Errors
    /// The connection is closed, or the stub does not read.
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
    /// The connection is closed, or the input is not a packet.
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

// ---- Encodes and decodes packets of the gdb remote protocol: bodies ↔ bytes on the wire.
//
// Input of [`Decoder`]: bytes in pieces of any size, hostile. Format: "Debugging with GDB", appendix E.1
// "Overview".

/// Longest accepted body, after run-length expansion: more than any reply to our requests.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Offset between an encoded run length and the number of repetitions.
const RUN_BASE: u8 = 29;
/// An escaped byte is XORed with this.
const ESCAPE_BIT: u8 = 0x20;

/// A received item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// `$body#sum`.
    Packet(Vec<u8>),
    /// `%body#sum`, without a request.
    Notification(Vec<u8>),
    /// A damaged packet, and why.
    Damaged(&'static str),
    /// `+`.
    Ack,
    /// `-`: a request to retransmit.
    Nack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Between packets.
    #[default]
    Between,
    Body,
    /// The next byte is escaped.
    Escaped,
    /// The next byte is a run length.
    Run,
    /// The first digit of the checksum comes next.
    Sum,
    /// The second digit comes next; the first one was this.
    SumOf(u8),
}

/// Decodes a stream of bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
    is_notification: bool,
    /// Checksum of the bytes so far.
    sum: u8,
    body: Vec<u8>,
    damage: Option<&'static str>,
}

impl Decoder {
    /// Decodes received bytes, and appends completed items to `out`.
    pub fn take(&mut self, bytes: &[u8], out: &mut VecDeque<Item>) {
        for byte in bytes {
            self.byte(*byte, out);
        }
    }

    fn byte(&mut self, byte: u8, out: &mut VecDeque<Item>) {
        match self.state {
            State::Between => match byte {
                b'$' | b'%' => self.begin(byte),
                b'+' => out.push_back(Item::Ack),
                b'-' => out.push_back(Item::Nack),
                // Terminal noise before the first packet, or the rest of a packet without its start.
                _ => {}
            },
            State::Sum => self.state = State::SumOf(byte),
            State::SumOf(first) => {
                let sum = hex_digit(first).zip(hex_digit(byte)).map(|(high, low)| high << 4 | low);
                out.push_back(self.end(sum));
            }
            _ if byte == b'$' => {
                // `$` is never part of a body: the end of the previous packet was lost.
                out.push_back(Item::Damaged("a packet that another one interrupts"));
                self.begin(byte);
            }
            _ if byte == b'#' => {
                if self.state != State::Body {
                    self.damage = Some("a packet that ends within an escape");
                }
                self.state = State::Sum;
            }
            state => {
                self.sum = self.sum.wrapping_add(byte);
                self.state = State::Body;
                match state {
                    State::Escaped => self.push(byte ^ ESCAPE_BIT, 1),
                    State::Run => self.repeat(byte),
                    _ if byte == b'}' => self.state = State::Escaped,
                    _ if byte == b'*' => self.state = State::Run,
                    _ => self.push(byte, 1),
                }
            }
        }
    }

    fn begin(&mut self, byte: u8) {
        *self = Decoder { state: State::Body, is_notification: byte == b'%', ..Decoder::default() };
    }

    fn repeat(&mut self, length: u8) {
        match (self.body.last().copied(), length.checked_sub(RUN_BASE)) {
            (Some(last), Some(times)) if (b' '..=b'~').contains(&length) => self.push(last, times.into()),
            _ => self.damage = Some("a packet with a wrong run length"),
        }
    }

    fn push(&mut self, byte: u8, times: usize) {
        if self.body.len() + times > BODY_BYTES_MAX {
            self.damage = Some("a packet without an end");
        } else if self.damage.is_none() {
            self.body.resize(self.body.len() + times, byte);
        }
    }

    fn end(&mut self, sum: Option<u8>) -> Item {
        self.state = State::Between;
        let body = std::mem::take(&mut self.body);
        match self.damage.take() {
            Some(why) => Item::Damaged(why),
            None if sum != Some(self.sum) => Item::Damaged("a packet with a wrong checksum"),
            None if self.is_notification => Item::Notification(body),
            None => Item::Packet(body),
        }
    }
}

/// Encodes a body for the wire.
#[must_use]
pub fn encode(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 4);
    bytes.push(b'$');
    for byte in body {
        if matches!(byte, b'#' | b'$' | b'}') {
            bytes.extend([b'}', byte ^ ESCAPE_BIT]);
        } else {
            bytes.push(*byte);
        }
    }
    let sum = bytes[1..].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes.extend(format!("#{sum:02x}").into_bytes());
    bytes
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

// ---- Reads and writes numbers and bytes in the protocol's hexadecimal digits.

/// Bytes as digits.
pub(super) fn encode_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// Digits as bytes; `None` for other characters or an odd number of digits.
pub(super) fn decode(digits: &[u8]) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
}

/// Hex-encoded text.
pub(super) fn text(digits: &[u8]) -> Option<String> {
    decode(digits).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A number, most significant digit first; `None` if invalid or longer than 64 bits.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        if value >> 60 != 0 {
            return None;
        }
        Some(value << 4 | u64::from(nibble(*digit)?))
    })
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod packet_tests {
    use super::*;
    use crate::rng::Rng;

    fn decoded(bytes: &[u8]) -> Vec<Item> {
        let (mut decoder, mut items) = (Decoder::default(), VecDeque::new());
        decoder.take(bytes, &mut items);
        items.into()
    }

    #[test]
    fn decodes_packets_of_the_manual() {
        assert_eq!(encode(b"qC"), b"$qC#b4");
        assert_eq!(decoded(b"+$OK#9a"), [Item::Ack, Item::Packet(b"OK".to_vec())]);
        // `0* ` is 0000.
        assert_eq!(decoded(b"$0* #7a"), [Item::Packet(b"0000".to_vec())]);
        assert_eq!(decoded(b"$}\x03#80"), [Item::Packet(b"#".to_vec())]);
        assert_eq!(decoded(b"%Stop:W00#97-"), [Item::Notification(b"Stop:W00".to_vec()), Item::Nack]);
    }

    #[test]
    fn damaged_packets_have_a_reason() {
        let damage = |bytes: &[u8]| match &decoded(bytes)[..] {
            [Item::Damaged(why), ..] => *why,
            other => panic!("{other:?}"),
        };
        assert_eq!(damage(b"$OK#9b"), "a packet with a wrong checksum");
        assert_eq!(damage(b"$OK#zz"), "a packet with a wrong checksum");
        assert_eq!(damage(b"$*!#4b"), "a packet with a wrong run length");
        assert_eq!(damage(b"$a}#de"), "a packet that ends within an escape");
        assert_eq!(damage(b"$abc$OK#9a"), "a packet that another one interrupts");
        let endless = [b"$a".as_slice(), &b"*~".repeat(BODY_BYTES_MAX / 97 + 2), b"#00"].concat();
        assert_eq!(damage(&endless), "a packet without an end");
    }

    #[test]
    fn encoded_bodies_are_decoded_from_pieces_of_any_size() {
        for seed in 0..500 {
            let mut rng = Rng::new(seed);
            let body: Vec<u8> =
                (0..rng.below(200)).map(|_| rng.next() as u8).filter(|b| *b != b'*').collect();
            let wire = encode(&body);
            let (mut decoder, mut items, mut at) = (Decoder::default(), VecDeque::new(), 0);
            while at < wire.len() {
                let end = wire.len().min(at + 1 + rng.below(7));
                decoder.take(&wire[at..end], &mut items);
                at = end;
            }
            assert_eq!(Vec::from(items), [Item::Packet(body)], "seed {seed}");
        }
    }

    #[test]
    fn a_damaged_packet_never_decodes_to_its_original_body() {
        for seed in 0..2_000 {
            let mut rng = Rng::new(seed);
            let body: Vec<u8> = (0..1 + rng.below(40)).map(|_| b'a' + rng.below(26) as u8).collect();
            let mut wire = encode(&body);
            let at = 1 + rng.below(body.len());
            wire[at] ^= 1 << rng.below(7);
            let items = decoded(&wire);
            assert!(!items.contains(&Item::Packet(body)), "seed {seed}: {items:?}");
        }
    }
}

#[cfg(test)]
mod hex_tests {
    use super::*;

    #[test]
    fn digits_encode_bytes_and_numbers() {
        assert_eq!(encode_hex(&[0, 0xab, 0x7f]), "00ab7f");
        assert_eq!(decode(b"00AB7f"), Some(vec![0, 0xab, 0x7f]));
        assert_eq!(decode(b"0"), None);
        assert_eq!(decode(b"xx"), None);
        assert_eq!(number(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(number(b"10000000000000000"), None);
        assert_eq!(number(b""), None);
        assert_eq!(text(b"6162").as_deref(), Some("ab"));
    }
}
