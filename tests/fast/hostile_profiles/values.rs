//! pprof: which of several values is read, and which frames are dropped.

use stackprof::profile::ByName;
use stackprof::profile::formats::detect;

use super::proto;

/// A profile of several values, one of them the default.
fn of_values(types: &[(&str, &str)], shown: &str, samples: &[&[u64]]) -> Vec<u8> {
    let mut texts = vec!["", shown];
    let mut fields: Vec<(u64, Vec<u8>)> = Vec::new();
    for (kind, unit) in types {
        let at = texts.len() as u64;
        texts.extend([kind, unit]);
        fields.push((1, proto(&[(1, Err(at)), (2, Err(at + 1))])));
    }
    for values in samples {
        fields.push((2, proto(&values.iter().map(|value| (2, Err(*value))).collect::<Vec<_>>())));
    }
    fields.extend(texts.iter().map(|text| (6, text.as_bytes().to_vec())));
    let mut fields: Vec<_> = fields.iter().map(|(number, bytes)| (*number, Ok(bytes.as_slice()))).collect();
    fields.push((14, Err(1)));
    proto(&fields)
}

#[test]
fn the_default_value_of_a_profile_is_read() {
    let read = |types: &[(&str, &str)], shown: &str, samples: &[&[u64]]| {
        let bytes = of_values(types, shown, samples);
        let read = detect::read_with(bytes.as_slice(), "p", 0, detect::Strictness::Strict).unwrap();
        (read.saved.total(), read.saved.about.unit, read.remarks.concat())
    };
    let told = |total, unit: &str, remark: &str| (total, unit.to_owned(), remark.to_owned());
    let (samples, cpu, space) = (("samples", "count"), ("cpu", "nanoseconds"), ("alloc_space", "bytes"));
    // Samples are equivalent to times that are multiples of them, but not to allocations.
    assert_eq!(read(&[samples, cpu], "cpu", &[&[2, 20], &[1, 10]]), told(3, "samples", ""));
    assert_eq!(read(&[samples, cpu], "", &[&[2, 200_541], &[5000, 501_353_650]]), told(5002, "samples", ""));
    assert_eq!(
        read(&[samples, cpu, space], "alloc_space", &[&[2, 20, 7], &[1, 10, 900]]),
        told(907, "bytes", "p: 1 of 3 values is read: alloc_space")
    );
    assert_eq!(
        read(&[samples, cpu], "", &[&[2, 20], &[1, 90]]),
        told(110, "nanoseconds", "p: 1 of 2 values is read: cpu")
    );
    assert_eq!(
        read(&[samples, space], "no such", &[&[0, 20]]),
        told(20, "bytes", "p: 1 of 2 values is read: alloc_space")
    );
}

#[test]
fn drop_frames_is_applied() {
    // main calls work, with alloc and malloc inlined into it; malloc calls leaf.
    let names = ["main", "work", "ns::alloc(int)", "malloc", "leaf"];
    let functions: Vec<Vec<u8>> = (1..6).map(|id| proto(&[(1, Err(id)), (2, Err(id + 2))])).collect();
    let line = |id: u64| proto(&[(1, Err(id))]);
    let inlined = [line(4), line(3), line(2)];
    let locations = [
        proto(&[(1, Err(1)), (4, Ok(&line(1)))]),
        proto(&[(1, Err(2)), (4, Ok(&inlined[0])), (4, Ok(&inlined[1])), (4, Ok(&inlined[2]))]),
        proto(&[(1, Err(3)), (4, Ok(&line(5)))]),
    ];
    let sample = proto(&[(1, Ok(&[3, 2, 1])), (2, Ok(&[4]))]);
    let stack = |drop: &str, keep: &str| {
        let kind = proto(&[(1, Err(1)), (2, Err(2))]);
        let mut fields: Vec<(u64, Result<&[u8], u64>)> = vec![(1, Ok(&kind))];
        fields.extend(["", "samples", "count"].iter().chain(&names).map(|text| (6, Ok(text.as_bytes()))));
        fields.extend([(6, Ok(drop.as_bytes())), (6, Ok(keep.as_bytes())), (7, Err(8)), (8, Err(9))]);
        fields.extend(functions.iter().map(|bytes| (5, Ok(bytes.as_slice()))));
        fields.extend(locations.iter().map(|bytes| (4, Ok(bytes.as_slice()))));
        fields.push((2, Ok(&sample)));
        let bytes = proto(&fields);
        let read = detect::read_with(bytes.as_slice(), "p", 0, detect::Strictness::Strict).unwrap();
        let mut out = Vec::new();
        let by_name = ByName::of(&read.saved, false).unwrap();
        stackprof::profile::formats::folded::write(&by_name, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        (text.trim().trim_start_matches("[unknown];").to_owned(), read.remarks.concat())
    };
    let of = |drop: &str, keep: &str| stack(drop, keep).0;
    assert_eq!(of("", ""), "main;work;ns::alloc(int);malloc;leaf 4");
    assert_eq!(of("leaf", ""), "main;work;ns::alloc(int);malloc 4");
    assert_eq!(of("ns::alloc", ""), "main;work 4");
    assert_eq!(of("work|leaf", ""), "main 4");
    assert_eq!(of("work|malloc", "work"), "main;work;ns::alloc(int) 4");
    assert_eq!(of("lea|f", ""), "main;work;ns::alloc(int);malloc;leaf 4");
    // Frames before the first kept one stay, otherwise nothing would be left.
    assert_eq!(of("main|leaf", ""), "main;work;ns::alloc(int);malloc 4");
    assert_eq!(of(".*", ""), "main;work;ns::alloc(int);malloc;leaf 4");
    for broken in ["(", "(a{1000}){1000}"] {
        let (text, remark) = stack(broken, "");
        assert_eq!(text, "main;work;ns::alloc(int);malloc;leaf 4");
        assert_eq!(remark, "p: drop_frames is no regular expression that can be used; no frames are dropped");
    }
}
