//! OTLP: selection of profiles, files of other programs, dangling references, and the cost of small files.

use super::{packed, parse, proto, varint};
use stackprof::profile::formats::detect;

type Fields<'a> = Vec<(u64, Result<&'a [u8], u64>)>;

fn fixed(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 1, &mut out);
    out.extend_from_slice(&value.to_le_bytes());
    out
}

fn text_value(text: &str) -> Vec<u8> {
    proto(&[(1, Ok(text.as_bytes()))])
}

/// The strings of every file here: 1 samples, 2 count, 3 main, 4 lib.so, 5 thread.id, 6 process.executable.name, 7
/// cpu, 8 nanoseconds, 9 leaf.
const STRINGS: [&str; 10] = [
    "",
    "samples",
    "count",
    "main",
    "lib.so",
    "thread.id",
    "process.executable.name",
    "cpu",
    "nanoseconds",
    "leaf",
];

/// A dictionary: functions main and leaf, one location each, one stack of both; attributes thread.id 17 and a name.
fn dictionary(more: &[(u64, Result<&[u8], u64>)]) -> Vec<u8> {
    let mapping = proto(&[(1, Err(0x1000)), (2, Err(0x9000)), (4, Err(4))]);
    let (main, leaf) = (proto(&[(1, Err(3))]), proto(&[(1, Err(9))]));
    let locations = [1, 2]
        .map(|index| proto(&[(1, Err(1)), (2, Err(0x1000 + index)), (3, Ok(&proto(&[(1, Err(index))])))]));
    let stack = proto(&[(1, Ok(&[2, 1]))]);
    let tid = proto(&[(1, Err(5)), (2, Ok(&proto(&[(3, Err(17))])))]);
    let name = proto(&[(1, Err(6)), (2, Ok(&text_value("work")))]);
    let mut fields: Fields<'_> = vec![
        (1, Ok(b"")),
        (1, Ok(&mapping)),
        (2, Ok(b"")),
        (2, Ok(&locations[0])),
        (2, Ok(&locations[1])),
        (3, Ok(b"")),
        (3, Ok(&main)),
        (3, Ok(&leaf)),
        (4, Ok(b"")),
        (6, Ok(b"")),
        (6, Ok(&tid)),
        (6, Ok(&name)),
        (7, Ok(b"")),
        (7, Ok(&stack)),
    ];
    fields.extend(STRINGS.iter().map(|text| (5, Ok(text.as_bytes()))));
    fields.extend_from_slice(more);
    proto(&fields)
}

/// A profile of samples of a kind (indexes of strings).
fn profile(kind: (u64, u64), samples: &[Vec<u8>]) -> Vec<u8> {
    let kind = proto(&[(1, Err(kind.0)), (2, Err(kind.1))]);
    let period_kind = proto(&[(1, Err(7)), (2, Err(8))]);
    let mut fields: Fields<'_> = vec![(1, Ok(&kind)), (5, Ok(&period_kind)), (6, Err(10_000_000))];
    fields.extend(samples.iter().map(|sample| (2, Ok(sample.as_slice()))));
    proto(&fields)
}

/// A file of profiles.
fn file(profiles: &[Vec<u8>], dictionary: &[u8]) -> Vec<u8> {
    let of_scope: Fields<'_> = profiles.iter().map(|profile| (2, Ok(profile.as_slice()))).collect();
    let of_resource = proto(&[(2, Ok(&proto(&of_scope)))]);
    proto(&[(1, Ok(&of_resource)), (2, Ok(dictionary))])
}

/// A sample of the stack: attributes, values, times.
fn sample(attributes: &[u8], values: &[u8], times: &[u64]) -> Vec<u8> {
    let times: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
    let mut fields: Fields<'_> = vec![(1, Err(1))];
    for (number, bytes) in [(2, attributes), (4, values), (5, times.as_slice())] {
        if !bytes.is_empty() {
            fields.push((number, Ok(bytes)));
        }
    }
    proto(&fields)
}

/// A file of another program: with times or with counts.
pub(super) fn sound(times: bool) -> Vec<u8> {
    let samples = match times {
        true => {
            vec![sample(&[1, 2], &[], &[1_000_000_000, 1_010_000_000]), sample(&[2], &[3], &[2_000_000_000])]
        }
        false => vec![sample(&[1, 2], &[4, 5], &[]), sample(&[], &[3], &[])],
    };
    file(&[profile((1, 2), &samples)], &dictionary(&[]))
}

#[test]
fn profiles_of_other_programs_are_read() {
    let saved = parse(&sound(true)).unwrap();
    assert_eq!((saved.total(), saved.about.hz), (5, Some(100)));
    let timeline = saved.timeline().expect("times");
    let of: Vec<_> = timeline.threads.iter().map(|thread| (thread.id, saved.text(thread.process))).collect();
    assert_eq!(of, [(17, "work"), (0, "work")]);
    let at: Vec<_> = timeline.threads[0].samples.iter().map(|s| (s.at_ns, s.weight_ns, s.count)).collect();
    // Relative to the first of them, as the file has no start time; a time alone is one sample with the
    // weight of a period.
    assert_eq!(at, [(0, 10_000_000, 1), (10_000_000, 10_000_000, 1)]);
    assert_eq!(timeline.threads[1].samples[0].count, 3);

    let saved = parse(&packed(&sound(false))).unwrap();
    assert_eq!((saved.total(), saved.timeline().is_none()), (12, true));
    // Without the attribute the process is named after the first mapping.
    assert_eq!(saved.processes(), ["lib.so", "work"]);
    let one = |number: u64, value: u64| proto(&[(1, Err(1)), (number, Err(value)), (number, Err(value))]);
    // Unpacked numbers, as some encoders write them.
    assert_eq!(parse(&file(&[profile((1, 2), &[one(4, 3)])], &dictionary(&[]))).unwrap().total(), 6);
    let mut unpacked = proto(&[(1, Err(1))]);
    unpacked.extend(fixed(5, 7));
    assert_eq!(parse(&file(&[profile((1, 2), &[unpacked])], &dictionary(&[]))).unwrap().total(), 1);
}

#[test]
fn profiles_with_the_type_of_the_first_are_read() {
    let of = |profiles: &[Vec<u8>]| {
        let bytes = file(profiles, &dictionary(&[]));
        let read = detect::read_with(bytes.as_slice(), "p", 0, detect::Strictness::Strict).unwrap();
        (read.saved.total(), read.saved.about.unit, read.remarks.concat())
    };
    let one = |value: u64| {
        let mut packed = Vec::new();
        varint(value, &mut packed);
        sample(&[1], &packed, &[])
    };
    let samples = |value| profile((1, 2), &[one(value)]);
    let cpu = |value| profile((7, 8), &[one(value)]);
    let told = |total, unit: &str, remark: &str| (total, unit.to_owned(), remark.to_owned());
    assert_eq!(of(&[samples(3), samples(4)]), told(7, "samples", ""));
    let left = "p: left out: 1 of 2 profiles, which do not count samples";
    assert_eq!(of(&[samples(3), cpu(90)]), told(3, "samples", left));
    // Whole periods are samples; measured times are not divided.
    assert_eq!(of(&[cpu(30_000_000)]), told(3, "samples", ""));
    assert_eq!(of(&[cpu(34_000_000)]), told(34_000_000, "nanoseconds", ""));
    // A profile without samples has no effect.
    assert_eq!(of(&[profile((7, 8), &[]), samples(3)]), told(3, "samples", ""));
}

#[test]
fn dangling_references_are_reported() {
    let wrong_location = proto(&[(3, Ok(&proto(&[(1, Err(9))])))]);
    let more: Fields<'_> = vec![(2, Ok(&wrong_location)), (7, Ok(&[0x0a, 1, 3])), (7, Ok(&[0x0a, 1, 8]))];
    let of = |sample: Vec<u8>| parse(&file(&[profile((1, 2), &[sample])], &dictionary(&more)));
    let cases = [
        (sample(&[9], &[1], &[]), "sample 1 names attribute 9, which is not there"),
        (sample(&[], &[], &[]), "sample 1 has neither values nor timestamps"),
        (sample(&[], &[1, 2], &[7]), "sample 1 has 2 values and 1 timestamps"),
        (proto(&[(1, Err(7)), (4, Ok(&[1]))]), "sample 1 names stack 7, which is not there"),
        (proto(&[(1, Err(u64::MAX)), (4, Ok(&[1]))]), "sample 1 names stack 18446744073709551615, which"),
        (proto(&[(1, Err(2)), (4, Ok(&[1]))]), "sample 1: location 3 names function 9, which is not there"),
        (proto(&[(1, Err(3)), (4, Ok(&[1]))]), "sample 1 names location 8, which is not there"),
        (
            proto(&[(1, Err(1)), (4, Err((-5i64).cast_unsigned()))]),
            "sample 1 counts -5; a difference of profiles is no",
        ),
        (vec![0x08], "sample 1 is broken: "),
    ];
    for (sample, expected) in cases {
        let error = of(sample).expect_err(expected);
        assert!(error.starts_with(&format!("a.file: {expected}")), "{error}, expected {expected}");
    }
    let dictionary = dictionary(&[]);
    let of_nothing = proto(&[(1, Ok(&proto(&[(2, Ok(b""))]))), (2, Ok(&dictionary))]);
    assert!(parse(&of_nothing).unwrap_err().contains("no profile in this OTLP file"));
    let no_dictionary = proto(&[(1, Ok(&proto(&[(2, Ok(b""))])))]);
    assert!(parse(&no_dictionary).unwrap_err().contains("no dictionary; this is not an OTLP profile"));
}

/// Many threads with one deep stack, and many names of one long text: possible amplification by a small file.
#[test]
fn small_files_cost_little() {
    let mut deep = Vec::new();
    let stack: Vec<u8> = std::iter::repeat_n(1u8, 200_000).collect();
    let stack = proto(&[(1, Ok(&stack))]);
    deep.push((7u64, stack));
    let mut samples = Vec::new();
    for tid in 0..1000u64 {
        deep.push((6, proto(&[(1, Err(5)), (2, Ok(&proto(&[(3, Err(100 + tid))])))])));
        let mut attribute = Vec::new();
        varint(3 + tid, &mut attribute);
        samples.push(proto(&[(1, Err(2)), (2, Ok(&attribute)), (4, Ok(&[1]))]));
    }
    let more: Fields<'_> = deep.iter().map(|(number, bytes)| (*number, Ok(bytes.as_slice()))).collect();
    let error = parse(&file(&[profile((1, 2), &samples)], &dictionary(&more))).unwrap_err();
    assert!(error.contains("nodes of distinct stacks"), "{error}");

    // Many samples with one deep stack that names nothing.
    let mut stack: Vec<u8> = std::iter::repeat_n(1u8, 200_000).collect();
    stack.push(120);
    let stack = proto(&[(1, Ok(&stack))]);
    let samples = vec![proto(&[(1, Err(2)), (4, Ok(&[1]))]); 100_000];
    let error = parse(&file(&[profile((1, 2), &samples)], &dictionary(&[(7, Ok(&stack))]))).unwrap_err();
    assert!(error.contains("names location 120, which is not there"), "{error}");

    let long = "x".repeat(1 << 20);
    let mut more: Vec<(u64, Vec<u8>)> = vec![(5, long.into_bytes())];
    let mut samples = Vec::new();
    for number in 0..20_000u64 {
        let value = proto(&[(8, Err(10))]);
        more.push((6, proto(&[(1, Err(6)), (2, Ok(&value)), (9, Err(number))])));
        let mut attribute = Vec::new();
        varint(3 + number, &mut attribute);
        samples.push(proto(&[(1, Err(1)), (2, Ok(&attribute)), (4, Ok(&[1]))]));
    }
    let more: Fields<'_> = more.iter().map(|(number, bytes)| (*number, Ok(bytes.as_slice()))).collect();
    assert_eq!(parse(&file(&[profile((1, 2), &samples)], &dictionary(&more))).unwrap().total(), 20_000);
}
