//! Converts speedscope's JSON to a saved profile.
//!
//! `Reader` is the state while a file is read, `Scale` how weights are counted; `read_evented` reads profiles of
//! frames that open and close.
//!
//! Input: the frames (`shared`) and `profiles` of a file, and stackprof's key. Output: [`SavedProfile`], or an error
//! with its position. An invalid sample is skipped and counted.

use std::borrow::Cow;

use serde::Deserialize;

use super::super::tally::Tally;
use super::{ExtraThread, FileFrame, WAITING};
use crate::DEPTH_MAX;
use crate::about::{About, SAMPLES};
use crate::builder::SavedBuilder;
use crate::formats::json::{Extra, Index, NO_INDEX};
use crate::formats::tally::{Fractions, Malformed};
use crate::saved::INCOMPLETE;
use crate::saved::{Full, Function, Line, SavedProfile, StackRoot};
use crate::table::Lists;
use crate::timeline::{ThreadTimeline, TimedSample};
use crate::trie::NodeId;

/// One of `profiles` of a file.
#[derive(Deserialize)]
pub(crate) struct OneProfile<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    unit: Cow<'a, str>,
    #[serde(default)]
    samples: Lists<u32>,
    #[serde(default)]
    weights: Vec<f64>,
    #[serde(borrow, default)]
    events: Vec<Event<'a>>,
    #[serde(default, rename = "endValue")]
    end_value: Option<f64>,
    #[serde(borrow, default)]
    stackprof: Option<ExtraThread<'a>>,
}

impl OneProfile<'_> {
    /// Number of its samples and events.
    fn length(&self) -> usize {
        self.samples.len().max(self.weights.len()) + self.events.len()
    }
}

/// Builds the profile from the parts of a file.
///
/// # Errors
/// The error and its position, as a line for people without the name of the file.
pub(crate) fn read(
    shared: &[FileFrame<'_>],
    profiles: &[OneProfile<'_>],
    extra: Option<&Extra<'_>>,
    tally: &mut Tally,
) -> Result<SavedProfile, Malformed> {
    let builder = SavedBuilder::new(extra.map_or_else(About::default, Extra::about));
    let scale = Scale::default();
    let mut reader = Reader { builder, frames: Vec::new(), scale, fractions: Fractions::default() };
    for frame in shared {
        let frame = reader.frame(frame)?;
        reader.frames.push(frame);
    }
    let has_merged_threads = extra.is_some_and(Extra::has_merged_threads);
    let (units, counted) = units(profiles)?;
    let is_other = |(profile, unit): &(&OneProfile<'_>, &Unit)| unit.kind != counted && profile.length() > 0;
    let others = profiles.iter().zip(&units).filter(is_other).count();
    if others > 0 {
        let all = profiles.len();
        tally.remark(&format!("left out: {others} of {all} profiles, which do not count {counted}"));
    }
    for (number, (profile, unit)) in (1..).zip(profiles.iter().zip(&units)) {
        if unit.kind != counted {
            continue;
        }
        reader.scale.next(reader.builder.about(), *unit);
        let process = profile.stackprof.as_ref().map_or(&profile.name, |extra| &extra.process);
        let mut text = |text: &str| reader.builder.text(text);
        let mut root = StackRoot::of(text(process)?);
        let mut thread = None;
        if let Some((name, id)) = profile.stackprof.as_ref().and_then(|extra| extra.thread.as_ref()) {
            thread = Some((text(name)?, *id));
        }
        root.thread = thread.filter(|_| !has_merged_threads);
        match &*profile.kind {
            "sampled" => {
                let samples = reader.samples(shared, profile, number, root, tally)?;
                if !samples.is_empty() {
                    let (name, id) = thread.unwrap_or_default();
                    let pid = profile.stackprof.as_ref().and_then(|extra| extra.pid);
                    let begun_ns =
                        samples.first().map_or(0, |sample| sample.at_ns.saturating_sub(sample.weight_ns));
                    reader.builder.times().threads.push(ThreadTimeline {
                        process: root.process,
                        pid,
                        name,
                        id,
                        begun_ns,
                        ended_ns: None,
                        samples,
                    });
                }
            }
            "evented" => {
                read_evented(&mut reader, &profile.events, profile.end_value, number, root, tally)?;
            }
            kind => {
                return Err(
                    format!("profile {number} is {kind}; sampled and evented ones can be read").into()
                );
            }
        }
    }
    let Reader { mut builder, fractions, .. } = reader;
    fractions.finish(&mut builder)?;
    if let Some(extra) = extra.filter(|_| builder.so_far().timeline().is_some()) {
        extra.put_times(&mut builder)?;
    }
    Ok(builder.finish())
}

impl Reader {
    fn samples(
        &mut self,
        shared: &[FileFrame<'_>],
        profile: &OneProfile<'_>,
        number: usize,
        mut root: StackRoot,
        tally: &mut Tally,
    ) -> Result<Vec<TimedSample>, Malformed> {
        let mut timed = Vec::new();
        let marked = |index: Option<&u32>, mark: &str| {
            let frame = index.and_then(|index| shared.get(*index as usize));
            frame.is_some_and(|frame| frame.name == mark && frame.file.is_none())
        };
        let mut stack = Vec::new();
        for (index, (sample, weight)) in (1..).zip(profile.samples.iter().zip(&profile.weights)) {
            let of = format_args!("profile {number}, sample {index}");
            let mut rest = sample;
            root.waiting = marked(rest.first(), WAITING);
            rest = rest.get(usize::from(root.waiting)..).unwrap_or_default();
            root.complete = !marked(rest.first(), INCOMPLETE);
            rest = rest.get(usize::from(!root.complete)..).unwrap_or_default();
            if rest.len() > DEPTH_MAX {
                let why = format!("more than {DEPTH_MAX} functions (DEPTH_MAX)");
                return Err(Malformed::from(why).at(of));
            }
            stack.clear();
            stack.extend(rest.iter().map_while(|index| self.frames.get(*index as usize)));
            if let Some(missing) = rest.get(stack.len()) {
                tally.skip_sample(|| match *missing {
                    NO_INDEX => format!("{of}: a frame is no number of one"),
                    missing => format!("{of}: frame {missing} is not there"),
                });
                continue;
            }
            let at = |full: Full| Malformed::from(full).at(of);
            let root = self.builder.root(root).map_err(at)?;
            let node = self.builder.add(root, &stack, 0).map_err(at)?;
            let extra = profile.stackprof.as_ref();
            if let Some((at_ns, weight_ns, count)) =
                extra.and_then(|extra| extra.timed(index - 1, profile.samples.len()))
            {
                // A sample without count and weight is a pause.
                if count > 0 || weight_ns > 0 {
                    self.builder.count(node, count).map_err(at)?;
                    let node = Some(node).filter(|_| count > 0 || !sample.is_empty());
                    timed.push(TimedSample { at_ns, weight_ns, node, count, cpu: None });
                }
                tally.understand();
                continue;
            }
            match self.count(node, *weight).map_err(at)? {
                true => tally.understand(),
                false => tally.skip_sample(|| format!("{of}: a weight of {weight:?} cannot be counted")),
            }
        }
        let (samples, weights) = (profile.samples.len(), profile.weights.len());
        for _ in samples.min(weights)..samples.max(weights) {
            tally.skip_sample(|| format!("profile {number} has {samples} samples and {weights} weights"));
        }
        timed.sort_by_key(|sample| sample.at_ns);
        Ok(timed)
    }
}

/// The unit of a profile.
fn unit(profile: &OneProfile<'_>, number: usize) -> Result<Unit, Malformed> {
    let (kind, factor) = match &*profile.unit {
        "nanoseconds" => (TIME, 1.0),
        "microseconds" => (TIME, 1e3),
        "milliseconds" => (TIME, 1e6),
        "seconds" => (TIME, 1e9),
        "none" => ("none", 1.0),
        "bytes" => ("bytes", 1.0),
        other => {
            return Err(format!("profile {number} counts {other}, which is no unit of speedscope").into());
        }
    };
    Ok(Unit { kind, factor })
}

/// The unit of each profile, and that of most samples and events: others cannot be added to them.
fn units(profiles: &[OneProfile<'_>]) -> Result<(Vec<Unit>, &'static str), Malformed> {
    let mut units = Vec::with_capacity(profiles.len());
    let mut sums: Vec<(&'static str, usize)> = Vec::new();
    for (number, profile) in (1..).zip(profiles) {
        let unit = unit(profile, number)?;
        match sums.iter_mut().find(|(kind, _)| *kind == unit.kind) {
            Some((_, sum)) => *sum += profile.length(),
            None => sums.push((unit.kind, profile.length())),
        }
        units.push(unit);
    }
    let most = sums.iter().rev().max_by_key(|(_, sum)| *sum);
    Ok((units, most.map_or(TIME, |(kind, _)| kind)))
}

// ---- State while speedscope's JSON is read: the meaning of the file's numbers, and how weights are counted.

/// Unit of times.
pub(super) const TIME: &str = "nanoseconds";

/// The profile under construction, and the meaning of the file's numbers.
pub(super) struct Reader {
    pub(super) builder: SavedBuilder,
    /// By frame of the file.
    pub(super) frames: Vec<u32>,
    pub(super) scale: Scale,
    pub(super) fractions: Fractions,
}

impl Reader {
    pub(super) fn frame(&mut self, frame: &FileFrame<'_>) -> Result<u32, Full> {
        let builder = &mut self.builder;
        let function = Function {
            name: builder.text(&frame.name)?,
            file: builder.text(frame.file.as_deref().unwrap_or_default())?,
            ..Function::default()
        };
        let line = Line { function: builder.function(function)?, line: frame.line.unwrap_or(0) };
        builder.frame(0, None, &[line])
    }

    /// Counts a weight of the file on a node; false if it is invalid.
    pub(super) fn count(&mut self, node: NodeId, weight: f64) -> Result<bool, Full> {
        let value = weight * self.scale.factor;
        let value = if self.scale.is_time { value.round() } else { value };
        self.fractions.add_number(&mut self.builder, node, value)
    }
}

/// Conversion of the file's weights to counts.
#[derive(Default)]
pub(super) struct Scale {
    pub(super) factor: f64,
    /// Times are whole nanoseconds or periods; other units may have fractions.
    pub(super) is_time: bool,
}

impl Scale {
    /// Begins a profile with weights of a unit.
    pub(super) fn next(&mut self, about: &mut About, unit: Unit) {
        self.is_time = unit.kind == TIME;
        self.factor = match about.period_ns() {
            Some(period_ns) if self.is_time => unit.factor / period_ns,
            // Without a rate, the time itself is counted.
            None if self.is_time => {
                about.unit = TIME.to_owned();
                unit.factor
            }
            _ => {
                if unit.kind == "bytes" && about.unit == SAMPLES {
                    about.unit = unit.kind.to_owned();
                }
                unit.factor
            }
        };
    }
}

/// A unit of speedscope: the quantity, and its factor.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) kind: &'static str,
    pub(super) factor: f64,
}

// ---- Evented profiles of speedscope: frames that open and close at points in time.
//
// An event without a matching open frame, or with an earlier time, is skipped and counted, and so is a frame that
// is never closed; time without an open frame is ignored.

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
pub(super) fn read_evented(
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
