//! Functions without a name (`[libruby.so:fn+0x9dd20]`) are identified by their start address, which is the
//! same only within one build. This module tracks the builds of the compared profiles.
//!
//! Input: modules and their build ids. Output: whether functions of a module can be matched, which requires
//! that all profiles have it from one build. If a profile has no build ids (folded text, speedscope,
//! Firefox), only the module is certain.

use std::collections::BTreeMap;

/// Builds by module.
#[derive(Clone, Debug, Default)]
pub struct Builds {
    /// By file name: the only build id, or `None` if there are several or one is unknown.
    modules: BTreeMap<String, Option<String>>,
}

impl Builds {
    /// Records a build of a module; an empty `id` means unknown. Returns whether matching of the module's
    /// functions has just become impossible.
    pub fn note(&mut self, module: &str, id: &str) -> bool {
        let known = (!id.is_empty()).then(|| id.to_owned());
        match self.modules.get_mut(module) {
            None => {
                self.modules.insert(module.to_owned(), known);
                false
            }
            Some(only) if *only == known => false,
            Some(only) => only.take().is_some(),
        }
    }

    /// Whether all profiles so far have the module from one build.
    #[must_use]
    pub fn is_one(&self, module: &str) -> bool {
        self.modules.get(module).is_some_and(Option::is_some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_or_unknown_build_ends_the_matching_of_functions() {
        let mut builds = Builds::default();
        assert!(!builds.is_one("a.so"));
        assert!(!builds.note("a.so", "01") && !builds.note("a.so", "01") && !builds.note("b.so", "01"));
        assert!(builds.is_one("a.so") && builds.is_one("b.so"));
        assert!(builds.note("a.so", "02") && !builds.is_one("a.so"));
        assert!(!builds.note("a.so", "01") && !builds.is_one("a.so"), "it stays so");
        assert!(builds.note("b.so", "") && !builds.is_one("b.so"));
        assert!(!builds.note("c.so", "") && !builds.note("c.so", "01") && !builds.is_one("c.so"));
    }
}
