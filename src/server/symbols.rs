//! Symbol data of a profile and of the files that it names: names, source, instructions.
//!
//! Input: a profile and its files, all hostile. Names are those of the profile. Instructions and source are
//! available only for images with the build id of the profile, and source only for files that the debug
//! information of that image names at an address of the profile: a foreign profile cannot make other files of
//! this system readable.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::addr::{Avma, Svma};
use crate::binary::{Files, ImageBytes, Mapping};
use crate::disassembly::{self, Listing};
use crate::images::Image;
use crate::profile::formats::firefox::libraries::{Libraries, Library};
use crate::profile::{SavedProfile, TextId};
use crate::symbol::table::SymbolTable;
use crate::symbol::{self, locate};

/// Longest source file to return, bytes.
pub const SOURCE_BYTES_MAX: usize = 8 << 20;
/// Most images to open.
const IMAGES_MAX: usize = 4096;

/// A function at an address; one of several, outermost first, with inlining.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name as `render` shows it.
    pub name: String,
    /// Path of its source; empty if unknown.
    pub file: String,
    /// Line; 0 if unknown.
    pub line: u32,
}

/// The functions at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolInfo {
    /// Never empty, outermost first.
    pub functions: Vec<Function>,
    /// Offset from the start of the outermost function.
    pub function_offset: u32,
    /// Its size, if its file has it.
    pub function_size: Option<u32>,
}

/// The image of a library, with the build id of the profile.
pub struct OpenedImage {
    image: Image,
    bytes: ImageBytes,
    /// Read when first needed.
    tables: OnceLock<Vec<SymbolTable>>,
}

/// A profile with the files of its code.
pub struct Symbols {
    saved: SavedProfile,
    libraries: Libraries,
    /// By library: its image, or why it is unavailable.
    images: Vec<Result<OpenedImage, String>>,
    /// By library and offset: a frame there.
    frames: HashMap<(u32, u32), u32>,
    /// By library and name of the outermost function: its lowest offset in the profile.
    starts: HashMap<(u32, TextId), u32>,
    files: Arc<dyn Files>,
}

impl Symbols {
    /// Opens the images of a profile.
    #[must_use]
    pub fn new(saved: SavedProfile, files: Arc<dyn Files>) -> Symbols {
        let mut numbers: HashMap<(TextId, TextId), u32> = HashMap::new();
        let mut libraries = Libraries::default();
        let mut images = Vec::new();
        let mut of_mapping = Vec::new();
        for mapping in saved.mappings() {
            let path = saved.text(mapping.path);
            let number = *numbers.entry((mapping.path, mapping.build_id)).or_insert_with(|| {
                let name = path.rsplit('/').next().unwrap_or_default().to_owned();
                let build_id = saved.text(mapping.build_id).to_owned();
                let library = Library { name, path: path.to_owned(), build_id };
                images.push(match images.len() < IMAGES_MAX {
                    true => open(&library, &*files),
                    false => Err(format!("more than {IMAGES_MAX} images")),
                });
                libraries.list.push(library);
                libraries.list.len() as u32 - 1
            });
            of_mapping.push(number);
        }
        let (mut frames, mut starts) = (HashMap::new(), HashMap::new());
        for (index, frame) in saved.frames().iter().enumerate() {
            let place = frame.mapping.and_then(|mapping| {
                let library = *of_mapping.get(mapping as usize)?;
                let mapping = saved.mappings().get(mapping as usize)?;
                // A request needs a name.
                let named = libraries.list.get(library as usize).filter(|library| !library.name.is_empty());
                named?;
                let inside = (mapping.start..mapping.limit).contains(&frame.address);
                let offset = mapping.file_offset_of(frame.address).filter(|_| inside)?;
                let relative = match images.get(library as usize)? {
                    Ok(opened) => {
                        let svma = opened.image.object()?.svma_of(offset)?;
                        svma.0.checked_sub(opened.image.base_svma.0)?
                    }
                    Err(_) => offset,
                };
                Some((library, u32::try_from(relative).ok()?))
            });
            libraries.frames.push(place);
            let Some((library, offset)) = place else { continue };
            frames.entry((library, offset)).or_insert(index as u32);
            if let Some(outermost) = saved.lines_of(frame).first() {
                let name = saved.function(outermost.function).name;
                let start = starts.entry((library, name)).or_insert(offset);
                *start = offset.min(*start);
            }
        }
        Symbols { saved, libraries, images, frames, starts, files }
    }

    /// The profile.
    #[must_use]
    pub fn saved(&self) -> &SavedProfile {
        &self.saved
    }

    /// Why images are unavailable: one line each for people.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.images.iter().filter_map(|image| image.as_ref().err().map(String::as_str))
    }

    /// The libraries, and the offsets of frames in them.
    #[must_use]
    pub fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    /// The library with a name and an id.
    #[must_use]
    pub fn library(&self, name: &str, debug_id: &str) -> Option<u32> {
        let is_it = |library: &Library| library.name == name && library.debug_id() == debug_id;
        self.libraries.list.iter().position(is_it).map(|index| index as u32)
    }

    /// The functions at an address of the profile; `None` for any other.
    #[must_use]
    pub fn place(&self, library: u32, offset: u32) -> Option<SymbolInfo> {
        let index = *self.frames.get(&(library, offset))?;
        let frame = self.saved.frames().get(index as usize)?;
        let mut names = Vec::new();
        self.saved.names_of(index, false, &mut |name| names.push(name.to_owned()));
        let lines = self.saved.lines_of(frame);
        let functions = names.into_iter().enumerate().map(|(at, name)| {
            let line = lines.get(at);
            let file = line.map(|line| self.saved.text(self.saved.function(line.function).file));
            Function {
                name,
                file: file.unwrap_or_default().to_owned(),
                line: line.map_or(0, |line| line.line),
            }
        });
        let functions: Vec<Function> = functions.collect();
        let range = self.opened(library).ok().and_then(|opened| function(opened, offset));
        let (function_offset, function_size) = match range {
            Some((start, size)) => (offset.checked_sub(start)?, Some(size)),
            None => {
                let name = lines.first().map(|line| self.saved.function(line.function).name);
                let start = name.and_then(|name| self.starts.get(&(library, name)));
                (start.map_or(0, |start| offset.saturating_sub(*start)), None)
            }
        };
        Some(SymbolInfo { functions, function_offset, function_size })
    }

    /// The instructions of a library, from an offset on; to the end of the function there, with
    /// `whole_function`.
    ///
    /// # Errors
    /// A line for people: why they are unavailable.
    pub fn instructions(
        &self,
        library: u32,
        offset: u32,
        size: u32,
        whole_function: bool,
    ) -> Result<Listing, String> {
        let opened = self.opened(library)?;
        let name = &opened.image.path;
        let start = opened.svma(offset).ok_or("there is no such address")?;
        let mut size = size;
        if whole_function && let Some((begin, length)) = function(opened, offset) {
            let behind = begin.saturating_add(length).saturating_sub(offset);
            size = size.max(behind);
        }
        let end = start.checked_add(u64::from(size)).ok_or("there is no such address")?;
        disassembly::list(&opened.bytes, start..end).map_err(|why| format!("{name}: {why}"))
    }

    /// The text of a source file that the debug information of a library names at an address of the profile.
    ///
    /// # Errors
    /// A line for people: why it is unavailable.
    pub fn source(&self, library: u32, offset: u32, file: &str) -> Result<String, String> {
        let place = self.place(library, offset).ok_or("the profile has no such address")?;
        if !place.functions.iter().any(|function| function.file == file) {
            return Err(format!("the profile names no file `{file}` at this address"));
        }
        let opened = self.opened(library)?;
        let svma = opened.svma(offset).ok_or("there is no such address")?;
        let options = symbol::Options { lines: true, files: &*self.files, ..symbol::Options::default() };
        let path = &opened.image.path;
        let named = symbol::name_addresses(path, opened.bytes.clone(), &[svma.0], &options);
        let mut functions = named.names.iter().flatten().flatten();
        if !functions.any(|function| function.file.as_deref() == Some(file)) {
            return Err(format!("the debug information of {path} does not name `{file}` at this address"));
        }
        read_source(&*self.files, file)
    }

    fn opened(&self, library: u32) -> Result<&OpenedImage, String> {
        match self.images.get(library as usize) {
            Some(Ok(opened)) => Ok(opened),
            Some(Err(why)) => Err(why.clone()),
            None => Err("there is no such library".to_owned()),
        }
    }
}

impl OpenedImage {
    /// The instructions of the function at a file offset: offset and text of each. Empty if its bounds are
    /// unknown.
    #[must_use]
    pub fn function_at(&self, file_offset: u64) -> Vec<(u64, String)> {
        let object = self.image.object();
        let svma = object.and_then(|object| object.svma_of(file_offset));
        let relative = svma.and_then(|svma| svma.0.checked_sub(self.image.base_svma.0));
        let range = relative.and_then(|offset| function(self, u32::try_from(offset).ok()?));
        let Some((object, (start, length))) = object.zip(range) else { return Vec::new() };
        let Some(start) = self.svma(start) else { return Vec::new() };
        let end = Svma(start.0.saturating_add(length.into()));
        let listing = disassembly::list(&self.bytes, start..end);
        let instructions = listing.map_or_else(|_| Vec::new(), |listing| listing.instructions);
        let placed = instructions.into_iter().map(|one| Some((object.file_offset_of(one.svma)?, one.text)));
        placed.flatten().collect()
    }

    /// The stated address of an offset.
    fn svma(&self, offset: u32) -> Option<Svma> {
        self.image.base_svma.checked_add(u64::from(offset))
    }
}

/// Reads a source file named by debug information.
///
/// # Errors
/// A line for people: it is unreadable, too long or not text.
pub fn read_source(files: &dyn Files, file: &str) -> Result<String, String> {
    if !file.starts_with('/') {
        return Err(format!("{file}: not an absolute path; compile with one, or see -fdebug-prefix-map"));
    }
    let bytes = files.open_source(file).map_err(|why| format!("{file}: {why}"))?;
    if bytes.bytes().len() > SOURCE_BYTES_MAX {
        let most = SOURCE_BYTES_MAX >> 20;
        return Err(format!("{file}: longer than {most} MiB"));
    }
    let text = String::from_utf8_lossy(bytes.bytes()).into_owned();
    bytes.unchanged().map_err(|why| format!("{file}: {why}"))?;
    if text.contains('\0') { Err(format!("{file}: not a text")) } else { Ok(text) }
}

/// Opens the image of a library, if it has the build id of the profile.
///
/// # Errors
/// A line for people: why it is unavailable.
pub fn open(library: &Library, files: &dyn Files) -> Result<OpenedImage, String> {
    let Library { path, build_id, .. } = library;
    if !path.starts_with('/') {
        return Err(format!("{path}: not a file"));
    }
    if build_id.is_empty() {
        return Err(format!("{path}: the profile has no build id of it; link with --build-id"));
    }
    let bytes = files.open(path).map_err(|why| format!("{path}: {why}"))?;
    let mapping = Mapping::of_file(Avma(0)..Avma(u64::MAX), 0, path.clone(), (0, 0));
    let image = Image::open(&mapping, Ok(bytes.clone()));
    if let Some(problem) = image.problem() {
        return Err(format!("{path}: {problem}"));
    }
    let digits: String = image.build_id.iter().flatten().map(|byte| format!("{byte:02x}")).collect();
    if digits != build_id.to_ascii_lowercase() {
        return Err(format!("{path}: another build than the one that was recorded"));
    }
    Ok(OpenedImage { image, bytes, tables: OnceLock::new() })
}

/// Start and size of the function at an offset.
fn function(opened: &OpenedImage, offset: u32) -> Option<(u32, u32)> {
    let svma = opened.svma(offset)?;
    // Separate debug files have the same functions; only those in the file itself are used here.
    let tables = opened.tables.get_or_init(|| {
        let found = locate::locate(&opened.image, &opened.bytes, &crate::binary::NoFiles, false);
        found.symbols.iter().filter_map(|bytes| SymbolTable::parse(bytes).ok()).collect()
    });
    let by_symbol = tables.iter().find_map(|table| {
        let symbol = table.lookup(svma).ok()?;
        Some((symbol.start, symbol.end))
    });
    let described = || opened.image.described_function(svma).map(|range| (range.start, range.end));
    let (start, end) = by_symbol.or_else(described)?;
    let relative = u32::try_from(start.0.checked_sub(opened.image.base_svma.0)?).ok()?;
    Some((relative, u32::try_from(end.0.checked_sub(start.0)?).ok()?))
}
