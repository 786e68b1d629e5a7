//! The HTML page as an output: of recordings, saved profiles and comparisons. What is in it is tested beside the writer and in
//! a browser (tests/html).

use crate::support::Place;

/// What stands between two marks.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    text.split_once(before)
        .and_then(|(_, rest)| rest.split_once(after))
        .map_or_else(|| panic!("{before}"), |(part, _)| part)
}

#[test]
fn a_recording_is_the_same_page_each_time() {
    let place = Place::new();
    place.run("--target sim:3 --threads -q -o a.html -o a.pb.gz").succeeds();
    place.run("--target sim:3 --threads -q -o b.html").succeeds();
    let page = place.read("a.html");
    assert!(page == place.read("b.html"), "same run, same bytes");
    assert!(page.starts_with("<!DOCTYPE html>"));
    assert!(
        between(&page, "Content-Security-Policy\" content=\"", "\">")
            .starts_with("default-src 'none'; script-src 'sha256-")
    );
    assert!(between(&page, "id=\"profile\">", "</script>").starts_with("H4sI"), "gzip in base64");
}

#[test]
fn saved_profiles_and_comparisons_become_pages() {
    let place = Place::new();
    place.write("a.folded", "work;main;parse 30\nwork;main;gone 4\n");
    place.write("b.folded", "work;main;parse 50\n");
    let run = place.run("render a.folded -o a.html").succeeds();
    assert!(run.stderr.ends_with(", wrote a.html\n"), "{run}");
    place.run("render a.folded --format html -o a.page").succeeds();
    assert!(place.read("a.page") == place.read("a.html"));
    place.run("diff a.folded b.folded -q -o d.html -o d.svg").succeeds();
    place.run("diff a.folded b.folded -q -o again.html").succeeds();
    let data = |file: &str| between(&place.read(file), "id=\"profile\">", "</script>").to_owned();
    assert_eq!(data("d.html"), data("again.html"));
    assert_ne!(data("d.html"), data("a.html"));
}

#[test]
fn a_page_is_no_input_and_no_report_of_the_gate() {
    let place = Place::new();
    place.write("a.folded", "work;main 3\n");
    place.run("render -q a.folded -o a.html").succeeds();
    let run = place.run("render a.html -o -");
    assert!(run.stderr.contains("a web page cannot be read"), "{run}");
    let run = place.run("gate --base a.folded --new a.folded -o g.html");
    assert!(run.stderr.contains("expected a name that ends with .md, .json"), "{run}");
}
