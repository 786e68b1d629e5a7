//! Rings, one per CPU: parses their records ([`PerfRecord`]) and the user registers of samples, and measures how
//! full they are ([`Pressure`]).
//!
//! Input: bytes as the kernel writes them. Output: records with CPU and time.

pub(super) mod sys;

use libc::pid_t;
use perf_event_open_sys::bindings::{
    PERF_CONTEXT_KERNEL, PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST,
    PERF_RECORD_MISC_COMM_EXEC, PERF_RECORD_MISC_SWITCH_OUT, PERF_RECORD_MISC_SWITCH_OUT_PREEMPT,
    PERF_RECORD_MMAP2, PERF_RECORD_SAMPLE, PERF_RECORD_SWITCH, PERF_RECORD_SWITCH_CPU_WIDE,
    PERF_RECORD_THROTTLE, PERF_RECORD_UNTHROTTLE,
};

use crate::addr::Avma;
use crate::arch::Registers;

pub(crate) use arch::MASK;

// ---- Fill levels of the rings when read: whether the reader keeps up.

/// Fill levels of rings when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    /// The fullest ring.
    pub(crate) fill_per_mille: u32,
    /// Whether samples did not fit.
    pub(crate) lost: bool,
}

impl Pressure {
    /// Includes samples read ahead, per mille of their limit.
    pub(crate) fn with(self, ahead_per_mille: u32) -> Pressure {
        Pressure { fill_per_mille: self.fill_per_mille.max(ahead_per_mille), ..self }
    }
}

// ---- Parses the records of a ring.
//
// Layout: perf_event_open(2), for the attributes of `events/attributes.rs` (`sample_type`, `sample_id_all`).

/// `PERF_CONTEXT_MAX`: values above are context markers, not addresses (include/uapi/linux/perf_event.h).
const CONTEXT_MAX: u64 = (-4095i64) as u64;
/// Minimum timer period, nanoseconds. Samples at switches have the length of their chain in its place, which is
/// less: this distinguishes the two kinds in a shared ring.
pub(crate) const CLOCK_PERIOD_MIN: u64 = 10_000;
/// Bytes of `sample_id_all` at the end of every record that is not a sample: process, thread, time, event, CPU.
const SAMPLE_ID_BYTES: usize = 32;

/// Process, thread, time and CPU of a record (perf: `sample_id_all`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SampleId {
    /// Process.
    pub(crate) pid: pid_t,
    /// Thread.
    pub(crate) tid: pid_t,
    /// Monotonic clock, nanoseconds.
    pub(crate) time_ns: u64,
    /// CPU.
    pub(crate) cpu: u32,
}

/// A record, borrowed from the ring.
// Nearly all are samples, so boxing these would be an allocation for each.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq)]
pub(crate) enum PerfRecord<'a> {
    /// PERF_RECORD_SAMPLE.
    Sample(Sample<'a>),
    /// PERF_RECORD_MMAP2 of executable memory.
    Mmap(Mmap<'a>),
    /// PERF_RECORD_COMM: a new name; of a new program if `exec`.
    Comm { name: &'a [u8], exec: bool },
    /// PERF_RECORD_EXIT: a thread exited.
    Exit,
    /// PERF_RECORD_FORK: it was started, by this thread of this process.
    Fork { parent: pid_t, creator: pid_t },
    /// PERF_RECORD_LOST: this many records did not fit.
    Lost(u64),
    /// PERF_RECORD_THROTTLE: samples came too often (kernel.perf_event_max_sample_rate); none are taken until
    /// PERF_RECORD_UNTHROTTLE.
    Throttle,
    /// PERF_RECORD_UNTHROTTLE.
    Unthrottle,
    /// PERF_RECORD_SWITCH and PERF_RECORD_SWITCH_CPU_WIDE: the thread gets a CPU. `direct`: from another thread, not
    /// from an idle CPU; only the second kind of record has this.
    SwitchIn { direct: bool },
    /// PERF_RECORD_SWITCH and PERF_RECORD_SWITCH_CPU_WIDE with PERF_RECORD_MISC_SWITCH_OUT: the thread leaves its
    /// CPU; if `preempted` it is still ready.
    SwitchOut { preempted: bool },
}

impl PerfRecord<'_> {
    /// Whether this is a timer sample.
    pub(crate) fn is_by_clock(&self) -> bool {
        matches!(self, PerfRecord::Sample(Sample { at_switch: false, .. }))
    }
}

/// A sample.
#[derive(Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    /// Taken where the thread left its CPU, not by the timer.
    pub(crate) at_switch: bool,
    /// Kernel addresses, innermost first; 8 bytes each.
    kernel: &'a [u8],
    /// User registers; `None` for a thread that has no user memory (any more).
    pub(crate) registers: Option<Registers>,
    /// It runs 32-bit code.
    pub(crate) compat: bool,
    /// Stack bytes from the stack pointer up.
    pub(crate) stack: &'a [u8],
}

impl Sample<'_> {
    /// A timer sample without content.
    #[cfg(test)]
    pub(crate) const EMPTY: Sample<'static> =
        Sample { at_switch: false, kernel: &[], registers: None, compat: false, stack: &[] };

    /// Kernel addresses, innermost first.
    pub(crate) fn kernel(&self) -> impl Iterator<Item = u64> {
        self.kernel.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
    }
}

/// A mapping of executable memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mmap<'a> {
    /// First address.
    pub(crate) start: u64,
    /// Size, bytes.
    pub(crate) len: u64,
    /// File offset of the first address.
    pub(crate) file_offset: u64,
    /// The file's device, major and minor number.
    pub(crate) device: (u32, u32),
    /// The file's inode.
    pub(crate) inode: u64,
    /// Its path, or the kernel's name in brackets, or `//anon`.
    pub(crate) path: &'a [u8],
}

/// Parses fields from the front of a record.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(len)?;
        self.0 = left;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    /// The id, and the event number.
    fn id(&mut self) -> Option<(SampleId, u64)> {
        let (pid, tid) = (self.u32()?, self.u32()?);
        let (time_ns, event, cpu) = (self.u64()?, self.u64()?, self.u32()?);
        self.take(4)?;
        Some((SampleId { pid: pid.cast_signed(), tid: tid.cast_signed(), time_ns, cpu }, event))
    }
}

/// One record of a ring, and the number of its event; for an inherited event, that of the event it was inherited from
/// (kernel/events/core.c, `primary_event_id`). `None` for kinds that are not used, and for invalid records.
pub(crate) fn read(record: &[u8]) -> Option<(SampleId, u64, PerfRecord<'_>)> {
    let mut fields = Fields(record);
    let kind = fields.u32()?;
    let misc = u32::from(u16::from_ne_bytes(fields.take(2)?.try_into().ok()?));
    fields.take(2)?;
    if kind == PERF_RECORD_SAMPLE {
        return sample(fields);
    }
    let (body, id) = fields.0.split_at_checked(fields.0.len().checked_sub(SAMPLE_ID_BYTES)?)?;
    let (id, event) = Fields(id).id()?;
    let mut fields = Fields(body);
    Some((
        id,
        event,
        match kind {
            PERF_RECORD_MMAP2 => PerfRecord::Mmap(mmap(fields)?),
            PERF_RECORD_COMM => {
                // The record body names the thread: another thread of the process may have set the name.
                let (pid, tid) = (fields.u32()?.cast_signed(), fields.u32()?.cast_signed());
                let id = SampleId { pid, tid, ..id };
                let exec = misc & PERF_RECORD_MISC_COMM_EXEC != 0;
                return Some((id, event, PerfRecord::Comm { name: until_nul(fields.0), exec }));
            }
            // The record body names the thread: the parent may write the record.
            PERF_RECORD_EXIT | PERF_RECORD_FORK => {
                let (pid, parent, tid) = (fields.u32()?, fields.u32()?.cast_signed(), fields.u32()?);
                let id = SampleId { pid: pid.cast_signed(), tid: tid.cast_signed(), ..id };
                let creator = fields.u32()?.cast_signed();
                let record = match kind {
                    PERF_RECORD_EXIT => PerfRecord::Exit,
                    _ => PerfRecord::Fork { parent, creator },
                };
                return Some((id, event, record));
            }
            PERF_RECORD_LOST => {
                fields.take(8)?;
                PerfRecord::Lost(fields.u64()?)
            }
            PERF_RECORD_THROTTLE => PerfRecord::Throttle,
            PERF_RECORD_UNTHROTTLE => PerfRecord::Unthrottle,
            PERF_RECORD_SWITCH | PERF_RECORD_SWITCH_CPU_WIDE if misc & PERF_RECORD_MISC_SWITCH_OUT == 0 => {
                let direct = kind == PERF_RECORD_SWITCH_CPU_WIDE && fields.u32()?.cast_signed() > 0;
                PerfRecord::SwitchIn { direct }
            }
            PERF_RECORD_SWITCH | PERF_RECORD_SWITCH_CPU_WIDE => {
                PerfRecord::SwitchOut { preempted: misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0 }
            }
            _ => return None,
        },
    ))
}

fn until_nul(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn mmap(mut fields: Fields<'_>) -> Option<Mmap<'_>> {
    fields.take(8)?;
    let (start, len, file_offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let device = (fields.u32()?, fields.u32()?);
    let inode = fields.u64()?;
    // Inode generation, protection, flags.
    fields.take(16)?;
    Some(Mmap { start, len, file_offset, device, inode, path: until_nul(fields.0) })
}

fn sample(mut fields: Fields<'_>) -> Option<(SampleId, u64, PerfRecord<'_>)> {
    let (id, event) = fields.id()?;
    let period = fields.u64()?;
    let at_switch = period < CLOCK_PERIOD_MIN;
    let chain = if at_switch { period } else { fields.u64()? };
    let chain = fields.take(usize::try_from(chain).ok()?.checked_mul(8)?)?;
    let abi = fields.u64()?;
    let registers = match abi {
        PERF_SAMPLE_REGS_ABI_NONE => None,
        _ => read_registers(fields.take(8 * COUNT)?, abi == PERF_SAMPLE_REGS_ABI_32),
    };
    let size = fields.u64()?;
    let mut stack = fields.take(usize::try_from(size).ok()?)?;
    if size > 0 {
        let copied = usize::try_from(fields.u64()?).ok()?;
        stack = stack.get(..copied)?;
    }
    let compat = abi == PERF_SAMPLE_REGS_ABI_32;
    let sample = Sample { at_switch, kernel: kernel_part(chain), registers, compat, stack };
    Some((id, event, PerfRecord::Sample(sample)))
}

const PERF_SAMPLE_REGS_ABI_NONE: u64 = 0;
const PERF_SAMPLE_REGS_ABI_32: u64 = 1;

/// The addresses between the kernel marker and the next marker.
fn kernel_part(chain: &[u8]) -> &[u8] {
    let word = |at: usize| {
        chain.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(u64::MAX, u64::from_ne_bytes)
    };
    let marks = (0..chain.len()).step_by(8).filter(|at| word(*at) >= CONTEXT_MAX);
    let mut marks = marks.skip_while(|at| word(*at) != PERF_CONTEXT_KERNEL).map(|at| at + 8);
    let Some(first) = marks.next() else { return &[] };
    let end = marks.next().map_or(chain.len(), |end| end - 8);
    chain.get(first..end).unwrap_or_default()
}

// ---- User registers in samples: the request mask, and parsing.
//
// Numbers: arch/x86/include/uapi/asm/perf_regs.h, arch/arm64/include/uapi/asm/perf_regs.h. Samples have them in
// ascending order.

#[cfg(target_arch = "x86_64")]
mod arch {
    use crate::addr::Avma;
    use crate::arch::{Registers, UNKNOWN_REGISTER, X86, X86_64};

    /// ax bx cx dx si di bp sp ip, then r8 to r15.
    pub(crate) const MASK: u64 = 0x1ff | 0xff << 16;

    pub(super) fn from_words(words: &[u64]) -> Option<Registers> {
        let [ax, bx, cx, dx, si, di, bp, sp, ip, high @ ..] = words else { return None };
        let mut gpr = [*ax, *dx, *cx, *bx, *si, *di, *bp, *sp, 0, 0, 0, 0, 0, 0, 0, 0];
        gpr.get_mut(8..)?.copy_from_slice(high.get(..8)?);
        Some(Registers::X86_64(X86_64 { gpr, rip: *ip, fs_base: 0 }))
    }

    /// Registers of 32-bit code are the lower halves of those of 64-bit code.
    pub(super) fn from_compat_words(words: &[u64]) -> Option<Registers> {
        let [ax, bx, cx, dx, si, di, bp, sp, ip, ..] = words else { return None };
        let narrow = |word: &u64| word & u64::from(u32::MAX);
        let gpr = [ax, cx, dx, bx, sp, bp, si, di].map(narrow);
        Some(Registers::X86(X86 { gpr, eip: narrow(ip) }))
    }

    pub(super) fn of_waiting(sp: Avma, pc: Avma, of_32_bits: bool) -> Registers {
        if of_32_bits {
            let mut gpr = [UNKNOWN_REGISTER; 8];
            gpr[X86::ESP] = sp.0;
            return Registers::X86(X86 { gpr, eip: pc.0 });
        }
        let mut gpr = [UNKNOWN_REGISTER; 16];
        gpr[X86_64::RSP] = sp.0;
        Registers::X86_64(X86_64 { gpr, rip: pc.0, fs_base: 0 })
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use crate::addr::Avma;
    use crate::arch::{Aarch64, Arm, Registers, UNKNOWN_REGISTER};

    /// x0 to x30, sp, pc.
    pub(crate) const MASK: u64 = (1 << 33) - 1;

    pub(super) fn from_words(words: &[u64]) -> Option<Registers> {
        let x = words.get(..31)?.try_into().ok()?;
        Some(Registers::Aarch64(Aarch64 { x, sp: *words.get(31)?, pc: *words.get(32)? }))
    }

    /// Registers of 32-bit Arm are the lower halves of the first fifteen (including `compat_sp` and `compat_lr` of
    /// arch/arm64/include/asm/ptrace.h); the program counter is separate. The status register cannot be requested.
    pub(super) fn from_compat_words(words: &[u64]) -> Option<Registers> {
        let mut r = [0; 16];
        r[..Arm::PC].copy_from_slice(words.get(..Arm::PC)?);
        r[Arm::PC] = *words.get(32)?;
        let r = r.map(|word| word & u64::from(u32::MAX));
        Some(Registers::Arm(Arm { r, cpsr: None, m_profile: false }))
    }

    pub(super) fn of_waiting(sp: Avma, pc: Avma, of_32_bits: bool) -> Registers {
        if of_32_bits {
            let mut r = [UNKNOWN_REGISTER; 16];
            (r[Arm::SP], r[Arm::PC]) = (sp.0, pc.0);
            return Registers::Arm(Arm { r, cpsr: None, m_profile: false });
        }
        Registers::Aarch64(Aarch64 { x: [UNKNOWN_REGISTER; 31], sp: sp.0, pc: pc.0 })
    }
}

/// Number of registers in a sample.
pub(crate) const COUNT: usize = MASK.count_ones() as usize;

/// Parses the registers of a sample from a thread in 32-bit code or not; `None` if there are too few, or the
/// format is unknown.
pub(crate) fn read_registers(bytes: &[u8], compat: bool) -> Option<Registers> {
    let mut words = [0; COUNT];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    if compat { arch::from_compat_words(&words) } else { arch::from_words(&words) }
}

/// Registers of a waiting thread with only stack pointer and program counter known, of a 32-bit program or not.
pub(crate) fn of_waiting(sp: Avma, pc: Avma, of_32_bits: bool) -> Registers {
    arch::of_waiting(sp, pc, of_32_bits)
}

#[cfg(test)]
mod record_tests {
    #![allow(clippy::unwrap_used)]
    use perf_event_open_sys::bindings::PERF_CONTEXT_USER;

    use super::*;
    use crate::rng::Rng;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend((body.len() as u16 + 8).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn a_sample(period: Option<u64>) -> Vec<u8> {
        let mut body = words(&[7 << 32 | 5, 1000, 77, 3]);
        body.extend(words(period.as_slice()));
        body.extend(words(&[5, PERF_CONTEXT_KERNEL, 0xffff_ffff_8000_1000]));
        body.extend(words(&[0xffff_ffff_8000_2000, PERF_CONTEXT_USER, 0x4000, 2]));
        body.extend(words(&(0..super::COUNT as u64).collect::<Vec<_>>()));
        body.extend(words(&[16, 11, 12, 8]));
        record(PERF_RECORD_SAMPLE, 0, &body)
    }

    #[test]
    fn a_sample_has_kernel_frames_registers_and_copied_bytes() {
        let bytes = a_sample(Some(1_003_009));
        let (id, event, read) = read(&bytes).unwrap();
        assert_eq!((id, event), (SampleId { pid: 5, tid: 7, time_ns: 1000, cpu: 3 }, 77));
        let PerfRecord::Sample(sample) = read else { panic!("{read:?}") };
        assert_eq!(sample.kernel().collect::<Vec<_>>(), [0xffff_ffff_8000_1000, 0xffff_ffff_8000_2000]);
        assert_eq!(sample.stack, words(&[11]));
        assert!(sample.registers.is_some() && !sample.compat && !sample.at_switch);
        let bytes = a_sample(None);
        let Some((_, _, PerfRecord::Sample(sample))) = super::read(&bytes) else { panic!("no sample") };
        assert!(sample.at_switch);
    }

    #[test]
    fn switches_say_in_or_out_and_whether_the_thread_is_ready() {
        let (out, preempt) = (PERF_RECORD_MISC_SWITCH_OUT as u16, PERF_RECORD_MISC_SWITCH_OUT_PREEMPT as u16);
        for (misc, expected) in [
            (0, PerfRecord::SwitchIn { direct: true }),
            (out, PerfRecord::SwitchOut { preempted: false }),
            (out | preempt, PerfRecord::SwitchOut { preempted: true }),
        ] {
            let id = words(&[7 << 32 | 5, 1000, 77, 3]);
            let of_thread = record(PERF_RECORD_SWITCH, misc, &id);
            // For a CPU, the previous or next thread comes first; 0 is the idle task.
            let of_cpu = |other: u64| {
                let other = words(&[other << 32 | other]);
                record(PERF_RECORD_SWITCH_CPU_WIDE, misc, &[other, id.clone()].concat())
            };
            for (bytes, from_thread) in [(of_thread, false), (of_cpu(9), true), (of_cpu(0), false)] {
                let (id, event, record) = read(&bytes).unwrap();
                assert_eq!((id, event), (SampleId { pid: 5, tid: 7, time_ns: 1000, cpu: 3 }, 77));
                match record {
                    PerfRecord::SwitchIn { direct } => assert!(misc == 0 && direct == from_thread),
                    record => assert_eq!(record, expected),
                }
            }
        }
    }

    #[test]
    fn names_set_by_exec_and_by_threads_are_distinguished() {
        let mut body = words(&[7 << 32 | 5]);
        body.extend(b"work\0\0\0\0");
        body.extend(words(&[7 << 32 | 5, 1000, 77, 0]));
        let exec = record(PERF_RECORD_COMM, PERF_RECORD_MISC_COMM_EXEC as u16, &body);
        assert_eq!(read(&exec).unwrap().2, PerfRecord::Comm { name: b"work", exec: true });
        let renamed = record(PERF_RECORD_COMM, 0, &body);
        assert_eq!(read(&renamed).unwrap().2, PerfRecord::Comm { name: b"work", exec: false });
    }

    #[test]
    fn a_name_belongs_to_the_thread_in_the_record_body() {
        // Thread 7 names thread 9 of its process.
        let mut body = words(&[9 << 32 | 5]);
        body.extend(b"reader\0\0");
        body.extend(words(&[7 << 32 | 5, 1000, 77, 3]));
        let bytes = record(PERF_RECORD_COMM, 0, &body);
        let (id, _, read) = read(&bytes).unwrap();
        assert_eq!(id, SampleId { pid: 5, tid: 9, time_ns: 1000, cpu: 3 });
        assert_eq!(read, PerfRecord::Comm { name: b"reader", exec: false });
    }

    #[test]
    fn damaged_records_are_rejected_without_a_panic() {
        let whole = a_sample(Some(1_003_009));
        for len in 0..whole.len() {
            assert!(read(&whole[..len]).is_none(), "{len} bytes");
        }
        let mut random = Rng::new(7);
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            if let Some((_, _, PerfRecord::Sample(sample))) = read(&bytes) {
                assert!(sample.kernel().count() <= bytes.len() / 8);
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod registers_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn registers_have_the_order_of_dwarf() {
        let bytes: Vec<u8> = (0..COUNT as u64).flat_map(|word| (100 + word).to_ne_bytes()).collect();
        let Registers::X86_64(registers) = read_registers(&bytes, false).unwrap() else { panic!() };
        assert_eq!(registers.gpr[..8], [100, 103, 102, 101, 104, 105, 106, 107]);
        assert_eq!((registers.gpr[8], registers.gpr[15], registers.rip), (109, 116, 108));
        assert_eq!(read_registers(&bytes, false).unwrap().sp(), Avma(107));
    }

    #[test]
    fn registers_of_32_bit_code_are_lower_halves() {
        let high = 0xffff_ffff_0000_0000;
        let bytes: Vec<u8> = (0..COUNT as u64).flat_map(|word| (high + 100 + word).to_ne_bytes()).collect();
        let Registers::X86(registers) = read_registers(&bytes, true).unwrap() else { panic!() };
        assert_eq!(registers.gpr, [100, 102, 103, 101, 107, 106, 104, 105]);
        assert_eq!(registers.eip, 108);
    }
}
