//! Readable names without the arguments of templates and generics:
//! `std::vector<int, std::allocator<int> >::push_back(int const&)` → `std::vector<..>::push_back(..)`.
//!
//! Input: a readable name. Output: the same with `..` in each pair of brackets. Pure.

/// Shortens the text in `<…>` after a name, and the parameters.
///
/// Unchanged are operators (`operator<`, `operator->`, `operator()`), and Rust's `<T as Trait>::f` and `{impl#0}`,
/// in which the brackets are most of the name.
#[must_use]
pub fn shorten(name: &str) -> String {
    let bytes = name.as_bytes();
    let closings = closings(bytes);
    let mut out = String::with_capacity(name.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &name[at..];
        if let Some(operator) = operator(name, at) {
            out.push_str(operator);
            at += operator.len();
            continue;
        }
        let opens = match bytes[at] {
            // After a letter: arguments. At the start or after `::<`: part of a Rust path.
            b'<' => at > 0 && (is_word(bytes[at - 1]) || rest_is_turbofish(name, at)),
            b'(' => at > 0 && !rest.starts_with("(anonymous namespace)"),
            _ => false,
        };
        let close = closings[at].map(|close| close as usize);
        if let Some(close) = close.filter(|close| opens && *close > at + 1) {
            out.push_str(if bytes[at] == b'<' { "<..>" } else { "(..)" });
            at = close + 1;
        } else {
            let len = rest.chars().next().map_or(1, char::len_utf8);
            out.push_str(&rest[..len]);
            at += len;
        }
    }
    out
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'}') || byte >= 0x80
}

fn rest_is_turbofish(name: &str, at: usize) -> bool {
    name[..at].ends_with("::") && at > 2
}

/// `operator` and its signs, if a word starts here.
fn operator(name: &str, at: usize) -> Option<&str> {
    let rest = &name[at..];
    let after = rest.strip_prefix("operator")?;
    if at > 0 && is_word(name.as_bytes()[at - 1]) {
        return None;
    }
    let signs = if after.starts_with("()") || after.starts_with("[]") {
        2
    } else {
        after.bytes().take_while(|byte| b"<>=-!+*/%&|^~,".contains(byte)).count()
    };
    // `operator<<int>`: shift with arguments is written with a space; take at most `<=>`.
    (signs > 0).then(|| &rest[.."operator".len() + signs.min(3)])
}

/// For each opening bracket the index of its closing one; `None` for all other bytes. Computed for all at once:
/// one by one is quadratic in names that open many and close none.
fn closings(bytes: &[u8]) -> Vec<Option<u32>> {
    let mut closings = vec![None; bytes.len()];
    let mut open = Vec::new();
    let mut before = 0;
    for (index, &byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' => open.push(index),
            b'>' if before == b'-' => {}
            b'>' | b')' => {
                if let Some(opened) = open.pop() {
                    closings[opened] = u32::try_from(index).ok();
                }
            }
            _ => {}
        }
        before = byte;
    }
    closings
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn arguments_become_dots() {
        for (long, short) in [
            (
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector<..>::push_back(..)",
            ),
            ("f()", "f()"),
            ("main", "main"),
            ("a::b<c>::d<e>(f<g>) const", "a::b<..>::d<..>(..) const"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f(..)"),
            ("x::operator<(x const&)", "x::operator<(..)"),
            ("x::operator()(int) const", "x::operator()(..) const"),
            ("x::operator->()", "x::operator->()"),
            (
                "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
                "<alloc::vec::Vec<..> as core::ops::Drop>::drop",
            ),
            ("core::iter::map::<u8, fn(u8) -> u8>", "core::iter::map::<..>"),
            ("f<(int)1>(x) [clone .cold]", "f<..>(..) [clone .cold]"),
            ("-[NSThread main]", "-[NSThread main]"),
            ("broken<a", "broken<a"),
            ("broken<a>>::b<c>", "broken<..>>::b<..>"),
            ("", ""),
            ("é<é>é", "é<..>é"),
        ] {
            assert_eq!(shorten(long), short, "{long}");
        }
    }

    #[test]
    fn unclosed_brackets_cost_no_more_than_others() {
        let name = "a<".repeat(32 * 1024);
        let started = crate::cpu_time::CpuTime::start();
        assert!((0..40).all(|_| shorten(&name) == name));
        assert!(started.used().as_secs() < 10);
    }
}
