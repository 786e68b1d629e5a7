//! Evaluates the conditions of a filter for every frame and every root of a profile.
//!
//! Input: a [`SavedProfile`] and a [`Filter`]. Output: a verdict for each, computed once. A condition
//! costs the length of a name, and a small file can have a long name in many places: each text is
//! tested once, and composed names are limited like a table of names.

use std::collections::HashMap;

use super::condition::Filter;
use crate::profile::full::Full;
use crate::profile::root_names::thread_name;
use crate::profile::saved::{Line, SavedProfile};
use crate::profile::texts::{TEXT_BYTES_MAX, TextId};
use crate::profile::{INCOMPLETE, shown};

/// Results of the conditions for a name.
#[derive(Clone, Copy, Default)]
pub(super) struct FilterMatch {
    pub(super) included: bool,
    pub(super) excluded: bool,
    root: bool,
}

impl FilterMatch {
    fn or(self, other: FilterMatch) -> FilterMatch {
        FilterMatch {
            included: self.included || other.included,
            excluded: self.excluded || other.excluded,
            root: self.root || other.root,
        }
    }
}

/// Results for a frame.
#[derive(Clone, Copy, Default)]
pub(super) struct FrameMatch {
    pub(super) matched: FilterMatch,
    /// The outermost function that becomes a new root.
    pub(super) begin: Option<u32>,
}

/// Results for a root.
#[derive(Clone, Copy, Default)]
pub(super) struct RootMatch {
    pub(super) matched: FilterMatch,
    /// Its thread is kept.
    pub(super) thread: bool,
    /// Its stacks were walked to their thread's root.
    pub(super) complete: bool,
}

/// Evaluates the conditions.
pub(super) struct Judge<'j, 'f> {
    saved: &'j SavedProfile,
    filter: &'j Filter<'f>,
    lines: bool,
    texts: Vec<Option<FilterMatch>>,
    with_lines: HashMap<Line, FilterMatch>,
    /// Remaining bytes for composed names.
    left: usize,
}

impl<'j, 'f> Judge<'j, 'f> {
    pub(super) fn new(saved: &'j SavedProfile, filter: &'j Filter<'f>, lines: bool) -> Judge<'j, 'f> {
        let texts = vec![None; saved.texts().count()];
        Judge { saved, filter, lines, texts, with_lines: HashMap::new(), left: TEXT_BYTES_MAX }
    }

    /// Results by frame.
    pub(super) fn frames(&mut self) -> Result<Vec<FrameMatch>, Full> {
        let saved = self.saved;
        let mut verdicts = Vec::with_capacity(saved.frames().len());
        for (index, frame) in saved.frames().iter().enumerate() {
            let mut verdict = FrameMatch::default();
            let mut take = |at: usize, matched: FilterMatch| {
                verdict.matched = verdict.matched.or(matched);
                if matched.root && verdict.begin.is_none() {
                    verdict.begin = Some(at as u32);
                }
            };
            let lines = saved.lines_of(frame);
            for (at, line) in lines.iter().enumerate() {
                take(at, self.line(line)?);
            }
            if lines.is_empty() {
                let mut place = String::new();
                saved.names_of(index as u32, false, &mut |name| name.clone_into(&mut place));
                take(0, self.made(&place)?);
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    /// Results by root.
    pub(super) fn roots(&mut self) -> Result<Vec<RootMatch>, Full> {
        let saved = self.saved;
        let incomplete = self.name(INCOMPLETE);
        let mut threads: HashMap<TextId, bool> = HashMap::new();
        let mut verdicts = Vec::with_capacity(saved.roots().len());
        for root in saved.roots() {
            let mut verdict =
                RootMatch { matched: self.text(root.process), thread: false, complete: root.complete };
            if let Some((name, id)) = root.thread {
                let text = saved.text(name);
                let numbered = thread_name(text, id);
                verdict.matched = verdict.matched.or(self.made(&numbered)?);
                if let Some(meant) = self.filter.thread {
                    let by_name = *threads.entry(name).or_insert_with(|| meant(text));
                    verdict.thread = by_name || meant(&numbered);
                }
            }
            if !root.complete {
                verdict.matched = verdict.matched.or(incomplete);
            }
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    fn line(&mut self, line: &Line) -> Result<FilterMatch, Full> {
        let plain = self.text(self.saved.function(line.function).shown_name());
        if !self.lines {
            return Ok(plain);
        }
        if let Some(known) = self.with_lines.get(line) {
            return Ok(*known);
        }
        let matched = plain.or(self.made(&self.saved.name_of_line(line, true))?);
        self.with_lines.insert(*line, matched);
        Ok(matched)
    }

    fn text(&mut self, text: TextId) -> FilterMatch {
        let slot = text.0 as usize;
        if let Some(Some(known)) = self.texts.get(slot) {
            return *known;
        }
        let matched = self.name(self.saved.text(text));
        if let Some(slot) = self.texts.get_mut(slot) {
            *slot = Some(matched);
        }
        matched
    }

    /// Results for a name that is not a text of the profile.
    fn made(&mut self, name: &str) -> Result<FilterMatch, Full> {
        let left = self.left.checked_sub(name.len());
        self.left = left.ok_or(Full { what: "bytes of names", limit: TEXT_BYTES_MAX })?;
        Ok(self.name(name))
    }

    fn name(&self, name: &str) -> FilterMatch {
        let name = &shown(name);
        let matches =
            |condition: Option<super::Condition<'_>>| condition.is_some_and(|condition| condition(name));
        FilterMatch {
            included: matches(self.filter.include),
            excluded: matches(self.filter.exclude),
            root: matches(self.filter.root),
        }
    }
}
