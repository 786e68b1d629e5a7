//! Which of the values of a pprof sample counts, and what one count is.
//!
//! Input: sample types, period and samples of a file. Output: [`Chosen`], and the unit. Times
//! become samples only where nothing is lost by it.

use prost::Message;

use super::proto::{self, field};
use super::read::{MAX_PERIOD_NS, MAX_SAMPLE_BYTES, Tables, Value, for_each_field};
use crate::profile::about::SAMPLES;
use crate::profile::formats::Malformed;

/// Shortest period by which times become samples: none is taken every microsecond, and a
/// period of 1 means that the time itself is counted.
const MIN_PERIOD_NS: i64 = 1_000;

/// Which value of a sample counts, and how.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub(super) index: usize,
    /// What one count is of the value.
    pub(super) divisor: u64,
}

/// Chooses, and names what is counted. `bytes` are those of the whole message.
pub(super) fn chosen(tables: &Tables<'_>, bytes: &[u8]) -> Result<(Chosen, String), Malformed> {
    let mut types = Vec::new();
    for (index, value) in tables.sample_types.iter().enumerate() {
        let of = format!("sample type {index}");
        types.push((tables.string(value.kind, &of)?, tables.string(value.unit, &of)?));
    }
    let default = tables.string(tables.default_type.cast_signed(), "the default sample type")?;
    let named = |name: &str| types.iter().position(|(kind, _)| !name.is_empty() && *kind == name);
    let index = named(SAMPLES).or_else(|| named(default)).unwrap_or(types.len() - 1);
    let (kind, unit) = types.get(index).copied().unwrap_or_default();
    let one = Chosen { index, divisor: 1 };
    let period = (
        tables.string(tables.period_type.kind, "the period type")?,
        tables.string(tables.period_type.unit, "the period type")?,
    );
    let is_sampled = period == (kind, unit) && (MIN_PERIOD_NS..=MAX_PERIOD_NS).contains(&tables.period);
    Ok(match unit {
        "nanoseconds"
            if kind != SAMPLES && is_sampled && are_multiples(bytes, index, tables.period.unsigned_abs()) =>
        {
            (Chosen { index, divisor: tables.period.unsigned_abs() }, SAMPLES.to_owned())
        }
        "count" | "" => (one, if kind.is_empty() { SAMPLES.to_owned() } else { kind.to_owned() }),
        unit if kind == SAMPLES => (one, if unit == SAMPLES { SAMPLES } else { unit }.to_owned()),
        unit => (one, unit.to_owned()),
    })
}

/// Whether a value of all samples is whole periods, up to what rounding a period leaves of
/// their sum. Of times that were measured a division would lose what is no whole period.
fn are_multiples(bytes: &[u8], index: usize, period: u64) -> bool {
    let whole = |value: u64| {
        let over = value % period;
        over.min(period - over) <= period / 100 + value / 1_000_000
    };
    let of_field = |field, value: Value<'_>| match (field, value) {
        (field::SAMPLE, Value::Bytes(bytes)) if bytes.len() <= MAX_SAMPLE_BYTES => {
            let sample = proto::Sample::decode(bytes)
                .map_err(|error| Malformed::caused_by(error.to_string(), error))?;
            let value = sample.value.get(index).copied().unwrap_or(0);
            if whole(value.unsigned_abs()) { Ok(()) } else { Err(String::new().into()) }
        }
        _ => Ok(()),
    };
    for_each_field(bytes, of_field).is_ok()
}
