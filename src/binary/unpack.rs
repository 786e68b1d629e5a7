//! Packed bytes → bytes: zlib and zstd of sections, xz of `.gnu_debugdata`.
//!
//! Input: hostile bytes. Output: at most the requested length, or the reason. Every allocation is bounded by the
//! packed size times [`MAX_RATIO`] and by [`MAX_BYTES`].

use std::io::Read;

use object::LittleEndian;
use object::elf::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
use object::read::elf::CompressionHeader;

use super::UnpackError;

/// Most bytes made of one packed byte. Real DWARF unpacks to some five times its size,
/// zero-filled parts to more; what claims more than this is made to harm.
pub const MAX_RATIO: u64 = 100;

/// Most bytes that are made of one section.
pub const MAX_BYTES: u64 = 4 << 30;

/// Largest dictionary of an xz stream: what `xz -9` uses. It is taken as the stream states it,
/// however short the stream is: `xz` states 8 MiB for anything.
pub const MAX_XZ_DICTIONARY: usize = 64 << 20;

/// How bytes are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// zlib (RFC 1950).
    Zlib,
    /// Zstandard (RFC 8878).
    Zstd,
    /// Something newer.
    Unknown,
}

/// How a section with `SHF_COMPRESSED` is packed (gABI, "Section Compression"): the packing, the
/// size it unpacks to, the packed bytes. `None` if it is too short to say.
#[must_use]
pub fn of_elf_section<C: CompressionHeader<Endian = LittleEndian>>(
    section: &[u8],
) -> Option<(Packing, u64, &[u8])> {
    let (header, body) = object::pod::from_bytes::<C>(section).ok()?;
    let packing = match header.ch_type(LittleEndian) {
        ELFCOMPRESS_ZLIB => Packing::Zlib,
        ELFCOMPRESS_ZSTD => Packing::Zstd,
        _ => Packing::Unknown,
    };
    Some((packing, header.ch_size(LittleEndian).into(), body))
}

/// Unpacks to exactly `size` bytes.
///
/// # Errors
/// The data is damaged, or does not unpack to that size, or to too much.
pub fn exact(packing: Packing, bytes: &[u8], size: u64) -> Result<Vec<u8>, UnpackError> {
    let most = (bytes.len() as u64).saturating_mul(MAX_RATIO).saturating_add(1024).min(MAX_BYTES);
    let size = usize::try_from(size).ok().filter(|_| size <= most);
    let size = size.ok_or(UnpackError::StatedTooLarge)?;
    let out = match packing {
        Packing::Zlib => {
            let mut out = vec![0; size];
            let made = miniz_oxide::inflate::decompress_slice_iter_to_slice(
                &mut out,
                std::iter::once(bytes),
                true,
                false,
            );
            let made = made.map_err(|_| UnpackError::Zlib)?;
            out.truncate(made);
            out
        }
        Packing::Zstd => {
            // A frame that names no window has one of its content's size.
            let window = (size as u64).max(1 << 20);
            let reader = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(bytes, window)
                .map_err(UnpackError::Zstd)?;
            read_at_most(reader, size, size)?
        }
        Packing::Unknown => return Err(UnpackError::UnknownPacking),
    };
    if out.len() == size { Ok(out) } else { Err(UnpackError::OtherSize) }
}

/// Unpacks an xz stream.
///
/// # Errors
/// The data is damaged, or unpacks to too much.
pub fn xz(bytes: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let most = (bytes.len() as u64).saturating_mul(MAX_RATIO).min(MAX_BYTES);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let decoder = xz4rust::XzDecoder::in_heap_with_alloc_dict_size(xz4rust::DICT_SIZE_MIN, MAX_XZ_DICTIONARY);
    let buffer = std::num::NonZeroUsize::MIN.saturating_add(16 * 1024);
    let packed = std::io::Cursor::new(bytes.to_vec());
    let reader = xz4rust::XzReader::new_with_buffer_size_and_decoder(packed, buffer, decoder);
    read_at_most(reader, most, bytes.len().saturating_mul(4).min(most))
}

fn read_at_most(reader: impl Read, most: usize, expected: usize) -> Result<Vec<u8>, UnpackError> {
    let mut out = Vec::with_capacity(expected);
    reader.take(most as u64 + 1).read_to_end(&mut out).map_err(UnpackError::Stream)?;
    if out.len() > most {
        return Err(UnpackError::TooLarge);
    }
    Ok(out)
}
