//! Offsets of structure members in the running kernel, from its type information (BTF, Documentation/bpf/btf.rst).
//! Input: names of a structure and a member. Output: an offset in bytes.

use std::fs;

const PATH: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;

/// Offset of a member in a structure of the running kernel; `None` if the kernel has no such type information.
pub(in crate::sources::linux::perf) fn member_offset(structure: &str, member: &str) -> Option<i32> {
    find(&fs::read(PATH).ok()?, structure, member)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

fn find(btf: &[u8], structure: &str, member: &str) -> Option<i32> {
    if btf.first_chunk().map(|magic| u16::from_le_bytes(*magic)) != Some(MAGIC) {
        return None;
    }
    let field = |index: usize| word(btf, 4 + 4 * index).map(|value| value as usize);
    let body = btf.get(field(0)?..)?;
    let types = body.get(field(1)?..)?.get(..field(2)?)?;
    let names = body.get(field(3)?..)?.get(..field(4)?)?;
    let is_named = |offset: u32, name: &str| {
        let found = names.get(offset as usize..).and_then(|rest| rest.strip_prefix(name.as_bytes()));
        found.is_some_and(|rest| rest.first() == Some(&0))
    };
    let mut at = 0;
    while at < types.len() {
        let (name, info) = (word(types, at)?, word(types, at + 4)?);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        at += 12;
        let bytes = match kind {
            // Integer, variable, declaration tag.
            1 | 14 | 17 => 4,
            // Array.
            3 => 12,
            // Structure, union, data section, 64-bit enumeration.
            STRUCT | 5 | 15 | 19 => count * 12,
            // Enumeration, function prototype.
            6 | 13 => count * 8,
            // References to another type.
            2 | 7..=12 | 16 | 18 => 0,
            _ => return None,
        };
        if kind == STRUCT && is_named(name, structure) {
            let members = types.get(at..at + bytes)?.chunks_exact(12);
            let found = members.filter_map(|member| Some((word(member, 0)?, word(member, 8)?)));
            let bits = { found }.find(|(name, _)| is_named(*name, member))?.1;
            // The highest byte is the size of a bit field.
            let bits = if info >> 31 == 1 { bits & 0xff_ffff } else { bits };
            return i32::try_from(bits / 8).ok().filter(|_| bits % 8 == 0);
        }
        at += bytes;
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An integer, a pointer, and `struct task { int a; int *blocked; }`.
    fn btf() -> Vec<u8> {
        let names = b"\0int\0task\0a\0blocked\0";
        let types: [u32; 20] = [
            1,
            1 << 24,
            4,
            32, // int
            0,
            2 << 24,
            1, // int *
            5,
            4 << 24 | 2,
            16, // struct task
            10,
            1,
            0, //  a
            12,
            2,
            64, // blocked
            0,
            9 << 24,
            3,
            0, // volatile
        ];
        let types = &types[..19];
        let header = [24, 0, types.len() as u32 * 4, types.len() as u32 * 4, names.len() as u32];
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        header.iter().chain(types).for_each(|word| btf.extend(word.to_le_bytes()));
        btf.extend(names);
        btf
    }

    #[test]
    fn members_are_found_by_name() {
        assert_eq!(find(&btf(), "task", "blocked"), Some(8));
        assert_eq!(find(&btf(), "task", "a"), Some(0));
        for (structure, member) in [("task", "block"), ("tas", "a"), ("int", "a"), ("task", "")] {
            assert_eq!(find(&btf(), structure, member), None, "{structure}.{member}");
        }
    }

    #[test]
    fn hostile_bytes_have_no_members() {
        let whole = btf();
        for len in 0..whole.len() {
            let _ = find(&whole[..len], "task", "blocked");
        }
        let mut random = crate::rng::Rng::new(3);
        for _ in 0..2_000 {
            let mut bytes = whole.clone();
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
            let _ = find(&bytes, "task", "blocked");
        }
    }

    #[test]
    fn the_kernel_describes_the_offset_of_blocked_signals() {
        // Kernels without BTF lack this file.
        let Ok(btf) = fs::read(PATH) else {
            return assert!(member_offset("task_struct", "blocked").is_none());
        };
        let offset = find(&btf, "task_struct", "blocked").unwrap();
        assert_eq!(offset % 8, 0);
        assert_eq!(find(&btf, "list_head", "prev"), Some(8));
    }
}
