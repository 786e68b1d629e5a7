//! Names of kernel functions, from the kernel's list of symbols.
//!
//! Input: the kernel's answer for each address, or else the text of `/proc/kallsyms` (proc(5)): `ffffffff81000000
//! T name`, and `[module]` after the names of modules. Output: names for addresses, marked `_[k]` like by
//! stackcollapse-perf. Not for: inlined functions or lines, which require the kernel's debug file.

use std::fmt::Write;
use std::io::{self, Read};

use super::{LineInfo, Why};

/// Suffix of the kernel's frames.
pub const MARK: &str = "_[k]";

/// Name of kernel code without a symbol.
pub const UNNAMED: &str = "[kernel]_[k]";

/// Bytes read at once; a longer line is no symbol.
const CHUNK_BYTES: usize = 64 << 10;

/// The nearest symbol before an address.
#[derive(Clone, Debug)]
struct Nearest {
    start: u64,
    /// The text after the type: the name, and optionally the module.
    name: Box<[u8]>,
}

/// Names kernel code at ascending addresses, from a list of symbols. Stores only what these need of the list,
/// which is ten megabytes long. Malformed lines are skipped, and so are hidden addresses (`kernel.kptr_restrict`),
/// which are 0.
///
/// # Errors
/// The list cannot be read to its end.
pub fn name(list: &mut dyn Read, addresses: &[u64]) -> io::Result<Vec<Result<Vec<LineInfo>, Why>>> {
    // By address: the nearest symbol after the preceding address.
    let mut nearest: Vec<Option<Nearest>> = vec![None; addresses.len()];
    let mut any = false;
    for_each_line(list, |line| {
        let Some((start, name)) = symbol(line) else { return };
        any = true;
        let behind = addresses.partition_point(|address| *address < start);
        let Some(slot) = nearest.get_mut(behind) else { return };
        // Of several names of one address the first counts, like in perf.
        if slot.as_ref().is_none_or(|known| known.start < start) {
            *slot = Some(Nearest { start, name: name.into() });
        }
    })?;
    let mut before = None;
    let named = nearest.into_iter().map(|nearest| {
        before = nearest.or(before.take());
        match &before {
            Some(symbol) => Ok(marked(&symbol.name)),
            None if any => Err(Why::NotCovered),
            None => Err(Why::NoSymbols),
        }
    });
    Ok(named.collect())
}

/// The marked name of one address, as reported by the kernel.
pub fn marked_name(name: Option<String>) -> Result<Vec<LineInfo>, Why> {
    name.map(|name| marked(name.as_bytes())).ok_or(Why::NotCovered)
}

/// The function of a symbol, marked as the kernel's. BPF programs (`[bpf]`) are no module.
fn marked(symbol: &[u8]) -> Vec<LineInfo> {
    let symbol = String::from_utf8_lossy(symbol);
    let mut words = symbol.split_ascii_whitespace();
    let mut name = words.next().unwrap_or_default().to_owned();
    // Writing into a string cannot fail.
    let _ = match words.next().filter(|module| *module != "[bpf]") {
        Some(module) => write!(name, " {module}{MARK}"),
        None => write!(name, "{MARK}"),
    };
    vec![LineInfo { name: Some(name.into()), ..LineInfo::default() }]
}

fn for_each_line(list: &mut dyn Read, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut filled = 0;
    loop {
        let read = match list.read(buffer.get_mut(filled..).unwrap_or_default()) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        filled += read;
        let mut rest = buffer.get(..filled).unwrap_or_default();
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, behind) = rest.split_at(end);
            each(line);
            rest = behind.get(1..).unwrap_or_default();
        }
        if read == 0 {
            // The last line may lack a newline; a full chunk without one is no line.
            if filled < CHUNK_BYTES {
                each(rest);
                return Ok(());
            }
            filled = 0;
            continue;
        }
        let left = rest.len();
        buffer.copy_within(filled - left..filled, 0);
        filled = left;
    }
}

/// Address, and text after the type, of a line for code.
fn symbol(line: &[u8]) -> Option<(u64, &[u8])> {
    let space = memchr::memchr(b' ', line.get(..17.min(line.len()))?)?;
    let mut address = 0;
    for digit in line.get(..space)? {
        address = address << 4 | u64::from(char::from(*digit).to_digit(16)?);
    }
    let [b't' | b'T' | b'w' | b'W', b' ', name @ ..] = line.get(space + 1..)? else { return None };
    (address > 0).then_some((address, name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rng::Rng;

    fn names(text: &str, addresses: &[u64]) -> Vec<Result<String, Why>> {
        let names = name(&mut text.as_bytes(), addresses).unwrap();
        let first = |functions: Vec<LineInfo>| functions[0].name.as_deref().unwrap().to_owned();
        names.into_iter().map(|name| name.map(first)).collect()
    }

    #[test]
    fn addresses_have_the_name_of_the_function_before_them() {
        let text = "ffffffff81000000 T _stext\nffffffff81000000 T _text\nffffffff81000100 t do_work\n\
            ffffffff81000200 D data\nnonsense\nffffffffc0000000 t poll_it\t[driver]";
        let addresses =
            [0xffff_ffff_8000_0000, 0xffff_ffff_8100_0001, 0xffff_ffff_8100_0250, 0xffff_ffff_c000_0000];
        let wanted = ["_stext_[k]", "do_work_[k]", "poll_it [driver]_[k]"].map(|name| Ok(name.to_owned()));
        let found = names(text, &addresses);
        assert_eq!(found[0], Err(Why::NotCovered));
        assert_eq!(found[1..], wanted);
    }

    #[test]
    fn lists_in_any_order_and_of_any_length_give_the_nearest_name() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut starts: Vec<u64> = (0..rng.within(1, 6_000)).map(|_| rng.within(1, 1 << 30)).collect();
            let text: String = starts.iter().map(|start| format!("{start:016x} t f{start:x}\n")).collect();
            let mut addresses: Vec<u64> = (0..100).map(|_| rng.within(1, 1 << 30)).collect();
            starts.sort_unstable();
            addresses.sort_unstable();
            for (address, found) in addresses.iter().zip(names(&text, &addresses)) {
                let nearest =
                    starts.partition_point(|start| start <= address).checked_sub(1).map(|at| starts[at]);
                let wanted = nearest.map(|start| format!("f{start:x}_[k]")).ok_or(Why::NotCovered);
                assert_eq!(found, wanted, "seed {seed}, {address:x}");
            }
        }
    }

    #[test]
    fn a_line_without_an_end_is_no_symbol() {
        let text = "x".repeat(3 * CHUNK_BYTES) + "\nffffffff81000000 T _stext\n";
        assert_eq!(names(&text, &[u64::MAX]), [Ok("_stext_[k]".to_owned())]);
    }

    #[test]
    fn names_reported_by_the_kernel_equal_those_of_the_list() {
        let told =
            |name: &str| marked_name(Some(name.to_owned())).unwrap()[0].name.as_deref().unwrap().to_owned();
        let text = "ffffffffc0000000 t poll_it\t[driver]\nffffffffc0000100 t bpf_prog_12_x\t[bpf]\n";
        let listed = names(text, &[0xffff_ffff_c000_0000, 0xffff_ffff_c000_0100]);
        assert_eq!(listed, [Ok(told("poll_it [driver]")), Ok(told("bpf_prog_12_x"))]);
        assert_eq!(told("bpf_prog_12_x"), "bpf_prog_12_x_[k]");
        assert_eq!(super::marked_name(None).map(|_| ()), Err(Why::NotCovered));
    }

    #[test]
    fn hidden_addresses_name_nothing() {
        let text = "0000000000000000 T _stext\n0000000000000000 T _text\n";
        assert_eq!(names(text, &[0xffff_ffff_8100_0001]), [Err(Why::NoSymbols)]);
    }
}
