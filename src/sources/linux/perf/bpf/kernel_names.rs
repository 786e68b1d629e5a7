//! Names of kernel functions: a BPF program formats one address at a time. The list of all symbols
//! (`/proc/kallsyms`) has more than 100,000 lines and takes the kernel some 40 ms to write; a name takes a few
//! microseconds.
//!
//! Input: addresses. Output: names, with their modules, as in the list. Source: lib/vsprintf.c, `%ps` ("symbolic
//! pointers without offsets"), by the helper `bpf_snprintf`.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use super::bpf_sys::{self, Array, ProgramKind};
use super::instructions::{CALL, EXIT, MOVE, SNPRINTF, load_value, op};

/// Size of the value exchanged with the program: the address, then the NUL-terminated name.
const VALUE_BYTES: usize = 8 + NAME_BYTES;
/// Room for the longest name (`KSYM_NAME_LEN` in include/linux/kallsyms.h, 511); longer ones are truncated.
const NAME_BYTES: usize = 504;
/// The symbol list (proc(5)).
pub(crate) const LIST: &str = "/proc/kallsyms";
/// For more addresses the list is read: it costs no more than this many names.
const ADDRESSES_MAX: usize = 4096;

/// The loaded program, and the array with its input addresses and output names. The program holds the array with
/// its format.
struct Namer {
    program: OwnedFd,
    value: Array,
}

impl Namer {
    fn load() -> io::Result<Namer> {
        let format = Array::create(8, true)?;
        format.put(b"%ps\0\0\0\0\0")?;
        format.freeze()?;
        let value = Array::create(VALUE_BYTES, false)?;
        let program = program(format.descriptor().as_raw_fd(), value.descriptor().as_raw_fd());
        Ok(Namer { program: bpf_sys::load_program(ProgramKind::Call, &program)?, value })
    }
}

/// Descriptors for naming kernel functions after privileges are dropped: they keep the rights of the process at
/// the time of opening.
struct PreparedNames {
    namer: Option<Mutex<Namer>>,
    list: Option<File>,
}

static PREPARED: OnceLock<PreparedNames> = OnceLock::new();

/// Loads the program and opens the list, as far as permitted.
pub(crate) fn prepare() {
    PREPARED.get_or_init(|| PreparedNames {
        namer: Namer::load().ok().map(Mutex::new),
        list: File::open(LIST).ok(),
    });
}

/// The kernel's symbol list, from its beginning.
///
/// # Errors
/// Errors of open(2).
pub(crate) fn list() -> io::Result<File> {
    let Some(list) = PREPARED.get().and_then(|prepared| prepared.list.as_ref()) else {
        return File::open(LIST);
    };
    let mut list = list.try_clone()?;
    list.rewind()?;
    Ok(list)
}

/// The name of each address; `None` for an address without a symbol.
///
/// # Errors
/// Errors of bpf(2): EPERM without CAP_BPF and CAP_PERFMON, EINVAL before Linux 5.14.
pub(crate) fn of(addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(io::ErrorKind::Unsupported.into());
    }
    match PREPARED.get().and_then(|prepared| prepared.namer.as_ref()) {
        Some(namer) => {
            let namer = namer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            names(&namer, addresses)
        }
        None => names(&Namer::load()?, addresses),
    }
}

fn names(namer: &Namer, addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
    let Namer { program, value } = namer;
    let mut bytes = [0; VALUE_BYTES];
    let mut names = Vec::with_capacity(addresses.len());
    for address in addresses {
        bytes.fill(0);
        bytes[..8].copy_from_slice(&address.to_ne_bytes());
        value.put(&bytes)?;
        bpf_sys::run_program(program)?;
        value.get(&mut bytes)?;
        names.push(name(&bytes[8..]));
    }
    Ok(names)
}

/// `snprintf(value + 8, NAME_BYTES, format, value, 8)`.
fn program(format: i32, value: i32) -> Vec<u64> {
    let mut program = Vec::new();
    program.extend(load_value(1, value, 8));
    program.push(op(MOVE, 2, 0, 0, NAME_BYTES as i32));
    program.extend(load_value(3, format, 0));
    program.extend(load_value(4, value, 0));
    program.extend([op(MOVE, 5, 0, 0, 8), op(CALL, 0, 0, 0, SNPRINTF), op(EXIT, 0, 0, 0, 0)]);
    program
}

/// Parses the output: an address before all symbols is formatted as a number.
fn name(written: &[u8]) -> Option<String> {
    let name = written.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    (!name.is_empty() && !name.starts_with("0x")).then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_number_is_no_name() {
        assert_eq!(name(b"do_work\0\0"), Some("do_work".to_owned()));
        assert_eq!(name(b"poll_it [driver]\0x"), Some("poll_it [driver]".to_owned()));
        assert_eq!(name(b"0x1234\0"), None);
        assert_eq!(name(b"\0\0"), None);
        assert_eq!(name(b"cut"), Some("cut".to_owned()));
    }

    #[test]
    fn names_are_those_of_the_list() {
        let list = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        // By address: all names of each.
        let mut symbols = std::collections::BTreeMap::new();
        for line in list.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(start), Some("t" | "T"), Some(name)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            // BPF programs of others may be unloaded before the query.
            if line.ends_with("[bpf]") {
                continue;
            }
            let start = u64::from_str_radix(start, 16).unwrap();
            let name = words.next().map_or(name.to_owned(), |module| format!("{name} {module}"));
            symbols.entry(start).or_insert_with(Vec::new).push(name);
        }
        symbols.remove(&0);
        let starts: Vec<u64> = symbols.keys().copied().step_by(97).take(1000).collect();
        let names = match of(&starts) {
            Ok(names) if !starts.is_empty() => names,
            Ok(_) => return crate::skip::not_here("the list of the kernel's symbols is hidden"),
            Err(error) => return crate::skip::not_here(&format!("bpf: {error}")),
        };
        for (start, name) in starts.iter().zip(names) {
            let name = name.unwrap();
            // The kernel chooses one of several names.
            assert!(symbols[start].contains(&name), "{start:x}: {name} instead of {:?}", symbols[start]);
        }
        assert_eq!(of(&[5]).unwrap(), [None]);
        assert!(of(&vec![0; ADDRESSES_MAX + 1]).is_err());
    }
}
