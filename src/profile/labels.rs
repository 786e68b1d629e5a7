//! Labels of samples beyond process and thread: tenant, request, size. pprof and OTLP have them.
//!
//! A set of labels is part of a stack's root, so that filters and merges keep it. Views and formats without labels
//! see the profile without them.

use super::texts::TextId;

/// Most distinct sets of labels of a profile; a label can be the number of a request.
pub const LABEL_SETS_MAX: usize = 1 << 16;
/// Most labels of all sets together.
pub const LABELS_MAX: usize = 1 << 20;

/// A set of labels: its index in the profile's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelsId(pub u32);

impl LabelsId {
    /// No labels.
    pub const NONE: LabelsId = LabelsId(0);
}

/// A label of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// Its key.
    pub key: TextId,
    /// Its value.
    pub value: LabelValue,
}

/// The value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LabelValue {
    /// A text.
    Text(TextId),
    /// A number and its unit, which may be empty.
    Number(i64, TextId),
}
