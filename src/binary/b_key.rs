//! CIE augmentations of aarch64 that gimli refuses: `B` for functions that sign return addresses with the B key,
//! as arm64e code does, and `G` for functions that tag their stack. Input: an `.eh_frame` section; output: a copy
//! that gimli reads, if there are any.
//!
//! Nothing here depends on them: signatures are stripped, and tags belong to data addresses. Format: AADWARF64,
//! 4.3. Compilers do not emit them in `.debug_frame` (gas `output_cie`, LLVM `EmitCIE`).

use std::sync::OnceLock;

/// Limit on augmentations searched, in bytes; compilers emit up to 5.
const AUGMENTATION_MAX: usize = 16;

/// A section in the form that gimli reads; searched on first use.
#[derive(Clone, Debug, Default)]
pub(super) struct Readable(OnceLock<Option<RewrittenSection>>);

impl Readable {
    /// A section of a processor without these augmentations.
    pub(super) fn as_is() -> Readable {
        Readable(OnceLock::from(None))
    }

    /// The section, and the CIEs with an added signal trampoline augmentation. `bytes` must be the same each time.
    pub(super) fn of<'a>(&'a self, bytes: &'a [u8]) -> (&'a [u8], &'a [usize]) {
        match self.0.get_or_init(|| rewrite(bytes)) {
            Some(rewritten) => (&rewritten.bytes, &rewritten.not_signal),
            None => (bytes, &[]),
        }
    }
}

/// A section with the augmentations replaced by that of signal trampolines (`S`).
#[derive(Clone, Debug)]
struct RewrittenSection {
    bytes: Vec<u8>,
    /// Offsets of the CIEs that are no signal trampolines; ascending.
    not_signal: Vec<usize>,
}

/// Rewrites a section; `None` if it has none of these augmentations.
fn rewrite(section: &[u8]) -> Option<RewrittenSection> {
    let mut rewritten: Option<RewrittenSection> = None;
    let word = |at: usize| section.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let mut at = 0usize;
    // An entry with a 64-bit length, which compilers do not emit, ends this, and gimli's use too.
    while let Some(length) = word(at).filter(|length| (4..0xffff_fff0).contains(length)) {
        let augmentation = at + 9;
        if word(at + 4) == Some(0) {
            let letters = section.get(augmentation..).unwrap_or_default().iter().take(AUGMENTATION_MAX);
            let letters: Vec<u8> = letters.take_while(|letter| **letter != 0).copied().collect();
            let marks = letters.iter().enumerate().filter(|(_, letter)| matches!(letter, b'B' | b'G'));
            for (index, _) in marks {
                let rewritten = rewritten.get_or_insert_with(|| RewrittenSection {
                    bytes: section.to_vec(),
                    not_signal: Vec::new(),
                });
                rewritten.bytes[augmentation + index] = b'S';
                if !letters.contains(&b'S') && rewritten.not_signal.last() != Some(&at) {
                    rewritten.not_signal.push(at);
                }
            }
        }
        at = at.checked_add(4)?.checked_add(usize::try_from(length).ok()?)?;
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cie(augmentation: &[u8]) -> Vec<u8> {
        let content = [&[0, 0, 0, 0, 1], augmentation, &[0, 1, 0x78, 30, 1, 0x10]].concat();
        [(content.len() as u32).to_le_bytes().as_slice(), &content].concat()
    }

    #[test]
    fn the_augmentation_is_rewritten_in_each_cie_and_nowhere_else() {
        let section = [cie(b"zR"), cie(b"zRB"), cie(b"zRSB"), cie(b"zRBG"), b"BGBGBG".to_vec()].concat();
        let rewritten = rewrite(&section).expect("three marks");
        let expected = [cie(b"zR"), cie(b"zRS"), cie(b"zRSS"), cie(b"zRSS"), b"BGBGBG".to_vec()].concat();
        assert_eq!(rewritten.bytes, expected);
        let third = section.len() - 6 - cie(b"zRBG").len();
        assert_eq!(rewritten.not_signal, [cie(b"zR").len(), third]);
        assert!(rewrite(&cie(b"zPLR")).is_none());
    }

    #[test]
    fn malformed_sections_end() {
        for bytes in [&[][..], &[4], &[4, 0, 0, 0], &[0xff; 40], &[5, 0, 0, 0, 0, 0, 0, 0, 1, b'B']] {
            let _ = rewrite(bytes);
        }
        assert!(rewrite(&[0x20, 0, 0, 0, 0, 0, 0, 0, 1, b'B']).is_some());
    }
}
