//! Processes: their selection, names, threads and mappings, by records and by /proc.

pub(super) mod entry;
pub(super) mod filter;
pub(super) mod table;
