//! The page: deterministic output, a policy that identifies its script, and no text of a profile outside of
//! the data.

use std::io::Read;

use super::super::folded;
use super::*;
use crate::heap::InuseHistory;
use crate::heap::{LiveChange, LiveHistory};
use crate::rng::Rng;
use crate::timeline::{Event, EventKind, Loss, ThreadTimeline, TimedSample, Timeline};
use crate::trie::NodeId;
use crate::{About, SavedBuilder, StackRoot, StackValues, TextId};

/// Names that would have an effect in markup.
const HOSTILE: [&str; 8] = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'`&lt;--!>",
    "<!--<script>",
    "]]>{DATA}{SCRIPT}{POLICY}",
    "\u{202e}gnp.exe",
    "a\u{0}b\u{1b}[31m",
    "javascript:alert(1)//",
];

fn saved(folded: &str) -> SavedProfile {
    folded::read(folded.as_bytes(), "a").expect("reads")
}

fn html(saved: &SavedProfile, title: &str) -> String {
    let mut out = Vec::new();
    Page::of(saved, title, Some("perf_event; why <b>")).expect("fits").write(&mut out).expect("writes");
    String::from_utf8(out).expect("text")
}

/// The text between two delimiters.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text.split_once(before).expect(before);
    rest.split_once(after).expect(after).0
}

/// The header of a page's data, and its columns.
fn data(page: &str) -> (serde_json::Value, Vec<u8>) {
    let text = between(page, "id=\"profile\">", "</script>");
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'=').map(value_of_digit).collect();
    let mut gzip = Vec::new();
    for group in digits.chunks(4) {
        let bits =
            group.iter().fold(0u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - group.len()));
        gzip.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(gzip.as_slice()).read_to_end(&mut bytes).expect("gzip");
    let (length, rest) = bytes.split_first_chunk::<4>().expect("a length");
    let (header, columns) = rest.split_at(u32::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).expect("JSON"), columns.to_vec())
}

fn value_of_digit(digit: u8) -> u8 {
    match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("no digit of base64: {other}"),
    }
}

/// The numbers of a plain column.
fn plain(page: &str, wanted: &str) -> Vec<u64> {
    numbers(page, wanted, "plain")
}

/// The encoded numbers of a column of this form.
fn numbers(page: &str, wanted: &str, form: &str) -> Vec<u64> {
    let (header, columns) = data(page);
    let mut at = 0;
    for column in header["columns"].as_array().expect("a list") {
        let size = column[3].as_u64().expect("a size") as usize;
        if column[0] == wanted {
            assert_eq!(column[1], form);
            let mut numbers = vec![0u64];
            let mut shift = 0;
            for byte in &columns[at..at + size] {
                *numbers.last_mut().expect("one") |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    numbers.push(0);
                    shift = 0;
                }
            }
            numbers.pop();
            return numbers;
        }
        at += size;
    }
    panic!("no column {wanted}");
}

#[test]
fn the_same_profile_gives_the_same_page() {
    let text = "p;main;a;b 3\np;main;c 4\np;[incomplete];x 1\n";
    assert_eq!(html(&saved(text), "t"), html(&saved(text), "t"));
}

#[test]
fn the_page_is_complete_and_small() {
    let page = html(&saved("p;main 1\n"), "t");
    let data = between(&page, "id=\"profile\">", "</script>");
    assert!(page.len() - data.len() <= 250_000, "{} bytes without data", page.len() - data.len());
    for place in ["{POLICY}", "{GENERATOR}", "{STYLE}", "{DATA}", "{SCRIPT}"] {
        assert!(!page.contains(place), "{place} is left");
    }
    let page = page.replacen(data, "", 1);
    for word in ["http:", "https:", "url(", "@import", "fetch(", "XMLHttpRequest", "WebSocket"] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn the_policy_has_the_hashes_of_script_and_style() {
    let page = html(&saved("p;main 1\n"), "t");
    let digest =
        |text: &str| format!("'sha256-{}'", super::page::encode(&super::page::sha256(text.as_bytes())));
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\">");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert!(policy.contains(&digest(between(&page, "<script type=\"module\">", "</script>"))), "{policy}");
    assert!(policy.contains(&digest(between(&page, "<style>", "</style>"))), "{policy}");
    assert!(!policy.contains("unsafe") && policy.contains("require-trusted-types-for 'script'"), "{policy}");
}

#[test]
fn modules_are_joined_to_one_script() {
    let script = page::script();
    for line in script.lines() {
        assert!(!line.starts_with("import ") && !line.starts_with("export "), "{line}");
    }
    // Text that ends or hides the script element.
    assert!(!script.contains("</script") && !script.contains("<!--"));
    // Functions that parse markup are not allowed.
    for sink in
        ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval(", "Function("]
    {
        assert!(!script.contains(sink), "{sink}");
    }
}

#[test]
fn profile_text_is_never_markup() {
    let plain = html(&saved("p;main 1\n"), "t");
    let without_data = |page: &str| {
        let data = between(page, "id=\"profile\">", "</script>").to_owned();
        assert!(data.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
        page.replacen(&data, "", 1)
    };
    let expected = without_data(&plain);
    for name in HOSTILE {
        let mut hostile = saved(&format!("{name};{name};{name} 2\n"));
        hostile.about = About {
            command: Some(name.to_owned()),
            lost: [(name.to_owned(), 3)].into(),
            ..hostile.about.clone()
        };
        // The builder does the same at the end.
        hostile.about.escape();
        let page = html(&hostile, name);
        assert_eq!(without_data(&page), expected, "{name:?}");
        let (header, _) = data(&page);
        assert_eq!(header["title"], &*escape_line(name));
        assert!(!header.to_string().contains(['\u{202e}', '\u{1b}', '\u{0}']), "{name:?}");
    }
}

#[test]
fn arbitrary_names_are_only_in_the_data() {
    let expected = html(&saved("p;main 1\n"), "t").len();
    let mut rng = Rng::new(35);
    for _ in 0..200 {
        let mut name = String::new();
        for _ in 0..rng.within(1, 60) {
            name.push(rng.pick(&[
                '<',
                '>',
                '/',
                '"',
                '\'',
                '&',
                '{',
                '}',
                '-',
                '!',
                's',
                'c',
                '\\',
                '\u{202e}',
                'é',
                '\u{1f525}',
            ]));
        }
        let page = html(&saved(&format!("p;x{name}y 2\n")), &name);
        let text = between(&page, "id=\"profile\">", "</script>");
        let plain_text = html(&saved("p;main 1\n"), "t");
        let plain_data = between(&plain_text, "id=\"profile\">", "</script>");
        assert_eq!(page.len() - text.len(), expected - plain_data.len(), "{name:?}");
    }
}

#[test]
fn counts_match_the_profile() {
    let page = html(&saved("p;main;a;b 300\np;main;a 4\nq;main;a 5\np;[incomplete];x 1\n"), "t");
    let mut counts = plain(&page, "count.value");
    counts.sort_unstable();
    assert_eq!(counts, [1, 4, 5, 300]);
    let (header, _) = data(&page);
    assert_eq!(header["sides"][0]["total"], 310);
    assert_eq!(header["compare"], serde_json::Value::Null);
    // The root, and the nodes of `main;a;b` and `x`: the two processes share `main;a`.
    assert_eq!(plain(&page, "node.frame").len(), 1 + 4);
}

#[test]
fn two_profiles_share_their_functions() {
    let (base, new) = (saved("p;main;f_1 10\np;main;gone 3\n"), saved("p;main;f_2 20\n"));
    let name = |name: &str| name.split('_').next().unwrap_or_default().to_owned();
    let matching = Matching { name: &name, process: None, inlines: true, waiting: false };
    let compare = Compare { measure: Measure::Samples, scales: (1.0, 1.0), words: "samples".into() };
    let page = Page::compared([("a", &base, matching), ("b", &new, matching)], "t", compare).expect("fits");
    let mut out = Vec::new();
    page.write(&mut out).expect("writes");
    let page = String::from_utf8(out).expect("text");
    let (base, new) = (plain(&page, "count.base"), plain(&page, "count.value"));
    let mut rows: Vec<(u64, u64)> = base.into_iter().zip(new).collect();
    rows.sort_unstable();
    assert_eq!(rows, [(3, 0), (10, 20)]);
    assert_eq!(data(&page).0["sides"][1]["total"], 20);
}

/// Returns source of one directory and instructions of one library.
#[derive(Default)]
struct Fake {
    left_out: Vec<String>,
    asked: Vec<(String, String, u64)>,
}

impl CodeReader for Fake {
    fn source(&mut self, file: &str) -> Option<String> {
        match file {
            "/src/large.c" => Some("x".repeat(SOURCES_BYTES_MAX + 1)),
            _ => file.starts_with("/src/").then(|| format!("text of {file} </script>\n")),
        }
    }

    fn instructions(&mut self, path: &str, build_id: &str, offset: u64) -> Vec<(u64, String)> {
        self.asked.push((path.to_owned(), build_id.to_owned(), offset));
        vec![(0x120, "push rbp".to_owned()), (0x121, "</script>".to_owned())]
    }

    fn leave_out(&mut self, file: &str) {
        self.left_out.push(file.to_owned());
    }
}

#[test]
fn source_and_instructions_are_in_the_data() {
    use crate::saved::{Function, Line, Mapping, StackRoot};
    let mut builder = crate::SavedBuilder::new(About { hz: Some(100), ..About::default() });
    let mut text = |text: &str| builder.text(text).expect("few");
    let (name, inlined, process, path, id) =
        (text("f"), text("g"), text("app"), text("/lib/libx.so"), text("0a0b"));
    let files = ["/src/a.c", "/src/large.c", "/etc/passwd"].map(&mut text);
    let mapping = Mapping { start: 0x7000, limit: 0x9000, file_offset: 0x100, path, build_id: id };
    let mapping = Some(builder.mapping(mapping).expect("few"));
    let root = builder.root(StackRoot::of(process)).expect("few");
    for (number, file) in (0..).zip(files) {
        let function = builder.function(Function { name, file, ..Function::default() }).expect("few");
        let part = builder.function(Function { name: inlined, file, ..Function::default() }).expect("few");
        let lines = [Line { function, line: 3 }, Line { function: part, line: 4 }];
        let frame = builder.frame(0x7020 + number, mapping, &lines).expect("few");
        builder.add(root, &[frame], 5).expect("few");
    }
    let saved = builder.finish();
    let mut page = Page::of(&saved, "t", None).expect("fits");
    let mut fake = Fake::default();
    page.embed(&mut fake).expect("fits");
    // Requested once per function, and not for inlined ones.
    assert_eq!(fake.asked.len(), 3);
    assert_eq!(fake.asked[0], ("/lib/libx.so".to_owned(), "0a0b".to_owned(), 0x120));
    assert_eq!(fake.left_out, ["/src/large.c", "/src/large.c"]);
    let mut out = Vec::new();
    page.write(&mut out).expect("writes");
    let out = String::from_utf8(out).expect("text");
    let (header, _) = data(&out);
    assert_eq!(header["sources"], serde_json::json!({ "/src/a.c": "text of /src/a.c </script>\n" }));
    let columns = header["columns"].as_array().expect("a list");
    let column = columns.iter().find(|column| column[0] == "instruction.address").expect("a column");
    assert_eq!(column[2], 6);
    // A page without code is unchanged.
    let bare = Page::of(&saved, "t", None).expect("fits");
    let mut out = Vec::new();
    bare.write(&mut out).expect("writes");
    let (header, _) = data(&String::from_utf8(out).expect("text"));
    assert_eq!(header.get("sources"), None);
}

#[test]
fn samples_and_events_have_their_times() {
    let mut builder = SavedBuilder::new(About { hz: Some(1000), ..About::default() });
    let process = builder.text("p").expect("fits");
    let root = StackRoot::of(process);
    let root = builder.root(root).expect("fits");
    let [run, wait] = ["run", "wait"].map(|name| builder.named_frame(name).expect("fits"));
    let run = builder.add(root, &[run], 3).expect("fits");
    builder.add(root, &[wait], 9).expect("fits");
    let sample =
        |at_ns, weight_ns, node| TimedSample { at_ns, weight_ns, node: Some(node), count: 0, cpu: None };
    let (ns, name) = (1_000_000, builder.text("io").expect("fits"));
    let samples = vec![sample(5 * ns, ns, run), sample(9 * ns, 2 * ns, run)];
    let (pid, begun_ns) = (Some(7), 4 * ns);
    let thread = ThreadTimeline { process, pid, name, id: 8, begun_ns, ended_ns: None, samples };
    let reason = builder.text("ring full").expect("fits");
    let loss = |since_ns, at_ns, lost_ns| Loss { since_ns, at_ns, lost_ns, reason };
    let losses = vec![loss(0, 2 * ns, 2 * ns), loss(0, 90 * ns, ns)];
    let event = Event { at_ns: 4 * ns, kind: EventKind::ThreadStart, process, pid: 7, thread: 8, text: name };
    let timeline = Timeline { step_ns: None, threads: vec![thread], losses, events: vec![event] };
    builder.set_timeline(timeline);
    let page = html(&builder.finish(), "t");
    // Each count is a sample; merged ones end at equal distances. Counts without a time are included, too.
    let mut at_ns = 0;
    let deltas = numbers(&page, "sample.time", "delta");
    let times: Vec<i64> = deltas
        .iter()
        .map(|delta| {
            at_ns += delta / 2;
            at_ns as i64
        })
        .collect();
    assert_eq!(times, [5, 8, 9].map(|ms| ms * ns as i64));
    assert_eq!(plain(&page, "sample.value"), [1, 1, 1]);
    assert_eq!(plain(&page, "count.value").iter().sum::<u64>(), 12);
    // A gap, a spread loss, and the start of the thread in the second lane.
    assert_eq!(plain(&page, "event.kind"), [0, 1, 3]);
    assert_eq!(plain(&page, "event.duration"), [2 * ns, 90 * ns, 0]);
    assert_eq!(plain(&page, "event.thread"), [0, 0, 2]);
    let strings = data(&page).0["strings"].clone();
    let texts: Vec<&str> = plain(&page, "event.text")
        .iter()
        .map(|text| strings[*text as usize].as_str().expect("text"))
        .collect();
    assert_eq!(
        texts,
        ["lost: about 2 samples: ring full", "lost: about 1 sample: ring full", "thread start: io (8)"]
    );
}

#[test]
fn huge_counts_are_not_expanded_to_samples() {
    let mut builder = SavedBuilder::new(About { hz: Some(1000), ..About::default() });
    let process = builder.text("p").expect("fits");
    let root = StackRoot::of(process);
    let root = builder.root(root).expect("fits");
    let frame = builder.named_frame("f").expect("fits");
    let count = 1 << 50;
    let node = builder.add(root, &[frame], count).expect("fits");
    let sample =
        TimedSample { at_ns: 5_000_000, weight_ns: 5_000_000, node: Some(node), count: 0, cpu: None };
    let (pid, name, samples) = (None, TextId::EMPTY, vec![sample]);
    let thread = ThreadTimeline { process, pid, name, id: 8, begun_ns: 0, ended_ns: None, samples };
    builder.set_timeline(Timeline { threads: vec![thread], ..Timeline::default() });
    let values = plain(&html(&builder.finish(), "t"), "sample.value");
    assert!(values.len() <= 1 << 21, "{}", values.len());
    assert_eq!(values.iter().sum::<u64>(), count);
}

#[test]
fn what_was_in_use_over_time_is_in_the_page() {
    let mut saved = saved("p;main;load;operator new(unsigned long) 30\np;main;cache 5\n");
    saved.about.unit = "bytes".into();
    let mut nodes = Vec::new();
    saved.for_each_leaf(|node, _, _, _| nodes.push(node));
    let change = |time, stack: usize, by_bytes| LiveChange { time, node: NodeId(stack as u32), by_bytes };
    let history = LiveHistory {
        times_ns: vec![1100, 1200, 1300],
        peak: 1,
        changes: vec![change(0, 0, 10), change(1, 0, 90), change(1, 1, 5), change(2, 0, -70)],
    };
    let place = |node: NodeId| nodes.get(node.0 as usize).copied();
    let mut values = StackValues::new(Vec::new());
    values.set_history(InuseHistory::of(&history, &(1000..1400), place));
    saved.set_values(values);
    saved.group_inuse(2, &|_| false);
    let page = html(&saved, "t");
    let (header, _) = data(&page);
    assert_eq!(header["inuse"]["peak"], 1);
    assert_eq!(header["inuse"]["areas"].as_array().expect("a list"), &["load < main", "cache < main"]);
    // Since the beginning, and to the end; differences with their sign in the lowest bit.
    assert_eq!(numbers(&page, "moment.time", "delta"), [200, 200, 200, 200]);
    assert_eq!(numbers(&page, "inuse.moment", "delta"), [0, 2, 0, 2]);
    assert_eq!(plain(&page, "inuse.area"), [0, 0, 1, 0]);
    assert_eq!(plain(&page, "inuse.bytes"), [10, 100, 5, 30]);
}
