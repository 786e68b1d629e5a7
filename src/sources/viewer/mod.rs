//! What a viewer in a browser needs of the system: a server at the loopback address, the browser itself, a file for it.

pub mod browser;
pub mod loopback;
pub mod private_file;
