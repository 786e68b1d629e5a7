//! Instructions per frame, counted by valgrind: the same on a busy machine as on an idle
//! one. This program runs itself for each number; only [`counted_passes`] is counted.

use std::process::Command;

use crate::linux::{State, Walker, describe};
use crate::stacks::{Program, Set};

/// The argument that makes this program walk one set: walker and set.
pub(super) const ONE: &str = "--one";
const PASSES: usize = 20;

/// Prints the table of the sets with warm caches.
pub(super) fn table(program: &Program, sets: &[Set]) {
    println!("instructions per frame, by valgrind");
    for (index, set) in sets.iter().enumerate().filter(|(_, set)| !set.cold) {
        let (mut line, frames) = describe(program, set);
        for walker in set.walkers() {
            let Some(count) = count(*walker, index) else {
                return println!("SKIP valgrind is not installed, or could not run this program");
            };
            let per_frame = count as f64 / (PASSES * frames) as f64;
            line += &format!("  {} {per_frame:.1}", walker.name());
        }
        println!("{line}");
    }
}

fn count(walker: Walker, set: usize) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_passes*"])
        .arg(std::env::current_exe().ok()?)
        .args([ONE, walker.name(), &set.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

/// Walks one set as the arguments say.
pub(super) fn one(program: &Program, sets: &[Set], args: &[String]) {
    let [walker, set] = args else { return };
    let walker = *Walker::ALL.iter().find(|known| known.name() == walker).unwrap();
    let set = &sets[set.parse::<usize>().unwrap()];
    let mut state = State::new(walker, program);
    set.stacks.iter().for_each(|stack| {
        state.walk(stack);
    });
    counted_passes(&mut state, set);
}

#[inline(never)]
fn counted_passes(state: &mut State<'_>, set: &Set) {
    for _ in 0..PASSES {
        for stack in &set.stacks {
            state.walk(stack);
        }
    }
}
