//! The stub's target description: processor, system, and the registers in the order in which they are sent
//! (`Description`); and their offsets in the stub's replies (`Layout`), by which replies become `Registers`. Input:
//! the documents of `qXfer:features:read` (target.xml and its includes), or the replies to lldb's `qRegisterInfo`;
//! hostile. Pure.
//!
//! Format: "Debugging with GDB", appendix G "Target Descriptions"; LLVM, docs/resources/lldbgdbremote.md.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::link;
use crate::arch::{Aarch64, Arch, Arm, Registers, X86, X86_64};

/// The root document.
const FIRST: &str = "target.xml";
/// Most documents of one description, and most bytes of each.
const DOCUMENTS_MAX: usize = 64;
pub(super) const DOCUMENT_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting of includes.
const DEPTH_MAX: usize = 8;
/// Most registers of one description.
const REGISTERS_MAX: usize = 4096;
/// Most bits of one register.
const BITS_MAX: u32 = 1 << 16;

/// Fetches a document by name; `None` if it does not exist.
pub type Fetch<'f, E> = dyn FnMut(&str) -> Result<Option<Vec<u8>>, E> + 'f;

/// A register in the order of replies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its name: `rip`, `x29`.
    pub name: String,
    /// Its size.
    pub bits: u32,
    /// Its number in `p` packets and among the other registers.
    pub number: u32,
    /// Its offset in the reply to `g`, if known.
    pub offset: Option<u32>,
}

/// A target description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// `i386:x86-64`, `aarch64`; empty if unknown.
    pub architecture: String,
    /// `GNU/Linux`, `none`; empty if unknown.
    pub system: String,
    /// Sorted by number.
    pub registers: Vec<Register>,
}

impl Description {
    /// Reads target.xml and its includes. `fetch` returns a document by name, `None` if it does not exist.
    ///
    /// # Errors
    /// Errors of `fetch`, or what is wrong with a document.
    pub fn read<E: From<String>>(fetch: &mut Fetch<'_, E>) -> Result<Option<Description>, E> {
        let mut found = DescriptionReader::default();
        if !found.document(FIRST, 0, fetch)? {
            return Ok(None);
        }
        let mut description = found.description;
        description.registers.sort_by_key(|register| register.number);
        let mut pairs = description.registers.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0].number == pair[1].number) {
            let why = format!(
                "{FIRST}, which gives registers `{}` and `{}` one number",
                pair[0].name, pair[1].name
            );
            return Err(why.into());
        }
        Ok(Some(description))
    }

    /// Adds the register described by a reply to `qRegisterInfo`; returns whether it describes one.
    pub(super) fn add_register_info(&mut self, answer: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(answer) else { return false };
        let pairs = || text.split(';').filter_map(|pair| pair.split_once(':'));
        let value = |name: &str| pairs().find(|(other, _)| *other == name).map(|(_, value)| value);
        let (Some(name), Some(bits)) = (value("name"), value("bitsize").and_then(|bits| bits.parse().ok()))
        else {
            return false;
        };
        let number = self.registers.len() as u32;
        let offset = value("offset").and_then(|offset| offset.parse().ok());
        let is_sound = bits <= BITS_MAX && self.registers.len() < REGISTERS_MAX;
        if is_sound {
            self.registers.push(Register { name: name.to_owned(), bits, number, offset });
        }
        is_sound
    }

    /// Takes processor and system from a reply to `qHostInfo` or `qProcessInfo`, with target.xml's names;
    /// known values are kept.
    pub(super) fn add_info(&mut self, answer: &[u8]) {
        let text = String::from_utf8_lossy(answer);
        for (name, value) in text.split(';').filter_map(|pair| pair.split_once(':')) {
            match name {
                "triple" if self.architecture.is_empty() => {
                    let triple = link::text(value.as_bytes()).unwrap_or_default();
                    self.architecture = triple.split('-').next().unwrap_or_default().to_owned();
                }
                // Mach's CPU types (osfmk/mach/machine.h), in hexadecimal or decimal digits.
                "cputype" if self.architecture.is_empty() => {
                    self.architecture = match value {
                        "1000007" | "16777223" => "x86_64",
                        "100000c" | "16777228" => "arm64",
                        "c" | "12" => "arm",
                        _ => "",
                    }
                    .to_owned();
                }
                "ostype" if self.system.is_empty() => self.system = value.to_owned(),
                _ => {}
            }
        }
    }
}

#[derive(Default)]
struct DescriptionReader {
    description: Description,
    documents: usize,
}

impl DescriptionReader {
    /// Reads a document; false if it does not exist.
    fn document<E: From<String>>(
        &mut self,
        name: &str,
        depth: usize,
        fetch: &mut Fetch<'_, E>,
    ) -> Result<bool, E> {
        self.documents += 1;
        if depth > DEPTH_MAX || self.documents > DOCUMENTS_MAX {
            return Err(format!("{FIRST}, whose documents include each other without end").into());
        }
        let Some(bytes) = fetch(name)? else { return Ok(false) };
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return Err(format!("{name}, which is longer than {DOCUMENT_BYTES_MAX} bytes").into());
        }
        let mut reader = Reader::from_reader(bytes.as_slice());
        let mut text_of = None;
        loop {
            let event = reader.read_event();
            let event = event.map_err(|error| E::from(format!("{name}, which is not XML: {error}")))?;
            match event {
                Event::Eof => return Ok(true),
                Event::Start(element) | Event::Empty(element) => {
                    let element_name = element.local_name();
                    text_of = match element_name.as_ref() {
                        b"reg" => {
                            self.register(&element, name)?;
                            None
                        }
                        b"include" => {
                            self.include(&element, name, depth, fetch)?;
                            None
                        }
                        b"architecture" => Some(true),
                        b"osabi" => Some(false),
                        _ => None,
                    };
                }
                Event::Text(text) => {
                    let text = String::from_utf8_lossy(&text).trim().to_owned();
                    let place = match text_of.take() {
                        Some(true) => &mut self.description.architecture,
                        Some(false) => &mut self.description.system,
                        None => continue,
                    };
                    // Included documents may repeat it.
                    if place.is_empty() {
                        *place = text;
                    }
                }
                Event::End(_) => text_of = None,
                _ => {}
            }
        }
    }

    fn include<E: From<String>>(
        &mut self,
        element: &BytesStart<'_>,
        of: &str,
        depth: usize,
        fetch: &mut Fetch<'_, E>,
    ) -> Result<(), E> {
        let name = attribute(element, b"href").unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+');
        if name.is_empty() || name.len() > 255 || !name.chars().all(is_plain) {
            return Err(format!("{of}, which includes `{name}`").into());
        }
        if self.document(&name, depth + 1, fetch)? {
            return Ok(());
        }
        Err(format!("{of}, which includes `{name}`, but not that").into())
    }

    fn register<E: From<String>>(&mut self, element: &BytesStart<'_>, of: &str) -> Result<(), E> {
        let number_of = |name: &[u8]| attribute(element, name).and_then(|text| text.parse::<u32>().ok());
        let name = attribute(element, b"name").unwrap_or_default();
        let registers = &mut self.description.registers;
        let Some(bits) = number_of(b"bitsize").filter(|bits| *bits <= BITS_MAX) else {
            return Err(format!("{of}, in which register `{name}` has no size").into());
        };
        if registers.len() >= REGISTERS_MAX {
            return Err(format!("{of}, with more than {REGISTERS_MAX} registers").into());
        }
        let next = registers.last().map_or(0, |last| last.number.saturating_add(1));
        registers.push(Register {
            number: number_of(b"regnum").unwrap_or(next),
            offset: number_of(b"offset"),
            name,
            bits,
        });
        Ok(())
    }
}

/// The value of an attribute; `None` if missing or invalid.
pub(super) fn attribute(element: &BytesStart<'_>, name: &[u8]) -> Option<String> {
    let mut attributes = element.attributes();
    let attribute = attributes.with_checks(false).flatten().find(|other| other.key.as_ref() == name)?;
    Some(attribute.normalized_value(quick_xml::XmlVersion::Implicit1_0).ok()?.into_owned())
}

// ---- Offsets of the registers of a processor in the stub's replies, and their conversion to the
// `Registers` of `arch`. Pure. Pointer size and byte order are the target's.

/// x86_64 by DWARF number, followed by the program counter, and two that some stubs lack.
const X86_64_NAMES: [&str; 19] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip", "fs_base", "orig_rax",
];
const X86_64_NEEDED: usize = 17;
/// In the order of gdb's stubs without descriptions (kept in gdb/features/i386/64bit-core.xml).
const X86_64_ORDER: [&str; 17] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip",
];
const AARCH64_NEEDED: usize = 33;
/// i386 by DWARF number, then the program counter, and one that some stubs lack.
const X86_NAMES: [&str; 10] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip", "orig_eax"];
const X86_NEEDED: usize = 9;
/// In the order of gdb/features/i386/32bit-core.xml, which is DWARF's.
const X86_ORDER: [&str; 9] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip"];
/// 32-bit Arm by DWARF number, then the status register (gdb/features/arm/arm-core.xml,
/// arm-m-profile.xml).
const ARM_NAMES: [&[&str]; 17] = [
    &["r0"],
    &["r1"],
    &["r2"],
    &["r3"],
    &["r4"],
    &["r5"],
    &["r6"],
    &["r7"],
    &["r8"],
    &["r9"],
    &["r10"],
    &["r11", "fp"],
    &["r12", "ip"],
    &["sp", "r13"],
    &["lr", "r14"],
    &["pc", "r15"],
    &["cpsr", XPSR, "xPSR"],
];
const ARM_NEEDED: usize = 17;
const ARM_STATUS: usize = 16;
/// Name of the status register on M-profile cores; OpenOCD capitalizes it.
const XPSR: &str = "xpsr";
/// The process stack pointer of an M-profile core (gdb/features/arm/arm-m-system.xml), in lower or upper
/// case.
const PROCESS_SP: &str = "psp";
/// Set in the xPSR of all running code (Armv7-M ARM, B1.4.2: there is T32 only). In a CPSR it is J, which no
/// processor of the last ten years sets (Armv8-A ARM, G1.9: RES0).
const XPSR_T: u32 = 1 << 24;
/// Number of the active exception in an xPSR; 0: none.
const XPSR_EXCEPTION: u32 = 0x1ff;
/// Registers that stubs without descriptions send between pc and cpsr: eight 12-byte registers of the first
/// floating-point coprocessor, and its status (gdb/arch/arm.h, ARM_F0_REGNUM).
const ARM_FPA_COUNT: u32 = 8;
const ARM_FPA_BITS: u32 = 96;

/// Location of a needed register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// Offset in the reply to `g`.
    offset: usize,
    /// Register number for `p`.
    number: u32,
}

/// Locations of registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The processor.
    pub arch: Arch,
    /// Needed registers, by their index here; `None` if the stub lacks it.
    slots: Vec<Option<Slot>>,
    /// Whether an Arm core has the M profile; `None` until the status register shows it.
    m_profile: Option<bool>,
    /// Register number of an M-profile core's process stack pointer.
    process_sp: Option<u32>,
}

/// The known registers of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRegisters {
    /// General registers, program counter and stack pointer.
    pub registers: Registers,
    /// Number of the current system call, negative if in none; x86_64 Linux only.
    pub call: Option<i64>,
}

/// The processor with this stub name.
///
/// # Errors
/// One line with the processor's name, if its stacks cannot be walked.
pub fn arch(name: &str) -> Result<Arch, String> {
    match name {
        "i386:x86-64" | "i386:x86-64:intel" | "x86_64" | "x86_64h" | "amd64" => Ok(Arch::X86_64),
        "i386" | "i386:intel" | "i486" | "i586" | "i686" => Ok(Arch::X86),
        "aarch64" | "arm64" | "arm64e" => Ok(Arch::Aarch64),
        // `arm`, `armv7e-m`, `thumbv7m`; names of big-endian ones contain or end with `eb`.
        name if name.starts_with("arm") || name.starts_with("thumb") || name.starts_with("iwmmxt") => {
            match name.contains("eb") {
                false => Ok(Arch::Arm),
                true => {
                    Err(format!("the stub's processor is `{name}`; big-endian targets are not supported"))
                }
            }
        }
        "" => Err("the stub does not tell its processor; name the program with --exec FILE".to_owned()),
        other => Err(format!(
            "the stub's processor is `{other}`; this version records {}, {}, {} and {} targets",
            Arch::X86_64.name(),
            Arch::Aarch64.name(),
            Arch::X86.name(),
            Arch::Arm.name()
        )),
    }
}

impl Layout {
    /// Locates a processor's registers in a description, or in the usual order if that has none.
    ///
    /// # Errors
    /// What is missing or contradictory.
    pub fn of(arch: Arch, description: &Description) -> Result<Layout, String> {
        let registers = match description.registers.is_empty() {
            true => usual(arch),
            false => description.registers.clone(),
        };
        let names = names(arch);
        let m_profile = (!description.registers.is_empty())
            .then(|| registers.iter().any(|register| register.name.eq_ignore_ascii_case(XPSR)));
        let is_process_sp = |register: &&Register| {
            arch == Arch::Arm && register.bits == 32 && register.name.eq_ignore_ascii_case(PROCESS_SP)
        };
        let process_sp = registers.iter().find(is_process_sp).map(|register| register.number);
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
        Ok(Layout { arch, slots, m_profile, process_sp })
    }

    /// Decodes the registers in a reply to `g`, as bytes; `None` marks unknown ones. `more` has registers
    /// that the reply lacks, by number.
    #[must_use]
    pub fn registers(
        &self,
        sent: &[Option<u8>],
        more: &dyn Fn(u32) -> Option<u64>,
    ) -> Option<ThreadRegisters> {
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
            Arch::X86_64 => ThreadRegisters {
                registers: Registers::X86_64(X86_64 {
                    gpr: std::array::from_fn(|number| values[number]),
                    rip: values[16],
                    fs_base: value(17).unwrap_or(0),
                }),
                call: value(18).map(u64::cast_signed),
            },
            Arch::Aarch64 => ThreadRegisters {
                registers: Registers::Aarch64(Aarch64 {
                    x: std::array::from_fn(|number| values[number]),
                    sp: values[31],
                    pc: values[32],
                }),
                call: None,
            },
            Arch::X86 => ThreadRegisters {
                registers: Registers::X86(X86 {
                    gpr: std::array::from_fn(|number| values[number]),
                    eip: values[8],
                }),
                // A signed 32-bit value.
                call: value(9).map(|number| (number as u32).cast_signed().into()),
            },
            Arch::Arm => {
                let status = values[ARM_STATUS] as u32;
                ThreadRegisters {
                    registers: Registers::Arm(Arm {
                        r: std::array::from_fn(|number| values[number]),
                        cpsr: Some(status),
                        m_profile: self.m_profile.unwrap_or(status & XPSR_T != 0),
                    }),
                    call: None,
                }
            }
        })
    }

    /// Derives facts missing in descriptions from the registers of a thread.
    pub(super) fn learn(&mut self, answer: &ThreadRegisters) {
        if let Registers::Arm(registers) = &answer.registers {
            self.m_profile = Some(registers.m_profile);
        }
    }

    /// Whether it is known to be an M-profile Arm core.
    pub(super) fn is_m_profile(&self) -> bool {
        self.m_profile == Some(true)
    }

    /// Number of the process stack pointer, if these registers belong to an exception handler: it runs on the
    /// main stack, whatever it interrupted. `None` if the stub lacks it.
    #[must_use]
    pub fn other_sp(&self, registers: &Registers) -> Option<u32> {
        match registers {
            Registers::Arm(arm)
                if arm.m_profile && arm.cpsr.is_some_and(|xpsr| xpsr & XPSR_EXCEPTION != 0) =>
            {
                self.process_sp
            }
            _ => None,
        }
    }

    /// The numbers of the registers that a reply to `g` of this many bytes lacks.
    #[must_use]
    pub fn missing_registers(&self, sent_bytes: usize) -> Vec<u32> {
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
        Arch::Arm => ARM_NEEDED,
    }
}

/// The names of each needed register; lldb has different ones for some.
fn names(arch: Arch) -> Vec<Vec<&'static str>> {
    match arch {
        Arch::X86_64 => X86_64_NAMES.iter().map(|name| vec![*name]).collect(),
        Arch::X86 => X86_NAMES.iter().map(|name| vec![*name]).collect(),
        Arch::Arm => ARM_NAMES.iter().map(|names| names.to_vec()).collect(),
        Arch::Aarch64 => {
            let mut names: Vec<Vec<&str>> = X_NAMES.iter().map(|name| vec![*name]).collect();
            names[Aarch64::FP].push("fp");
            names[Aarch64::LR].push("lr");
            names.extend([vec!["sp"], vec!["pc"]]);
            names
        }
    }
}

const X_NAMES: [&str; 31] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
    "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
];

/// The registers of stubs without descriptions.
fn usual(arch: Arch) -> Vec<Register> {
    let bits = 8 * arch.pointer_bytes() as u32;
    let register = |name: &str, bits| Register { name: name.to_owned(), bits, number: 0, offset: None };
    let mut registers: Vec<Register> = match arch {
        Arch::X86_64 => X86_64_ORDER.iter().map(|name| register(name, bits)).collect(),
        Arch::Aarch64 => X_NAMES.into_iter().chain(["sp", "pc"]).map(|name| register(name, bits)).collect(),
        Arch::X86 => X86_ORDER.iter().map(|name| register(name, bits)).collect(),
        Arch::Arm => {
            let core = ARM_NAMES[..=Arm::PC].iter().map(|names| register(names[0], bits));
            let fpa = (0..ARM_FPA_COUNT).map(|_| register("", ARM_FPA_BITS));
            core.chain(fpa).chain([register("fps", bits), register("cpsr", bits)]).collect()
        }
    };
    for (register, number) in registers.iter_mut().zip(0..) {
        register.number = number;
    }
    registers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(documents: &[(&str, &str)]) -> Result<Option<Description>, String> {
        Description::read(&mut |name: &str| {
            let found = documents.iter().find(|(other, _)| *other == name);
            Ok(found.map(|(_, text)| text.as_bytes().to_vec()))
        })
    }

    const TARGET: &str = "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\">\
        <target><architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>\
        <xi:include href=\"core.xml\"/></target>";

    #[test]
    fn registers_are_numbered_across_included_documents() {
        let core = "<feature name=\"a\"><reg name=\"rax\" bitsize=\"64\"/><reg name=\"b\" bitsize=\"32\" \
                    regnum=\"7\"/><reg name=\"c\" bitsize=\"64\" offset=\"100\"/></feature>";
        let read = read(&[("target.xml", TARGET), ("core.xml", core)]).unwrap().unwrap();
        assert_eq!((&*read.architecture, &*read.system), ("i386:x86-64", "GNU/Linux"));
        let numbers: Vec<u32> = read.registers.iter().map(|register| register.number).collect();
        assert_eq!(numbers, [0, 7, 8]);
        assert_eq!(read.registers[2].offset, Some(100));
    }

    #[test]
    fn contradictions_and_include_loops_are_refused() {
        let error = |documents: &[(&str, &str)]| read(documents).unwrap_err();
        let twice =
            "<t><reg name=\"a\" bitsize=\"8\" regnum=\"1\"/><reg name=\"b\" bitsize=\"8\" regnum=\"1\"/></t>";
        assert!(error(&[("target.xml", twice)]).contains("`a` and `b` one number"));
        assert!(error(&[("target.xml", "<t><reg name=\"a\"/></t>")]).contains("has no size"));
        assert!(error(&[("target.xml", TARGET)]).contains("includes `core.xml`, but not that"));
        let own = "<t><xi:include href=\"target.xml\"/></t>";
        assert!(error(&[("target.xml", own)]).contains("without end"));
        let path = "<t><xi:include href=\"../x\"/></t>";
        assert!(error(&[("target.xml", path)]).contains("includes `../x`"));
        assert!(error(&[("target.xml", "<t></u>")]).contains("not XML"));
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn lldb_describes_registers_one_by_one() {
        let mut description = Description::default();
        let answer = b"name:rip;bitsize:64;offset:128;encoding:uint;set:General;generic:pc;";
        assert!(description.add_register_info(answer));
        assert!(!description.add_register_info(b"E45"));
        assert_eq!(description.registers[0].offset, Some(128));
        description.add_info(b"triple:7838365f36342d2d6c696e75782d676e75;ostype:linux;endian:little;");
        assert_eq!((&*description.architecture, &*description.system), ("x86_64", "linux"));
    }
}

#[cfg(test)]
mod layout_tests {
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
        let answer = layout.registers(&sent, &|_| None).unwrap();
        let Registers::X86_64(registers) = answer.registers else { panic!("another processor") };
        assert_eq!((registers.rip, registers.gpr[15], registers.gpr[0]), (1, 2, 17));
        assert_eq!(registers.gpr[X86_64::RSP], 10);
        assert_eq!(answer.call, None);
    }

    #[test]
    fn registers_missing_in_the_reply_are_requested_by_number() {
        let layout = Layout::of(Arch::Aarch64, &Description::default()).unwrap();
        let sent: Vec<Option<u8>> = (0..31u64).flat_map(u64::to_le_bytes).map(Some).collect();
        assert_eq!(layout.missing_registers(sent.len()), [31, 32]);
        assert_eq!(layout.registers(&sent, &|_| None), None);
        let answer = layout.registers(&sent, &|number| Some(u64::from(number) * 100)).unwrap();
        assert_eq!((answer.registers.sp().0, answer.registers.pc().0), (3100, 3200));
        let unknown = vec![None; 33 * 8];
        assert_eq!(layout.registers(&unknown, &|_| Some(1)), None, "not to be had");
    }

    #[test]
    fn i386_registers_have_four_bytes() {
        let layout = Layout::of(Arch::X86, &Description::default()).unwrap();
        let sent: Vec<Option<u8>> = (1..=9u32).flat_map(u32::to_le_bytes).map(Some).collect();
        assert_eq!(layout.missing_registers(sent.len()), [0u32; 0]);
        assert_eq!(layout.missing_registers(sent.len() - 1), [8]);
        let answer = layout.registers(&sent, &|_| None).unwrap();
        let Registers::X86(registers) = answer.registers else { panic!("another processor") };
        assert_eq!((registers.gpr, registers.eip, answer.call), ([1, 2, 3, 4, 5, 6, 7, 8], 9, None));
        let wide = vec![register("eax", 0, 64)];
        assert!(Layout::of(Arch::X86, &described(wide)).unwrap_err().contains("32 were expected"));
    }

    #[test]
    fn missing_and_contradictory_registers_are_named() {
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

    fn arm(layout: &Layout, sent: &[u32]) -> Arm {
        let sent: Vec<Option<u8>> = sent.iter().flat_map(|word| word.to_le_bytes()).map(Some).collect();
        let Registers::Arm(registers) = layout.registers(&sent, &|_| None).unwrap().registers else {
            panic!("another processor")
        };
        registers
    }

    #[test]
    fn arm_without_a_description_has_fpa_registers_before_cpsr() {
        let layout = Layout::of(Arch::Arm, &Description::default()).unwrap();
        let mut sent: Vec<u32> = (100..116).collect();
        sent.extend([0; 3 * 8 + 1]);
        sent.push(0x2000_0013);
        assert_eq!(sent.len() * 4, 168, "gdb/arch/arm.h");
        let registers = arm(&layout, &sent);
        assert_eq!(
            (registers.r[Arm::SP], registers.r[Arm::PC], registers.cpsr),
            (113, 115, Some(0x2000_0013))
        );
        assert!(!registers.m_profile);
        *sent.last_mut().unwrap() = 0x0100_000f;
        assert!(arm(&layout, &sent).m_profile, "T of xPSR is set");
        assert_eq!(layout.missing_registers(64), [25]);
    }

    #[test]
    fn the_status_register_shows_the_profile_of_an_arm_core() {
        let core = |status: &str| {
            let names = ARM_NAMES[..16].iter().map(|names| names[0]).chain([status]);
            let registers = names.zip(0..).map(|(name, number)| register(name, number, 32)).collect();
            Layout::of(Arch::Arm, &described(registers)).unwrap()
        };
        let sent: Vec<u32> = (0..17).collect();
        for status in ["xpsr", "xPSR"] {
            assert!(arm(&core(status), &sent).m_profile);
        }
        assert!(!arm(&core("cpsr"), &sent).m_profile);
        let both = [ARM_NAMES[..16].iter().map(|names| names[0]).collect(), vec!["cpsr", "xpsr"]].concat();
        let both = both.into_iter().zip(0..).map(|(name, number)| register(name, number, 32)).collect();
        assert_eq!(Layout::of(Arch::Arm, &described(both)).unwrap_err(), "`xpsr` is described twice");
    }

    #[test]
    fn the_process_stack_pointer_is_requested_only_in_handlers() {
        let core = |more: Vec<Register>| {
            let names = ARM_NAMES[..16].iter().map(|names| names[0]).chain([XPSR]);
            let registers = names.zip(0..).map(|(name, number)| register(name, number, 32)).chain(more);
            Layout::of(Arch::Arm, &described(registers.collect())).unwrap()
        };
        let of = |layout: &Layout, status: u32| {
            let sent: Vec<u32> = (0..16).chain([status]).collect();
            layout.other_sp(&Registers::Arm(arm(layout, &sent)))
        };
        for name in ["psp", "PSP"] {
            let layout = core(vec![register("msp", 30, 32), register(name, 31, 32)]);
            assert_eq!((of(&layout, XPSR_T | 15), of(&layout, XPSR_T)), (Some(31), None));
            assert_eq!(layout.missing_registers(17 * 4), [0u32; 0], "nobody else needs it");
        }
        assert_eq!(of(&core(vec![register("psp", 31, 64)]), XPSR_T | 15), None);
        assert_eq!(of(&core(vec![]), XPSR_T | 15), None);
    }

    #[test]
    fn processors_that_cannot_be_walked_are_named() {
        assert_eq!(arch("armv7e-m"), Ok(Arch::Arm));
        assert_eq!(arch("thumbv7m"), Ok(Arch::Arm));
        assert_eq!(arch("i386:x86-64"), Ok(Arch::X86_64));
        assert_eq!(arch("arm64e"), Ok(Arch::Aarch64));
        assert_eq!(arch("i386"), Ok(Arch::X86));
        assert!(arch("mips").unwrap_err().contains("`mips`"));
        assert!(arch("armebv7").unwrap_err().contains("big-endian"));
        assert!(arch("").unwrap_err().contains("--exec"));
    }
}
