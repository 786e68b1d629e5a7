//! `diff` and `gate`: how often the gate is right, and what both tell their users.
#![allow(clippy::unwrap_used)]

mod power;
