use super::*;
use crate::ByName;
use crate::rng::Rng;
use crate::rounds::seeds;

/// Formats the stacks as folded lines.
fn lines(saved: &SavedProfile) -> Vec<String> {
    let by_name = ByName::of(saved, false).expect("fits");
    let mut lines = Vec::new();
    by_name.for_each_stack(|path, count| {
        let names: Vec<&str> = path.iter().map(|name| by_name.text(*name)).collect();
        lines.push(format!("{} {count}", names.join(";")));
    });
    lines
}

fn parsed(text: &str) -> Vec<String> {
    lines(&read(text.as_bytes(), "a.folded").expect("reads"))
}

fn refused(bytes: &[u8]) -> String {
    let error = read(bytes, "a.folded").expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Input);
    error.to_string()
}

#[test]
fn equal_stacks_are_added_up_and_frames_shared() {
    let text =
        "p;main;a;b;c;d 1\np;main;a;b;c 2\np;main;a;b;c;d;e 3\np;main;a;b;cc 4\np;main;a;b;c;d 5\np 6\n";
    let saved = read(text.as_bytes(), "a").expect("reads");
    assert_eq!(
        lines(&saved),
        ["p 6", "p;main;a;b;c 2", "p;main;a;b;c;d 6", "p;main;a;b;c;d;e 3", "p;main;a;b;cc 4"]
    );
    assert_eq!(saved.trie().node_count(), 1 + 8);
    assert_eq!(saved.total(), 21);
}

#[test]
fn threads_and_incomplete_stacks_are_roots() {
    let text = "p;(18);[incomplete];read 1\np;[incomplete];read 2\np;io (17) 3\np;io (17);[incomplete] 4\np;io (17);main 5\n";
    let saved = read(text.as_bytes(), "a").expect("reads");
    assert_eq!(lines(&saved), text.lines().collect::<Vec<_>>());
    assert_eq!(saved.roots().len(), 4);
    assert!(saved.roots().iter().all(|root| saved.text(root.process) == "p"));
    for no_thread in ["io (017)", "io  (1)", "io(1)", "io (x)", "io (18446744073709551616)", " (1)"] {
        let saved = read(format!("p;{no_thread};main 1").as_bytes(), "a").expect("reads");
        assert_eq!(saved.roots().len(), 1, "{no_thread}");
        assert_eq!(saved.roots()[0].thread, None, "{no_thread}");
    }
}

#[test]
fn blank_lines_and_windows_line_ends_are_allowed() {
    assert_eq!(parsed("\na;b 1\r\n  \n\u{a0}\n\na;b 2\nc 4"), ["a;b 3", "c 4"]);
    assert_eq!(parsed(""), [""; 0]);
}

/// The stacks of a text and its remarks.
fn remarked(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let mut tally = Tally::new("a.folded");
    let saved = read_lines(bytes, "a.folded", &mut tally).expect("reads");
    (lines(&saved), tally.judge(false).expect("not more than half"))
}

#[test]
fn any_other_line_is_skipped_and_reported_by_file_and_number() {
    for bad in ["a;b", "a;b x", "a;b -1", "a;b 1.", "a;b .5", "a;b 1.5.5", "a;b ", "12", "a +1", "\u{a0} 1"] {
        let (stacks, remarks) = remarked(format!("ok 1\n\n{bad}\n").as_bytes());
        assert_eq!(stacks, ["ok 1"], "{bad:?}");
        let expected = "1 line not understood, first: a.folded:3: expected \"stack count\"";
        assert_eq!(remarks, [expected], "{bad:?}");
        let most = refused(format!("ok 1\n{bad}\n{bad}\n").as_bytes());
        assert_eq!(most, "a.folded:2: expected \"stack count\"; 2 of 3 lines not understood", "{bad:?}");
    }
    assert_eq!(refused(b"\x01\xff 1\n"), "a.folded:1: not text; this is not a profile");
    assert_eq!(refused(b"\x00\xff"), "a.folded:1: not text; this is not a profile");
}

#[test]
fn lines_of_other_tools_are_read() {
    for (text, expected) in [
        ("# austin: 3.6.0\n# interval: 100\n#\n#x\na;b 3\n", &["a;b 3"][..]),
        ("#p;a 3\n", &["#p;a 3"]),
        ("# stacks; by x\na 3\n", &["a 3"]),
        ("app;a 3 \napp;b 5  \t\r\n", &["app;a 3", "app;b 5"]),
        ("app;a\t3\napp;b \t 5\n", &["app;a 3", "app;b 5"]),
        ("app;a 1.0\napp;b 2.00\n", &["app;a 1", "app;b 2"]),
        ("app;a 0.5\napp;a 0.5\napp;b 2\n", &["app;a 1", "app;b 2"]),
        ("app;a 1.5\napp;b 2.5\n", &["app;a 1500", "app;b 2500"]),
        ("a 3\n 1\n", &["[unknown] 1", "a 3"]),
        ("x 12 2\ny 3\n", &["x 12 2", "y 3"]),
    ] {
        assert_eq!(
            remarked(text.as_bytes()),
            (expected.iter().map(|line| (*line).to_owned()).collect(), vec![])
        );
    }
}

#[test]
fn bytes_that_are_not_utf8_are_latin_1() {
    let (stacks, remarks) =
        remarked(b"p;a;b;c;caf\xe9 1\np;a;b;c;caf\xe8;x 2\np;a;b;c;d 3\np;a;b;c;caf\xe9 4\n");
    assert_eq!(stacks, ["p;a;b;c;caf\u{e8};x 2", "p;a;b;c;caf\u{e9} 5", "p;a;b;c;d 3"]);
    assert!(remarks.is_empty(), "{remarks:?}");
}

#[test]
fn two_counts_on_every_line_are_a_difference() {
    for other in ["p;x 12 2\n", "p;x 12 2\np;main;x 12 3\n", "p;x 1 2\np;x 2 3\n", "p;x 1 2\np;y 3\n"] {
        assert_eq!(remarked(other.as_bytes()).0.len(), 1 + usize::from(other.len() > 10), "{other}");
    }
    for text in
        ["app;a 3 4\napp;b 5 6\n", "app;a 3\t4\nb 1 1\n", "app;a 1.5 2.5\nb 1 1\n", "app;a 10 2 \nc 0 1"]
    {
        assert!(refused(text.as_bytes()).starts_with("a.folded: two counts on every line: "), "{text}");
    }
}

#[test]
fn counts_are_never_silently_truncated() {
    let one = "a.folded:1: the count does not fit in 64 bits";
    assert_eq!(refused(b"a 18446744073709551616\n"), one);
    assert_eq!(refused(b"a 99999999999999999999999999999999999999999\n"), one);
    let second = "a.folded:2: the count does not fit in 64 bits";
    assert_eq!(refused(b"a 18446744073709551615\na 1\n"), second);
    let sum = "a.folded:2: the counts together do not fit in 64 bits";
    assert_eq!(refused(b"a 18446744073709551615\nb 1\n"), sum);
}

#[test]
fn an_endless_line_is_refused_without_reading_it_all() {
    let error = read(std::io::repeat(b'x'), "/dev/zero").expect_err("refused");
    assert_eq!(error.to_string(), "/dev/zero:1: line longer than 16 MiB; this is not a profile");
}

#[test]
fn stacks_are_limited_to_the_depth_of_every_format() {
    for root in ["p", "p;io (7)", "p;io (7);[incomplete]"] {
        let deepest = format!("{root}{}", ";f".repeat(DEPTH_MAX));
        assert_eq!(read(format!("{deepest} 1\n").as_bytes(), "a").expect("reads").total(), 1);
        assert_eq!(
            refused(format!("p;a 1\n{deepest};f 1\n").as_bytes()),
            "a.folded:2: a stack has more than 262144 functions (DEPTH_MAX)"
        );
    }
}

/// A reader that returns its bytes in pieces of any size, like pipes.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let size = self.1.min(self.0.len()).min(into.len());
        let (piece, rest) = self.0.split_at(size);
        into[..size].copy_from_slice(piece);
        self.0 = rest;
        Ok(size)
    }
}

#[test]
fn input_in_pieces_and_lines_longer_than_a_block_are_read() {
    let deep = (0..250_000).map(|n| format!("frame{n}")).collect::<Vec<_>>().join(";");
    let text = format!("p;a 1\np;{deep} 2\np;{deep};x 3\np;a 4");
    for size in [7, BLOCK_BYTES - 1, BLOCK_BYTES, usize::MAX] {
        let saved = read(Pieces(text.as_bytes(), size), "a").expect("reads");
        assert_eq!((saved.total(), saved.trie().distinct_stacks()), (10, 3), "{size}");
        assert_eq!(saved.trie().node_count(), 2 + 1 + 250_001, "{size}");
    }
}

#[test]
fn random_lines_add_up_like_whole_lines() {
    let names = ["a", "b", "aa", "ab", "a (1)", "[incomplete]", "é", "x y", "a b 7x"];
    for seed in seeds(0..200) {
        let mut rng = Rng::new(seed);
        let mut text = String::new();
        let mut sums = std::collections::BTreeMap::new();
        for _ in 0..rng.below(40) {
            let depth = rng.within(1, 9);
            let stack: Vec<&str> = (0..depth).map(|_| rng.pick(&names)).collect();
            let (stack, count) = (stack.join(";"), rng.within(1, 5));
            text += &format!("{stack} {count}\n");
            *sums.entry(stack).or_insert(0) += count;
        }
        let mut expected: Vec<String> =
            sums.into_iter().map(|(stack, count)| format!("{stack} {count}")).collect();
        expected.sort_unstable();
        assert_eq!(parsed(&text), expected, "seed {seed}:\n{text}");
    }
}
