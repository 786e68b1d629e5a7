//! Heading and subtitle of a flame graph: what was recorded, and what is missing.

/// Facts about a recording for heading and subtitle; `None` is unknown.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// Name of the process, or of several.
    pub process: &'a str,
    /// Process id.
    pub pid: Option<u32>,
    /// Requested ticks per second.
    pub hz_requested: Option<u32>,
    /// Ticks that happened, if enough were counted for a rate.
    pub ticks: Option<u64>,
    /// Length of the recording, nanoseconds.
    pub duration_ns: Option<u64>,
    /// The content of the graph (`9970 samples`).
    pub counted: &'a str,
    /// Samples missing from it.
    pub lost: u64,
    /// Incomplete stacks: not walked to their thread's root.
    pub incomplete: u64,
}

impl Caption<'_> {
    /// Heading and subtitle: `title` replaces the default heading `NAME (pid N)`,
    /// which then moves to the front of the subtitle.
    #[must_use]
    pub fn headings(&self, title: Option<&str>) -> (String, String) {
        let process = match self.pid {
            Some(pid) => format!("{} (pid {pid})", self.process),
            None => self.process.to_owned(),
        };
        let mut parts = Vec::new();
        if title.is_some() {
            parts.push(process.clone());
        }
        let duration_s = self.duration_ns.map(|ns| ns as f64 / 1e9);
        parts.push(match duration_s {
            Some(seconds) => format!("{} in {seconds:.1} s", self.counted),
            None => self.counted.to_owned(),
        });
        let achieved = match (self.ticks, duration_s) {
            (Some(_), Some(0.0)) => Some(0.0),
            (Some(ticks), Some(seconds)) => Some(ticks as f64 / seconds),
            _ => None,
        };
        match (self.hz_requested, achieved) {
            (Some(hz), Some(achieved)) => parts.push(format!("{achieved:.1} of {hz} Hz")),
            (Some(hz), None) => parts.push(format!("{hz} Hz")),
            (None, _) => {}
        }
        if self.lost > 0 {
            parts.push(format!("{} missed", self.lost));
        }
        if self.incomplete > 0 {
            let stacks = if self.incomplete == 1 { "stack" } else { "stacks" };
            parts.push(format!("{} incomplete {stacks}", self.incomplete));
        }
        (title.map_or(process, str::to_string), parts.join(" · "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_name_the_process_and_what_is_missing() {
        let caption = Caption {
            process: "work",
            pid: Some(4242),
            hz_requested: Some(997),
            ticks: Some(9968),
            duration_ns: Some(10_000_000_000),
            counted: "9970 samples",
            lost: 0,
            incomplete: 0,
        };
        assert_eq!(
            caption.headings(None),
            ("work (pid 4242)".into(), "9970 samples in 10.0 s · 996.8 of 997 Hz".into())
        );
        let torn = Caption { counted: "1 sample", lost: 12, incomplete: 1, ..caption };
        assert_eq!(
            torn.headings(Some("Before")),
            (
                "Before".into(),
                "work (pid 4242) · 1 sample in 10.0 s · 996.8 of 997 Hz · 12 missed · 1 incomplete stack"
                    .into()
            )
        );
        let little = Caption { pid: None, ticks: None, duration_ns: None, ..caption };
        assert_eq!(little.headings(None), ("work".into(), "9970 samples · 997 Hz".into()));
        let nothing = Caption { hz_requested: None, ..little };
        assert_eq!(nothing.headings(Some("T")), ("T".into(), "work · 9970 samples".into()));
    }
}
