//! `dump`: what it shows of a live program is there, and the program goes on.

use crate::support::{Fixture, assert_untouched, live, stackprof};

fn dump(what: &str, pid: u32) -> String {
    let output = stackprof().args(["dump", what, "--pid", &pid.to_string()]).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "dump {what}: {} {stderr}", output.status);
    assert_eq!(stderr, "", "dump {what}");
    assert_untouched(pid, format!("dump {what}"));
    stdout
}

#[test]
fn dumps_show_a_live_program_that_goes_on() {
    let Some(_one) = live() else { return };
    let mut target = Fixture::start("threads", ["3", "12", "2"]);
    target.line("ready");
    target.go();
    let pid = target.pid();

    let threads = dump("threads", pid);
    for name in ["threads", "worker0", "worker1", "worker2"] {
        assert!(threads.lines().any(|line| line.ends_with(&format!("  {name}"))), "no {name} in\n{threads}");
    }
    assert_eq!(threads.lines().count(), 5, "{threads}");

    let images = dump("images", pid);
    for file in ["live/threads", "libc.so", "[vdso]"] {
        assert!(images.contains(file), "no {file} in\n{images}");
    }

    let symbols = dump("symbols", pid);
    for function in ["main", "recurse", "work", "work_leaf"] {
        assert!(
            symbols.lines().any(|line| line.split_whitespace().any(|word| word == function)),
            "no {function} in the symbols"
        );
    }

    let stacks = dump("stacks", pid);
    let of_threads: Vec<&str> = stacks.split("\n\n").filter(|text| text.starts_with("thread")).collect();
    assert_eq!(of_threads.len(), 4, "{stacks}");
    for text in of_threads {
        let names: Vec<&str> =
            text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3)).collect();
        let first = text.lines().next().unwrap_or_default();
        if first.contains("(worker") {
            let recursions = names.iter().filter(|name| **name == "recurse").count();
            let (work, start) = (names.contains(&"work"), names.contains(&"start"));
            assert!(recursions == 12 && work && start, "{text}");
        } else {
            assert!(names.contains(&"main"), "{text}");
        }
    }

    assert_eq!(target.done().len(), 4);
    assert!(target.finish().0.success());
}
