//! Names for code addresses, each unique address looked up once, after the recording.
//!
//! Input: the distinct frames of a trie and the images of the process. Output: a name
//! for each frame, with what could not be named counted by its reason. Nothing here
//! runs while a target is sampled. Not for: opening files, or deciding what an output
//! shows.

pub mod demangle;
pub mod table;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::addr::{Avma, Svma};
use crate::image::{Image, Images};
use crate::trie::{Frame, FrameId};
use table::SymbolTable;

/// Most memory for the text of distinct names, in bytes. Real programs stay far below;
/// a file can be made whose names overlap, each 64 KiB long.
pub const MAX_TEXT_BYTES: usize = 128 * 1024 * 1024;

/// Why an address has no name. Not finding a symbol is a result, not an error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The address is in no image: JIT code, or memory that is not code.
    NoImage,
    /// The image's file could not be read; the text says why.
    NoFile(String),
    /// The image's file is not understood; the text says why.
    BadFile(String),
    /// The file has no function symbols: it was stripped.
    NoSymbols,
    /// The address lies between the symbols of its file.
    NotCovered,
    /// [`MAX_TEXT_BYTES`] was reached.
    TooMuchText,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoImage => f.write_str("in no image"),
            Why::NoFile(reason) | Why::BadFile(reason) => f.write_str(reason),
            Why::NoSymbols => f.write_str("the file has no function symbols"),
            Why::NotCovered => f.write_str("between symbols"),
            Why::TooMuchText => f.write_str("the names take too much memory"),
        }
    }
}

/// Addresses of one image that have no name for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Index of the image in [`Images::images`].
    pub image: u32,
    /// The reason.
    pub why: Why,
    /// How many unique addresses.
    pub addresses: u64,
}

/// The names of the frames of a profile.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// By frame number: start and length in `names`.
    spans: Vec<(u32, u32)>,
    names: Vec<Arc<str>>,
    /// Distinct code addresses: pairs of image and stated address, and addresses in no image.
    pub addresses_unique: u64,
    /// Look-ups that were made; the same as `addresses_unique`, counted where they happen.
    pub addresses_looked_up: u64,
    /// Addresses that got the name of a symbol.
    pub addresses_named: u64,
    /// Addresses without a symbol's name, by reason.
    pub addresses_unnamed: BTreeMap<Why, u64>,
    /// The same by image, sorted by image and reason, without [`Why::NoImage`].
    pub unnamed_by_image: Vec<Unnamed>,
}

impl Names {
    /// The names of a frame, outermost first: one today, more when inlined functions are
    /// known. Empty for [`Frame::Root`] and for frames that were not given.
    #[must_use]
    pub fn get(&self, frame: FrameId) -> &[Arc<str>] {
        let Some(&(start, length)) = self.spans.get(frame.0 as usize) else { return &[] };
        self.names.get(start as usize..start as usize + length as usize).unwrap_or_default()
    }
}

/// An address to name, in the order in which they are looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    /// Index of the image; `u32::MAX` in none.
    image: u32,
    /// Stated address; in no image, the address itself.
    svma: u64,
    frame: FrameId,
    relative: u64,
}

/// Names the frames of a trie. Frame numbers are taken to be dense, as a trie gives them.
///
/// Addresses are grouped by image and looked up in rising order. A symbol table is read
/// only for an image that has addresses, and one at a time is in memory.
#[must_use]
pub fn symbolicate(frames: impl Iterator<Item = (FrameId, Frame)>, images: &Images) -> Names {
    let mut addresses: Vec<Address> = frames
        .filter_map(|(frame, what)| match what {
            Frame::Root(_) => None,
            Frame::Code { space, address } => Some(match images.locate(space, Avma(address)) {
                Some(at) => Address { image: at.index, svma: at.svma.0, frame, relative: at.relative },
                None => Address { image: u32::MAX, svma: address, frame, relative: 0 },
            }),
        })
        .collect();
    addresses.sort_unstable();

    let mut names = Names::default();
    let spans = addresses.iter().map(|address| address.frame.0 as usize + 1).max().unwrap_or(0);
    names.spans = vec![(0, 0); spans];
    let mut texts = Texts::default();
    for group in addresses.chunk_by(|a, b| a.image == b.image) {
        let image = images.images().get(group[0].image as usize);
        name_image(group, image, &mut names, &mut texts);
    }
    names
}

/// Names the addresses of one image (or of none), sorted by stated address.
fn name_image(addresses: &[Address], image: Option<&Image>, names: &mut Names, texts: &mut Texts) {
    let table = match image.map(|image| &image.bytes) {
        None => Err(Why::NoImage),
        Some(Err(reason)) => Err(Why::NoFile(reason.clone())),
        Some(Ok(bytes)) => SymbolTable::parse(bytes),
    };
    // Neighbouring addresses are mostly in one function: its name is demangled once.
    let mut last: Option<(Svma, Arc<str>)> = None;
    for same in addresses.chunk_by(|a, b| a.svma == b.svma) {
        let address = same[0];
        names.addresses_unique += 1;
        names.addresses_looked_up += 1;
        let symbol = table.as_ref().map_err(Clone::clone).and_then(|table| table.lookup(Svma(address.svma)));
        let name = symbol.and_then(|symbol| match &last {
            Some((start, name)) if *start == symbol.start => Ok(Arc::clone(name)),
            _ => {
                let name = texts.symbol(&demangle::demangle(&symbol.name))?;
                last = Some((symbol.start, Arc::clone(&name)));
                Ok(name)
            }
        });
        names.addresses_named += u64::from(name.is_ok());
        let name = name.unwrap_or_else(|why| {
            count_unnamed(names, image.map(|_| address.image), why);
            match image {
                Some(image) => texts.shared(&format!("[{}+{:#x}]", image.name, address.relative)),
                None => texts.shared("[unknown]"),
            }
        });
        let start = names.names.len() as u32;
        names.names.push(name);
        for address in same {
            names.spans[address.frame.0 as usize] = (start, 1);
        }
    }
}

fn count_unnamed(names: &mut Names, image: Option<u32>, why: Why) {
    if let Some(image) = image {
        // Images come one after the other, so only the last few entries can match.
        let of_image = names.unnamed_by_image.iter_mut().rev().take_while(|unnamed| unnamed.image == image);
        match of_image.into_iter().find(|unnamed| unnamed.why == why) {
            Some(unnamed) => unnamed.addresses += 1,
            None => names.unnamed_by_image.push(Unnamed { image, why: why.clone(), addresses: 1 }),
        }
    }
    *names.addresses_unnamed.entry(why).or_insert(0) += 1;
}

/// One shared string for each distinct name.
#[derive(Default)]
struct Texts {
    known: HashSet<Arc<str>>,
    bytes: usize,
}

impl Texts {
    /// The shared form of a symbol's name, within [`MAX_TEXT_BYTES`].
    fn symbol(&mut self, text: &str) -> Result<Arc<str>, Why> {
        if self.bytes + text.len() > MAX_TEXT_BYTES && !self.known.contains(text) {
            return Err(Why::TooMuchText);
        }
        Ok(self.shared(text))
    }

    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        self.bytes += text.len();
        let text: Arc<str> = Arc::from(text);
        self.known.insert(Arc::clone(&text));
        text
    }
}

#[cfg(all(test, target_os = "linux"))] // the test executable must be ELF
mod tests;
