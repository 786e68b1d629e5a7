//! `stackprof dump symbols FILE --addresses LIST`: names for a list of addresses in a file, for comparison with
//! other tools. Hidden from the help: profiling does not need it.
//!
//! Output as of `llvm-symbolizer`: the functions of an address, innermost first, each followed by its `file:line`
//! if lines are requested, and an empty line.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use super::args::{Addresses, Verbosity};
use super::file::OutputFiles;
use super::{messages, symbolication, system};
use crate::binary::files;
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::escape::escape_line;
use crate::sources::LocalFiles;
use crate::symbol;

/// Prints the names.
///
/// # Errors
/// One line: an unreadable file, or a line that is not an address.
pub fn run(request: &Addresses) -> Result<()> {
    system::restrict_to_symbolizing(&OutputFiles::new());
    let input = |path: &Path, why: &str| Error::new(ErrorKind::Input, format!("{}: {why}", path.display()));
    let mut listed = String::new();
    let unreadable = |path: &Path, error: std::io::Error| input(path, &io_text(&error)).caused_by(error);
    if request.list == Path::new("-") {
        std::io::stdin().read_to_string(&mut listed).map_err(|error| unreadable(&request.list, error))?;
    } else {
        listed = std::fs::read_to_string(&request.list).map_err(|error| unreadable(&request.list, error))?;
    }
    let address = |line: &str| u64::from_str_radix(line.trim().trim_start_matches("0x"), 16);
    let listed: Vec<u64> = listed
        .lines()
        .map(|line| {
            address(line).map_err(|_| input(&request.list, &format!("`{line}`: expected an address in hex")))
        })
        .collect::<Result<_>>()?;
    let path = std::fs::canonicalize(&request.file).map_err(|error| unreadable(&request.file, error))?;
    let path = path.to_string_lossy().into_owned();
    let bytes = files::map_regular(Path::new(&path))
        .map_err(|why| input(&request.file, &why.to_string()).caused_by(why))?;
    let named = symbol::name_addresses(
        &path,
        bytes,
        &listed,
        &symbolication::options(request.symbol_options, &LocalFiles),
    );
    let mut out = String::with_capacity(listed.len() * 64);
    for functions in &named.names {
        match functions {
            Ok(functions) => {
                for function in functions.iter().rev() {
                    let _ = writeln!(out, "{}", escape_line(function.name.as_deref().unwrap_or("??")));
                    if request.symbol_options.lines {
                        let file = function.file.as_deref().unwrap_or("??");
                        let _ = writeln!(out, "{}:{}", escape_line(file), function.line);
                    }
                }
            }
            Err(_) => out.push_str(if request.symbol_options.lines { "??\n??:0\n" } else { "??\n" }),
        }
        out.push('\n');
    }
    messages::result(&out)?;
    if request.verbosity == Verbosity::Verbose {
        for problem in &named.problems {
            messages::note(problem);
        }
    }
    Ok(())
}
