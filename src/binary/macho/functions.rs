//! The functions of a Mach-O file as ranges.
//!
//! Input: a summary and the bytes it was read from, hostile. Output: address -> range. The list
//! (`LC_FUNCTION_STARTS`) also exists in stripped files. Not for: names.

use std::ops::Range;

use super::{MachO, function_starts};
use crate::addr::Svma;
use crate::binary::ImageBytes;

/// The starts of a file's functions, and its sections with instructions.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    /// Offsets from the start of `__TEXT`, ascending: half the memory of addresses.
    starts: Vec<u32>,
    text: Svma,
    /// A function extends at most to the end of its section: the stubs after `__text` are in no list.
    code: Vec<Range<Svma>>,
}

impl Functions {
    /// Reads the list; empty if the file has none. At most one entry per byte.
    #[must_use]
    pub fn read(macho: &MachO, bytes: &ImageBytes) -> Functions {
        let range = &macho.linkedit.function_starts;
        let in_file =
            || bytes.bytes().get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?);
        // An image read from memory has it separately.
        let list = bytes.linkedit().map(|linkedit| linkedit.function_starts.bytes()).or_else(in_file);
        let starts = function_starts(list.unwrap_or_default(), macho.text.start);
        Functions {
            starts: starts.map_while(|start| u32::try_from(start - macho.text.start).ok()).collect(),
            text: macho.text.start,
            code: macho.code.iter().flatten().cloned().collect(),
        }
    }

    /// The function at an address: from its start to that of the next one, or to the end of its section. `None`
    /// outside code sections and before the first function of one.
    #[must_use]
    pub fn at(&self, svma: Svma) -> Option<Range<Svma>> {
        let section = self.code.iter().find(|section| section.contains(&svma))?;
        let offset = u32::try_from(svma.0.checked_sub(self.text.0)?).ok()?;
        let after = self.starts.partition_point(|start| *start <= offset);
        let start = self.text + u64::from(*self.starts.get(after.checked_sub(1)?)?);
        let next = self.starts.get(after).map(|next| self.text + u64::from(*next));
        let end = next.map_or(section.end, |next| next.min(section.end));
        section.contains(&start).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::build::{File, TEXT};
    use super::*;

    fn functions(file: &File) -> Functions {
        let bytes = file.build();
        Functions::read(&MachO::parse(&bytes).unwrap(), &ImageBytes::new(bytes))
    }

    fn check(functions: &Functions, at: u64, expected: Option<Range<u64>>) {
        let expected = expected.map(|range| Svma(TEXT + range.start)..Svma(TEXT + range.end));
        assert_eq!(functions.at(Svma(TEXT + at)), expected, "at +{at:#x}");
    }

    #[test]
    fn a_function_extends_to_the_next_or_to_the_end_of_its_section() {
        // `__text` is 0x1000..0x2000, `__stubs` 0x2000..0x2100, then constants.
        let file = File { function_starts: vec![0x1010, 0x1040, 0x1f00], ..File::default() };
        let functions = functions(&file);
        check(&functions, 0x1000, None);
        check(&functions, 0x1010, Some(0x1010..0x1040));
        check(&functions, 0x103f, Some(0x1010..0x1040));
        check(&functions, 0x1040, Some(0x1040..0x1f00));
        check(&functions, 0x1fff, Some(0x1f00..0x2000));
        // The stubs belong to no function, in particular not to the last one of `__text`.
        check(&functions, 0x2000, None);
        check(&functions, 0x2200, None);
        assert_eq!(functions.at(Svma(0)), None);
        assert_eq!(functions.at(Svma(u64::MAX)), None);
    }

    #[test]
    fn without_a_list_there_are_no_functions() {
        check(&functions(&File::default()), 0x1010, None);
    }

    #[test]
    fn malformed_bytes_give_ranges_that_contain_the_address_or_none() {
        let file = File { function_starts: (0..64).map(|n| 0x1000 + n * 0x40).collect(), ..File::default() };
        let bytes = file.build();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000 {
            let mut damaged = bytes.clone();
            for _ in 0..4 {
                // xorshift64: <https://www.jstatsoft.org/article/view/v008i14>.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // The commands, or the tables at the end of the file.
                let at = if state & 1 == 0 { state >> 8 & 0x3ff } else { 0x4000 + (state >> 8 & 0xff) };
                if let Some(byte) = damaged.get_mut(at as usize) {
                    *byte = (state >> 40) as u8;
                }
            }
            let Ok(macho) = MachO::parse(&damaged) else { continue };
            let functions = Functions::read(&macho, &ImageBytes::new(damaged.clone()));
            for at in [0, TEXT, TEXT + 0x1000, TEXT + 0x1234, TEXT + 0x2010, u64::MAX].map(Svma) {
                let range = functions.at(at);
                assert!(range.is_none_or(|range| range.contains(&at)), "round {round}, {at:?}");
            }
        }
    }
}
