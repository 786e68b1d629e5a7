//! The debug map of a linked Mach-O image: its addresses → the object files with their DWARF.
//!
//! `objects` reads the map; `Archive` finds a member of a static library.
//!
//! Apple's linkers leave DWARF in the object files, and record in the symbol table which function came from which
//! (stabs). Input: an image, hostile, and sorted addresses. Output: object files, each with the translated
//! addresses. Not for: reading the DWARF (see `dwarf`), images with a dSYM, where `dsymutil` has merged
//! everything.
//!
//! Format: `<mach-o/stab.h>` of xnu; the stabs of a function are `N_FUN` with its name and address, then `N_FUN`
//! without name with its size.

use std::collections::BTreeMap;
use std::ops::Range;

use hashbrown::HashMap;
use object::LittleEndian;
use object::macho::{MH_OBJECT, MachHeader64, N_FUN, N_OSO, N_SO};
use object::read::archive::ArchiveFile;
use object::read::macho::MachHeader as _;

use super::error::ObjectFileError;
use super::table::NAME_BYTES_MAX;
use super::table::macho::{Nlists, is_defined, stab};
use crate::binary::object::part;
use crate::binary::{Files, FormatError, ImageBytes, macho};
use crate::images::Image;

/// Limit on reported object files of one image; one more line counts the rest.
const PROBLEMS_MAX: usize = 4;

/// An object file with DWARF for some of the addresses.
#[derive(Debug)]
pub(super) struct ObjectFile {
    /// The file, or the member of an archive.
    pub bytes: ImageBytes,
    /// Addresses as stated by the object file, ascending and without duplicates.
    pub addresses: Vec<u64>,
    /// The index of each among the requested addresses.
    pub indices: Vec<u32>,
}

/// The object files with DWARF for some of the addresses `wanted`, which are sorted stated addresses of the image;
/// and the unusable ones, one line each. None for images without a debug map.
///
/// An object file has no UUID. It is identified by its modification time, which the map records; if the map lacks
/// it, the file is accepted.
#[must_use]
pub(super) fn objects(
    image: &Image,
    bytes: &ImageBytes,
    wanted: &[u64],
    files: &dyn Files,
) -> (Vec<ObjectFile>, Vec<String>) {
    let Some(macho) = image.object().and_then(|object| object.macho()) else { return Default::default() };
    // Paths of object files are relative to the image's file; an image read from memory has none.
    let nlists = if bytes.linkedit().is_some() { None } else { Nlists::read(bytes.bytes()) };
    let Some(nlists) = nlists else { return Default::default() };
    let directory = image.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let wanted_in = |range: Range<u64>| {
        let first = wanted.get(wanted.partition_point(|address| *address < range.start));
        first.is_some_and(|address| *address < range.end)
    };
    let map = Map::read(&nlists, wanted_in);
    let mut opener =
        Opener { files, cpu_type: macho.cpu_type, cpu_subtype: macho.cpu_subtype, archive: None };
    let (mut found, mut problems, mut more) = (Vec::new(), Vec::new(), 0u64);
    for ((path, modified_s), queries) in map.by_file(wanted, &nlists, directory) {
        match opener.open(&path, modified_s).and_then(|bytes| place(bytes, &queries, &nlists)) {
            Ok(object) => found.push(object),
            Err(why) if problems.len() < PROBLEMS_MAX => problems.push(format!("{path}: {why}")),
            Err(_) => more += 1,
        }
    }
    if more > 0 {
        problems.push(format!("{}: {more} more of its object files cannot be used", image.path));
    }
    (found, problems)
}

/// An object file referred to by the map.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct ObjectPath {
    /// Offset of its path.
    path: u32,
    /// Its modification time, in seconds since 1970; 0 if the map lacks it.
    modified_s: u64,
}

/// A function of the debug map: its `N_FUN` entries.
struct FunctionStab {
    start: u64,
    end: u64,
    /// Offset of its name.
    name: u32,
    file: ObjectPath,
}

/// The functions of a map with addresses, sorted by start.
struct Map(Vec<FunctionStab>);

/// A requested address in an object file.
struct ObjectQuery<'f> {
    function: &'f FunctionStab,
    /// Bytes from the function's start.
    into: u64,
    index: u32,
}

impl Map {
    fn read(nlists: &Nlists<'_>, wanted_in: impl Fn(Range<u64>) -> bool) -> Map {
        let mut functions = Vec::new();
        let (mut file, mut open): (Option<ObjectPath>, Option<(u64, u32)>) = (None, None);
        for (symbol, kind) in nlists.symbols.iter().filter_map(|symbol| Some((symbol, stab(symbol)?))) {
            let (name, value) = (symbol.n_strx.get(LittleEndian), symbol.n_value.get(LittleEndian));
            match kind {
                N_SO => file = None,
                N_OSO => file = Some(ObjectPath { path: name, modified_s: value }),
                N_FUN if !nlists.name(name, 1).is_empty() => open = Some((value, name)),
                N_FUN => {
                    let (Some((start, name)), Some(file)) = (open.take(), file) else { continue };
                    let end = start.saturating_add(value);
                    if wanted_in(start..end) {
                        functions.push(FunctionStab { start, end, name, file });
                    }
                }
                _ => open = None,
            }
        }
        functions.sort_by_key(|function| function.start);
        // If the linker folded equal functions, the first one is used.
        functions.dedup_by_key(|function| function.start);
        Map(functions)
    }

    /// The addresses by path and modification time of their object file.
    fn by_file(
        &self,
        wanted: &[u64],
        nlists: &Nlists<'_>,
        directory: &str,
    ) -> BTreeMap<(String, u64), Vec<ObjectQuery<'_>>> {
        let mut by_place: HashMap<ObjectPath, Vec<ObjectQuery<'_>>> = HashMap::new();
        for (index, address) in (0u32..).zip(wanted) {
            let after = self.0.partition_point(|function| function.start <= *address);
            let function = after.checked_sub(1).and_then(|at| self.0.get(at));
            let Some(function) = function.filter(|function| *address < function.end) else { continue };
            let query = ObjectQuery { function, into: address - function.start, index };
            by_place.entry(function.file).or_default().push(query);
        }
        let mut files: BTreeMap<(String, u64), Vec<ObjectQuery<'_>>> = BTreeMap::new();
        for (named, queries) in by_place {
            let path = String::from_utf8_lossy(nlists.name(named.path, NAME_BYTES_MAX));
            // `-oso_prefix` strips the build directory.
            let path = if path.starts_with('/') { path.into_owned() } else { format!("{directory}/{path}") };
            files.entry((path, named.modified_s)).or_default().extend(queries);
        }
        // The string pool may contain a path more than once.
        files.values_mut().for_each(|queries| queries.sort_unstable_by_key(|queries| queries.index));
        files
    }
}

/// Opens object files, each archive once.
struct Opener<'f> {
    files: &'f dyn Files,
    cpu_type: u32,
    cpu_subtype: u32,
    archive: Option<(String, Result<Archive, ObjectFileError>)>,
}

impl Opener<'_> {
    /// Opens a file by its path, or `archive.a(member.o)`; paths are sorted.
    fn open(&mut self, path: &str, modified_s: u64) -> Result<ImageBytes, ObjectFileError> {
        let in_archive = path.strip_suffix(')').and_then(|path| path.rsplit_once('('));
        let Some((archive, member)) = in_archive else {
            let bytes = self.for_processor(&self.files.open(path)?)?;
            return match self.files.modified_s(path) {
                _ if modified_s == 0 => Ok(bytes),
                Some(now) if now == modified_s => Ok(bytes),
                Some(_) => Err(ObjectFileError::Changed),
                None => Err(ObjectFileError::NoTime),
            };
        };
        if self.archive.as_ref().is_none_or(|(known, _)| known != archive) {
            let opened = self.files.open(archive).map_err(ObjectFileError::from);
            let read = opened.and_then(|bytes| Archive::read(self.for_processor(&bytes)?));
            self.archive = Some((archive.to_owned(), read));
        }
        match &self.archive {
            Some((_, Ok(archive))) => archive.member(member.as_bytes(), modified_s),
            Some((_, Err(why))) => Err(why.clone()),
            None => Err(ObjectFileError::NotAnArchive),
        }
    }

    /// The image of a fat file for the processor, or the file itself.
    fn for_processor(&self, bytes: &ImageBytes) -> Result<ImageBytes, FormatError> {
        if !macho::is_fat(bytes.bytes()) {
            return Ok(bytes.clone());
        }
        let wanted =
            macho::ImageIdentity { uuid: None, cpu_type: self.cpu_type, cpu_subtype: self.cpu_subtype };
        macho::choose(bytes, &wanted)
    }
}

/// Translates the addresses to an object file, where the functions have the same names at other addresses.
fn place(
    bytes: ImageBytes,
    queries: &[ObjectQuery<'_>],
    nlists: &Nlists<'_>,
) -> Result<ObjectFile, ObjectFileError> {
    let mut starts: HashMap<&[u8], Option<u64>> = HashMap::new();
    for group in queries.chunk_by(|a, b| a.function.start == b.function.start) {
        starts.entry(nlists.name(group[0].function.name, NAME_BYTES_MAX)).or_insert(None);
    }
    let data = bytes.bytes();
    let is_object = MachHeader64::<LittleEndian>::parse(data, 0)
        .is_ok_and(|header| header.filetype(LittleEndian) == MH_OBJECT);
    let own = Nlists::read(data).filter(|_| is_object).ok_or(ObjectFileError::NotAnObject)?;
    let longest = starts.keys().map(|name| name.len()).max().unwrap_or(0);
    for symbol in own.symbols {
        if is_defined(symbol) {
            let name = own.name(symbol.n_strx.get(LittleEndian), longest + 1);
            if let Some(start @ None) = starts.get_mut(name) {
                *start = Some(symbol.n_value.get(LittleEndian));
            }
        }
    }
    let mut places: Vec<(u64, u32)> = queries
        .iter()
        .filter_map(|query| {
            let start = *starts.get(nlists.name(query.function.name, NAME_BYTES_MAX))?;
            Some((start?.checked_add(query.into)?, query.index))
        })
        .collect();
    places.sort_unstable();
    places.dedup_by_key(|(address, _)| *address);
    if places.is_empty() {
        return Err(ObjectFileError::NoFunctions);
    }
    let (addresses, indices) = places.into_iter().unzip();
    Ok(ObjectFile { bytes, addresses, indices })
}

// ---- The members of a static library by name: `libfoo.a(bar.o)` in a debug map.
//
// Input: the bytes of an archive, hostile. Output: the bytes of a member. Not for: its symbol index.

/// Limit on members of an archive; the largest static libraries have some ten thousand.
const MEMBERS_MAX: usize = 1 << 20;

/// An archive with an index of its members.
#[derive(Debug)]
struct Archive {
    bytes: ImageBytes,
    /// The members with each name, with their modification time.
    members: HashMap<Vec<u8>, Vec<(Range<u64>, u64)>>,
}

impl Archive {
    /// Reads the headers of the members, up to a malformed one.
    fn read(bytes: ImageBytes) -> Result<Archive, ObjectFileError> {
        let data = bytes.bytes();
        let file = ArchiveFile::parse(data).map_err(|_| ObjectFileError::NotAnArchive)?;
        if file.is_thin() {
            return Err(ObjectFileError::ThinArchive);
        }
        let mut members: HashMap<Vec<u8>, Vec<(Range<u64>, u64)>> = HashMap::new();
        // Names are stored next to each other in the file, unless a malicious file makes many begin in a long one.
        let mut left = data.len();
        for member in file.members().take(MEMBERS_MAX) {
            let Ok(member) = member else { break };
            left = left.checked_sub(member.name().len()).ok_or(ObjectFileError::NamesOverlap)?;
            let (start, size) = member.file_range();
            let of_name = members.entry_ref(member.name()).or_default();
            of_name.push((start..start.saturating_add(size), member.date().unwrap_or(0)));
        }
        Ok(Archive { bytes, members })
    }

    /// The member with this name and modification time, in seconds since 1970; any time if that is 0.
    fn member(&self, name: &[u8], modified_s: u64) -> Result<ImageBytes, ObjectFileError> {
        let of_name = self.members.get(name).ok_or(ObjectFileError::NoMember)?;
        let found = of_name.iter().find(|(_, date)| modified_s == 0 || *date == modified_s);
        let (range, _) = found.ok_or(ObjectFileError::Changed)?;
        Ok(part(&self.bytes, range))
    }
}

#[cfg(test)]
mod archive_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn header(name: &str, size: usize) -> Vec<u8> {
        format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 0, 644).into_bytes()
    }

    fn archive(names: &str, members: impl Iterator<Item = String>) -> ImageBytes {
        let mut bytes = [b"!<arch>\n".as_slice(), &header("//", names.len()), names.as_bytes()].concat();
        members.for_each(|name| bytes.extend(header(&name, 0)));
        ImageBytes::new(bytes)
    }

    #[test]
    fn members_have_the_names_of_the_table() {
        let names = "a_long_name_of_an_object_file.o/\nanother_long_name_of_one.o/\n\n";
        let archive = Archive::read(archive(names, ["/0", "/33", "b.o/"].map(str::to_owned).into_iter()));
        let archive = archive.unwrap();
        for name in ["a_long_name_of_an_object_file.o", "another_long_name_of_one.o", "b.o"] {
            assert!(archive.member(name.as_bytes(), 0).is_ok(), "{name}");
        }
    }

    #[test]
    fn overlapping_names_are_refused() {
        // Copied, they would take 32 GiB.
        let names = format!("{}/\n", "a".repeat(1 << 20));
        let members = (0..1 << 16).map(|index| format!("/{index}"));
        let refused = Archive::read(archive(&names, members)).unwrap_err();
        assert!(matches!(refused, ObjectFileError::NamesOverlap), "{refused}");
    }
}
