//! `scripts/codesign-macos.sh` with a fake `codesign` that records its calls: which command is run, on which
//! file, with which entitlements, and which files remain.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::programs::write_script;

/// Records its arguments and the entitlements, and signs by appending a line in place, as the real one may.
const CODESIGN: &str = r#"#!/bin/sh
echo "$*" >>"$NOTES/calls"
for argument; do
    case $argument in *.xml) cp "$argument" "$NOTES/entitlements" ;; esac
    file=$argument
done
[ ! -e "$NOTES/refuse" ] || { echo "refused by the test" >&2; exit 3; }
[ "$1" = --verify ] || echo signed >>"$file"
"#;

struct Place {
    dir: tempfile::TempDir,
    /// `bin/codesign`, the records, and the programs to be signed are below it.
    program: PathBuf,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::create_dir(dir.path().join("built")).unwrap();
        let place = Place { program: dir.path().join("built/my program"), dir };
        place.write_executable("bin/codesign", CODESIGN);
        place.write_executable("built/my program", "unsigned\n");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_executable(&self, name: &str, text: &str) {
        write_script(&self.path(name), text, 0o751);
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn sign(&self, program: &Path) -> Output {
        let system = std::env::var("PATH").unwrap();
        self.sign_with_path(program, &format!("{}:{system}", self.path("bin").display()))
    }

    fn sign_with_path(&self, program: &Path, path: &str) -> Output {
        let bash = ["/bin/bash", "/usr/bin/bash"].into_iter().find(|bash| Path::new(bash).exists());
        Command::new(bash.unwrap_or("bash"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/codesign-macos.sh"))
            .arg(program)
            .env("PATH", path)
            .env("NOTES", self.dir.path())
            .output()
            .unwrap()
    }

    /// Files next to the program.
    fn built(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("built")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_documented_command_is_run_and_printed() {
    let place = Place::new();
    let output = place.sign(&place.program);
    let (stdout, stderr) = texts(&output);
    assert!(output.status.success(), "{stdout}{stderr}");
    let calls = place.read("calls");
    let [sign, verify] = calls.lines().collect::<Vec<_>>()[..] else { panic!("{calls}") };
    // Both files are in a temporary directory of the script, with a random name.
    let rest = sign.strip_prefix("--force --options runtime --sign - --entitlements ").unwrap();
    let (entitlements, copy) = rest.split_once(' ').unwrap();
    let work = entitlements.strip_suffix("/ent.xml").unwrap();
    assert!(work.starts_with(place.path("built/codesign.").to_str().unwrap()), "{work}");
    assert_eq!(copy, format!("{work}/my program"));
    assert_eq!(verify, format!("--verify --strict {copy}"));
    assert!(stdout.contains(&format!("+ codesign {sign}\n+ codesign {verify}\n")), "{stdout}");
    assert!(stdout.contains("sign it again after each `cargo build`"), "{stdout}");
}

#[test]
fn the_only_entitlement_is_for_debugging() {
    let place = Place::new();
    assert!(place.sign(&place.program).status.success());
    let plist = place.read("entitlements");
    let dict = plist.split_once("<dict>").unwrap().1.split_once("</dict>").unwrap().0;
    let words: Vec<&str> = dict.split_whitespace().collect();
    assert_eq!(words, ["<key>com.apple.security.cs.debugger</key>", "<true/>"]);
    assert!(plist.starts_with("<?xml version=\"1.0\""), "{plist}");
}

#[test]
fn the_program_is_replaced_without_leftovers() {
    let place = Place::new();
    // Like cargo: target/release/stackprof is a hard link to a file in deps.
    fs::hard_link(&place.program, place.path("built/deps")).unwrap();
    let before = fs::metadata(&place.program).unwrap();
    assert!(place.sign(&place.program).status.success());
    let after = fs::metadata(&place.program).unwrap();
    assert_ne!(before.ino(), after.ino());
    assert_eq!(after.mode() & 0o777, 0o751);
    assert_eq!(place.read("built/my program"), "unsigned\nsigned\n");
    assert_eq!(place.read("built/deps"), "unsigned\n");
    assert_eq!(place.built(), ["deps", "my program"]);
    // Once more, as after another build.
    assert!(place.sign(&place.program).status.success());
}

#[test]
fn a_link_is_kept_and_its_target_signed() {
    let place = Place::new();
    symlink("built/my program", place.path("link")).unwrap();
    assert!(place.sign(&place.path("link")).status.success());
    assert!(fs::symlink_metadata(place.path("link")).unwrap().is_symlink());
    assert_eq!(place.read("built/my program"), "unsigned\nsigned\n");
}

#[test]
fn a_refusal_leaves_the_program_unchanged() {
    let place = Place::new();
    fs::write(place.path("refuse"), "").unwrap();
    let before = fs::metadata(&place.program).unwrap().ino();
    let output = place.sign(&place.program);
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("`codesign` failed with exit code 3"), "{stderr}");
    assert!(stderr.contains("is as it was"), "{stderr}");
    assert_eq!(fs::metadata(&place.program).unwrap().ino(), before);
    assert_eq!(place.read("built/my program"), "unsigned\n");
    assert_eq!(place.built(), ["my program"]);
}

#[test]
fn missing_programs_are_named_with_the_next_step() {
    let place = Place::new();
    let nothing = place.path("nothing");
    fs::create_dir(&nothing).unwrap();
    let output = place.sign_with_path(&place.program, nothing.to_str().unwrap());
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("for macOS only"), "{stderr}");
    assert!(stderr.contains("xcode-select --install"), "{stderr}");

    let output = place.sign(&place.path("built/other"));
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("cargo build --release"), "{stderr}");
}
