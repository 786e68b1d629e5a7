//! Debug information that `dwz -m` moved to a common file: names and lines are unchanged, and a common file
//! of another build is refused with the reason. Needs `cc` and `dwz`; prints SKIP without the latter.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use stackprof::binary::ImageBytes;
use stackprof::sources::LocalFiles;
use stackprof::symbol::{ImageNames, Options, name_addresses, sections};

const SHARED: &str = "
struct shape { int width, height; struct shape *next; double weight; };
struct list { struct shape *first, *last; unsigned long length; };
static inline __attribute__((always_inline)) int area_of_shape(const struct shape *shape) {
    return shape->width * shape->height + (shape->next ? 1 : 0);
}
static inline __attribute__((always_inline)) int area_of_list(const struct list *list) {
    int sum = 0;
    for (struct shape *shape = list->first; shape; shape = shape->next) sum += area_of_shape(shape);
    return sum;
}
";
const FIRST: &str = "#include \"shared.h\"
__attribute__((noinline)) int first(struct list *list) { return area_of_list(list) ^ 1; }
int main(int c, char **v) { (void)v; struct list list = {0, 0, c}; return first(&list); }
";
const SECOND: &str = "#include \"shared.h\"
__attribute__((noinline)) int second(struct list *list) { return area_of_list(list) + area_of_shape(list->last); }
int main(int c, char **v) { (void)v; struct list list = {0, 0, c}; return c > 1 ? second(&list) : 0; }
";

fn run(dir: &Path, program: &str, args: &[&str]) {
    let output = Command::new(program).current_dir(dir).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Two programs with common source; false without `dwz`.
fn build(dir: &Path, version: &str) -> bool {
    if crate::skip::installed(&["dwz"]).is_none() {
        return false;
    }
    for (name, text) in [("shared.h", SHARED), ("first.c", FIRST), ("second.c", SECOND)] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    for (program, source) in [("first", "first.c"), ("second", "second.c")] {
        run(dir, "cc", &["-O2", "-g", version, "-Wl,--build-id", "-o", program, source]);
    }
    true
}

fn name(dir: &Path, program: &str) -> ImageNames {
    let bytes = std::fs::read(dir.join(program)).unwrap();
    let all = sections::all(&bytes).unwrap();
    let text = all.iter().find(|section| section.name == ".text").unwrap();
    let addresses: Vec<u64> = (text.svma..text.svma + text.size).collect();
    let options = Options { lines: true, files: &LocalFiles, ..Options::default() };
    let path = dir.join(program);
    name_addresses(path.to_str().unwrap(), ImageBytes::new(bytes), &addresses, &options)
}

fn has(dir: &Path, program: &str, section: &str) -> bool {
    let bytes = std::fs::read(dir.join(program)).unwrap();
    sections::all(&bytes).unwrap().iter().any(|found| found.name == section)
}

fn knows(answer: &ImageNames, function: &str) -> bool {
    let chains = answer.names.iter().flatten();
    chains.flatten().any(|found| found.name.as_deref() == Some(function))
}

#[test]
fn dwz_does_not_change_names() {
    let version_4 = (["-gdwarf-4"], &[][..], ".gnu_debugaltlink");
    let version_5 = (["-gdwarf-5"], &[][..], ".gnu_debugaltlink");
    let standard_5 = (["-gdwarf-5"], &["-5"][..], ".debug_sup");
    for (flags, dwz_flags, link) in [version_4, version_5, standard_5] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        if !build(dir, flags[0]) {
            return;
        }
        let before = ["first", "second"].map(|program| name(dir, program));
        run(dir, "dwz", &[dwz_flags, &["-m", "common", "first", "second"]].concat());
        for (program, before) in ["first", "second"].into_iter().zip(before) {
            assert!(has(dir, program, link), "{program} was not changed");
            let after = name(dir, program);
            assert!(after.problems.is_empty(), "{:?}", after.problems);
            assert!(knows(&after, "area_of_list") && knows(&after, "area_of_shape"), "{after:?}");
            assert_eq!(format!("{:?}", after.names), format!("{:?}", before.names), "{program} {flags:?}");
        }
    }
}

#[test]
fn a_common_file_of_another_build_is_refused() {
    for (version, flags, mark) in
        [("-gdwarf-4", &[][..], "build id"), ("-gdwarf-5", &["-5"][..], "its checksum")]
    {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (dir, other) = (dir.path().canonicalize().unwrap(), other.path());
        if !build(&dir, version) || !build(other, version) {
            return;
        }
        // The same types at other offsets.
        std::fs::write(other.join("shared.h"), format!("struct before {{ int x; }};{SHARED}")).unwrap();
        for program in ["first", "second"] {
            run(
                other,
                "cc",
                &["-O1", "-g", version, "-Wl,--build-id", "-o", program, &format!("{program}.c")],
            );
        }
        for place in [&dir, other] {
            run(place, "dwz", &[flags, &["-m", "common", "first", "second"]].concat());
        }
        std::fs::copy(other.join("common"), dir.join("common")).unwrap();
        let answer = name(&dir, "first");
        let expected = format!("{}/common: it is of another build ({mark}", dir.display());
        assert!(
            answer.problems.iter().any(|problem| problem.starts_with(&expected)),
            "{:?}",
            answer.problems
        );
        assert!(!knows(&answer, "area_of_list"), "{answer:?}");
        // Information that was not moved is still there.
        assert!(knows(&answer, "first"));
        std::fs::remove_file(dir.join("common")).unwrap();
        let answer = name(&dir, "first");
        let missing = format!("{}/common: no such file or directory", dir.display());
        assert!(answer.problems.iter().any(|problem| problem.starts_with(&missing)), "{:?}", answer.problems);
    }
}
