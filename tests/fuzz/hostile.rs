//! Fuzzes the target of `tests/support/hostile.rs` that `STACKPROF_FUZZ_TARGET` names; with
//! `STACKPROF_FUZZ_CORPUS`, its sound inputs are written to that folder first.
#![no_main]

#[path = "../support/hostile.rs"]
mod hostile;

use std::env::var;
use std::sync::LazyLock;

use hostile::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = var("STACKPROF_FUZZ_TARGET").expect("STACKPROF_FUZZ_TARGET names a target");
    *TARGETS.iter().find(|(known, ..)| *known == name).expect("STACKPROF_FUZZ_TARGET names a target")
});

fuzz_target!(
    init: {
        if let Ok(corpus) = var("STACKPROF_FUZZ_CORPUS") {
            for (index, seed) in TARGET.1.iter().enumerate() {
                std::fs::write(format!("{corpus}/seed-{index}"), seed).expect("the folder can be written");
            }
        }
    },
    |data: &[u8]| (TARGET.2)(data)
);
