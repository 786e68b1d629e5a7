//! State while speedscope's JSON is read: the meaning of the file's numbers, and how weights are counted.

use super::super::fractions::Fractions;
use super::frame::FileFrame;
use crate::profile::about::{About, SAMPLES};
use crate::profile::builder::SavedBuilder;
use crate::profile::full::Full;
use crate::profile::saved::{Function, Line};
use crate::trie::NodeId;

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
