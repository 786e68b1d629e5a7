//! Processes: their selection, names, threads and mappings, by records and by /proc.

pub(super) mod entry;
pub(super) mod event;
pub(super) mod filter;
mod images;
pub(super) mod mmap_history;
pub(super) mod procfs;
mod rescan;
pub(super) mod table;
