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

    #[test]
    #[cfg(target_os = "linux")]
    fn the_library_calls_no_function_of_c_that_a_sanitizer_replaces() {
        let library = super::library().expect("built where tests run");
        assert!(crate::binary::elf::functions::imports(library, &["dlsym"]));
        assert!(!crate::binary::elf::functions::imports(
            library,
            &["memcpy", "memset", "memmove", "memcmp", "bcmp"]
        ));
    }

    /// If those of C were interposed alone, libmalloc would call them from the typed ones.
    #[test]
    fn the_table_for_dyld_has_each_typed_function_and_its_counterpart() {
        let source = include_str!("../heap_shim/real_macos.rs");
        let (_, table) = source.split_once("\nfunctions!(").expect("a table");
        let rows = table.split(");").next().expect("its end").split([',', ';']);
        let names: Vec<&str> =
            rows.filter_map(|row| row.split_once(" = ")).map(|(name, _)| name.trim()).collect();
        assert!(names.len() > 30, "{names:?}");
        for name in &names {
            let Some(rest) = name.strip_prefix("malloc_type_") else { continue };
            let counterpart =
                if rest.starts_with("zone") { format!("malloc_{rest}") } else { rest.to_owned() };
            assert!(names.contains(&counterpart.as_str()), "{name} without {counterpart}");
        }
        // Those that libmalloc asks about (`_malloc_detect_interposition`).
        let of_c = ["malloc", "calloc", "realloc", "valloc", "aligned_alloc", "posix_memalign"];
        let of_zones = ["malloc", "calloc", "realloc", "valloc", "memalign", "free"];
        for name in of_c {
            assert!(names.contains(&format!("malloc_type_{name}").as_str()), "{name}");
        }
        for name in of_zones {
            assert!(names.contains(&format!("malloc_type_zone_{name}").as_str()), "{name}");
        }
    }
}
