//! Encodes and decodes packets of the gdb remote protocol: bodies ↔ bytes on the wire. Pure.
//!
//! Input of [`Decoder`]: bytes in pieces of any size, hostile. Output: bodies with escapes and run lengths
//! expanded, or an error. Format: "Debugging with GDB", appendix E.1 "Overview".

use std::collections::VecDeque;

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
                let told = hex_digit(first).zip(hex_digit(byte)).map(|(high, low)| high << 4 | low);
                out.push_back(self.end(told));
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

    fn end(&mut self, told: Option<u8>) -> Item {
        self.state = State::Between;
        let body = std::mem::take(&mut self.body);
        match self.damage.take() {
            Some(why) => Item::Damaged(why),
            None if told != Some(self.sum) => Item::Damaged("a packet with a wrong checksum"),
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

#[cfg(test)]
mod tests {
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
