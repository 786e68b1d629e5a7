//! The user that a launched command runs as, with the groups and environment of a login. Input: a user name
//! or id. Output: ids, groups, variables.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::sys;
use crate::error::{Error, ErrorKind, Result};

/// Variables that a command inherits: those of the terminal and of the language. All others belong to the
/// caller of sudo.
const KEPT: [&str; 6] = ["TERM", "COLORTERM", "NO_COLOR", "LANG", "LANGUAGE", "TZ"];
/// Prefix of further inherited variables.
const KEPT_BEGIN: &[u8] = b"LC_";

/// Configuration of `PATH` for logins.
const LOGIN_DEFS: &str = "/etc/login.defs";
/// Default `PATH` (login(1)).
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const PATH_OF_ROOT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// First and largest buffer sizes, in bytes and in groups.
const TEXT_BYTES: usize = 4 << 10;
const TEXT_BYTES_MAX: usize = 1 << 20;
const GROUPS_MAX: usize = 65_536;

/// An entry of passwd(5), with its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: OsString,
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
    home: OsString,
    shell: OsString,
}

/// The account of a user, by name or number, that a command is to run as.
///
/// # Errors
/// [`ErrorKind::Attach`]: this process is not root, or the user does not exist.
pub fn account(name: &OsStr) -> Result<Account> {
    let failed = |why: &str| Error::new(ErrorKind::Attach, format!("--as `{}`: {why}", name.display()));
    if sys::effective_uid() != 0 {
        return Err(failed("only root may run a command as another user; run stackprof by sudo"));
    }
    let number = || name.to_str()?.parse::<libc::uid_t>().ok();
    let found = by_name(name).or_else(|| by_number(number()?));
    found.ok_or_else(|| failed("there is no such user; `getent passwd` lists them"))
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    sys::effective_uid() == 0
}

fn by_name(name: &OsStr) -> Option<Account> {
    let name = CString::new(name.as_bytes()).ok()?;
    look_up(|entry, text, len, found| {
        // SAFETY: a C string, and live buffers of the given sizes.
        unsafe { libc::getpwnam_r(name.as_ptr(), entry, text, len, found) }
    })
}

fn by_number(uid: libc::uid_t) -> Option<Account> {
    look_up(|entry, text, len, found| {
        // SAFETY: live buffers of the given sizes.
        unsafe { libc::getpwuid_r(uid, entry, text, len, found) }
    })
}

/// Calls getpwnam_r(3) or getpwuid_r(3) with as much memory as the entry takes.
fn look_up(
    call: impl Fn(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
) -> Option<Account> {
    let mut text: Vec<libc::c_char> = vec![0; TEXT_BYTES];
    loop {
        // SAFETY: passwd is plain data for which zeros are valid.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        match call(&raw mut entry, text.as_mut_ptr(), text.len(), &raw mut found) {
            libc::ERANGE if text.len() < TEXT_BYTES_MAX => text.resize(text.len() * 4, 0),
            0 if !found.is_null() => {
                let string = |text: *const libc::c_char| {
                    // SAFETY: null, or one of the entry's strings, which point into the live `text`.
                    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
                    OsString::from_vec(text.map(|text| text.to_bytes().to_vec()).unwrap_or_default())
                };
                let or = |text: OsString, default: &str| {
                    if text.is_empty() { OsString::from(default) } else { text }
                };
                return Some(Account {
                    name: string(entry.pw_name),
                    uid: entry.pw_uid,
                    gid: entry.pw_gid,
                    groups: groups(entry.pw_name, entry.pw_gid),
                    home: or(string(entry.pw_dir), "/"),
                    shell: or(string(entry.pw_shell), "/bin/sh"),
                });
            }
            _ => return None,
        }
    }
}

/// All groups of a user, including the primary one.
fn groups(name: *const libc::c_char, gid: libc::gid_t) -> Vec<libc::gid_t> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `name` is the live C string of an entry, `groups` has room for `count` numbers.
        let result = unsafe { libc::getgrouplist(name, gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        if result != -1 {
            groups.truncate(count);
            return groups;
        }
        if groups.len() >= GROUPS_MAX {
            return vec![gid];
        }
        groups.resize(count.max(groups.len() * 2).min(GROUPS_MAX), 0);
    }
}

impl Account {
    /// The user's name.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// The environment of a login, with the inherited variables.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        let is_kept =
            |name: &OsStr| KEPT.iter().any(|kept| name == *kept) || name.as_bytes().starts_with(KEPT_BEGIN);
        let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| is_kept(name)).collect();
        let definitions = std::fs::read(LOGIN_DEFS).unwrap_or_default();
        for (name, value) in [
            ("HOME", &self.home),
            ("USER", &self.name),
            ("LOGNAME", &self.name),
            ("SHELL", &self.shell),
            ("PATH", &path(&String::from_utf8_lossy(&definitions), self.uid == 0).into()),
        ] {
            variables.push((name.into(), value.clone()));
        }
        variables
    }

    /// Makes the calling process one of this user, irrevocably. For a new process between fork and `exec`:
    /// only makes system calls, does not allocate.
    ///
    /// # Errors
    /// Errors of the kernel; the process must then not continue.
    pub(super) fn become_user(&self) -> io::Result<()> {
        let Account { uid, gid, groups, .. } = self;
        let result = |code: libc::c_long| if code == -1 { Err(io::Error::last_os_error()) } else { Ok(()) };
        // The kernel's calls: the C library's affect all threads of a process, of which there is one here,
        // and may take locks. SAFETY: `groups` is live and its length is given; all others are numbers.
        unsafe {
            result(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            result(libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid))?;
            if *uid != 0 {
                // Ambient capabilities survive `exec` (Linux 4.3); earlier kernels have none.
                libc::prctl(
                    libc::PR_CAP_AMBIENT,
                    libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong,
                    0 as libc::c_ulong,
                    0 as libc::c_ulong,
                    0 as libc::c_ulong,
                );
            }
            result(libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid))
        }
    }
}

/// `PATH` of a login in these definitions (login.defs(5)).
fn path(definitions: &str, of_root: bool) -> String {
    let (key, default) = if of_root { ("ENV_SUPATH", PATH_OF_ROOT) } else { ("ENV_PATH", PATH) };
    let value = definitions.lines().find_map(|line| {
        let (name, value) = line.trim_start().split_once(char::is_whitespace)?;
        (name == key).then(|| value.trim().trim_matches('"'))
    });
    let value = value.map(|value| value.strip_prefix("PATH=").unwrap_or(value));
    value.filter(|value| !value.is_empty()).unwrap_or(default).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_comes_from_login_defs() {
        let definitions = "# ENV_PATH x\nENV_SUPATH\tPATH=/sbin:/bin\n  ENV_PATH  PATH=/usr/bin:/games \n";
        assert_eq!(path(definitions, false), "/usr/bin:/games");
        assert_eq!(path(definitions, true), "/sbin:/bin");
        assert_eq!(path("ENV_PATH /a:/b", false), "/a:/b");
        assert_eq!(path("ENV_PATH \nENV_PATHS x", false), PATH);
        assert_eq!(path("", true), PATH_OF_ROOT);
    }

    #[test]
    fn finds_users_by_name_and_number() {
        let root = by_name("root".as_ref());
        let found = root.as_ref().map(|root| (root.uid, root.gid, root.groups.contains(&0)));
        assert_eq!(found, Some((0, 0, true)));
        assert_eq!(by_number(0), root);
        assert_eq!(by_name("no such user".as_ref()), None);
        assert_eq!(by_name("nul\0".as_ref()), None);
        assert_eq!(by_number(4_000_000_000), None);
    }

    #[test]
    fn the_environment_is_that_of_a_login() {
        let account = Account {
            name: "eve".into(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            home: "/home/eve".into(),
            shell: "/bin/zsh".into(),
        };
        let variables = account.environment();
        let value =
            |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        for (name, expected) in
            [("HOME", "/home/eve"), ("USER", "eve"), ("LOGNAME", "eve"), ("SHELL", "/bin/zsh")]
        {
            assert_eq!(value(name), Some(expected.into()), "{name}");
        }
        assert!(value("PATH").is_some_and(|path| !path.is_empty()));
        // Set by cargo for this test.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some() && value("CARGO_MANIFEST_DIR").is_none());
    }
}
