//! `diff` and `gate`: error rates of the gate, and the messages of both.

mod cases;
mod ci;
mod diff;
mod dominant;
mod gate;
mod power;
