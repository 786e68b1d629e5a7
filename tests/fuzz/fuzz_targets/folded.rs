//! The reader of folded stacks; what it takes is written and read again the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::profile::ByName;
use stackprof::profile::formats::folded;

fuzz_target!(|data: &[u8]| {
    let Ok(saved) = folded::read(data, "fuzz") else { return };
    let text = |saved| {
        let mut out = Vec::new();
        folded::write(&ByName::of(saved, false).expect("fits"), &mut out).expect("memory");
        out
    };
    let once = text(&saved);
    // A process called `# x` is a remark, and names that end in numbers on every line are counts.
    let is_other = |line: &[u8]| line.starts_with(b"#") || line.iter().rev().skip_while(|byte| **byte != b' ').nth(1).is_some_and(u8::is_ascii_digit);
    if once.split(|byte| *byte == b'\n').any(is_other) {
        return;
    }
    let again = folded::read(once.as_slice(), "fuzz").expect("what is written is read");
    assert_eq!(text(&again), once);
});
