//! yaxpeax-x86 and yaxpeax-arm.

use disassemblers::{arguments, print, unknown_set};
use yaxpeax_arch::{AddressBase, Decoder, LengthedInstruction, U8Reader};
use yaxpeax_arm::{armv7, armv8};
use yaxpeax_x86::{amd64, protected_mode};

macro_rules! decode {
    ($decoder:expr, $zero:expr, $step:expr) => {{
        let decoder = $decoder;
        move |rest: &[u8]| match decoder.decode(&mut U8Reader::new(rest)) {
            Ok(one) => ($zero.wrapping_offset(one.len()) as usize, Some(one.to_string())),
            Err(_) => ($step, None),
        }
    }};
}

fn main() {
    let (set, bytes, start) = arguments();
    let decode: Box<dyn Fn(&[u8]) -> (usize, Option<String>)> = match set.as_str() {
        "x64" => Box::new(decode!(amd64::InstDecoder::default(), 0u64, 1)),
        "x86" => Box::new(decode!(protected_mode::InstDecoder::default(), 0u32, 1)),
        "a64" => Box::new(decode!(armv8::a64::InstDecoder::default(), 0u64, 4)),
        "a32" => Box::new(decode!(armv7::InstDecoder::default(), 0u32, 4)),
        "t32" => Box::new(decode!(armv7::InstDecoder::default_thumb(), 0u32, 2)),
        _ => unknown_set(),
    };
    print(&bytes, start, |rest, _| decode(rest));
}
