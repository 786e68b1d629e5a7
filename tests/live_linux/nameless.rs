//! Stripped libraries through the whole program: one name for each function, matched between runs
//! of one build, and told by where it begins where base and new are different builds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{live, stackprof};

const MAIN: &str = "void work(unsigned long); int main(void) { work(500000); return 0; }";

/// A program and its library in a directory: (program, where `first`, `middle` and `last` begin).
fn built(directory: &Path, longer: u32) -> (PathBuf, [u64; 3]) {
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("main.c"), MAIN).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nameless.c");
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).current_dir(directory).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (longer, source) = (format!("-DLONGER={longer}"), source.display().to_string());
    let common = ["-O1", "-fno-reorder-functions", "-fasynchronous-unwind-tables", "-Wl,--build-id"];
    let library = ["-shared", "-fPIC", &longer, &source, "-o", "libnameless.so"];
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

/// Records a program; the path of the profile.
fn recorded(program: &Path, directory: &Path, name: &str) -> PathBuf {
    let into = directory.join(name);
    let stats = directory.join("stats.json");
    let mut command = stackprof();
    command.args(["--hz", "997", "-q", "--stats"]).arg(&stats).arg("-o").arg(&into).arg("--").arg(program);
    // On a machine without a CPU to spare nothing may have been seen of it, or not its end: then its
    // CPU time is not known, and the gate asks for another recording.
    const NOTHING_SAMPLED: i32 = 4;
    let few_lost = || {
        let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        let lost = stats["samples_lost"].as_object().unwrap().values().filter_map(|lost| lost.as_u64());
        lost.sum::<u64>() * 50 < stats["samples"].as_u64().unwrap()
    };
    for _ in 0..20 {
        let output = command.output().unwrap();
        if output.status.code() == Some(NOTHING_SAMPLED) {
            continue;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if few_lost() {
            return into;
        }
    }
    panic!("each of 20 recordings lost a part of {}", program.display());
}

fn told(arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> (Option<i32>, String) {
    let output = stackprof().args(arguments.iter().map(|argument| argument.as_ref())).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// What the names of the library's functions begin with.
const FUNCTIONS: &str = "[libnameless.so:fn+";

fn name(start: u64) -> String {
    format!("{FUNCTIONS}{start:#x}]")
}

#[test]
fn a_stripped_function_that_got_slower_is_told_by_where_it_begins() {
    let Some(_one) = live() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (base, base_starts) = built(&directory.path().join("base"), 1);
    let (new, new_starts) = built(&directory.path().join("new"), 40);
    assert_ne!(base_starts[2], new_starts[2], "what follows moved");
    let runs = |program: &Path, side: &str| -> Vec<PathBuf> {
        (1..=3).map(|n| recorded(program, directory.path(), &format!("{side}{n}.pb.gz"))).collect()
    };
    let (base, new) = (runs(&base, "base"), runs(&new, "new"));

    // One name for each function.
    let folded = directory.path().join("base.folded");
    let (code, said) = told(&[&"render", &base[0], &"-q", &"-o", &folded]);
    assert_eq!(code, Some(0), "{said}");
    let text = std::fs::read_to_string(&folded).unwrap();
    let frames = text.lines().flat_map(|line| line.rsplit_once(' ').unwrap().0.split(';'));
    let nameless: BTreeSet<&str> = frames.filter(|frame| frame.starts_with(FUNCTIONS)).collect();
    let expected = base_starts.map(name);
    assert_eq!(nameless, expected.iter().map(String::as_str).collect(), "{text}");
    // `_init` has nothing that says where it begins, and may be the first to touch a page of the library.
    let counts = |holds: &dyn Fn(&str) -> bool| -> u64 {
        let lines = text.lines().map(|line| line.rsplit_once(' ').unwrap());
        lines.filter(|(stack, _)| holds(stack)).map(|(_, count)| count.parse::<u64>().unwrap()).sum()
    };
    let (elsewhere, all) = (counts(&|stack| stack.contains("[libnameless.so+")), counts(&|_| true));
    assert!(elsewhere * 100 < all, "{elsewhere} of {all} counts in no function:\n{text}");

    // Runs of one build are compared by function, those of two builds by the module.
    let all = directory.path().join("diff.json");
    let (code, said) = told(&[&"diff", &base[0], &base[1], &"-q", &"-o", &all]);
    assert_eq!(code, Some(0), "{said}");
    // The table leaves out what has by chance the same count in both; the file holds every function.
    let text = std::fs::read_to_string(&all).unwrap();
    let compared: serde_json::Value = serde_json::from_str(&text).unwrap();
    let functions = compared["functions"].as_array().unwrap().iter();
    let nameless: BTreeSet<&str> = functions
        .filter_map(|function| function["name"].as_str())
        .filter(|name| name.starts_with(FUNCTIONS))
        .collect();
    assert_eq!(nameless, expected.iter().map(String::as_str).collect(), "{text}");
    let (code, said) = told(&[&"diff", &base[0], &new[0]]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("[libnameless.so]") && !said.contains(":fn+"), "{said}");

    // The gate says which function of the new build it is.
    let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"gate", &"--base"];
    arguments.extend(base.iter().map(|path| path as &dyn AsRef<std::ffi::OsStr>));
    arguments.push(&"--new");
    arguments.extend(new.iter().map(|path| path as &dyn AsRef<std::ffi::OsStr>));
    let (code, said) = told(&arguments);
    assert_eq!(code, Some(3), "{said}");
    let of_new_build = said.split("of the new build").nth(1).unwrap_or_else(|| panic!("{said}"));
    let first = of_new_build.split("[libnameless.so:fn+").nth(1).unwrap_or_else(|| panic!("{said}"));
    let expected = name(new_starts[1]);
    assert!(
        expected.ends_with(&format!("+{}", first.split_inclusive(']').next().unwrap())),
        "{expected}: {said}"
    );
}
