use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn put(path: &Path, text: &str) -> Result<()> {
    write(path, |out| out.write_all(text.as_bytes()))
}

fn content(path: &Path) -> String {
    fs::read_to_string(path).expect("readable")
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_is_made_replaced_and_nothing_else_is_left() {
    let directory = directory();
    let path = directory.path().join("a.svg");
    put(&path, "one").expect("made");
    put(&path, "two").expect("replaced");
    check_writable(&path).expect("writable");
    assert_eq!(content(&path), "two");
    assert_eq!(names(directory.path()), ["a.svg"]);
}

#[test]
fn a_failure_leaves_the_old_file_and_no_temporary() {
    let directory = directory();
    let path = directory.path().join("a.svg");
    put(&path, "old").expect("made");
    let error = write(&path, |out| {
        out.write_all(&[b'x'; 100_000])?;
        Err(io::Error::from_raw_os_error(28))
    })
    .expect_err("the disk is full");
    assert_eq!(error.to_string(), format!("cannot write `{}`: no space left on device", path.display()));
    assert_eq!(error.kind(), ErrorKind::Output);
    assert_eq!(content(&path), "old");
    assert_eq!(names(directory.path()), ["a.svg"]);
}

#[test]
fn a_panic_leaves_no_temporary() {
    let directory = directory();
    let path = directory.path().join("a.svg");
    let panicked = std::panic::catch_unwind(|| write(&path, |_| panic!("while writing")));
    assert!(panicked.is_err());
    assert!(names(directory.path()).is_empty());
}

#[test]
fn what_cannot_be_written_is_known_before() {
    let directory = directory();
    let file = directory.path().join("file");
    put(&file, "x").expect("made");
    symlink("nowhere", directory.path().join("dangling")).expect("linked");
    for (path, expected) in [
        ("", "it is a directory; name a file in it"),
        ("missing/a.svg", "missing` does not exist"),
        ("file/a.svg", "not a directory"),
        ("new/", "a file name is expected"),
        ("dangling", "it is a symbolic link to a file that does not exist"),
    ] {
        let path = directory.path().join(path);
        let checked = check_writable(&path).expect_err(expected).to_string();
        assert!(checked.contains(expected), "{checked}");
        assert!(checked.starts_with(&format!("cannot write `{}`: ", path.display())), "{checked}");
        assert_eq!(put(&path, "x").expect_err(expected).to_string(), checked);
    }
    assert!(check_writable(Path::new("")).is_err());
    assert!(check_writable(Path::new("..")).is_err());
    assert_eq!(names(directory.path()), ["dangling", "file"]);
}

#[test]
fn a_link_stays_a_link() {
    let directory = directory();
    let (real, link) = (directory.path().join("real.svg"), directory.path().join("link.svg"));
    put(&real, "old").expect("made");
    symlink("real.svg", &link).expect("linked");
    put(&link, "new").expect("written");
    assert_eq!(content(&real), "new");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(names(directory.path()), ["link.svg", "real.svg"]);
}

#[test]
fn a_replaced_file_keeps_its_permissions() {
    let directory = directory();
    let path = directory.path().join("a.svg");
    put(&path, "old").expect("made");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    put(&path, "new").expect("written");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_name_of_full_length_is_written() {
    let directory = directory();
    let path = directory.path().join("n".repeat(255));
    put(&path, "x").expect("written");
    assert_eq!(content(&path), "x");
}

#[test]
fn devices_are_written_and_stay() {
    put(Path::new("/dev/null"), "x").expect("written");
    check_writable(Path::new("/dev/null")).expect("writable");
    check_writable(Path::new("/dev/stdout")).expect("writable");
    assert!(!fs::metadata("/dev/null").expect("there").is_file());
    if cfg!(target_os = "linux") {
        let error = put(Path::new("/dev/full"), "x").expect_err("full");
        assert_eq!(error.to_string(), "cannot write `/dev/full`: no space left on device");
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    write_stream("standard output", &mut Closed, |out| out.write_all(b"x")).expect("fine");
    let mut full = [0u8; 1];
    let error =
        write_stream("standard output", &mut &mut full[..], |out| out.write_all(b"xy")).expect_err("no room");
    assert!(error.to_string().starts_with("cannot write standard output: "), "{error}");
}

#[test]
fn the_user_behind_sudo_is_found() {
    let environment = |uid: &'static str, gid: &'static str| {
        sudo_owner(move |name| match name {
            "SUDO_UID" => Some(uid.to_string()),
            "SUDO_GID" => Some(gid.to_string()),
            _ => None,
        })
    };
    assert_eq!(environment("1000", "100"), Some((1000, 100)));
    assert_eq!(environment("x", "100"), None);
    assert_eq!(sudo_owner(|_| None), None);
}
