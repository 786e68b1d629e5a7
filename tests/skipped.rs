//! Lists what a run of `cargo test` skipped, by reason, and what would bring it. Cargo runs test programs by name: after
//! all those that can skip.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

#[path = "support/skip.rs"]
mod skip;

fn main() -> ExitCode {
    // Another runner asks for the names of tests; there are none.
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let list = skip::list();
    let lines = std::fs::read_to_string(&list).unwrap_or_default();
    let _ = std::fs::remove_file(&list);
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (test, reason) in lines.lines().filter_map(|line| line.strip_prefix("SKIP ")?.split_once(": ")) {
        reasons.entry(reason).or_default().push(test);
    }
    let mut text = match reasons.len() {
        0 => "\nnothing was skipped\n".to_owned(),
        number => format!("\nskipped, for {number} reasons:\n"),
    };
    for (reason, mut tests) in reasons {
        tests.sort_unstable();
        tests.dedup();
        text += &format!("  {reason}\n    {}\n", tests.join(" "));
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
