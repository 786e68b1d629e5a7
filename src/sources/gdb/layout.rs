//! Where the registers of a processor are in what a stub sends, and their values as the engine has
//! them. Pure. Size of a pointer and order of bytes are those of the target.

use super::description::{Description, Register};
use crate::arch::{Aarch64, Arch, Registers, X86, X86_64};

/// x86_64 by DWARF number, then what stands behind them here: the program counter, and two that not
/// every stub has.
const X86_64_NAMES: [&str; 19] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip", "fs_base", "orig_rax",
];
const X86_64_NEEDED: usize = 17;
/// In the order in which gdb's own stubs sent them before there were descriptions
/// (gdb/features/i386/64bit-core.xml has it still).
const X86_64_ORDER: [&str; 17] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip",
];
const AARCH64_NEEDED: usize = 33;
/// i386 by DWARF number, then the program counter, and one that not every stub has.
const X86_NAMES: [&str; 10] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip", "orig_eax"];
const X86_NEEDED: usize = 9;
/// In the order of gdb/features/i386/32bit-core.xml, which is that of DWARF.
const X86_ORDER: [&str; 9] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip"];

/// A register that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Its first byte in the answer to `g`.
    offset: usize,
    /// Its number, for `p`.
    number: u32,
}

/// Where registers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The processor.
    pub arch: Arch,
    /// Those that are wanted, by the place that they have here; `None` where the stub has none.
    slots: Vec<Option<Slot>>,
}

/// The registers of a thread, as far as they are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// General registers, program counter and stack pointer.
    pub registers: Registers,
    /// Number of the system call that the thread is in, negative if in none; x86_64 Linux only.
    pub call: Option<i64>,
}

/// The processor by the names that stubs have for it.
///
/// # Errors
/// One line that names the processor, if it is none of those that can be walked.
pub fn arch(name: &str) -> Result<Arch, String> {
    match name {
        "i386:x86-64" | "i386:x86-64:intel" | "x86_64" | "x86_64h" | "amd64" => Ok(Arch::X86_64),
        "i386" | "i386:intel" | "i486" | "i586" | "i686" => Ok(Arch::X86),
        "aarch64" | "arm64" | "arm64e" => Ok(Arch::Aarch64),
        "" => Err("the stub does not tell its processor; name the program with --exec FILE".to_owned()),
        other => Err(format!(
            "the stub's processor is `{other}`; this version records {}, {} and {} targets",
            Arch::X86_64.name(),
            Arch::Aarch64.name(),
            Arch::X86.name()
        )),
    }
}

impl Layout {
    /// Finds the registers of a processor in a description; where that has none, in their usual order.
    ///
    /// # Errors
    /// What is missing or contradictory.
    pub fn of(arch: Arch, description: &Description) -> Result<Layout, String> {
        let registers = match description.registers.is_empty() {
            true => usual(arch)?,
            false => description.registers.clone(),
        };
        let names = names(arch)?;
        let mut slots = vec![None; names.len()];
        let mut end = 0usize;
        for register in &registers {
            let bytes = register.bits.div_ceil(8) as usize;
            let offset = register.offset.map_or(end, |offset| offset as usize);
            end = end.max(offset.saturating_add(bytes));
            let is = |wanted: &[&str]| wanted.contains(&register.name.as_str());
            let Some(place) = names.iter().position(|wanted| is(wanted)) else { continue };
            let expected = 8 * arch.pointer_bytes();
            if u64::from(register.bits) != expected {
                return Err(format!(
                    "`{}` with {} bits; {expected} were expected",
                    register.name, register.bits
                ));
            }
            if slots[place].replace(Slot { offset, number: register.number }).is_some() {
                return Err(format!("`{}` is described twice", register.name));
            }
        }
        if let Some(missing) = slots[..needed(arch)].iter().position(Option::is_none) {
            return Err(format!("`{}` is missing", names[missing][0]));
        }
        Ok(Layout { arch, slots })
    }

    /// The registers in an answer to `g`, as bytes; `None` marks those that are not known. What is
    /// not in it is in `more`, by number.
    #[must_use]
    pub fn registers(&self, sent: &[Option<u8>], more: &dyn Fn(u32) -> Option<u64>) -> Option<Told> {
        let value_bytes = self.arch.pointer_bytes() as usize;
        let value = |place: usize| {
            let slot = self.slots[place]?;
            let bytes = sent.get(slot.offset..slot.offset.checked_add(value_bytes)?);
            match bytes {
                Some(bytes) => little_endian(bytes),
                None => more(slot.number),
            }
        };
        let mut values = [0; AARCH64_NEEDED];
        for (place, into) in values.iter_mut().enumerate().take(needed(self.arch)) {
            *into = value(place)?;
        }
        Some(match self.arch {
            Arch::X86_64 => Told {
                registers: Registers::X86_64(X86_64 {
                    gpr: std::array::from_fn(|number| values[number]),
                    rip: values[16],
                    fs_base: value(17).unwrap_or(0),
                }),
                call: value(18).map(u64::cast_signed),
            },
            Arch::Aarch64 => Told {
                registers: Registers::Aarch64(Aarch64 {
                    x: std::array::from_fn(|number| values[number]),
                    sp: values[31],
                    pc: values[32],
                }),
                call: None,
            },
            Arch::X86 => Told {
                registers: Registers::X86(X86 {
                    gpr: std::array::from_fn(|number| values[number]),
                    eip: values[8],
                }),
                // Of 32 bits, and signed.
                call: value(9).map(|number| (number as u32).cast_signed().into()),
            },
            // No layout has it: `names` refuses it.
            Arch::Arm => return None,
        })
    }

    /// The numbers of the registers that an answer to `g` of so many bytes does not have.
    #[must_use]
    pub fn beyond(&self, sent_bytes: usize) -> Vec<u32> {
        let value_bytes = self.arch.pointer_bytes() as usize;
        let slots = self.slots.iter().flatten();
        slots
            .filter(|slot| slot.offset.saturating_add(value_bytes) > sent_bytes)
            .map(|slot| slot.number)
            .collect()
    }
}

fn little_endian(bytes: &[Option<u8>]) -> Option<u64> {
    bytes.iter().rev().try_fold(0u64, |value, byte| Some(value << 8 | u64::from((*byte)?)))
}

fn needed(arch: Arch) -> usize {
    match arch {
        Arch::X86_64 => X86_64_NEEDED,
        Arch::Aarch64 => AARCH64_NEEDED,
        Arch::X86 => X86_NEEDED,
        Arch::Arm => 0,
    }
}

/// The names of each register that is wanted; lldb has others for some.
///
/// # Errors
/// The processor is one whose registers are not known.
fn names(arch: Arch) -> Result<Vec<Vec<&'static str>>, String> {
    Ok(match arch {
        Arch::X86_64 => X86_64_NAMES.iter().map(|name| vec![*name]).collect(),
        Arch::X86 => X86_NAMES.iter().map(|name| vec![*name]).collect(),
        Arch::Arm => return Err(NO_ARM.to_owned()),
        Arch::Aarch64 => {
            let mut names: Vec<Vec<&str>> = X_NAMES.iter().map(|name| vec![*name]).collect();
            names[Aarch64::FP].push("fp");
            names[Aarch64::LR].push("lr");
            names.extend([vec!["sp"], vec!["pc"]]);
            names
        }
    })
}

const NO_ARM: &str = "32-bit Arm is not supported yet";

const X_NAMES: [&str; 31] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
    "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
];

/// The registers of stubs that describe none.
///
/// # Errors
/// As [`names`].
fn usual(arch: Arch) -> Result<Vec<Register>, String> {
    let names: Vec<&str> = match arch {
        Arch::X86_64 => X86_64_ORDER.to_vec(),
        Arch::Aarch64 => X_NAMES.into_iter().chain(["sp", "pc"]).collect(),
        Arch::X86 => X86_ORDER.to_vec(),
        Arch::Arm => return Err(NO_ARM.to_owned()),
    };
    let register = |(number, name): (usize, &str)| Register {
        name: name.to_owned(),
        bits: 8 * arch.pointer_bytes() as u32,
        number: number as u32,
        offset: None,
    };
    Ok(names.into_iter().enumerate().map(register).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn register(name: &str, number: u32, bits: u32) -> Register {
        Register { name: name.to_owned(), bits, number, offset: None }
    }

    fn described(registers: Vec<Register>) -> Description {
        Description { registers, ..Description::default() }
    }

    #[test]
    fn registers_are_found_by_name_in_any_order() {
        let mut registers: Vec<Register> =
            X86_64_ORDER.iter().rev().enumerate().map(|(at, name)| register(name, at as u32, 64)).collect();
        registers.insert(0, register("flags", 40, 32));
        let layout = Layout::of(Arch::X86_64, &described(registers)).unwrap();
        // Four bytes of flags, then rip, r15, r14 and so on.
        let sent: Vec<Option<u8>> =
            [0; 4].into_iter().chain((1..=17u64).flat_map(u64::to_le_bytes)).map(Some).collect();
        let told = layout.registers(&sent, &|_| None).unwrap();
        let Registers::X86_64(registers) = told.registers else { panic!("another processor") };
        assert_eq!((registers.rip, registers.gpr[15], registers.gpr[0]), (1, 2, 17));
        assert_eq!(registers.gpr[X86_64::RSP], 10);
        assert_eq!(told.call, None);
    }

    #[test]
    fn what_the_answer_lacks_is_asked_for_by_number() {
        let layout = Layout::of(Arch::Aarch64, &Description::default()).unwrap();
        let sent: Vec<Option<u8>> = (0..31u64).flat_map(u64::to_le_bytes).map(Some).collect();
        assert_eq!(layout.beyond(sent.len()), [31, 32]);
        assert_eq!(layout.registers(&sent, &|_| None), None);
        let told = layout.registers(&sent, &|number| Some(u64::from(number) * 100)).unwrap();
        assert_eq!((told.registers.sp().0, told.registers.pc().0), (3100, 3200));
        let unknown = vec![None; 33 * 8];
        assert_eq!(layout.registers(&unknown, &|_| Some(1)), None, "not to be had");
    }

    #[test]
    fn registers_of_i386_are_of_four_bytes() {
        let layout = Layout::of(Arch::X86, &Description::default()).unwrap();
        let sent: Vec<Option<u8>> = (1..=9u32).flat_map(u32::to_le_bytes).map(Some).collect();
        assert_eq!(layout.beyond(sent.len()), [0u32; 0]);
        assert_eq!(layout.beyond(sent.len() - 1), [8]);
        let told = layout.registers(&sent, &|_| None).unwrap();
        let Registers::X86(registers) = told.registers else { panic!("another processor") };
        assert_eq!((registers.gpr, registers.eip, told.call), ([1, 2, 3, 4, 5, 6, 7, 8], 9, None));
        let wide = vec![register("eax", 0, 64)];
        assert!(Layout::of(Arch::X86, &described(wide)).unwrap_err().contains("32 were expected"));
    }

    #[test]
    fn what_is_missing_or_contradictory_is_named() {
        let all: Vec<Register> =
            X86_64_ORDER.iter().enumerate().map(|(at, name)| register(name, at as u32, 64)).collect();
        let error = |registers: Vec<Register>| Layout::of(Arch::X86_64, &described(registers)).unwrap_err();
        assert_eq!(error(all[1..].to_vec()), "`rax` is missing");
        let twice = [all.clone(), vec![register("rsp", 99, 64)]].concat();
        assert_eq!(error(twice), "`rsp` is described twice");
        let mut narrow = all;
        narrow[3].bits = 32;
        assert_eq!(error(narrow), "`rdx` with 32 bits; 64 were expected");
    }

    #[test]
    fn processors_that_cannot_be_walked_are_named() {
        assert_eq!(arch("i386:x86-64"), Ok(Arch::X86_64));
        assert_eq!(arch("arm64e"), Ok(Arch::Aarch64));
        assert_eq!(arch("i386"), Ok(Arch::X86));
        assert!(arch("armv7").unwrap_err().contains("`armv7`"));
        assert!(arch("").unwrap_err().contains("--exec"));
    }
}
