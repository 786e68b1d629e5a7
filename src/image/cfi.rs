//! Unwind information of an ELF file: what a function's caller is found by at one
//! instruction. Input: file bytes and a stated address; output: a [`FrameRule`].
//!
//! Only rows of the ordinary form, through the binary search table of `.eh_frame_hdr`;
//! anything else is "not known". Formats: LSB Core, "Exception Frames"; DWARF 5, 6.4.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection,
};
use object::{Object, ObjectSection};

use crate::addr::Svma;
use crate::frame_rule::{CfaBase, FrameRule};

/// DWARF register numbers of x86_64 (System V AMD64 ABI, figure 3.36).
const RBP: Register = Register(6);
const RSP: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

/// Where the unwind information of a file is.
#[derive(Clone, Debug)]
pub struct Cfi {
    header: Range<usize>,
    frames: Range<usize>,
    bases: BaseAddresses,
}

impl Cfi {
    /// Finds the sections; `None` if the file has none, or is not for x86_64.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<Cfi> {
        let file = object::File::parse(bytes).ok()?;
        if file.architecture() != object::Architecture::X86_64 {
            return None;
        }
        let section = |name: &str| -> Option<(u64, Range<usize>)> {
            let section = file.section_by_name(name)?;
            let (offset, size) = section.file_range()?;
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(usize::try_from(size).ok()?)?;
            bytes.get(start..end)?;
            Some((section.address(), start..end))
        };
        let (header_svma, header) = section(".eh_frame_hdr")?;
        let (frames_svma, frames) = section(".eh_frame")?;
        let text_svma = section(".text").map_or(0, |(svma, _)| svma);
        let bases = BaseAddresses::default()
            .set_eh_frame_hdr(header_svma)
            .set_eh_frame(frames_svma)
            .set_text(text_svma);
        Some(Cfi { header, frames, bases })
    }

    /// The rule at an instruction; `bytes` are those that [`Cfi::find`] was given. `None`
    /// where there is no information, or none of the ordinary form.
    #[must_use]
    pub fn rule(&self, bytes: &[u8], pc: Svma) -> Option<FrameRule> {
        let header = EhFrameHdr::new(bytes.get(self.header.clone())?, LittleEndian);
        let header = header.parse(&self.bases, 8).ok()?;
        let frames = EhFrame::new(bytes.get(self.frames.clone())?, LittleEndian);
        let table = header.table()?;
        let fde = table.fde_for_address(&frames, &self.bases, pc.0, EhFrame::cie_from_offset).ok()?;
        // The interrupted caller of a signal frame is in its saved context, not below the CFA.
        if fde.cie().is_signal_trampoline() {
            return None;
        }
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&frames, &self.bases, &mut context, pc.0).ok()?;
        let CfaRule::RegisterAndOffset { register, offset: cfa_offset } = *row.cfa() else { return None };
        let base = match register {
            RSP => CfaBase::StackPointer,
            RBP => CfaBase::FramePointer,
            _ => return None,
        };
        let frame_pointer_at = match row.register(RBP) {
            Some(RegisterRule::Offset(at)) => Some(at),
            None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => None,
            Some(_) => return None,
        };
        let return_at = match row.register(RETURN_ADDRESS) {
            Some(RegisterRule::Offset(at)) => Some(at),
            Some(RegisterRule::Undefined) => None,
            _ => return None,
        };
        Some(FrameRule { base, cfa_offset, frame_pointer_at, return_at })
    }
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))] // the test executable must be ELF
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use object::{ObjectSymbol, SymbolKind};

    #[test]
    fn at_its_first_instruction_a_function_has_only_its_return_address() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let cfi = Cfi::find(&bytes).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let functions =
            file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
        let entry = FrameRule {
            base: CfaBase::StackPointer,
            cfa_offset: 8,
            frame_pointer_at: None,
            return_at: Some(-8),
        };
        let (mut all, mut right) = (0, 0);
        for function in functions.step_by(7) {
            all += 1;
            right += usize::from(cfi.rule(&bytes, Svma(function.address())) == Some(entry));
        }
        // Hand-written start code is the exception.
        assert!(all > 500 && right * 1000 >= all * 995, "{right} of {all}");
    }

    #[test]
    fn what_is_no_file_or_no_code_has_no_rule() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let cfi = Cfi::find(&bytes).unwrap();
        assert_eq!(cfi.rule(&bytes, Svma(0)), None);
        assert_eq!(cfi.rule(&bytes, Svma(u64::MAX)), None);
        assert_eq!(cfi.rule(&bytes[..100], Svma(0x1000)), None);
        assert!(Cfi::find(b"\x7fELF").is_none());
    }
}
