//! Names of JIT code: the loads in a `jit-PID.dump`.
//!
//! Input: the file, hostile. Output: the address range of each function, in load order, for `jit`. V8
//! (`--perf-prof`), CPython (`-X perf_jit`), Erlang and Java agents write it; they map a page of it as executable,
//! by which it is found. Its other records (code, lines, unwind information) are ignored.
//!
//! Format: Linux `tools/perf/Documentation/jitdump-specification.txt`. The crate that reads it (linux-perf-data)
//! brings six others for a list of two kinds of records.

use std::ops::Range;

use hashbrown::HashMap;

/// `JiTD` in the byte order of the processor that wrote the file.
const MAGIC: u32 = 0x4a69_5444;
/// Size of the header, which states its own size, and of a record header: kind, size, time.
const HEADER_BYTES: usize = 40;
const RECORD_HEADER_BYTES: usize = 16;
/// Kinds of records.
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
/// Size of a load after its header: process, thread, vma, address, size, index; then the NUL-terminated name, and
/// the code.
const LOAD_BYTES: usize = 40;
/// Size of a move: process, thread, vma, old address, new address, size, index.
const MOVE_BYTES: usize = 48;

/// The address range where a function was loaded, or moved to (Avma).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load<'t> {
    /// The addresses of its code.
    pub code: Range<u64>,
    /// Its name.
    pub name: &'t [u8],
}

/// The loads of a file, in record order; `None` for another format, or another byte order. A truncated record ends
/// the list: the program may still be running.
#[must_use]
pub fn loads(file: &[u8]) -> Option<Vec<Load<'_>>> {
    let header_bytes = usize::try_from(u32_at(file, 8)?).ok()?;
    if u32_at(file, 0)? != MAGIC || header_bytes < HEADER_BYTES {
        return None;
    }
    let mut rest = file.get(header_bytes..)?;
    let mut loads = Vec::new();
    let mut by_index = HashMap::<u64, &[u8]>::new();
    while let Some(record) = next(&mut rest) {
        let of = &record[RECORD_HEADER_BYTES..];
        let load = match u32_at(record, 0) {
            Some(CODE_LOAD) => load(of, &mut by_index),
            Some(CODE_MOVE) => moved(of, &by_index),
            _ => None,
        };
        loads.extend(load.filter(|load| !load.code.is_empty() && !load.name.is_empty()));
    }
    Some(loads)
}

/// The next record, with its header.
fn next<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
    let bytes = usize::try_from(u32_at(rest, 4)?).ok()?;
    if bytes < RECORD_HEADER_BYTES {
        return None;
    }
    let (record, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    Some(record)
}

fn load<'t>(of: &'t [u8], by_index: &mut HashMap<u64, &'t [u8]>) -> Option<Load<'t>> {
    let (start, size, index) = (u64_at(of, 16)?, u64_at(of, 24)?, u64_at(of, 32)?);
    let name = of.get(LOAD_BYTES..)?;
    let name = name.get(..memchr::memchr(0, name)?)?;
    by_index.insert(index, name);
    Some(Load { code: start..start.checked_add(size)?, name })
}

fn moved<'t>(of: &[u8], by_index: &HashMap<u64, &'t [u8]>) -> Option<Load<'t>> {
    let of = of.get(..MOVE_BYTES)?;
    let (start, size) = (u64_at(of, 24)?, u64_at(of, 32)?);
    let name = by_index.get(&u64_at(of, 40)?)?;
    Some(Load { code: start..start.checked_add(size)?, name })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file with these records after its header.
    pub(in crate::symbol) fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [MAGIC, 1, 40, 62, 0, 4242] {
            file.extend(word.to_ne_bytes());
        }
        file.extend([0; 16]);
        file.extend(records.concat());
        file
    }

    fn record(kind: u32, of: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        record.extend(kind.to_ne_bytes());
        record.extend(((RECORD_HEADER_BYTES + of.len()) as u32).to_ne_bytes());
        record.extend(7_u64.to_ne_bytes());
        record.extend(of);
        record
    }

    fn words(words: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    /// A load of `size` bytes at `start`, with this index.
    pub(in crate::symbol) fn a_load(start: u64, size: u64, index: u64, name: &str) -> Vec<u8> {
        let mut of = words(&[start, start, size, index]);
        of.extend(name.as_bytes());
        of.push(0);
        of.extend([0xc3; 16]);
        record(CODE_LOAD, &of)
    }

    fn a_move(from: u64, to: u64, size: u64, index: u64) -> Vec<u8> {
        record(CODE_MOVE, &words(&[to, from, to, size, index]))
    }

    fn shown(file: &[u8]) -> Option<Vec<(u64, u64, String)>> {
        let text = |load: Load<'_>| {
            (load.code.start, load.code.end, String::from_utf8_lossy(load.name).into_owned())
        };
        Some(loads(file)?.into_iter().map(text).collect())
    }

    #[test]
    fn loads_and_moves_are_in_the_order_of_the_file() {
        let lines = record(2, &[1; 100]);
        let file = file(&[
            a_load(0x1000, 0x20, 1, "f"),
            lines,
            a_load(0x2000, 0x10, 2, "g /a b.js:1"),
            a_move(0x1000, 0x3000, 0x20, 1),
            a_move(0x1000, 0x3000, 0x20, 9),
            a_load(0x4000, 0, 3, "empty"),
            a_load(0x5000, 1, 4, ""),
            a_load(u64::MAX, 2, 5, "beyond memory"),
        ]);
        let expected = [(0x1000, 0x1020, "f"), (0x2000, 0x2010, "g /a b.js:1"), (0x3000, 0x3020, "f")];
        let expected = expected.map(|(start, end, name)| (start, end, name.to_owned()));
        assert_eq!(shown(&file).as_deref(), Some(&expected[..]));
    }

    #[test]
    fn a_truncated_record_ends_the_list() {
        let file = file(&[a_load(0x1000, 0x20, 1, "f"), a_load(0x2000, 0x10, 2, "g")]);
        for bytes in 0..file.len() {
            let count = loads(&file[..bytes]).map(|loads| loads.len());
            assert!(count <= Some(1), "{bytes} bytes: {count:?}");
            assert_eq!(count.is_some(), bytes >= HEADER_BYTES, "{bytes} bytes");
        }
        assert_eq!(loads(&file).map(|loads| loads.len()), Some(2));
        // A record without a size has no successor.
        let mut endless = file.clone();
        endless[HEADER_BYTES + 4..][..4].fill(0);
        assert_eq!(loads(&endless), Some(Vec::new()));
        assert_eq!(loads(b"\x7fELF and more than forty bytes of something else"), None);
    }
}
