//! What can be observed after the kernel has refused a call: rights of this process, settings of the system, the
//! target, and whether the call reached the kernel at all.
//!
//! Input: /proc, and calls with arguments that the kernel answers by an error of its own. Output: [`Facts`].

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libc::pid_t;

use crate::sources::linux::{proc, sys};

/// A call that may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux) enum Call {
    /// perf_event_open(2) for these events.
    Sample(EventScope),
    /// PTRACE_SEIZE.
    Trace,
    /// process_vm_readv(2).
    ReadMemory,
    /// Reading mappings and files of a process.
    ReadProc,
}

/// What events sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux) enum EventScope {
    /// Everything that runs on a CPU.
    Machine,
    /// Threads of some processes, in the kernel, too.
    Kernel,
    /// User code of some processes.
    OwnCode,
}

/// A set of capabilities as in /proc/PID/status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sources::linux) struct CapabilitySet(pub(in crate::sources::linux) u64);

/// Numbers of capabilities(7).
pub(in crate::sources::linux) const SYS_PTRACE: u32 = 19;
pub(super) const SYS_ADMIN: u32 = 21;
pub(super) const PERFMON: u32 = 38;

/// Names of capabilities by number (include/uapi/linux/capability.h).
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

impl CapabilitySet {
    pub(in crate::sources::linux) fn has(self, number: u32) -> bool {
        self.0 >> number & 1 == 1
    }

    /// Those that `others` lacks.
    pub(super) fn beyond(self, others: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 & !others.0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The first names, for a message: `CAP_CHOWN, CAP_FOWNER, ...`.
    pub(super) fn names(self) -> String {
        const SHOWN: usize = 3;
        let numbers: Vec<u32> = (0..u64::BITS).filter(|number| self.has(*number)).collect();
        let name = |number: &u32| match NAMES.get(*number as usize) {
            Some(name) => format!("CAP_{name}"),
            None => format!("capability {number}"),
        };
        let shown: Vec<String> = numbers.iter().take(SHOWN).map(name).collect();
        shown.join(", ") + if numbers.len() > SHOWN { ", ..." } else { "" }
    }
}

/// Facts about this process, the system and the target of a refused call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sources::linux) struct Facts {
    /// The refused call.
    pub(super) call: Call,
    /// Its error.
    pub(super) errno: i32,
    /// The kernel answers this call with errors of its own: no filter and no other kernel stands before it.
    pub(super) reaches_kernel: bool,
    /// This process has a seccomp filter.
    pub(super) is_filtered: bool,
    /// Effective user.
    pub(super) user: u32,
    pub(super) effective: CapabilitySet,
    pub(super) permitted: CapabilitySet,
    /// The limit of what root and sudo can get here.
    pub(super) bounding: CapabilitySet,
    /// Programs such as sudo gain nothing here (PR_SET_NO_NEW_PRIVS).
    pub(super) gains_nothing: bool,
    /// This process is in a user namespace that is not the first: its capabilities count within.
    pub(super) is_in_user_namespace: bool,
    /// kernel.perf_event_paranoid.
    pub(super) paranoid: Option<i32>,
    /// kernel.yama.ptrace_scope.
    pub(super) yama: Option<i32>,
    /// The mode of /sys/kernel/security/lockdown.
    pub(super) lockdown: Option<String>,
    /// The security module that confines this process, with its profile.
    pub(super) confined_by: Option<String>,
    /// The process that the call was for.
    pub(super) target: Option<TargetFacts>,
}

/// Facts about a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TargetFacts {
    pub(super) pid: pid_t,
    /// This process has started it to run a command.
    pub(super) is_launched: bool,
    /// Effective user.
    pub(super) user: u32,
    pub(super) permitted: CapabilitySet,
    /// Its memory may be dumped: it has neither changed users nor forbidden that (prctl(2), PR_SET_DUMPABLE).
    pub(super) is_dumpable: bool,
    /// It is in the user namespace of this process; false also if that cannot be read.
    pub(super) is_in_own_user_namespace: bool,
}

/// Mapping of users in the first user namespace (user_namespaces(7)).
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

impl Facts {
    /// Facts after this call has failed, for a process if it was for one.
    pub(super) fn now(call: Call, errno: i32, target: Option<(pid_t, bool)>) -> Facts {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let users = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let mode = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
        let one = |key| proc::status_value(&status, key).is_some_and(|value| value == "1");
        Facts {
            call,
            errno,
            reaches_kernel: reaches_kernel(call),
            is_filtered: proc::status_value(&status, "Seccomp").is_some_and(|mode| mode != "0"),
            user: sys::effective_uid(),
            effective: set(&status, "CapEff"),
            permitted: set(&status, "CapPrm"),
            bounding: set(&status, "CapBnd"),
            gains_nothing: one("NoNewPrivs"),
            is_in_user_namespace: !users.is_empty() && !users.split_whitespace().eq(ALL_USERS),
            paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            yama: number("/proc/sys/kernel/yama/ptrace_scope"),
            lockdown: mode.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0.to_owned())),
            confined_by: confined_by(),
            target: target.and_then(|(pid, is_launched)| TargetFacts::of(pid, is_launched)),
        }
    }
}

impl TargetFacts {
    fn of(pid: pid_t, is_launched: bool) -> Option<TargetFacts> {
        let status = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?).into_owned();
        let user = proc::status_value(&status, "Uid")?.split_whitespace().nth(1)?.parse().ok()?;
        let owner = fs::metadata(format!("/proc/{pid}")).map_or(user, |metadata| metadata.uid());
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        let own = namespace("self");
        Some(TargetFacts {
            pid,
            is_launched,
            user,
            permitted: set(&status, "CapPrm"),
            // The kernel gives the entries of others to root (proc(5)).
            is_dumpable: owner == user,
            is_in_own_user_namespace: own.is_some() && namespace(&pid.to_string()) == own,
        })
    }
}

/// The capabilities that a target may use, now or after an `exec`; `None` without such a process.
pub(in crate::sources::linux) fn capabilities_of(pid: pid_t) -> Option<u64> {
    let status = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?).into_owned();
    let is_root = proc::status_value(&status, "Uid")?.split_whitespace().any(|uid| uid == "0");
    let of_programs = if is_root { set(&status, "CapBnd") } else { CapabilitySet::default() };
    Some(set(&status, "CapPrm").0 | of_programs.0)
}

/// A set of a /proc/PID/status.
pub(in crate::sources::linux) fn set(status: &str, key: &str) -> CapabilitySet {
    let hex = proc::status_value(status, key);
    CapabilitySet(hex.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0))
}

/// Whether the kernel answers a call, by a call with arguments that no process may pass.
fn reaches_kernel(call: Call) -> bool {
    let (answer, own) = match call {
        // Flags are checked first; some distributions' kernels refuse users before that.
        Call::Sample(_) => (sys::errno_of_event_with_bad_flags(), &[libc::EINVAL, libc::EACCES][..]),
        Call::Trace => (sys::errno_of_trace_of_nobody(), &[libc::ESRCH][..]),
        Call::ReadMemory => (sys::errno_of_read_with_bad_flags(), &[libc::EINVAL][..]),
        Call::ReadProc => return true,
    };
    own.contains(&answer)
}

/// The security module that confines this process, and its profile.
fn confined_by() -> Option<String> {
    let label = |path: &str| {
        let label = fs::read_to_string(path).ok()?;
        let label = label.trim_matches(['\0', '\n', ' ']).to_owned();
        (!label.is_empty() && label != "unconfined").then_some(label)
    };
    if let Some(profile) = label("/proc/self/attr/apparmor/current") {
        return Some(format!("AppArmor ({profile})"));
    }
    let other = label("/proc/self/attr/current")?;
    let name = if Path::new("/sys/fs/selinux").exists() { "SELinux" } else { "AppArmor" };
    Some(format!("{name} ({other})"))
}

impl Call {
    /// Its name, for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Call::Sample(_) => "perf_event_open",
            Call::Trace => "ptrace",
            Call::ReadMemory => "process_vm_readv",
            Call::ReadProc => "reading /proc",
        }
    }
}

impl EventScope {
    /// The highest kernel.perf_event_paranoid that allows it to users.
    pub(super) fn paranoid_max(self) -> i32 {
        match self {
            EventScope::Machine => 0,
            EventScope::Kernel => 1,
            EventScope::OwnCode => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_no_filter_forbids_reach_the_kernel() {
        let calls = [Call::Sample(EventScope::OwnCode), Call::Trace, Call::ReadMemory, Call::ReadProc];
        let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if proc::status_value(&own, "Seccomp") == Some("0") {
            assert!(calls.into_iter().all(reaches_kernel));
        }
    }

    #[test]
    fn sets_are_read_and_named() {
        let status = "CapPrm:\t00000000a80425fb\nCapEff:\t0000000000000000\n";
        let docker = set(status, "CapPrm");
        assert!(docker.has(0) && !docker.has(SYS_PTRACE) && !docker.has(PERFMON));
        assert_eq!(docker.names(), "CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, ...");
        assert_eq!(CapabilitySet(1 << SYS_PTRACE | 1 << 62).names(), "CAP_SYS_PTRACE, capability 62");
        assert!(set(status, "CapBnd").is_empty() && docker.beyond(docker).is_empty());
    }

    #[test]
    fn this_process_is_a_target_like_any_other() {
        let own = std::process::id().cast_signed();
        let facts = Facts::now(Call::Trace, libc::EPERM, Some((own, false)));
        let Some(target) = &facts.target else { panic!("it exists") };
        assert_eq!((target.user, target.permitted), (facts.user, facts.permitted));
        assert!(target.is_in_own_user_namespace);
        assert_eq!(Facts::now(Call::Trace, libc::EPERM, Some((i32::MAX, false))).target, None);
    }
}
