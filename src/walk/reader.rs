//! Reads code along paths, one instruction after the other, with one request for code in files instead of one per
//! instruction. Input: addresses; output: the bytes from there.

use super::Code;
use crate::addr::Avma;

/// Reads code along paths.
#[derive(Clone)]
pub(super) struct Reader<'c> {
    code: &'c dyn Code,
    /// The last returned unchanging code, with its address.
    given: Option<(Avma, &'c [u8])>,
    /// Requested bytes may change later, or do not exist.
    may_change: bool,
}

impl<'c> Reader<'c> {
    pub(super) fn new(code: &'c dyn Code) -> Reader<'c> {
        Reader { code, given: None, may_change: false }
    }

    /// Like [`Code::code`].
    #[inline]
    pub(super) fn at(&mut self, at: Avma) -> Option<&'c [u8]> {
        if let Some((start, bytes)) = self.given
            && let Some(offset) = at.0.checked_sub(start.0)
            && let Some(rest) = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..))
            && !rest.is_empty()
        {
            return Some(rest);
        }
        let bytes = self.code.code(at);
        // JIT code is requested each time, to record the dependency of the look-up.
        match bytes.filter(|_| !self.code.traits(at).is_jit) {
            Some(bytes) => self.given = Some((at, bytes)),
            None => self.may_change = true,
        }
        bytes
    }

    /// Whether all requested code is unchanging while the images are.
    pub(super) fn is_lasting(&self) -> bool {
        !self.may_change
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::walk::CodeTraits;

    /// A file of 16 bytes at 0x1000, followed by JIT code.
    struct Counted {
        bytes: [u8; 32],
        asked: Cell<u32>,
    }

    impl Code for Counted {
        fn is_code(&self, at: Avma) -> bool {
            self.code(at).is_some()
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.asked.set(self.asked.get() + 1);
            let end = if self.traits(at).is_jit { 32 } else { 16 };
            self.bytes
                .get(usize::try_from(at.0.checked_sub(0x1000)?).ok()?..end)
                .filter(|rest| !rest.is_empty())
        }
        fn traits(&self, at: Avma) -> CodeTraits {
            CodeTraits { is_jit: at.0 >= 0x1010, ..CodeTraits::default() }
        }
    }

    #[test]
    fn code_in_files_is_requested_once_and_jit_code_each_time() {
        let code = Counted { bytes: std::array::from_fn(|index| index as u8), asked: Cell::new(0) };
        let mut reader = Reader::new(&code);
        for at in 0x1004..0x1010 {
            assert_eq!(reader.at(Avma(at)), Some(&code.bytes[at as usize - 0x1000..16]));
        }
        assert_eq!((code.asked.get(), reader.is_lasting()), (1, true));
        assert_eq!(reader.at(Avma(0x1000)), Some(&code.bytes[..16]), "in front of what was given");
        assert_eq!((code.asked.get(), reader.is_lasting()), (2, true));
        for at in 0x1010..0x1018 {
            assert_eq!(reader.at(Avma(at)), Some(&code.bytes[at as usize - 0x1000..]));
        }
        assert_eq!((code.asked.get(), reader.is_lasting()), (10, false));
        assert_eq!(reader.at(Avma(0x1002)), Some(&code.bytes[2..16]));
        assert_eq!(code.asked.get(), 10, "what was given before is still known");
        assert!(Reader::new(&code).at(Avma(0xfff)).is_none());
    }
}
