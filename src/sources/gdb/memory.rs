//! Reads target memory, many ranges in the fewest round trips, each up to the first unreadable byte; and files on
//! the stub's system, which some stubs serve.

use super::link;
use super::session::{PAGE_BYTES, Stub};
use super::transport::ConnectionError;

/// Granularity at which failed reads of a board's RAM are retried: some microcontrollers have 0.5 or 2.5 KiB
/// of RAM.
pub(super) const BOARD_RAM_BYTES: u64 = 256;

/// A range to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) at: u64,
    pub(super) bytes: usize,
}

/// A part of a range that fits into one reply.
struct Piece {
    range: usize,
    at: u64,
    bytes: usize,
}

impl Stub {
    /// Reads ranges, each from its start up to the first unreadable byte.
    ///
    /// # Errors
    /// The stub cannot be reached any more. Unreadable memory is no error: it is missing in the result.
    pub(super) fn read_ranges(&mut self, ranges: &[Range]) -> Result<Vec<Vec<u8>>, ConnectionError> {
        let most = self.piece_bytes();
        let mut pieces = Vec::new();
        for (index, range) in ranges.iter().enumerate() {
            cut(*range, index, most, &mut pieces);
        }
        let mut read: Vec<Vec<u8>> =
            ranges.iter().map(|range| Vec::with_capacity(range.bytes.min(1 << 20))).collect();
        // Ranges with a piece that was not, or not fully, read.
        let mut ended: Vec<bool> = vec![false; ranges.len()];
        // Many stubs read all or nothing: failed pieces are retried in smaller ones.
        let mut smaller = [PAGE_BYTES, self.memory_ends_at].into_iter();
        loop {
            let answers = self.memory(&pieces)?;
            let mut failed: Vec<Option<Range>> = vec![None; ranges.len()];
            for (piece, answer) in pieces.iter().zip(answers) {
                if ended[piece.range] {
                    continue;
                }
                ended[piece.range] = answer.len() < piece.bytes;
                if answer.is_empty() {
                    failed[piece.range] = Some(Range { at: piece.at, bytes: piece.bytes });
                }
                read[piece.range].extend(answer);
            }
            pieces.clear();
            while pieces.is_empty() {
                let Some(size) = smaller.next() else { return Ok(read) };
                let is_larger = |range: &Range| range.at / size != (range.at + range.bytes as u64 - 1) / size;
                for (index, range) in failed.iter().enumerate() {
                    if let Some(range) = range.filter(is_larger) {
                        ended[index] = false;
                        cut_at(range, index, size, &mut pieces);
                    }
                }
            }
        }
    }

    /// Reads from an address up to the first unreadable byte.
    ///
    /// # Errors
    /// The connection is closed, or the stub answers with nonsense.
    pub(super) fn read_memory(&mut self, at: u64, bytes: usize) -> Result<Vec<u8>, ConnectionError> {
        Ok(self.read_ranges(&[Range { at, bytes }])?.pop().unwrap_or_default())
    }

    /// Bytes that fit into one reply.
    fn piece_bytes(&self) -> usize {
        // Two digits per byte; in binary replies any byte may be escaped.
        let most = (self.offers.packet_bytes - 16) / 2;
        // Pieces end at page boundaries if more than one page fits.
        if most > PAGE_BYTES as usize { most & !(PAGE_BYTES as usize - 1) } else { most }
    }

    fn memory(&mut self, pieces: &[Piece]) -> Result<Vec<Vec<u8>>, ConnectionError> {
        let letter = if self.offers.binary_memory { 'x' } else { 'm' };
        let question = |piece: &Piece| format!("{letter}{:x},{:x}", piece.at, piece.bytes).into_bytes();
        let questions: Vec<Vec<u8>> = pieces.iter().map(question).collect();
        let answers = self.flight(&questions)?;
        let binary = self.offers.binary_memory;
        let bytes = pieces.iter().zip(&answers).map(|(piece, answer)| {
            let mut bytes = match answer.strip_prefix(b"b") {
                Some(bytes) if binary => bytes.to_vec(),
                _ if binary => Vec::new(),
                _ => link::decode(answer).unwrap_or_default(),
            };
            bytes.truncate(piece.bytes);
            bytes
        });
        Ok(bytes.collect())
    }
}

/// Splits a range at multiples of `size`; drops the part that would wrap around.
fn cut_at(range: Range, index: usize, size: u64, pieces: &mut Vec<Piece>) {
    let Some(end) = range.at.checked_add(range.bytes as u64) else { return };
    let mut at = range.at;
    while at < end {
        let next = (at / size + 1).saturating_mul(size).min(end);
        pieces.push(Piece { range: index, at, bytes: (next - at) as usize });
        at = next;
    }
}

/// Splits a range into pieces of up to `most` bytes that end at page boundaries; drops the part that would
/// wrap around.
fn cut(range: Range, index: usize, most: usize, pieces: &mut Vec<Piece>) {
    let Some(end) = range.at.checked_add(range.bytes as u64) else { return };
    let mut at = range.at;
    while at < end {
        let mut next = at.saturating_add(most as u64).min(end);
        let page = next & !(PAGE_BYTES - 1);
        if next < end && page > at {
            next = page;
        }
        pieces.push(Piece { range: index, at, bytes: (next - at) as usize });
        at = next;
    }
}

// ---- Files on the stub's system, which some stubs serve (`vFile`): the list of mappings of a Linux process, and
// images missing on this machine.

/// Pieces of a file requested at once.
const PIECES: usize = 8;

impl Stub {
    /// Reads a file of at most `most` bytes; `None` if it is unreadable or larger.
    ///
    /// # Errors
    /// The stub cannot be reached any more.
    pub(super) fn read_file(&mut self, path: &str, most: usize) -> Result<Option<Vec<u8>>, ConnectionError> {
        let open = format!("vFile:open:{},0,0", link::encode_hex(path.as_bytes()));
        let Some(file) = result(&self.call(open.as_bytes())?) else { return Ok(None) };
        let bytes = self.read_open_file(file, most)?;
        self.call(format!("vFile:close:{file:x}").as_bytes())?;
        Ok(bytes)
    }

    fn read_open_file(&mut self, file: u64, most: usize) -> Result<Option<Vec<u8>>, ConnectionError> {
        // The number of bytes comes first; any byte may be escaped.
        let piece = (self.offers.packet_bytes - 32) / 2;
        let mut bytes: Vec<u8> = Vec::new();
        // A small file needs one piece, and one more request to find its end.
        let mut pieces = 1;
        loop {
            let question = |index: usize| {
                format!("vFile:pread:{file:x},{piece:x},{:x}", bytes.len() + index * piece).into_bytes()
            };
            let questions: Vec<Vec<u8>> = (0..pieces).map(question).collect();
            for answer in self.flight(&questions)? {
                let Some(count) = result(&answer) else { return Ok(None) };
                let Some(start) = answer.iter().position(|byte| *byte == b';') else { return Ok(None) };
                let content = &answer[start + 1..];
                if count == 0 {
                    return Ok(Some(bytes));
                }
                if content.len() as u64 != count || content.len() > piece {
                    return Err(ConnectionError::Nonsense(
                        "a piece of a file of another length than it says".to_owned(),
                    ));
                }
                bytes.extend_from_slice(content);
                if bytes.len() > most {
                    return Ok(None);
                }
                if content.len() < piece {
                    // The kernel returns its lists in pieces of other sizes: continue from the end of this
                    // one.
                    break;
                }
            }
            pieces = PIECES;
        }
    }
}

/// The number in a reply `Fresult[,errno][;attachment]`; `None` for a failure.
fn result(answer: &[u8]) -> Option<u64> {
    let rest = answer.strip_prefix(b"F")?;
    let end = rest.iter().position(|byte| matches!(byte, b',' | b';')).unwrap_or(rest.len());
    link::number(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_page_boundaries_and_cover_the_range() {
        let pieces_of = |at, bytes, most| {
            let mut pieces = Vec::new();
            cut(Range { at, bytes }, 0, most, &mut pieces);
            pieces.iter().map(|piece| (piece.at, piece.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(
            pieces_of(0x1ff0, 0x2020, 0x1000),
            [(0x1ff0, 0x10), (0x2000, 0x1000), (0x3000, 0x1000), (0x4000, 0x10)]
        );
        assert_eq!(pieces_of(0x1000, 0x300, 0x100).len(), 3);
        assert_eq!(pieces_of(0x1000, 0, 0x100), []);
        assert_eq!(pieces_of(u64::MAX - 1, 8, 0x100), [], "beyond the last address");
        let mut pieces = Vec::new();
        cut_at(Range { at: 0x2000_07f0, bytes: 0x220 }, 0, BOARD_RAM_BYTES, &mut pieces);
        let pieces: Vec<(u64, usize)> = pieces.iter().map(|piece| (piece.at, piece.bytes)).collect();
        assert_eq!(
            pieces,
            [(0x2000_07f0, 0x10), (0x2000_0800, 0x100), (0x2000_0900, 0x100), (0x2000_0a00, 0x10)]
        );
    }
}

#[cfg(test)]
mod remote_files_tests {
    use super::*;

    #[test]
    fn parses_results_and_failures() {
        assert_eq!(result(b"F5"), Some(5));
        assert_eq!(result(b"F1a;abc"), Some(26));
        assert_eq!(result(b"F-1,2"), None);
        assert_eq!(result(b""), None);
        assert_eq!(result(b"E01"), None);
    }
}
