//! Finds the functions without a name that got slower, if base and new are different builds.
//!
//! Input: self CPU time of a module's functions (`[libruby.so:fn+0x9dd20]`) in both builds. Output: functions
//! of the new build, sorted by their gain. Not a test or proof: whether the module got slower is decided
//! before.
//!
//! Functions have different start addresses in two builds, but mostly the same order, since compilers and
//! linkers keep that of the source, and unchanged ones take as long as before. So the two lists are aligned,
//! in their order, with the least sum of differences (Needleman and Wunsch 1970, with the difference in time
//! as the cost).

use super::verdict::Nameless;
use crate::module_offset::ModuleOffset;

/// Most functions to name.
const SHOWN: usize = 3;
/// Most functions of a build to align: those with most time.
const ALIGNED_MAX: usize = 512;

/// A function of one build: start address, name, self CPU time.
type FunctionCost<'a> = (u64, &'a str, f64);

/// The functions of the new build with the largest apparent gains. `own` has names with the mean self CPU
/// time in the base runs and in the new ones.
#[must_use]
pub fn grown<'a>(own: impl Iterator<Item = (&'a str, (f64, f64))>) -> Vec<Nameless> {
    let (mut base, mut new): (Vec<FunctionCost<'_>>, Vec<FunctionCost<'_>>) = (Vec::new(), Vec::new());
    for (name, (in_base, in_new)) in own {
        let Some(ModuleOffset::Function { start, .. }) = ModuleOffset::parse(name) else { continue };
        for (functions, time) in [(&mut base, in_base), (&mut new, in_new)] {
            if time > 0.0 {
                functions.push((start, name, time));
            }
        }
    }
    for functions in [&mut base, &mut new] {
        functions.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
        functions.truncate(ALIGNED_MAX);
        functions.sort_unstable_by_key(|(start, ..)| *start);
    }
    let before = aligned(&base, &new);
    let found = new.iter().zip(before).map(|((_, name, new), base)| Nameless {
        name: (*name).to_owned(),
        base,
        new: *new,
    });
    let mut found: Vec<Nameless> = found.filter(|function| function.new > function.base).collect();
    found.sort_by(|a, b| (b.new - b.base).total_cmp(&(a.new - a.base)).then(a.name.cmp(&b.name)));
    found.truncate(SHOWN);
    found
}

/// For each function of the new build the time of its counterpart in the base build, or 0.
fn aligned(base: &[FunctionCost<'_>], new: &[FunctionCost<'_>]) -> Vec<f64> {
    let width = base.len() + 1;
    // At (n, b): the least sum of differences of the first n functions of new and b of base.
    let mut least = vec![0.0f64; (new.len() + 1) * width];
    let at = |new: usize, base: usize| new * width + base;
    for n in 0..=new.len() {
        for b in 0..=base.len() {
            let only_new = || least[at(n - 1, b)] + new[n - 1].2;
            let only_base = || least[at(n, b - 1)] + base[b - 1].2;
            let both = || least[at(n - 1, b - 1)] + (new[n - 1].2 - base[b - 1].2).abs();
            least[at(n, b)] = match (n, b) {
                (0, 0) => 0.0,
                (_, 0) => only_new(),
                (0, _) => only_base(),
                _ => both().min(only_new()).min(only_base()),
            };
        }
    }
    let mut before = vec![0.0; new.len()];
    let (mut n, mut b) = (new.len(), base.len());
    while n > 0 && b > 0 {
        let here = least[at(n, b)];
        if here == least[at(n - 1, b - 1)] + (new[n - 1].2 - base[b - 1].2).abs() {
            before[n - 1] = base[b - 1].2;
            (n, b) = (n - 1, b - 1);
        } else if here == least[at(n - 1, b)] + new[n - 1].2 {
            n -= 1;
        } else {
            b -= 1;
        }
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(own: &[(&str, (f64, f64))]) -> Vec<(String, f64, f64)> {
        let found = grown(own.iter().copied());
        found.into_iter().map(|function| (function.name, function.base, function.new)).collect()
    }

    #[test]
    fn the_changed_function_is_named_among_moved_and_larger_ones() {
        let own = [
            ("[a.so:fn+0x1000]", (5.0, 5.1)),
            ("[a.so:fn+0x1100]", (1.0, 0.0)),
            ("[a.so:fn+0x1200]", (9.0, 0.0)),
            // It grew, so later functions moved; 0x1300 is a different function in each build.
            ("[a.so:fn+0x1110]", (0.0, 3.0)),
            ("[a.so:fn+0x1300]", (2.0, 9.0)),
            ("[a.so:fn+0x1400]", (0.0, 1.9)),
        ];
        let found = names(&own);
        assert_eq!(found[0], ("[a.so:fn+0x1110]".to_owned(), 1.0, 3.0), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn added_and_removed_functions() {
        let own = [("[a:fn+0x10]", (4.0, 0.0)), ("[a:fn+0x20]", (0.0, 4.0)), ("[a:fn+0x30]", (0.0, 1.0))];
        assert_eq!(names(&own), [("[a:fn+0x30]".to_owned(), 0.0, 1.0)]);
        assert_eq!(names(&[("[a:fn+0x10]", (4.0, 0.0))]), []);
        assert_eq!(names(&[]), []);
        assert_eq!(names(&[("main", (1.0, 9.0))]), [], "it has a name");
    }

    #[test]
    fn very_many_functions_are_bounded() {
        let own: Vec<(String, (f64, f64))> =
            (0..20_000).map(|n| (format!("[a:fn+{n:#x}]"), (1.0, f64::from(n)))).collect();
        assert!(!grown(own.iter().map(|(name, own)| (name.as_str(), *own))).is_empty());
    }
}
