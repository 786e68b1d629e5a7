//! A batch handed over: what its samples weigh, which of them came late, which threads and processes
//! have ended with it.
//!
//! Weights: the CPU clock of a process tells exactly what all of its threads have used, and its
//! samples in a batch share what was used since the batch before (`share.rs`: how). So counts add up to CPU seconds
//! × hz, the time of threads that ended before a sample included, and each sample has the same
//! chance to be taken at any moment of that time. A process that was not there at the end of the
//! batch before has samples that stand for the distance of ticks each: many short ones then add up
//! rightly, those that were never sampled included.

use hashbrown::HashMap;
use libc::pid_t;

use super::record::Id;
use super::share::{Division, Share, up_to_ns};
use super::told::{Happened, Told};
use crate::sources::pushed::{Record, What};
use crate::sources::{Activity, Look, ThreadId};

/// Why the time of processes is lost of which no sample came.
const TOO_SHORT: &str = "of processes that ran too shortly to be sampled";

/// What is known of a process that has ended is kept for so many batches: records of it may wait.
const BATCHES_AFTER_END: u8 = 3;

impl Told {
    /// Hands the batch over, in the order of its times. `by_clock`: samples share what the clocks
    /// of their processes say, those that were dropped included. Of switches what happened before
    /// `settled_ns` (monotonic clock) is told: of that, all rings were read.
    pub(super) fn finish_batch(&mut self, by_clock: bool, settled_ns: u64, into: &mut Vec<Record>) {
        for (pid, tid) in self.nameless.drain(..) {
            if let Some(member) = self.members.get_mut(&pid) {
                member.names.remove(&tid);
            }
        }
        let mut batch = std::mem::take(&mut self.batch);
        (self.held_bytes, self.held_beyond_bytes) = (0, 0);
        batch.sort_by_key(|(id, _)| id.time_ns);
        let mut batch = self.sift(batch);
        // Before samples, which may be of threads that are first told of by their waits.
        self.tell_waits(settled_ns, into);
        self.guess_dropped();
        // Whose they were the next samples show.
        let (dropped, dropped_ns) = if self.samples == 0 && settled_ns != u64::MAX {
            (0, 0)
        } else {
            (std::mem::take(&mut self.dropped), std::mem::take(&mut self.dropped_ns))
        };
        let stand_for_ns = |samples| up_to_ns(dropped_ns, dropped, samples);
        let mut division = Division::new(dropped, self.samples);
        self.shares.clear();
        for (pid, member) in &mut self.members {
            // What stands for a machine has no clock: those of its processes tell what was used.
            let is_only = dropped > 0 && self.samples == 0 && *pid == self.main && *pid > 0;
            if member.samples > 0 || is_only {
                let of_it = if is_only { dropped } else { division.next(member.samples) };
                // Asked where it is not used, too: then it is known up to here.
                let used_ns = member.clock.share_ns(*pid, dropped > 0).filter(|_| by_clock);
                let used_ns = used_ns.map(|used_ns| member.owed.without(used_ns));
                // What was dropped may be other processes': no more than were to be taken.
                let lacking =
                    used_ns.map(|used_ns| (used_ns / self.period_ns).saturating_sub(member.samples));
                let of_it = of_it.min(lacking.unwrap_or(of_it));
                member.samples = 0;
                let dropped_ns = stand_for_ns(of_it);
                self.shares.insert(*pid, Share { used_ns, dropped_ns, ..Share::default() });
            }
        }
        let late = self.share_late(&mut batch);
        self.last_ns = batch.last().map_or(0, |(id, _)| id.time_ns).max(self.last_ns);
        let last_ns = self.last_ns;
        let mut left: Vec<pid_t> = Vec::new();
        for (id, happened) in batch.drain(..) {
            let what = match happened {
                Happened::Began(name) => What::Began { name },
                Happened::Sampled(mut capture) => {
                    capture.look = Some(self.used(id, into));
                    What::Sampled(capture)
                }
                Happened::Missed(why) => What::Missed(self.used(id, into), why),
                Happened::Ended => {
                    if let Some(member) = self.members.get_mut(&id.pid) {
                        member.first_left |= id.tid == id.pid;
                        member.owed.forget_thread(id.tid);
                        member.leaving.push(id);
                        left.push(id.pid);
                    }
                    continue;
                }
                Happened::Exec(name) => {
                    let Some(member) = self.members.get_mut(&id.pid) else { continue };
                    member.owed.end();
                    self.tell_owed(id.pid, id.time_ns, false, into);
                    let Some(member) = self.members.get_mut(&id.pid) else { continue };
                    // One of these numbers is that of the thread that goes on.
                    member.leaving.clear();
                    member.left.clear();
                    member.first_left = false;
                    for (tid, cpu_ns) in std::mem::take(&mut member.threads) {
                        let what = What::Ended(Some(cpu_ns), "replaced by exec before its next sample");
                        into.push(self.record(Id { tid, ..id }, what));
                    }
                    What::Exec { name: Some(name) }
                }
                Happened::Changed => What::ImagesMayHaveChanged,
                Happened::Named(name, _) => What::Named { name },
                Happened::Forked(..) | Happened::ThreadBegan(_) | Happened::Mapped(_) => continue,
            };
            into.push(self.record(id, what));
        }
        self.tell_woken(last_ns, settled_ns == u64::MAX, into);
        self.tell_ends(left, (last_ns, settled_ns), into);
        for (pid, share) in &self.shares {
            let rest_ns = share.rest_ns();
            self.unsampled_ns += rest_ns;
            if let Some(member) = self.members.get_mut(pid) {
                member.clock.dropped_ns += rest_ns;
            }
        }
        let lost = self.unsampled_ns / self.period_ns;
        self.unsampled_ns %= self.period_ns;
        let nobody = Id { pid: self.main, time_ns: last_ns, ..Id::default() };
        if lost > 0 {
            self.told_ns += lost * self.period_ns;
            into.push(self.record(nobody, What::Dropped(lost, "the kernel dropped them")));
        }
        if late > 0 {
            into.push(self.record(nobody, What::Late(late)));
        }
        self.samples = 0;
        (self.records, self.lost_records) = (0, 0);
        self.look_at_what_was_not_told();
    }

    /// Where nobody counts samples apart from other records: there were as many among those that did not fit as
    /// among those that did.
    fn guess_dropped(&mut self) {
        let dropped = self.lost_records.saturating_mul(self.samples) / self.records.max(1);
        self.note_dropped(dropped, self.period_ns);
    }

    /// Tells of threads that left in the batch before, since on its way out a thread still runs for
    /// a while after it is told to have ended, and of processes that have ended with them. `left`
    /// are the processes that threads left in this batch. One that ended at `settled_ns` or later has waits that
    /// are told in a batch to come, and it ends behind them.
    fn tell_ends(&mut self, mut left: Vec<pid_t>, (last_ns, settled_ns): (u64, u64), into: &mut Vec<Record>) {
        let (main, mut told, mut forgotten) = (self.main, Vec::new(), Vec::new());
        left.sort_unstable();
        left.dedup();
        let mut before = std::mem::replace(&mut self.leaving, left.clone());
        before.sort_unstable();
        before.dedup();
        let waits = self.switched.is_some();
        for pid in before {
            let Some(member) = self.members.get_mut(&pid) else { continue };
            let all = std::mem::take(&mut member.left);
            let (unsettled, settled): (Vec<Id>, Vec<Id>) =
                all.into_iter().partition(|id| waits && id.time_ns >= settled_ns);
            member.left = unsettled;
            for id in settled {
                self.nameless.push((pid, id.tid));
                self.leavers.forget(pid, id.tid);
                if let Some(cpu_ns) = member.threads.remove(&id.tid) {
                    let id = Id { time_ns: last_ns.max(id.time_ns), ..id };
                    told.push((id, What::Ended(Some(cpu_ns), "thread ended before its next sample")));
                }
            }
            if !member.left.is_empty() {
                self.leaving.push(pid);
                continue;
            }
            if pid == main || !member.first_left {
                continue;
            }
            if !member.has_ended() {
                // Its first thread has left, and the others are on their way out, or run on.
                self.leaving.push(pid);
                continue;
            }
            if member.told {
                // Behind what its threads tell at the same time.
                let last = Id { pid, tid: pid_t::MAX, time_ns: last_ns, ..Id::default() };
                told.push((last, What::Gone));
            }
            member.ends_in = Some(BATCHES_AFTER_END);
            self.ended.push(pid);
        }
        for pid in left {
            if let Some(member) = self.members.get_mut(&pid) {
                member.left.append(&mut member.leaving);
            }
        }
        for pid in &self.ended {
            match self.members.get_mut(pid).and_then(|member| member.ends_in.as_mut()) {
                Some(0) => forgotten.push(*pid),
                Some(batches) => *batches -= 1,
                None => {}
            }
        }
        self.ended.retain(|pid| !forgotten.contains(pid));
        for pid in forgotten {
            self.forget_number(pid);
        }
        for (id, what) in told {
            into.push(self.record(id, what));
        }
    }

    /// Sums up what samples stand for, gives those whose ticks came late what those on time leave of the
    /// time of their process, and takes those out for which that is nothing; how many were late.
    fn share_late(&mut self, batch: &mut Vec<(Id, Happened)>) -> u64 {
        let (grid, shares, members) = (&self.grid, &mut self.shares, &mut self.members);
        // Of each process: how many were late, and what those on time and the late ones stand for.
        let mut ticks: HashMap<pid_t, (u64, u64, u64)> = HashMap::new();
        for (id, happened) in batch.iter() {
            if !matches!(happened, Happened::Sampled(_) | Happened::Missed(_)) {
                continue;
            }
            let (late, on_time_ns, late_ns) = ticks.entry(id.pid).or_default();
            let period_ns = grid.period_ns(id.cpu, id.time_ns).unwrap_or(self.period_ns);
            if grid.is_late(id.cpu, id.time_ns) {
                *late += 1;
                *late_ns += period_ns;
            } else {
                *on_time_ns += period_ns;
            }
        }
        for (pid, share) in shares.iter_mut() {
            let (_, on_time_ns, late_ns) = ticks.get(pid).copied().unwrap_or_default();
            share.due_ns = on_time_ns + late_ns + share.dropped_ns;
        }
        let mut all_late = 0;
        for (pid, (late, on_time_ns, late_ns)) in &ticks {
            let (Some(share), Some(member)) = (shares.get_mut(pid), members.get_mut(pid)) else { continue };
            // Of those that were dropped nobody knows whether they were late.
            let Some(used_ns) = share.used_ns.filter(|_| share.dropped_ns == 0) else { continue };
            let given_ns = member.clock.left.of_batch(used_ns, *on_time_ns, *late_ns);
            if *late > 0 {
                share.give_late(*late, *late_ns, given_ns);
                all_late += *late;
            }
        }
        if all_late > 0 {
            batch.retain(|(id, happened)| {
                let is_nothing =
                    shares.get(&id.pid).is_some_and(|share| share.late > 0 && share.late_ns == 0);
                let is_sample = matches!(happened, Happened::Sampled(_) | Happened::Missed(_));
                !(is_sample && is_nothing && grid.is_late(id.cpu, id.time_ns))
            });
        }
        all_late
    }

    /// At the end of a recording: what was used and nothing stands for that was told so far is lost
    /// for this reason.
    pub(super) fn tell_rest(&mut self, at_ns: u64, reason: &'static str, into: &mut Vec<Record>) {
        let unsampled = self.baseline.unsampled_ns() / self.period_ns;
        self.forgotten_ns += unsampled * self.period_ns;
        self.told_ns += unsampled * self.period_ns;
        let told_ns: u64 = self.members.values().map(|member| member.clock.told_ns).sum();
        let samples = self.used_ns().saturating_sub(self.told_ns + told_ns) / self.period_ns;
        let process = self.main.unsigned_abs();
        for (samples, reason) in [(samples, reason), (unsampled, TOO_SHORT)] {
            into.push(Record { at_ns, process, thread: ThreadId(0), what: What::Dropped(samples, reason) });
        }
    }

    /// CPU time of all of them while they were sampled, nanoseconds.
    pub(super) fn used_ns(&self) -> u64 {
        let by_clocks = self.members.values().map(|member| member.clock.used_ns()).sum::<u64>();
        (self.forgotten_ns + by_clocks).max(self.counted_ns)
    }

    /// What the thread of a sample has used by then, with what the sample weighs. One that is new
    /// is told first, by [`Told::meet`].
    fn used(&mut self, id: Id, into: &mut Vec<Record>) -> Look {
        let share = self.shares.get_mut(&id.pid);
        let period_ns = self.grid.period_ns(id.cpu, id.time_ns).unwrap_or(self.period_ns);
        let is_late = self.grid.is_late(id.cpu, id.time_ns);
        let weight_ns = share.map_or(period_ns, |share| match share.late {
            late if late > 0 && is_late => share.next_late_ns(),
            _ => share.next_ns(period_ns),
        });
        self.weighed(id, weight_ns, into)
    }

    /// What a thread has used by then, with this weight of a sample.
    pub(super) fn weighed(&mut self, id: Id, weight_ns: u64, into: &mut Vec<Record>) -> Look {
        self.meet(id, into);
        let Some(member) = self.members.get_mut(&id.pid) else { return look(weight_ns) };
        member.clock.told_ns += weight_ns;
        let cpu_ns = member.threads.entry(id.tid).or_default();
        *cpu_ns += weight_ns;
        look(*cpu_ns)
    }

    /// Tells of a thread, and of its process, that are new to the engine.
    pub(super) fn meet(&mut self, id: Id, into: &mut Vec<Record>) {
        let Some(member) = self.members.get_mut(&id.pid) else { return };
        let began = (!std::mem::replace(&mut member.told, true)).then(|| member.name().to_owned());
        let mut started = None;
        if !member.threads.contains_key(&id.tid) {
            let stack_top = if id.tid == id.pid { member.main_stack_top() } else { None };
            started = Some(What::Started { stack_top, look: look(0), found: false });
            member.threads.insert(id.tid, 0);
        }
        if let Some(name) = began {
            into.push(self.record(id, What::Began { name }));
        }
        if let Some(started) = started {
            into.push(self.record(id, started));
        }
    }
}

/// A thread that runs and has used so much.
fn look(cpu_ns: u64) -> Look {
    Look { cpu_ns, switches: 0, activity: Activity::Running }
}
