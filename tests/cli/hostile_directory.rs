//! Outputs of root in directories where other users have put something in the way, and of root on behalf of
//! sudo's caller. Races between check and write are tested next to the code.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use crate::skip::skip;
use crate::support::{Place, Run, is_root, run};

const OTHER: u32 = 65_534;
const FOLDED: &str = "work;main;read 100\nwork;main;parse 200\n";

/// Every command that writes a file, and the name of that file below `shared`.
const WRITERS: [(&str, &str); 6] = [
    ("render -q in.folded -o shared/a.folded", "a.folded"),
    ("diff -q in.folded in.folded -o shared/a.md", "a.md"),
    ("gate -q --base base --new new -o shared/a.json", "a.json"),
    ("gate -q --base base --new new --update-baseline shared", "base-001.pb.gz"),
    ("-q --target sim:1 -o shared/a.svg", "a.svg"),
    ("-q --target sim:1 -o - --stats shared/a.json", "a.json"),
];

fn may_give_files_away() -> bool {
    if !is_root() {
        skip("only root can give files to other users");
    }
    is_root()
}

/// A place with profiles, a secret of root's, and a directory like `/tmp`.
fn place() -> Place {
    let place = Place::new();
    place.write("in.folded", FOLDED);
    place.write("secret", "root:secret");
    for side in ["base", "new"] {
        fs::create_dir(place.path(side)).unwrap();
        for run in 0..7 {
            let text = format!("work;main;read {}\nwork;main;parse 20000\n", 10_000 + 7 * run);
            place.write(&format!("{side}/{run}.folded"), &text);
        }
    }
    fs::create_dir(place.path("shared")).unwrap();
    fs::set_permissions(place.path("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    place
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn refused(run: &Run, needle: &str) {
    assert_eq!(run.code, Some(1), "{run}");
    assert!(run.stderr.contains(needle) && run.stderr.lines().count() == 1, "{needle:?} in {run}");
}

#[test]
fn links_of_other_users_are_not_followed() {
    if !may_give_files_away() {
        return;
    }
    for (line, name) in WRITERS {
        for target in ["../secret", "../new-file", "/dev/null"] {
            let place = place();
            let link = place.path("shared").join(name);
            symlink(target, &link).unwrap();
            lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
            refused(&place.run(line), "link of user 65534, which is not followed; name the file itself");
            assert_eq!(place.read("secret"), "root:secret", "{line}");
            assert!(!place.path("new-file").exists(), "{line}");
            assert!(fs::symlink_metadata("/dev/null").is_ok_and(|found| !found.is_file()));
        }
        // The directory itself is a link.
        let place = place();
        fs::rename(place.path("shared"), place.path("real")).unwrap();
        fs::create_dir(place.path("victim")).unwrap();
        symlink("../victim", place.path("real/shared")).unwrap();
        lchown(place.path("real/shared"), Some(OTHER), Some(OTHER)).unwrap();
        let run = place.run(&line.replace("shared", "real/shared"));
        refused(&run, "link of user 65534, which is not followed");
        assert!(names(&place.path("victim")).is_empty(), "{line}");
    }
}

#[test]
fn files_and_pipes_of_other_users_are_not_reused() {
    if !may_give_files_away() {
        return;
    }
    for (line, name) in WRITERS {
        let place = place();
        let path = place.path("shared").join(name);
        fs::write(&path, "planted").unwrap();
        chown(&path, Some(OTHER), Some(OTHER)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        place.run(line).succeeds();
        let found = fs::symlink_metadata(&path).unwrap();
        place.run("render -q in.folded -o own.folded").succeeds();
        let own = fs::metadata(place.path("own.folded")).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode()), (0, own.gid(), own.mode()), "{line}");
        let left = names(&place.path("shared"));
        assert!(left.iter().all(|name| !name.contains(".tmp")), "{left:?}");

        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        chown(&path, Some(OTHER), Some(OTHER)).unwrap();
        refused(&place.run(line), "it is a pipe or device of user 65534");
    }
}

#[test]
fn a_file_beyond_the_size_limit_is_removed() {
    let place = Place::new();
    // 512 bytes: too few for a flame graph. The signal ends the program, or writing fails.
    for old in [None, Some("old")] {
        if let Some(old) = old {
            place.write("a.svg", old);
        }
        let before = place.files();
        let script = "ulimit -c 0; ulimit -f 1; \"$STACKPROF\" -q --target sim:1 -o a.svg 2> /dev/null";
        let run = place.shell(script);
        assert_ne!(run.code, Some(0), "{run}");
        assert_eq!(place.files(), before);
    }
    let script = "ulimit -f 1; trap '' XFSZ; \"$STACKPROF\" -q --target sim:1 -o a.svg";
    let needle =
        "cannot write `a.svg`: file too large; raise the limit (ulimit -f), or name a file elsewhere";
    place.shell(script).fails_with(1, &[needle]);
    assert_eq!((place.read("a.svg").as_str(), place.files().len()), ("old", 1));
}

/// Runs the program as root for user 1234, who called sudo.
fn under_sudo(place: &Place, words: &[&str]) -> Run {
    let mut command = place.command();
    command.env("SUDO_UID", "1234").env("SUDO_GID", "1235").args(words);
    run(command)
}

#[test]
fn under_sudo_only_roots_directories_are_written_as_root() {
    if !may_give_files_away() {
        return;
    }
    let place = place();
    fs::create_dir(place.path("roots")).unwrap();
    under_sudo(&place, &["render", "-q", "in.folded", "-o", "roots/a.folded"]).succeeds();
    assert_eq!(fs::metadata(place.path("roots/a.folded")).unwrap().uid(), 0);
    // The directory of a third user: the caller may not write there, and it is not root's alone.
    fs::create_dir(place.path("others")).unwrap();
    chown(place.path("others"), Some(OTHER), Some(OTHER)).unwrap();
    for words in [
        &["render", "-q", "in.folded", "-o", "others/a.folded"][..],
        &["gate", "-q", "--new", "new", "--update-baseline", "others/base"],
        &["-q", "--target", "sim:1", "-o", "others/a.svg"],
    ] {
        let run = under_sudo(&place, words);
        refused(
            &run,
            "permission denied to user 1234, who called sudo; name a file where that user may write",
        );
    }
    assert!(names(&place.path("others")).is_empty());
}
