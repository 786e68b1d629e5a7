//! Stripped libraries through the whole program: one name for each function, by its start address, in the
//! saved profile, too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Recorded, launch, record_until, sources, stackprof};

const MAIN: &str = "void work(unsigned long); int main(void) { work(100000); return 0; }";

/// Builds a program and its library in a directory: (program, start addresses of `first`, `middle` and
/// `last`).
fn built(directory: &Path) -> (PathBuf, [u64; 3]) {
    std::fs::write(directory.join("main.c"), MAIN).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nameless.c");
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).current_dir(directory).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let source = source.display().to_string();
    let common = ["-O1", "-fno-reorder-functions", "-fasynchronous-unwind-tables", "-Wl,--build-id"];
    let library = ["-shared", "-fPIC", &source, "-o", "libnameless.so"];
    run("cc", &[&common[..], &library[..]].concat());
    let symbols = run("nm", &["libnameless.so"]);
    let start = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" t {name}"))).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    let starts = ["first", "middle", "last"].map(start);
    run("strip", &["libnameless.so"]);
    run("cc", &["main.c", "-o", "nameless", "-L.", "-lnameless", "-Wl,-rpath,$ORIGIN"]);
    (directory.join("nameless"), starts)
}

/// Prefix of the names of the library's functions.
const FUNCTIONS: &str = "[libnameless.so:fn+";

#[test]
fn functions_of_a_stripped_library_are_named_by_start_address() {
    let directory = tempfile::tempdir().unwrap();
    let (program, starts) = built(directory.path());
    let expected: BTreeSet<String> = starts.iter().map(|start| format!("{FUNCTIONS}{start:#x}]")).collect();
    for source in sources() {
        let saved = directory.path().join(format!("{source}.pb.gz"));
        let named = |recorded: &Recorded| -> BTreeSet<String> {
            let frames = recorded.stacks.iter().flat_map(|stack| &stack.frames);
            frames.filter(|frame| frame.starts_with(FUNCTIONS)).cloned().collect()
        };
        let recorded = || {
            let options = ["--hz", "997", "--source", source, "-o", saved.to_str().unwrap()];
            let recorded = launch(&options, &program, &[""; 0]);
            let names = named(&recorded);
            recorded.check(names.is_subset(&expected), format!("{names:?}"));
            recorded
        };
        let recorded = record_until("each function", recorded, |recorded| named(recorded) == expected);
        let output = stackprof().args(["render", "-q", "-o", "-"]).arg(&saved).output().unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            recorded.folded,
            "the saved profile has other names"
        );
    }
}
