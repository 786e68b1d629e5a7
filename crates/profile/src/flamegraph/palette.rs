//! The colors of a flame graph: frames by name, by self time or by change; background and text.
//!
//! Input: names and weights. Output: colors that depend on nothing else, so that a function looks
//! the same in every graph. All of them are light enough for black text.

use inferno::flamegraph::color::Color;

/// A color set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colors {
    /// Warm colors that distinguish functions; in a comparison, red grew and blue shrank.
    #[default]
    Hot,
    /// Safe for color blindness. Orange is a function's self time, blue that of its callees; in a
    /// comparison, orange grew and blue shrank.
    BlueOrange,
}

/// Midpoint between two colors: frames without a change.
const NEUTRAL: Color = Color { r: 224, g: 224, b: 220 };
const RED: Color = Color { r: 248, g: 84, b: 66 };
const LIGHT_BLUE: Color = Color { r: 104, g: 146, b: 250 };
// Blue and orange stay distinct with red or green blindness; intermediate colors also differ in
// brightness.
const ORANGE: Color = Color { r: 245, g: 146, b: 30 };
const BLUE: Color = Color { r: 96, g: 165, b: 222 };
const PALE_BLUE: Color = Color { r: 187, g: 213, b: 235 };

/// Suffix of kernel functions; they are violet in every set.
const KERNEL: &str = "_[k]";

impl Colors {
    /// Names of the sets for `--colors`.
    pub const NAMES: [&'static str; 2] = ["hot", "blue-orange"];

    /// The set called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Colors> {
        match name {
            "hot" => Some(Colors::Hot),
            "blue-orange" => Some(Colors::BlueOrange),
            _ => None,
        }
    }

    /// The color of a frame; `own_share` (0 to 1) is its self time. Placeholder frames
    /// (`[incomplete]`, `[lib+0x1f40]`) are gray, kernel frames violet.
    pub(super) fn of_frame(self, name: &str, own_share: f64) -> Color {
        let hash = hash(name);
        // Adds at most `span`, so that the sum fits into a byte.
        let pick = |shift: u32, low: u64, span: u64| (low + (hash >> shift & 0xff) * span / 255) as u8;
        if name.starts_with('[') {
            let grey = pick(56, 180, 20);
            return Color { r: grey, g: grey, b: grey };
        }
        if name.ends_with(KERNEL) {
            return Color { r: pick(56, 176, 22), g: pick(48, 164, 22), b: pick(40, 214, 28) };
        }
        match self {
            Colors::Hot => Color { r: pick(56, 225, 30), g: pick(48, 115, 110), b: pick(40, 45, 55) },
            Colors::BlueOrange => {
                // Neighbors with the same share differ slightly in brightness.
                let full = if own_share < 0.5 { PALE_BLUE } else { NEUTRAL };
                let (from, to) = (mix(BLUE, full, f64::from(pick(56, 0, 60)) / 100.0), ORANGE);
                mix(from, mix(to, NEUTRAL, f64::from(pick(48, 0, 60)) / 100.0), own_share)
            }
        }
    }

    /// The color of a change from -1 (gone) over 0 (none) to 1 (new).
    pub(super) fn of_change(self, change: f64) -> Color {
        let (grew, shrank) = match self {
            Colors::Hot => (RED, LIGHT_BLUE),
            Colors::BlueOrange => (ORANGE, BLUE),
        };
        // The square root makes small changes visible: 5 % more is 0.024, and a sixth of the way.
        let strength = change.abs().sqrt();
        mix(NEUTRAL, if change > 0.0 { grew } else { shrank }, strength)
    }

    /// Explains the colors in the subtitle; empty if they have no meaning.
    pub(super) fn legend(self, compared: bool) -> &'static str {
        match (self, compared) {
            (Colors::Hot, false) => "",
            (Colors::Hot, true) => "red: grew, blue: shrank",
            (Colors::BlueOrange, false) => "orange: own work, blue: calls others",
            (Colors::BlueOrange, true) => "orange: grew, blue: shrank",
        }
    }
}

/// Extends `legend` with the colors of those names that are not functions of the program, if there are any.
pub(super) fn legend_of_names<'n>(legend: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let (mut kernel, mut unnamed) = (false, false);
    for name in names {
        kernel |= name.ends_with(KERNEL);
        // A placeholder for a stack, not for an address: `[incomplete]` explains itself.
        unnamed |= name.starts_with('[') && name.contains('+') || name == UNKNOWN;
    }
    let parts = [(!legend.is_empty(), legend), (kernel, "violet: kernel"), (unnamed, "grey: no symbol")];
    parts.into_iter().filter_map(|(is_there, part)| is_there.then_some(part)).collect::<Vec<_>>().join(", ")
}

/// The name of an address outside of all modules.
const UNKNOWN: &str = "[unknown]";

/// The color of the frame `all`.
pub(super) const ALL: Color = Color { r: 205, g: 205, b: 205 };

/// Colors around the frames.
pub(super) struct Page {
    /// Top and bottom of the background.
    pub(super) background: Color,
    /// Heading, buttons and the line below the frames.
    pub(super) text: Color,
    /// Our style rules in addition to inferno's, which has no dark page and no subtitle color.
    pub(super) style: &'static str,
}

/// The page: light or dark.
pub(super) fn page(dark: bool) -> Page {
    if dark {
        Page {
            background: Color { r: 27, g: 29, b: 33 },
            text: Color { r: 232, g: 232, b: 228 },
            style: ":root { background:rgb(27,29,33); }\n#subtitle { fill:rgb(170,172,176); }\n#search { opacity:0.7; }\n\
                    .bar { fill:rgb(27,29,33); }\n\
                    #frames > *:hover { stroke:white; stroke-width:1; }\n",
        }
    } else {
        Page {
            background: Color { r: 250, g: 250, b: 248 },
            text: Color { r: 0, g: 0, b: 0 },
            style: ":root { background:rgb(250,250,248); }\n#subtitle { fill:rgb(95,95,95); }\n#search { opacity:0.7; }\n\
                    .bar { fill:rgb(250,250,248); }\n",
        }
    }
}

/// A hash with good diffusion of the last characters of a name.
fn hash(name: &str) -> u64 {
    // FNV-1a, mixed once more because its high bits hardly change.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Mixes two colors; `share` (0 to 1) is the weight of the second.
fn mix(from: Color, to: Color, share: f64) -> Color {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let mixed =
        |from: u8, to: u8| (f64::from(from) + (f64::from(to) - f64::from(from)) * share).round() as u8;
    Color { r: mixed(from.r, to.r), g: mixed(from.g, to.g), b: mixed(from.b, to.b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legend_lists_only_colors_in_use() {
        let of = |legend: &str, names: &[&str]| legend_of_names(legend, names.iter().copied());
        assert_eq!(of("", &["main", "[incomplete]"]), "");
        assert_eq!(of("", &["main", "read_[k]", "[a.so+0x10]"]), "violet: kernel, grey: no symbol");
        assert_eq!(of("orange: x", &["[unknown]"]), "orange: x, grey: no symbol");
    }

    /// Relative luminance, as defined by WCAG 2.
    fn luminance(color: Color) -> f64 {
        let linear = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)
    }

    fn contrast(a: Color, b: Color) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn a_function_keeps_its_color() {
        // Pinned: colors must not change between versions.
        let rgb = |name| {
            let color = Colors::Hot.of_frame(name, 0.5);
            (color.r, color.g, color.b)
        };
        assert_eq!(rgb("main"), (239, 203, 46));
        let (r, g, b) = rgb("[incomplete]");
        assert!(r == g && g == b, "grey");
        assert_ne!(rgb("spin_a"), rgb("spin_b"));
    }

    #[test]
    fn black_text_is_readable_on_every_frame() {
        let black = Color { r: 0, g: 0, b: 0 };
        for colors in [Colors::Hot, Colors::BlueOrange] {
            for step in 0..=100 {
                let share = f64::from(step) / 100.0;
                for name in ["main", "a", "b", "spin", "[unknown]"] {
                    assert!(
                        contrast(colors.of_frame(name, share), black) >= 4.5,
                        "{colors:?} {name} {share}"
                    );
                }
                for change in [share, -share] {
                    assert!(contrast(colors.of_change(change), black) >= 4.5, "{colors:?} {change}");
                }
            }
        }
    }

    #[test]
    fn text_of_the_page_is_readable() {
        for dark in [false, true] {
            let page = page(dark);
            assert!(contrast(page.background, page.text) >= 7.0, "dark: {dark}");
        }
    }

    #[test]
    fn growth_and_shrinking_differ_and_scale_with_the_change() {
        let distance = |a: Color, b: Color| {
            let part = |a: u8, b: u8| (f64::from(a) - f64::from(b)).powi(2);
            (part(a.r, b.r) + part(a.g, b.g) + part(a.b, b.b)).sqrt()
        };
        for colors in [Colors::Hot, Colors::BlueOrange] {
            assert_eq!(colors.of_change(0.0), NEUTRAL);
            assert!(distance(colors.of_change(1.0), colors.of_change(-1.0)) > 150.0, "{colors:?}");
            for sign in [1.0, -1.0] {
                // A change of 5 % is distinguishable from none.
                assert!(distance(colors.of_change(sign * 0.05 / 2.05), NEUTRAL) > 15.0, "{colors:?}");
                let steps =
                    [0.01, 0.05, 0.2, 0.5, 1.0].map(|c| distance(colors.of_change(sign * c), NEUTRAL));
                assert!(steps.is_sorted(), "{colors:?}: {steps:?}");
            }
        }
    }
}
