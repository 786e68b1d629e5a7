//! gate
pub mod bootstrap;
pub mod family;
pub mod orders;
pub mod quantile;
pub mod statistic;
