//! The heap shim that this program embeds. This build has none.

/// The library, to be written to a file and loaded into a program, or why this build has none.
///
/// # Errors
/// Why there is none.
pub fn library() -> Result<&'static [u8], &'static str> {
    Err("it was built without the shim")
}
