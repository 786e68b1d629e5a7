//! Files with tables or units per part: Firefox Profiler, speedscope.

use stackprof::profile::ByName;
use stackprof::profile::formats::detect;

use super::{SHARED, parse, slabs};

/// speedscope exports perf's threads with one sample as counts, next to times.
#[test]
fn the_unit_of_most_samples_is_read() {
    let remarked = |text: &str| {
        let read = detect::read_with(text.as_bytes(), "p", 0, detect::Strictness::Strict).unwrap();
        (read.saved.total(), read.saved.about.unit, read.remarks.concat())
    };
    let profile = |unit: &str, samples: &str, weights: &str| {
        format!(
            "{{\"type\":\"sampled\",\"name\":\"a\",\"unit\":\"{unit}\",\"samples\":[{samples}],\"weights\":[{weights}]}}"
        )
    };
    let file = |profiles: &[String]| {
        format!("{{\"shared\":{{\"frames\":[{{\"name\":\"f\"}}]}},\"profiles\":[{}]}}", profiles.join(","))
    };
    let mixed = [
        profile("none", "[0]", "1"),
        profile("seconds", "[0],[0]", "1,2"),
        profile("milliseconds", "[0]", "4"),
    ];
    assert_eq!(
        remarked(&file(&mixed)),
        (
            3_004_000_000,
            "nanoseconds".into(),
            "p: left out: 1 of 3 profiles, which do not count nanoseconds".into()
        )
    );
    let empty = [profile("none", "", ""), profile("bytes", "[0]", "5")];
    assert_eq!(remarked(&file(&empty)), (5, "bytes".into(), String::new()));
    let odd = file(&[profile("parsecs", "[0]", "1")]);
    assert!(
        parse(odd.as_bytes())
            .unwrap_err()
            .ends_with("profile 1 counts parsecs, which is no unit of speedscope")
    );
    let thread = |kind: &str, count: usize| {
        let samples = vec!["null"; count].join(",");
        format!("{{\"name\":\"m\",\"samples\":{{\"stack\":[{samples}],\"weightType\":\"{kind}\"}}}}")
    };
    let text = format!(
        "{{\"meta\":{{\"interval\":1}},\"shared\":{{\"stringArray\":[],\"frameTable\":{{\"func\":[]}},\"funcTable\":\
         {{\"name\":[]}},\"stackTable\":{{\"frame\":[],\"prefix\":[]}}}},\"threads\":[{},{},{}]}}",
        thread("bytes", 1),
        thread("samples", 3),
        thread("tracing-ms", 0)
    );
    assert_eq!(
        remarked(&text),
        (3, "samples".into(), "p: left out: 1 of 3 threads, which do not count samples".into())
    );
}

#[test]
fn tables_of_firefox_belong_to_threads_or_to_the_file() {
    let folded = |bytes: &[u8]| {
        let saved = parse(bytes).unwrap();
        let mut out = Vec::new();
        stackprof::profile::formats::folded::write(&ByName::of(&saved, true).unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    // Without its flag a frame has no library.
    let expected = "app 1\napp;io (8);main 1\napp;io (8);main;[app+0x10];0x1000 1\napp;main;[app+0x10] 2\n\
                    app;main;[app+0x10];0x1000 5\n";
    assert_eq!(folded(SHARED.as_bytes()), expected);
    assert_eq!(folded(&slabs()), expected);
    // Version 60 has prefixes, and libraries of resources; 56 shares only the names.
    let prefix = SHARED.replace("\"prefixOffset\":[0,1,1]", "\"prefix\":[null,0,1]");
    assert_eq!(folded(prefix.as_bytes()), expected);
    let resources = prefix
        .replace("\"lib\":[0,0,0],\"flags\":[2,0,1]", "\"line\":[null]")
        .replace("\"resource\":[0,0,0]", "\"resource\":[0,-1,0]")
        .replace("{\"name\":[2]}", "{\"name\":[2],\"lib\":[0]}");
    assert_eq!(folded(resources.as_bytes()), expected);
    let mut json: serde_json::Value = serde_json::from_str(&resources).unwrap();
    for table in ["stackTable", "frameTable", "funcTable", "resourceTable"] {
        let columns = json["shared"][table].take();
        for thread in json["threads"].as_array_mut().unwrap() {
            thread[table] = columns.clone();
        }
        json["shared"].as_object_mut().unwrap().remove(table);
    }
    assert_eq!(folded(json.to_string().as_bytes()), expected);
    json["shared"]["stringArray"].take();
    let refused = parse(json.to_string().as_bytes()).unwrap_err();
    assert!(refused.ends_with("thread 1: there is no stringArray, neither of the thread nor in `shared`"));
    for (broken, expected) in [
        ("[0,2,1]", "stack 1 goes on from one that does not come before it"),
        ("[0,1]", "the columns of its stack table differ in length"),
    ] {
        let refused = parse(SHARED.replace("[0,1,1]", broken).as_bytes()).unwrap_err();
        assert!(refused.ends_with(expected), "{refused}");
    }
    let nowhere = parse(SHARED.replace("\"frame\":[2,0,1]", "\"frame\":[2,0,9]").as_bytes()).unwrap_err();
    assert!(nowhere.ends_with("thread 1: stack 2 names frame 9, which is not there"), "{nowhere}");
}

/// Many threads with the deepest stack of a shared table cost its length only once.
#[test]
fn shared_stacks_are_converted_once_per_process() {
    let depth = 50_000u32;
    let thread = r#"{"name":"m","processName":"p","pid":"1","tid":"2","samples":{"stack":[49999]}}"#;
    let json = format!(
        "{{\"meta\":{{\"interval\":1}},\"shared\":{{\"stringArray\":[\"f\"],\"frameTable\":{{\"func\":[0]}},\
         \"funcTable\":{{\"name\":[0]}},\"stackTable\":{{\"frame\":[{}0],\"prefixOffset\":[0{}]}}}},\
         \"threads\":[{}{thread}]}}",
        "0,".repeat(depth as usize - 1),
        ",1".repeat(depth as usize - 1),
        format!("{thread},").repeat(50_000),
    );
    let saved = parse(json.as_bytes()).unwrap();
    assert_eq!((saved.total(), saved.trie().node_count()), (50_001, 2 + depth as usize));
}
