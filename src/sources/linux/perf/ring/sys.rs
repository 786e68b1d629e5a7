//! The system calls for events and their rings; those for programs are in `bpf/bpf_sys.rs`. Input: plain values.
//! Output: descriptors that close themselves, bytes of a ring.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, pid_t};
use perf_event_open_sys::bindings::{self, perf_event_attr, perf_event_mmap_page};
use perf_event_open_sys::{ioctls, perf_event_open};

/// Opens an event of a thread on a CPU; -1 means every thread, or every CPU. Before Linux 6.0 it is opened without a
/// count of lost samples.
///
/// # Errors
/// Errors of perf_event_open(2).
pub(in crate::sources::linux::perf) fn open(
    attributes: &perf_event_attr,
    tid: pid_t,
    cpu: c_int,
) -> io::Result<OwnedFd> {
    let lost = u64::from(bindings::PERF_FORMAT_LOST);
    match open_as(*attributes, tid, cpu) {
        Err(error) if attributes.read_format & lost != 0 && error.raw_os_error() == Some(libc::EINVAL) => {
            open_as(perf_event_attr { read_format: attributes.read_format & !lost, ..*attributes }, tid, cpu)
        }
        result => result,
    }
}

fn open_as(mut attributes: perf_event_attr, tid: pid_t, cpu: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are a live value whose `size` is its own; the kernel writes to `size`
    // only. No group, and a flag that asks for no more than closing at exec.
    let fd =
        unsafe { perf_event_open(&raw mut attributes, tid, cpu, -1, bindings::PERF_FLAG_FD_CLOEXEC.into()) };
    // SAFETY: the call above returned this new descriptor; no other value owns it.
    unsafe { made(fd.into()) }
}

/// The descriptor that a system call gave, or the error that it set.
///
/// # Safety
/// `fd` is negative, with `errno` set, or a new descriptor without an owner.
pub(in crate::sources::linux::perf) unsafe fn made(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: what the caller promises.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn done(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets an event count from now on.
pub(in crate::sources::linux::perf) fn enable(event: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl that takes a number, on a live descriptor.
    done(unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) })
}

/// Stops an event.
pub(in crate::sources::linux::perf) fn disable(event: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl that takes a number, on a live descriptor.
    done(unsafe { ioctls::DISABLE(event.as_raw_fd(), 0) })
}

/// Lets an event tick at another distance from now on, nanoseconds.
pub(in crate::sources::linux::perf) fn set_period(event: &OwnedFd, period_ns: u64) -> io::Result<()> {
    // SAFETY: an ioctl on a live descriptor that reads one u64 at the address that it is given, which is
    // live (kernel/events/core.c, `_perf_ioctl`).
    done(unsafe { ioctls::PERIOD(event.as_raw_fd(), &raw const period_ns as u64) })
}

/// What an event has counted so far (of a clock, nanoseconds), and how many of its records did not fit into its
/// ring, where it was opened with `PERF_FORMAT_LOST` and the kernel knows that.
pub(in crate::sources::linux::perf) fn count(event: &OwnedFd) -> io::Result<(u64, Option<u64>)> {
    let mut counts = [0_u64; 2];
    // SAFETY: the buffer is live, and its length in bytes is given; any bytes are a u64.
    let len = unsafe { libc::read(event.as_raw_fd(), counts.as_mut_ptr().cast(), size_of_val(&counts)) };
    match len {
        8 => Ok((counts[0], None)),
        16 => Ok((counts[0], Some(counts[1]))),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The number of an event, which its records name.
pub(in crate::sources::linux::perf) fn number(event: &OwnedFd) -> io::Result<u64> {
    let mut number = 0;
    // SAFETY: an ioctl on a live descriptor that writes one u64 to the address that it is given, which is
    // live (kernel/events/core.c, `_perf_ioctl`).
    done(unsafe { ioctls::ID(event.as_raw_fd(), &raw mut number) })?;
    Ok(number)
}

/// Lets an event write into the ring of another one of the same CPU.
pub(in crate::sources::linux::perf) fn write_into(event: &OwnedFd, ring_of: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl on a live descriptor whose argument is the number of another one.
    done(unsafe { ioctls::SET_OUTPUT(event.as_raw_fd(), ring_of.as_raw_fd()) })
}

/// Attaches a program to an event, which selects its samples.
pub(in crate::sources::linux::perf) fn set_filter(event: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl on a live descriptor whose argument is the number of a program.
    done(unsafe { ioctls::SET_BPF(event.as_raw_fd(), program.as_raw_fd() as u32) })
}

/// Bytes of a page of this machine.
pub(in crate::sources::linux::perf) fn page_bytes() -> usize {
    // SAFETY: sysconf(3) takes a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page_bytes).unwrap_or(4096)
}

/// No record is larger: its header has 16 bits for that.
const RECORD_BYTES_MAX: u64 = 1 << 16;

/// What was in a ring when it was read.
#[derive(Clone, Copy, Debug)]
pub(in crate::sources::linux::perf) struct Fill {
    /// Of its bytes.
    pub(in crate::sources::linux::perf) per_mille: u32,
    /// There was so little room that records may be lost.
    pub(in crate::sources::linux::perf) may_have_lost: bool,
}

/// The ring that an event writes its records into (perf_event_open(2), "MMAP layout").
#[derive(Debug)]
pub(in crate::sources::linux::perf) struct Ring {
    /// The control page; the data begins a page later.
    page: NonNull<perf_event_mmap_page>,
    page_bytes: usize,
    data_bytes: usize,
}

impl Ring {
    /// Maps a ring of `data_bytes`, a power of two of at least a page.
    ///
    /// # Errors
    /// EPERM beyond `kernel.perf_event_mlock_kb` and RLIMIT_MEMLOCK.
    pub(in crate::sources::linux::perf) fn map(event: &OwnedFd, data_bytes: usize) -> io::Result<Ring> {
        let page_bytes = page_bytes();
        // SAFETY: a new mapping at an address that the kernel chooses; it belongs to this `Ring`.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page_bytes + data_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(at.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Ring { page, page_bytes, data_bytes })
    }

    /// Bytes of its data.
    pub(in crate::sources::linux::perf) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: the control page is mapped, readable and aligned as long as `self` lives, and
        // `data_head` is a u64 that the kernel changes: only atomic accesses are made.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_head) }
    }

    fn tail(&self) -> &AtomicU64 {
        // SAFETY: as for `head`; `data_tail` is written by this process only.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_tail) }
    }

    /// How full it is.
    pub(in crate::sources::linux::perf) fn fill(&self) -> Fill {
        let (head, tail) = (self.head().load(Ordering::Acquire), self.tail().load(Ordering::Relaxed));
        self.fill_of(head.wrapping_sub(tail))
    }

    fn fill_of(&self, used_bytes: u64) -> Fill {
        Fill {
            per_mille: (used_bytes.saturating_mul(1000) / self.data_bytes.max(1) as u64).min(1000) as u32,
            may_have_lost: used_bytes.saturating_add(RECORD_BYTES_MAX) > self.data_bytes as u64,
        }
    }

    /// Gives each record that is there to `take`, and makes room; how full it was, and whether so full that records
    /// may be lost. `scratch` is for those that go over the end of the ring. What contradicts itself ends the batch.
    pub(in crate::sources::linux::perf) fn drain(
        &mut self,
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(&[u8]),
    ) -> Fill {
        let head = self.head().load(Ordering::Acquire);
        let mut tail = self.tail().load(Ordering::Relaxed);
        let fill = self.fill_of(head.wrapping_sub(tail));
        // SAFETY: the data area is mapped as long as `self` lives. The kernel writes between head
        // and tail only, around the end; what lies from `tail` to `head` it leaves alone until
        // `data_tail` is raised, which happens below, after the last use of `data`.
        let data = unsafe {
            let first = self.page.as_ptr().cast::<u8>().add(self.page_bytes);
            std::slice::from_raw_parts(first, self.data_bytes)
        };
        while tail < head {
            let at = (tail % self.data_bytes as u64) as usize;
            // A record's header is 8 bytes and aligned, so it is in one piece: its size is at 6.
            let Some(size) = data.get(at + 6..at + 8) else { break };
            let size = usize::from(u16::from_ne_bytes([size[0], size[1]]));
            if size < 8 || size as u64 > head - tail {
                break;
            }
            match data.get(at..at + size) {
                Some(record) => take(record),
                None => {
                    scratch.clear();
                    scratch.extend_from_slice(&data[at..]);
                    scratch.extend_from_slice(&data[..size - (self.data_bytes - at)]);
                    take(scratch);
                }
            }
            tail += size as u64;
        }
        self.tail().store(head, Ordering::Release);
        fill
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `map` made; nothing borrowed from it is left.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.page_bytes + self.data_bytes) };
    }
}

/// A descriptor that becomes readable when a process ends (pidfd_open(2), Linux 5.3).
pub(in crate::sources::linux::perf) fn watch_end(pid: pid_t) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the call above returned this new descriptor; no other value owns it.
    unsafe { made(fd) }
}

/// Waits until one of the descriptors is readable; which are. One that is hung up without anything
/// to read, as the event of a thread that has ended is from then on, ends no wait: the caller would
/// come back at once for as long as the recording lasts.
pub(in crate::sources::linux::perf) fn wait_readable(
    fds: &[RawFd],
    at_most_ms: c_int,
    ready: &mut Vec<bool>,
) {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let mut found = poll(&mut polled, at_most_ms);
    let mut hung_up = false;
    for one in polled.iter_mut().filter(|one| one.revents == libc::POLLHUP) {
        // poll(2) passes over negative ones.
        one.fd = -1;
        (one.revents, hung_up) = (0, true);
    }
    if hung_up && polled.iter().all(|one| one.revents == 0) {
        found = poll(&mut polled, at_most_ms);
    }
    ready.clear();
    ready.extend(polled.iter().map(|one| found > 0 && one.revents != 0));
}

/// poll(2).
fn poll(polled: &mut [libc::pollfd], at_most_ms: c_int) -> c_int {
    // SAFETY: the array is live, and its length is given.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, at_most_ms) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_is_hung_up_ends_no_wait_and_what_is_readable_does() {
        let (hung_up, writer) = io::pipe().unwrap();
        drop(writer);
        let (readable, mut writer) = io::pipe().unwrap();
        let (fds, mut ready) = ([hung_up.as_raw_fd(), readable.as_raw_fd()], Vec::new());
        let begun = Instant::now();
        wait_readable(&fds, 30, &mut ready);
        assert!(begun.elapsed() >= Duration::from_millis(30), "{:?}", begun.elapsed());
        assert_eq!(ready, [false, false]);
        writer.write_all(b"x").unwrap();
        wait_readable(&fds, 60_000, &mut ready);
        assert_eq!(ready, [false, true]);
    }
}
