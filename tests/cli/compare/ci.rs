//! `gate --junit` and `--github`: output for CI systems, which text from profiles cannot break.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use crate::skip::skip;
use crate::support::{Place, Run, is_root, run};

const HOSTILE: &str = "f<&\"']]>%0A::error::x,y:z\u{1b}[31m##[add-mask]\u{202e}";

/// Seven runs a side; new has more of a function with this name.
fn place(name: &str, more: u64) -> Place {
    let place = Place::new();
    for (side, more) in [("base", 0), ("new", more)] {
        fs::create_dir(place.path(side)).unwrap();
        for run in 0..7 {
            let text = format!(
                "work;main;{name} {}\nwork;main;g 9000\nwork;main;h {}\n",
                3000 + more + 11 * run,
                5000 + 7 * run
            );
            place.write(&format!("{side}/{run}.folded"), &text);
        }
    }
    place
}

fn gate(place: &Place, summary: Option<&str>, words: &str) -> Run {
    let mut command = place.command();
    command.args("gate --base base --new new".split(' ')).args(words.split_whitespace());
    command.env_remove("GITHUB_STEP_SUMMARY");
    if let Some(summary) = summary {
        command.env("GITHUB_STEP_SUMMARY", summary);
    }
    run(command)
}

fn code(run: Run, code: i32) -> Run {
    assert_eq!(run.code, Some(code), "{run}");
    run
}

#[test]
fn junit_has_a_case_for_the_total_and_each_function_that_failed() {
    let place = place("f", 1500);
    code(gate(&place, None, "--junit gate.xml -q"), 3);
    let xml = place.read("gate.xml");
    assert!(xml.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n"), "{xml}");
    assert!(xml.contains(" tests=\"2\" failures=\"2\" errors=\"0\" "), "{xml}");
    assert!(xml.contains("<testcase classname=\"stackprof.gate\" name=\"total\" time=\"0\">"), "{xml}");
    assert!(xml.contains("name=\"function f\""), "{xml}");
    assert_eq!(xml.matches("\">REGRESSION: the program&apos;s CPU time grew by").count(), 2, "{xml}");
    code(gate(&place, None, "--junit again.xml -q"), 3);
    assert_eq!(xml, place.read("again.xml"), "the same runs, the same bytes");

    let place = self::place("f", 0);
    code(gate(&place, None, "--junit gate.xml -q"), 0);
    let xml = place.read("gate.xml");
    assert!(xml.contains(" tests=\"1\" failures=\"0\" ") && !xml.contains("<failure"), "{xml}");
    assert!(xml.contains("would go unseen"), "{xml}");
}

#[test]
fn names_are_escaped_in_xml_and_workflow_commands() {
    let place = place(HOSTILE, 1500);
    let run = code(gate(&place, Some("summary.md"), "--junit gate.xml --github"), 3);
    let xml = place.read("gate.xml");
    // Of the five markup characters only those of the document itself are left.
    let names = [
        "<?xml",
        "<testsuites",
        "</testsuites",
        "<testsuite ",
        "</testsuite>",
        "<properties/>",
        "<testcase",
        "</testcase",
        "<failure",
        "</failure",
        "<system-out",
        "</system-out",
        "<system-err/>",
    ];
    let known: usize = names.iter().map(|name| xml.matches(name).count()).sum();
    assert_eq!(xml.matches('<').count(), known, "{xml}");
    assert!(xml.contains("f&lt;&amp;&quot;&apos;]]&gt;%0A::error::x,y:z\\u{1b}[31m"), "{xml}");
    for text in [&xml, &run.stdout, &place.read("summary.md")] {
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\r']), "{text}");
    }
    assert!(!run.stdout.contains("##["), "{run}");
    let commands: Vec<&str> = run.stdout.lines().filter(|line| line.trim_start().starts_with("::")).collect();
    assert_eq!(commands.len(), 2, "the verdict and the function: {run}");
    assert!(commands[0].starts_with("::error title=stackprof gate::REGRESSION: "), "{run}");
    assert!(
        commands[1].starts_with("::error title=stackprof gate%3A f<&\"']]>%250A%3A%3Aerror%3A%3Ax%2Cy%3Az"),
        "{run}"
    );
}

#[test]
fn the_step_summary_is_appended_to_or_reported_missing() {
    let place = place("f", 0);
    place.write("summary.md", "from an earlier step");
    let run = code(gate(&place, Some("summary.md"), "--github"), 0);
    assert!(
        run.stdout.contains(
            "\n::notice title=stackprof gate::PASS: nothing got slower by more than 5%25. a function"
        ),
        "{run}"
    );
    assert_eq!(run.stderr, "");
    let text = place.read("summary.md");
    assert!(text.starts_with("from an earlier step\n### ✅ PASS: "), "{text}");
    code(gate(&place, Some("summary.md"), "--github -q"), 0);
    assert_eq!(place.read("summary.md").matches("### ✅ PASS: ").count(), 2);
    code(gate(&place, Some("none-yet.md"), "--github"), 0);
    assert!(place.read("none-yet.md").starts_with("### ✅ PASS: "));
    for summary in [None, Some("")] {
        let run = code(gate(&place, summary, "--github"), 0);
        let line = "stackprof: --github: GITHUB_STEP_SUMMARY is not set, as outside of GitHub Actions: no step summary\n";
        assert_eq!(run.stderr, line, "{run}");
        assert!(run.stdout.contains("\n::notice "), "{run}");
    }
}

#[test]
fn only_a_regular_summary_file_is_appended_to() {
    let place = place("f", 0);
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    fs::create_dir(place.path("directory")).unwrap();
    for (summary, needle, exit) in [
        ("pipe", "only a regular file is appended to", 1),
        ("/dev/null", "only a regular file is appended to", 1),
        ("/dev/stdout", "only a regular file is appended to", 1),
        ("directory", "it is a directory", 1),
        ("gone/summary.md", "the directory `gone` does not exist", 1),
        ("base/0.folded", "which this gate reads", 2),
        ("./out.md", "`out.md` is the same file; each output needs its own", 1),
    ] {
        gate(&place, Some(summary), "--github --markdown out.md").fails_with(exit, &[needle]);
    }
    assert!(place.read("base/0.folded").starts_with("work;main;f 3000\n"));
    if !is_root() {
        skip("only root can give files to other users");
        return;
    }
    let other = 65_534;
    fs::create_dir(place.path("shared")).unwrap();
    fs::set_permissions(place.path("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    place.write("secret", "secret");
    place.write("shared/planted.md", "planted");
    chown(place.path("shared/planted.md"), Some(other), Some(other)).unwrap();
    symlink("../secret", place.path("shared/link.md")).unwrap();
    std::os::unix::fs::lchown(place.path("shared/link.md"), Some(other), Some(other)).unwrap();
    gate(&place, Some("shared/planted.md"), "--github").fails_with(1, &["it is a file of user 65534"]);
    gate(&place, Some("shared/link.md"), "--github")
        .fails_with(1, &["link of user 65534, which is not followed"]);
    assert_eq!(
        (place.read("secret").as_str(), place.read("shared/planted.md").as_str()),
        ("secret", "planted")
    );
}
