//! The colours of a flame graph: frames by name, by own work or by change; background and text.
//!
//! Input: names and weights. Output: colours that depend on nothing else, so that a
//! function looks the same in every graph. All of them are light enough for black text.

use inferno::flamegraph::color::Color;

/// A set of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colors {
    /// Warm colours that tell functions apart; in a comparison red grew and blue shrank.
    #[default]
    Hot,
    /// For every kind of sight. Orange is a function's own work, blue work of what it calls;
    /// in a comparison orange grew and blue shrank.
    BlueOrange,
}

/// Where one colour passes into another: what frames without a change have.
const NEUTRAL: Color = Color { r: 224, g: 224, b: 220 };
const RED: Color = Color { r: 248, g: 84, b: 66 };
const LIGHT_BLUE: Color = Color { r: 104, g: 146, b: 250 };
// Blue and orange keep apart for people who see no red or no green; in between they
// differ in brightness too.
const ORANGE: Color = Color { r: 245, g: 146, b: 30 };
const BLUE: Color = Color { r: 96, g: 165, b: 222 };
const PALE_BLUE: Color = Color { r: 187, g: 213, b: 235 };

/// What the names of the kernel's functions end in; they are violet in every set.
const KERNEL: &str = "_[k]";

impl Colors {
    /// The names that `--colors` takes.
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

    /// The colour of a frame of which `own_share` (0 to 1) is its own work. Frames that stand
    /// for something not known (`[incomplete]`, `[lib+0x1f40]`) are grey, the kernel's violet.
    pub(super) fn of_frame(self, name: &str, own_share: f64) -> Color {
        let hash = hash(name);
        // The largest step of a span is 255, so that the sum stays within a byte.
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
                // Neighbours with the same share differ a little in brightness.
                let full = if own_share < 0.5 { PALE_BLUE } else { NEUTRAL };
                let (from, to) = (mix(BLUE, full, f64::from(pick(56, 0, 60)) / 100.0), ORANGE);
                mix(from, mix(to, NEUTRAL, f64::from(pick(48, 0, 60)) / 100.0), own_share)
            }
        }
    }

    /// The colour of a change from -1 (gone) over 0 (none) to 1 (new).
    pub(super) fn of_change(self, change: f64) -> Color {
        let (grew, shrank) = match self {
            Colors::Hot => (RED, LIGHT_BLUE),
            Colors::BlueOrange => (ORANGE, BLUE),
        };
        // The root lets small changes be seen: 5 % more is 0.024, and a sixth of the way.
        let strength = change.abs().sqrt();
        mix(NEUTRAL, if change > 0.0 { grew } else { shrank }, strength)
    }

    /// What the colours mean, for the subtitle; empty if nothing.
    pub(super) fn legend(self, compared: bool) -> &'static str {
        match (self, compared) {
            (Colors::Hot, false) => "",
            (Colors::Hot, true) => "red: grew, blue: shrank",
            (Colors::BlueOrange, false) => "orange: own work, blue: calls others",
            (Colors::BlueOrange, true) => "orange: grew, blue: shrank",
        }
    }
}

/// `legend` with what the colours of these names mean that are no function of the program: nothing where there are none.
pub(super) fn legend_of_names<'n>(legend: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let (mut kernel, mut unnamed) = (false, false);
    for name in names {
        kernel |= name.ends_with(KERNEL);
        // A frame of a stack, not of an address: `[incomplete]` explains itself.
        unnamed |= name.starts_with('[') && name.contains('+') || name == UNKNOWN;
    }
    let parts = [(!legend.is_empty(), legend), (kernel, "violet: kernel"), (unnamed, "grey: no symbol")];
    parts.into_iter().filter_map(|(is_there, part)| is_there.then_some(part)).collect::<Vec<_>>().join(", ")
}

/// The name of an address in no module.
const UNKNOWN: &str = "[unknown]";

/// The frame `all`, which is nobody's.
pub(super) const ALL: Color = Color { r: 205, g: 205, b: 205 };

/// Colours around the frames.
pub(super) struct Page {
    /// Top and bottom of the background.
    pub(super) background: Color,
    /// Heading, buttons and the line below the frames.
    pub(super) text: Color,
    /// Style rules of ours beside inferno's, which knows no dark page and no subtitle colour.
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

/// A hash in which all bits change with the last characters of a name.
fn hash(name: &str) -> u64 {
    // FNV-1a, mixed once more because its high bits hardly change.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// `share` (0 to 1) of the way from one colour to another.
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
    fn the_legend_tells_the_colours_that_are_there() {
        let of = |legend: &str, names: &[&str]| legend_of_names(legend, names.iter().copied());
        assert_eq!(of("", &["main", "[incomplete]"]), "");
        assert_eq!(of("", &["main", "read_[k]", "[a.so+0x10]"]), "violet: kernel, grey: no symbol");
        assert_eq!(of("orange: x", &["[unknown]"]), "orange: x, grey: no symbol");
    }

    /// Relative luminance as WCAG 2 defines it.
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
        // Pinned: colours must not change from one version to the next.
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
    fn black_text_can_be_read_on_every_frame() {
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
    fn text_of_the_page_can_be_read() {
        for dark in [false, true] {
            let page = page(dark);
            assert!(contrast(page.background, page.text) >= 7.0, "dark: {dark}");
        }
    }

    #[test]
    fn growth_and_shrinking_differ_and_grow_with_the_change() {
        let distance = |a: Color, b: Color| {
            let part = |a: u8, b: u8| (f64::from(a) - f64::from(b)).powi(2);
            (part(a.r, b.r) + part(a.g, b.g) + part(a.b, b.b)).sqrt()
        };
        for colors in [Colors::Hot, Colors::BlueOrange] {
            assert_eq!(colors.of_change(0.0), NEUTRAL);
            assert!(distance(colors.of_change(1.0), colors.of_change(-1.0)) > 150.0, "{colors:?}");
            for sign in [1.0, -1.0] {
                // 5 % more or less can be told from no change.
                assert!(distance(colors.of_change(sign * 0.05 / 2.05), NEUTRAL) > 15.0, "{colors:?}");
                let steps =
                    [0.01, 0.05, 0.2, 0.5, 1.0].map(|c| distance(colors.of_change(sign * c), NEUTRAL));
                assert!(steps.is_sorted(), "{colors:?}: {steps:?}");
            }
        }
    }
}
