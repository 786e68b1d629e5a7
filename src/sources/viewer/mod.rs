//! System services for a viewer in a browser: a server at the loopback address, the browser itself, a private
//! file.

pub mod browser;
pub mod loopback;
