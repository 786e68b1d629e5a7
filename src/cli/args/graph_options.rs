//! The options of flame graphs: the same for recordings, `render` and `diff`.

use std::ffi::OsStr;

use super::values::{colors, min_width_percent};
use crate::cli::flags::LookFlags;
use crate::error::Result;
use crate::flamegraph::{Colors, Graph};

/// How a flame graph looks.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOptions {
    /// Its heading; `None` is the default one.
    pub title: Option<String>,
    /// Frames narrower than this percentage are left out.
    pub min_width_percent: f64,
    /// Its colours.
    pub colors: Colors,
    /// Whether its background is dark.
    pub dark: bool,
    /// Whether its root is at the top, not at the bottom.
    pub inverted: bool,
}

impl GraphOptions {
    /// Parses the flags.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
    pub(super) fn new(
        title: Option<String>,
        min_width: Option<&OsStr>,
        look: &LookFlags,
    ) -> Result<GraphOptions> {
        Ok(GraphOptions {
            title,
            min_width_percent: min_width_percent(min_width)?,
            colors: look.colors.as_deref().map_or(Ok(Colors::default()), colors)?,
            dark: look.dark,
            inverted: look.root_at_the_top(),
        })
    }

    /// A flame graph with these headings.
    pub(in crate::cli) fn graph(&self, title: String, subtitle: String, unit: String) -> Graph {
        Graph {
            title,
            subtitle,
            unit,
            min_width_percent: self.min_width_percent,
            colors: self.colors,
            dark: self.dark,
            inverted: self.inverted,
        }
    }
}
