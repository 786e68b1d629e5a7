//! Packets of a gdb stub, in pieces of any size, and the stop replies in them; what is encoded is
//! decoded the same.
#![no_main]

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use stackprof::sources::gdb::link::{Decoder, Item, encode};
use stackprof::sources::gdb::run::StopReply;

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut items) = (Decoder::default(), VecDeque::new());
    let (first, second) = data.split_at(data.len() / 2);
    decoder.take(first, &mut items);
    decoder.take(second, &mut items);
    let (mut whole, mut at_once) = (Decoder::default(), VecDeque::new());
    whole.take(data, &mut at_once);
    assert_eq!(items, at_once);
    for item in items {
        if let Item::Packet(body) | Item::Notification(body) = item {
            let _ = StopReply::parse(&body);
        }
    }
    let _ = StopReply::parse(data);
    // Run lengths are only what stubs send.
    if !data.contains(&b'*') {
        let (mut decoder, mut items) = (Decoder::default(), VecDeque::new());
        decoder.take(&encode(data), &mut items);
        assert_eq!(items, [Item::Packet(data.to_vec())]);
    }
});
