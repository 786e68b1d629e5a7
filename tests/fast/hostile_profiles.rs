//! Damaged and malicious profiles: an error of one line with the file, no panic, no hang, bounded memory.
//!
//! Every reader gets real files, mutated from seeds (`support/seeds.rs`), and files crafted to break it.

use std::io::{Read, Write};

use stackprof::error::ErrorKind;
use stackprof::profile::SavedProfile;
use stackprof::profile::formats::detect;
use stackprof::profile::formats::pprof;

use crate::saved::FORMATS;
use crate::seeds::cpu_time::CpuTime;
use crate::seeds::{TIME_MAX, for_each_seed, rounds};

#[path = "hostile_profiles/otlp.rs"]
mod otlp_files;
mod tables;
mod values;

const FOLDED: &str =
    "work;io (17);[incomplete];read 3\nwork;main;parse;lex 40\nwork;main;parse 2\nother;main 1\n";

const PERF: &str = "work 5/6 [001] 10.5: 250000 cpu-clock:\n\t 55d0 inner+0x10 (/bin/work)\n\t \
                    5500 main+0x5 (/bin/work)\n\nwork 5/6 [001] 10.6: cpu-clock:\n\t 7f00 [unknown] (/lib/libc.so.6)\n\n";

/// Lines of other tools: comments, tabs, fractions, bytes of Latin-1.
const FOLDED_OTHER: &[u8] =
    b"# interval: 100\nwork;main;parse\t40\nwork;main;caf\xe9 2.5 \n\nwork;main 1\r\n";

const PERF_OTHER: &str = "pool 3  4101/4105 [001] 55.1: 1003009 task-clock:u:\n\t    401a20 crunch+0x30 (/opt/a (b)/app)\n  \
                          app.c:4\n\npool 3  4101/4105 55.2: 3009 task-clock:u:\n\t    401a20 crunch+0x30 (/opt/app)\n\n\
                          app 40/40 1.0: PERF_RECORD_FORK(40:41):(40:40)\n            work 19300  2425.9: 9 task-clock:u: 55a0 burn+0x97 (work)\n";

const EVENTED: &str = r#"{"shared":{"frames":[{"name":"main"},{"name":"a","line":-1},{"name":"b"}]},"profiles":[
    {"type":"evented","name":"t","unit":"milliseconds","startValue":0,"endValue":10,"events":[
    {"type":"O","frame":0,"at":0},{"type":"O","frame":1,"at":1},{"type":"C","frame":1,"at":4},
    {"type":"O","frame":2,"at":4.5},{"type":"C","frame":2,"at":9},{"type":"C","frame":0,"at":10}]},
    {"type":"sampled","name":"u","unit":"seconds","samples":[[0],[0,1]],"weights":[1,0.5]}]}"#;

const UNNAMED: &str = r#"{"meta":{"interval":1,"product":"app"},"libs":[{"name":"app","path":"/bin/app"}],
    "threads":[{"name":"app","processName":"app","isMainThread":true,"pid":"7","tid":"7",
    "samples":{"stack":[1,1,0],"weight":[5,2,1],"weightType":"samples"},
    "stackTable":{"prefix":[null,0],"frame":[0,1]},"frameTable":{"func":[0,1]},
    "funcTable":{"name":[0,1],"resource":[0,-1]},"resourceTable":{"lib":[0]},"stringArray":["0x10","0x1000"]}]}"#;

/// Tables of the file, callers by distance, libraries by frame (version 75).
const SHARED: &str = r#"{"meta":{"interval":1,"product":"app"},"libs":[{"name":"app","path":"/bin/app"}],
    "shared":{"stringArray":["0x10","0x1000","main"],"stackTable":{"frame":[2,0,1],"prefixOffset":[0,1,1],"length":3},
    "frameTable":{"func":[0,1,2],"lib":[0,0,0],"flags":[2,0,1]},
    "funcTable":{"name":[0,1,2],"resource":[0,0,0],"flags":[0,0,0]},"resourceTable":{"name":[2]}},
    "threads":[{"name":"app","processName":"app","isMainThread":true,"pid":"7","tid":"7",
    "samples":{"stack":[2,1,null],"weight":[5,2,1],"weightType":"samples"}},
    {"name":"io","processName":"app","pid":"7","tid":8,"samples":{"stack":[2,0,-1]}}]}"#;

/// [`SHARED`] with columns as slabs.
fn slabs() -> Vec<u8> {
    let root = SHARED
        .replace("[0,1,1]", "{\"$s\":1}")
        .replace("\"flags\":[2,0,1]", "\"flags\":{\"$s\":2}")
        .replace("[{\"name\":\"app\",\"path\":\"/bin/app\"}]", "{\"$s\":3}");
    let slabs: [(u32, &[u8]); 4] = [
        (10, root.as_bytes()),
        (4, &[0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]),
        (1, &[2, 0, 1]),
        (10, br#"[{"name":"app","path":"/bin/app"}]"#),
    ];
    let mut out = b"\xdc\xdfJSLB\x01\0".to_vec();
    let mut word = |number: usize| out.extend_from_slice(&(number as u32).to_le_bytes());
    [1, slabs.len(), 0].into_iter().for_each(&mut word);
    let mut start = 20 + 12 * slabs.len();
    for (kind, bytes) in slabs {
        [kind as usize, start, bytes.len()].into_iter().for_each(&mut word);
        start += bytes.len();
    }
    slabs.iter().for_each(|(_, bytes)| out.extend_from_slice(bytes));
    out
}

fn utf16(text: &str) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(u16::to_le_bytes).collect()
}

fn parse(bytes: &[u8]) -> Result<SavedProfile, String> {
    let started = CpuTime::start();
    let result = detect::read(bytes, "a.file", bytes.len() as u64);
    assert!(started.used() < TIME_MAX, "took {:?}", started.used());
    result.map_err(|error| {
        assert_eq!(error.kind(), ErrorKind::Input, "{error}");
        let text = error.to_string();
        assert!(text.starts_with("a.file:"), "the file is not named: {text}");
        assert!(!text.contains('\n') && text.len() < 1000, "not one line: {text}");
        text
    })
}

/// Real files of each format.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let saved = parse(FOLDED.as_bytes()).unwrap();
    let mut files = vec![("folded", FOLDED.into()), ("perf script", PERF.into())];
    let written = |name: &str| FORMATS.iter().find(|format| format.name == name).unwrap().written(&saved);
    files.extend(["pprof", "speedscope", "firefox"].map(|name| (name, written(name))));
    let mut raw = Vec::new();
    flate2::read::GzDecoder::new(files[2].1.as_slice()).read_to_end(&mut raw).unwrap();
    files.extend([("raw pprof", raw), ("OTLP", written("OTLP"))]);
    for (name, times) in [("OTLP with times", true), ("OTLP without an end", false)] {
        files.push((name, otlp_files::sound(times)));
    }
    files.push(("folded of others", FOLDED_OTHER.into()));
    files.push(("perf script of others", PERF_OTHER.into()));
    files.push(("evented", EVENTED.into()));
    files.push(("unnamed", UNNAMED.into()));
    files.push(("shared tables", SHARED.into()));
    files.push(("slabs", slabs()));
    files.push(("UTF-16", utf16(FOLDED)));
    files
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn mutated_files_are_read_or_refused() {
    let files = files();
    for (name, bytes) in &files {
        parse(bytes).unwrap_or_else(|error| panic!("{name} as written: {error}"));
    }
    let mut refused = 0u64;
    let mut all = 0u64;
    for_each_seed("mutated_files_are_read_or_refused", 2000, |random| {
        for (_, original) in &files {
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len());
                match random.below(6) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = [0, 0xff, 0x7f, 0x80, b'0', b'9', b'-', b'"'][random.below(8)],
                    2 => bytes.truncate(at.max(1)),
                    3 => {
                        let end = (at + random.below(40)).min(bytes.len());
                        let part = bytes[at..end].to_vec();
                        let to = random.below(bytes.len());
                        bytes.splice(to..to, part);
                    }
                    4 => {
                        let end = (at + random.below(40)).min(bytes.len());
                        bytes.drain(at..end);
                        if bytes.is_empty() {
                            bytes.push(b'\n');
                        }
                    }
                    _ => {
                        let number = b"18446744073709551615".iter().copied();
                        bytes.splice(at..at, number.take(1 + random.below(20)));
                    }
                }
            }
            all += 1;
            refused += u64::from(parse(&bytes).is_err());
        }
    });
    // Mutations that never or always break a file would be useless.
    assert!(!rounds::as_usual() || (refused > all / 10 && refused < all), "{refused} of {all}");
}

#[test]
fn every_truncation_is_read_or_refused() {
    for (name, bytes) in files() {
        // A final newline is redundant.
        let end = bytes.len() - usize::from(bytes.ends_with(b"\n"));
        for len in 0..end {
            let result = parse(&bytes[..len]);
            // Text may end anywhere; packed or bracketed formats may not.
            let may_end = name.contains("folded")
                || name.contains("perf")
                || matches!(name, "raw pprof" | "UTF-16")
                // The first byte alone is an empty line.
                || name.starts_with("OTLP") && len == 1
                || len == 0;
            assert!(may_end || result.is_err(), "{name} cut to {len} of {} was read", bytes.len());
        }
    }
}

/// A varint.
fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encodes a message field: `(number, Ok(bytes))` or `(number, Err(value))`.
fn proto(fields: &[(u64, Result<&[u8], u64>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, value) in fields {
        match value {
            Ok(bytes) => {
                varint(number << 3 | 2, &mut out);
                varint(bytes.len() as u64, &mut out);
                out.extend_from_slice(bytes);
            }
            Err(value) => {
                varint(number << 3, &mut out);
                varint(*value, &mut out);
            }
        }
    }
    out
}

/// A profile of one sample type, with further fields.
fn profile(more: &[(u64, Result<&[u8], u64>)]) -> Vec<u8> {
    let kind = proto(&[(1, Err(1)), (2, Err(2))]);
    let mut fields: Vec<(u64, Result<&[u8], u64>)> =
        vec![(1, Ok(&kind)), (6, Ok(b"")), (6, Ok(b"samples")), (6, Ok(b"count")), (6, Ok(b"main"))];
    fields.extend_from_slice(more);
    proto(&fields)
}

#[test]
fn pprof_with_dangling_references_is_refused_with_both_ends() {
    let function = proto(&[(1, Err(7)), (2, Err(3))]);
    let line = proto(&[(1, Err(7)), (2, Err(5))]);
    let location = proto(&[(1, Err(9)), (4, Ok(&line))]);
    let sample = proto(&[(1, Ok(&[9])), (2, Ok(&[4]))]);
    let sound = profile(&[(5, Ok(&function)), (4, Ok(&location)), (2, Ok(&sample))]);
    let saved = parse(&sound).unwrap();
    assert_eq!((saved.total(), saved.frames().len()), (4, 1));
    assert_eq!(parse(&packed(&sound)).unwrap().total(), 4);

    let negative = proto(&[(1, Ok(&[9])), (2, Err((-5i64).cast_unsigned()))]);
    let two_values = proto(&[(1, Ok(&[9])), (2, Ok(&[4, 4]))]);
    let nowhere = proto(&[(1, Ok(&[8])), (2, Ok(&[4]))]);
    let no_function = proto(&[(1, Err(9)), (4, Ok(&proto(&[(1, Err(6))])))]);
    let no_mapping = proto(&[(1, Err(9)), (2, Err(3))]);
    let zero = proto(&[(2, Err(3))]);
    let no_string = proto(&[(1, Err(7)), (2, Err(99))]);
    let minus_string = proto(&[(1, Err(7)), (2, Err(u64::MAX))]);
    type Fields<'a> = Vec<(u64, Result<&'a [u8], u64>)>;
    // A location without its mapping has no module, but is valid.
    assert_eq!(parse(&profile(&[(4, Ok(&no_mapping)), (2, Ok(&sample))])).unwrap().total(), 4);
    // One of two samples.
    let half = profile(&[(5, Ok(&function)), (4, Ok(&location)), (2, Ok(&sample)), (2, Ok(&nowhere))]);
    assert_eq!(parse(&half).unwrap().total(), 4);
    let cases: Vec<(Fields<'_>, &str)> = vec![
        (
            vec![(5, Ok(&function)), (4, Ok(&location)), (2, Ok(&negative))],
            "sample 1 counts -5; a difference of profiles is no profile",
        ),
        (
            vec![(5, Ok(&function)), (4, Ok(&location)), (2, Ok(&two_values))],
            "sample 1 has 2 values, expected 1",
        ),
        (
            vec![(5, Ok(&function)), (4, Ok(&location)), (2, Ok(&nowhere))],
            "sample 1 names location 8, which is not there",
        ),
        (vec![(4, Ok(&no_function))], "location 9 names function 6, which is not there"),
        (vec![(5, Ok(&zero))], "a function has id 0, which stands for none"),
        (vec![(5, Ok(&function)), (5, Ok(&function))], "function 7 is there twice"),
        (vec![(5, Ok(&no_string))], "function 7 names string 99, and there are 4"),
        (vec![(5, Ok(&minus_string))], "function 7 names string -1, and there are 4"),
        (vec![(5, Ok(&[0xff]))], "function 0 is broken: "),
    ];
    for (fields, expected) in cases {
        let error = parse(&profile(&fields)).expect_err(expected);
        assert!(error.starts_with(&format!("a.file: {expected}")), "{error}, expected {expected}");
    }
}

#[test]
fn counts_at_the_limits_are_kept_or_refused() {
    let of = |count: u64| {
        let sample = proto(&[(2, Err(count))]);
        profile(&[(2, Ok(&sample))])
    };
    assert_eq!(parse(&of(i64::MAX as u64)).unwrap().total(), i64::MAX as u64);
    assert!(parse(&of(1 << 63)).unwrap_err().contains("counts -9223372036854775808"));
    let sample = proto(&[(2, Err(i64::MAX as u64))]);
    let three = profile(&[(2, Ok(&sample)), (2, Ok(&sample)), (2, Ok(&sample))]);
    assert!(parse(&three).unwrap_err().contains("counts of all stacks together"));
    let saved = parse(b"a 9223372036854775808\n").unwrap();
    assert_eq!(saved.total(), 1 << 63);
    let error = pprof::write::write(&saved, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("more than pprof can hold"), "{error}");
}

/// The count fits, but its CPU time does not.
#[test]
fn cpu_time_beyond_63_bits_is_refused() {
    for (count, fits) in [(9_000_000_000, true), (10_000_000_000, false), (i64::MAX as u64, false)] {
        let mut builder = stackprof::profile::SavedBuilder::new(stackprof::profile::About {
            hz: Some(1),
            ..Default::default()
        });
        let process = builder.text("work").unwrap();
        let root = stackprof::profile::StackRoot::of(process);
        let root = builder.root(root).unwrap();
        builder.add(root, &[], count).unwrap();
        let saved = builder.finish();
        let written = pprof::write::write(&saved, &mut Vec::new());
        assert_eq!(written.is_ok(), fits, "{count}");
        assert!(written.is_ok() || written.unwrap_err().to_string().contains("CPU time"));
    }
}

/// A profile of times: a type with one value per sample, and the type of the period.
fn of_times(kind: (&str, &str), period: (&str, &str, u64), values: &[u64]) -> Vec<u8> {
    let texts = ["", kind.0, kind.1, period.0, period.1];
    let sample_type = proto(&[(1, Err(1)), (2, Err(2))]);
    let period_type = proto(&[(1, Err(3)), (2, Err(4))]);
    let samples: Vec<Vec<u8>> = values.iter().map(|value| proto(&[(2, Err(*value))])).collect();
    let mut fields: Vec<(u64, Result<&[u8], u64>)> =
        vec![(1, Ok(&sample_type)), (11, Ok(&period_type)), (12, Err(period.2))];
    fields.extend(samples.iter().map(|sample| (2, Ok(sample.as_slice()))));
    fields.extend(texts.iter().map(|text| (6, Ok(text.as_bytes()))));
    proto(&fields)
}

#[test]
fn times_become_samples_only_if_they_are_whole_periods() {
    let (cpu, ms) = (("cpu", "nanoseconds"), 1_000_000);
    let read = |bytes: &[u8]| {
        let saved = parse(bytes).unwrap();
        (saved.total(), saved.about.unit, saved.about.hz)
    };
    let samples = |count, hz| (count, "samples".to_owned(), Some(hz));
    let nanoseconds = |count| (count, "nanoseconds".to_owned(), None);
    let period = ("cpu", "nanoseconds", 10 * ms);
    assert_eq!(read(&of_times(cpu, period, &[20 * ms, 10 * ms])), samples(3, 100));
    assert_eq!(read(&of_times(cpu, period, &[4 * ms, 4 * ms, 4 * ms, 10 * ms])), nanoseconds(22 * ms));
    // 997 Hz: the period is rounded, sums of it are not.
    let period = ("cpu", "nanoseconds", 1_003_009);
    assert_eq!(read(&of_times(cpu, period, &[1_003_009, 1_003_009_027])), samples(1001, 997));
    assert_eq!(read(&of_times(cpu, ("cpu", "nanoseconds", 1), &[50, 5000])), nanoseconds(5050));
    let delay = ("delay", "nanoseconds");
    for rate in [1, 10, 1000] {
        let period = ("contentions", "count", rate);
        assert_eq!(read(&of_times(delay, period, &[5000, 700])), nanoseconds(5700));
    }
    assert_eq!(read(&of_times(delay, ("cpu", "nanoseconds", 1000), &[5000])), nanoseconds(5000));
}

#[test]
fn text_with_a_stray_byte_is_text() {
    for text in ["p;a\u{7}b 1\n", "p;a\u{7}b 1\nq\n", "j;\u{1} 1\n", "r 1\n\u{0}"] {
        match parse(text.as_bytes()) {
            Ok(saved) => assert_eq!(saved.total(), 1),
            Err(error) => panic!("{text:?}: {error}"),
        }
    }
    let marked = [b"\xef\xbb\xbf", FOLDED.as_bytes()].concat();
    assert_eq!(parse(&marked).unwrap().processes(), ["other", "work"]);
    let odd = PERF.replace("work", "w@").into_bytes();
    let odd: Vec<u8> = odd.into_iter().map(|byte| if byte == b'@' { 0xff } else { byte }).collect();
    assert_eq!(parse(&odd).unwrap().processes(), ["w\u{ff}"]);
}

#[test]
fn the_ratio_of_a_pipe_is_by_bytes_received() {
    let lines = |from: u32| -> String {
        (from..from + 200_000).map(|n| format!("p;{};f{n} 1\n", "x".repeat(400))).collect()
    };
    let text = lines(0);
    assert!(text.len() > 65 << 20);
    let bytes = packed(text.as_bytes());
    assert!(bytes.len() * 500 > text.len());
    assert_eq!(detect::read(bytes.as_slice(), "pipe", 0).unwrap().total(), 200_000);
    let cut = detect::read(&bytes[..bytes.len() / 2], "pipe", 0).unwrap_err();
    assert_eq!(cut.to_string(), "pipe: the packed data ends early; was it cut off?");
}

#[test]
fn stacks_of_firefox_are_converted_once() {
    let count = 60_000;
    let prefix: Vec<Option<u32>> = (0..count).map(|n: u32| n.checked_sub(1)).collect();
    let json = serde_json::json!({
        "meta": {"interval": 1, "product": "x"},
        "threads": [{
            "name": "m", "processName": "p", "pid": "1", "tid": "2",
            "samples": {"stack": vec![count - 1; 100_000]},
            "stackTable": {"prefix": prefix, "frame": vec![0; count as usize]},
            "frameTable": {"func": [0]}, "funcTable": {"name": [0]}, "stringArray": ["f"],
        }],
    });
    let bytes = json.to_string().into_bytes();
    let started = CpuTime::start();
    let saved = parse(&bytes).unwrap();
    assert!(started.used().as_secs() < 2, "{:?}", started.used());
    assert_eq!((saved.total(), saved.trie().node_count()), (100_000, 2 + count as usize));
}

#[test]
fn weights_of_firefox_have_a_type() {
    let of = |kind: &str, weights: &str| {
        let text = format!(
            "{{\"meta\":{{\"interval\":1}},\"threads\":[{{\"name\":\"m\",\"samples\":{{\"stack\":[null,null],\
             \"weight\":{weights},\"weightType\":\"{kind}\"}},\"stackTable\":{{\"prefix\":[],\"frame\":[]}},\
             \"frameTable\":{{\"func\":[]}},\"funcTable\":{{\"name\":[]}},\"stringArray\":[]}}]}}"
        );
        parse(text.as_bytes()).map(|saved| (saved.total(), saved.about.unit, saved.about.hz))
    };
    assert_eq!(of("samples", "[1,2]").unwrap(), (3, "samples".to_owned(), Some(1000)));
    assert_eq!(of("bytes", "[1,2]").unwrap(), (3, "bytes".to_owned(), None));
    assert_eq!(of("tracing-ms", "[0.5,2]").unwrap(), (2_500_000, "nanoseconds".to_owned(), None));
    assert!(
        of("samples", "[0.5,-2]")
            .unwrap_err()
            .ends_with("sample 0 weighs 0.5; 2 of 2 samples not understood")
    );
    assert_eq!(of("samples", "[-1,2]").unwrap().0, 2);
    assert!(of("parsecs", "[1,2]").unwrap_err().ends_with("weights of an unknown type, parsecs"));
}

#[test]
fn long_lines_and_many_events_cost_linear_time() {
    let line = |part: &str| part.repeat((900 << 10) / part.len());
    let event = "a 1/1 1.0: cycles:\n\t55 f+0x1 (/x)\n\n";
    for part in [" (", "(", ")", "+0x1", "1 ", "1 K ", "[1] ", "1/1 [1] ", "PERF_RECORD_", "  x:1", "1: "] {
        let saved = parse(format!("{event}{}\n{event}\t55 {})\n", line(part), line(part)).as_bytes());
        assert!(saved.is_ok(), "{part:?}: {saved:?}");
    }
    // Closing a frame that is not open searches no stack.
    let opens =
        (0..100_000).map(|at| format!("{{\"type\":\"O\",\"frame\":0,\"at\":{at}}}")).collect::<Vec<_>>();
    let closes = vec!["{\"type\":\"C\",\"frame\":1,\"at\":100000}"; 90_000];
    let json = format!(
        "{{\"shared\":{{\"frames\":[{{\"name\":\"a\"}},{{\"name\":\"b\"}}]}},\"profiles\":[{{\"type\":\"evented\",\
         \"name\":\"t\",\"unit\":\"none\",\"events\":[{},{}]}}]}}",
        opens.join(","),
        closes.join(",")
    );
    let refused = parse(json.as_bytes()).unwrap_err();
    assert!(
        refused.contains("event 100001: it closes a frame that is not open; 190000 of 290000"),
        "{refused}"
    );
}

/// A packed file of equal members; counts the bytes read from it.
struct Members {
    packed: Vec<u8>,
    member_bytes: usize,
    read: usize,
}

impl Members {
    /// As many members with this text as needed for a file of this length.
    fn of(text: &str, length: usize) -> Members {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(text.as_bytes()).unwrap();
        let member = packer.finish().unwrap();
        let packed = member.repeat(length.div_ceil(member.len()));
        Members { packed, member_bytes: member.len(), read: 0 }
    }
}

impl Read for &mut Members {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.packed[self.read..];
        let read = rest.len().min(into.len());
        into[..read].copy_from_slice(&rest[..read]);
        self.read += read;
        Ok(read)
    }
}

#[test]
fn the_ratio_is_checked_while_unpacking() {
    const FILE_BYTES: usize = 3 << 20;
    const INPUT_BUFFER: usize = 512;
    // 16 MiB of one long stack, after stacks that hardly shrink.
    let mixed = |stack: fn(&str) -> String| {
        let noise = |n: u64| stack(&format!("{:x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let long = stack(&"m".repeat(250));
        (0..20_000).map(noise).collect::<String>() + &long.repeat((16 << 20) / long.len())
    };
    let large = "larger than 96 MiB and more than 32 times larger";
    for (text, most_mib, what) in [
        // A higher ratio than of any real file: refused at the beginning.
        ("a;b;c 1\nb;c;d 1\n".repeat(1 << 17), 32, "more than 500 times larger (RATIO_MAX)"),
        ("a 1\n".repeat(1 << 20), 32, "more than 500 times larger (RATIO_MAX)"),
        ("\n".repeat(1 << 22), 32, "more than 500 times larger (RATIO_MAX)"),
        // A lower ratio, but the whole is more than allowed for a file of this length.
        (mixed(|name| format!("work 1/1 [000] 1.1: 1 cycles:\n\t1 {name} (/x)\n\n")), 96, large),
        (mixed(|name| format!("p;{name} 1\n")), 96, large),
    ] {
        let mut members = Members::of(&text, FILE_BYTES);
        let input = std::io::BufReader::with_capacity(INPUT_BUFFER, &mut members);
        let error = detect::read(input, "a.gz", FILE_BYTES as u64).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
        // Members are counted as a whole, so that one and the buffered part may exceed the limit.
        let ratio = text.len() / members.member_bytes;
        let most = (most_mib << 20) + text.len() + (ratio + 1) * INPUT_BUFFER + (1 << 20);
        let unpacked = members.read / members.member_bytes * text.len();
        assert!(unpacked <= most, "{unpacked} bytes were unpacked, {most} at most: {error}");
    }
}

#[test]
fn decompression_bombs_are_not_unpacked() {
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![b'a'; 1 << 20];
    for _ in 0..64 {
        bomb.write_all(&zeros).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    let error = parse(&bomb).unwrap_err();
    // One line of 64 MiB: the reader of text stops long before.
    assert!(error.contains("line longer than 16 MiB"), "{error}");
    let mut lines = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let text = "a 1\n".repeat(1 << 18);
    for _ in 0..64 {
        lines.write_all(text.as_bytes()).unwrap();
    }
    let error = parse(&lines.finish().unwrap()).unwrap_err();
    assert!(error.contains("more than 500 times larger (RATIO_MAX)"), "{error}");
    assert_eq!(
        parse(&packed(&packed(FOLDED.as_bytes()))).unwrap_err(),
        "a.file: it is packed twice; unpack it once"
    );
    assert_eq!(parse(&packed(FOLDED.as_bytes())).unwrap().total(), 46);
}

#[test]
fn other_files_are_refused() {
    let deep = "[".repeat(100_000);
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"\x1f\x8b".to_vec(), "the packed data ends early"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00garbage".to_vec(), "the packed data"),
        (b"\x7fELF\x02\x01\x01\x00\x00".to_vec(), "a program (ELF)"),
        (b"\x00\xff\x00".to_vec(), "not text; this is not a profile"),
        (b"\xff\xfex\x00".to_vec(), "expected \"stack count\""),
        (b"{}".to_vec(), "neither a speedscope profile (shared, profiles) nor one of Firefox (meta, threads)"),
        (b"{\"a\":1".to_vec(), "a.file:1:6: EOF while parsing"),
        (format!("{{\"x\":{deep}").into_bytes(), "EOF while parsing a list"),
        (vec![b'x'; 20 << 20], "a.file:1: line longer than 16 MiB; this is not a profile"),
        (b"{\"shared\":{\"frames\":[]},\"profiles\":[{\"type\":\"sampled\",\"name\":\"a\",\"unit\":\"none\",\"samples\":[[0]],\"weights\":[1]}]}".to_vec(), "profile 1, sample 1: frame 0 is not there"),
        (b"{\"shared\":{\"frames\":[]},\"profiles\":[{\"type\":\"sampled\",\"name\":\"a\",\"unit\":\"none\",\"samples\":[[]],\"weights\":[-1]}]}".to_vec(), "profile 1, sample 1: a weight of -1.0 cannot be counted"),
        (b"{\"shared\":{\"frames\":[]},\"profiles\":[{\"type\":\"sampled\",\"name\":\"a\",\"unit\":\"none\",\"samples\":[],\"weights\":[1]}]}".to_vec(), "profile 1 has 0 samples and 1 weights"),
        (b"{\"shared\":{\"frames\":[]},\"profiles\":[{\"type\":\"odd\",\"name\":\"a\",\"unit\":\"none\"}]}".to_vec(), "profile 1 is odd; sampled and evented ones can be read"),
    ];
    for (bytes, expected) in cases {
        let error = parse(&bytes).expect_err(expected);
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
}

#[test]
fn cyclic_stacks_are_refused() {
    let files = files();
    let text =
        String::from_utf8(files.iter().find(|(name, _)| *name == "firefox").unwrap().1.clone()).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["threads"][0]["stackTable"]["prefix"][0] = serde_json::json!(0);
    let error = parse(json.to_string().as_bytes()).unwrap_err();
    assert!(error.contains("stack 0 goes on from one that does not come before it"), "{error}");
}
