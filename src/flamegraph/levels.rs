//! Detects thin pictures: how many of the outermost levels hold hardly any samples.
//!
//! Input: the drawn boxes. Output: text for the subtitle, or none if the picture fits a window or
//! is not thin.

use super::layout::Picture;

/// Number of levels that a window shows at once, approximately.
const LEVELS_SEEN: usize = 40;

/// Least number of thin levels that are reported.
const THIN_LEVELS_MIN: usize = 20;

/// Levels are thin if together they have at most this part of the picture's width.
const THIN_SHARE: f64 = 0.05;

/// `upper 151 of 250 levels: 4.9% of samples`: the visible levels far from the root have few
/// samples.
pub(super) fn thin(picture: &Picture<'_>, inverted: bool, unit: &str) -> Option<String> {
    let mut widths: Vec<u64> = Vec::new();
    for shown in &picture.frames {
        let level = shown.node.depth as usize;
        if widths.len() <= level {
            widths.resize(level + 1, 0);
        }
        let width = widths.get_mut(level)?;
        *width = width.saturating_add(shown.width);
    }
    let share = |width: u64| width as f64 / picture.width.max(1) as f64;
    // A level is never wider than that of its callers.
    let thick = widths.iter().take_while(|width| share(**width) > THIN_SHARE).count();
    let thin = widths.len() - thick;
    if widths.len() <= LEVELS_SEEN || thin < THIN_LEVELS_MIN {
        return None;
    }
    let end = if inverted { "lower" } else { "upper" };
    let percent = 100.0 * widths.get(thick).map_or(0.0, |width| share(*width));
    Some(format!("{end} {thin} of {} levels: {percent:.1}% of {unit}", widths.len()))
}

#[cfg(test)]
mod tests {
    use super::super::{Frame, layout};
    use super::*;

    /// A stack of `levels` frames; all after the first `thick` have one sample of `all`.
    fn spike(levels: u32, thick: u32, all: u64) -> Vec<Frame<'static>> {
        let weight = |depth| if depth < thick { all } else { 1 };
        (0..levels).map(|depth| Frame { depth, name: "f", base: 0, new: weight(depth) }).collect()
    }

    fn said(levels: u32, thick: u32, all: u64, inverted: bool) -> Option<String> {
        let nodes = spike(levels, thick, all);
        thin(&layout::lay_out(&nodes, all, 0.0), inverted, "samples")
    }

    #[test]
    fn thin_levels_of_a_tall_picture_are_reported() {
        let upper = said(250, 99, 40, false);
        assert_eq!(upper.as_deref(), Some("upper 151 of 250 levels: 2.5% of samples"));
        let lower = said(250, 99, 40, true);
        assert_eq!(lower.as_deref(), Some("lower 151 of 250 levels: 2.5% of samples"));
    }

    #[test]
    fn low_and_thick_pictures_report_nothing() {
        assert_eq!(said(40, 2, 40, false), None, "it fits a window");
        assert_eq!(said(250, 231, 40, false), None, "only a few levels");
        assert_eq!(said(250, 99, 10, false), None, "a tenth of the samples");
        assert_eq!(thin(&layout::lay_out(&[], 0, 0.0), false, "samples"), None);
    }
}
