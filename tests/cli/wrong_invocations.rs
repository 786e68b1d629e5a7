//! Wrong invocations, each with its error of one line: tests/cli/wrong-invocations.txt, and
//! wrong-invocations-linux.txt for messages that are specific to Linux.
//!
//! An entry is a line for `sh` that starts with `$ `, followed by the exit code and the message without its
//! prefix. The lines run in a directory with the files created by [`prepare`]. `STACKPROF_BLESS=1 cargo test
//! --test cli wrong` rewrites the answers, except in CI: then review `git diff`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::programs::copy_program;
use crate::skip::skip;
use crate::support::{Place, is_linux, is_root};

/// Creates the files used by the lines.
fn prepare() -> Place {
    let place = Place::new();
    place.write("a.folded", "p;main;f 1000\np;main;g 500\n");
    place.write("few.folded", "p;main 3\n");
    place.write("empty", "");
    place.write("blank.folded", "\n\n");
    place.write("text", "Hello, world\nthis is no profile\n");
    place.write("half.folded", "p;a 1\nx\ny\nz\n");
    place.write("cut.json", "{\"$schema\": [1,2");
    place.write("other.json", "{\"a\": 1}");
    place.write("picture.svg", "<svg></svg>");
    place.write("not-executable", "#!/bin/sh\n");
    place.write("no-interpreter", "#!/nonexistent\n");
    fs::write(place.path("junk"), (0..=255).cycle().take(5000).collect::<Vec<u8>>()).unwrap();
    fs::write(place.path("perf.data"), b"PERFILE2\x68\0\0\0\0\0\0\0").unwrap();
    fs::write(place.path("cut.pb.gz"), b"\x1f\x8b\x08\0\0\0\0\0\0\x03garb").unwrap();
    for directory in ["directory", "empty-directory", "mixed"] {
        fs::create_dir(place.path(directory)).unwrap();
    }
    for name in ["directory/1.folded", "directory/2.folded", "mixed/1.folded"] {
        place.write(name, "p;main;f 1000\np;main;g 500\n");
    }
    fs::copy(place.path("junk"), place.path("mixed/junk")).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.path("no-interpreter"), executable).unwrap();
    place
}

/// The entries of a golden file: the line and its answer.
fn entries(text: &str) -> Vec<(String, String)> {
    let mut entries = Vec::new();
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    while let Some(line) = lines.next() {
        let line = line.strip_prefix("$ ").unwrap_or_else(|| panic!("no line to run: {line}"));
        entries.push((line.to_owned(), lines.next().unwrap_or_default().to_owned()));
    }
    entries
}

/// The current answer to a line: `2 --hz ...`.
fn answer(place: &Place, line: &str) -> String {
    let run = place.shell(&format!("stackprof() {{ \"$STACKPROF\" \"$@\"; }}\n{line}"));
    let code = run.code.unwrap_or(-1);
    assert!(matches!(code, 1 | 2 | 4) && run.stdout.is_empty(), "{run}");
    let text = run.stderr.strip_prefix("stackprof: ").and_then(|text| text.strip_suffix('\n'));
    let text = text.unwrap_or_else(|| panic!("no line of a message: {run}"));
    assert!(!text.contains('\n') && !text.starts_with(char::is_uppercase), "one line, lower case: {run}");
    // Usage lines end in `...`.
    assert!(text.ends_with("...") || !text.ends_with(['.', ' ']), "{run}");
    assert!(!text.contains(env!("CARGO_MANIFEST_DIR")), "`{line}` names a path of this machine: {run}");
    format!("{code} {text}")
}

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli").join(name);
    let golden = fs::read_to_string(&path).unwrap();
    let place = prepare();
    let before = place.files();
    if is_root() {
        // For lines that run it as user nobody.
        fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(place.path("few.folded"), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let mut now = golden.clone();
    let mut wrong = Vec::new();
    for (line, expected) in entries(&golden) {
        let answer = answer(&place, &line);
        assert_eq!(place.files(), before, "`{line}` left something");
        if answer != expected {
            now = now.replacen(&format!("$ {line}\n{expected}"), &format!("$ {line}\n{answer}"), 1);
            wrong.push(format!("$ {line}\n- {expected}\n+ {answer}"));
        }
    }
    if std::env::var_os("STACKPROF_BLESS").is_some() {
        assert!(std::env::var_os("CI").is_none(), "STACKPROF_BLESS is not for CI");
        fs::write(&path, now).unwrap();
        return;
    }
    assert!(
        wrong.is_empty(),
        "\n{}\nif this is intended: STACKPROF_BLESS=1 cargo test --test cli wrong, then read `git diff`\n",
        wrong.join("\n")
    );
}

#[test]
fn wrong_invocations_have_one_line_with_the_next_step() {
    check("wrong-invocations.txt");
}

#[test]
fn wrong_invocations_of_linux_have_one_line_with_the_next_step() {
    if is_linux() {
        check("wrong-invocations-linux.txt");
    }
}

/// Root passes every permission check, so a copy of the program runs as user 65534.
#[test]
fn wrong_invocations_of_a_user_without_rights_name_what_is_missing() {
    if !is_linux() {
        return;
    }
    if !is_root() {
        return skip("only root can run the program as another user");
    }
    let place = prepare();
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.path("few.folded"), fs::Permissions::from_mode(0o600)).unwrap();
    copy_program(place.program(), &place.path("copy"));
    let own = std::process::id();
    const UNREADABLE: &str =
        "cannot read `few.folded`: permission denied; read it as a user who may, or name another";
    for (line, code, expected) in [
        ("render few.folded -o -", 1, UNREADABLE),
        ("diff few.folded a.folded", 1, UNREADABLE),
        ("gate --base few.folded --new a.folded", 1, UNREADABLE),
        (
            "render a.folded -o out.svg",
            1,
            "cannot write `out.svg`: no file can be made in its directory: permission denied; name a file where you may write",
        ),
        ("-o - --pid 1", 1, "run: sudo stackprof --pid 1"),
        (
            "dump stacks --pid OWN",
            1,
            "it belongs to user 0 and you are user 65534; run: sudo stackprof --pid OWN",
        ),
        (
            "-d 1 -o - --pid OWN",
            1,
            "it belongs to user 0 and you are user 65534; run: sudo stackprof --pid OWN",
        ),
        (
            "--as root -o - -- true",
            1,
            "--as `root`: only root may run a command as another user; run stackprof by sudo",
        ),
    ] {
        let line = line.replace("OWN", &own.to_string());
        let expected = expected.replace("OWN", &own.to_string());
        let run =
            place.shell(&format!("setpriv --reuid=65534 --regid=65534 --clear-groups -- ./copy {line}"));
        run.fails_with(code, &[&expected]);
    }
}

/// Names in options that only root may use.
#[test]
fn wrong_names_of_groups_and_users_get_a_command_that_lists_them() {
    if !is_linux() {
        return;
    }
    if !is_root() {
        return skip("only root may record a part of the machine everywhere");
    }
    let place = prepare();
    for (line, expected) in [
        (
            "--cgroup /no/such/group",
            "--cgroup `/no/such/group`: no such control group; `systemd-cgls` lists them",
        ),
        (
            "--container 0123456789ab",
            "--container `0123456789ab`: no process runs in such a container; `docker ps` lists them",
        ),
        ("--user no-such-user", "--user `no-such-user`: there is no such user; `getent passwd` lists them"),
        (
            "--as no-such-user -- true",
            "--as `no-such-user`: there is no such user; `getent passwd` lists them",
        ),
    ] {
        place.run(&format!("-o - {line}")).fails_with(1, &[expected]);
    }
}

#[test]
fn parses_entries() {
    let text = "# remark\n$ a b\n2 c\n\n$ d\n1 e\n";
    assert_eq!(entries(text), [("a b".to_owned(), "2 c".to_owned()), ("d".to_owned(), "1 e".to_owned())]);
}
