//! The entries of `.eh_frame` and `.debug_frame`: single ones by offset, and an index of all by address. Input:
//! the bytes of a section, hostile. Not for: the content of an entry (see `cfi`).
//!
//! Entries far longer than real ones are refused without being read: thousands can refer to one CIE, and the
//! instructions of an entry are executed for each address.

use std::ops::Range;

use gimli::{
    BaseAddresses, DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian, UnwindOffset,
    UnwindSection, Vendor,
};

pub(super) type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Limit on the length of a CIE, in bytes: those of libc, LLVM, rustc and node have up to 36.
const CIE_BYTES_MAX: u64 = 1024;
/// Limit on the length of an FDE, in bytes: the longest of LLVM has 2,880, of rustc 11,596.
const FDE_BYTES_MAX: u64 = 64 * 1024;

/// `.eh_frame` for a processor with this pointer size.
pub(super) fn eh_frame(bytes: &[u8], address_bytes: u8) -> EhFrame<Reader<'_>> {
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(address_bytes);
    // Other processors lack the vendor's instruction, so the processor need not be known.
    section.set_vendor(Vendor::AArch64);
    section
}

/// `.debug_frame` for a processor with this pointer size.
pub(super) fn debug_frame(bytes: &[u8], address_bytes: u8) -> DebugFrame<Reader<'_>> {
    let mut section = DebugFrame::new(bytes, LittleEndian);
    section.set_address_size(address_bytes);
    section.set_vendor(Vendor::AArch64);
    section
}

/// The entries of a section by first address, end address and offset; sorted. Malformed entries are skipped; a
/// malformed length ends the list.
pub(super) fn index<'a, S>(section: S, bytes: &[u8], bases: &BaseAddresses) -> Vec<(u64, u64, usize)>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let (mut at, mut index) = (0, Vec::new());
    // Not gimli's iterator, which ends at a CIE that it does not support.
    while let Some((head, length)) = length_at(bytes, at).filter(|(_, length)| *length > 0) {
        if let Some(range) = range(&section, bytes, bases, at) {
            index.push((range.start, range.end, at));
        }
        let next = usize::try_from(length).ok().and_then(|length| at.checked_add(head)?.checked_add(length));
        let Some(next) = next else { break };
        at = next;
    }
    index.sort_unstable();
    index
}

/// The offset of the entry that covers an address.
pub(super) fn entry_at(index: &[(u64, u64, usize)], pc: u64) -> Option<usize> {
    last_entry(index, pc).filter(|(_, end, _)| pc < *end).map(|(.., offset)| *offset)
}

/// The last entry that begins at or before an address.
pub(super) fn last_entry(index: &[(u64, u64, usize)], at: u64) -> Option<&(u64, u64, usize)> {
    index.get(index.partition_point(|(start, ..)| *start <= at).checked_sub(1)?)
}

/// The addresses of the entry at an offset, if it has any.
pub(super) fn range<'a, S>(
    section: &S,
    bytes: &[u8],
    bases: &BaseAddresses,
    offset: usize,
) -> Option<Range<u64>>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    let fde = fde(section, bytes, bases, offset)?;
    let end = fde.initial_address().saturating_add(fde.len());
    (fde.initial_address() < end).then_some(fde.initial_address()..end)
}

/// The FDE at an offset of a section with these `bytes`; `None` for a CIE, or if the FDE or its CIE is malformed
/// or too long.
pub(super) fn fde<'a, S>(
    section: &S,
    bytes: &[u8],
    bases: &BaseAddresses,
    offset: usize,
) -> Option<FrameDescriptionEntry<Reader<'a>>>
where
    S: UnwindSection<Reader<'a>>,
    S::Offset: UnwindOffset<usize>,
{
    length_at(bytes, offset).filter(|(_, length)| *length <= FDE_BYTES_MAX)?;
    let cie =
        |section: &S, bases: &BaseAddresses, at: S::Offset| match length_at(bytes, UnwindOffset::into(at)) {
            Some((_, length)) if length <= CIE_BYTES_MAX => section.cie_from_offset(bases, at),
            _ => Err(gimli::Error::NoUnwindInfoForAddress),
        };
    section.fde_from_offset(bases, S::Offset::from(offset), cie).ok()
}

/// The length of the entry at an offset, and the size of the length field (DWARF 5, 7.4).
fn length_at(bytes: &[u8], offset: usize) -> Option<(usize, u64)> {
    let rest = bytes.get(offset..)?;
    match u32::from_le_bytes(*rest.first_chunk()?) {
        u32::MAX => Some((12, u64::from_le_bytes(*rest.get(4..)?.first_chunk()?))),
        length => Some((4, length.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry of `.debug_frame`, padded with `DW_CFA_nop`.
    fn entry(id: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = [&id.to_le_bytes(), content].concat();
        bytes.resize((bytes.len() + 4).next_multiple_of(8) - 4, 0);
        [(bytes.len() as u32).to_le_bytes().as_slice(), &bytes].concat()
    }

    fn cie(augmentation: &[u8]) -> Vec<u8> {
        // Factors 1 and -8, return address in column 16; DW_CFA_def_cfa: rsp+8.
        entry(u32::MAX, &[&[1], augmentation, &[0, 1, 0x78, 16, 0x0c, 7, 8]].concat())
    }

    fn fde_of(cie: usize, address: u64, instructions: usize) -> Vec<u8> {
        let range = [address.to_le_bytes(), 0x10u64.to_le_bytes()].concat();
        entry(cie as u32, &[range, vec![0; instructions]].concat())
    }

    fn indexed(bytes: &[u8]) -> Vec<u64> {
        let index = index(debug_frame(bytes, 8), bytes, &BaseAddresses::default());
        index.into_iter().map(|(start, ..)| start).collect()
    }

    #[test]
    fn an_unsupported_entry_loses_only_itself() {
        let mut section = [cie(b""), fde_of(0, 0x1000, 0)].concat();
        let unknown = section.len();
        section.extend(cie(b"?"));
        section.extend([fde_of(unknown, 0x2000, 0), fde_of(0, 0x3000, 0)].concat());
        assert_eq!(indexed(&section), [0x1000, 0x3000]);
    }

    #[test]
    fn excessive_lengths_are_refused() {
        let long = FDE_BYTES_MAX as usize;
        let section = [cie(b""), fde_of(0, 0x1000, long), fde_of(0, 0x2000, long - 100)].concat();
        assert_eq!(indexed(&section), [0x2000]);
        let section = [cie(&[b'S'; 900]), fde_of(0, 0x1000, 0)].concat();
        assert_eq!(indexed(&section), [0x1000]);
        // Reading it for each entry would take minutes.
        let mut section = cie(&vec![b'S'; 600_000]);
        section.extend(fde_of(0, 0x1000, 0).repeat(60_000));
        let started = crate::cpu_time::CpuTime::start();
        assert_eq!(indexed(&section), [0u64; 0]);
        assert!(started.used().as_secs() < 5);
    }

    #[test]
    fn malformed_lengths_end() {
        for bytes in [&[][..], &[9], &[0xff; 4], &[0xff; 12], &[0xff; 40], &[0; 8], &[8, 0, 0, 0, 1]] {
            assert!(indexed(bytes).is_empty(), "{bytes:?}");
        }
    }
}
