//! How code without a name is called: the one rule for all that write such names or read them.
//!
//! Input: a module and bytes from its lowest stated address, or a name. Output: the name, or
//! what it says. Not for: finding out where a function begins.

use std::fmt;

/// Code of a module that has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// A function of which only its beginning is known: `[module:fn+0x1f40]`.
    Function {
        /// File name of the module.
        module: &'a str,
        /// Its first address, in bytes from the module's lowest stated address.
        start: u64,
    },
    /// One address of it: `[module+0x1f40]`.
    Address {
        /// File name of the module.
        module: &'a str,
        /// Bytes from the module's lowest stated address.
        offset: u64,
    },
}

/// What stands between module and offset where that is a function's.
const FUNCTION: &str = ":fn";

impl<'a> Place<'a> {
    /// What a name says, if it is of this form.
    #[must_use]
    pub fn parse(name: &'a str) -> Option<Place<'a>> {
        let (module, offset) = name.strip_prefix('[')?.strip_suffix(']')?.rsplit_once("+0x")?;
        if !offset.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let offset = u64::from_str_radix(offset, 16).ok()?;
        Some(match module.strip_suffix(FUNCTION) {
            Some(module) => Place::Function { module, start: offset },
            None => Place::Address { module, offset },
        })
    }

    /// File name of the module.
    #[must_use]
    pub fn module(&self) -> &'a str {
        match self {
            Place::Function { module, .. } | Place::Address { module, .. } => module,
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The kernel's own names have brackets already.
        let module = self.module().trim_start_matches('[').trim_end_matches(']');
        match self {
            Place::Function { start, .. } => write!(f, "[{module}{FUNCTION}+{start:#x}]"),
            Place::Address { offset, .. } => write!(f, "[{module}+{offset:#x}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (place, name) in [
            (Place::Function { module: "libruby.so.3.1", start: 0x9_dd20 }, "[libruby.so.3.1:fn+0x9dd20]"),
            (Place::Address { module: "a+0x1", offset: 0xff }, "[a+0x1+0xff]"),
            (Place::Address { module: "a:b", offset: u64::MAX }, "[a:b+0xffffffffffffffff]"),
        ] {
            assert_eq!(place.to_string(), name);
            assert_eq!(Place::parse(name), Some(place));
        }
        assert_eq!(Place::Address { module: "[vdso]", offset: 1 }.to_string(), "[vdso+0x1]");
    }

    #[test]
    fn other_names_say_no_place() {
        for name in ["", "[]", "[unknown]", "main", "[a+0x]", "[a+0x+1]", "[a+0xg]", "[a+0x10", "a+0x10]"] {
            assert_eq!(Place::parse(name), None, "{name}");
        }
    }
}
