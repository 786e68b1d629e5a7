//! The mark of functions that sign their return addresses with the B key, as arm64e code
//! does: the letter `B` in the augmentation of a CIE of `__eh_frame`. gimli does not know it
//! and refuses the entries. Input: a section; output: a copy that it reads, if there are any.
//!
//! Nothing here depends on the key: signatures are stripped. Format: AADWARF64, 4.3.

/// Longest augmentation that is looked at, in bytes; compilers write up to 5.
const AUGMENTATION_MAX: usize = 16;

/// A section in which the mark is written as the one of signal trampolines (`S`).
#[derive(Clone, Debug)]
pub(super) struct Rewritten {
    pub bytes: Vec<u8>,
    /// Offsets of the CIEs that are of no signal trampoline; rising.
    pub not_signal: Vec<usize>,
}

/// Rewrites a section; `None` if nothing in it has the mark.
pub(super) fn rewrite(section: &[u8]) -> Option<Rewritten> {
    let mut rewritten: Option<Rewritten> = None;
    let word = |at: usize| section.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let mut at = 0usize;
    // An entry with a length of 64 bits, which nobody writes, ends this as it does gimli's use.
    while let Some(length) = word(at).filter(|length| (4..0xffff_fff0).contains(length)) {
        let augmentation = at + 9;
        if word(at + 4) == Some(0) {
            let letters = section.get(augmentation..).unwrap_or_default().iter().take(AUGMENTATION_MAX);
            let letters: Vec<u8> = letters.take_while(|letter| **letter != 0).copied().collect();
            for (index, _) in letters.iter().enumerate().filter(|(_, letter)| **letter == b'B') {
                let rewritten = rewritten
                    .get_or_insert_with(|| Rewritten { bytes: section.to_vec(), not_signal: Vec::new() });
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
    fn the_mark_is_rewritten_in_each_cie_and_nowhere_else() {
        let section = [cie(b"zR"), cie(b"zRB"), cie(b"zRSB"), b"BBBBBB".to_vec()].concat();
        let rewritten = rewrite(&section).expect("two marks");
        let expected = [cie(b"zR"), cie(b"zRS"), cie(b"zRSS"), b"BBBBBB".to_vec()].concat();
        assert_eq!(rewritten.bytes, expected);
        assert_eq!(rewritten.not_signal, [cie(b"zR").len()]);
        assert!(rewrite(&cie(b"zPLR")).is_none());
    }

    #[test]
    fn damaged_sections_end() {
        for bytes in [&[][..], &[4], &[4, 0, 0, 0], &[0xff; 40], &[5, 0, 0, 0, 0, 0, 0, 0, 1, b'B']] {
            let _ = rewrite(bytes);
        }
        assert!(rewrite(&[0x20, 0, 0, 0, 0, 0, 0, 0, 1, b'B']).is_some());
    }
}
