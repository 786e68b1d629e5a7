//! Evented profiles of speedscope: frames that open and close at points in time.
//!
//! Input: events in order. Output: counts of the time that each stack was open. An event without a matching
//! open frame, or with an earlier time, is skipped and counted, and so is a frame that is never closed; time
//! without an open frame is ignored.

use std::borrow::Cow;

use serde::Deserialize;

use super::super::lists::Index;
use super::super::malformed::Malformed;
use super::super::tally::Tally;
use super::reader::Reader;
use crate::profile::DEPTH_MAX;
use crate::profile::full::Full;
use crate::profile::saved::StackRoot;
use crate::trie::NodeId;

/// A frame opens (`O`) or closes (`C`).
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    frame: Index,
    at: f64,
}

/// The open frames, outermost first, and the time of the last change.
struct Open {
    root: NodeId,
    stack: Vec<(u32, NodeId)>,
    /// By frame of the file: its number of occurrences in the stack.
    times: Vec<u32>,
    since: f64,
}

/// Counts the events of a profile.
pub(super) fn read(
    reader: &mut Reader,
    events: &[Event<'_>],
    end: Option<f64>,
    number: usize,
    root: StackRoot,
    tally: &mut Tally,
) -> Result<(), Malformed> {
    let root = reader.builder.root(root)?;
    let root = reader.builder.root_node(root)?;
    let since = events.first().map_or(0.0, |event| event.at);
    let mut open = Open { root, stack: Vec::new(), times: vec![0; reader.frames.len()], since };
    for (index, event) in (1..).zip(events) {
        let of = format_args!("profile {number}, event {index}");
        let at = |full: Full| Malformed::from(full).at(of);
        if !open.advance(reader, event.at).map_err(at)? {
            tally.skip_sample(|| format!("{of}: it is at {}, the one before at {}", event.at, open.since));
            continue;
        }
        let frame = event.frame.0;
        let Some(known) = reader.frames.get(frame as usize).copied() else {
            tally.skip_sample(|| format!("{of}: its frame is not there"));
            continue;
        };
        match &*event.kind {
            "O" if open.stack.len() >= DEPTH_MAX => {
                return Err(Malformed::from(format!("more than {DEPTH_MAX} functions (DEPTH_MAX)")).at(of));
            }
            "O" => {
                let node = reader.builder.child_node(open.top(), known).map_err(at)?;
                open.push(frame, node);
                tally.understand();
            }
            "C" if open.is_in(frame) => match open.close(frame) {
                0 => tally.understand(),
                inner => {
                    tally.skip_sample(|| format!("{of}: it closes a frame while {inner} inside it are open"))
                }
            },
            "C" => tally.skip_sample(|| format!("{of}: it closes a frame that is not open")),
            kind => tally.skip_sample(|| format!("{of}: its type is {kind:?}, expected O or C")),
        }
    }
    if let Some(end) = end {
        open.advance(reader, end)?;
    }
    for _ in &open.stack {
        tally.skip_sample(|| format!("profile {number}: frames that are never closed: {}", open.stack.len()));
    }
    Ok(())
}

impl Open {
    fn top(&self) -> NodeId {
        self.stack.last().map_or(self.root, |(_, node)| *node)
    }

    fn is_in(&self, frame: u32) -> bool {
        self.times.get(frame as usize).is_some_and(|times| *times > 0)
    }

    fn push(&mut self, frame: u32, node: NodeId) {
        self.stack.push((frame, node));
        if let Some(times) = self.times.get_mut(frame as usize) {
            *times += 1;
        }
    }

    /// Closes the innermost frame with this number and those inside it; returns how many were inside.
    fn close(&mut self, frame: u32) -> usize {
        let mut inner = 0;
        while let Some((top, _)) = self.stack.pop() {
            if let Some(times) = self.times.get_mut(top as usize) {
                *times -= 1;
            }
            if top == frame {
                break;
            }
            inner += 1;
        }
        inner
    }

    /// Counts the time up to a point on the open stack; false if that precedes the last one.
    fn advance(&mut self, reader: &mut Reader, at: f64) -> Result<bool, Full> {
        let passed = at - self.since;
        if !(passed >= 0.0 && passed.is_finite()) {
            return Ok(false);
        }
        if passed > 0.0 && !self.stack.is_empty() && !reader.count(self.top(), passed)? {
            return Ok(false);
        }
        self.since = at;
        Ok(true)
    }
}
