//! Parses the records of a ring.
//!
//! Input: the bytes of a record. Output: its kind, fields and [`SampleId`], borrowed from the ring; `None` for
//! truncated records and other kinds. Layout: perf_event_open(2), for the attributes of `events/attributes.rs`
//! (`sample_type`, `sample_id_all`).

use libc::pid_t;
use perf_event_open_sys::bindings::{
    PERF_CONTEXT_KERNEL, PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST,
    PERF_RECORD_MISC_COMM_EXEC, PERF_RECORD_MISC_SWITCH_OUT, PERF_RECORD_MISC_SWITCH_OUT_PREEMPT,
    PERF_RECORD_MMAP2, PERF_RECORD_SAMPLE, PERF_RECORD_SWITCH, PERF_RECORD_SWITCH_CPU_WIDE,
    PERF_RECORD_THROTTLE, PERF_RECORD_UNTHROTTLE,
};

use super::registers;
use crate::arch::Registers;

/// `PERF_CONTEXT_MAX`: values above are context markers, not addresses (include/uapi/linux/perf_event.h).
const CONTEXT_MAX: u64 = (-4095i64) as u64;
/// Minimum timer period, nanoseconds. Samples at switches have the length of their chain in its place, which is
/// less: this distinguishes the two kinds in a shared ring.
pub(in crate::sources::linux::perf) const CLOCK_PERIOD_MIN: u64 = 10_000;
/// Bytes of `sample_id_all` at the end of every record that is not a sample: process, thread, time, event, CPU.
const SAMPLE_ID_BYTES: usize = 32;

/// Process, thread, time and CPU of a record (perf: `sample_id_all`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct SampleId {
    /// Process.
    pub(in crate::sources::linux::perf) pid: pid_t,
    /// Thread.
    pub(in crate::sources::linux::perf) tid: pid_t,
    /// Monotonic clock, nanoseconds.
    pub(in crate::sources::linux::perf) time_ns: u64,
    /// CPU.
    pub(in crate::sources::linux::perf) cpu: u32,
}

/// A record, borrowed from the ring.
// Nearly all are samples, so boxing these would be an allocation for each.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq)]
pub(in crate::sources::linux::perf) enum PerfRecord<'a> {
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
    pub(in crate::sources::linux::perf) fn is_by_clock(&self) -> bool {
        matches!(self, PerfRecord::Sample(Sample { at_switch: false, .. }))
    }
}

/// A sample.
#[derive(Debug, PartialEq)]
pub(in crate::sources::linux::perf) struct Sample<'a> {
    /// Taken where the thread left its CPU, not by the timer.
    pub(in crate::sources::linux::perf) at_switch: bool,
    /// Kernel addresses, innermost first; 8 bytes each.
    kernel: &'a [u8],
    /// User registers; `None` for a thread that has no user memory (any more).
    pub(in crate::sources::linux::perf) registers: Option<Registers>,
    /// It runs 32-bit code.
    pub(in crate::sources::linux::perf) compat: bool,
    /// Stack bytes from the stack pointer up.
    pub(in crate::sources::linux::perf) stack: &'a [u8],
}

impl Sample<'_> {
    /// A timer sample without content.
    #[cfg(test)]
    pub(in crate::sources::linux::perf) const EMPTY: Sample<'static> =
        Sample { at_switch: false, kernel: &[], registers: None, compat: false, stack: &[] };

    /// Kernel addresses, innermost first.
    pub(in crate::sources::linux::perf) fn kernel(&self) -> impl Iterator<Item = u64> {
        self.kernel.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
    }
}

/// A mapping of executable memory.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct Mmap<'a> {
    /// First address.
    pub(in crate::sources::linux::perf) start: u64,
    /// Size, bytes.
    pub(in crate::sources::linux::perf) len: u64,
    /// File offset of the first address.
    pub(in crate::sources::linux::perf) file_offset: u64,
    /// The file's device, major and minor number.
    pub(in crate::sources::linux::perf) device: (u32, u32),
    /// The file's inode.
    pub(in crate::sources::linux::perf) inode: u64,
    /// Its path, or the kernel's name in brackets, or `//anon`.
    pub(in crate::sources::linux::perf) path: &'a [u8],
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
pub(in crate::sources::linux::perf) fn read(record: &[u8]) -> Option<(SampleId, u64, PerfRecord<'_>)> {
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
        _ => registers::read(fields.take(8 * registers::COUNT)?, abi == PERF_SAMPLE_REGS_ABI_32),
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

#[cfg(test)]
mod tests {
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
        body.extend(words(&(0..registers::COUNT as u64).collect::<Vec<_>>()));
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
