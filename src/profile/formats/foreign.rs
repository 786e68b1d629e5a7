//! Unsupported files that users mistake for profiles: what each is, and what to do.
//!
//! Input: the first bytes of a file, or the keys of a JSON file. Output: a sentence with the next step. One
//! table, so that a new kind is one line.

const PICTURE: &str = "a picture cannot be read; render the profile that it was made of (.pb.gz, .folded)";

/// Advice on a file with this beginning; `name` is the file as a command line would name it.
pub(super) fn advice(head: &[u8], name: &str) -> Option<String> {
    let starts = |magic: &[u8]| head.starts_with(magic);
    if starts(b"PERFILE2") || starts(b"2ELIFREP") || starts(b"PERFFILE") {
        // Input from a pipe has no name to pass to perf.
        let file = if name == "standard input" { "perf.data".to_owned() } else { quoted(name) };
        return Some(format!(
            "a recording of perf, which only perf reads; run: perf script -i {file} | stackprof render - -o FILE"
        ));
    }
    // A header of five words: 0, 3, 0, the period, 0.
    if starts(b"\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0") {
        return Some(format!(
            "a CPU profile of gperftools; run: go tool pprof -proto PROGRAM {} > out.pb.gz",
            quoted(name)
        ));
    }
    if starts(b"heap_v2/") {
        return Some(format!(
            "a heap profile of jemalloc; run: jeprof --collapsed PROGRAM {} > out.folded",
            quoted(name)
        ));
    }
    if is_heaptrack(head) {
        return Some(format!(
            "a recording of heaptrack; run: heaptrack_print -F out.folded {}",
            quoted(name)
        ));
    }
    let known: [(&[u8], &str); 15] = [
        (b"\x89PNG", PICTURE),
        (b"GIF8", PICTURE),
        (b"\xff\xd8\xff", PICTURE),
        (b"%PDF", PICTURE),
        (b"\x7fELF", "a program (ELF); to profile it, run: stackprof -- PROGRAM"),
        (b"\xcf\xfa\xed\xfe", "a program (Mach-O); to profile it, run: stackprof -- PROGRAM"),
        (
            b"FLR\0",
            "a recording of Java Flight Recorder; convert it with async-profiler: jfrconv FILE out.folded",
        ),
        (b"Nettrace", "a trace of .NET; run: dotnet-trace convert --format speedscope FILE"),
        (b"MOJ", "a recording of austin in its binary form (MOJO); run: mojo2austin FILE out.txt"),
        (
            b"memray\0",
            "a recording of memray; open it with memray flamegraph, or record: stackprof heap -- PROGRAM",
        ),
        (b"!<arch>", "an archive, expected a profile"),
        (b"PK\x03\x04", "a zip archive; unpack it, expected a profile"),
        (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it with unzstd"),
        (b"\xfd7zXZ\0", "packed with xz; unpack it with unxz"),
        (b"BZh", "packed with bzip2; unpack it with bunzip2"),
    ];
    if let Some((_, advice)) = known.iter().find(|(magic, _)| starts(magic)) {
        return Some((*advice).to_owned());
    }
    let text = String::from_utf8_lossy(head.get(..1024.min(head.len())).unwrap_or_default());
    text_advice(&text.trim_start().to_ascii_lowercase(), name)
}

/// What a text is that begins in this way, in lower case.
fn text_advice(text: &str, name: &str) -> Option<String> {
    // A function's name can begin with `<`, too.
    let is_markup = text.starts_with("<?xml") || text.starts_with("<!doctype");
    let is_svg = ["<svg ", "<svg>", "<svg\n"].iter().any(|tag| text.starts_with(tag));
    if is_svg || is_markup && text.contains("<svg") {
        return Some(PICTURE.to_owned());
    }
    if text.starts_with("<!doctype html") || text.starts_with("<html>") || text.starts_with("<html ") {
        return Some("a web page cannot be read; render the profile that it was made of".to_owned());
    }
    if text.starts_with("<?xml") {
        return Some(
            "XML, expected a profile (pprof, folded, speedscope, Firefox, OTLP or text of perf script)"
                .to_owned(),
        );
    }
    let legacy = [
        "goroutine profile: total",
        "threadcreate profile: total",
        "heap profile: ",
        "--- contention",
        "--- mutex:",
        "--- heapz",
    ];
    if legacy.iter().any(|head| text.starts_with(head)) {
        return Some(format!(
            "a profile as text (of Go with debug=1, of gperftools); run: go tool pprof -proto {} > out.pb.gz",
            quoted(name)
        ));
    }
    if text.starts_with("# to display the perf.data header info") {
        return Some(
            "a report of perf, which has no stacks; run: perf script | stackprof render - -o FILE".to_owned(),
        );
    }
    if text.starts_with("====") && text.contains("trace event information") {
        return Some("a report of perf c2c; run: perf script | stackprof render - -o FILE".to_owned());
    }
    if text.lines().take(4).any(is_traced_call) {
        return Some(
            "text of perf trace, which lists system calls; run: perf record -g, then perf script | stackprof render - \
             -o FILE"
                .to_owned(),
        );
    }
    let is_map =
        |line: &str| line.starts_with("@[") && !line.trim_end().ends_with(|c: char| c.is_ascii_digit());
    if text.lines().take(4).any(is_map) {
        return Some(
            "stacks of bpftrace; fold them with inferno-collapse-bpftrace or stackcollapse-bpftrace.pl"
                .to_owned(),
        );
    }
    if text.starts_with("desc: ") && text.contains("\ntime_unit: ") {
        return Some(
            "a heap profile of valgrind's massif; use ms_print, or record: stackprof heap -- PROGRAM"
                .to_owned(),
        );
    }
    if text.starts_with("# callgrind format") || text.starts_with("version: 1\ncreator: callgrind") {
        return Some("a profile of callgrind, which counts instructions; use callgrind_annotate".to_owned());
    }
    None
}

/// Begins with `v VERSION FILE_VERSION` in hexadecimal digits, and `X PROGRAM` on the second line.
fn is_heaptrack(head: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n');
    let version = lines.next().and_then(|line| line.strip_prefix(b"v ")).unwrap_or_default();
    let is_version = |byte: &u8| byte.is_ascii_hexdigit() || *byte == b' ';
    let program = lines.next().is_some_and(|line| line.starts_with(b"X "));
    !version.is_empty() && version.len() < 32 && version.iter().all(is_version) && program
}

/// `     0.000 ( 0.005 ms): ls/40 read(fd: 3, ...) = 832`, in lower case.
fn is_traced_call(line: &str) -> bool {
    let Some((at, rest)) = line.trim_start().split_once(" (") else { return false };
    let Some((took, call)) = rest.split_once(" ms): ") else { return false };
    let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
    is_number(at) && (took.trim().is_empty() || is_number(took)) && call.contains('(')
}

/// Quotes a file name for a command line.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '/' | '-' | '_' | '+' | ',' | '=');
    match name.chars().all(plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', "'\\''")),
    }
}

/// Advice on a JSON file with these top-level keys.
pub(super) fn json_advice(has: impl Fn(&str) -> bool) -> Option<&'static str> {
    if has("nodes") && (has("samples") || has("timeDeltas")) {
        return Some(
            "a CPU profile of V8 (.cpuprofile); open it in speedscope and export it from there, then render that",
        );
    }
    if has("resourceProfiles") {
        return Some(
            "OTLP as JSON; stackprof reads its binary form: give the collector's file exporter `format: proto`",
        );
    }
    if has("dhatFileVersion") {
        return Some(
            "a heap profile of valgrind's DHAT; open it in dh_view.html, or record: stackprof heap -- PROGRAM",
        );
    }
    if has("traceEvents") {
        return Some(
            "a trace of Chrome, which has events and no stacks; expected a speedscope or Firefox profile",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_others_has_a_next_step() {
        for (key, expected) in
            [("resourceProfiles", "format: proto"), ("dhatFileVersion", "dh_view"), ("traceEvents", "Chrome")]
        {
            assert!(json_advice(|has| has == key).is_some_and(|advice| advice.contains(expected)), "{key}");
        }
        assert_eq!(json_advice(|_| false), None);
    }

    #[test]
    fn each_kind_has_a_next_step() {
        for (head, expected) in [
            (&b"PERFILE2\x68\0"[..], "perf script -i a.b | stackprof render - -o FILE"),
            (b"2ELIFREP", "perf script -i a.b"),
            (b"<?xml version=\"1.0\"?>\n<!DOCTYPE svg>\n<svg width=\"1\">", "a picture cannot be read"),
            (b"  <svg>", "a picture cannot be read"),
            (b"<!DOCTYPE html><p>", "a web page cannot be read"),
            (b"\x89PNG\r\n", "a picture cannot be read"),
            (b"FLR\0\0\x02", "jfrconv"),
            (b"Nettrace\x14", "dotnet-trace convert"),
            (b"MOJ\x03", "mojo2austin"),
            (b"goroutine profile: total 5\n4 @ 0x1 0x2\n", "go tool pprof -proto a.b > out.pb.gz"),
            (
                b"\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\x27",
                "go tool pprof -proto PROGRAM a.b",
            ),
            (b"--- contention:\ncycles/second=1\n", "go tool pprof -proto a.b > out.pb.gz"),
            (b"# To display the perf.data header info, please use --header\n#\n", "run: perf script |"),
            (b"     0.000 ( 0.005 ms): ls/40 read(fd: 3) = 832\n", "text of perf trace"),
            (b"     0.000 (         ): ls/40 nanosleep(rqtp: 1) ...\n     0.100 ( 0.100 ms): ls/40 x(a: 1) = 0\n", "perf trace"),
            (b"=====\n            Trace Event Information\n", "perf c2c"),
            (b"\xfd7zXZ\0\0\x04", "unxz"),
            (b"heap_v2/524288\n  t*: 3: 4 [0: 0]\n", "jeprof --collapsed PROGRAM a.b > out.folded"),
            (b"desc: (none)\ncmd: ./app\ntime_unit: i\n", "massif"),
            (b"v 10500 3\nX ./app\nI 1000 ", "heaptrack_print -F out.folded a.b"),
            (b"memray\0\x0c", "memray"),
            (b"Attaching 1 probe...\n\n@[\n    f+1\n]: 5\n", "inferno-collapse-bpftrace"),
        ] {
            let found = advice(head, "a.b").expect("known");
            assert!(found.contains(expected), "{found}");
        }
        let quoted = advice(b"PERFILE2", "my file").expect("known");
        assert!(quoted.contains("perf script -i 'my file' |"), "{quoted}");
        for other in [
            &b"main;a 3\n"[..],
            b"",
            b"<unknown>;<svg as x>::f;a 3\n",
            b"@[a];b 3\n",
            b"a (x ms): f(1) 3\n",
            b"{}",
            b"v 1 3\nmain;a 3\n",
            b"v 1\n",
            b"\x0a\x04\x08\x01",
        ] {
            assert_eq!(advice(other, "a"), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
