//! Who is sampled: processes are judged when they are first heard of, and looked at themselves where records that
//! told of them may be missing.
//!
//! Input: numbers of processes, and records that were not sifted yet; output: members, and what the kernel is to be told
//! of the others.

use libc::pid_t;

use super::super::process::filter;
use super::super::ring::record::Id;
use super::super::ring::sys;
use super::{Event, Told};

/// Most ancestors that are asked for when a process is judged.
const ANCESTORS_MAX: u32 = 64;
/// Processes are looked at this often at most where records did not fit, nanoseconds.
const LOOK_NS: u64 = 500_000_000;
/// And so seldom that it takes this part of the time: 1/20.
const COST_SHARE: u64 = 20;

impl Told {
    /// Whether all processes of the machine are wanted.
    pub(in super::super) fn is_machine(&self) -> bool {
        self.choice.is_all()
    }

    /// Whether what a process starts is wanted with it.
    pub(in super::super) fn asks_parents(&self) -> bool {
        self.choice.asks_parents()
    }

    /// Judges the processes that run now, before any is sampled.
    pub(in super::super) fn judge_all(&mut self) {
        if self.choice.is_all() || self.choice.is_one() {
            return;
        }
        for pid in filter::all_processes() {
            self.judge(pid, None, 0);
        }
    }

    /// Whether a process is wanted; one that is new is judged. `parent` is known where it was just
    /// started; `depth` of its ancestors have been asked.
    pub(in super::super) fn judge(&mut self, pid: pid_t, parent: Option<pid_t>, depth: u32) -> bool {
        if pid <= 0 || self.refused.contains(&pid) {
            return false;
        }
        if self.members.contains_key(&pid) {
            return true;
        }
        let of_wanted = if self.choice.asks_parents() && depth < ANCESTORS_MAX {
            let parent = parent.or_else(|| filter::parent_of(pid)).unwrap_or(0);
            self.judge(parent, None, depth + 1)
        } else {
            parent.is_some_and(|parent| self.members.contains_key(&parent))
        };
        if !self.choice.wants(pid, of_wanted) {
            self.refused.insert(pid);
            self.verdicts.push((pid, true));
            return false;
        }
        let started_by = parent.and_then(|parent| self.members.get(&parent));
        let is_started = started_by.is_some();
        let template = started_by.or_else(|| self.members.get(&self.main));
        let Some(mut member) = template.map(|from| from.new_for(pid, is_started)) else { return false };
        if parent.is_some() {
            member.clock.begins_now();
        } else if let Some(clock) = self.baseline.take(pid) {
            member.clock.begin_at(clock.began_ns);
            member.clock.stop_at(clock.ended_ns);
        }
        self.members.insert(pid, member);
        self.begun.push(pid);
        true
    }

    /// Looks at the processes themselves where records that did not fit may have told of them: that one has another
    /// program, has mapped code, or has ended. Not in every batch: that is when there is too much to do.
    pub(in super::super) fn look_at_what_was_not_told(&mut self) {
        let now_ns = sys::monotonic_ns();
        if !self.untold || now_ns < self.next_look_ns {
            return;
        }
        self.untold = false;
        for (pid, member) in self.members.iter_mut().filter(|(_, one)| one.ends_in.is_none() && one.pid() > 0)
        {
            if member.has_ended() {
                member.first_left = true;
                self.leaving.push(*pid);
                continue;
            }
            let id = Id { pid: *pid, tid: *pid, time_ns: self.last_ns, ..Id::default() };
            if member.told {
                let named = member.names_anew().into_iter();
                self.batch.extend(named.map(|(tid, name)| (Id { tid, ..id }, Event::Named(name, false))));
            }
            let happened = member.look_anew().map_or(Event::Changed, Event::Exec);
            if member.told {
                self.batch.push((id, happened));
            }
        }
        let cost_ns = sys::monotonic_ns().saturating_sub(now_ns);
        self.next_look_ns = now_ns + LOOK_NS.max(COST_SHARE * cost_ns);
    }

    /// Processes that are sampled and have not ended.
    pub(in super::super) fn running(&self) -> Vec<pid_t> {
        self.members.iter().filter(|(_, one)| one.ends_in.is_none()).map(|(pid, _)| *pid).collect()
    }

    /// Those that were started by `listed`, and by them, as the records say that were not sifted yet.
    pub(in super::super) fn started_by(&self, listed: &[pid_t]) -> Vec<pid_t> {
        let mut started: Vec<pid_t> = Vec::new();
        // Records are not in the order of their times.
        loop {
            let before = started.len();
            for (id, happened) in &self.batch {
                let Event::Forked(parent, _) = happened else { continue };
                let known = |pid: &pid_t| listed.contains(pid) || started.contains(pid);
                if known(parent) && !known(&id.pid) {
                    started.push(id.pid);
                }
            }
            if started.len() == before {
                return started;
            }
        }
    }

    /// The number is another process's from now on.
    pub(in super::super) fn forget_number(&mut self, pid: pid_t) {
        self.baseline.take(pid);
        if self.refused.remove(&pid) {
            self.verdicts.push((pid, false));
        }
        if self.members.get(&pid).is_some_and(|member| member.ends_in.is_some())
            && let Some(member) = self.members.remove(&pid)
        {
            self.forgotten_ns += member.clock.used_ns();
            self.told_ns += member.clock.told_ns;
        }
    }
}
