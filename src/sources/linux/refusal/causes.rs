//! Why a call was refused, and the next step: a table of rules over observed facts.
//!
//! `Rule` is a row of the table and `Cause` its answer; `Facts` is what can be observed.
//!
//! Input: [`Facts`]. Output: two parts of a line. The first rule that holds for the facts decides, so a rule may rely
//! on those before it. Sources: ptrace(2) ("Ptrace access mode checking"), perf_event_open(2), user_namespaces(7),
//! Documentation/admin-guide/{perf-security,LSM/Yama}.rst.

#[cfg(test)]
mod tests;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fmt, fs};

use libc::pid_t;

use crate::error::io_text;
use crate::sources::linux::{proc, sys};

/// Why a call was refused, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) why: String,
    pub(crate) next: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause { why, next } = self;
        if next.is_empty() { write!(f, "{why}") } else { write!(f, "{why}; {next}") }
    }
}

/// A rule of the table.
struct Rule {
    holds: fn(&Facts) -> bool,
    why: fn(&Facts) -> String,
    next: fn(&Facts) -> String,
}

/// What refuses, most certain first.
const RULES: [Rule; 15] = [
    // Filter.
    Rule {
        holds: |facts| !facts.reaches_kernel && facts.is_filtered,
        why: |facts| format!("a seccomp filter (of a container or service) forbids {}", facts.call.name()),
        next: pass_filter,
    },
    // No such call.
    Rule {
        holds: |facts| !facts.reaches_kernel,
        why: |facts| match facts.call {
            Call::Sample(_) => "this kernel has no perf_event".to_owned(),
            call => format!("this kernel does not answer {}", call.name()),
        },
        next: |facts| match facts.call {
            Call::Sample(_) => "--source ptrace does without".to_owned(),
            _ => "use a kernel that does (an emulated one, such as gVisor's, may not)".to_owned(),
        },
    },
    // No such event.
    Rule {
        holds: |facts| facts.is_sample() && !facts.is_refusal() && has_no_event(facts.errno),
        why: |_| "this kernel has no such perf_event".to_owned(),
        next: |_| "--source ptrace does without".to_owned(),
    },
    // Not a refusal.
    Rule {
        holds: |facts| !facts.is_refusal(),
        why: |facts| format!("{} failed: {}", facts.call.name(), errno_text(facts.errno)),
        next: |facts| match facts.errno {
            libc::EMFILE | libc::ENFILE => "raise `ulimit -n`".to_owned(),
            libc::ENOMEM => "free some memory, or raise `ulimit -l`".to_owned(),
            _ => String::new(),
        },
    },
    // User namespace of the profiler.
    Rule {
        holds: |facts| {
            facts.is_over_paranoid() && facts.is_in_user_namespace && facts.has_performance_right()
        },
        why: |facts| {
            let level = facts.paranoid.unwrap_or_default();
            format!(
                "the capabilities of a user namespace do not count for kernel.perf_event_paranoid {level}"
            )
        },
        next: |facts| {
            let level = facts.paranoid_needed();
            format!(
                "run stackprof outside of it (not rootless), or on the host: sudo sysctl kernel.perf_event_paranoid={level}"
            )
        },
    },
    // Perf_event_paranoid.
    Rule {
        holds: Facts::is_over_paranoid,
        why: |facts| {
            let what = match facts.call {
                Call::Sample(EventScope::OwnCode) => "forbids it to users",
                Call::Sample(EventScope::Machine) => "does not show the whole machine to users",
                _ => "does not show the kernel to users",
            };
            format!("kernel.perf_event_paranoid {} {what}", facts.paranoid.unwrap_or_default())
        },
        next: |facts| {
            let level = facts.paranoid_needed();
            match facts.can_gain(PERFMON) {
                true => format!("{}, or sudo sysctl kernel.perf_event_paranoid={level}", sudo(facts)),
                false => format!(
                    "{}, or on the host: sudo sysctl kernel.perf_event_paranoid={level}",
                    add_capability(facts, PERFMON)
                ),
            }
        },
    },
    // Yama, none.
    Rule {
        holds: |facts| facts.attaches() && facts.yama == Some(3),
        why: |_| "kernel.yama.ptrace_scope is 3: nothing may be traced until the next boot".to_owned(),
        next: |_| "have the kernel sample: sudo stackprof --source perf".to_owned(),
    },
    // User namespace of the target.
    Rule {
        holds: |facts| {
            facts.is_in_user_namespace
                && facts.effective.has(SYS_PTRACE)
                && facts.target.as_ref().is_some_and(|target| !target.is_in_own_user_namespace)
        },
        why: |_| "it is outside of this user namespace, and capabilities count only within".to_owned(),
        next: |_| "run stackprof outside of the namespace (not rootless)".to_owned(),
    },
    // Another user.
    Rule {
        holds: |facts| {
            !facts.may_trace_all() && facts.target.as_ref().is_some_and(|target| target.user != facts.user)
        },
        why: |facts| {
            let owner = facts.target.as_ref().map_or(0, |target| target.user);
            format!("it belongs to user {owner} and you are user {}", facts.user)
        },
        next: gain_trace,
    },
    // Capabilities of the target.
    Rule {
        holds: |facts| !facts.may_trace_all() && !facts.lacking().is_empty(),
        why: |facts| format!("it holds capabilities that stackprof lacks ({})", facts.lacking().names()),
        next: gain_trace,
    },
    // Not dumpable.
    Rule {
        holds: |facts| {
            !facts.may_trace_all() && facts.target.as_ref().is_some_and(|target| !target.is_dumpable)
        },
        why: |_| {
            "it has switched users, forbidden core dumps, or runs a program that its user may not read"
                .to_owned()
        },
        next: gain_trace,
    },
    // Yama, root only.
    Rule {
        holds: |facts| facts.attaches() && facts.yama == Some(2) && !facts.may_trace_all(),
        why: |_| "kernel.yama.ptrace_scope is 2: only root may trace".to_owned(),
        next: gain_trace,
    },
    // Yama, children only.
    Rule {
        holds: |facts| {
            let is_launched = facts.target.as_ref().is_some_and(|target| target.is_launched);
            facts.attaches() && facts.yama == Some(1) && !is_launched && !facts.may_trace_all()
        },
        why: |_| "kernel.yama.ptrace_scope is 1: only a program's own children may be traced".to_owned(),
        next: |facts| {
            let gain = gain_trace(facts);
            format!("{gain}, or allow it: sudo sysctl kernel.yama.ptrace_scope=0")
        },
    },
    // Security module.
    Rule {
        holds: |facts| facts.confined_by.is_some(),
        why: |facts| {
            let module = facts.confined_by.as_deref().unwrap_or_default();
            format!("the security module {module} forbids {}", facts.call.name())
        },
        next: |facts| match facts.confined_by.as_deref().is_some_and(|module| module.starts_with("AppArmor"))
        {
            true => "start the container with --security-opt apparmor=unconfined, or allow it in the profile"
                .to_owned(),
            false => {
                "start the container with --security-opt label=disable, or see `ausearch -m avc`".to_owned()
            }
        },
    },
    // Unknown.
    Rule {
        holds: |_| true,
        why: |facts| {
            let lockdown = facts.lockdown.as_deref().filter(|mode| *mode != "none");
            let lockdown = lockdown.map(|mode| format!(", lockdown is in mode {mode}")).unwrap_or_default();
            format!("the kernel refused {} ({}{lockdown})", facts.call.name(), errno_text(facts.errno))
        },
        next: |facts| match facts.can_gain(SYS_PTRACE) {
            true => sudo(facts),
            false => "a security module may forbid it: see the kernel's log".to_owned(),
        },
    },
];

/// The cause for these facts.
pub(super) fn cause(facts: &Facts) -> Cause {
    // The last one always holds.
    let rule = RULES.iter().find(|rule| (rule.holds)(facts)).unwrap_or(&RULES[RULES.len() - 1]);
    Cause { why: (rule.why)(facts), next: (rule.next)(facts) }
}

impl Facts {
    pub(super) fn reaches_kernel(&self) -> bool {
        self.reaches_kernel
    }

    fn is_sample(&self) -> bool {
        matches!(self.call, Call::Sample(_))
    }

    /// Whether the call needs the right to attach, which Yama limits, not only to read.
    fn attaches(&self) -> bool {
        matches!(self.call, Call::Trace | Call::ReadMemory)
    }

    fn is_refusal(&self) -> bool {
        matches!(self.errno, libc::EPERM | libc::EACCES)
    }

    /// Whether this process has a right over events, in whichever namespace.
    fn has_performance_right(&self) -> bool {
        self.effective.has(PERFMON) || self.effective.has(SYS_ADMIN)
    }

    /// Whether this process is limited by kernel.perf_event_paranoid.
    fn is_over_paranoid(&self) -> bool {
        let Call::Sample(scope) = self.call else { return false };
        let counts = self.has_performance_right() && !self.is_in_user_namespace;
        !counts && self.paranoid.is_some_and(|level| level > scope.paranoid_max())
    }

    /// The highest level with which the call is allowed; at least with all that a user may see.
    fn paranoid_needed(&self) -> i32 {
        match self.call {
            Call::Sample(EventScope::Machine) => EventScope::Machine.paranoid_max(),
            _ => EventScope::Kernel.paranoid_max(),
        }
    }

    /// Whether this process holds a capability for every process of its namespace.
    fn may_trace_all(&self) -> bool {
        let by_events = self.is_sample() && self.has_performance_right() && !self.is_in_user_namespace;
        self.effective.has(SYS_PTRACE) || by_events
    }

    /// What the target holds and this process lacks. Files of /proc are given by the effective set, other calls by
    /// the permitted one (PTRACE_MODE_FSCREDS, PTRACE_MODE_REALCREDS).
    fn lacking(&self) -> CapabilitySet {
        let own = if self.call == Call::ReadProc { self.effective } else { self.permitted };
        self.target.as_ref().map(|target| target.permitted.difference(own)).unwrap_or_default()
    }

    /// Whether sudo gives this capability here: not if it is taken from everybody in a container.
    fn can_gain(&self, capability: u32) -> bool {
        self.user != 0 && !self.gains_nothing && self.bounding.has(capability)
    }
}

fn has_no_event(errno: i32) -> bool {
    matches!(errno, libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV)
}

fn errno_text(errno: i32) -> String {
    io_text(&std::io::Error::from_raw_os_error(errno))
}

/// Next step past a seccomp filter: filters of containers allow a call with its capability.
fn pass_filter(facts: &Facts) -> String {
    let (capability, holds) = match facts.call {
        Call::Sample(_) => (PERFMON, facts.has_performance_right()),
        _ => (SYS_PTRACE, facts.effective.has(SYS_PTRACE)),
    };
    match holds {
        // Otherwise the filter would allow it.
        true => {
            "start the container with --security-opt seccomp=unconfined, or with a profile that allows it"
                .to_owned()
        }
        false => add_capability(facts, capability),
    }
}

/// Next step to trace or read the target.
fn gain_trace(facts: &Facts) -> String {
    let capability = if facts.is_sample() { PERFMON } else { SYS_PTRACE };
    match facts.can_gain(capability) {
        true => format!("run: {}", sudo(facts)),
        false => add_capability(facts, capability),
    }
}

fn add_capability(facts: &Facts, capability: u32) -> String {
    let name = if capability == PERFMON { "PERFMON" } else { "SYS_PTRACE" };
    // It counts only for root within.
    let as_root = if facts.user == 0 { "" } else { ", and stackprof in it as root (--user 0)" };
    format!("start the container with --cap-add {name}{as_root}")
}

/// The command with sudo. A command that was to be recorded has ended and is started again.
fn sudo(facts: &Facts) -> String {
    match &facts.target {
        Some(target) if !target.is_launched => format!("sudo stackprof --pid {}", target.pid),
        Some(_) => "sudo stackprof -- COMMAND".to_owned(),
        None => "sudo".to_owned(),
    }
}

// ---- What can be observed after the kernel has refused a call: rights of this process, settings of the system,
// the target, and whether the call reached the kernel at all.

/// A call that may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
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
pub(crate) enum EventScope {
    /// Everything that runs on a CPU.
    Machine,
    /// Threads of some processes, in the kernel, too.
    Kernel,
    /// User code of some processes.
    OwnCode,
}

/// A set of capabilities as in /proc/PID/status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CapabilitySet(pub(crate) u64);

/// Numbers of capabilities(7).
pub(crate) const SYS_PTRACE: u32 = 19;
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
    pub(crate) fn has(self, number: u32) -> bool {
        self.0 >> number & 1 == 1
    }

    /// Those that `others` lacks.
    pub(super) fn difference(self, others: CapabilitySet) -> CapabilitySet {
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
pub(crate) struct Facts {
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
pub(crate) fn capabilities_of(pid: pid_t) -> Option<u64> {
    let status = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/status")).ok()?).into_owned();
    let is_root = proc::status_value(&status, "Uid")?.split_whitespace().any(|uid| uid == "0");
    let of_programs = if is_root { set(&status, "CapBnd") } else { CapabilitySet::default() };
    Some(set(&status, "CapPrm").0 | of_programs.0)
}

/// A set of a /proc/PID/status.
pub(crate) fn set(status: &str, key: &str) -> CapabilitySet {
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
mod facts_tests {
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
        assert!(set(status, "CapBnd").is_empty() && docker.difference(docker).is_empty());
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
