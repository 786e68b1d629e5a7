//! Opens a file in a forked child, if its path may lead into a file system in user space.
//!
//! A thread waiting for such a file system cannot be ended, not even by SIGKILL, and this process could not
//! end before it (fs/fuse/dev.c, `request_wait_answer`). A forked child can be left behind. It sends back the
//! open file, or an in-memory copy if the file's pages may never arrive. A fork costs some 0.5 ms, so it is
//! used only for uncached paths to files not on a block device, and only if the target has such a file system
//! mounted.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;

use libc::{c_int, pid_t};

use crate::binary::OpenError;

use super::file::{About, COPIED_BYTES_MAX, LEASED, PIECE_BYTES, TargetFile};
use super::file_system;
use super::wait::Copying;

/// Tags of the child's answer, which also has a number and the file's status.
const FILE: u32 = 0;
const COPY: u32 = 1;
const ERRNO: u32 = 2;
const NOT_REGULAR: u32 = 3;
const FOREIGN_LINK: u32 = 4;
const TOO_LONG: u32 = 5;
const REASON: u32 = 6;

/// The child's answer, in this program's layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Answer {
    what: u32,
    value: u32,
    about: About,
}

const ANSWER_BYTES: usize = size_of::<Answer>();

/// Whether a process may have a FUSE file system mounted; true if unknown.
pub(super) fn is_needed_for(pid: pid_t) -> bool {
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE OPTIONS (proc_pid_mountinfo(5))
    let Ok(mounts) = std::fs::read(format!("/proc/{pid}/mountinfo")) else { return true };
    has_fuse(&mounts)
}

/// Whether one of these mounts is FUSE: of type `fuse`, `fuse.sshfs` or `fuseblk`. `fusectl` belongs to the
/// kernel.
fn has_fuse(mounts: &[u8]) -> bool {
    let types: [&[u8]; 3] = [b" - fuse ", b" - fuse.", b" - fuseblk "];
    types.iter().any(|kind| memchr::memmem::find(mounts, kind).is_some())
}

/// Opens a file by `open` in a child. May hang, but not beyond the end of this process.
pub(super) fn open(
    keep: Option<&File>,
    copying: &Copying,
    open: impl FnOnce(Option<File>) -> Result<TargetFile, OpenError>,
) -> Result<TargetFile, OpenError> {
    let (mut own, child_end) = UnixStream::pair()?;
    // SAFETY: the child makes only calls that are allowed after a fork of a multithreaded process, and uses
    // the allocator, which both C libraries keep usable there; it ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        in_child(&child_end, keep, open);
    }
    if child < 0 {
        return Err(io::Error::last_os_error().into());
    }
    drop(child_end);
    copying.begin();
    let answer = receive(&mut own);
    let mut status: c_int = 0;
    // SAFETY: the child is this thread's own, and the status is live.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    let (Answer { what, value, about }, file) = answer?;
    match (what, file) {
        (FILE, Some(file)) => Ok(TargetFile { file, about, may_hang: false, is_copy: false }),
        (COPY, Some(file)) => Ok(TargetFile { file, about, may_hang: false, is_copy: true }),
        (ERRNO, _) => Err(io::Error::from_raw_os_error(value.cast_signed()).into()),
        (NOT_REGULAR, _) => Err(OpenError::NotRegular),
        (FOREIGN_LINK, _) => Err(OpenError::UntrustedLink { owner: value }),
        (TOO_LONG, _) => Err(OpenError::TooLong { bytes_max: COPIED_BYTES_MAX }),
        (REASON, _) => Err(reasons().nth(value as usize).unwrap_or(OpenError::Source("it cannot be opened"))),
        _ => Err(OpenError::Source("it cannot be opened")),
    }
}

/// All reasons without a number, in a fixed order.
fn reasons() -> impl Iterator<Item = OpenError> {
    let of_kernel = file_system::OF_KERNEL.iter().map(|(_, why)| OpenError::Source(why));
    [LEASED, super::linux::OPEN_DIRECTORY].into_iter().chain(of_kernel)
}

fn in_child(
    answer: &UnixStream,
    keep: Option<&File>,
    open: impl FnOnce(Option<File>) -> Result<TargetFile, OpenError>,
) -> ! {
    let failed = |what, value| Answer { what, value, about: About::default() };
    // SAFETY: prctl(2) takes numbers here.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // A reader of this program's output waits until the last copy of the pipe's write end is closed.
    let (answer, keep) = keep_only(answer.as_raw_fd(), keep.map(AsRawFd::as_raw_fd));
    let opened = open(keep).and_then(|file| match file.may_hang {
        true => copy(&file).map(|(copy, about)| (Answer { about, ..failed(COPY, 0) }, copy)),
        false => Ok((Answer { about: file.about, ..failed(FILE, 0) }, file.file)),
    });
    let (message, file) = match opened {
        Ok((message, file)) => (message, Some(file)),
        Err(OpenError::System(error)) => {
            (failed(ERRNO, error.raw_os_error().unwrap_or(libc::EIO).cast_unsigned()), None)
        }
        Err(OpenError::NotRegular) => (failed(NOT_REGULAR, 0), None),
        Err(OpenError::UntrustedLink { owner }) => (failed(FOREIGN_LINK, owner), None),
        Err(OpenError::TooLong { .. }) => (failed(TOO_LONG, 0), None),
        Err(why) => {
            let is_it = |known: OpenError| known.to_string() == why.to_string();
            (failed(REASON, reasons().position(is_it).unwrap_or(usize::MAX) as u32), None)
        }
    };
    send(answer, message, file.map(IntoRawFd::into_raw_fd));
    // SAFETY: `_exit` runs no code of this program, which has no other threads here.
    unsafe { libc::_exit(0) }
}

/// Closes all files except these two; returns their new numbers. Only for a process that ends by `_exit`:
/// nothing that was owned is dropped.
fn keep_only(answer: RawFd, keep: Option<RawFd>) -> (RawFd, Option<File>) {
    // SAFETY: fcntl(2) takes numbers here.
    let copy = |fd| unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    let (answer, kept) = (copy(answer), keep.map(copy));
    let mut stay = [answer, kept.unwrap_or(answer)];
    stay.sort_unstable();
    let mut first = 0;
    for stay in stay {
        close_between(first, stay);
        first = stay + 1;
    }
    close_between(first, c_int::MAX);
    // SAFETY: the descriptor was created here, and nobody else owns it.
    (answer, kept.filter(|kept| *kept >= 0).map(|kept| unsafe { File::from_raw_fd(kept) }))
}

/// Closes the descriptors from `first` to before `end`.
fn close_between(first: RawFd, end: RawFd) {
    if first >= end {
        return;
    }
    let (from, to) = (first.cast_unsigned(), (end - 1).cast_unsigned());
    // SAFETY: close_range(2) takes numbers; this process does not use these descriptors any more.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } == 0;
    // Linux before 5.9 lacks close_range.
    for fd in if closed { 0..0 } else { first..end.min(65_536) } {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

/// A file's content in memory.
fn copy(file: &TargetFile) -> Result<(File, About), OpenError> {
    if file.about.length > COPIED_BYTES_MAX {
        return Err(OpenError::TooLong { bytes_max: COPIED_BYTES_MAX });
    }
    // SAFETY: the name ends with NUL; memfd_create(2) creates a descriptor that nobody else owns.
    let mut copy = unsafe {
        let fd = libc::memfd_create(c"stackprof".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }
        File::from_raw_fd(fd)
    };
    let mut piece = vec![0; PIECE_BYTES];
    let mut all = 0;
    loop {
        let bytes = (&file.file).read(&mut piece)?;
        if bytes == 0 {
            copy.rewind()?;
            return Ok((copy, About::from(&file.file.metadata()?)));
        }
        all += bytes as u64;
        if all > COPIED_BYTES_MAX {
            return Err(OpenError::TooLong { bytes_max: COPIED_BYTES_MAX });
        }
        copy.write_all(&piece[..bytes])?;
    }
}

/// Room for one descriptor beside a message, aligned as its header.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn with_message<R>(bytes: &mut [u8], control: &mut Control, call: impl FnOnce(*mut libc::msghdr) -> R) -> R {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all bytes zero are a `msghdr`; its pointers are to objects that outlive the call.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = control.0.len() as _;
    call(&raw mut message)
}

fn send(to: RawFd, answer: Answer, file: Option<RawFd>) {
    let mut bytes = [0; ANSWER_BYTES];
    // SAFETY: both have the same length; padding is read as the bytes that are there.
    unsafe { std::ptr::copy_nonoverlapping((&raw const answer).cast(), bytes.as_mut_ptr(), ANSWER_BYTES) };
    let mut control = Control([0; 64]);
    // SAFETY: the message is complete, and its control part has room for a header and a descriptor (cmsg(3)).
    // The receiver notices if it was not sent.
    with_message(&mut bytes, &mut control, |message| unsafe {
        (*message).msg_controllen = 0;
        if let Some(file) = file {
            (*message).msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(file);
        }
        libc::sendmsg(to, message, libc::MSG_NOSIGNAL);
    });
}

fn receive(from: &mut UnixStream) -> Result<(Answer, Option<File>), OpenError> {
    let mut bytes = [0; ANSWER_BYTES];
    let mut control = Control([0; 64]);
    let from = from.as_raw_fd();
    // SAFETY: the message has room for what the child sends; nobody else owns a received descriptor.
    let (received, file) = with_message(&mut bytes, &mut control, |message| unsafe {
        let received = loop {
            let received = libc::recvmsg(from, message, libc::MSG_CMSG_CLOEXEC);
            if received >= 0 || *libc::__errno_location() != libc::EINTR {
                break received;
            }
        };
        let header = if received > 0 { libc::CMSG_FIRSTHDR(message) } else { std::ptr::null_mut() };
        let has_file = !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS;
        let file =
            has_file.then(|| File::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()));
        (received, file)
    });
    if usize::try_from(received) != Ok(ANSWER_BYTES) {
        return Err(OpenError::Source("the process that opens it was ended"));
    }
    // SAFETY: an answer is plain numbers, with all values valid.
    Ok((unsafe { bytes.as_ptr().cast::<Answer>().read_unaligned() }, file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::linux::Links;
    use super::*;
    use crate::sources::target_file::linux::own_root;

    fn opened(path: &'static str, may_hang: bool) -> Result<Vec<u8>, String> {
        let copying = Copying::default();
        let file = open(None, &copying, |_| {
            let file = own_root()?.open_here(path, Links::All)?;
            Ok(TargetFile { may_hang, ..file })
        });
        let file = file.map_err(|why| why.to_string())?;
        Ok(file.bytes(&copying).map_err(|why| why.to_string())?.bytes().to_vec())
    }

    #[test]
    fn a_child_opens_the_same_file_as_this_process() {
        let direct = std::fs::read("/etc/passwd").unwrap();
        assert_eq!(opened("/etc/passwd", false), Ok(direct.clone()));
        assert_eq!(opened("/etc/passwd", true), Ok(direct), "a copy");
        for path in ["/dev/null", "/proc/version", "/none", "/etc/passwd/x"] {
            let here = own_root().unwrap().open_here(path, Links::All).map(drop);
            assert_eq!(opened(path, false).map(drop), here.map_err(|why| why.to_string()), "{path}");
        }
    }

    #[test]
    fn a_child_holds_no_descriptors_of_this_process() {
        let (mut reads, writes) = io::pipe().unwrap();
        let copying = Copying::default();
        let count = open(None, &copying, |_| {
            let held = std::fs::read_dir("/proc/self/fd")?.count();
            // Without those of the message and of the directory being listed.
            Err(io::Error::from_raw_os_error(held as i32).into())
        });
        let Err(OpenError::System(count)) = count else { panic!("{count:?}") };
        assert_eq!(count.raw_os_error(), Some(2));
        drop(writes);
        let mut rest = Vec::new();
        assert_eq!(reads.read_to_end(&mut rest).unwrap(), 0);
    }

    #[test]
    fn fuse_mounts_are_recognized_by_type() {
        let mount = |kind: &str| format!("36 35 0:45 / /mnt rw,relatime shared:1 - {kind} source rw\n");
        for kind in ["fuse", "fuse.sshfs", "fuseblk"] {
            assert!(has_fuse(mount(kind).as_bytes()), "{kind}");
        }
        for kind in ["fusectl", "ext4", "proc"] {
            assert!(!has_fuse(mount(kind).as_bytes()), "{kind}");
        }
    }

    #[test]
    fn a_killed_child_is_an_error() {
        let copying = Copying::default();
        // SAFETY: the child ends itself.
        let why = open(None, &copying, |_| unsafe { libc::_exit(1) });
        assert_eq!(why.map(drop).unwrap_err().to_string(), "the process that opens it was ended");
    }
}
