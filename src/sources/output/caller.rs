//! The user who called sudo, and file access with that user's rights.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;

use crate::binary::files::FileUser;

/// Most groups of a user.
const GROUPS_MAX: usize = 65_536;

/// A user on whose behalf this process runs as root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl From<FileUser> for Caller {
    fn from(user: FileUser) -> Caller {
        Caller::new(user.uid, user.gid, user.groups)
    }
}

impl Caller {
    /// The user who called sudo, or who owns the process that started a setuid program; `None` unless this
    /// process has root's rights and the caller is another user.
    #[must_use]
    pub fn of_this_process() -> Option<Caller> {
        // SAFETY: these calls take nothing and cannot fail.
        let (uid, gid, effective) = unsafe { (libc::getuid(), libc::getgid(), libc::geteuid()) };
        let (uid, gid) = identity((uid, gid), effective, |name| std::env::var(name).ok())?;
        Some(Caller { uid, gid, groups: groups(uid, gid) })
    }

    /// A user known only by numbers.
    #[must_use]
    pub fn new(uid: u32, gid: u32, groups: Vec<u32>) -> Caller {
        Caller { uid, gid, groups }
    }

    /// The user who called sudo, or the one as whom the calling thread opens files.
    #[must_use]
    pub fn or_own() -> Caller {
        Caller::of_this_process().unwrap_or_else(|| {
            // SAFETY: the call takes nothing and cannot fail.
            let gid = unsafe { libc::getegid() };
            Caller::new(file_uid(), gid, Vec::new())
        })
    }

    /// The user's number.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The user's first group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// All groups of the user.
    #[must_use]
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }

    /// Runs `body` with this user's rights to files, in the calling thread alone. Needs CAP_SETUID and
    /// CAP_SETGID, unless the thread already has those rights.
    ///
    /// # Errors
    /// The system does not let this thread act as that user; `body` did not run.
    pub fn act<R>(&self, body: impl FnOnce() -> R) -> io::Result<R> {
        let guard = system::assume(self)?;
        let result = body();
        drop(guard);
        Ok(result)
    }

    /// Gives the calling thread this user's rights to files, for good.
    ///
    /// # Errors
    /// The system does not let this thread act as that user.
    pub fn take(&self) -> io::Result<()> {
        system::assume(self).map(std::mem::forget)
    }
}

/// User and group of the caller. SUDO_UID and SUDO_GID count only if the real user is root, too.
fn identity(
    real: (u32, u32),
    effective: u32,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(u32, u32)> {
    if effective != 0 {
        return None;
    }
    if real.0 != 0 {
        return Some(real);
    }
    let number = |name: &str| {
        let text = variable(name)?;
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| digits && *number != u32::MAX)
    };
    Some((number("SUDO_UID")?, number("SUDO_GID")?)).filter(|(uid, _)| *uid != 0)
}

/// All groups of a user, as for a login; only the primary group if the user has no name.
fn groups(uid: u32, gid: u32) -> Vec<u32> {
    named_groups(uid, gid).unwrap_or_else(|| vec![gid])
}

fn named_groups(uid: u32, gid: u32) -> Option<Vec<u32>> {
    let mut text = vec![0 as libc::c_char; 1 << 16];
    // SAFETY: `passwd` has only pointers and integers; all zeroes is a value of it.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: the pointers are to live objects; `text` has the length passed.
    let result =
        unsafe { libc::getpwuid_r(uid, &raw mut entry, text.as_mut_ptr(), text.len(), &raw mut found) };
    if result != 0 || found.is_null() || entry.pw_name.is_null() {
        return None;
    }
    // SAFETY: the name ends with NUL and is in `text`, which is live.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    let mut count: libc::c_int = 64;
    loop {
        let room = usize::try_from(count).ok().filter(|room| *room <= GROUPS_MAX)?;
        let mut groups = vec![0u32; room];
        // SAFETY: the name ends with NUL; `groups` has room for `count` numbers of 32 bits.
        let result = unsafe {
            libc::getgrouplist(name.as_ptr(), gid as _, groups.as_mut_ptr().cast(), &raw mut count)
        };
        if result != -1 {
            groups.truncate(usize::try_from(count).unwrap_or(0));
            return Some(groups);
        }
        // macOS does not report the required number.
        let room = libc::c_int::try_from(room).ok()?;
        count = count.max(room.saturating_mul(2));
    }
}

/// The user that owns file access in this thread.
pub(crate) fn file_uid() -> u32 {
    system::file_uid()
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    //! setfsuid(2): affects only the calling thread, and not which signals reach the process.

    use std::io;

    use crate::sources::output::caller::Caller;

    /// An invalid user: setfsuid(2) then returns the current one and changes nothing.
    const NONE: u32 = u32::MAX;

    /// Identity of the thread before, restored on drop.
    pub(super) struct Guard {
        uid: u32,
        gid: u32,
        groups: Option<Vec<u32>>,
        dumpable: libc::c_int,
    }

    pub(super) fn file_uid() -> u32 {
        set_uid(NONE)
    }

    fn set_uid(uid: u32) -> u32 {
        // SAFETY: the call takes and returns a number.
        unsafe { libc::setfsuid(uid) }.cast_unsigned()
    }

    fn set_gid(gid: u32) -> u32 {
        // SAFETY: the call takes and returns a number.
        unsafe { libc::setfsgid(gid) }.cast_unsigned()
    }

    fn groups() -> io::Result<Vec<u32>> {
        // SAFETY: with a count of 0 nothing is written.
        let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        let mut groups = vec![0u32; usize::try_from(count).map_err(|_| io::Error::last_os_error())?];
        // SAFETY: `groups` has room for `count` numbers.
        let count = unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
        groups.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
        Ok(groups)
    }

    /// Uses the system call: the C library's function changes all threads.
    fn set_groups(groups: &[u32]) -> io::Result<()> {
        // SAFETY: the pointer and the length are those of a live slice.
        let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn assume(caller: &Caller) -> io::Result<Option<Guard>> {
        let (uid, gid) = (set_uid(NONE), set_gid(NONE));
        if (uid, gid) == (caller.uid, caller.gid) {
            return Ok(None);
        }
        // SAFETY: the call takes and returns numbers.
        let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE) };
        let mut guard = Guard { uid, gid, groups: None, dumpable };
        let before = groups()?;
        set_groups(&caller.groups)?;
        guard.groups = Some(before);
        // The group first: it cannot be changed without root's rights.
        set_gid(caller.gid);
        set_uid(caller.uid);
        if (set_uid(NONE), set_gid(NONE)) != (caller.uid, caller.gid) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(Some(guard))
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            set_uid(self.uid);
            set_gid(self.gid);
            if let Some(groups) = &self.groups {
                let _ = set_groups(groups);
            }
            // Each change of the user disables core dumps of the whole process.
            if self.dumpable == 1 {
                // SAFETY: the call takes numbers.
                unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
            }
        }
    }
}

#[cfg(target_vendor = "apple")]
mod system {
    //! pthread_setugid_np: affects only the calling thread; the groups follow from the user's number.

    use std::io;

    use crate::sources::output::caller::Caller;

    // SAFETY: the declaration of unistd.h.
    unsafe extern "C" {
        fn pthread_setugid_np(uid: libc::uid_t, gid: libc::gid_t) -> libc::c_int;
    }

    /// KAUTH_UID_NONE of sys/kauth.h: the process's own user.
    const NONE: u32 = u32::MAX - 100;

    /// Restores the process's user on drop.
    pub(super) struct Guard;

    pub(super) fn file_uid() -> u32 {
        // SAFETY: the call takes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }

    pub(super) fn assume(caller: &Caller) -> io::Result<Option<Guard>> {
        if file_uid() == caller.uid {
            return Ok(None);
        }
        // SAFETY: the call takes numbers.
        let result = unsafe { pthread_setugid_np(caller.uid, caller.gid) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(Some(Guard)) }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            // SAFETY: the call takes numbers.
            unsafe { pthread_setugid_np(NONE, NONE) };
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod system {
    //! Systems without a user per thread.

    use std::io;

    use crate::sources::output::caller::Caller;

    pub(super) fn file_uid() -> u32 {
        // SAFETY: the call takes nothing and cannot fail.
        unsafe { libc::geteuid() }
    }

    pub(super) fn assume(_: &Caller) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_acts_for_another_user() {
        let environment = |uid: &'static str, gid: &'static str| {
            move |name: &str| match name {
                "SUDO_UID" => Some(uid.to_string()),
                "SUDO_GID" => Some(gid.to_string()),
                _ => None,
            }
        };
        let root = (0, 0);
        assert_eq!(identity(root, 0, environment("1000", "100")), Some((1000, 100)));
        // Anybody can set variables; without root's rights they are ignored.
        assert_eq!(identity((1000, 100), 1000, environment("1", "1")), None);
        // A setuid program: its real user, whatever the variables contain.
        assert_eq!(identity((1000, 100), 0, environment("1", "1")), Some((1000, 100)));
        for (uid, gid) in
            [("0", "0"), ("x", "100"), ("+5", "5"), ("4294967295", "5"), ("5", "4294967295"), ("5", "")]
        {
            assert_eq!(identity(root, 0, environment(uid, gid)), None, "{uid} {gid}");
        }
        assert_eq!(identity(root, 0, |_| None), None);
    }

    #[test]
    fn groups_are_those_of_a_login() {
        assert!(groups(0, 0).contains(&0));
        assert_eq!(groups(4_000_000_000, 77), [77]);
    }
}
