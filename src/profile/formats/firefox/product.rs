//! What the product of a profile is called where counts are not samples at a rate.

/// The product of profiles that do not tell their rate; their interval means nothing.
pub(super) const PRODUCT_NO_RATE: &str = "stackprof (no rate)";

/// The product of profiles that count something else, which ends with it and a bracket: the
/// format has types of weights for samples and bytes only.
pub(super) const PRODUCT_COUNTS: &str = "stackprof (counts ";
