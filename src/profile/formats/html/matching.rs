//! How two profiles that are compared become one.

use std::borrow::Cow;

/// How two profiles that are compared become one.
#[derive(Clone, Copy)]
pub struct Matching<'m> {
    /// The name under which a function of either profile is found.
    pub name: &'m dyn Fn(&str) -> String,
    /// What all processes of this profile are called.
    pub process: Option<&'m str>,
    /// Inlined functions are functions; else their counts are those of the function that they are part of.
    pub inlines: bool,
    /// Stacks of waiting threads are compared, too.
    pub waiting: bool,
}

/// A name as the page shows it.
pub(super) fn matched<'n>(name: &'n str, matching: Option<&Matching<'_>>) -> Cow<'n, str> {
    match matching {
        Some(matching) => Cow::Owned((matching.name)(name)),
        None => Cow::Borrowed(name),
    }
}
