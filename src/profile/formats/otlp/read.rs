//! Converts OTLP, of any program, to a saved profile.
//!
//! Input: the unpacked message, hostile. Output: [`SavedProfile`], or an error with its position. Separate passes
//! read the dictionary, the types of its profiles, and the samples. A file can have many profiles: those of the
//! requested type are read, by default those with the type of the first, which viewers show. If times are of
//! another clock than the recording's, they are relative to the earliest.

mod converter;
mod profiles;
mod samples;

use std::collections::HashSet;

use super::attributes::{self, Any};
use super::key;
use super::tables::Tables;
use crate::profile::about::{About, COMMENTS_MAX, SAMPLES};
use crate::profile::formats::Malformed;
use crate::profile::formats::extra::Extra;
use crate::profile::formats::pprof::metadata;
use crate::profile::formats::protobuf::limit;
use crate::profile::formats::tally::Tally;
use crate::profile::saved::SavedProfile;
use profiles::{CountUnit, Profile, profiles};
use samples::Reader;

/// Most kinds of values that are named where one is missing.
const KINDS_NAMED: usize = 20;

/// Reads an unpacked profile.
///
/// # Errors
/// The error and its position, as a line for people.
pub fn read(bytes: &[u8]) -> Result<SavedProfile, Malformed> {
    let mut tally = Tally::new("profile");
    let saved = read_samples(bytes, &mut tally)?;
    tally.judge(false).map(|_| saved).map_err(|why| Malformed::from(why.to_string()))
}

/// Reads an unpacked profile, and counts invalid samples.
///
/// # Errors
/// The error and its position, as a line for people without the name of the file.
pub(in crate::profile::formats) fn read_samples(
    bytes: &[u8],
    tally: &mut Tally,
) -> Result<SavedProfile, Malformed> {
    let tables = Tables::read(bytes)?;
    let all = profiles(bytes, &tables)?;
    let Some(first) = all.iter().find(|profile| profile.samples > 0 || profile.is_of_heap()).or(all.first())
    else {
        return Err("no profile; this is an OTLP file of nothing".into());
    };
    let kind = match tally.value_type() {
        Some(wanted) => {
            all.iter().map(|profile| profile.kind).find(|kind| kind.0 == wanted).ok_or_else(|| {
                let mut kinds: Vec<&str> = all.iter().map(|profile| profile.kind.0).collect();
                kinds.sort_unstable();
                kinds.dedup();
                kinds.truncate(KINDS_NAMED);
                format!("it has no values of type `{wanted}`; it has {}", kinds.join(", "))
            })?
        }
        None => first.kind,
    };
    let read: Vec<&Profile<'_, '_>> = all.iter().filter(|profile| profile.kind == kind).collect();
    let others = all.iter().filter(|profile| profile.kind != kind && profile.samples > 0).count();
    let count_unit = CountUnit::of(&read);
    let mut header = Header::of(&read, &tables, &count_unit)?;
    if let Some(wanted) = tally.value_type() {
        header.about.value_type = Some(wanted.to_owned());
    } else if others > 0 && !(header.is_ours && header.about.value_type.is_some()) {
        // Of stackprof's own it is known, and meant.
        tally.remark(&format!("left out: {others} of {} profiles, which do not count {}", all.len(), kind.0));
    }
    let begin_ns = begin_ns(&read, &header);
    let extra: Option<Extra<'_>> = serde_json::from_str(&header.times).ok();
    let has_merged_threads = extra.as_ref().is_some_and(Extra::has_merged_threads);
    let mut reader = Reader::new(
        &tables,
        std::mem::take(&mut header.about),
        begin_ns,
        has_merged_threads,
        count_unit.divisor,
    );
    for profile in &read {
        reader.profile(profile, tally)?;
    }
    let mut builder = reader.finish(tally);
    if let Some(extra) = extra.filter(|_| builder.so_far().timeline().is_some()) {
        extra.put_times(&mut builder)?;
    }
    Ok(builder.finish())
}

/// Origin of the profile's clock, nanoseconds since 1970.
fn begin_ns(profiles: &[&Profile<'_, '_>], header: &Header) -> u64 {
    let begin_ns = header.about.time_unix_ns.unwrap_or(0);
    if header.is_ours {
        return begin_ns;
    }
    let first_ns = profiles.iter().filter_map(|profile| profile.first_ns()).min();
    match first_ns {
        // Without a start, or with one of another clock.
        Some(first_ns) if begin_ns == 0 || begin_ns > first_ns => first_ns,
        _ => begin_ns,
    }
}

/// Data of profiles other than samples.
#[derive(Default)]
struct Header {
    about: About,
    is_ours: bool,
    /// JSON of a timeline's data other than samples.
    times: String,
}

impl Header {
    fn of(
        profiles: &[&Profile<'_, '_>],
        tables: &Tables<'_>,
        count_unit: &CountUnit,
    ) -> Result<Header, Malformed> {
        let mut header = Header {
            about: About { unit: count_unit.unit.clone(), hz: count_unit.hz, ..About::default() },
            ..Header::default()
        };
        let known = |value: u64| Some(value).filter(|value| *value > 0 && i64::try_from(*value).is_ok());
        let begins = || profiles.iter().filter_map(|profile| known(profile.time_unix_ns));
        header.about.time_unix_ns = begins().min();
        let end_ns = |profile: &&Profile<'_, '_>| {
            let begin_ns = known(profile.time_unix_ns).or(header.about.time_unix_ns).unwrap_or(0);
            known(profile.duration_ns).map(|ns| begin_ns.saturating_add(ns))
        };
        let begin_ns = header.about.time_unix_ns.unwrap_or(0);
        let duration_ns =
            profiles.iter().filter_map(end_ns).max().map(|end_ns| end_ns.saturating_sub(begin_ns));
        header.about.duration_ns = duration_ns;
        let pids: HashSet<Option<u32>> = profiles.iter().map(|profile| profile.resource.pid).collect();
        if let [Some(pid)] = pids.iter().collect::<Vec<_>>().as_slice() {
            header.about.pid = Some(*pid);
        }
        // One attribute can be referenced any number of times.
        let mut known = HashSet::new();
        let mut comments = 0;
        for index in profiles.iter().flat_map(|profile| &profile.attributes) {
            if known.insert(*index) {
                header.attribute(*index, tables, &mut comments)?;
            }
        }
        // The rate is one of samples.
        header.about.hz = header.about.hz.filter(|_| header.about.unit == SAMPLES);
        Ok(header)
    }

    fn attribute(&mut self, index: u64, tables: &Tables<'_>, comments: &mut usize) -> Result<(), Malformed> {
        let bytes = usize::try_from(index).ok().and_then(|index| tables.attributes.get(index));
        let bytes = bytes.ok_or_else(|| format!("a profile names attribute {index}, which is not there"))?;
        let (key, value, _) = attributes::of_dictionary(bytes, tables)?;
        match (key, value) {
            (key::RECORDING | key::COMMENTS, _) => {
                self.is_ours |= key == key::RECORDING;
                value.for_each_text(|comment| {
                    limit(*comments, COMMENTS_MAX, "comments")?;
                    *comments += 1;
                    metadata::take_comment(&mut self.about, comment);
                    Ok(())
                })?;
            }
            (key::TIMES, Any::Text(times)) => self.times = String::from_utf8_lossy(times).into_owned(),
            _ => {}
        }
        Ok(())
    }
}
