//! Names of JIT code: the lines of `/tmp/perf-PID.map`, or the loads of a jitdump (`jitdump.rs`).
//!
//! Input: the text, hostile, and sorted addresses. Output: a name for each address, and the number of malformed
//! lines. Node (`--perf-basic-prof`), Java agents and .NET (`DOTNET_PerfMapEnabled=1`) write it as they compile,
//! so it is read after the recording; of several lines for an address the last one counts, since code is moved and
//! replaced.
//!
//! Format: `START SIZE name`, numbers in hex without prefix (Linux
//! `tools/perf/Documentation/jit-interface.txt`).

/// The content of a map.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JitNames<'t> {
    /// The name of each address.
    pub names: Vec<Option<&'t [u8]>>,
    /// Number of malformed lines.
    pub bad_lines: u64,
}

/// Finds the names of sorted, distinct addresses in the text of a map.
#[must_use]
pub fn names<'t>(text: &'t [u8], wanted: &[u64]) -> JitNames<'t> {
    let mut bad_lines = 0;
    let lines = text.split(|byte| *byte == b'\n').rev().enumerate();
    let functions = lines.filter_map(|(from_end, line)| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        let function = read(line);
        // The last line may be incomplete, since the program is still running.
        bad_lines += u64::from(function.is_none() && from_end > 0);
        function
    });
    let names = last_at(functions, wanted);
    JitNames { names, bad_lines }
}

/// The name of the last function at each address, from functions in reverse order: their start, end and name. The
/// addresses are sorted and distinct. Each function costs one search, and each address one change; no table is
/// built.
pub(super) fn last_at<'t>(
    functions: impl Iterator<Item = (u64, u64, &'t [u8])>,
    wanted: &[u64],
) -> Vec<Option<&'t [u8]>> {
    let mut names = vec![None; wanted.len()];
    // For each address: the next one without a name (a union-find with path halving).
    let mut next: Vec<u32> = (0..=wanted.len() as u32).collect();
    for (start, end, name) in functions {
        let mut at = wanted.partition_point(|address| *address < start) as u32;
        loop {
            while next[at as usize] != at {
                next[at as usize] = next[next[at as usize] as usize];
                at = next[at as usize];
            }
            if wanted.get(at as usize).is_none_or(|address| *address >= end) {
                break;
            }
            names[at as usize] = Some(name);
            next[at as usize] = at + 1;
        }
    }
    names
}

fn read(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut fields = line.splitn(3, |byte| *byte == b' ');
    let (start, size) = (hex(fields.next()?)?, hex(fields.next()?)?);
    let name = fields.next()?.trim_ascii();
    (!name.is_empty() && size > 0).then_some((start, start.checked_add(size)?, name))
}

fn hex(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| plain)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, wanted: &[u64], expected: &[Option<&str>], bad_lines: u64) {
        let found = names(text.as_bytes(), wanted);
        let expected: Vec<_> = expected.iter().map(|name| name.map(str::as_bytes)).collect();
        assert_eq!(found, JitNames { names: expected, bad_lines }, "{text}");
    }

    #[test]
    fn the_last_line_for_an_address_counts() {
        check(
            "1000 10 old\n2000 20 LazyCompile:~f /a b.js:1\n1008 8 new\r\n",
            &[0xfff, 0x1000, 0x1007, 0x1008, 0x100f, 0x1010, 0x2000, 0x201f, 0x2020],
            &[
                None,
                Some("old"),
                Some("old"),
                Some("new"),
                Some("new"),
                None,
                Some("LazyCompile:~f /a b.js:1"),
                Some("LazyCompile:~f /a b.js:1"),
                None,
            ],
            0,
        );
    }

    #[test]
    fn other_lines_are_skipped_and_counted() {
        check(
            "x 10 f\n1000\n1000 g\n-1 5 h\n1000 10 \nffffffffffffffff 2 i\n\n1000 0 j\n1000 10000000000000000 k\n0x10 0x4 ok\n",
            &[0x11, 0x1000],
            &[Some("ok"), None],
            8,
        );
        // The last line may be incomplete.
        check("10 4 f\n20 4", &[0x10, 0x20], &[Some("f"), None], 0);
        check("", &[1], &[None], 0);
    }

    #[test]
    fn overlapping_lines_cost_no_more_than_others() {
        let line = "0 ffffffffffffff0 everything\n";
        let wanted: Vec<u64> = (0..50_000).collect();
        let started = crate::cpu_time::CpuTime::start();
        assert!(names(line.repeat(100_000).as_bytes(), &wanted).names.iter().all(Option::is_some));
        assert!(started.used().as_secs() < 10);
    }
}
