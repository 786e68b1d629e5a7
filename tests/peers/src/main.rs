//! `peers {blazesym|blazesym-lines|addr2line} FILE LIST`: names the addresses that LIST has in
//! hex, one a line, with the inlined functions, and prints the names.

use std::fmt::Write as _;
use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, tool, file, list] = args.as_slice() else { panic!("peers TOOL FILE LIST") };
    let list = std::fs::read_to_string(list).expect("the list is readable");
    let hex = |line: &str| u64::from_str_radix(line.trim_start_matches("0x"), 16).expect("hex");
    let addresses: Vec<u64> = list.lines().map(hex).collect();
    let out = match tool.as_str() {
        "addr2line" => with_addr2line(file, &addresses),
        tool => with_blazesym(file, &addresses, tool == "blazesym-lines"),
    };
    print!("{out}");
}

fn with_blazesym(file: &str, addresses: &[u64], lines: bool) -> String {
    use blazesym::symbolize::{Input, Symbolized, Symbolizer, source};
    let symbolizer = Symbolizer::builder().enable_code_info(lines).enable_inlined_fns(true).build();
    let mut elf = source::Elf::new(Path::new(file));
    elf.debug_syms = true;
    let found = symbolizer.symbolize(&source::Source::Elf(elf), Input::VirtOffset(addresses));
    let mut out = String::new();
    for found in found.expect("the file is readable") {
        if let Symbolized::Sym(symbol) = found {
            for inlined in symbol.inlined.iter().rev() {
                let _ = writeln!(out, "{}", inlined.name);
            }
            let _ = writeln!(out, "{}", symbol.name);
        }
        out.push('\n');
    }
    out
}

fn with_addr2line(file: &str, addresses: &[u64]) -> String {
    let loader = addr2line::Loader::new(file).expect("the file is readable");
    let mut out = String::new();
    for address in addresses {
        let mut any = false;
        if let Ok(mut frames) = loader.find_frames(*address) {
            while let Ok(Some(frame)) = frames.next() {
                if let Some(name) = frame.function {
                    any = true;
                    let _ = writeln!(out, "{}", name.demangle().unwrap_or_default());
                }
            }
        }
        if !any && let Some(name) = loader.find_symbol(*address) {
            let _ = writeln!(out, "{}", addr2line::demangle_auto(name.into(), None));
        }
        out.push('\n');
    }
    out
}
