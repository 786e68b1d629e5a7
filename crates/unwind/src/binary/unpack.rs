//! Decompression: zlib and zstd for sections, xz for `.gnu_debugdata`.
//!
//! Input: hostile bytes. Output: at most the requested length, or the reason. Every allocation is bounded by the
//! compressed size times [`RATIO_MAX`] and by [`BYTES_MAX`].

use std::io::Read;

use object::LittleEndian;
use object::elf::{CompressionHeader32, CompressionHeader64, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
use object::read::elf::CompressionHeader;

use super::UnpackError;

/// Limit on the compression ratio. Real DWARF unpacks to some five times its size, zero-filled parts to more;
/// higher claims are malicious.
pub const RATIO_MAX: u64 = 100;

/// Limit on the unpacked size of one section.
pub const BYTES_MAX: u64 = 4 << 30;

/// Limit on the compression ratio of all sections of a file together, which are all in memory at a time, beyond
/// [`TOGETHER_BYTES`]. Real debug information unpacks to some five times the size of its file.
const TOGETHER_RATIO_MAX: u64 = 16;
/// Bytes that the sections of any file may unpack to.
const TOGETHER_BYTES: u64 = 64 << 20;

/// The most bytes that all sections of a file of this length may unpack to.
#[must_use]
pub fn together_max(file_bytes: usize) -> u64 {
    (file_bytes as u64).saturating_mul(TOGETHER_RATIO_MAX).saturating_add(TOGETHER_BYTES).min(BYTES_MAX)
}

/// Limit on the dictionary of an xz stream: the size that `xz -9` uses. It is allocated as stated by the stream,
/// however short that is: `xz` states 8 MiB for anything.
pub const XZ_DICTIONARY_MAX: usize = 64 << 20;

/// A compression method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// zlib (RFC 1950).
    Zlib,
    /// Zstandard (RFC 8878).
    Zstd,
    /// An unknown, newer method.
    Unknown,
}

/// The compression of a section with `SHF_COMPRESSED` (gABI, "Section Compression"): method, unpacked size,
/// compressed bytes. `None` if it is too short.
#[must_use]
pub fn of_elf_section(section: &[u8], is_64: bool) -> Option<(Packing, u64, &[u8])> {
    fn of<C: CompressionHeader<Endian = LittleEndian>>(section: &[u8]) -> Option<(Packing, u64, &[u8])> {
        let (header, body) = object::pod::from_bytes::<C>(section).ok()?;
        let packing = match header.ch_type(LittleEndian) {
            ELFCOMPRESS_ZLIB => Packing::Zlib,
            ELFCOMPRESS_ZSTD => Packing::Zstd,
            _ => Packing::Unknown,
        };
        Some((packing, header.ch_size(LittleEndian).into(), body))
    }
    match is_64 {
        true => of::<CompressionHeader64<LittleEndian>>(section),
        false => of::<CompressionHeader32<LittleEndian>>(section),
    }
}

/// Unpacks to exactly `size` bytes.
///
/// # Errors
/// The data is malformed, or does not unpack to that size, or exceeds the limits.
pub fn exact(packing: Packing, bytes: &[u8], size: u64) -> Result<Vec<u8>, UnpackError> {
    let most = (bytes.len() as u64).saturating_mul(RATIO_MAX).saturating_add(1024).min(BYTES_MAX);
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
            // A frame without a stated window has one of its content's size.
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
/// The data is malformed, or exceeds the limits.
pub fn xz(bytes: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let most = (bytes.len() as u64).saturating_mul(RATIO_MAX).min(BYTES_MAX);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let decoder = xz4rust::XzDecoder::in_heap_with_alloc_dict_size(xz4rust::DICT_SIZE_MIN, XZ_DICTIONARY_MAX);
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
