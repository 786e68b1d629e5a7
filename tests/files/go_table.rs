//! Go's function table, which stripped programs keep, agrees with `.debug_frame` of the same file at each
//! instruction, for each architecture. Needs Go's compiler; prints SKIP without.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use stackprof::addr::Svma;
use stackprof::binary::cfi::Cfi;
use stackprof::binary::frame_rule::{AARCH64_COLUMNS, COLUMNS, Column, Columns, X86_COLUMNS};
use stackprof::binary::gopclntab::GoFunctions;

const PROGRAM: &str = "package main
import \"sort\"
func main() { all := []int{3, 1, 2}; sort.Ints(all); println(all[0]) }
";

const NAME: &[u8] = b".gopclntab\0";

/// Compares every fifth address: nearly all instructions of some functions and some of all.
fn compare<C: Columns>(bytes: &[u8]) -> (usize, Vec<String>) {
    let go = GoFunctions::find(bytes).unwrap();
    // With the section renamed it is not found, and only `.debug_frame` is used.
    let mut bytes = bytes.to_vec();
    let name = bytes.windows(NAME.len()).rposition(|window| window == NAME).unwrap();
    bytes[name + 1] = b'x';
    let bytes = bytes.as_slice();
    assert!(GoFunctions::find(bytes).is_none());
    let cfi = Cfi::find(bytes).unwrap();
    let (mut same, mut other) = (0, Vec::new());
    for function in go.iter(bytes) {
        // Padding between functions is not in `.debug_frame`.
        let Some(described) = cfi.last_function(bytes, function.range.start) else { continue };
        for at in (function.range.start.0..described.end.0.min(function.range.end.0)).step_by(5) {
            let by_go = go.row::<C>(bytes, Svma(at));
            let by_frames = cfi.row::<C>(bytes, Svma(at));
            match by_go == by_frames {
                true => same += 1,
                false => other.push(format!("{at:#x}: {by_go:?} and {by_frames:?}")),
            }
        }
    }
    (same, other)
}

#[test]
fn the_table_of_go_agrees_with_debug_frame() {
    if crate::skip::installed(&["go"]).is_none() {
        return;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go_table");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("main.go"), PROGRAM).unwrap();
    for (arch, compared) in [
        ("amd64", compare::<[Column; COLUMNS]> as fn(&[u8]) -> (usize, Vec<String>)),
        ("arm64", compare::<[Column; AARCH64_COLUMNS]>),
        ("386", compare::<[Column; X86_COLUMNS]>),
    ] {
        let mut build = Command::new("go");
        build
            .current_dir(&dir)
            .env("GOCACHE", dir.join("cache"))
            .env("GO111MODULE", "off")
            .env("GOOS", "linux");
        build.env("GOARCH", arch).env("CGO_ENABLED", "0").args(["build", "-o", arch, "main.go"]);
        let output = build.output().unwrap();
        assert!(output.status.success(), "{build:?}: {}", String::from_utf8_lossy(&output.stderr));
        let (same, other) = compared(&std::fs::read(dir.join(arch)).unwrap());
        println!("{arch}: {same} rows are the same, {} are not", other.len());
        assert!(same + other.len() > 50_000, "{arch}: {same} rows");
        assert!(other.is_empty(), "{arch}: {} of {same}: {:?}", other.len(), &other[..other.len().min(5)]);
    }
}
