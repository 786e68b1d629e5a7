//! Names for code without a symbol: the one format for everything that writes or reads them.
//!
//! Input: a module and bytes from its lowest stated address, or a name. Output: the name, or its parts. Not for:
//! finding the start of a function.

use std::fmt;

/// Code of a module without a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleOffset<'a> {
    /// A function of which only the start is known: `[module:fn+0x1f40]`.
    Function {
        /// File name of the module.
        module: &'a str,
        /// Its first address, in bytes from the module's lowest stated address.
        start: u64,
    },
    /// A single address: `[module+0x1f40]`.
    Address {
        /// File name of the module.
        module: &'a str,
        /// Bytes from the module's lowest stated address.
        offset: u64,
    },
}

/// Separator between module and offset in names of functions.
const FUNCTION: &str = ":fn";

impl<'a> ModuleOffset<'a> {
    /// Parses a name; `None` if it has another form.
    #[must_use]
    pub fn parse(name: &'a str) -> Option<ModuleOffset<'a>> {
        let (module, offset) = name.strip_prefix('[')?.strip_suffix(']')?.rsplit_once("+0x")?;
        if !offset.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let offset = u64::from_str_radix(offset, 16).ok()?;
        Some(match module.strip_suffix(FUNCTION) {
            Some(module) => ModuleOffset::Function { module, start: offset },
            None => ModuleOffset::Address { module, offset },
        })
    }

    /// File name of the module.
    #[must_use]
    pub fn module(&self) -> &'a str {
        match self {
            ModuleOffset::Function { module, .. } | ModuleOffset::Address { module, .. } => module,
        }
    }
}

impl fmt::Display for ModuleOffset<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names of the kernel already have brackets.
        let module = self.module().trim_start_matches('[').trim_end_matches(']');
        match self {
            ModuleOffset::Function { start, .. } => write!(f, "[{module}{FUNCTION}+{start:#x}]"),
            ModuleOffset::Address { offset, .. } => write!(f, "[{module}+{offset:#x}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        for (offset, name) in [
            (
                ModuleOffset::Function { module: "libruby.so.3.1", start: 0x9_dd20 },
                "[libruby.so.3.1:fn+0x9dd20]",
            ),
            (ModuleOffset::Address { module: "a+0x1", offset: 0xff }, "[a+0x1+0xff]"),
            (ModuleOffset::Address { module: "a:b", offset: u64::MAX }, "[a:b+0xffffffffffffffff]"),
        ] {
            assert_eq!(offset.to_string(), name);
            assert_eq!(ModuleOffset::parse(name), Some(offset));
        }
        assert_eq!(ModuleOffset::Address { module: "[vdso]", offset: 1 }.to_string(), "[vdso+0x1]");
    }

    #[test]
    fn other_names_are_not_parsed() {
        for name in ["", "[]", "[unknown]", "main", "[a+0x]", "[a+0x+1]", "[a+0xg]", "[a+0x10", "a+0x10]"] {
            assert_eq!(ModuleOffset::parse(name), None, "{name}");
        }
    }
}
