//! System calls that change the rights of the calling thread only (capabilities(7), "Effect on threads";
//! setresuid(2), "C library/kernel differences"): glibc's `setresuid` would change every thread, and abort if
//! one of them may not.
#![allow(unsafe_code)]

use std::io;

use super::Capabilities;

/// `struct __user_cap_header_struct` (include/uapi/linux/capability.h).
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`: 32 capabilities of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two [`Data`], with capabilities 0 to 63.
const VERSION: u32 = 0x2008_0522;

fn done(returned: libc::c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The permitted capabilities of the calling thread.
pub(super) fn permitted() -> io::Result<Capabilities> {
    let mut header = Header { version: VERSION, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: both are live and of the types and lengths that capget(2) expects for this version.
    done(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    Ok(Capabilities(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32))
}

/// Sets the capabilities of the calling thread; none are inheritable.
pub(super) fn set(effective: Capabilities, permitted: Capabilities) -> io::Result<()> {
    let mut header = Header { version: VERSION, pid: 0 };
    let half = |shift: u32| Data {
        effective: (effective.0 >> shift) as u32,
        permitted: (permitted.0 >> shift) as u32,
        inheritable: 0,
    };
    let data = [half(0), half(32)];
    // SAFETY: both are live and of the types and lengths that capset(2) expects for this version.
    done(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })
}

/// Gives the calling thread the ids of a user, all of them and permanently. Its permitted capabilities stay.
pub(super) fn set_ids(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    set_option(libc::PR_SET_KEEPCAPS, 1)?;
    // SAFETY: setresgid(2) and setresuid(2) take numbers; setgroups(2) reads `groups.len()` numbers from live
    // memory.
    unsafe {
        done(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        done(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        done(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    set_option(libc::PR_SET_KEEPCAPS, 0)
}

fn set_option(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    let none: libc::c_ulong = 0;
    // SAFETY: the options used here take a number, and three more that are 0 (prctl(2)).
    done(unsafe { libc::prctl(option, value, none, none, none) }.into())
}

/// Forbids that an `exec` of the calling thread or its descendants gains privileges.
pub(super) fn forbid_new_privileges() -> io::Result<()> {
    set_option(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Whether the calling thread is root's.
pub(super) fn is_root() -> bool {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether the calling thread is the first of its process.
pub(super) fn is_first_thread() -> bool {
    // SAFETY: getpid(2) and gettid(2) take nothing and cannot fail.
    unsafe { libc::getpid() == libc::gettid() }
}
