//! Names the addresses of several images at once, on several threads.
//!
//! Input: images, each with its addresses, sorted. Output: the functions of each address or the reason why there
//! are none, in input order independent of threads.
//!
//! Work is divided into independent pieces: the symbols of an image, finding its DWARF units, and each unit. So
//! one large image keeps all processors busy, and so do many small ones. Plain threads and one counter are enough:
//! there are many pieces of milliseconds, so a work-stealing scheduler would gain nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::dwarf::{Chain, Debug, DwarfParts, Job, LineInfo, Sections, SplitFiles, Texts, TextsShared};
use super::locate::{DebugFiles, locate};
use super::table::{Symbol, SymbolTable, macho};
use super::{Options, Why, debug_map, jit, plt};
use crate::addr::Svma;
use crate::binary::{Files, ImageBytes, OpenError};
use crate::images::Image;

/// Pages of larger files are released after reading.
const LARGE_BYTES: usize = 8 << 20;

/// The names of an image's addresses.
#[derive(Debug, Default)]
pub struct ImageNames {
    /// The functions of each address, outermost first, at least one.
    pub names: Vec<Result<Vec<LineInfo>, Why>>,
    /// Lines for the user.
    pub problems: Vec<String>,
}

/// An image being symbolicated.
struct ImageTask<'a> {
    image: &'a Image,
    /// The image's bytes, unless its file was rewritten during the recording.
    bytes: Result<ImageBytes, OpenError>,
    wanted: Vec<u64>,
    located: OnceLock<DebugFiles>,
}

impl<'a> ImageTask<'a> {
    fn new(image: &'a Image, wanted: Vec<u64>) -> ImageTask<'a> {
        let bytes = match image.overwritten() {
            Some(why) => Err(why),
            None => image.bytes.clone(),
        };
        ImageTask { image, bytes, wanted, located: OnceLock::new() }
    }

    fn located(&self, options: &Options<'_>) -> &DebugFiles {
        self.located.get_or_init(|| match &self.bytes {
            Ok(bytes) => locate(self.image, bytes, options.files, options.inlines || options.lines),
            Err(_) => DebugFiles::default(),
        })
    }

    /// Checks that no file used for names was rewritten meanwhile.
    fn unchanged(&self, opened: &[OpenDwarf<'_>]) -> Result<(), Why> {
        if let Ok(bytes) = &self.bytes {
            bytes.unchanged().map_err(|why| Why::NoFile(why.to_string()))?;
        }
        let mut others = self.located.get().into_iter().flat_map(DebugFiles::files);
        let others = others.try_for_each(ImageBytes::unchanged);
        let others = others.and_then(|()| opened.iter().try_for_each(|opened| opened.debug.unchanged()));
        others.map_err(|why| Why::NoFile(format!("a debug file of it: {why}")))
    }
}

type Symbols = Vec<Result<Arc<str>, Why>>;

/// DWARF for some of an image's addresses.
struct OpenDwarf<'f> {
    debug: Debug,
    splits: SplitFiles<'f>,
    /// The addresses as stated by the DWARF, and for each its index among the image's addresses; `None` if both
    /// are equal.
    translated: Option<(Vec<u64>, Vec<u32>)>,
}

impl<'f> OpenDwarf<'f> {
    fn new(
        main: Sections,
        shared: Option<Sections>,
        package: Option<Sections>,
        wanted: &[u64],
        files: &'f dyn Files,
    ) -> OpenDwarf<'f> {
        let splits = SplitFiles { package, files, problems: Mutex::default() };
        OpenDwarf { debug: Debug::new(main, shared, wanted), splits, translated: None }
    }

    /// Runs one of the jobs; the chains have indices of the image's addresses.
    fn run(&self, job: &Job, wanted: &[u64], ask: DwarfParts, texts: &mut Texts<'_>) -> Vec<Chain> {
        let Some((addresses, indices)) = &self.translated else {
            return self.debug.run(job, wanted, ask, &self.splits, texts);
        };
        let mut chains = self.debug.run(job, addresses, ask, &self.splits, texts);
        for chain in &mut chains {
            chain.wanted = indices.get(chain.wanted as usize).copied().unwrap_or(u32::MAX);
        }
        chains
    }
}

enum NameSource<'f> {
    Symbols(Symbols),
    Dwarf(Vec<OpenDwarf<'f>>, Vec<String>),
}

/// Names the addresses of images; each image's are sorted and without duplicates.
pub(super) fn name(
    images: Vec<(&Image, Vec<u64>)>,
    options: &Options<'_>,
    shared: &TextsShared,
) -> Vec<ImageNames> {
    let image_tasks: Vec<ImageTask<'_>> =
        images.into_iter().map(|(image, wanted)| ImageTask::new(image, wanted)).collect();
    let ask = DwarfParts { inlines: options.inlines, lines: options.lines };

    // One task for the symbols of each image and one for its DWARF.
    let begun = in_parallel(options.threads, image_tasks.len() * 2, shared, |texts, task| {
        let image = &image_tasks[task / 2];
        let begun = match task % 2 {
            0 => {
                let (opened, problems) = open(image, options, ask);
                NameSource::Dwarf(opened, problems)
            }
            _ => NameSource::Symbols(symbols(image, options, texts)),
        };
        if image.bytes.as_ref().is_ok_and(|bytes| bytes.bytes().len() > LARGE_BYTES) {
            crate::binary::map::release_pages();
        }
        begun
    });
    let mut answers: Vec<ImageNames> = Vec::with_capacity(image_tasks.len());
    let mut opened = Vec::with_capacity(image_tasks.len());
    for piece in begun {
        match piece {
            NameSource::Dwarf(found, problems) => {
                opened.push(found);
                answers.push(ImageNames { names: Vec::new(), problems });
            }
            NameSource::Symbols(found) => {
                if let Some(answer) = answers.last_mut() {
                    let only = |name| vec![LineInfo { name: Some(name), ..LineInfo::default() }];
                    answer.names = found.into_iter().map(|name| name.map(only)).collect();
                }
            }
        }
    }

    // The units of all images, longest first, so that threads end at about the same time.
    let mut jobs: Vec<_> = opened
        .iter()
        .enumerate()
        .flat_map(|(index, opened)| opened.iter().map(move |opened| (index, opened)))
        .flat_map(|(index, opened)| opened.debug.jobs().iter().map(move |job| (index, opened, job)))
        .collect();
    jobs.sort_by_key(|(_, _, job)| std::cmp::Reverse(job.weight));
    let chains = in_parallel(options.threads, jobs.len(), shared, |texts, task| {
        let (index, opened, job) = jobs[task];
        opened.run(job, &image_tasks[index].wanted, ask, texts)
    });
    for ((index, ..), chains) in jobs.iter().zip(chains) {
        for chain in chains {
            merge(&mut answers[*index].names, chain, options.inlines);
        }
    }
    for ((answer, opened), image) in answers.iter_mut().zip(&opened).zip(&image_tasks) {
        if let Err(why) = image.unchanged(opened) {
            answer.names.fill(Err(why));
        }
        for opened in opened {
            if let Ok(mut problems) = opened.splits.problems.lock() {
                problems.sort_unstable();
                answer.problems.append(&mut problems);
            }
        }
    }
    answers
}

/// Adds DWARF's functions at an address to its symbol.
///
/// The outermost function keeps the name of its symbol: it is independent of DWARF, it is mangled even if DWARF
/// has only `f`, and it distinguishes parts that compilers split off (`f [clone .cold]`).
fn merge(names: &mut [Result<Vec<LineInfo>, Why>], chain: Chain, inlines: bool) {
    let Some(known) = names.get_mut(chain.wanted as usize) else { return };
    let mut functions = chain.functions;
    if !inlines {
        functions.truncate(1);
    }
    let symbol = known.as_ref().ok().and_then(|known| known.first()?.name.clone());
    if let Some(outermost) = functions.first_mut() {
        outermost.name = symbol.or(outermost.name.take());
        if outermost.name.is_some() {
            *known = Ok(functions);
        }
    }
}

/// The symbol of each address.
fn symbols(task: &ImageTask<'_>, options: &Options<'_>, texts: &mut Texts<'_>) -> Symbols {
    if let Err(reason) = &task.bytes {
        return vec![Err(Why::NoFile(reason.to_string())); task.wanted.len()];
    }
    let mut found: Symbols = vec![Err(Why::NoSymbols); task.wanted.len()];
    for bytes in &task.located(options).symbols {
        look_up(bytes, task, &mut found, texts);
        if found.iter().all(Result::is_ok) {
            break;
        }
    }
    // Stubs have no symbols, and need no debug file.
    if let Ok(bytes) = &task.bytes {
        let unnamed = |(svma, found): (&u64, &Result<_, _>)| found.is_err().then_some(*svma);
        let addresses = || task.wanted.iter().zip(&found).filter_map(unnamed);
        let elf = plt::Stubs::read(bytes.bytes(), addresses());
        let in_file = bytes.linkedit().is_none();
        let macho = if in_file { macho::Stubs::read(bytes.bytes(), addresses()) } else { None };
        for (svma, found) in task.wanted.iter().zip(&mut found).filter(|(_, found)| found.is_err()) {
            let name = elf.as_ref().and_then(|stubs| stubs.name(*svma));
            if let Some(name) = name.or_else(|| macho.as_ref()?.name(*svma)) {
                let name = format!("{}@plt", texts.readable(name));
                *found = texts.plain(&name).ok_or(Why::TooMuchText);
            }
        }
    }
    found
}

/// Looks up the addresses without a name in one file.
fn look_up(bytes: &ImageBytes, task: &ImageTask<'_>, found: &mut Symbols, texts: &mut Texts<'_>) {
    let table = SymbolTable::parse(bytes);
    // Neighboring addresses are mostly in one function. Symbols with the same start differ in their end.
    let mut last: Option<(Svma, Svma, Option<Arc<str>>)> = None;
    for (svma, found) in task.wanted.iter().zip(found) {
        if found.is_ok() {
            continue;
        }
        let symbol = table.as_ref().map_err(Clone::clone).and_then(|table| match table.lookup(Svma(*svma)) {
            Err(Why::NotCovered) => behind_its_size(table, task.image, Svma(*svma)),
            found => found,
        });
        match symbol.and_then(|symbol| within(symbol, task.image, Svma(*svma))) {
            Ok(symbol) => {
                let name = match &last {
                    Some((start, end, name)) if (*start, *end) == (symbol.start, symbol.end) => name.clone(),
                    _ => match &symbol.name {
                        std::borrow::Cow::Borrowed(name) => texts.mangled(name),
                        std::borrow::Cow::Owned(name) => texts.mangled_anywhere(name),
                    },
                };
                last = Some((symbol.start, symbol.end, name.clone()));
                *found = name.ok_or(Why::TooMuchText);
            }
            // Another file may have symbols; the reason remains if none has.
            Err(Why::NoSymbols) => {}
            Err(why) => *found = Err(why),
        }
    }
}

/// The symbol of an address, unless it has no end and unwind information shows a function boundary in between.
fn within<'s>(symbol: Symbol<'s>, image: &Image, at: Svma) -> Result<Symbol<'s>, Why> {
    let last = if symbol.open_ended { image.last_described_function(at) } else { None };
    let is_other = |last: Range<Svma>| {
        last.start > symbol.start || (last.contains(&symbol.start) && !last.contains(&at))
    };
    if last.is_some_and(is_other) { Err(Why::NotCovered) } else { Ok(symbol) }
}

/// The symbol of an address after the symbol's end: unwind information has one function from the symbol to the
/// address, without another symbol in between. Assemblers and linker scripts may state too small a size.
fn behind_its_size<'s>(table: &'s SymbolTable, image: &Image, at: Svma) -> Result<Symbol<'s>, Why> {
    let function = image.described_function(at).ok_or(Why::NotCovered)?;
    let symbol = table.lookup(function.start)?;
    let is_last = table.last_before(at).is_none_or(|last| last <= symbol.start);
    if symbol.start == function.start && is_last { Ok(symbol) } else { Err(Why::NotCovered) }
}

fn open<'f>(
    task: &ImageTask<'_>,
    options: &Options<'f>,
    ask: DwarfParts,
) -> (Vec<OpenDwarf<'f>>, Vec<String>) {
    let located = task.located(options);
    let mut problems = located.problems.clone();
    if !ask.inlines && !ask.lines {
        return (Vec::new(), problems);
    }
    let mut read = |bytes: &Option<ImageBytes>, split| {
        let sections = Sections::read(bytes.as_ref()?, split, ask);
        sections.unwrap_or_else(|why| {
            problems.push(format!("{}: {why}", task.image.path));
            None
        })
    };
    let main = read(&located.debug, false);
    let (shared, package) = (read(&located.shared, false), read(&located.package, true));
    if let Some(main) = main {
        return (vec![OpenDwarf::new(main, shared, package, &task.wanted, options.files)], problems);
    }
    let Ok(bytes) = &task.bytes else { return (Vec::new(), problems) };
    let (objects, refused) = debug_map::objects(task.image, bytes, &task.wanted, options.files);
    problems.extend(refused);
    let mut opened = Vec::new();
    for object in objects {
        match Sections::read(&object.bytes, false, ask) {
            Ok(Some(main)) => {
                let from_object = OpenDwarf::new(main, None, None, &object.addresses, options.files);
                let translated = Some((object.addresses, object.indices));
                opened.push(OpenDwarf { translated, ..from_object });
            }
            // An object file that was compiled without `-g`.
            Ok(None) => {}
            Err(why) => problems.push(format!("{}: an object file of it: {why}", task.image.path)),
        }
    }
    (opened, problems)
}

/// Names addresses outside images, from the dumps of JIT compilers at these paths, and from the process's map.
/// Addresses are sorted, with duplicates.
pub(super) fn name_anonymous(
    addresses: impl Iterator<Item = u64>,
    dumps: &[&str],
    files: &dyn Files,
    shared: &TextsShared,
) -> ImageNames {
    let mut wanted: Vec<u64> = addresses.collect();
    wanted.dedup();
    let mut answer = ImageNames { names: vec![Err(Why::NoImage); wanted.len()], problems: Vec::new() };
    let mut texts = Texts::new(shared);
    let mut take = |answer: &mut ImageNames, names: Vec<Option<&[u8]>>| {
        for (into, name) in answer.names.iter_mut().zip(names) {
            let Some(name) = name.filter(|_| into.is_err()) else { continue };
            let name = texts.plain(&String::from_utf8_lossy(name)).ok_or(Why::TooMuchText);
            *into = name.map(|name| vec![LineInfo { name: Some(name), ..LineInfo::default() }]);
        }
    };
    for path in dumps {
        let opened = files.open_jit_dump(path).map_err(|why| why.to_string());
        let loads = opened.as_ref().map_err(String::clone).and_then(|dump| {
            jit::loads(dump.bytes()).ok_or_else(|| "not a jitdump of this processor".to_owned())
        });
        match loads {
            Ok(loads) => {
                let functions = loads.iter().rev().map(|load| (load.code.start, load.code.end, load.name));
                take(&mut answer, jit::last_at(functions, &wanted));
            }
            Err(why) => answer.problems.push(format!("{path}: {why}")),
        }
    }
    match files.jit_map() {
        None => {}
        Some((path, Err(why))) => answer.problems.push(format!("{path}: {why}")),
        Some((path, Ok(text))) => {
            let found = jit::names(&text, &wanted);
            take(&mut answer, found.names);
            if found.bad_lines > 0 {
                let lines = found.bad_lines;
                answer
                    .problems
                    .push(format!("{path}: {lines} lines are not `START SIZE name`, and were skipped"));
            }
        }
    }
    answer
}

/// Runs `count` pieces of work on up to `threads` threads, each with its own names; results are in the order of
/// the pieces.
fn in_parallel<R: Send>(
    threads: usize,
    count: usize,
    shared: &TextsShared,
    work: impl Fn(&mut Texts<'_>, usize) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut texts = Texts::new(shared);
        let mut done = Vec::new();
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= count {
                return done;
            }
            done.push((task, work(&mut texts, task)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        // This thread also works; if no others can be spawned, it does everything.
        let others: Vec<_> = (1..threads.min(count))
            .filter_map(|_| {
                std::thread::Builder::new().name("symbols".to_owned()).spawn_scoped(scope, worker).ok()
            })
            .collect();
        let mut done = worker();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(task, _)| *task);
    done.into_iter().map(|(_, result)| result).collect()
}
