//! A program started by a link has the name of that link in frames, by both sources.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Fixture, Recorded, attach, compile, launch, live, record_until, sources, stackprof};

/// A directory with two links to a stripped program, `engine`.
struct Links(TempDir);

impl Links {
    fn new() -> Links {
        let links = Links(tempfile::tempdir().unwrap());
        for name in ["server", "checker"] {
            symlink(engine(), links.path(name)).unwrap();
        }
        links
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn engine() -> PathBuf {
    compile("exec", "engine", &["-DNAME=engine", "-s"])
}

/// Whether frames of a module are below a root frame with the same name.
fn shows(recorded: &Recorded, name: &str) -> bool {
    let module = format!("[{name}:fn+");
    recorded
        .shows(|stack| stack.frames[0] == name && stack.frames.iter().any(|frame| frame.starts_with(&module)))
}

fn attach_to(source: &str, program: &Path, arg0: &str) -> Recorded {
    let mut target = Fixture::run(Command::new(program).arg0(arg0).arg("wait"));
    target.line("ready");
    let running = attach(target.pid(), &["--source", source, "--hz", "997"]);
    target.go();
    target.line("finished");
    drop(target);
    running.wait()
}

#[test]
fn a_link_names_its_program() {
    if !live() {
        return;
    }
    let links = Links::new();
    let server = links.path("server");
    for source in sources() {
        let options = ["--source", source, "--hz", "997"];
        let two = || {
            let recorded = launch(&options, &server, &[links.path("checker")]);
            recorded.check(!recorded.folded.contains("[engine"), "the file's name");
            recorded
        };
        record_until("both links", two, |recorded| shows(recorded, "server") && shows(recorded, "checker"));
        let running = || attach_to(source, &server, server.to_str().unwrap());
        record_until("the link", running, |recorded| shows(recorded, "server"));
        // `exec -a`: the name of a different program.
        let running = || attach_to(source, &engine(), "/usr/bin/redis-server");
        record_until("the program", running, |recorded| shows(recorded, "engine"));
    }

    let mut target = Fixture::run(Command::new(&server).arg("wait"));
    target.line("ready");
    let pid = target.pid().to_string();
    let said = |arguments: &[&str]| {
        let output = stackprof().current_dir(links.0.path()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let stacks = said(&["dump", "stacks", "--pid", &pid]);
    assert!(stacks.contains("[server:fn+") && !stacks.contains("[engine"), "{stacks}");
    drop(target);
    // The mapping of pprof has the path of the link, which leads to the file.
    let saved = links.path("a.pb.gz");
    record_until(
        "the link",
        || launch(&["--hz", "997", "-o", saved.to_str().unwrap()], &server, &[""; 0]),
        |recorded| shows(recorded, "server"),
    );
    let table = said(&["render", "a.pb.gz", "--top"]);
    assert!(table.contains("(server)") && !table.contains("engine"), "{table}");
}
