//! JsonSlabs: JSON of the Firefox Profiler with columns as binary arrays next to it.
//!
//! Input: a container: magic, version, a table of slabs (kind, start, length), the slabs. Output: the
//! resulting JSON, with each `{"$s":7}` replaced by slab 7. Numbers are little-endian. A slab of JSON may
//! refer to others, so depth and size are bounded.

use std::cell::Cell;

use super::super::malformed::Malformed;

/// Magic bytes of a container.
pub(in super::super) const MAGIC: [u8; 8] = [0xdc, 0xdf, b'J', b'S', b'L', b'B', 1, 0];
/// The only version.
const VERSION: u32 = 1;
/// Bytes of the header, and of a table entry.
const HEADER_BYTES: usize = 20;
const ENTRY_BYTES: usize = 12;
/// Deepest nesting of JSON slabs.
const DEPTH_MAX: usize = 8;
/// Least cost of a reference to a slab, so that empty ones are bounded, too.
const PLACE_BYTES: usize = 64;

/// The JSON of a container, up to a size.
///
/// # Errors
/// The error, as a line for people without the name of the file.
pub(in super::super) fn to_json(container: &[u8], bytes_max: usize) -> Result<Vec<u8>, Malformed> {
    let slabs = Slabs { container, bytes_max, spent: Cell::new(0) };
    let version = slabs.number(8)?;
    if version != VERSION {
        return Err(format!("version {version} of JsonSlabs is not read, only {VERSION}").into());
    }
    let mut out = Vec::new();
    slabs.write(slabs.number(16)?, 0, &mut out)?;
    Ok(out)
}

struct Slabs<'c> {
    container: &'c [u8],
    bytes_max: usize,
    /// Bytes processed.
    spent: Cell<usize>,
}

impl Slabs<'_> {
    fn number(&self, at: usize) -> Result<u32, Malformed> {
        let bytes = self.container.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map(|bytes| u32::from_le_bytes(*bytes)).ok_or_else(|| "it ends in its table of slabs".into())
    }

    /// Writes a slab as JSON.
    fn write(&self, slab: u32, depth: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let count = self.number(12)?;
        if slab >= count {
            return Err(format!("it names slab {slab}, and there are {count}").into());
        }
        let entry = HEADER_BYTES + slab as usize * ENTRY_BYTES;
        let (kind, start, length) = (self.number(entry)?, self.number(entry + 4)?, self.number(entry + 8)?);
        let (start, length) = (start as usize, length as usize);
        let bytes = start.checked_add(length).and_then(|end| self.container.get(start..end));
        let bytes = bytes.ok_or_else(|| format!("slab {slab} goes beyond the end of the file"))?;
        self.spent.set(self.spent.get().saturating_add(length.max(PLACE_BYTES)));
        self.room(self.spent.get())?;
        match kind {
            0 => self.array(bytes, out, |[byte]| byte.cast_signed()),
            1 => self.array(bytes, out, |[byte]| byte),
            2 => self.array(bytes, out, i16::from_le_bytes),
            3 => self.array(bytes, out, u16::from_le_bytes),
            4 => self.array(bytes, out, i32::from_le_bytes),
            5 => self.array(bytes, out, u32::from_le_bytes),
            6 => self.array(bytes, out, f32::from_le_bytes),
            7 => self.array(bytes, out, f64::from_le_bytes),
            8 => self.array(bytes, out, i64::from_le_bytes),
            9 => self.array(bytes, out, u64::from_le_bytes),
            10 if depth < DEPTH_MAX => self.json(bytes, depth, out),
            10 => Err(format!("slabs of JSON name one another more than {DEPTH_MAX} deep").into()),
            _ => Err(format!("slab {slab} is of an unknown kind, {kind}").into()),
        }
    }

    fn room(&self, length: usize) -> Result<(), Malformed> {
        if length <= self.bytes_max {
            return Ok(());
        }
        Err(format!("as JSON it is larger than {} MiB (JSON_BYTES_MAX)", self.bytes_max >> 20).into())
    }

    fn array<const N: usize, T: serde::Serialize>(
        &self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        number: impl Fn([u8; N]) -> T,
    ) -> Result<(), Malformed> {
        out.push(b'[');
        for (index, item) in bytes.as_chunks().0.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            // Non-finite numbers become null.
            serde_json::to_writer(&mut *out, &number(*item))
                .map_err(|error| Malformed::caused_by(format!("number {index} of a slab: {error}"), error))?;
            self.room(out.len())?;
        }
        out.push(b']');
        Ok(())
    }

    /// Writes JSON with its references to slabs replaced.
    fn json(&self, text: &[u8], depth: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut rest = text;
        let mut in_string = false;
        while let Some((byte, after)) = rest.split_first() {
            match byte {
                b'\\' if in_string => {
                    let pair = rest.get(..2).unwrap_or(rest);
                    out.extend_from_slice(pair);
                    rest = rest.get(pair.len()..).unwrap_or_default();
                    continue;
                }
                b'"' => in_string = !in_string,
                b'{' if !in_string => {
                    if let Some((slab, after)) = placeholder(after) {
                        self.write(slab, depth + 1, out)?;
                        self.room(out.len())?;
                        rest = after;
                        continue;
                    }
                }
                _ => {}
            }
            out.push(*byte);
            rest = after;
        }
        self.room(out.len())
    }
}

/// The number in `"$s":7}`, and the text after it.
fn placeholder(text: &[u8]) -> Option<(u32, &[u8])> {
    let rest = text.trim_ascii_start().strip_prefix(b"\"$s\"")?.trim_ascii_start();
    let rest = rest.strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = rest.split_at_checked(digits)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    Some((number, rest.trim_ascii_start().strip_prefix(b"}")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container of slabs, with the root first.
    fn container(slabs: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let mut word = |number: u32| out.extend_from_slice(&number.to_le_bytes());
        word(VERSION);
        word(slabs.len() as u32);
        word(0);
        let mut start = (HEADER_BYTES + ENTRY_BYTES * slabs.len()) as u32;
        for (kind, bytes) in slabs {
            word(*kind);
            word(start);
            word(bytes.len() as u32);
            start += bytes.len() as u32;
        }
        slabs.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
        out
    }

    fn json(slabs: &[(u32, &[u8])]) -> String {
        to_json(&container(slabs), 1 << 20)
            .map_or_else(|why| why.to_string(), |json| String::from_utf8(json).expect("UTF-8"))
    }

    #[test]
    fn references_are_replaced_by_slabs() {
        let text = br#"{"a":{"$s":1},"b":[{"$s" : 2}],"\"{\"$s\":1}":{"$s":3},"c":{"$s":1,"d":2}}"#;
        let nested = br#"["\\",{"$s":4}]"#;
        assert_eq!(
            json(&[
                (10, text),
                (4, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
                (1, &[0, 255]),
                (10, nested),
                (7, &[0, 0, 0, 0, 0, 0, 0xf8, 0x3f]),
            ]),
            r#"{"a":[1,-1],"b":[[0,255]],"\"{\"$s\":1}":["\\",[1.5]],"c":{"$s":1,"d":2}}"#
        );
        assert_eq!(json(&[(10, b"{\"$s\":1}"), (5, b"")]), "[]");
    }

    #[test]
    fn hostile_containers_are_refused() {
        assert_eq!(json(&[(10, b"{\"$s\":0}")]), "slabs of JSON name one another more than 8 deep");
        assert_eq!(json(&[(10, b"{\"$s\":7}")]), "it names slab 7, and there are 1");
        assert_eq!(json(&[(11, b"")]), "slab 0 is of an unknown kind, 11");
        let many =
            b"[{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1},{\"$s\":1}]";
        let ten = |next: u32| String::from_utf8_lossy(many).replace('1', &next.to_string()).into_bytes();
        let levels: Vec<Vec<u8>> = (1..8).map(ten).collect();
        let mut slabs: Vec<(u32, &[u8])> = levels.iter().map(|level| (10, level.as_slice())).collect();
        for last in [&[7; 4096][..], &[]] {
            slabs.push((1, last));
            assert_eq!(json(&slabs), "as JSON it is larger than 1 MiB (JSON_BYTES_MAX)");
            slabs.pop();
        }
        let whole = container(&[(10, b"[{\"$s\":1}]"), (3, &[1, 0])]);
        for length in 0..whole.len() {
            assert!(to_json(&whole[..length], 1000).is_err(), "{length}");
        }
        assert_eq!(to_json(&whole, 1000).expect("whole"), b"[[1]]");
    }
}
