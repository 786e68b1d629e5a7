//! Walks the stack of the thread that runs it, from a copy of its bytes: Linux, x86_64.
//!
//! Prints one line per frame: the method that found it, the file and the address in that file.
#![allow(unsafe_code, clippy::print_stdout)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::arch::asm;
    use std::path::Path;

    use unwind::addr::Avma;
    use unwind::arch::{Registers, UNKNOWN_REGISTER, X86_64};
    use unwind::binary::Mapping;
    use unwind::binary::files::map_regular;
    use unwind::images::Images;
    use unwind::walk::{Frames, Input, StackBytes, UnwindMethod, Unwinder, unwind};

    let (mut mappings, mut stack_limit) = (Vec::new(), None);
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        // start-end rights offset device inode path
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or_default();
        let (range, rights, offset, _device, inode, path) = (word(), word(), word(), word(), word(), word());
        let (start, end) = range.split_once('-').ok_or("no range")?;
        let range = Avma(u64::from_str_radix(start, 16)?)..Avma(u64::from_str_radix(end, 16)?);
        if path == "[stack]" {
            stack_limit = Some(range.end);
        } else if rights.contains('x') && path.starts_with('/') {
            let offset = u64::from_str_radix(offset, 16)?;
            mappings.push(Mapping::of_file(range, offset, path, (0, inode.parse()?)));
        }
    }
    let mut images = Images::default();
    images.update(0, &mappings, &mut |mapping| map_regular(Path::new(&mapping.path)));

    let (mut rip, mut rsp, mut rbp, mut rbx): (u64, u64, u64, u64);
    // SAFETY: it reads registers only.
    unsafe {
        asm!("lea {0}, [rip]", "mov {1}, rsp", "mov {2}, rbp", "mov {3}, rbx", out(reg) rip, out(reg) rsp, out(reg) rbp, out(reg) rbx)
    };
    let mut registers = X86_64 { gpr: [UNKNOWN_REGISTER; 16], rip, fs_base: 0 };
    (registers.gpr[X86_64::RSP], registers.gpr[X86_64::RBP], registers.gpr[3]) = (rsp, rbp, rbx);
    let limit = stack_limit.ok_or("no stack in /proc/self/maps")?;
    let len = usize::try_from(limit.0 - rsp)?.min(64 << 10);
    // SAFETY: the stack of the main thread is mapped up to its limit, and these frames outlive the copy.
    let copy = unsafe { std::slice::from_raw_parts(rsp as *const u8, len) }.to_vec();

    let code = images.of(0);
    let stack = StackBytes { base: Avma(rsp), bytes: &copy };
    let input = Input { stack_limit: Some(limit), ..Input::new(stack, &code) };
    let (mut unwinder, mut frames) = (Unwinder::default(), Frames::default());
    let walked =
        unwind(UnwindMethod::Auto, &Registers::X86_64(registers), &input, &mut unwinder, &mut frames)
            .map_err(|_| "code without a file")?;
    for (address, method) in frames.iter() {
        match images.locate(code.space(), address.at()) {
            Some(place) => println!("{:<8} {} {:#x}", method.name(), place.image.path, place.svma.0),
            None => println!("{:<8} {:#x}", method.name(), address.0),
        }
    }
    println!("ended: {}", walked.ended.reason());
    Ok(())
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {}
