//! What BPF programs are built from: the eBPF instructions and helpers
//! (Documentation/bpf/standardization/instruction-set.rst, include/uapi/linux/bpf.h), offsets of members of the
//! kernel's structures (`member_offset`), and an interpreter for tests.

use std::fs;

/// Encodes an instruction: opcode, destination and source register, offset, immediate.
pub(crate) const fn op(code: u8, dst: u8, src: u8, offset: i16, value: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | ((offset as u16) as u64) << 16
        | ((value as u32) as u64) << 32
}

pub(crate) const LOAD_64: u8 = 0x18;
pub(crate) const MOVE: u8 = 0xb7;
pub(crate) const MOVE_REGISTER: u8 = 0xbf;
pub(crate) const ADD: u8 = 0x07;
pub(crate) const ADD_REGISTER: u8 = 0x0f;
pub(crate) const SUBTRACT_REGISTER: u8 = 0x1f;
pub(crate) const MULTIPLY_REGISTER: u8 = 0x2f;
pub(crate) const AND: u8 = 0x57;
pub(crate) const SHIFT_LEFT: u8 = 0x67;
pub(crate) const SHIFT_RIGHT: u8 = 0x77;
/// A word has 4 bytes, a double word 8.
pub(crate) const LOAD_WORD: u8 = 0x61;
pub(crate) const LOAD_DOUBLE: u8 = 0x79;
pub(crate) const STORE_WORD: u8 = 0x63;
pub(crate) const STORE_DOUBLE: u8 = 0x7b;
/// Stores the immediate.
pub(crate) const STORE_VALUE_DOUBLE: u8 = 0x7a;
pub(crate) const CALL: u8 = 0x85;
pub(crate) const JUMP: u8 = 0x05;
pub(crate) const JUMP_IF_EQUAL: u8 = 0x15;
pub(crate) const JUMP_UNLESS_EQUAL: u8 = 0x55;
pub(crate) const JUMP_IF_GREATER_SIGNED: u8 = 0x65;
pub(crate) const EXIT: u8 = 0x95;
/// Source register of [`LOAD_64`]: the immediate is a map descriptor.
pub(crate) const IS_MAP: u8 = 1;
/// Source register of [`LOAD_64`]: loads an address within the value of an array of one; its descriptor comes
/// first.
const IS_VALUE: u8 = 2;

pub(crate) const MAP_LOOKUP: i32 = 1;
pub(crate) const MAP_UPDATE: i32 = 2;
pub(crate) const MAP_DELETE: i32 = 3;
pub(crate) const KTIME_GET_NS: i32 = 5;
pub(crate) const GET_PRANDOM_U32: i32 = 7;
pub(crate) const GET_CURRENT_PID_TGID: i32 = 14;
pub(crate) const GET_CURRENT_TASK: i32 = 35;
pub(crate) const PROBE_READ_USER: i32 = 112;
pub(crate) const PROBE_READ_KERNEL: i32 = 113;
pub(crate) const GET_NS_CURRENT_PID_TGID: i32 = 120;
pub(crate) const RINGBUF_RESERVE: i32 = 131;
pub(crate) const RINGBUF_SUBMIT: i32 = 132;
pub(crate) const GET_CURRENT_TASK_BTF: i32 = 158;
pub(crate) const SNPRINTF: i32 = 165;
pub(crate) const TASK_PT_REGS: i32 = 175;

/// `r = value`, encoded as two instructions.
pub(crate) const fn load(register: u8, value: u64) -> [u64; 2] {
    [op(LOAD_64, register, 0, 0, value as i32), op(0, 0, 0, 0, (value >> 32) as i32)]
}

/// `r = map`, given its descriptor.
pub(crate) const fn load_map(register: u8, map: i32) -> [u64; 2] {
    [op(LOAD_64, register, IS_MAP, 0, map), 0]
}

/// `r = value + offset`, for an array of one value, given its descriptor.
pub(crate) const fn load_value(register: u8, array: i32, offset: i32) -> [u64; 2] {
    [op(LOAD_64, register, IS_VALUE, 0, array), op(0, 0, 0, 0, offset)]
}

// ---- Offsets of structure members in the running kernel, from its type information (BTF, Documentation/bpf/btf.rst).
// Input: names of a structure and a member. Output: an offset in bytes.

const PATH: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;

/// Offset of a member in a structure of the running kernel; `None` if the kernel has no such type information.
pub(crate) fn member_offset(structure: &str, member: &str) -> Option<i32> {
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

/// Runs programs like the kernel: the running thread, maps, a ring and the memory of a program.
#[cfg(test)]
pub(crate) mod machine {
    use hashbrown::HashMap;

    use super::*;

    /// Top of its stack.
    const STACK: u64 = 0x10_0000;
    const STACK_BYTES: u64 = 512;
    /// Address of the program's argument.
    const CONTEXT: u64 = 0x8_0000;
    /// Addresses of map values and ring records.
    const VALUE: u64 = 0x20_0000;
    const RECORDS: u64 = 0x30_0000;
    /// Base address of list values, and their distance.
    const LISTS: u64 = 0x40_0000;
    const LIST_BYTES: u64 = 0x1_0000;
    /// Kernel address of the running thread.
    const TASK: u64 = 0xffff_8880_0000_0000;

    pub(crate) struct Machine {
        /// The running thread, its process, and their namespace.
        pub(crate) tid: u32,
        pub(crate) tgid: u32,
        pub(crate) namespace: (u64, u64),
        pub(crate) time_ns: u64,
        /// Maps: number, and value of each key.
        pub(crate) maps: Vec<(i32, Vec<(u32, u64)>)>,
        /// Maps from numbers to values of this size, changed by programs.
        pub(crate) wide: Vec<(i32, usize, HashMap<u32, Vec<u8>>)>,
        /// Maps from addresses to numbers, changed by programs.
        pub(crate) addresses: Vec<(i32, HashMap<u64, u64>)>,
        /// The next random number.
        pub(crate) random: u64,
        /// Larger values: map, key, value.
        pub(crate) lists: Vec<(i32, u32, Vec<u8>)>,
        /// Number of the ring, room for records, and the submitted ones.
        pub(crate) ring: i32,
        pub(crate) room: usize,
        pub(crate) records: Vec<Vec<u8>>,
        /// Readable memory of the program: base address and bytes.
        pub(crate) memory: (u64, Vec<u8>),
        /// Addresses of it that are not resident.
        pub(crate) missing: std::ops::Range<u64>,
        /// The kernel's structure of the running thread.
        pub(crate) task: Vec<u8>,
        /// Registers of the running thread, as passed to the program.
        pub(crate) context: Vec<u8>,
        stack: Vec<u8>,
        value: Vec<u8>,
        reserved: Option<Vec<u8>>,
    }

    impl Machine {
        pub(crate) fn new(tid: u32, tgid: u32, namespace: (u64, u64)) -> Machine {
            Machine {
                tid,
                tgid,
                namespace,
                time_ns: 1_000_000,
                maps: Vec::new(),
                wide: Vec::new(),
                addresses: Vec::new(),
                random: 1,
                lists: Vec::new(),
                ring: -1,
                room: usize::MAX,
                records: Vec::new(),
                memory: (0, Vec::new()),
                missing: 0..0,
                task: Vec::new(),
                context: Vec::new(),
                stack: vec![0; STACK_BYTES as usize],
                value: Vec::new(),
                reserved: None,
            }
        }

        /// The bytes at an address of the machine; panics outside of its memory.
        fn at(&mut self, address: u64, len: usize) -> &mut [u8] {
            let (base, bytes) = match address {
                LISTS.. => {
                    let index = (address - LISTS) / LIST_BYTES;
                    (LISTS + index * LIST_BYTES, &mut self.lists[index as usize].2)
                }
                RECORDS.. => (RECORDS, self.reserved.as_mut().expect("nothing is reserved")),
                VALUE.. => (VALUE, &mut self.value),
                ..0x9_0000 => (CONTEXT, &mut self.context),
                _ => (STACK - STACK_BYTES, &mut self.stack),
            };
            let from = (address - base) as usize;
            &mut bytes[from..from + len]
        }

        fn read(&mut self, address: u64, len: usize) -> u64 {
            let mut word = [0; 8];
            word[..len].copy_from_slice(self.at(address, len));
            u64::from_le_bytes(word)
        }

        /// Runs a program; returns its result.
        pub(crate) fn run(&mut self, program: &[u64]) -> u64 {
            let mut registers = [0u64; 11];
            (registers[1], registers[10]) = (CONTEXT, STACK);
            let mut at = 0;
            for _ in 0..10_000 {
                let word = program[at];
                let (code, dst, src) = (word as u8, (word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
                let (offset, value) = ((word >> 16) as u16 as i16, (word >> 32) as u32 as i32);
                let of = |register: u64| register.wrapping_add_signed(offset.into());
                at += 1;
                match code {
                    LOAD_64 => {
                        let high = program[at] & 0xffff_ffff_0000_0000;
                        registers[dst] = match src as u8 {
                            IS_VALUE => self.list(value, 0).expect("an unknown array") + (high >> 32),
                            IS_MAP => u64::from(value as u32),
                            _ => u64::from(value as u32) | high,
                        };
                        at += 1;
                    }
                    MOVE => registers[dst] = value as i64 as u64,
                    MOVE_REGISTER => registers[dst] = registers[src],
                    ADD_REGISTER => registers[dst] = registers[dst].wrapping_add(registers[src]),
                    SUBTRACT_REGISTER => registers[dst] = registers[dst].wrapping_sub(registers[src]),
                    MULTIPLY_REGISTER => registers[dst] = registers[dst].wrapping_mul(registers[src]),
                    SHIFT_LEFT => registers[dst] <<= value,
                    ADD => registers[dst] = registers[dst].wrapping_add(value as i64 as u64),
                    AND => registers[dst] &= value as i64 as u64,
                    SHIFT_RIGHT => registers[dst] >>= value,
                    LOAD_WORD => registers[dst] = self.read(of(registers[src]), 4),
                    LOAD_DOUBLE => registers[dst] = self.read(of(registers[src]), 8),
                    STORE_WORD => {
                        let bytes = (registers[src] as u32).to_le_bytes();
                        self.at(of(registers[dst]), 4).copy_from_slice(&bytes);
                    }
                    STORE_DOUBLE | STORE_VALUE_DOUBLE => {
                        let word = if code == STORE_DOUBLE { registers[src] } else { value as i64 as u64 };
                        self.at(of(registers[dst]), 8).copy_from_slice(&word.to_le_bytes());
                    }
                    CALL => registers[0] = self.call(value, &registers),
                    JUMP_IF_GREATER_SIGNED => {
                        if (registers[dst] as i64) > i64::from(value) {
                            at = at.wrapping_add_signed(offset.into());
                        }
                    }
                    JUMP => at = at.wrapping_add_signed(offset.into()),
                    JUMP_IF_EQUAL | JUMP_UNLESS_EQUAL => {
                        let equal = registers[dst] == value as i64 as u64;
                        if equal == (code == JUMP_IF_EQUAL) {
                            at = at.wrapping_add_signed(offset.into());
                        }
                    }
                    EXIT => {
                        assert!(self.reserved.is_none(), "what was reserved is to be submitted");
                        return registers[0];
                    }
                    _ => panic!("{code:#x}"),
                }
            }
            panic!("no end");
        }

        /// The address of a value of `lists`.
        fn list(&self, map: i32, key: u32) -> Option<u64> {
            let index = self.lists.iter().position(|list| (list.0, list.1) == (map, key))?;
            Some(LISTS + index as u64 * LIST_BYTES)
        }

        fn call(&mut self, helper: i32, registers: &[u64; 11]) -> u64 {
            let [_, first, second, third, fourth, ..] = *registers;
            if let MAP_LOOKUP | MAP_UPDATE | MAP_DELETE = helper
                && let Some(index) = self.addresses.iter().position(|(map, _)| *map as u64 == first)
            {
                let key = self.read(second, 8);
                let value = if helper == MAP_UPDATE { self.read(third, 8) } else { 0 };
                let map = &mut self.addresses[index].1;
                let missing = || (-2i64) as u64;
                return match helper {
                    MAP_UPDATE => map.insert(key, value).map_or(0, |_| 0),
                    MAP_DELETE => map.remove(&key).map_or_else(missing, |_| 0),
                    _ => panic!("no program looks into it"),
                };
            }
            if let MAP_LOOKUP | MAP_UPDATE | MAP_DELETE = helper
                && let Some(index) = self.wide.iter().position(|(map, ..)| *map as u64 == first)
            {
                let key = self.read(second, 4) as u32;
                let value = (helper == MAP_UPDATE).then(|| {
                    let bytes = self.wide[index].1;
                    self.at(third, bytes).to_vec()
                });
                let map = &mut self.wide[index].2;
                return match (helper, value) {
                    (MAP_UPDATE, Some(value)) => map.insert(key, value).map_or(0, |_| 0),
                    (MAP_DELETE, _) => map.remove(&key).map_or((-2i64) as u64, |_| 0),
                    _ => match map.get(&key) {
                        Some(value) => {
                            self.value.clone_from(value);
                            VALUE
                        }
                        None => 0,
                    },
                };
            }
            match helper {
                MAP_UPDATE | MAP_DELETE => {
                    let key = self.read(second, 4) as u32;
                    let value = if helper == MAP_UPDATE { self.read(third, 8) } else { 0 };
                    let map = self.maps.iter_mut().find(|(number, _)| *number as u64 == first);
                    let (_, values) = map.expect("an unknown map");
                    values.retain(|(has, _)| *has != key);
                    if helper == MAP_UPDATE {
                        values.push((key, value));
                    }
                    0
                }
                GET_PRANDOM_U32 => {
                    self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    self.random >> 33
                }
                MAP_LOOKUP => {
                    let key = self.read(second, 4) as u32;
                    if self.lists.iter().any(|(number, ..)| *number as u64 == first) {
                        return self.list(first as i32, key).unwrap_or(0);
                    }
                    let map = self.maps.iter().find(|(number, _)| *number as u64 == first);
                    let (_, values) = map.expect("an unknown map");
                    let Some((_, value)) = values.iter().find(|(has, _)| *has == key) else { return 0 };
                    self.value = value.to_le_bytes().to_vec();
                    VALUE
                }
                KTIME_GET_NS => self.time_ns,
                GET_CURRENT_PID_TGID => u64::from(self.tgid) << 32 | u64::from(self.tid),
                GET_NS_CURRENT_PID_TGID => {
                    assert_eq!(fourth, 8);
                    let known = (first, second) == self.namespace;
                    let info = if known { u64::from(self.tgid) << 32 | u64::from(self.tid) } else { 0 };
                    self.at(third, 8).copy_from_slice(&info.to_le_bytes());
                    if known { 0 } else { (-22i64) as u64 }
                }
                GET_CURRENT_TASK | GET_CURRENT_TASK_BTF => TASK,
                TASK_PT_REGS => {
                    assert_eq!(first, TASK);
                    CONTEXT
                }
                PROBE_READ_USER | PROBE_READ_KERNEL => {
                    let (base, memory) = match helper {
                        PROBE_READ_USER => (&self.memory.0, &self.memory.1),
                        _ => (&TASK, &self.task),
                    };
                    let from = third.checked_sub(*base).map_or(usize::MAX, |from| from as usize);
                    let len = second as usize;
                    let copied = memory.get(from..).and_then(|rest| rest.get(..len)).map(<[u8]>::to_vec);
                    let is_missing = third < self.missing.end && self.missing.start < third + second;
                    let copied = copied.filter(|_| helper != PROBE_READ_USER || !is_missing);
                    let failed = copied.is_none();
                    self.at(first, len).copy_from_slice(&copied.unwrap_or_else(|| vec![0; len]));
                    if failed { (-14i64) as u64 } else { 0 }
                }
                RINGBUF_RESERVE => {
                    assert_eq!((first, third), (self.ring as u64, 0));
                    assert!(self.reserved.is_none());
                    if self.records.len() >= self.room {
                        return 0;
                    }
                    self.reserved = Some(vec![0xee; second as usize]);
                    RECORDS
                }
                RINGBUF_SUBMIT => {
                    assert_eq!(first, RECORDS);
                    let record = self.reserved.take().expect("nothing is reserved");
                    self.records.push(record);
                    0
                }
                _ => panic!("helper {helper}"),
            }
        }
    }
}

#[cfg(test)]
mod btf_tests {
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
