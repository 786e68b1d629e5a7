//! The reader of folded stacks; what it takes is written and read again the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::profile::ByName;
use stackprof::profile::formats::{folded, folded_read};

fuzz_target!(|data: &[u8]| {
    let Ok(saved) = folded_read::read(data, "fuzz") else { return };
    let text = |saved| {
        let mut out = Vec::new();
        folded::write(&ByName::of(saved, false).expect("fits"), &mut out).expect("memory");
        out
    };
    let once = text(&saved);
    let again = folded_read::read(once.as_slice(), "fuzz").expect("what is written is read");
    assert_eq!(text(&again), once);
});
