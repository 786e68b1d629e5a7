//! The eBPF instructions and helpers used by the programs (Documentation/bpf/standardization/instruction-set.rst,
//! include/uapi/linux/bpf.h), and an interpreter for tests.

/// Encodes an instruction: opcode, destination and source register, offset, immediate.
pub(in crate::sources::linux::perf) const fn op(code: u8, dst: u8, src: u8, offset: i16, value: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | ((offset as u16) as u64) << 16
        | ((value as u32) as u64) << 32
}

pub(in crate::sources::linux::perf) const LOAD_64: u8 = 0x18;
pub(in crate::sources::linux::perf) const MOVE: u8 = 0xb7;
pub(in crate::sources::linux::perf) const MOVE_REGISTER: u8 = 0xbf;
pub(in crate::sources::linux::perf) const ADD: u8 = 0x07;
pub(in crate::sources::linux::perf) const ADD_REGISTER: u8 = 0x0f;
pub(in crate::sources::linux::perf) const SUBTRACT_REGISTER: u8 = 0x1f;
pub(in crate::sources::linux::perf) const MULTIPLY_REGISTER: u8 = 0x2f;
pub(in crate::sources::linux::perf) const AND: u8 = 0x57;
pub(in crate::sources::linux::perf) const SHIFT_LEFT: u8 = 0x67;
pub(in crate::sources::linux::perf) const SHIFT_RIGHT: u8 = 0x77;
/// A word has 4 bytes, a double word 8.
pub(in crate::sources::linux::perf) const LOAD_WORD: u8 = 0x61;
pub(in crate::sources::linux::perf) const LOAD_DOUBLE: u8 = 0x79;
pub(in crate::sources::linux::perf) const STORE_WORD: u8 = 0x63;
pub(in crate::sources::linux::perf) const STORE_DOUBLE: u8 = 0x7b;
/// Stores the immediate.
pub(in crate::sources::linux::perf) const STORE_VALUE_DOUBLE: u8 = 0x7a;
pub(in crate::sources::linux::perf) const CALL: u8 = 0x85;
pub(in crate::sources::linux::perf) const JUMP: u8 = 0x05;
pub(in crate::sources::linux::perf) const JUMP_IF_EQUAL: u8 = 0x15;
pub(in crate::sources::linux::perf) const JUMP_UNLESS_EQUAL: u8 = 0x55;
pub(in crate::sources::linux::perf) const JUMP_IF_GREATER_SIGNED: u8 = 0x65;
pub(in crate::sources::linux::perf) const EXIT: u8 = 0x95;
/// Source register of [`LOAD_64`]: the immediate is a map descriptor.
pub(in crate::sources::linux::perf) const IS_MAP: u8 = 1;
/// Source register of [`LOAD_64`]: loads an address within the value of an array of one; its descriptor comes
/// first.
const IS_VALUE: u8 = 2;

pub(in crate::sources::linux::perf) const MAP_LOOKUP: i32 = 1;
pub(in crate::sources::linux::perf) const MAP_UPDATE: i32 = 2;
pub(in crate::sources::linux::perf) const MAP_DELETE: i32 = 3;
pub(in crate::sources::linux::perf) const KTIME_GET_NS: i32 = 5;
pub(in crate::sources::linux::perf) const GET_PRANDOM_U32: i32 = 7;
pub(in crate::sources::linux::perf) const GET_CURRENT_PID_TGID: i32 = 14;
pub(in crate::sources::linux::perf) const GET_CURRENT_TASK: i32 = 35;
pub(in crate::sources::linux::perf) const PROBE_READ_USER: i32 = 112;
pub(in crate::sources::linux::perf) const PROBE_READ_KERNEL: i32 = 113;
pub(in crate::sources::linux::perf) const GET_NS_CURRENT_PID_TGID: i32 = 120;
pub(in crate::sources::linux::perf) const RINGBUF_RESERVE: i32 = 131;
pub(in crate::sources::linux::perf) const RINGBUF_SUBMIT: i32 = 132;
pub(in crate::sources::linux::perf) const GET_CURRENT_TASK_BTF: i32 = 158;
pub(in crate::sources::linux::perf) const SNPRINTF: i32 = 165;
pub(in crate::sources::linux::perf) const TASK_PT_REGS: i32 = 175;

/// `r = value`, encoded as two instructions.
pub(in crate::sources::linux::perf) const fn load(register: u8, value: u64) -> [u64; 2] {
    [op(LOAD_64, register, 0, 0, value as i32), op(0, 0, 0, 0, (value >> 32) as i32)]
}

/// `r = map`, given its descriptor.
pub(in crate::sources::linux::perf) const fn load_map(register: u8, map: i32) -> [u64; 2] {
    [op(LOAD_64, register, IS_MAP, 0, map), 0]
}

/// `r = value + offset`, for an array of one value, given its descriptor.
pub(in crate::sources::linux::perf) const fn load_value(register: u8, array: i32, offset: i32) -> [u64; 2] {
    [op(LOAD_64, register, IS_VALUE, 0, array), op(0, 0, 0, 0, offset)]
}

/// Runs programs like the kernel: the running thread, maps, a ring and the memory of a program.
#[cfg(test)]
pub(in crate::sources::linux::perf) mod machine {
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

    pub(in crate::sources::linux::perf) struct Machine {
        /// The running thread, its process, and their namespace.
        pub(in crate::sources::linux::perf) tid: u32,
        pub(in crate::sources::linux::perf) tgid: u32,
        pub(in crate::sources::linux::perf) namespace: (u64, u64),
        pub(in crate::sources::linux::perf) time_ns: u64,
        /// Maps: number, and value of each key.
        pub(in crate::sources::linux::perf) maps: Vec<(i32, Vec<(u32, u64)>)>,
        /// Maps from numbers to values of this size, changed by programs.
        pub(in crate::sources::linux::perf) wide: Vec<(i32, usize, HashMap<u32, Vec<u8>>)>,
        /// Maps from addresses to numbers, changed by programs.
        pub(in crate::sources::linux::perf) addresses: Vec<(i32, HashMap<u64, u64>)>,
        /// The next random number.
        pub(in crate::sources::linux::perf) random: u64,
        /// Larger values: map, key, value.
        pub(in crate::sources::linux::perf) lists: Vec<(i32, u32, Vec<u8>)>,
        /// Number of the ring, room for records, and the submitted ones.
        pub(in crate::sources::linux::perf) ring: i32,
        pub(in crate::sources::linux::perf) room: usize,
        pub(in crate::sources::linux::perf) records: Vec<Vec<u8>>,
        /// Readable memory of the program: base address and bytes.
        pub(in crate::sources::linux::perf) memory: (u64, Vec<u8>),
        /// Addresses of it that are not resident.
        pub(in crate::sources::linux::perf) missing: std::ops::Range<u64>,
        /// The kernel's structure of the running thread.
        pub(in crate::sources::linux::perf) task: Vec<u8>,
        /// Registers of the running thread, as passed to the program.
        pub(in crate::sources::linux::perf) context: Vec<u8>,
        stack: Vec<u8>,
        value: Vec<u8>,
        reserved: Option<Vec<u8>>,
    }

    impl Machine {
        pub(in crate::sources::linux::perf) fn new(tid: u32, tgid: u32, namespace: (u64, u64)) -> Machine {
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
        pub(in crate::sources::linux::perf) fn run(&mut self, program: &[u64]) -> u64 {
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
