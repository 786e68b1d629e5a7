//! Heading and subtitle of a recording's flame graph: what was recorded, and what of it is missing.

/// What heading and subtitle tell of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// Name of the process.
    pub process: &'a str,
    /// Process id.
    pub pid: u32,
    /// Ticks per second that were asked for.
    pub hz_requested: u32,
    /// Ticks per second that happened.
    pub hz_achieved: f64,
    /// Length of the recording, seconds.
    pub duration_s: f64,
    /// Samples in the graph.
    pub samples: u64,
    /// Samples that are not in it.
    pub lost: u64,
    /// Stacks that were not walked to their thread's root.
    pub incomplete: u64,
}

impl Caption<'_> {
    /// Heading and subtitle: `title` replaces the default heading `NAME (pid N)`,
    /// which then moves to the front of the subtitle.
    #[must_use]
    pub fn headings(&self, title: Option<&str>) -> (String, String) {
        let process = format!("{} (pid {})", self.process, self.pid);
        let mut subtitle = String::new();
        if title.is_some() {
            subtitle = format!("{process} · ");
        }
        let samples = if self.samples == 1 { "sample" } else { "samples" };
        subtitle += &format!(
            "{} {samples} in {:.1} s · {:.1} of {} Hz",
            self.samples, self.duration_s, self.hz_achieved, self.hz_requested
        );
        if self.lost > 0 {
            subtitle += &format!(" · {} missed", self.lost);
        }
        if self.incomplete > 0 {
            let stacks = if self.incomplete == 1 { "stack" } else { "stacks" };
            subtitle += &format!(" · {} incomplete {stacks}", self.incomplete);
        }
        (title.map_or(process, str::to_string), subtitle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_name_the_process_and_what_is_missing() {
        let caption = Caption {
            process: "work",
            pid: 4242,
            hz_requested: 997,
            hz_achieved: 996.8,
            duration_s: 10.0,
            samples: 9970,
            lost: 0,
            incomplete: 0,
        };
        assert_eq!(
            caption.headings(None),
            ("work (pid 4242)".into(), "9970 samples in 10.0 s · 996.8 of 997 Hz".into())
        );
        let torn = Caption { samples: 1, lost: 12, incomplete: 1, ..caption };
        assert_eq!(
            torn.headings(Some("Before")),
            (
                "Before".into(),
                "work (pid 4242) · 1 sample in 10.0 s · 996.8 of 997 Hz · 12 missed · 1 incomplete stack"
                    .into()
            )
        );
    }
}
