//! Options for merging two compared profiles.

use std::borrow::Cow;

/// Options for merging two compared profiles.
#[derive(Clone, Copy)]
pub struct Matching<'m> {
    /// Normalizes the name of a function of either profile.
    pub name: &'m dyn Fn(&str) -> String,
    /// Name for all processes of this profile.
    pub process: Option<&'m str>,
    /// Inlined functions are separate; else their counts belong to the function that they are inlined into.
    pub inlines: bool,
    /// Include stacks of waiting threads.
    pub waiting: bool,
}

/// A name as the page shows it.
pub(super) fn matched<'n>(name: &'n str, matching: Option<&Matching<'_>>) -> Cow<'n, str> {
    match matching {
        Some(matching) => Cow::Owned((matching.name)(name)),
        None => Cow::Borrowed(name),
    }
}
