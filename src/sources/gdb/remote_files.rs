//! Files on the stub's system, which some stubs serve (`vFile`): the list of mappings of a Linux process, and
//! images missing on this machine.

use super::connection_error::ConnectionError;
use super::hex;
use super::session::Stub;

/// Pieces of a file requested at once.
const PIECES: usize = 8;

impl Stub {
    /// Reads a file of at most `most` bytes; `None` if it is unreadable or larger.
    ///
    /// # Errors
    /// The stub cannot be reached any more.
    pub(super) fn read_file(&mut self, path: &str, most: usize) -> Result<Option<Vec<u8>>, ConnectionError> {
        let open = format!("vFile:open:{},0,0", hex::encode(path.as_bytes()));
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
    hex::number(&rest[..end])
}

#[cfg(test)]
mod tests {
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
