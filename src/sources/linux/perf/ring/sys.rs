//! System calls for events and their rings; those for BPF are in `bpf/bpf_sys.rs`. Input: plain values. Output:
//! owned descriptors, bytes of a ring.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, pid_t};
use perf_event_open_sys::bindings::{self, perf_event_attr, perf_event_mmap_page};
use perf_event_open_sys::{ioctls, perf_event_open};

/// Opens an event for a thread on a CPU; -1 means all threads, or all CPUs. Before Linux 6.0 the count of lost
/// samples is omitted.
///
/// # Errors
/// Errors of perf_event_open(2).
pub(crate) fn open(attributes: &perf_event_attr, tid: pid_t, cpu: c_int) -> io::Result<OwnedFd> {
    let lost = u64::from(bindings::PERF_FORMAT_LOST);
    match open_as(*attributes, tid, cpu) {
        Err(error) if attributes.read_format & lost != 0 && error.raw_os_error() == Some(libc::EINVAL) => {
            open_as(perf_event_attr { read_format: attributes.read_format & !lost, ..*attributes }, tid, cpu)
        }
        result => result,
    }
}

fn open_as(mut attributes: perf_event_attr, tid: pid_t, cpu: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the attributes are a live value with its own `size`; the kernel writes only to `size`. No group, and
    // only the close-on-exec flag.
    let fd =
        unsafe { perf_event_open(&raw mut attributes, tid, cpu, -1, bindings::PERF_FLAG_FD_CLOEXEC.into()) };
    // SAFETY: the call above returned this new descriptor; no other value owns it.
    unsafe { owned_fd(fd.into()) }
}

/// Takes ownership of a system call's descriptor, or returns the error in `errno`.
///
/// # Safety
/// `fd` must be negative, with `errno` set, or a new descriptor without an owner.
pub(crate) unsafe fn owned_fd(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn done(result: c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Enables an event.
pub(crate) fn enable(event: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl with a numeric argument, on a live descriptor.
    done(unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) })
}

/// Disables an event.
pub(crate) fn disable(event: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl with a numeric argument, on a live descriptor.
    done(unsafe { ioctls::DISABLE(event.as_raw_fd(), 0) })
}

/// Sets a new period for an event, nanoseconds.
pub(crate) fn set_period(event: &OwnedFd, period_ns: u64) -> io::Result<()> {
    // SAFETY: an ioctl on a live descriptor that reads one u64 at the given address, which is live
    // (kernel/events/core.c, `_perf_ioctl`).
    done(unsafe { ioctls::PERIOD(event.as_raw_fd(), &raw const period_ns as u64) })
}

/// The count of an event so far (nanoseconds for a clock), and the number of its records that did not fit into its
/// ring, if it was opened with `PERF_FORMAT_LOST` and the kernel supports that.
pub(crate) fn count(event: &OwnedFd) -> io::Result<(u64, Option<u64>)> {
    let mut counts = [0_u64; 2];
    // SAFETY: the buffer is live, and its length in bytes is given; any bytes are a valid u64.
    let len = unsafe { libc::read(event.as_raw_fd(), counts.as_mut_ptr().cast(), size_of_val(&counts)) };
    match len {
        8 => Ok((counts[0], None)),
        16 => Ok((counts[0], Some(counts[1]))),
        -1 => Err(io::Error::last_os_error()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The number of an event, as in its records.
pub(crate) fn number(event: &OwnedFd) -> io::Result<u64> {
    let mut number = 0;
    // SAFETY: an ioctl on a live descriptor that writes one u64 to the given address, which is live
    // (kernel/events/core.c, `_perf_ioctl`).
    done(unsafe { ioctls::ID(event.as_raw_fd(), &raw mut number) })?;
    Ok(number)
}

/// Redirects an event into the ring of another one on the same CPU.
pub(crate) fn write_into(event: &OwnedFd, ring_of: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl on a live descriptor; the argument is the number of another one.
    done(unsafe { ioctls::SET_OUTPUT(event.as_raw_fd(), ring_of.as_raw_fd()) })
}

/// Attaches a BPF program to an event, to filter its samples.
pub(crate) fn set_filter(event: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    // SAFETY: an ioctl on a live descriptor; the argument is the descriptor of a program.
    done(unsafe { ioctls::SET_BPF(event.as_raw_fd(), program.as_raw_fd() as u32) })
}

/// Page size of this machine.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: sysconf(3) takes only a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page_bytes).unwrap_or(4096)
}

/// Upper bound of the size of a record: its header has 16 bits for that.
const RECORD_BYTES_MAX: u64 = 1 << 16;

/// Fill level of a ring when it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// Used part of the ring.
    pub(crate) per_mille: u32,
    /// Whether there was so little room that records may be lost.
    pub(crate) may_have_lost: bool,
}

/// The ring of an event's records (perf_event_open(2), "MMAP layout").
#[derive(Debug)]
pub(crate) struct Ring {
    /// The control page; the data begins one page later.
    page: NonNull<perf_event_mmap_page>,
    page_bytes: usize,
    data_bytes: usize,
}

impl Ring {
    /// Maps a ring of `data_bytes`, a power of two of at least a page.
    ///
    /// # Errors
    /// EPERM beyond `kernel.perf_event_mlock_kb` and RLIMIT_MEMLOCK.
    pub(crate) fn map(event: &OwnedFd, data_bytes: usize) -> io::Result<Ring> {
        let page_bytes = page_bytes();
        // SAFETY: a new mapping at an address chosen by the kernel; this `Ring` owns it.
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

    /// Size of its data, bytes.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: the control page is mapped, readable and aligned as long as `self` lives, and `data_head` is a
        // u64 changed by the kernel: all accesses are atomic.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_head) }
    }

    fn tail(&self) -> &AtomicU64 {
        // SAFETY: like `head`; only this process writes `data_tail`.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_tail) }
    }

    /// Its fill level.
    pub(crate) fn fill(&self) -> Fill {
        let (head, tail) = (self.head().load(Ordering::Acquire), self.tail().load(Ordering::Relaxed));
        self.fill_of(head.wrapping_sub(tail))
    }

    fn fill_of(&self, used_bytes: u64) -> Fill {
        Fill {
            per_mille: (used_bytes.saturating_mul(1000) / self.data_bytes.max(1) as u64).min(1000) as u32,
            may_have_lost: used_bytes.saturating_add(RECORD_BYTES_MAX) > self.data_bytes as u64,
        }
    }

    /// Passes each available record to `take`, and frees its space; returns the fill level, and whether records
    /// may have been lost. `scratch` holds records that wrap around the end of the ring. Inconsistent data ends
    /// the batch.
    pub(crate) fn drain(&mut self, scratch: &mut Vec<u8>, mut take: impl FnMut(&[u8])) -> Fill {
        let head = self.head().load(Ordering::Acquire);
        let mut tail = self.tail().load(Ordering::Relaxed);
        let fill = self.fill_of(head.wrapping_sub(tail));
        // SAFETY: the data area is mapped as long as `self` lives. The kernel writes only between head and tail,
        // wrapping around the end; it does not touch the bytes from `tail` to `head` until `data_tail` is
        // advanced, which happens below, after the last use of `data`.
        let data = unsafe {
            let first = self.page.as_ptr().cast::<u8>().add(self.page_bytes);
            std::slice::from_raw_parts(first, self.data_bytes)
        };
        while tail < head {
            let at = (tail % self.data_bytes as u64) as usize;
            // A record header is 8 aligned bytes, so it does not wrap: the size is at offset 6.
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
        // SAFETY: exactly the mapping made by `map`; no borrow of it remains.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.page_bytes + self.data_bytes) };
    }
}

/// A descriptor that becomes readable when a process ends (pidfd_open(2), Linux 5.3).
pub(crate) fn watch_end(pid: pid_t) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes only two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the call above returned this new descriptor; no other value owns it.
    unsafe { owned_fd(fd) }
}

/// Waits until a descriptor is readable; returns which ones are. A descriptor with only a hang-up, like the event
/// of an ended thread from then on, does not end the wait: the caller would otherwise spin for the rest of the
/// recording.
pub(crate) fn wait_readable(fds: &[RawFd], at_most_ms: c_int, ready: &mut Vec<bool>) {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let mut found = poll(&mut polled, at_most_ms);
    let mut hung_up = false;
    for one in polled.iter_mut().filter(|one| one.revents == libc::POLLHUP) {
        // poll(2) ignores negative ones.
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
    fn readable_descriptors_end_a_wait_and_hung_up_ones_do_not() {
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
