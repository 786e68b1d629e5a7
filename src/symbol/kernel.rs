//! Names of code in the kernel, from its own list of symbols.
//!
//! Input: the text of `/proc/kallsyms` (proc(5)): `ffffffff81000000 T name`, and `[module]` behind
//! the names of modules. Output: names for addresses, marked `_[k]` as stackcollapse-perf does.
//! Not for: inlined functions or lines, which would need the debug file of the kernel.

use std::fmt::Write;

use super::{LineInfo, Why};

/// What the kernel's frames end in.
pub const MARK: &str = "_[k]";

/// Code of the kernel without a name.
pub const UNNAMED: &str = "[kernel]_[k]";

/// Most symbols that are kept: a kernel with all its modules has a quarter of a million.
const MAX_SYMBOLS: usize = 1 << 21;

/// The functions of a kernel, sorted by address.
#[derive(Debug, Default)]
pub struct KernelSymbols<'t> {
    symbols: Vec<(u64, &'t str)>,
}

impl<'t> KernelSymbols<'t> {
    /// Reads the list. Lines of another form are left out; addresses that are hidden
    /// (`kernel.kptr_restrict`) are 0 and left out, too.
    #[must_use]
    pub fn parse(text: &'t [u8]) -> KernelSymbols<'t> {
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
        let mut symbols: Vec<(u64, &str)> = lines.filter_map(symbol).take(MAX_SYMBOLS).collect();
        // Of several names of one address the first counts, as perf has it.
        symbols.sort_by_key(|(address, _)| *address);
        symbols.dedup_by_key(|(address, _)| *address);
        KernelSymbols { symbols }
    }

    /// The function at an address, marked as the kernel's.
    ///
    /// # Errors
    /// Why it has no name.
    pub fn name(&self, address: u64) -> Result<Vec<LineInfo>, Why> {
        if self.symbols.is_empty() {
            return Err(Why::NoSymbols);
        }
        let behind = self.symbols.partition_point(|(start, _)| *start <= address);
        let Some((_, line)) = behind.checked_sub(1).and_then(|at| self.symbols.get(at)) else {
            return Err(Why::NotCovered);
        };
        let mut words = line.split_ascii_whitespace();
        let mut name = words.next().unwrap_or_default().to_owned();
        // `writeln!` into a string cannot fail.
        let _ = match words.next() {
            Some(module) => write!(name, " {module}{MARK}"),
            None => write!(name, "{MARK}"),
        };
        Ok(vec![LineInfo { name: Some(name.into()), ..LineInfo::default() }])
    }
}

/// Address, and what stands behind the kind, of a line that is of code.
fn symbol(line: &str) -> Option<(u64, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let (kind, name) = rest.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok().filter(|address| *address > 0)?;
    matches!(kind, "t" | "T" | "w" | "W").then_some((address, name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(symbols: &KernelSymbols<'_>, address: u64) -> Result<String, Why> {
        symbols.name(address).map(|functions| functions[0].name.as_deref().unwrap().to_owned())
    }

    #[test]
    fn addresses_have_the_name_of_the_function_before_them() {
        let text = b"ffffffff81000000 T _stext\nffffffff81000000 T _text\nffffffff81000100 t do_work\n\
            ffffffff81000200 D data\nnonsense\nffffffffc0000000 t poll_it\t[driver]\n";
        let symbols = KernelSymbols::parse(text);
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0001).unwrap(), "_stext_[k]");
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0250).unwrap(), "do_work_[k]");
        assert_eq!(name(&symbols, 0xffff_ffff_c000_0010).unwrap(), "poll_it [driver]_[k]");
        assert_eq!(name(&symbols, 0xffff_ffff_8000_0000), Err(Why::NotCovered));
    }

    #[test]
    fn hidden_addresses_name_nothing() {
        let symbols = KernelSymbols::parse(b"0000000000000000 T _stext\n0000000000000000 T _text\n");
        assert_eq!(name(&symbols, 0xffff_ffff_8100_0001), Err(Why::NoSymbols));
    }
}
