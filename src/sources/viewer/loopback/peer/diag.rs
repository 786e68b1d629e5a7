//! The owner of one socket by sock_diag(7): one question, whatever the number of sockets.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddrV4;
use std::os::fd::FromRawFd;

/// `SOCK_DIAG_BY_FAMILY` (include/uapi/linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// All states of a connection.
const ALL_STATES: u32 = u32::MAX;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Offsets of `idiag_uid` and `idiag_inode` in `struct inet_diag_msg`.
const UID: usize = HEADER_BYTES + 64;
const INODE: usize = HEADER_BYTES + 68;

/// The owner of the socket from one address to another; `None` if it was closed or never existed.
///
/// # Errors
/// The kernel has no such interface here.
pub(super) fn owner(from: SocketAddrV4, to: SocketAddrV4) -> io::Result<Option<u32>> {
    let (kind, protocol) = (libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG);
    // SAFETY: the call takes numbers.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just created this descriptor, and nobody else owns it.
    let mut socket = unsafe { File::from_raw_fd(socket) };
    socket.write_all(&request(from, to))?;
    let mut answer = [0; 1024];
    let length = socket.read(&mut answer)?;
    parse(answer.get(..length).unwrap_or_default())
}

/// A question for one socket.
fn request(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut request = Vec::with_capacity(REQUEST_BYTES);
    request.extend((REQUEST_BYTES as u32).to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and port.
    request.extend([0; 8]);
    // No extensions.
    request.extend([libc::AF_INET as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(ALL_STATES.to_ne_bytes());
    request.extend(from.port().to_be_bytes());
    request.extend(to.port().to_be_bytes());
    for address in [from, to] {
        request.extend(address.ip().octets());
        request.extend([0; 12]);
    }
    // Any interface; no cookie.
    request.extend([0; 4]);
    request.extend([0xff; 8]);
    request
}

fn parse(answer: &[u8]) -> io::Result<Option<u32>> {
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let number = |at: usize| -> io::Result<u32> {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_ne_bytes).ok_or_else(malformed)
    };
    // The low half of the word after the length.
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    if kind == Some(libc::NLMSG_ERROR as u16) {
        let code = number(HEADER_BYTES)?.cast_signed().wrapping_neg();
        return if code == libc::ENOENT { Ok(None) } else { Err(io::Error::from_raw_os_error(code)) };
    }
    if kind != Some(BY_FAMILY) {
        return Err(malformed());
    }
    let (uid, inode) = (number(UID)?, number(INODE)?);
    Ok(Some(uid).filter(|_| inode != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_or_refused() {
        let message = |kind: u16, body: &[u8]| {
            let mut bytes = ((HEADER_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            bytes.extend(body);
            bytes
        };
        let socket = |uid: u32, inode: u32| {
            let mut body = vec![0; 64];
            body.extend(uid.to_ne_bytes());
            body.extend(inode.to_ne_bytes());
            message(BY_FAMILY, &body)
        };
        assert_eq!(parse(&socket(1000, 7)).ok(), Some(Some(1000)));
        assert_eq!(parse(&socket(0, 0)).ok(), Some(None));
        let error = |code: i32| message(libc::NLMSG_ERROR as u16, &(-code).to_ne_bytes());
        assert_eq!(parse(&error(libc::ENOENT)).ok(), Some(None));
        assert!(parse(&error(libc::EPERM)).is_err());
        let whole = socket(1, 1);
        assert!((0..whole.len()).all(|length| parse(&whole[..length]).is_err()));
        assert!(parse(&message(3, &[0; 72])).is_err());
    }
}
