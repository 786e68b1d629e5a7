//! Product names of profiles with counts other than samples at a rate.

/// Product of profiles without a rate; their interval is meaningless.
pub(super) const PRODUCT_NO_RATE: &str = "stackprof (no rate)";

/// Product of profiles with other counts, followed by the unit and a parenthesis: the format has weight types
/// for samples and bytes only.
pub(super) const PRODUCT_COUNTS: &str = "stackprof (counts ";
