//! Selects a time range of a saved profile.

use std::ops::Range;

use super::text::duration;
use crate::error::{Error, ErrorKind, Result};
use crate::profile::SavedProfile;

/// Readable formats that store the times of samples.
const FORMATS_WITH_TIMES: &str = ".otlp.gz";

/// The samples of a time range, nanoseconds since the recording began. `option`: the option with its start;
/// `name`: of the profile in messages.
///
/// # Errors
/// One line: a profile without times, a range beyond the recording or without samples.
pub(super) fn extract(
    saved: &SavedProfile,
    range: &Range<u64>,
    option: &str,
    name: &str,
) -> Result<SavedProfile> {
    let Some(all_ns) = saved.time_ns() else {
        let why = match saved.about.sampled_every {
            Some(_) => format!(
                "{name} is a heap profile, which has no times of samples; a page of the recording shows what was in use \
                 over time: stackprof heap -o NAME.html"
            ),
            None => format!(
                "{name} has no times of samples; record with -o NAME{FORMATS_WITH_TIMES}, which keeps them, and cut that"
            ),
        };
        return Err(Error::new(ErrorKind::Input, why));
    };
    let long = duration(all_ns);
    if range.start >= all_ns {
        let why =
            format!("{option}: {name} is {long} long, and the part begins at {}", duration(range.start));
        return Err(Error::new(ErrorKind::Input, why));
    }
    let selected = saved
        .in_time_range(range)
        .map_err(|full| Error::new(ErrorKind::Input, full.to_string()).caused_by(full))?;
    selected.filter(|selected| selected.total() > 0).ok_or_else(|| {
        let to = duration(range.end.min(all_ns));
        let why = format!(
            "{option}: {name} has no samples from {} to {to} of its {long}; take a longer part",
            duration(range.start)
        );
        Error::new(ErrorKind::NoData, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{About, SavedBuilder};

    #[test]
    fn a_heap_profile_gets_no_advice_that_cannot_work() {
        let why = |sampled_every| {
            let saved = SavedBuilder::new(About { sampled_every, ..About::default() }).finish();
            extract(&saved, &(0..1), "--from", "a.otlp.gz").expect_err("refused").to_string()
        };
        assert!(why(None).starts_with("a.otlp.gz has no times of samples; record with -o NAME.otlp.gz"));
        assert!(
            why(Some(1)).starts_with("a.otlp.gz is a heap profile, which has no times of samples; a page")
        );
    }
}
