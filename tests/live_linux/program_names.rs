//! A program that was started by a link has the name of that link in frames, by both sources.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::by_kernel::sampled;
use crate::support::{Fixture, Recorded, attach, compile, launch, live, stackprof};

/// A directory with two links to a stripped program, `engine`.
struct Links(TempDir);

impl Links {
    fn new() -> Links {
        let links = Links(tempfile::tempdir().unwrap());
        let engine = compile("exec", "engine", &["-DNAME=engine", "-s"]);
        for name in ["server", "checker"] {
            symlink(&engine, links.path(name)).unwrap();
        }
        links
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The samples with a frame of this module below a root frame of this name.
fn count(recorded: &Recorded, root: &str, module: &str) -> u64 {
    let (root, module) = (format!("{root};"), format!("[{module}:fn+"));
    let lines = recorded.folded.lines().filter(|line| line.starts_with(&root) && line.contains(&module));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

/// Each of two programs in a row is known by the link that it was started by.
fn check_two(recorded: &Recorded) {
    recorded.check_success();
    for name in ["server", "checker"] {
        recorded.check(count(recorded, name, name) > 50, format!("no frames of {name}"));
    }
    recorded.check(!recorded.folded.contains("[engine"), "the file's name");
}

fn launch_two(source: &str) {
    let links = Links::new();
    let next = links.path("checker");
    let recorded = launch(&["--source", source], &links.path("server"), &[next.to_str().unwrap()]);
    check_two(&recorded);
}

#[test]
fn a_link_names_its_program_in_a_launched_command_by_stops() {
    let Some(_one) = live() else { return };
    launch_two("ptrace");
}

#[test]
fn a_link_names_its_program_in_a_launched_command_by_the_kernel() {
    let Some(_one) = sampled() else { return };
    launch_two("perf");
}

fn attach_to(source: &str, program: &Path, arg0: &str) -> Recorded {
    use std::os::unix::process::CommandExt;
    let mut target = Fixture::run(Command::new(program).arg0(arg0).arg("wait"));
    target.line("ready");
    let running = attach(target.pid(), &["--source", source]);
    target.go();
    target.line("finished");
    drop(target);
    let recorded = running.wait();
    recorded.check_success();
    recorded
}

fn attach_by(source: &str) {
    let links = Links::new();
    let server = links.path("server");
    let recorded = attach_to(source, &server, server.to_str().unwrap());
    recorded.check(count(&recorded, "server", "server") > 50, "no frames of server");
    // `exec -a`: the name of a program that it is not.
    let engine = compile("exec", "engine", &["-DNAME=engine", "-s"]);
    let recorded = attach_to(source, &engine, "/usr/bin/redis-server");
    recorded.check(count(&recorded, "engine", "engine") > 50, "no frames of engine");
}

#[test]
fn a_link_names_a_running_program_by_stops() {
    let Some(_one) = live() else { return };
    attach_by("ptrace");
}

#[test]
fn a_link_names_a_running_program_by_the_kernel() {
    let Some(_one) = sampled() else { return };
    attach_by("perf");
}

#[test]
fn dumps_and_saved_profiles_have_the_name_of_the_link() {
    let Some(_one) = live() else { return };
    let links = Links::new();
    let mut target = Fixture::run(Command::new(links.path("server")).arg("wait"));
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
    said(&["-q", "--source", "ptrace", "-o", "a.pb.gz", "--", "./server"]);
    // The mapping of pprof has the path of the link, which leads to the file.
    let table = said(&["render", "a.pb.gz", "--top"]);
    assert!(table.contains("(server)") && !table.contains("engine"), "{table}");
}
