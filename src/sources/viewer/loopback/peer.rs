//! Owner of the other end of a local connection: sock_diag(7), or /proc/net/tcp (proc(5)).
#![allow(unsafe_code)]

mod diag;

use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::{fs, io};

use crate::sources::output::Caller;

const SOCKETS: &str = "/proc/net/tcp";

/// Checks that the system reports owners of sockets.
pub(super) fn check() -> io::Result<()> {
    fs::File::open(SOCKETS).map(drop)
}

/// Whether the other end belongs to this thread's user, the one who called sudo, or root: programs that
/// forward connections to a remote browser (WSL, kubectl) run as root, which may read everything anyway.
pub(super) fn is_own(stream: &TcpStream) -> bool {
    let (Ok(SocketAddr::V4(here)), Ok(SocketAddr::V4(there))) = (stream.local_addr(), stream.peer_addr())
    else {
        return false;
    };
    // The table has a row for each socket of this system, which other users can make long.
    let owner = match diag::owner(there, here) {
        Ok(owner) => owner,
        Err(_) => fs::read_to_string(SOCKETS).ok().and_then(|table| owner(&table, there, here)),
    };
    let Some(uid) = owner else { return false };
    // SAFETY: the call takes nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    uid == 0 || uid == own || Caller::of_this_process().is_some_and(|caller| caller.uid() == uid)
}

/// The owner of the socket from one address to another; `None` if the table has none. A socket that was closed has
/// no inode, and is nobody's: its uid of 0 is not root's.
fn owner(table: &str, from: SocketAddrV4, to: SocketAddrV4) -> Option<u32> {
    let (from, to) = (written(from), written(to));
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_it = words.next() == Some(&*from) && words.next() == Some(&*to);
        // State, queues, timer, retransmissions.
        let uid = words.nth(4).filter(|_| is_it)?.parse().ok()?;
        // Timeout.
        words.nth(1).filter(|inode| *inode != "0").map(|_| uid)
    })
}

/// An address in the table's format: its bytes as a number in native byte order, and the port.
fn written(address: SocketAddrV4) -> String {
    let number = u32::from_ne_bytes(address.ip().octets());
    format!("{number:08X}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn finds_the_owner_of_the_other_end() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     \x20  0: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 7 1 0\n\
                     \x20  2: 0100007F:9C41 0100007F:1F90 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0\n\
                     \x20  1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     5        0 8 1 0\n";
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let little = cfg!(target_endian = "little");
        assert_eq!(owner(table, at(40_000), at(8080)), Some(1000).filter(|_| little));
        assert_eq!(owner(table, at(8080), at(40_000)), Some(5).filter(|_| little));
        assert_eq!(owner(table, at(1), at(8080)), None);
        assert_eq!(owner(table, at(40_001), at(8080)), None, "it was closed");
        assert_eq!(owner("", at(1), at(8080)), None);
    }

    #[test]
    fn a_connection_of_this_process_is_its_own() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let _client = TcpStream::connect(address).expect("connected");
        let (stream, _) = listener.accept().expect("accepted");
        assert!(is_own(&stream));
        let (SocketAddr::V4(here), SocketAddr::V4(there)) =
            (stream.local_addr().expect("an address"), stream.peer_addr().expect("an address"))
        else {
            unreachable!("IPv4")
        };
        let table = fs::read_to_string(SOCKETS).expect("a table");
        if let Ok(known) = diag::owner(there, here) {
            assert_eq!(known, owner(&table, there, here));
        }
    }

    #[test]
    fn a_closed_connection_is_nobodys() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        drop(client);
        let (stream, _) = listener.accept().expect("accepted");
        assert!(!is_own(&stream));
    }
}
