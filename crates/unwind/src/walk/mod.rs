//! The unwinder. Input: registers and copied stack bytes; output: code addresses and the reason why the walk
//! ended.
//!
//! Pure: no OS calls, no clock. Allocates only its caches and the caller's frame buffer. `engine/` walks by unwind
//! information and code, with the parts common to all processors: proof, completeness, frame switches, cached
//! rules. `fp.rs` follows frame records, `flow/` instructions. `processor.rs` describes a processor, and each has a
//! place: `x86_64/`, `x86.rs` (i386), `aarch64/`, `arm/`; the first two share `intel/`. `runtimes/` has the
//! conventions of language runtimes and C libraries. `code.rs` and `input.rs` are the input of a walk, `frames.rs`
//! is its result.

pub(super) mod aarch64;
mod arm;
mod code;
mod engine;
mod expression;
mod flow;
mod fp;
mod frames;
mod image_facts;
mod input;
mod intel;
mod processor;
mod root;
pub(crate) mod runtimes;
mod stack_switch;
#[cfg(test)]
mod text;
mod x86;
mod x86_64;

pub use code::{Code, CodeTraits, FilePlace, GLANCE_BYTES, Glance, NeedsBytes};
pub use frames::{Frames, Method, StackEnd, UnwindMethod, WalkResult};
pub use input::{Input, OtherStack, OuterStack, STACK_BYTES_MAX, StackBytes};
pub use root::SEARCH_BYTES;

use engine::{Engine, Shared};
use fp::Facts;

use crate::addr::{Avma, CodeAddress};
use crate::arch::{Aarch64, Arch, Arm, Registers, X86, X86_64};

/// Facts about code in files, shared by the unwinders of all processes. Clones share them. A file is identified by
/// [`FilePlace::image`], which must be the same in all these processes.
#[derive(Clone, Debug, Default)]
pub struct FileFacts {
    x86_64: x86_64::Shared,
    aarch64: Shared<Aarch64>,
    x86: Shared<X86>,
}

impl FileFacts {
    /// Number of cached rules of x86_64.
    #[cfg(any(test, feature = "testing"))]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.x86_64.len()
    }
}

/// The caches of walks. Valid for one state of the target's images: call [`Unwinder::images_changed`] when they
/// change.
#[derive(Clone, Debug, Default)]
pub struct Unwinder {
    x86_64: x86_64::Unwinder,
    aarch64: Engine<Aarch64>,
    x86: Engine<X86>,
    arm: arm::Unwinder,
    facts: Facts,
}

impl Unwinder {
    /// An unwinder that shares its facts about code in files.
    #[must_use]
    pub fn new(facts: &FileFacts) -> Unwinder {
        Unwinder {
            x86_64: x86_64::Unwinder::new(&facts.x86_64),
            aarch64: Engine::new(&facts.aarch64),
            x86: Engine::new(&facts.x86),
            ..Unwinder::default()
        }
    }

    /// Forgets facts about addresses, which may have another meaning now. Facts about files remain valid.
    pub fn images_changed(&mut self) {
        self.x86_64.images_changed();
        self.aarch64.images_changed();
        self.x86.images_changed();
        self.arm.images_changed();
        self.facts.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true: JIT code is replaced without
    /// notification.
    pub fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.x86_64.forget(is_gone);
        self.aarch64.forget(is_gone);
        self.x86.forget(is_gone);
        self.arm.forget(is_gone);
        self.facts.forget(is_gone);
    }

    /// Sets whether the bytes below the stack pointer were read later than the others. On x86_64, a caller found
    /// in them then needs confirmation.
    pub fn set_red_zone_read_later(&mut self, later: bool) {
        self.x86_64.set_red_zone_read_later(later);
    }
}

/// Walks by a method. Clears `out`, then pushes each frame, leaf first.
///
/// # Errors
/// The bytes of JIT code that the walk needs; its result is void.
pub fn unwind(
    unwind_method: UnwindMethod,
    registers: &Registers,
    input: &Input<'_>,
    unwinder: &mut Unwinder,
    out: &mut Frames,
) -> Result<WalkResult, NeedsBytes> {
    out.clear();
    if unwind_method.is_of_arm() && registers.arch() != Arch::Arm {
        out.push(CodeAddress::Pc(registers.pc()), Method::Context);
        return Ok(WalkResult { ended: StackEnd::NoUnwindInfo, reached: registers.sp() });
    }
    let Unwinder { x86_64, aarch64, x86, arm, facts } = unwinder;
    let walked = match registers {
        Registers::X86_64(registers) => x86_64.unwind(unwind_method, registers, input, facts, out),
        Registers::Aarch64(registers) => aarch64.unwind(unwind_method, registers, input, facts, out),
        Registers::X86(registers) => x86.unwind(unwind_method, registers, input, facts, out),
        Registers::Arm(registers) => arm.unwind(unwind_method, registers, input, None, out),
    };
    input.code.missing_bytes().map_or(Ok(walked), Err)
}

/// Walks with a second copied stack. The needed size of each stack counts from its own stack
/// pointer; [`WalkResult::reached`] is the larger of the two, as an address of the first stack.
///
/// # Errors
/// The bytes of JIT code that the walk needs.
pub fn unwind_with_other_stack(
    unwind_method: UnwindMethod,
    registers: &Registers,
    input: &Input<'_>,
    other: Option<OtherStack<'_>>,
    unwinder: &mut Unwinder,
    out: &mut Frames,
) -> Result<WalkResult, NeedsBytes> {
    match registers {
        Registers::Arm(registers) if other.is_some() => {
            out.clear();
            let walked = unwinder.arm.unwind(unwind_method, registers, input, other, out);
            input.code.missing_bytes().map_or(Ok(walked), Err)
        }
        _ => unwind(unwind_method, registers, input, unwinder, out),
    }
}

/// Finds the initial stack pointer of a running thread, at most [`SEARCH_BYTES`] above `from`, by the return
/// address into the code that ends the thread.
#[must_use]
pub fn find_stack_top(arch: Arch, stack: StackBytes<'_>, from: Avma, code: &dyn Code) -> Option<Avma> {
    match arch {
        Arch::X86_64 => root::find_stack_top::<X86_64>(stack, from, code),
        Arch::Aarch64 => root::find_stack_top::<Aarch64>(stack, from, code),
        Arch::X86 => root::find_stack_top::<X86>(stack, from, code),
        Arch::Arm => root::find_stack_top::<Arm>(stack, from, code),
    }
}
