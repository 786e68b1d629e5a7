//! Programs started by links, and the names that they can claim.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::addr::Avma;
use crate::sources::linux::images::Maps;

/// Copies a file in another process: a concurrent test could inherit the descriptor open for writing here,
/// and the file could then not be executed.
fn copy(from: impl AsRef<Path>, to: &Path) {
    let copied = Command::new("cp").args(["-L", "-p"]).arg(from.as_ref()).arg(to).status().unwrap();
    assert!(copied.success());
}

/// A directory with a program, `engine`, and links to it.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        // A shell works under any name.
        copy("/bin/sh", &place.path("engine"));
        symlink("engine", place.path("link")).unwrap();
        symlink("link", place.path("second")).unwrap();
        fs::hard_link(place.path("engine"), place.path("hard")).unwrap();
        fs::create_dir(place.path("elsewhere")).unwrap();
        symlink(place.path("engine"), place.path("elsewhere/far")).unwrap();
        symlink("/bin/true", place.path("other")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// A process that waits for its standard input, until its test ends.
struct Waiting(Child);

impl Waiting {
    fn start(command: &mut Command) -> Waiting {
        Waiting(command.args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap()).begun()
    }

    /// Waits until the program has started: its memory is readable while it is being set up.
    fn begun(self) -> Waiting {
        let pid = self.0.id().cast_signed();
        for _ in 0..100_000 {
            if path_of_execve(pid).is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self
    }

    /// The path it was started by, if its process is called `name`.
    fn started_as(&self, name: &str) -> Option<String> {
        let pid = self.0.id().cast_signed();
        let mut mappings = Vec::new();
        Maps::default().read(pid, &mut mappings).unwrap();
        let mut path = StartPath::default();
        let (files, patience) = (TargetFiles::of(pid), Patience::default());
        let found = path.of(pid, name, &files, &patience, &mappings)?;
        assert!(mappings.iter().any(|mapping| mapping.path == found.file), "{found:?}");
        Some(found.started_as.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: impl AsRef<Path>) -> Command {
    Command::new(program.as_ref())
}

#[test]
fn a_link_is_the_path_of_its_program() {
    let place = Place::new();
    for (started, expected) in [
        ("engine", None),
        ("link", Some("link")),
        ("second", Some("second")),
        ("elsewhere/far", Some("elsewhere/far")),
        // Its mappings have that name themselves.
        ("hard", None),
    ] {
        let running = Waiting::start(&mut run(place.path(started)));
        assert_eq!(running.started_as("sh"), expected.map(|name| place.text(name)), "{started}");
    }
    for (started, expected) in [("./link", "link"), ("./elsewhere/far", "elsewhere/far")] {
        let running = Waiting::start(run(started).current_dir(place.path(".")));
        assert_eq!(running.started_as("sh"), Some(place.text(expected)), "{started}");
    }
}

#[test]
fn a_self_chosen_name_does_not_count() {
    let place = Place::new();
    for claimed in ["redis-server", "/bin/true", "/no/such", "", ".", "/", "link/", "other"] {
        let running = Waiting::start(run(place.path("engine")).arg0(claimed));
        assert_eq!(running.started_as(claimed), None, "{claimed}");
        let running = Waiting::start(run(place.path("link")).arg0(claimed));
        assert_eq!(running.started_as(claimed), Some(place.text("link")), "{claimed}");
    }
    // A link to its file, but not how it was started.
    let running = Waiting::start(run(place.path("engine")).arg0(place.path("link")));
    assert_eq!(running.started_as("link"), None);
}

#[test]
fn an_interpreter_has_the_name_in_its_script() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let (text, script) = (place.path("text"), place.path("script"));
    fs::write(&text, format!("#!{}\nread line\n", place.text("link"))).unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    copy(&text, &script);
    let running = Waiting(run(&script).stdin(Stdio::piped()).spawn().unwrap()).begun();
    assert_eq!(running.started_as("script"), Some(place.text("link")));
}

#[test]
fn a_link_that_was_redirected_does_not_count() {
    let place = Place::new();
    let running = Waiting::start(&mut run(place.path("second")));
    fs::remove_file(place.path("second")).unwrap();
    assert_eq!(running.started_as("second"), None, "it is gone");
    symlink("/bin/true", place.path("second")).unwrap();
    assert_eq!(running.started_as("second"), None, "it is another program's");
    // Its name is that of a link next to its file.
    assert_eq!(running.started_as("link"), Some(place.text("link")));
}

#[test]
fn a_replaced_program_keeps_its_name() {
    let place = Place::new();
    let running = Waiting::start(&mut run(place.path("link")));
    fs::remove_file(place.path("hard")).unwrap();
    copy("/bin/true", &place.path("new"));
    fs::rename(place.path("new"), place.path("engine")).unwrap();
    assert_eq!(running.started_as("link"), Some(format!("{} (deleted)", place.text("link"))));
    fs::remove_file(place.path("engine")).unwrap();
    assert_eq!(running.started_as("link"), None, "nothing is there any more");
}

#[test]
fn an_exited_process_is_identified_by_its_name() {
    let place = Place::new();
    let meta = fs::metadata(place.path("engine")).unwrap();
    let mapping = |start: u64, path: String, identity| {
        Mapping::of_file(Avma(start)..Avma(start + 0x1000), 0, path, identity)
    };
    let mappings = [
        mapping(0x1000, place.text("engine"), (meta.dev(), meta.ino())),
        mapping(0x9000, "/lib/ld.so".to_owned(), (1, 1)),
    ];
    // Above the largest pid of Linux.
    let pid = 4_194_305;
    let (files, patience) = (TargetFiles::of(std::process::id().cast_signed()), Patience::default());
    let started_as = |name: &str| {
        let found = StartPath::default().of(pid, name, &files, &patience, &mappings);
        found.map(|path| path.started_as.clone())
    };
    assert_eq!(started_as("link"), Some(place.text("link")));
    for name in ["engine", "far", "other", "..", "", "../link/x"] {
        assert_eq!(started_as(name), None, "{name}");
    }
}

#[test]
fn the_path_is_searched_once_and_only_for_a_mapped_program() {
    let place = Place::new();
    let running = Waiting::start(&mut run(place.path("link")));
    let pid = running.0.id().cast_signed();
    let (files, patience) = (TargetFiles::of(pid), Patience::default());
    let mut path = StartPath::default();
    assert_eq!(path.of(pid, "link", &files, &patience, &[]), None);
    let mut mappings = Vec::new();
    Maps::default().read(pid, &mut mappings).unwrap();
    let found = path.of(pid, "link", &files, &patience, &mappings);
    assert!(found.is_some());
    fs::remove_file(place.path("link")).unwrap();
    assert_eq!(path.of(pid, "link", &files, &patience, &[]), found);
}

#[test]
fn reads_execfn_from_pairs() {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    assert_eq!(execfn(&words(&[6, 31, AT_EXECFN, 0x7ff0, 0, 0])), Some(0x7ff0));
    assert_eq!(execfn(&words(&[6, 31, AT_EXECFN])), None);
    assert_eq!(execfn(b"short"), None);
    assert_eq!(text(b"/bin/x\0rest"), Some("/bin/x".to_owned()));
    assert_eq!((text(b"no end"), text(b"\0"), text(b"\xff\0")), (None, None, None));
}
