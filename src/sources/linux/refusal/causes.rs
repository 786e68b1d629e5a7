//! Why a call was refused, and the next step: a table of rules over observed facts.
//!
//! Input: [`Facts`]. Output: two parts of a line. The first rule that holds for the facts decides, so a rule may rely
//! on those before it. Sources: ptrace(2) ("Ptrace access mode checking"), perf_event_open(2), user_namespaces(7),
//! Documentation/admin-guide/{perf-security,LSM/Yama}.rst.

use std::fmt;

use super::facts::{Call, CapabilitySet, EventScope, Facts, PERFMON, SYS_ADMIN, SYS_PTRACE};
use crate::error::io_text;

/// Why a call was refused, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sources::linux) struct Cause {
    pub(in crate::sources::linux) why: String,
    pub(in crate::sources::linux) next: String,
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
        self.target.as_ref().map(|target| target.permitted.beyond(own)).unwrap_or_default()
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

#[cfg(test)]
mod tests;
