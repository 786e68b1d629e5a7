//! `diff` and `gate`: how often the gate is right, and what both tell their users.

mod cases;
mod ci;
mod diff;
mod dominant;
mod gate;
mod power;
