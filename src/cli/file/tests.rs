use super::*;
use crate::sources::output::{Step, hook};
use std::cell::Cell;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::rc::Rc;

/// A user other than root and the writing user.
const OTHER: u32 = 65_534;
/// The user who called sudo.
const CALLER: u32 = 1234;
const CALLERS_GROUP: u32 = 1235;

/// Whether this process can create files of other users; prints a skip if not.
fn is_root() -> bool {
    if OutputPlace::is_root() {
        return true;
    }
    crate::skip::skip("only root can give files to other users");
    false
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn put(path: &Path, text: &str) -> crate::error::Result<()> {
    OutputFiles::default().write(path, |out| out.write_all(text.as_bytes()))
}

fn check_writable(path: &Path) -> crate::error::Result<()> {
    OutputFiles::default().check(path)
}

/// Output files as if `CALLER` had called sudo.
fn under_sudo() -> OutputFiles {
    OutputFiles::of(Some(Caller::new(CALLER, CALLERS_GROUP, vec![CALLERS_GROUP])))
}

fn make_directory(path: &Path, uid: u32, mode: u32) {
    fs::create_dir(path).expect("made");
    if OutputPlace::is_root() {
        chown(path, Some(uid), Some(uid)).expect("given away");
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).expect("there");
    (metadata.uid(), metadata.mode() & 0o7777)
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
fn writing_replaces_the_file_and_leaves_nothing_else() {
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
    for named_only in [false, true] {
        hook::with_named_only(named_only, fail_while_writing);
    }
}

fn fail_while_writing() {
    let directory = directory();
    let path = directory.path().join("a.svg");
    put(&path, "old").expect("made");
    let error = OutputFiles::default()
        .write(&path, |out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::Error::from_raw_os_error(28))
        })
        .expect_err("the disk is full");
    assert_eq!(
        error.to_string(),
        format!(
            "cannot write `{}`: no space left on device; free some there, or name a file elsewhere",
            path.display()
        )
    );
    assert_eq!(error.kind(), ErrorKind::Output);
    assert_eq!(content(&path), "old");
    assert_eq!(names(directory.path()), ["a.svg"]);
}

#[test]
fn a_panic_leaves_no_temporary() {
    for named_only in [false, true] {
        hook::with_named_only(named_only, panic_while_writing);
    }
}

fn panic_while_writing() {
    let directory = directory();
    let path = directory.path().join("a.svg");
    let panicked =
        std::panic::catch_unwind(|| OutputFiles::default().write(&path, |_| panic!("while writing")));
    assert!(panicked.is_err());
    assert!(names(directory.path()).is_empty());
}

#[test]
fn unwritable_outputs_are_refused_in_advance() {
    let directory = directory();
    let file = directory.path().join("file");
    put(&file, "x").expect("made");
    symlink("nowhere", directory.path().join("dangling")).expect("linked");
    symlink("missing/a.svg", directory.path().join("astray")).expect("linked");
    symlink("loop", directory.path().join("loop")).expect("linked");
    for (path, expected) in [
        ("", "it is a directory; name a file in it"),
        ("missing/a.svg", "missing` does not exist"),
        ("file/a.svg", "not a directory"),
        ("new/", "a file name is expected"),
        ("file/", "a file name is expected"),
        ("..", "it is a directory; name a file in it"),
        ("./.", "it is a directory; name a file in it"),
        ("loop", "symbolic links"),
        ("dangling/a.svg", "does not exist"),
        ("dangling", "it is a symbolic link to a file that does not exist"),
        ("astray", "it is a symbolic link into a directory that does not exist"),
    ] {
        let path = directory.path().join(path);
        let checked = check_writable(&path).expect_err(expected).to_string();
        assert!(checked.contains(expected), "{checked}");
        assert!(checked.starts_with(&format!("cannot write `{}`: ", path.display())), "{checked}");
        assert_eq!(put(&path, "x").expect_err(expected).to_string(), checked);
    }
    assert!(check_writable(Path::new("")).is_err());
    assert!(check_writable(Path::new("..")).is_err());
    assert_eq!(names(directory.path()), ["astray", "dangling", "file", "loop"]);
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
fn a_name_of_maximum_length_is_written() {
    let directory = directory();
    let path = directory.path().join("n".repeat(255));
    put(&path, "x").expect("written");
    assert_eq!(content(&path), "x");
}

#[test]
fn devices_are_written_and_not_replaced() {
    put(Path::new("/dev/null"), "x").expect("written");
    check_writable(Path::new("/dev/null")).expect("writable");
    check_writable(Path::new("/dev/stdout")).expect("writable");
    assert!(!fs::metadata("/dev/null").expect("there").is_file());
    if cfg!(target_os = "linux") {
        let error = check_writable(Path::new("/dev/full")).expect_err("full");
        assert_eq!(
            error.to_string(),
            "cannot write `/dev/full`: no space left on device; free some there, or name a file elsewhere"
        );
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
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

/// Writes an output while `swap` runs at a step, or only at the `nth` time of that step. Returns the result
/// and how often the step was reached.
fn write_while(
    at: Step,
    nth: Option<u32>,
    path: &Path,
    mut swap: impl FnMut() + 'static,
) -> (crate::error::Result<()>, u32) {
    let count = Rc::new(Cell::new(0));
    let seen = Rc::clone(&count);
    let hook = move |step| {
        if step == at {
            seen.set(seen.get() + 1);
            if nth.is_none_or(|nth| nth == seen.get()) {
                swap();
            }
        }
    };
    let result = hook::with(hook, || put(path, "profile"));
    (result, count.get())
}

/// A directory like `/tmp` with an output of an earlier run, and a file elsewhere that must not change.
fn shared_directory(base: &Path) -> (PathBuf, PathBuf) {
    let victim = base.join("victim");
    fs::write(&victim, "secret").expect("made");
    let shared = base.join("shared");
    make_directory(&shared, 0, 0o1777);
    fs::write(shared.join("a.folded"), "old").expect("made");
    (shared.join("a.folded"), victim)
}

#[test]
fn a_name_that_becomes_a_link_never_leads_to_another_file() {
    let counted = directory();
    let (path, _) = shared_directory(counted.path());
    let (_, looks) = write_while(Step::Examined, None, &path, || {});
    // Without root, only own files can be swapped, and own links are followed.
    let first = if is_root() { 1 } else { looks - 1 };
    let looks = (first..=looks).map(|nth| (Step::Examined, Some(nth)));
    let steps = [Step::Resolved, Step::Created, Step::Whole, Step::Linked].map(|step| (step, None));
    for ((at, nth), named_only) in looks.chain(steps).flat_map(|step| [(step, false), (step, true)]) {
        let directory = directory();
        let (path, victim) = shared_directory(directory.path());
        let (name, to) = (path.clone(), victim.clone());
        let swap = move || {
            fs::remove_file(&name).expect("removed");
            symlink(&to, &name).expect("linked");
            if OutputPlace::is_root() {
                lchown(&name, Some(OTHER), Some(OTHER)).expect("given away");
            }
        };
        let (result, count) = hook::with_named_only(named_only, || write_while(at, nth, &path, swap));
        assert!(count > 0, "{at:?} was not reached");
        assert_eq!(content(&victim), "secret", "{at:?} {nth:?}");
        if result.is_ok() {
            assert!(!path.is_symlink(), "{at:?}");
            assert_eq!(content(&path), "profile");
        }
        assert!(result.is_ok() || at == Step::Examined, "{at:?}: {result:?}");
        assert_eq!(names(&directory.path().join("shared")), ["a.folded"], "{at:?}");
    }
}

#[test]
fn a_directory_that_becomes_a_link_is_not_entered() {
    let directory = directory();
    let (sub, away) = (directory.path().join("sub"), directory.path().join("away"));
    let victim = directory.path().join("victim");
    for path in [&sub, &victim] {
        fs::create_dir(path).expect("made");
    }
    let (result, looks) = write_while(Step::Examined, None, &sub.join("a.svg"), || {});
    result.expect("written");
    let (from, to, target) = (sub.clone(), away, victim.clone());
    let swap = move || {
        fs::rename(&from, &to).expect("moved");
        symlink(&target, &from).expect("linked");
    };
    // The directory has been checked and is not open: the check before the last one of a new file.
    fs::remove_file(sub.join("a.svg")).expect("removed");
    let (result, _) = write_while(Step::Examined, Some(looks - 1), &sub.join("a.svg"), swap);
    assert!(result.is_err(), "{result:?}");
    assert!(names(&victim).is_empty());
}

#[test]
fn a_checked_directory_is_the_one_written_to() {
    let directory = directory();
    let (sub, away) = (directory.path().join("sub"), directory.path().join("away"));
    let victim = directory.path().join("victim");
    for path in [&sub, &victim] {
        fs::create_dir(path).expect("made");
    }
    let files = OutputFiles::default();
    let path = sub.join("a.svg");
    files.check(&path).expect("writable");
    fs::rename(&sub, &away).expect("moved");
    symlink(&victim, &sub).expect("linked");
    files.write(&path, |out| out.write_all(b"x")).expect("written");
    assert_eq!((names(&away), names(&victim)), (vec!["a.svg".to_owned()], vec![]));
    // A removed directory is looked up again, so that the recording is not lost.
    let path = away.join("b.svg");
    files.check(&path).expect("writable");
    fs::remove_dir_all(&away).expect("removed");
    fs::create_dir(&away).expect("made");
    files.write(&path, |out| out.write_all(b"x")).expect("written");
    assert_eq!(names(&away), ["b.svg"]);
}

#[test]
fn output_files_are_never_executable() {
    for named_only in [false, true] {
        let directory = directory();
        let path = directory.path().join("a.svg");
        put(&path, "old").expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("set");
        hook::with_named_only(named_only, || put(&path, "new")).expect("written");
        assert_eq!(owner_and_mode(&path).1, 0o644);
    }
}

#[test]
fn a_file_that_another_user_planted_passes_nothing_on() {
    if !is_root() {
        return;
    }
    for mode in [0o1777, 0o777, 0o1770, 0o755] {
        let is_shared = mode != 0o755;
        let directory = directory();
        let shared = directory.path().join("shared");
        make_directory(&shared, 0, mode);
        let path = shared.join("a.svg");
        fs::write(&path, "planted").expect("made");
        chown(&path, Some(OTHER), Some(OTHER)).expect("given away");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6666)).expect("set");
        put(&path, "profile").expect("written");
        // Mode of a new file after the umask.
        put(&directory.path().join("new"), "x").expect("written");
        let new = owner_and_mode(&directory.path().join("new")).1;
        let expected = if is_shared { (0, new) } else { (OTHER, 0o666) };
        assert_eq!(owner_and_mode(&path), expected, "{mode:o}");
        // An own file in this directory keeps the permissions it withholds, and gains none.
        chown(&path, Some(0), Some(0)).expect("taken");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o602)).expect("set");
        put(&path, "again").expect("written");
        let expected = if is_shared { 0o602 & new } else { 0o602 };
        assert_eq!(owner_and_mode(&path), (0, expected), "{mode:o}");
    }
}

#[test]
fn links_of_others_are_followed_only_to_their_own_files() {
    if !is_root() {
        return;
    }
    let directory = directory();
    let base = directory.path();
    make_directory(&base.join("roots"), 0, 0o755);
    make_directory(&base.join("others"), OTHER, 0o755);
    // Owner of the directory with the link, its mode, the link's target, and whether it is followed.
    for (owner, mode, target, is_followed) in [
        (0, 0o1777, "roots", false),
        (0, 0o1777, "others", false),
        (OTHER, 0o1777, "others", true),
        (OTHER, 0o1777, "roots", false),
        (OTHER, 0o755, "others", true),
        (OTHER, 0o755, "roots", false),
    ] {
        let shared = base.join("shared");
        make_directory(&shared, owner, mode);
        let real = base.join(target).join("a.svg");
        symlink(&real, shared.join("file.svg")).expect("linked");
        symlink(base.join(target), shared.join("directory")).expect("linked");
        let links = ["file.svg", "directory"].map(|name| shared.join(name));
        for link in &links {
            lchown(link, Some(OTHER), Some(OTHER)).expect("given away");
        }
        for path in ["file.svg", "directory/a.svg"] {
            fs::write(&real, "old").expect("made");
            let result = put(&shared.join(path), "new");
            let expected = if is_followed { "new" } else { "old" };
            assert_eq!(content(&real), expected, "{owner} {mode:o} {target} {path}: {result:?}");
            if let Err(error) = result {
                assert!(error.to_string().contains("link of user 65534, which is not followed"), "{error}");
            }
            assert!(links.iter().all(|link| link.is_symlink()), "{path}");
        }
        let made = OutputFiles::default().make_directories(&shared.join("directory/new/base"));
        let is_made = base.join(target).join("new").exists();
        assert_eq!(
            (made.is_ok(), is_made),
            (is_followed, is_followed),
            "{owner} {mode:o} {target}: {made:?}"
        );
        let _ = fs::remove_dir_all(base.join(target).join("new"));
        fs::remove_dir_all(&shared).expect("removed");
    }
}

#[test]
fn removing_a_link_keeps_its_target() {
    let directory = directory();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    put(&real, "x").expect("made");
    symlink("real", &link).expect("linked");
    OutputFiles::default().remove(&link).expect("removed");
    OutputFiles::default().remove(&link).expect("nothing to remove");
    assert_eq!(names(directory.path()), ["real"]);
}

fn make_fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
}

#[test]
fn a_pipe_is_written_to_but_not_its_replacement() {
    let directory = directory();
    let path = directory.path().join("pipe");
    make_fifo(&path);
    check_writable(&path).expect("writable");
    let name = path.clone();
    let reader = std::thread::spawn(move || content(&name));
    put(&path, "through").expect("written");
    assert_eq!(reader.join().expect("read"), "through");
    assert_eq!(names(directory.path()), ["pipe"]);

    let victim = directory.path().join("victim");
    for is_link in [false, true] {
        fs::write(&victim, "secret").expect("made");
        let _ = fs::remove_file(&path);
        make_fifo(&path);
        let files = OutputFiles::default();
        files.check(&path).expect("writable");
        let (name, to) = (path.clone(), victim.clone());
        // Just before it is opened.
        let hook = move |step| {
            if step == Step::Examined {
                fs::remove_file(&name).expect("removed");
                let linked = if is_link { symlink(&to, &name) } else { fs::hard_link(&to, &name) };
                linked.expect("linked");
            }
        };
        hook::with(hook, || files.write(&path, |out| out.write_all(b"profile"))).expect("written");
        assert_eq!((content(&victim), content(&path)), ("secret".to_owned(), "profile".to_owned()));
        assert!(!path.is_symlink());
    }
}

#[test]
fn a_pipe_of_another_user_is_not_written_to() {
    if !is_root() {
        return;
    }
    let directory = directory();
    let shared = directory.path().join("shared");
    make_directory(&shared, 0, 0o1777);
    let path = shared.join("a.svg");
    let plant = || {
        make_fifo(&path);
        chown(&path, Some(OTHER), Some(OTHER)).expect("given away");
    };
    plant();
    let files = OutputFiles::default();
    let refused = files.check(&path).expect_err("refused").to_string();
    assert!(refused.contains("it is a pipe or device of user 65534"), "{refused}");
    assert_eq!(put(&path, "x").expect_err("refused").to_string(), refused);
    // Created after the check.
    fs::remove_file(&path).expect("removed");
    files.check(&path).expect("writable");
    plant();
    assert_eq!(files.write(&path, |_| Ok(())).expect_err("refused").to_string(), refused);
}

#[test]
fn open_descriptors_are_written_at_their_offset() {
    let directory = directory();
    let path = directory.path().join("log");
    let mut log = File::create(&path).expect("made");
    log.write_all(b"before ").expect("written");
    let name = |file: &dyn AsRawFd| PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
    let link = directory.path().join("link");
    symlink(name(&log), &link).expect("linked");
    for output in [&name(&log), &link] {
        check_writable(output).expect("writable");
        put(output, "through ").expect("written");
    }
    assert_eq!(content(&path), "before through through ");
    // A socket cannot be opened by name.
    let (mut reader, writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
    put(&name(&writer), "socket").expect("written");
    drop(writer);
    let mut read = String::new();
    reader.read_to_string(&mut read).expect("read");
    assert_eq!(read, "socket");
    let only_read = File::open(&path).expect("opened");
    for (output, expected) in
        [(PathBuf::from("/dev/fd/1000000"), "cannot write"), (name(&only_read), "bad file descriptor")]
    {
        let error = check_writable(&output).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn under_sudo_outputs_belong_to_the_caller() {
    if !is_root() {
        return;
    }
    let directory = directory();
    let base = directory.path();
    fs::set_permissions(base, fs::Permissions::from_mode(0o755)).expect("set");
    let files = under_sudo();
    let write = |path: &Path| files.write(path, |out| out.write_all(b"profile"));
    let denied = |name: &str| {
        let error = write(&base.join(name)).expect_err(name).to_string();
        assert!(error.contains("permission denied to user 1234, who called sudo"), "{name}: {error}");
    };

    make_directory(&base.join("own"), CALLER, 0o700);
    for (named_only, name) in [(false, "own/a.svg"), (true, "own/b.svg")] {
        let path = base.join(name);
        hook::with_named_only(named_only, || {
            files.check(&path).expect("writable");
            write(&path).expect("written");
        });
        let metadata = fs::metadata(&path).expect("there");
        assert_eq!((metadata.uid(), metadata.gid()), (CALLER, CALLERS_GROUP));
    }
    // Links of the caller are followed as far as without sudo.
    make_directory(&base.join("roots"), 0, 0o755);
    fs::write(base.join("roots/a.svg"), "secret").expect("made");
    symlink("../roots/a.svg", base.join("own/link.svg")).expect("linked");
    symlink("../roots", base.join("own/directory")).expect("linked");
    for name in ["own/link.svg", "own/directory"] {
        lchown(base.join(name), Some(CALLER), Some(CALLER)).expect("given away");
    }
    for name in ["own/link.svg", "own/directory/a.svg", "own/directory/new.svg"] {
        assert!(write(&base.join(name)).is_err(), "{name}");
    }
    assert_eq!(
        (content(&base.join("roots/a.svg")).as_str(), names(&base.join("roots")).len()),
        ("secret", 1)
    );
    // A file of root's that must not change, although the directory is the caller's.
    fs::write(base.join("own/kept.svg"), "old").expect("made");
    denied("own/kept.svg");

    // root writes where only root can make changes.
    files.check(&base.join("roots/new.svg")).expect("writable");
    write(&base.join("roots/new.svg")).expect("written");
    assert_eq!(owner_and_mode(&base.join("roots/new.svg")).0, 0);
    files.make_directories(&base.join("roots/more")).expect("made");
    assert_eq!(owner_and_mode(&base.join("roots/more")).0, 0);
    for (name, owner, mode) in
        [("others", OTHER, 0o755), ("groups", 0, 0o775), ("planted", OTHER, 0o1755), ("sticky", 0, 0o1775)]
    {
        make_directory(&base.join(name), owner, mode);
        denied(&format!("{name}/a.svg"));
        assert!(names(&base.join(name)).is_empty());
    }
    make_directory(&base.join("others/roots"), 0, 0o755);
    denied("others/roots/a.svg");
    // The thread has its own rights again.
    assert!(OutputPlace::is_root());
    put(&base.join("roots/after.svg"), "x").expect("written");
}
