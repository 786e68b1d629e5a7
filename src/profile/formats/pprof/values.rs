//! Chooses the value of a pprof sample to count, and the unit of counts.
//!
//! Input: sample types, period and samples of a file. Output: [`CountedValue`], and the unit. Times become
//! samples only if the conversion is lossless.

use prost::Message;

use super::metadata;
use super::proto::{self, field};
use super::tables::{PERIOD_NS_MAX, SAMPLE_BYTES_MAX, Tables, for_each_field};
use crate::profile::about::SAMPLES;
use crate::profile::formats::Malformed;
use crate::profile::formats::protobuf::Value;
use crate::profile::formats::tally::Tally;

/// Shortest period for converting times to samples: no profiler samples every microsecond, and a period of 1
/// means that time itself is counted.
pub(in crate::profile::formats) const PERIOD_NS_MIN: i64 = 1_000;

/// The value of a sample to count.
#[derive(Clone, Copy)]
pub(super) struct CountedValue {
    pub(super) index: usize,
    /// The value of one count.
    pub(super) divisor: u64,
}

/// Chooses the value, and its unit. `bytes` is the whole message.
pub(super) fn chosen(
    tables: &Tables<'_>,
    bytes: &[u8],
    tally: &mut Tally,
) -> Result<(CountedValue, String), Malformed> {
    let mut types = Vec::new();
    for (index, value) in tables.sample_types.iter().enumerate() {
        let of = format!("sample type {index}");
        types.push((tables.string(value.kind, &of)?, tables.string(value.unit, &of)?));
    }
    if let Some(wanted) = tally.value_type() {
        let index = types.iter().position(|(kind, _)| *kind == wanted).ok_or_else(|| {
            let kinds: Vec<&str> = types.iter().map(|(kind, _)| *kind).collect();
            format!("it has no values of type `{wanted}`; it has {}", kinds.join(", "))
        })?;
        let (kind, unit) = types.get(index).copied().unwrap_or_default();
        let unit = if matches!(unit, "count" | "") { kind } else { unit };
        return Ok((CountedValue { index, divisor: 1 }, unit.to_owned()));
    }
    let default = tables.string(tables.default_type.cast_signed(), "the default sample type")?;
    let named = |name: &str| types.iter().position(|(kind, _)| !name.is_empty() && *kind == name);
    // As `go tool pprof`; proportional counts of samples are preferred, as they are shorter.
    let shown = named(default).unwrap_or(types.len() - 1);
    let has_waits = tables.comments().any(|comment| comment == metadata::WITH_WAITS);
    let samples = named(SAMPLES).filter(|samples| are_proportional(bytes, *samples, shown, has_waits));
    let index = samples.unwrap_or(shown);
    let (kind, unit) = types.get(index).copied().unwrap_or_default();
    let one = CountedValue { index, divisor: 1 };
    let period = (
        tables.string(tables.period_type.kind, "the period type")?,
        tables.string(tables.period_type.unit, "the period type")?,
    );
    let is_sampled = period == (kind, unit) && (PERIOD_NS_MIN..=PERIOD_NS_MAX).contains(&tables.period);
    let found = match unit {
        "nanoseconds"
            if kind != SAMPLES && is_sampled && are_multiples(bytes, index, tables.period.unsigned_abs()) =>
        {
            (CountedValue { index, divisor: tables.period.unsigned_abs() }, SAMPLES.to_owned())
        }
        "count" | "" => (one, if kind.is_empty() { SAMPLES.to_owned() } else { kind.to_owned() }),
        unit if kind == SAMPLES => (one, if unit == SAMPLES { SAMPLES } else { unit }.to_owned()),
        unit => (one, unit.to_owned()),
    };
    // In stackprof's own files it is intended.
    let is_own = tables.comments().any(|comment| comment.strip_prefix(metadata::TYPE) == Some(kind));
    if types.len() > 1 && found.1 != SAMPLES && !is_own {
        tally.remark(&format!("1 of {} values is read: {kind}", types.len()));
    }
    Ok(found)
}

/// Whether a value of all samples is whole periods, up to the rounding error of their sum. Dividing measured
/// times would lose the remainder.
fn are_multiples(bytes: &[u8], index: usize, period: u64) -> bool {
    let whole = |value: u64| {
        let over = value % period;
        over.min(period - over) <= period / 100 + value / 1_000_000
    };
    each_sample(bytes, |value| whole(value(index).unsigned_abs())).is_ok()
}

/// Whether one value of all samples is a constant multiple of another, up to rounding. Samples of waiting
/// threads, in profiles with these, have no CPU time.
fn are_proportional(bytes: &[u8], of: usize, value: usize, has_waits: bool) -> bool {
    // The largest is the most precise.
    let mut largest = (0, 0);
    let _ = each_sample(bytes, |sample| {
        if !has_waits || sample(value) != 0 {
            largest = largest.max((sample(of), sample(value)));
        }
        true
    });
    let ratio = largest.1 as f64 / largest.0 as f64;
    let fits = |count: i64, value: i64| {
        has_waits && value == 0 || (value as f64 - count as f64 * ratio).abs() <= 1.0 + ratio.abs() / 100.0
    };
    (largest.0 > 0 || has_waits) && each_sample(bytes, |sample| fits(sample(of), sample(value))).is_ok()
}

/// Calls `visit` with the values of each sample until it returns false.
fn each_sample(bytes: &[u8], mut visit: impl FnMut(&dyn Fn(usize) -> i64) -> bool) -> Result<(), Malformed> {
    for_each_field(bytes, |field, value: Value<'_>| match (field, value) {
        (field::SAMPLE, Value::Bytes(bytes)) if bytes.len() <= SAMPLE_BYTES_MAX => {
            // Errors are reported when the samples are read.
            let Ok(sample) = proto::Sample::decode(bytes) else { return Ok(()) };
            let goes_on = visit(&|index| sample.value.get(index).copied().unwrap_or(0));
            if goes_on { Ok(()) } else { Err(String::new().into()) }
        }
        _ => Ok(()),
    })
}
