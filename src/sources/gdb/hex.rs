//! Reads and writes numbers and bytes in the protocol's hexadecimal digits.

/// Bytes as digits.
pub(super) fn encode(bytes: &[u8]) -> String {
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
mod tests {
    use super::*;

    #[test]
    fn digits_encode_bytes_and_numbers() {
        assert_eq!(encode(&[0, 0xab, 0x7f]), "00ab7f");
        assert_eq!(decode(b"00AB7f"), Some(vec![0, 0xab, 0x7f]));
        assert_eq!(decode(b"0"), None);
        assert_eq!(decode(b"xx"), None);
        assert_eq!(number(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(number(b"10000000000000000"), None);
        assert_eq!(number(b""), None);
        assert_eq!(text(b"6162").as_deref(), Some("ab"));
    }
}
