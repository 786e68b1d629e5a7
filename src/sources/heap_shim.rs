//! The heap shim: the library that `src/heap_shim/build.rs` compiled and this program embeds.

// Modules of the shim that can be tested here.
#[cfg(test)]
#[path = "../heap_shim/block_set.rs"]
#[allow(dead_code, unreachable_pub)]
mod block_set;
#[cfg(test)]
#[path = "../heap_shim/interval.rs"]
#[allow(dead_code, unreachable_pub)]
mod interval;
#[cfg(test)]
#[path = "../heap_shim/mappings.rs"]
#[allow(dead_code, unreachable_pub)]
mod mappings;
#[cfg(test)]
#[path = "../heap_shim/ring.rs"]
#[allow(dead_code, unreachable_pub)]
mod ring;
#[cfg(test)]
use crate::sources::heap::shared_memory;

/// The library, to be written to a file and loaded into a program, or why this build has none.
pub fn library() -> Result<&'static [u8], &'static str> {
    #[cfg(heap_shim)]
    return Ok(include_bytes!(concat!(env!("OUT_DIR"), "/heap_shim")));
    #[cfg(not(heap_shim))]
    return Err(env!("STACKPROF_NO_HEAP_SHIM"));
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_library_is_an_image_of_this_system() {
        let library = super::library().expect("built where tests run");
        let magic: &[u8] = if cfg!(target_vendor = "apple") { b"\xcf\xfa\xed\xfe" } else { b"\x7fELF" };
        assert!(library.starts_with(magic));
    }
}
