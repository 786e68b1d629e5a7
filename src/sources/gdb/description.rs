//! Parses the stub's target description: processor, system, and the registers in the order in which they are
//! sent. Input: the documents of `qXfer:features:read` (target.xml and its includes), or the replies to
//! lldb's `qRegisterInfo`; hostile. Output: plain values. Pure.
//!
//! Format: "Debugging with GDB", appendix G "Target Descriptions"; LLVM, docs/resources/lldbgdbremote.md.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::hex;

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
                    let triple = hex::text(value.as_bytes()).unwrap_or_default();
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
