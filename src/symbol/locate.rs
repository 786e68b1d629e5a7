//! Finds the files with an image's symbols and DWARF: its own, or separate ones.
//!
//! `locate` searches by format: ELF, then dSYMs of Mach-O; `Supplement` is the file that several debug files share.
//!
//! Input: an image, and [`Files`] that opens paths. Output: files that certainly belong to the image, and the
//! reasons for refusing others. Not for: reading their content.
//!
//! Linux: "Separate Debug Files" of the gdb manual, and "MiniDebugInfo". Fetching from `DEBUGINFOD_URLS` would be
//! another [`Files`] after the build id's path in `of_elf`: it needs an HTTP client and the user's consent to go
//! online, so this version does not support it.

use std::borrow::Cow;

use super::error::DebugFileError;
use super::sections;
use super::table::pe;
use crate::binary::elf::Elf;
use crate::binary::macho::{self, MachO};
use crate::binary::{Files, ImageBytes, MappingKind, OpenError};
use crate::images::Image;
use crate::leb128::take_unsigned;

/// Directory of debug files in Linux distributions.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Limit on the size of a checksummed file, in bytes: a sparse one would take hours.
const CHECKED_BYTES_MAX: usize = 4 << 30;

type Open = fn(&dyn Files, &str) -> Result<ImageBytes, OpenError>;

/// Opens a file that is identified by its build id or by a checksum: in the target's view, or else in the
/// profiler's.
const OPENED_BY: [Open; 2] = [|files, path| files.open(path), |files, path| files.open_outside(path)];

/// The files of an image.
#[derive(Debug, Default)]
pub struct DebugFiles {
    /// Files to search for symbols, best first.
    pub symbols: Vec<ImageBytes>,
    /// The file with the DWARF.
    pub debug: Option<ImageBytes>,
    /// The supplementary file that the DWARF shares with others (dwz).
    pub shared: Option<ImageBytes>,
    /// All split files in one (`.dwp`).
    pub package: Option<ImageBytes>,
    /// Refused files with reasons.
    pub problems: Vec<String>,
}

impl DebugFiles {
    /// All files; some occur twice.
    pub(super) fn files(&self) -> impl Iterator<Item = &ImageBytes> {
        self.symbols.iter().chain(&self.debug).chain(&self.shared).chain(&self.package)
    }
}

/// Finds the files of an image; `dwarf`: with DWARF, not just symbols.
#[must_use]
pub fn locate(image: &Image, bytes: &ImageBytes, files: &dyn Files, dwarf: bool) -> DebugFiles {
    let mut found = DebugFiles::default();
    if image.object().is_some_and(|object| object.macho().is_some()) {
        locate_dsym(image, bytes, files, dwarf, &mut found);
    } else {
        of_elf(image, bytes, files, dwarf, &mut found);
    }
    found
}

/// The kinds of names in a file.
struct Content {
    symtab: bool,
    dwarf: bool,
}

fn content(bytes: &[u8]) -> Content {
    let sections = sections::all(bytes).unwrap_or_default();
    let any = |is: &dyn Fn(&sections::Section<'_>) -> bool| {
        sections.iter().any(|section| !section.bytes.is_empty() && is(section))
    };
    Content {
        symtab: any(&|section| section.kind == object::elf::SHT_SYMTAB.0) || pe::has_symbols(bytes),
        dwarf: any(&|section| section.name == ".debug_info"),
    }
}

fn of_elf(image: &Image, bytes: &ImageBytes, files: &dyn Files, dwarf: bool, found: &mut DebugFiles) {
    let own = content(bytes.bytes());
    let is_file = image.kind == MappingKind::File;
    let mut dwarf_at = image.path.clone();
    if own.dwarf {
        found.debug = Some(bytes.clone());
    }
    if is_file
        && (!own.symtab || (dwarf && !own.dwarf))
        && let Some((path, separate)) = separate(image, bytes, files, found)
    {
        let has = content(separate.bytes());
        if has.symtab {
            found.symbols.push(separate.clone());
        }
        if has.dwarf && !own.dwarf {
            found.debug = Some(separate);
            dwarf_at = path;
        }
    }
    if own.symtab {
        found.symbols = vec![bytes.clone()];
    } else {
        if found.symbols.is_empty()
            && let Some(packed) = section(bytes.bytes(), ".gnu_debugdata")
        {
            match crate::binary::unpack::xz(packed) {
                Ok(unpacked) => found.symbols.push(ImageBytes::new(unpacked)),
                Err(why) => found.problems.push(format!("{}: .gnu_debugdata: {why}", image.path)),
            }
        }
        // `.gnu_debugdata` does not repeat exported symbols.
        found.symbols.push(bytes.clone());
    }
    if let Some(debug) = found.debug.clone().filter(|_| dwarf && is_file) {
        found.package = files.open(&format!("{dwarf_at}.dwp")).ok();
        found.shared = find(&debug, &dwarf_at, files, &mut found.problems);
    }
}

fn section<'a>(bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let found = sections::all(bytes).unwrap_or_default();
    found.into_iter().find(|section| section.name == name).map(|section| section.bytes)
}

/// The path of the debug file with a build id.
fn build_id_path(id: &[u8]) -> Option<String> {
    let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{DEBUG_ROOT}/.build-id/{first:02x}/{rest}.debug"))
}

/// Checks that a debug file belongs to the build.
fn mismatch(bytes: &[u8], id: &[u8]) -> Result<(), DebugFileError> {
    match Elf::parse(bytes)?.build_id {
        Some(other) if other == id => Ok(()),
        Some(found) => Err(DebugFileError::OtherBuildId { found, wanted: id.to_vec() }),
        None => Err(DebugFileError::NoBuildId),
    }
}

/// The debug file of an image, and its path.
fn separate(
    image: &Image,
    bytes: &ImageBytes,
    files: &dyn Files,
    found: &mut DebugFiles,
) -> Option<(String, ImageBytes)> {
    let id = image.build_id.as_deref();
    if let Some((path, id)) = id.and_then(|id| Some((build_id_path(id)?, id))) {
        for open in OPENED_BY {
            let Ok(debug) = open(files, &path) else { continue };
            match mismatch(debug.bytes(), id) {
                Ok(()) => return Some((path, debug)),
                Err(why) => found.problems.push(format!("{path}: {why}")),
            }
        }
        found.problems.dedup();
    }
    let (name, crc) = debug_link(section(bytes.bytes(), ".gnu_debuglink")?)?;
    let directory = image.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let places = [
        format!("{directory}/{name}"),
        format!("{directory}/.debug/{name}"),
        format!("{DEBUG_ROOT}{directory}/{name}"),
    ];
    for path in places.into_iter().filter(|path| *path != image.path) {
        let Ok(debug) = files.open(&path) else { continue };
        let other = Elf::parse(debug.bytes()).ok().and_then(|elf| elf.build_id);
        let fits = match (id, other) {
            // Both files have a build id, which is more reliable than the checksum: that is of the file at link
            // time, and sections may have been compressed since.
            (Some(id), Some(_)) => mismatch(debug.bytes(), id),
            _ if debug.bytes().len() > CHECKED_BYTES_MAX => {
                let most = CHECKED_BYTES_MAX >> 20;
                found.problems.push(format!("{path}: longer than {most} MiB: its checksum is not computed"));
                continue;
            }
            _ => match crc32(debug.bytes()) {
                sum if sum == crc => Ok(()),
                found => Err(DebugFileError::OtherChecksum { found, wanted: crc }),
            },
        };
        match fits {
            Ok(()) => return Some((path, debug)),
            Err(why) => found.problems.push(format!("{path}: {why}")),
        }
    }
    None
}

/// Content of `.gnu_debuglink`: a file name, padding, and the checksum of that file.
fn debug_link(section: &[u8]) -> Option<(String, u32)> {
    let end = section.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&section[..end]).ok()?;
    let crc = section.get((end + 1).next_multiple_of(4)..)?.first_chunk::<4>()?;
    // A file name without directories: a path could lead out of the searched ones.
    (!name.is_empty() && !name.contains('/')).then(|| (name.to_owned(), u32::from_le_bytes(*crc)))
}

/// The checksum of `.gnu_debuglink`: CRC-32 of IEEE 802.3, like in zlib.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLES: [[u32; 256]; 8] = crc_tables();
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut crc = !0u32;
    // Eight bytes at a time ("slicing by 8", Kounavis and Berry 2008): debug files are large.
    for chunk in chunks {
        let [a, b, c, d, e, f, g, h] = *chunk;
        let low = crc ^ u32::from_le_bytes([a, b, c, d]);
        let [a, b, c, d] = low.to_le_bytes();
        let of = |table: usize, byte: u8| TABLES[table][usize::from(byte)];
        crc = of(7, a) ^ of(6, b) ^ of(5, c) ^ of(4, d) ^ of(3, e) ^ of(2, f) ^ of(1, g) ^ of(0, h);
    }
    for byte in rest {
        crc = TABLES[0][usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    }
    !crc
}

const fn crc_tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { 0xedb8_8320 ^ (crc >> 1) } else { crc >> 1 };
            bit += 1;
        }
        tables[0][index] = crc;
        index += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut index = 0;
        while index < 256 {
            let before: u32 = tables[table - 1][index];
            tables[table][index] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            index += 1;
        }
        table += 1;
    }
    tables
}

// ---- Finds the debug information of a Mach-O image: its dSYM.
//
// Searches for dSYMs next to the binary, in cargo's `deps`, and through Spotlight.

/// Limit on dSYMs opened per directory.
const CANDIDATES_MAX: usize = 256;

fn locate_dsym(image: &Image, bytes: &ImageBytes, files: &dyn Files, dwarf: bool, found: &mut DebugFiles) {
    found.symbols.push(bytes.clone());
    let Some(macho) = image.object().and_then(|object| object.macho()) else { return };
    let Some(uuid) = macho.uuid.filter(|_| dwarf) else { return };
    for path in beside(&image.path) {
        if try_dsym(&path, &uuid, macho, files, found, true) {
            return;
        }
    }
    // `target/debug/deps/work-0123456789abcdef.dSYM`, of any build with the same name.
    for path in in_deps(&image.path, files) {
        if try_dsym(&path, &uuid, macho, files, found, false) {
            return;
        }
    }
    for path in files.known_by_uuid(&uuid).into_iter().take(CANDIDATES_MAX) {
        // Spotlight returns the bundle; its content is named like the binary.
        for path in inside(&path, &image.name, files) {
            if try_dsym(&path, &uuid, macho, files, found, true) {
                return;
            }
        }
    }
}

const INSIDE: &str = "Contents/Resources/DWARF";

fn beside(path: &str) -> Vec<String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    vec![format!("{path}.dSYM/{INSIDE}/{name}")]
}

fn inside(bundle: &str, name: &str, files: &dyn Files) -> Vec<String> {
    if !bundle.ends_with(".dSYM") {
        return vec![bundle.to_owned()];
    }
    let mut paths = vec![format!("{bundle}/{INSIDE}/{name}")];
    let others = files.list(&format!("{bundle}/{INSIDE}"));
    paths.extend(others.into_iter().map(|other| format!("{bundle}/{INSIDE}/{other}")));
    paths
}

fn in_deps(path: &str, files: &dyn Files) -> Vec<String> {
    let Some((directory, name)) = path.rsplit_once('/') else { return Vec::new() };
    let deps = if directory.ends_with("/deps") { directory.to_owned() } else { format!("{directory}/deps") };
    // Cargo names its output after the crate, with `_` for `-`.
    let stem = format!("{}-", name.replace('-', "_"));
    let is_it = |entry: &String| entry.ends_with(".dSYM") && entry.starts_with(&stem);
    let bundles = files.list(&deps).into_iter().filter(is_it).take(CANDIDATES_MAX);
    bundles.map(|bundle| format!("{deps}/{bundle}/{INSIDE}/{}", bundle.trim_end_matches(".dSYM"))).collect()
}

/// Accepts a dSYM if it belongs to the image. `named`: it should belong, so a mismatch is reported.
fn try_dsym(
    path: &str,
    uuid: &[u8; 16],
    image: &MachO,
    files: &dyn Files,
    found: &mut DebugFiles,
    named: bool,
) -> bool {
    let Ok(bytes) = files.open(path) else { return false };
    let wanted =
        macho::ImageIdentity { uuid: None, cpu_type: image.cpu_type, cpu_subtype: image.cpu_subtype };
    let fits = macho::choose(&bytes, &wanted).map_err(DebugFileError::from).and_then(|bytes| {
        match MachO::parse(bytes.bytes())?.uuid {
            Some(found) if found == *uuid => Ok(bytes),
            Some(found) => Err(DebugFileError::OtherUuid { found, wanted: *uuid }),
            None => Err(DebugFileError::NoUuid),
        }
    });
    match fits {
        Ok(bytes) => {
            found.debug = Some(bytes);
            true
        }
        Err(why) => {
            if named {
                found.problems.push(format!("{path}: {why}"));
            }
            false
        }
    }
}

// ---- Finds the supplementary file shared by several debug files: `dwz -m` moves common entries there.
//
// Formats: `.gnu_debugaltlink` is a path and a build id (dwz(1)); `.debug_sup` of DWARF 5, 7.3.6, is a path and a
// checksum that the other file repeats.

/// The proof that a file is the right one.
enum Mark<'a> {
    BuildId(&'a [u8]),
    Checksum(&'a [u8]),
}

/// Finds the file; `None` if there is no reference, or no match, which is added to `problems`.
fn find(
    debug: &ImageBytes,
    debug_path: &str,
    files: &dyn Files,
    problems: &mut Vec<String>,
) -> Option<ImageBytes> {
    let (path, mark) = named(debug.bytes())?;
    let directory = debug_path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let stated = if path.starts_with('/') { path.into_owned() } else { format!("{directory}/{path}") };
    let by_id = match mark {
        Mark::BuildId(id) => build_id_path(id),
        Mark::Checksum(_) => None,
    };
    let mut why = Vec::new();
    for path in std::iter::once(stated).chain(by_id) {
        let fits = |file: ImageBytes| match mark {
            Mark::BuildId(id) => mismatch(file.bytes(), id).map(|()| file),
            Mark::Checksum(sum) => match supplement(file.bytes()) {
                Some(found) if found.is_the_common_file && found.checksum == sum => Ok(file),
                _ => Err(DebugFileError::OtherSupplement),
            },
        };
        for open in OPENED_BY {
            match open(files, &path).map_err(DebugFileError::from).and_then(fits) {
                Ok(file) => return Some(file),
                Err(reason) => why.push(format!("{path}: {reason}")),
            }
        }
        why.dedup();
    }
    problems.push(why.join(", "));
    None
}

/// The path in a debug file, and the mark of the file there.
fn named(debug: &[u8]) -> Option<(Cow<'_, str>, Mark<'_>)> {
    if let Some(link) = section(debug, ".gnu_debugaltlink") {
        let end = link.iter().position(|byte| *byte == 0)?;
        let (path, id) = (link.get(..end)?, link.get(end + 1..)?);
        return Some((String::from_utf8_lossy(path), Mark::BuildId(id)));
    }
    let found = supplement(debug).filter(|found| !found.is_the_common_file)?;
    Some((String::from_utf8_lossy(found.path), Mark::Checksum(found.checksum)))
}

struct Supplement<'a> {
    is_the_common_file: bool,
    path: &'a [u8],
    checksum: &'a [u8],
}

/// Reads `.debug_sup`.
fn supplement(file: &[u8]) -> Option<Supplement<'_>> {
    let (head, rest) = section(file, ".debug_sup")?.split_first_chunk::<3>()?;
    let [5, 0, is_the_common_file] = *head else { return None };
    let end = rest.iter().position(|byte| *byte == 0)?;
    let (path, mut rest) = (rest.get(..end)?, rest.get(end + 1..)?);
    let length = usize::try_from(take_unsigned(&mut rest)?).ok()?;
    Some(Supplement { is_the_common_file: is_the_common_file != 0, path, checksum: rest.get(..length)? })
}

#[cfg(test)]
mod tests {
    use super::{build_id_path, crc32, debug_link};

    #[test]
    fn the_checksum_is_that_of_zlib() {
        // The check value of CRC-32, and a length that is no multiple of eight.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
    }

    #[test]
    fn links_are_names_in_a_directory() {
        assert_eq!(debug_link(b"a.debug\0\x26\x39\xf4\xcb"), Some(("a.debug".to_owned(), 0xcbf4_3926)));
        assert_eq!(debug_link(b"ab\0\0\x01\0\0\0"), Some(("ab".to_owned(), 1)));
        for bad in [&b"a/../b\0\0\0\0\0\0"[..], b"\0\0\0\0\x01\0\0\0", b"abc\0\x01", b"abc", b""] {
            assert_eq!(debug_link(bad), None, "{bad:?}");
        }
        assert_eq!(build_id_path(&[0xab, 0x0c]).as_deref(), Some("/usr/lib/debug/.build-id/ab/0c.debug"));
        assert_eq!(build_id_path(&[0xab]), None);
    }
}
