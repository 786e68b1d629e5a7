//! The HTML page as an output: of recordings, saved profiles and comparisons. Its content is tested next to
//! the writer and in a browser (tests/html).

use crate::support::Place;

/// The text between two delimiters.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    text.split_once(before)
        .and_then(|(_, rest)| rest.split_once(after))
        .map_or_else(|| panic!("{before}"), |(part, _)| part)
}

#[test]
fn the_same_recording_gives_the_same_page() {
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
fn pages_are_not_read_and_not_written_by_the_gate() {
    let place = Place::new();
    place.write("a.folded", "work;main 3\n");
    place.run("render -q a.folded -o a.html").succeeds();
    let run = place.run("render a.html -o -");
    assert!(run.stderr.contains("a web page cannot be read"), "{run}");
    let run = place.run("gate --base a.folded --new a.folded -o g.html");
    assert!(run.stderr.contains("expected a name that ends with .md, .json"), "{run}");
}

/// The header of the data of a page.
#[cfg(unix)]
fn header(page: &str) -> serde_json::Value {
    use std::io::Read;
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let text = between(page, "id=\"profile\">", "</script>").trim_end_matches('=');
    let (mut gzip, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for digit in text.bytes() {
        (bits, count) = (bits << 6 | u32::from(value(digit)), count + 6);
        if count >= 8 {
            count -= 8;
            gzip.push((bits >> count) as u8);
        }
    }
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(gzip.as_slice()).read_to_end(&mut bytes).unwrap();
    let length = u32::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    serde_json::from_slice(&bytes[4..4 + length]).unwrap()
}

/// Source in a page is below the working directory or a given directory, wherever links lead.
#[cfg(unix)]
#[test]
fn source_in_a_page_is_from_the_given_directories() {
    if !crate::support::can_trace() {
        return;
    }
    let place = Place::new();
    place.shell("mkdir work other").succeeds();
    let spin = "static volatile unsigned sink;\n\
                __attribute__((noinline)) void spin(unsigned rounds) {\n\
                \x20   for (unsigned i = 0; i < rounds; i++) sink = sink * 3 + i;\n\
                }\n";
    place.write("work/spin.c", &format!("{spin}void far(void); void linked(void);\nint main(void) {{ spin(50000000u); far(); linked(); return 0; }}\n"));
    for name in ["far", "linked"] {
        let text = format!(
            "static volatile unsigned sink;\nvoid {name}(void) {{ for (unsigned i = 0; i < 50000000u; i++) sink = sink * 3 + i; }}\n"
        );
        place.write(&format!("other/{name}.c"), &text);
    }
    // A link below the working directory to a file outside of it.
    place.shell("ln -s ../other/linked.c work/linked.c").succeeds();
    place
        .shell("cc -g -O1 -Wl,--build-id=sha1 -o spin \"$PWD/work/spin.c\" \"$PWD/other/far.c\" \"$PWD/work/linked.c\"")
        .succeeds();
    let sources = |options: &str| {
        let run =
            place.shell(&format!("cd work && \"$STACKPROF\" --no-kernel {options} -o ../a.html -- ../spin"));
        let run = run.succeeds();
        let header = header(&place.read("a.html"));
        let names = header["sources"].as_object().map(|sources| sources.keys().cloned().collect::<Vec<_>>());
        let has_code = header["strings"].as_array().unwrap().iter().any(|text| {
            text.as_str().is_some_and(|text| text.starts_with("imul ") || text.starts_with("lea "))
        });
        (names.unwrap_or_default(), has_code, run.stderr)
    };
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (names, has_code, said) = sources("-q");
    assert_eq!((names, said.as_str()), (vec![path("work/spin.c")], ""));
    assert!(has_code || !cfg!(target_arch = "x86_64"));
    assert_eq!(sources("--no-source").0, [""; 0]);
    let (names, ..) = sources("--source-dir ../other");
    assert_eq!(names, [path("other/far.c"), path("work/linked.c")]);
    if crate::support::is_root() {
        // The link of another user, who could choose the shown file.
        place.shell("chown -h 65534 work/linked.c").succeeds();
        let (names, _, said) = sources("--source-dir ../other");
        assert_eq!(names, [path("other/far.c")]);
        let left_out = said.lines().find(|line| line.contains("source left out")).unwrap_or_default();
        assert!(left_out.contains("user 65534") && left_out.matches("linked.c").count() == 1, "{said}");
        assert_eq!(sources("-q --source-dir ../other").2, "");
    }
    // A saved profile may come from elsewhere: its page has source only from given directories.
    let of_saved = |options: &str| {
        let script = format!("cd work && \"$STACKPROF\" render -q ../a.pb.gz {options} -o ../b.html");
        place.shell(&script).succeeds();
        let header = header(&place.read("b.html"));
        let names = header["sources"].as_object().map(|sources| sources.keys().cloned().collect::<Vec<_>>());
        names.unwrap_or_default()
    };
    place.shell("\"$STACKPROF\" -q --no-kernel -o a.pb.gz -- ./spin").succeeds();
    assert_eq!(of_saved(""), [""; 0]);
    assert_eq!(of_saved("--source-dir ."), [path("work/spin.c")]);
    // A large file is omitted, and named.
    place.shell("truncate -s 100M work/spin.c").succeeds();
    let (names, _, said) = sources("");
    assert!(
        names.is_empty() && said.contains("source left out: ") && said.contains("spin.c: longer than 2 MiB"),
        "{said}"
    );
}
