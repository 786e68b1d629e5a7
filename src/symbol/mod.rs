//! Names for code addresses, each unique address looked up once, after the recording.
//!
//! `symbolicate` looks up; `Names`: the result; `Options`: what is requested.
//!
//! Input: the distinct frames of a trie and the images of the process. Output: a name for each frame; frames
//! without one are counted by reason. Nothing here runs while a target is sampled. Not for: opening files, or
//! selecting what an output shows.

mod batch;
mod debug_map;
pub mod demangle;
pub mod dwarf;
mod error;
pub mod jit;
pub mod kernel;
pub mod locate;
pub mod plt;
pub mod sections;
pub mod table;
#[cfg(all(test, target_os = "linux"))] // the test executable must be ELF
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

use crate::addr::{Avma, Svma};
use crate::binary::{Files, ImageBytes, Mapping, MappingKind, NoFiles};
use crate::images::{Image, Images};
use crate::module_offset::ModuleOffset;
use crate::recording::Frame;
use crate::trie::FrameId;
use demangle::Demangler;
use dwarf::TextsShared;
use jit::JitRuntimes;

pub use batch::ImageNames;
pub use dwarf::LineInfo;
pub use error::{DebugFileError, SectionError, Style, TEXT_BYTES_MAX, Why};

/// Addresses of one image that lack a name for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Index of the image in [`Images::images`].
    pub image: u32,
    /// The reason.
    pub why: Why,
    /// Number of unique addresses.
    pub addresses: u64,
}

/// The names of the frames of a profile.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// By frame number: start and length in `names` and `functions`.
    spans: Vec<(u32, u32)>,
    names: Vec<Arc<str>>,
    functions: Vec<LineInfo>,
    /// Distinct code addresses: pairs of image and stated address, and addresses in no image.
    pub addresses_unique: u64,
    /// Look-ups; equal to `addresses_unique`, but counted when they happen.
    pub addresses_looked_up: u64,
    /// Addresses named by a symbol.
    pub addresses_named: u64,
    /// Refused debug files, JIT maps with bad lines: one line each.
    pub notes: Vec<String>,
    /// Addresses not named by a symbol, by reason.
    pub addresses_unnamed: BTreeMap<Why, u64>,
    /// Addresses not named by a symbol, by image; sorted by image and reason, without [`Why::NoImage`].
    pub unnamed_by_image: Vec<Unnamed>,
}

impl Names {
    /// The names of a frame, outermost first: more than one with inlined functions. Empty for [`Frame::Root`] and
    /// for unknown frames.
    #[must_use]
    pub fn get(&self, frame: FrameId) -> &[Arc<str>] {
        self.names.get(self.span(frame)).unwrap_or_default()
    }

    /// The functions of a frame, outermost first, with source file and line separate from the name.
    #[must_use]
    pub fn functions(&self, frame: FrameId) -> &[LineInfo] {
        self.functions.get(self.span(frame)).unwrap_or_default()
    }

    fn span(&self, frame: FrameId) -> Range<usize> {
        let (start, length) = self.spans.get(frame.0 as usize).copied().unwrap_or_default();
        start as usize..start as usize + length as usize
    }
}

/// An address to name, in look-up order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Address {
    owner: Owner,
    /// Number of the process, if it is in no image.
    process: u32,
    /// Stated address; if it is in no image, the address itself.
    svma: u64,
    frame: FrameId,
    relative: u64,
    /// The address space of the sample.
    space: u32,
}

/// The owner of an address, in the order of naming.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// An image, by its index.
    Image(u32),
    /// The kernel.
    Kernel,
    /// No image, in a program that was replaced (`exec`): a JIT compiler's map belongs to the last one.
    EarlierProgram,
    /// No image.
    NoImage,
}

impl Owner {
    fn image_index(self) -> Option<u32> {
        match self {
            Owner::Image(index) => Some(index),
            Owner::Kernel | Owner::EarlierProgram | Owner::NoImage => None,
        }
    }
}

/// Limit on the bytes of image files named at a time, if there are several: pages of a file stay in memory while
/// it is open.
const BATCH_BYTES_MAX: u64 = 512 << 20;

/// Names the frames of a trie. Frame numbers are assumed to be dense, like a trie's.
///
/// Addresses are grouped by image and looked up in ascending order. Files are read only for images with addresses.
#[must_use]
pub fn symbolicate(
    frames: impl Iterator<Item = (FrameId, Frame)>,
    images: &Images,
    options: &Options<'_>,
) -> Names {
    let addresses = sorted_addresses(frames, images);

    let mut names = Names::default();
    let spans = addresses.iter().map(|address| address.frame.0 as usize + 1).max().unwrap_or(0);
    names.spans = vec![(0, 0); spans];
    let shared = TextsShared::new(options.style, options.swift);
    let mut texts = Texts::default();
    let mut jit_runtimes = JitRuntimes::new(images);
    let groups: Vec<&[Address]> =
        addresses.chunk_by(|a, b| (a.owner, a.process) == (b.owner, b.process)).collect();
    let image_of = |group: &[Address]| images.images().get(group[0].owner.image_index()? as usize);
    let size_of = |group: &[Address]| {
        image_of(group).and_then(|image| image.bytes.as_ref().ok()).map_or(0, |bytes| bytes.bytes().len())
    };
    let of_kernel = groups.iter().find(|group| group[0].owner == Owner::Kernel);
    std::thread::scope(|scope| {
        // Reading its list of symbols takes as long as naming inlined functions, mostly in the kernel.
        let thread = || std::thread::Builder::new().name("kernel-names".to_owned());
        let mut kernel = of_kernel.map(|group| {
            let named = thread().spawn_scoped(scope, || name_kernel(group, options.files));
            named.map_or_else(|_| Err(name_kernel(group, options.files)), Ok)
        });
        let mut rest = groups.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest.iter().take_while(|group| {
                bytes += size_of(group) as u64;
                bytes <= BATCH_BYTES_MAX
            });
            let (batch, after) = rest.split_at(fits.count().max(1));
            rest = after;
            // Pages of the previous images.
            crate::binary::map::release_pages();
            let requests = batch.iter().filter_map(|group| {
                let unique = group.chunk_by(|a, b| a.svma == b.svma);
                Some((image_of(group)?, unique.map(|same| same[0].svma).collect()))
            });
            let mut answers = batch::name(requests.collect(), options, &shared).into_iter();
            for group in batch {
                let image = image_of(group);
                let answer = match image {
                    Some(_) => answers.next().unwrap_or_default(),
                    None if group[0].owner == Owner::EarlierProgram => ImageNames::default(),
                    None if group[0].owner == Owner::Kernel => {
                        kernel.take().map_or_else(ImageNames::default, joined)
                    }
                    None => {
                        let files = options.files_of(group[0].process);
                        // The name contains the pid: a process maps no other process's dump.
                        let dumps = files.own_pid().map_or_else(Vec::new, |pid| {
                            images.paths_in_program(group[0].process, &format!("jit-{pid}.dump"))
                        });
                        let addresses = group.iter().map(|address| address.svma);
                        let answer = batch::name_anonymous(addresses, &dumps, files, &shared);
                        name_gdb_jit(group, images, answer, options, &shared)
                    }
                };
                names.notes.extend(answer.problems.iter().cloned());
                take(group, image, answer, &mut names, (&mut texts, &mut jit_runtimes));
            }
        }
    });
    names
}

/// The addresses of frames in files, in the order of naming.
fn sorted_addresses(frames: impl Iterator<Item = (FrameId, Frame)>, images: &Images) -> Vec<Address> {
    let mut addresses: Vec<Address> = frames
        .filter_map(|(frame, what)| match what {
            Frame::Root(_) => None,
            Frame::Code { space, address } => {
                if address.at().is_kernel() {
                    let (svma, relative) = (address.0, 0);
                    return Some(Address { owner: Owner::Kernel, process: 0, svma, frame, relative, space });
                }
                let is_jit = images.jit_memory(space, address.at()).is_some();
                let at = images.locate(space, address.at()).filter(|_| !is_jit);
                Some(match at {
                    Some(at) => {
                        let (svma, relative) = (at.svma.0, at.relative);
                        Address { owner: Owner::Image(at.index), process: 0, svma, frame, relative, space }
                    }
                    None => {
                        let earlier = images.is_of_earlier_program(space);
                        let owner = if earlier { Owner::EarlierProgram } else { Owner::NoImage };
                        let process = images.process_of(space);
                        Address { owner, process, svma: address.0, frame, relative: 0, space }
                    }
                })
            }
        })
        .collect();
    addresses.sort_unstable();
    addresses
}

/// Names stated addresses of one file, in any order, with functions outermost first.
#[must_use]
pub fn name_addresses(path: &str, bytes: ImageBytes, addresses: &[u64], options: &Options<'_>) -> ImageNames {
    let mapping = Mapping::of_file(Avma(0)..Avma(u64::MAX), 0, path, (0, 0));
    let image = Image::open(&mapping, Ok(bytes));
    let mut wanted = addresses.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let mut answer =
        batch::name(vec![(&image, wanted.clone())], options, &TextsShared::new(options.style, options.swift))
            .remove(0);
    let found = addresses.iter().map(|address| {
        let index = wanted.binary_search(address).unwrap_or_default();
        answer.names.get(index).cloned().unwrap_or(Err(Why::NotCovered))
    });
    answer.names = found.collect();
    answer
}

/// Stores the names of one image's addresses (or of none), sorted by stated address.
fn take(
    addresses: &[Address],
    image: Option<&Image>,
    answer: ImageNames,
    names: &mut Names,
    (texts, jit_runtimes): (&mut Texts, &mut JitRuntimes<'_>),
) {
    let mut found = answer.names.into_iter();
    let mut stubs = None;
    for same in addresses.chunk_by(|a, b| a.svma == b.svma) {
        let address = same[0];
        names.addresses_unique += 1;
        names.addresses_looked_up += 1;
        let start = names.names.len() as u32;
        match found.next().unwrap_or(Err(if image.is_some() { Why::NotCovered } else { Why::NoImage })) {
            Ok(functions) => {
                names.addresses_named += 1;
                names.names.extend(functions.iter().map(|function| texts.function(function)));
                names.functions.extend(functions);
            }
            Err(why) => {
                let unnamed = match image {
                    Some(image) => {
                        // Starts of functions are also read from the file.
                        let has_file = !matches!(why, Why::NoFile(_));
                        let stubs: &Vec<Range<u64>> = stubs
                            .get_or_insert_with(|| if has_file { plt::ranges(image) } else { Vec::new() });
                        texts.shared(&unnamed(image, &address, has_file.then_some(stubs)))
                    }
                    None if address.owner == Owner::Kernel => texts.shared(kernel::UNNAMED),
                    None if Avma(address.svma).is_vsyscall() => texts.shared("[vsyscall]"),
                    None if Avma(address.svma).as_exception().is_some() => {
                        let number = Avma(address.svma).as_exception().filter(|number| *number > 0);
                        let number = number.map(|number| format!(" {number}")).unwrap_or_default();
                        texts.shared(&format!("[exception{number}]"))
                    }
                    None => {
                        let runtime = jit_runtimes.name(address.space, Avma(address.svma));
                        texts.shared(runtime.as_deref().unwrap_or("[unknown]"))
                    }
                };
                count_unnamed(names, address.owner.image_index(), why);
                names.functions.push(LineInfo { name: Some(Arc::clone(&unnamed)), ..LineInfo::default() });
                names.names.push(unnamed);
            }
        }
        let length = names.names.len() as u32 - start;
        for address in same {
            names.spans[address.frame.0 as usize] = (start, length);
        }
    }
}

/// Names JIT code that no map has named, by the files that its compiler registered: these may be less accurate for
/// code that is moved and replaced.
fn name_gdb_jit(
    addresses: &[Address],
    images: &Images,
    mut answer: ImageNames,
    options: &Options<'_>,
    shared: &TextsShared,
) -> ImageNames {
    let distinct = addresses.chunk_by(|a, b| a.svma == b.svma).enumerate();
    let nameless = distinct.filter(|(index, _)| answer.names.get(*index).is_some_and(Result::is_err));
    let mut located: Vec<(u32, u64, usize)> = nameless
        .filter_map(|(index, same)| {
            // Of several programs at one address, the last.
            let at = images.locate(same.last()?.space, Avma(same[0].svma))?;
            (at.image.kind == MappingKind::GdbJit).then_some((at.index, at.svma.0, index))
        })
        .collect();
    located.sort_unstable();
    let groups: Vec<_> = located.chunk_by(|a, b| a.0 == b.0).collect();
    let requests = groups.iter().filter_map(|group| {
        Some((images.images().get(group[0].0 as usize)?, group.iter().map(|(_, svma, _)| *svma).collect()))
    });
    let found = batch::name(requests.collect(), options, shared);
    for (group, found) in groups.into_iter().zip(found) {
        for ((.., index), name) in group.iter().zip(found.names) {
            if let (Some(into), Ok(name)) = (answer.names.get_mut(*index), name) {
                *into = Ok(name);
            }
        }
    }
    answer
}

/// Result of the kernel-names thread (its panic propagates), or of the inline fallback.
fn joined(thread: Result<ScopedJoinHandle<'_, ImageNames>, ImageNames>) -> ImageNames {
    let join = |thread: ScopedJoinHandle<'_, ImageNames>| thread.join();
    thread.map_or_else(Ok, join).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Names of the kernel's functions at sorted addresses, one per distinct address.
fn name_kernel(addresses: &[Address], files: &dyn Files) -> ImageNames {
    let distinct: Vec<u64> = addresses.chunk_by(|a, b| a.svma == b.svma).map(|same| same[0].svma).collect();
    // If it answers without any name, its list may state why.
    if let Some(told) = files.kernel_names(&distinct).filter(|told| told.iter().any(Option::is_some)) {
        return ImageNames {
            names: told.into_iter().map(kernel::marked_name).collect(),
            problems: Vec::new(),
        };
    }
    let read = |mut list: Box<dyn Read>| {
        kernel::name(&mut *list, &distinct).map_err(|error| format!("/proc/kallsyms: {}", error.kind()))
    };
    match files.kernel_symbols().map_err(|why| why.to_string()).and_then(read) {
        Ok(names) => ImageNames { names, problems: Vec::new() },
        Err(why) => ImageNames { names: vec![Err(Why::NoSymbols); distinct.len()], problems: vec![why] },
    }
}

/// The name of code in an image without a symbol: one per function with a known start. `stubs` are the image's
/// stub sections; without them, nothing more is read of its file.
fn unnamed(image: &Image, address: &Address, stubs: Option<&Vec<Range<u64>>>) -> String {
    let module = image.shown_name();
    let function = stubs.and_then(|stubs| {
        // Unwind information describes all stubs of a section as one.
        let in_stubs = stubs.iter().any(|section| section.contains(&address.svma));
        image.described_function(Svma(address.svma)).filter(|_| !in_stubs)
    });
    let start = function.and_then(|function| function.start.0.checked_sub(image.base_svma.0));
    let unnamed = match start {
        Some(start) => ModuleOffset::Function { module, start },
        None => ModuleOffset::Address { module, offset: address.relative },
    };
    unnamed.to_string()
}

fn count_unnamed(names: &mut Names, image: Option<u32>, why: Why) {
    if let Some(image) = image {
        // Images are consecutive, so only the last few entries can match.
        let of_image = names.unnamed_by_image.iter_mut().rev().take_while(|unnamed| unnamed.image == image);
        match of_image.into_iter().find(|unnamed| unnamed.why == why) {
            Some(unnamed) => unnamed.addresses += 1,
            None => names.unnamed_by_image.push(Unnamed { image, why: why.clone(), addresses: 1 }),
        }
    }
    *names.addresses_unnamed.entry(why).or_insert(0) += 1;
}

/// One shared string for each distinct text of a frame.
#[derive(Default)]
struct Texts {
    known: HashSet<Arc<str>>,
}

impl Texts {
    /// The text of a function, with its line if there is one.
    fn function(&mut self, function: &LineInfo) -> Arc<str> {
        let name = function.name.as_deref().unwrap_or("[unknown]");
        let Some(file) = &function.file else { return self.shared(name) };
        // The function shows which of several files with one name it is.
        let file = file.rsplit(['/', '\\']).next().unwrap_or_default();
        match function.line {
            0 => self.shared(&format!("{name} ({file})")),
            line => self.shared(&format!("{name} ({file}:{line})")),
        }
    }

    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = Arc::from(text);
        self.known.insert(Arc::clone(&text));
        text
    }
}

// ---- Options for names: inlined functions, lines, demangling.

/// Options for names.
#[derive(Clone, Copy)]
pub struct Options<'f> {
    /// A frame for each function inlined at an address.
    pub inlines: bool,
    /// `function (file:line)`.
    pub lines: bool,
    /// The style of names.
    pub style: Style,
    /// Demangler for Swift names.
    pub swift: Demangler,
    /// Access to debug files.
    pub files: &'f dyn Files,
    /// Access to files of single processes by their number in the images, for the maps and dumps of JIT compilers.
    /// Other processes use `files`.
    pub files_by_process: &'f [(u32, Arc<dyn Files>)],
    /// Number of threads.
    pub threads: usize,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (style, swift): (_, Demangler) = (Style::Readable, |_| None);
        let files = &NoFiles;
        Options { inlines: true, lines: false, style, swift, files, files_by_process: &[], threads }
    }
}

impl Options<'_> {
    /// The files of a process, by its number in the images.
    fn files_of(&self, process: u32) -> &dyn Files {
        let of_process = self.files_by_process.iter().find(|(number, _)| *number == process);
        of_process.map_or(self.files, |(_, files)| &**files)
    }
}
