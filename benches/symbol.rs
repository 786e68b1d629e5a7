//! Naming 20,000 addresses of this very program, inlined functions included, over and over.
//!
//! Input: its own file and addresses from a fixed seed. Output: microseconds an address, median
//! of the rounds, and how many were named (padding between functions is not); exit 1 below 95 %. Each round begins with
//! nothing known. It is one of the programs whose cost `scripts/own-performance.sh` watches. `--rounds N` sets the
//! rounds.

#![allow(clippy::print_stdout)]

use std::process::ExitCode;
use std::time::Instant;

use object::{Object as _, ObjectSection as _};
use stackprof::binary::Files as _;
use stackprof::sources::LocalFiles;
use stackprof::symbol::{self, Options};

const ADDRESSES: usize = 20_000;
const SEED: u64 = 0x7379_6d62;
const ROUNDS: usize = 25;

/// Addresses all over the program's code: xorshift64* from a fixed seed.
fn addresses(file: &[u8]) -> Vec<u64> {
    let object = object::File::parse(file).expect("this program's file is an object");
    let text = object.section_by_name(".text").or_else(|| object.section_by_name("__text"));
    let text = text.expect("this program has code");
    let mut state = SEED;
    (0..ADDRESSES)
        .map(|_| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let random = u128::from(state.wrapping_mul(0x2545_f491_4f6c_dd1d));
            text.address() + ((random * u128::from(text.size())) >> 64) as u64
        })
        .collect()
}

fn main() -> ExitCode {
    // `cargo bench` and `cargo test` add --bench or --test; they mean nothing here.
    let arguments: Vec<String> = std::env::args().collect();
    let asked = arguments.iter().position(|word| word == "--rounds").and_then(|at| arguments.get(at + 1));
    let rounds = match asked.map(|rounds| rounds.parse()) {
        Some(Ok(rounds)) if rounds > 0 => rounds,
        Some(_) => {
            println!("--rounds: expected a whole number from 1 on");
            return ExitCode::FAILURE;
        }
        None if cfg!(debug_assertions) => 1,
        None => ROUNDS,
    };
    let path = std::env::current_exe().expect("this program has a path");
    let addresses = addresses(&std::fs::read(&path).expect("this program's file can be read"));
    let path = path.to_string_lossy().into_owned();
    let options = Options { inlines: true, files: &LocalFiles, ..Options::default() };
    let mut times = Vec::new();
    let mut named = 0;
    for _ in 0..rounds {
        let bytes = LocalFiles.open(&path).expect("this program's file can be opened");
        let begun = Instant::now();
        let found = symbol::name_addresses(&path, bytes, &addresses, &options);
        times.push(begun.elapsed().as_secs_f64() * 1e6 / ADDRESSES as f64);
        named = found.names.iter().filter(|names| names.is_ok()).count();
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{:.2} us an address, median of {rounds} rounds; {named} of {ADDRESSES} named",
        times[times.len() / 2]
    );
    if named * 100 >= ADDRESSES * 95 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
