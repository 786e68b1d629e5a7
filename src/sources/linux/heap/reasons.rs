//! Why the allocations of a command could not be recorded, and the next step.
//!
//! Input: the program's file, and the reports of its processes; output: one line for people.

use std::ffi::OsStr;
use std::path::Path;

use super::load_method::LoadMethod;
use super::own_allocator::{NEXT, OwnAllocator};
use crate::binary::files::map_regular;
use crate::sources::linux::refusal;
use crate::sources::pushed::AllocationLosses;

/// Why no allocations of a program were recorded.
#[must_use]
pub fn why_no_allocations(program: &OsStr, losses: &AllocationLosses, every_bytes: u64) -> String {
    let shown = program.display();
    let found = refusal::find_program(program);
    if losses.still_runs && (losses.programs == 0 || losses.refused.is_empty() && losses.malformed_rings == 0)
    {
        return "the recording ended before a sample was taken; record longer, or with a smaller --every"
            .to_owned();
    }
    if losses.programs == 0 {
        return match found.as_deref().map(LoadMethod::of) {
            Some(LoadMethod::Static) if !found.as_deref().is_some_and(names_malloc) => format!(
                "`{shown}` is linked statically and names no malloc: the heap shim is loaded by the dynamic linker, and \
                 probes need that name; a runtime with an allocator of its own (Go) has a heap profiler of its own"
            ),
            Some(LoadMethod::Static) => format!(
                "`{shown}` is linked statically, and the heap shim is loaded by the dynamic linker; link it \
                 dynamically, or record it while it runs: sudo stackprof heap --pid N"
            ),
            Some(LoadMethod::OtherRights) => format!(
                "`{shown}` gains rights when it starts (setuid, setgid or file capabilities), and the dynamic linker \
                 loads nothing into such programs; run it as its owner: sudo -u OWNER stackprof heap -- {shown} ..."
            ),
            Some(LoadMethod::OtherClass) => format!(
                "`{shown}` is built for another architecture than the heap shim; record its CPU time: \
                 stackprof -- {shown} ..."
            ),
            Some(LoadMethod::Dynamic) | None => format!(
                "the heap shim was not loaded: `{shown}` clears its environment, or starts what does (env -i, sudo); \
                 record the program itself"
            ),
        };
    }
    if let Some((why, processes)) = losses.refused.first() {
        return format!("{processes} of its processes could not report what they allocate: {why}");
    }
    if let Some(why) = &losses.ended_early {
        return why.clone();
    }
    if !losses.without_shim.is_empty() {
        let counted: Vec<String> =
            losses.without_shim.iter().map(|(why, count)| format!("{count} {why}")).collect();
        return format!(
            "some of its processes ran without the heap shim, at least {}; record that program itself",
            counted.join(", ")
        );
    }
    if losses.malformed_rings > 0 {
        return "what it reported was overwritten, by the program itself or another one".to_owned();
    }
    if let Some(own) = found.as_deref().and_then(OwnAllocator::of_path) {
        return format!("`{shown}` has {} ({}): {NEXT}", own.what, own.malloc);
    }
    if let Some(unseen) = losses.unseen.first() {
        return format!("{}: {}", unseen.functions, unseen.next);
    }
    match every_bytes {
        1 => "it allocated nothing by malloc".to_owned(),
        _ => format!(
            "it allocated little, and one allocation in {every_bytes} bytes is sampled; --every 1 takes each"
        ),
    }
}

/// Whether the symbols of a program may include `malloc`, where probes are set: names of a string table share ends.
fn names_malloc(path: &Path) -> bool {
    map_regular(path).is_ok_and(|program| memchr::memmem::find(program.bytes(), b"malloc\0").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_depends_on_the_reported_reason() {
        let losses = |programs| AllocationLosses { programs, ..AllocationLosses::default() };
        let why = |losses: &AllocationLosses| why_no_allocations(OsStr::new("/no/prog"), losses, 1 << 19);
        assert!(why(&losses(0)).starts_with("the heap shim was not loaded: `/no/prog` clears"));
        assert!(why(&losses(1)).ends_with("one allocation in 524288 bytes is sampled; --every 1 takes each"));
        let refused = AllocationLosses { refused: vec![("there is no space", 2)], ..losses(1) };
        assert_eq!(
            why(&refused),
            "2 of its processes could not report what they allocate: there is no space"
        );
        for programs in [0, 1] {
            let running = AllocationLosses { still_runs: true, ..losses(programs) };
            assert!(why(&running).starts_with("the recording ended before a sample was taken"));
        }
        let without = AllocationLosses { without_shim: vec![("linked statically", 1)], ..losses(1) };
        assert!(why(&without).contains("ran without the heap shim, at least 1 linked statically; record"));
        let other =
            AllocationLosses { ended_early: Some("it became another program".to_owned()), ..losses(1) };
        assert_eq!(why(&other), "it became another program");
    }
}
