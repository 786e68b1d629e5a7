//! Nanoseconds per frame of walking: by frame pointers, by unwind information with warm
//! caches, and framehop alone on the same stacks.
//!
//! `cargo bench --bench walk`: this process's own image is the code, and synthetic stacks of
//! its functions with ordinary rows are walked in alternating rounds. Asserts that `auto`
//! takes at most 1.2 times framehop's time. `--quick` and debug builds assert nothing.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("SKIP the walk bench uses its own ELF file for x86_64");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() {
    linux::main();
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux {
    use std::hint::black_box;
    use std::time::Instant;

    use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
    use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};
    use object::{Object, ObjectSection};
    use stackprof::addr::Avma;
    use stackprof::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};
    use stackprof::image::Images;
    use stackprof::registers::{Registers, X86_64};
    use stackprof::sampler::ImageCode;
    use stackprof::target::{ImageBytes, Mapping, MappingKind};
    use stackprof::walk::{self, Code, Ended, Frames, How, Input, StackBytes, Unwinder};

    const BIAS: u64 = 0x5500_0000_0000;
    const STACK: u64 = 0x7ffd_0000_0000;
    const DEPTH: usize = 40;
    const STACKS: usize = 8;
    const ALLOWED: f64 = 1.2;

    struct Stack {
        bytes: Vec<u8>,
        registers: X86_64,
    }

    pub(super) fn main() {
        let quick = cfg!(debug_assertions) || std::env::args().any(|arg| arg == "--quick" || arg == "--test");
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let text = file.section_by_name(".text").unwrap();
        let (text_svma, text_bytes) = (text.address(), text.data().unwrap());
        let mut images = Images::default();
        let page = text_svma & !0xfff;
        let mapping = Mapping {
            avma: Avma(BIAS + page)..Avma(BIAS + text_svma + text_bytes.len() as u64),
            file_offset: text.file_range().unwrap().0 - (text_svma - page),
            path: "/walk".to_owned(),
            kind: MappingKind::File,
            identity: (1, 1),
        };
        images.update(&[mapping], &mut |_| Ok(ImageBytes::new(bytes.clone())));
        let code = ImageCode(&images);
        let stacks = stacks(&code, text_svma, text_bytes);
        let section = |name: &[u8]| {
            let name = std::str::from_utf8(name).ok()?;
            let section = file.section_by_name(name)?;
            Some((section.address()..section.address() + section.size(), section.data().ok()?.to_vec()))
        };
        let (hdr, frames) = (section(b".eh_frame_hdr").unwrap(), section(b".eh_frame").unwrap());
        let mut framehop = UnwinderX86_64::<Vec<u8>>::new();
        framehop.add_module(Module::new(
            "walk".to_owned(),
            BIAS..BIAS + (1 << 32),
            BIAS,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                text_svma: Some(text_svma..text_svma + text_bytes.len() as u64),
                eh_frame_hdr_svma: Some(hdr.0),
                eh_frame_hdr: Some(hdr.1),
                eh_frame_svma: Some(frames.0),
                eh_frame: Some(frames.1),
                ..Default::default()
            },
        ));
        let mut cache = CacheX86_64::new();
        let (mut unwinder, mut out) = (Unwinder::default(), Frames::default());
        let rounds = if quick { 20 } else { 20_000 };
        let mut best = [f64::MAX; 3];
        for _ in 0..7 {
            for (which, best) in best.iter_mut().enumerate() {
                let begun = Instant::now();
                let mut found = 0;
                for _ in 0..rounds {
                    for stack in &stacks {
                        found += match which {
                            0 => by_framehop(&framehop, &mut cache, stack),
                            1 => ours(How::Auto, &code, &mut unwinder, stack, &mut out),
                            _ => ours(How::FramePointer, &code, &mut unwinder, stack, &mut out),
                        };
                    }
                }
                if found > 0 {
                    *best = best.min(begun.elapsed().as_nanos() as f64 / found as f64);
                }
            }
        }
        println!("ns per frame, best of 7 alternating rounds, {STACKS} stacks of {DEPTH} frames");
        println!(
            "framehop {:.1}, auto {:.1} (ratio {:.2}), fp {:.1}",
            best[0],
            best[1],
            best[1] / best[0],
            best[2]
        );
        assert!(quick || best[1] <= ALLOWED * best[0], "auto is slower than {ALLOWED} times framehop");
    }

    fn by_framehop(unwinder: &UnwinderX86_64<Vec<u8>>, cache: &mut CacheX86_64, stack: &Stack) -> usize {
        let registers = &stack.registers;
        let regs = UnwindRegsX86_64::new(registers.rip, registers.gpr[7], registers.gpr[6]);
        let mut read = |at: u64| {
            let offset = at.checked_sub(STACK).ok_or(())? as usize;
            let bytes = stack.bytes.get(offset..offset + 8).ok_or(())?;
            Ok(u64::from_le_bytes(bytes.try_into().unwrap()))
        };
        let mut frames = unwinder.iter_frames(registers.rip, regs, cache, &mut read);
        let mut found = 0;
        while let Ok(Some(frame)) = frames.next() {
            black_box(frame);
            found += 1;
        }
        found
    }

    fn ours(how: How, code: &dyn Code, unwinder: &mut Unwinder, stack: &Stack, out: &mut Frames) -> usize {
        let input = Input {
            stack: StackBytes { base: Avma(STACK), bytes: &stack.bytes },
            stack_top: None,
            stack_limit: None,
            fp_always: false,
            max_depth: 1024,
            code_mask: u64::MAX,
            code,
        };
        let walked = walk::unwind(how, &Registers::X86_64(stack.registers), &input, unwinder, out);
        assert!(
            how == How::FramePointer || walked.ended == Ended::Root,
            "{walked:?} after {}",
            out.addresses.len()
        );
        black_box(&out.addresses);
        out.addresses.len()
    }

    /// Stacks of return addresses that follow calls and have ordinary rows, down to `_start`.
    fn stacks(code: &ImageCode<'_>, svma: u64, text: &[u8]) -> Vec<Stack> {
        let mut returns: Vec<(u64, i64, Row)> = Vec::new();
        let mut start = None;
        for (at, call) in text.windows(5).enumerate() {
            let to = i32::from_le_bytes(call[1..].try_into().unwrap());
            let target = (at as i64 + 5).checked_add(to.into()).and_then(|to| usize::try_from(to).ok());
            if call[0] != 0xe8 || target.is_none_or(|to| to >= text.len()) {
                continue;
            }
            let address = BIAS + svma + at as u64 + 5;
            let Some(row) = code.row(Avma(address - 1)) else { continue };
            let Cfa::Register(7, bytes) = row.cfa else { continue };
            if (16..512).contains(&bytes) && row.columns[RETURN_ADDRESS] == Column::At(-8) {
                returns.push((address, bytes, row));
            }
        }
        // `_start` calls through memory: ff 15.
        for (at, call) in text.windows(2).enumerate() {
            let address = BIAS + svma + at as u64 + 6;
            let undefined = |row: Row| row.columns[RETURN_ADDRESS] == Column::Undefined;
            if call == [0xff, 0x15] && code.row(Avma(address - 1)).is_some_and(undefined) {
                start = Some(address);
            }
        }
        let start = start.expect("_start calls through memory");
        let mut random = 88_172_645_463_325_252u64;
        println!("{} return addresses with ordinary rows, seed {random}", returns.len());
        (0..STACKS)
            .map(|_| {
                let mut bytes = Vec::new();
                let mut chosen = Vec::new();
                for _ in 0..DEPTH {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    chosen.push(returns[random as usize % returns.len()].clone());
                }
                // Interrupted right at the first call; each frame's return address is below its CFA.
                for (index, (_, size, _)) in chosen.iter().enumerate() {
                    bytes.resize(bytes.len() + *size as usize - 8, 0);
                    let caller = chosen.get(index + 1).map_or(start, |next| next.0);
                    bytes.extend_from_slice(&caller.to_le_bytes());
                }
                bytes.resize(bytes.len() + 64, 0);
                let mut registers = X86_64 { rip: chosen[0].0 - 1, ..X86_64::default() };
                registers.gpr[7] = STACK;
                Stack { bytes, registers }
            })
            .collect()
    }
}
