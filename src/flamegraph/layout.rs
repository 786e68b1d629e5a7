//! From a tree of weighed frames to the boxes that are drawn: widths, and what is left out.
//!
//! Input: [`Frame`]s in pre-order. Output: a [`Picture`]. What is too narrow is left out here,
//! before any drawing, so that the cost of a graph is that of its picture; its weight stays
//! with the frames below it, whose figures do not change. No colours, no text.

use super::frame::{Compared, Frame};

/// Most frames that are drawn. With inferno's script a browser takes about a second to open
/// so many and seven to open 50,000; a graph that has more is drawn from a larger width on,
/// which the subtitle says.
pub const FRAMES_DRAWN_MAX: usize = 10_000;

/// Most levels that are drawn: pictures higher than 32,768 pixels are cut off by browsers
/// when they are saved. Deeper frames are counted in their callers.
pub const LEVELS_DRAWN_MAX: u32 = 2_000;

/// Most frames of all the paths that are handed on: a path names all its frames again.
const PATH_FRAMES_MAX: u64 = 4 << 20;

/// Widths are whole numbers up to here where they are not samples: what a browser's
/// numbers hold exactly.
const SCALE: u64 = 1 << 52;

/// A frame that is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FrameBox<'a> {
    pub(super) node: Frame<'a>,
    /// Index of the frame below it, its caller; `None` for those that stand on `all`.
    pub(super) parent: Option<usize>,
    pub(super) width: u64,
    /// The part of the width on which no drawn frame stands.
    pub(super) bare: u64,
    /// The part of the width that is the function's own work.
    pub(super) own: u64,
}

/// What is drawn.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    /// The frames, callers before what they call.
    pub(super) frames: Vec<FrameBox<'a>>,
    /// Width of the whole picture.
    pub(super) width: u64,
    /// The part of the width on which no drawn frame stands at all.
    pub(super) bare: u64,
    /// Samples of the whole, before and after.
    pub(super) base: u64,
    pub(super) new: u64,
    /// Percent of the width from which on frames are drawn, if it is not what was asked for.
    pub(super) raised_to_percent: Option<f64>,
    /// Deeper levels were left out.
    pub(super) too_deep: bool,
}

/// Lays out `nodes`: those of at least `min_width_percent` of the `total` samples.
pub(super) fn lay_out<'a>(nodes: &[Frame<'a>], total: u64, min_width_percent: f64) -> Picture<'a> {
    // Never less than what stands on it.
    let new = total.max(samples_of_roots(nodes).1);
    let measure = Measure::new(None, 0, new);
    let mut widths = Widths::of(nodes, &measure);
    widths.total = measure.width(0, new);
    arrange(nodes, &widths, (0, new), min_width_percent)
}

/// Lays out the nodes of a comparison: those of at least `min_width_percent` of the whole,
/// which is what they add up to.
pub(super) fn lay_out_compared<'a>(
    nodes: &[Frame<'a>],
    compared: Compared,
    min_width_percent: f64,
) -> Picture<'a> {
    let (base, new) = samples_of_roots(nodes);
    let widths = Widths::of(nodes, &Measure::new(Some(compared), base, new));
    arrange(nodes, &widths, (base, new), min_width_percent)
}

/// Samples of the outermost frames, before and after.
fn samples_of_roots(nodes: &[Frame<'_>]) -> (u64, u64) {
    let roots = nodes.iter().filter(|node| node.depth == 0);
    roots.fold((0u64, 0u64), |(base, new), node| {
        (base.saturating_add(node.base), new.saturating_add(node.new))
    })
}

fn arrange<'a>(
    nodes: &[Frame<'a>],
    widths: &Widths,
    (base, new): (u64, u64),
    min_width_percent: f64,
) -> Picture<'a> {
    let asked = (min_width_percent / 100.0 * widths.total as f64).ceil().max(1.0) as u64;
    let least = least_width(nodes, widths, asked);
    let mut picture = Picture {
        frames: Vec::new(),
        width: widths.total,
        bare: widths.total,
        base,
        new,
        raised_to_percent: (least > asked).then(|| 100.0 * least as f64 / widths.total as f64),
        too_deep: false,
    };
    // The frames that are open at a place of the list, by depth; `None` where one is left out.
    let mut open: Vec<Option<usize>> = Vec::new();
    for (node, (&width, &own)) in nodes.iter().zip(widths.of_node.iter().zip(&widths.own)) {
        open.truncate(node.depth as usize);
        let parent = open.last().copied().flatten();
        let wide = width >= least && (node.depth == 0 || parent.is_some());
        picture.too_deep |= wide && node.depth >= LEVELS_DRAWN_MAX;
        if !wide || node.depth >= LEVELS_DRAWN_MAX {
            open.push(None);
            continue;
        }
        let below = match parent.and_then(|parent| picture.frames.get_mut(parent)) {
            Some(parent) => &mut parent.bare,
            None => &mut picture.bare,
        };
        *below = below.saturating_sub(width);
        open.push(Some(picture.frames.len()));
        picture.frames.push(FrameBox { node: *node, parent, width, bare: width, own });
    }
    picture
}

/// How samples become widths.
struct Measure {
    base_total: u64,
    new_total: u64,
    full: u64,
}

impl Measure {
    fn new(compared: Option<Compared>, base: u64, new: u64) -> Measure {
        match compared {
            Some(Compared::Shares) if base > 0 && new > 0 => {
                Measure { base_total: base, new_total: new, full: SCALE / 2 }
            }
            _ => {
                let total = if compared.is_some() { base.saturating_add(new) } else { new };
                Measure { base_total: total, new_total: total, full: total.min(SCALE) }
            }
        }
    }

    /// Rounded down, so that what stands on a frame is never wider than the frame.
    fn width(&self, base: u64, new: u64) -> u64 {
        let part = |samples: u64, total: u64| {
            let part = u128::from(samples) * u128::from(self.full) / u128::from(total.max(1));
            part.min(u128::from(self.full)) as u64
        };
        part(base, self.base_total).saturating_add(part(new, self.new_total))
    }
}

struct Widths {
    of_node: Vec<u64>,
    own: Vec<u64>,
    total: u64,
}

impl Widths {
    fn of(nodes: &[Frame<'_>], measure: &Measure) -> Widths {
        let of_node: Vec<u64> = nodes.iter().map(|node| measure.width(node.base, node.new)).collect();
        let mut own = of_node.clone();
        let mut total = 0u64;
        let mut open: Vec<usize> = Vec::new();
        for (index, (node, &width)) in nodes.iter().zip(&of_node).enumerate() {
            open.truncate(node.depth as usize);
            match open.last().and_then(|&parent| own.get_mut(parent)) {
                Some(own) => *own = own.saturating_sub(width),
                None => total = total.saturating_add(width),
            }
            open.push(index);
        }
        Widths { of_node, own, total }
    }
}

/// The width from which on frames are drawn: what was asked for, or more where that would
/// be more frames than [`FRAMES_DRAWN_MAX`] or longer paths than [`PATH_FRAMES_MAX`].
fn least_width(nodes: &[Frame<'_>], widths: &Widths, asked: u64) -> u64 {
    let wide = nodes.iter().zip(&widths.of_node).filter(|(_, width)| **width >= asked);
    let mut wide: Vec<(u64, u32)> = wide.map(|(node, &width)| (width, node.depth)).collect();
    if wide.len() <= FRAMES_DRAWN_MAX
        && wide.iter().map(|(_, depth)| u64::from(*depth)).sum::<u64>() <= PATH_FRAMES_MAX
    {
        return asked;
    }
    wide.sort_unstable_by(|a, b| b.cmp(a));
    let mut path_frames = 0u64;
    let fits = wide.iter().take(FRAMES_DRAWN_MAX).take_while(|(_, depth)| {
        path_frames += u64::from((*depth).min(LEVELS_DRAWN_MAX));
        path_frames <= PATH_FRAMES_MAX
    });
    let fitting = fits.count();
    // Of frames with the same width all are drawn or none; those of the full width always.
    let first_out = wide.get(fitting).map_or(0, |(width, _)| *width);
    (first_out + 1).min(widths.total).max(asked)
}
