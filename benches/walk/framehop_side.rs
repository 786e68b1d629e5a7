//! framehop over the same files and stacks.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Unwinder as _};
use object::{Object, ObjectSection};
use stackprof::addr::LookupAvma;
use stackprof::arch::{Registers, X86_64};

use crate::stacks::{Module, Program, Stack};

/// framehop with one program's files.
pub(super) struct Framehop {
    unwinder: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64,
    /// What the last walk found, leaf first.
    pub addresses: Vec<LookupAvma>,
}

impl Framehop {
    pub(super) fn new(program: &Program) -> Framehop {
        let mut unwinder = UnwinderX86_64::new();
        program.modules.iter().for_each(|module| unwinder.add_module(convert(module)));
        Framehop { unwinder, cache: CacheX86_64::new(), addresses: Vec::new() }
    }

    /// Empties the cache.
    pub(super) fn forget(&mut self) {
        self.cache = CacheX86_64::new();
    }

    pub(super) fn walk(&mut self, stack: &Stack) {
        let Registers::X86_64(registers) = &stack.registers else { unreachable!("recorded on x86_64") };
        let (sp, bp) = (registers.gpr[X86_64::RSP], registers.gpr[X86_64::RBP]);
        let regs = UnwindRegsX86_64::new(registers.rip, sp, bp);
        let (base, bytes) = (stack.base.0, stack.bytes.as_slice());
        let mut read = |at: u64| {
            let offset = usize::try_from(at.checked_sub(base).ok_or(())?).map_err(|_| ())?;
            let word = bytes.get(offset..).and_then(|bytes| bytes.first_chunk::<8>()).ok_or(())?;
            Ok(u64::from_le_bytes(*word))
        };
        self.addresses.clear();
        let mut frames = self.unwinder.iter_frames(registers.rip, regs, &mut self.cache, &mut read);
        while let Ok(Some(frame)) = frames.next() {
            self.addresses.push(LookupAvma(frame.address_for_lookup()));
        }
    }
}

fn convert(module: &Module) -> framehop::Module<Vec<u8>> {
    let file = object::File::parse(&*module.bytes).unwrap();
    let section = |name: &[u8]| {
        let section = file.section_by_name(std::str::from_utf8(name).ok()?)?;
        Some((section.address()..section.address() + section.size(), section.data().ok()?.to_vec()))
    };
    let (text, header, frames) = (section(b".text"), section(b".eh_frame_hdr"), section(b".eh_frame"));
    let range = &module.mapping.avma;
    framehop::Module::new(
        module.mapping.path.clone(),
        range.start.0..range.end.0,
        module.bias,
        ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: text.as_ref().map(|text| text.0.clone()),
            text: text.map(|text| text.1),
            eh_frame_hdr_svma: header.as_ref().map(|header| header.0.clone()),
            eh_frame_hdr: header.map(|header| header.1),
            eh_frame_svma: frames.as_ref().map(|frames| frames.0.clone()),
            eh_frame: frames.map(|frames| frames.1),
            ..Default::default()
        },
    )
}
