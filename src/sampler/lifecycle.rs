//! Threads from their first sight to their end: where their stacks are kept, what they are
//! called, and the time that no sample will take; and the profile that is left of all.

use super::Recording;
use super::thread::{Account, unknown_look};
use crate::addr::Avma;
use crate::recording::{Profile, Thread};
use crate::sources::{Look, ThreadId};

/// Threads that are kept apart; later ones share an entry.
const MAX_THREADS: usize = 65_536;
/// The last looks at threads and their names take this long at most, nanoseconds.
const LAST_LOOKS_NS: u64 = 20_000_000;

impl Recording<'_> {
    /// Takes in the threads that the target has from the beginning.
    pub(super) fn add_threads(&mut self) {
        let mut threads = Vec::new();
        self.target.threads(&mut threads);
        for (id, stack_top) in threads {
            // Before the start nothing is lost yet.
            if self.live.shall_stop() {
                return;
            }
            let look = self.target.look(id);
            self.add_thread(id, stack_top, look.unwrap_or_else(|_| unknown_look()), true);
        }
    }

    pub(super) fn add_thread(&mut self, id: ThreadId, stack_top: Option<Avma>, look: Look, found: bool) {
        self.stats.threads_seen += 1;
        let index = self.thread_index(id);
        self.accounts.insert(id, Account::new(index, id.0, stack_top, look, self.clock.now_ns(), found));
    }

    /// Asks for the name of a thread that had none when it was first seen: threads name
    /// themselves after they start, and may have ended before the recording does.
    pub(super) fn ask_name(&mut self, id: ThreadId) {
        let Some(account) = self.accounts.get_mut(&id).filter(|account| account.name_tries_left > 0) else {
            return;
        };
        account.name_tries_left -= 1;
        let unnamed = self.threads.get_mut(account.index as usize);
        if let Some(thread) = unnamed.filter(|thread| thread.id == id.0 && thread.name.is_empty())
            && let Some(name) = self.target.thread_name(id)
        {
            thread.name = name;
        }
    }

    /// The entry that a thread's stacks are kept under.
    fn thread_index(&mut self, id: ThreadId) -> u32 {
        if !self.options.threads {
            return 0;
        }
        if self.threads.len() < MAX_THREADS {
            let name = self.target.thread_name(id).unwrap_or_default();
            self.threads.push(Thread { id: id.0, name });
        } else if self.threads.len() == MAX_THREADS {
            self.threads.push(Thread { id: 0, name: format!("threads after the first {MAX_THREADS}") });
        }
        u32::try_from(self.threads.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn remove_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>) {
        self.walk_captured();
        self.settle_postponed(Some(id));
        if let Some(mut account) = self.accounts.remove(&id) {
            let counts = self.unsampled(&mut account, cpu_ns);
            self.lose("thread ended before its next sample", counts);
        }
    }

    /// Closes an account: counts that no sample will take.
    fn unsampled(&mut self, account: &mut Account, cpu_ns: Option<u64>) -> u64 {
        let now_ns = self.clock.now_ns();
        let counts = account.unsampled(cpu_ns, now_ns, self.options.hz, self.options.idle);
        self.stats.target_cpu_ns += account.used_cpu_ns();
        counts
    }

    /// Closes all accounts.
    pub(super) fn finish(mut self) -> Profile {
        self.walk_captured();
        self.settle_postponed(None);
        if self.stats.duration_ns == 0 {
            self.stats.duration_ns = self.clock.now_ns() - self.start_ns;
        }
        let mut ids: Vec<ThreadId> = self.accounts.keys().copied().collect();
        ids.sort_unstable();
        let until_ns = self.clock.now_ns().saturating_add(LAST_LOOKS_NS);
        for id in ids {
            // Where calls are slow the last look of each thread has to do.
            let has_time = self.clock.now_ns() < until_ns;
            let look = if has_time { self.target.look(id).ok() } else { None };
            let cpu_ns = look.map(|look| look.cpu_ns);
            if let Some(mut account) = self.accounts.remove(&id) {
                // Threads name themselves after they start.
                if let Some(thread) = self.threads.get_mut(account.index as usize)
                    && thread.id == id.0
                    && has_time
                    && let Some(name) = self.target.thread_name(id)
                {
                    thread.name = name;
                }
                let counts = self.unsampled(&mut account, cpu_ns);
                self.lose(
                    if self.options.idle {
                        "not sampled again before the end"
                    } else {
                        "used between looks and not caught running"
                    },
                    counts,
                );
            }
        }
        Profile {
            process: self.target.process().clone(),
            hz: self.options.hz,
            trie: self.trie,
            images: self.images,
            threads: self.threads,
            stats: self.stats,
        }
    }
}
