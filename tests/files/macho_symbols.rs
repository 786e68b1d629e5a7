//! Names in real macOS programs, compared with those of LLVM's tools.
//!
//! `scripts/check-macho-symbols.sh` downloads the programs and runs this with `STACKPROF_MACHO_DIR`; without
//! that it prints SKIP. For each image of each file below the directory, random addresses in its code are
//! looked up here and with llvm-symbolizer. `STACKPROF_SEED` selects other addresses. Every difference is
//! listed.
//!
//! Two kinds of addresses are not compared but counted separately, with proof from LLVM's tools alone.
//! *Stretched*: llvm-objdump lists a function (LC_FUNCTION_STARTS) that has lost its symbol, and LLVM names
//! it after the previous symbol in llvm-nm; it must have no name here. *Unnamed*: llvm-nm has no symbol in
//! the section up to the address (stubs), and neither side has a name. Each file is also read as if it had no
//! symbol table: its exports must then be the external symbols of llvm-nm.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use stackprof::addr::Svma;
use stackprof::binary::ImageBytes;
use stackprof::binary::macho::{self, CPU_ARM64, CPU_X86_64, MachO};
use stackprof::rng::Rng;
use stackprof::symbol::Why;
use stackprof::symbol::demangle::demangle;
use stackprof::symbol::table::SymbolTable;

/// Number of addresses to look up in each image.
const ADDRESSES: usize = 10_000;
/// Least share of addresses with the same name here, among those that LLVM names correctly.
const EQUAL_MIN: f64 = 0.999;
/// Addresses to show for each image and kind other than differences.
const SHOWN: usize = 2;
/// Least number of images in the script's packages: fewer means that some were not read.
const IMAGES_MIN: usize = 50;

/// Results for the addresses of one image.
#[derive(Clone, Debug, Default)]
struct Tally {
    addresses: usize,
    /// The same name.
    equal: usize,
    /// A different name that llvm-nm has for the same function.
    alias: usize,
    /// LLVM's name belongs to a previous function; none here, or that of an export.
    stretched: usize,
    /// Neither has a name.
    unnamed: usize,
    /// Anything else.
    different: usize,
    notes: Vec<String>,
}

impl Tally {
    /// Number of addresses with a correct LLVM name.
    fn compared(&self) -> usize {
        self.equal + self.alias + self.different
    }

    /// Adds a line to show, up to the limit of its kind.
    fn note(&mut self, kind: &str, count: usize, text: impl FnOnce() -> String) {
        if count <= SHOWN {
            self.notes.push(format!("    {kind}: {}", text()));
        }
    }

    fn add(&mut self, other: &Tally) {
        self.addresses += other.addresses;
        self.equal += other.equal;
        self.alias += other.alias;
        self.stretched += other.stretched;
        self.unnamed += other.unnamed;
        self.different += other.different;
    }
}

/// LLVM's data for a file.
struct Truth {
    /// Names by address, of symbols in code sections, sorted.
    names: BTreeMap<u64, Vec<String>>,
    /// The addresses of those that are external.
    external: BTreeSet<u64>,
    function_starts: Vec<u64>,
}

impl Truth {
    /// Whether llvm-nm has a symbol at or before an address, in its section.
    fn names_up_to(&self, address: u64, code: &[Range<Svma>]) -> bool {
        let section = code.iter().find(|section| section.contains(&Svma(address))).unwrap();
        self.names.range(section.start.0..=address).next().is_some()
    }
}

#[test]
fn names_match_llvm() {
    let Some((dir, files)) = crate::real_macho::files() else { return };
    let (mut total, mut images) = (Tally::default(), 0);
    eprintln!(
        "{:>9} {:>8} {:>8} {:>8} {:>7} {:>6} {:>9} {:>8} {:>9}  {:<7} file",
        "symbols",
        "exports",
        "compared",
        "equal",
        "alias",
        "differ",
        "stretched",
        "unnamed",
        "µs/parse",
        "cpu"
    );
    for path in files {
        let file = ImageBytes::new(std::fs::read(&path).unwrap());
        for slice in macho::slices(file.bytes()).unwrap_or_default() {
            let range = slice.range.start as usize..slice.range.end as usize;
            let Some(bytes) = file.bytes().get(range) else { continue };
            let shown = path.strip_prefix(&dir).unwrap().display().to_string();
            let cpu = match slice.cpu_type {
                CPU_ARM64 => "arm64",
                CPU_X86_64 => "x86_64",
                _ => "other",
            };
            let tally = compare(&ImageBytes::new(bytes.to_vec()), cpu, &shown);
            images += 1;
            total.add(&tally);
        }
    }
    assert!(images >= IMAGES_MIN, "{images} Mach-O images below STACKPROF_MACHO_DIR");
    let share = share(&total);
    let Tally { addresses, equal, alias, stretched, unnamed, different, .. } = total;
    eprintln!(
        "\n{images} images, {addresses} addresses, seed {}:
  {equal:>7} have the name that llvm-symbolizer gives
  {alias:>7} have another name that llvm-nm gives the same function
  {different:>7} differ: {:.4} % of the {} compared are the same
  {unnamed:>7} not compared: no symbol up to there in their section (stubs), and no name on either side
  {stretched:>7} not compared: in functions without a symbol, where LLVM shows the name of the function
          before and stackprof shows none, or an export",
        seed(),
        share * 100.0,
        total.compared()
    );
    assert!(share >= EQUAL_MIN);
}

/// Removes the symbol table and compares the remaining names; returns their number.
fn check_exports(bytes: &ImageBytes, truth: &Truth, shown: &str) -> usize {
    let mut stripped = bytes.bytes().to_vec();
    let mut at = 32;
    while stripped[at..at + 4] != [2, 0, 0, 0] {
        at += u32::from_le_bytes(stripped[at + 4..at + 8].try_into().unwrap()) as usize;
    }
    stripped[at + 12..at + 16].fill(0); // nsyms
    let table = SymbolTable::parse(&ImageBytes::new(stripped));
    let mut exported = BTreeSet::new();
    for symbol in table.iter().flat_map(SymbolTable::symbols) {
        let name = String::from_utf8(symbol.name.to_vec()).unwrap();
        assert!(truth.names[&symbol.start.0].contains(&name), "{shown}: {name}");
        let end = truth.function_starts.iter().find(|start| **start > symbol.start.0);
        assert!(end.is_none_or(|end| symbol.end.0 <= *end), "{shown}: {name} is stretched");
        exported.insert(symbol.start.0);
    }
    assert_eq!(exported, truth.external, "{shown}");
    exported.len()
}

fn share(tally: &Tally) -> f64 {
    (tally.equal + tally.alias) as f64 / tally.compared().max(1) as f64
}

fn compare(bytes: &ImageBytes, cpu: &str, shown: &str) -> Tally {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes.bytes()).unwrap();
    let macho = MachO::parse(bytes.bytes()).unwrap();
    let started = Instant::now();
    let table = SymbolTable::parse(bytes);
    let parse_us = started.elapsed().as_micros();
    let symbols = table.as_ref().map_or(0, SymbolTable::len);

    let code: Vec<Range<Svma>> = macho.code.into_iter().flatten().collect();
    let addresses = random_addresses(&code, shown);
    let truth = truth(file.path(), &code);
    let expected = symbolizer(file.path(), &addresses);
    let exports = check_exports(bytes, &truth, shown);
    let mut tally = Tally { addresses: addresses.len(), ..Tally::default() };
    for (&address, llvm) in addresses.iter().zip(expected) {
        let found = table.as_ref().map_err(Clone::clone).and_then(|table| table.lookup(Svma(address)));
        if let Ok(symbol) = &found {
            assert!(!demangle(&symbol.name).is_empty());
        }
        let ours = found.as_ref().ok().map(|symbol| String::from_utf8(symbol.name.to_vec()).unwrap());
        let start = truth.names.range(..=address).next_back().map(|(start, _)| *start);
        let function = truth.function_starts.partition_point(|start| *start <= address).checked_sub(1);
        let function = function.map(|index| truth.function_starts[index]);
        let text = || format!("{address:#x} is {ours:?} here, {llvm:?} there");
        match (&ours, &llvm) {
            (Some(ours), Some(llvm)) if ours == llvm => tally.equal += 1,
            (Some(ours), Some(_)) if start.is_some_and(|start| truth.names[&start].contains(ours)) => {
                assert_eq!(found.unwrap().start.0, start.unwrap());
                tally.alias += 1;
                tally.note("alias", tally.alias, text);
            }
            (None, None) if !truth.names_up_to(address, &code) => tally.unnamed += 1,
            // LLVM's name is that of a previous function. A name here is an export, at the start of this
            // function.
            _ if function > start
                && llvm.as_ref().is_none_or(|llvm| truth.names[&start.unwrap()].contains(llvm))
                && found.as_ref().map_or(true, |symbol| Some(symbol.start.0) == function) =>
            {
                assert!(found.is_ok() || matches!(found, Err(Why::NotCovered | Why::NoSymbols)));
                tally.stretched += 1;
                tally.note("stretched", tally.stretched, || {
                    format!("{}; function {:#x}", text(), function.unwrap())
                });
            }
            _ => {
                tally.different += 1;
                tally.note("DIFFERENT", 0, text);
            }
        }
    }
    let Tally { equal, alias, different, stretched, unnamed, .. } = tally;
    let compared = tally.compared();
    eprintln!(
        "{symbols:>9} {exports:>8} {compared:>8} {equal:>8} {alias:>7} {different:>6} {stretched:>9} {unnamed:>8} {parse_us:>9}  {cpu:<7} {shown}"
    );
    for note in &tally.notes {
        eprintln!("{note}");
    }
    assert!(share(&tally) >= EQUAL_MIN || compared == 0, "{shown}: {:.5} equal", share(&tally));
    tally
}

fn seed() -> u64 {
    std::env::var("STACKPROF_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// Addresses spread evenly over the code, the same in each run.
fn random_addresses(code: &[Range<Svma>], shown: &str) -> Vec<u64> {
    let sizes: Vec<u64> = code.iter().map(|section| section.end - section.start).collect();
    let all: u64 = sizes.iter().sum();
    let seed = shown.bytes().fold(seed(), |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let mut random = Rng::new(seed);
    let address = |mut into: u64| {
        for (section, size) in code.iter().zip(&sizes) {
            if into < *size {
                return section.start.0 + into;
            }
            into -= size;
        }
        unreachable!("below the sum of sizes")
    };
    if all == 0 { Vec::new() } else { (0..ADDRESSES).map(|_| address(random.next() % all)).collect() }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn truth(file: &Path, code: &[Range<Svma>]) -> Truth {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut names: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut external = BTreeSet::new();
    for line in output(Command::new("llvm-nm-19").arg("--defined-only").arg(file)).lines() {
        let mut fields = line.splitn(3, ' ');
        let (address, kind, name) = (fields.next(), fields.next(), fields.next());
        let (Some(address), Some(name)) = (address.and_then(hex), name) else { continue };
        if code.iter().any(|section| section.contains(&Svma(address))) {
            names.entry(address).or_default().push(name.strip_prefix('_').unwrap_or(name).to_string());
            // T in `__text`, S in other sections.
            if kind.is_some_and(|kind| matches!(kind, "T" | "S")) {
                external.insert(address);
            }
        }
    }
    let starts = output(Command::new("llvm-objdump-19").args(["--macho", "--function-starts"]).arg(file));
    let mut function_starts: Vec<u64> = starts.lines().filter_map(hex).collect();
    function_starts.sort_unstable();
    Truth { names, external, function_starts }
}

/// The name of each address; `None` for `??`.
fn symbolizer(file: &Path, addresses: &[u64]) -> Vec<Option<String>> {
    let mut command = Command::new("llvm-symbolizer-19");
    command.args(["--no-demangle", "--no-inlines", "--functions=linkage"]).arg("--obj").arg(file);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()).unwrap());
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    writer.join().unwrap();
    // For each address the name, the source location, and an empty line.
    let lines: Vec<&str> = output.lines().collect();
    let names: Vec<_> =
        lines.chunks(3).map(|chunk| (chunk[0] != "??").then(|| chunk[0].to_string())).collect();
    assert_eq!(names.len(), addresses.len());
    names
}
