//! The Mach calls of the simulated kernel, as strict as XNU's. Errors are codes of
//! osfmk/mach/kern_return.h.

use stackprof::arch::Arch;
use stackprof::binary::ImageBytes;
use stackprof::sources::mach::kernel::{
    OutOfLine, Region, StateFlavor, SuspensionToken, TaskDyldInfo, TaskPort, ThreadBasicInfo,
    ThreadExtendedInfo, ThreadIdentifierInfo, ThreadPort,
};

use super::cost;
use super::faults::{Answer, INVALID_DEST};
use super::ports::Right;
use super::spec::{CpuTimes, Doing, GET_TASK_ALLOW, HARDENED, MS, PLATFORM};
use super::stack;
use super::state::{OwnCache, State, Violation};
use stackprof::rng::hash;

type Code<T> = Result<T, i32>;

const INVALID_ADDRESS: i32 = 1;
const PROTECTION_FAILURE: i32 = 2;
const INVALID_ARGUMENT: i32 = 4;
const FAILURE: i32 = 5;
const INVALID_NAME: i32 = 15;
const TERMINATED: i32 = 37;
const NOT_SUPPORTED: i32 = 46;

/// How long at most a dying task or thread still answers before its port is dead.
const DYING_NS: u64 = 40_000;

impl State {
    pub fn task_for_pid(&mut self, pid: i32) -> Code<TaskPort> {
        let Some(proc) = self.procs.get(&pid) else { return Err(FAILURE) };
        let spec = &proc.spec;
        if pid == 0 || proc.ended.is_some() {
            return Err(FAILURE);
        }
        if self.euid != 0 && self.euid != spec.uid {
            return Err(FAILURE);
        }
        // The MAC hook applies to root too, while SIP is on.
        let allows = spec.code_signing & GET_TASK_ALLOW != 0;
        let hardened = spec.code_signing & HARDENED != 0 && !allows;
        if spec.code_signing & PLATFORM != 0 || hardened {
            return Err(FAILURE);
        }
        if self.euid != 0 && !self.entitled && !allows {
            return Err(FAILURE);
        }
        if self.now_ns < proc.busy_until_ns {
            return Err(FAILURE);
        }
        match proc.task {
            Some(task) => Ok(TaskPort(self.names.give(Right::Task(task)))),
            None => Ok(TaskPort(0)),
        }
    }

    pub fn pid_for_task(&mut self, port: TaskPort) -> Code<i32> {
        let task = self.task(port).map_err(|_| FAILURE)?;
        Ok(self.tasks[task].pid)
    }

    /// The code for a task or thread that died this long ago.
    fn dying(&self, since_ns: u64, which: u64, first: i32) -> i32 {
        let random = hash(&[self.seed, which, 31]);
        let first_ns = random % DYING_NS;
        let second_ns = first_ns + (random >> 32) % (DYING_NS - first_ns);
        match since_ns {
            since if since < first_ns => first,
            since if since < second_ns => INVALID_ARGUMENT,
            _ => INVALID_DEST,
        }
    }

    /// Handles a call on a dead name: the client learns it, or knew it.
    fn on_dead(&mut self, name: u32, code: i32) -> i32 {
        if self.names.get(name).is_some_and(|entry| entry.told_dead) {
            let method = self.calls.last().map_or("", |method| method.name());
            let what = format!("{method} on name {name:#x}, which was told to be dead");
            self.repeats.push(Violation { call: self.call(), what });
        }
        // 4 may also mean a wrong count, and 5 for an inactive task is not conclusive.
        if matches!(code, TERMINATED | INVALID_DEST) {
            self.names.tell_dead(name);
        }
        code
    }

    fn task_or(&mut self, port: TaskPort, inactive: i32) -> Code<usize> {
        match self.names.get(port.0).map(|entry| entry.right) {
            None => {
                self.violation(format!("a task call on name {:#x}, which is none", port.0));
                Err(INVALID_DEST)
            }
            Some(Right::Task(task)) if self.tasks[task].alive => Ok(task),
            Some(Right::Task(task)) => {
                let code = self.dying(self.now_ns - self.tasks[task].died_ns, task as u64, inactive);
                Err(self.on_dead(port.0, code))
            }
            Some(other) => {
                self.violation(format!("a task call on {other:?}"));
                Err(INVALID_ARGUMENT)
            }
        }
    }

    fn task(&mut self, port: TaskPort) -> Code<usize> {
        self.task_or(port, INVALID_ARGUMENT)
    }

    fn thread(&mut self, port: ThreadPort) -> Code<(usize, usize)> {
        match self.names.get(port.0).map(|entry| entry.right) {
            None => {
                self.violation(format!("a thread call on name {:#x}, which is none", port.0));
                Err(INVALID_DEST)
            }
            Some(Right::Thread(task, thread)) => {
                let (at, found) = (&self.tasks[task], &self.tasks[task].threads[thread]);
                if at.alive && found.is_alive(at.ran_ns) {
                    return Ok((task, thread));
                }
                let since_ns = match at.alive {
                    true => at.ran_ns - found.end_ns,
                    false => self.now_ns - at.died_ns,
                };
                let code = self.dying(since_ns, found.thread_id, TERMINATED);
                Err(self.on_dead(port.0, code))
            }
            Some(other) => {
                self.violation(format!("a thread call on {other:?}"));
                Err(INVALID_ARGUMENT)
            }
        }
    }

    pub fn port_deallocate(&mut self, name: u32) -> Code<()> {
        let right = self.names.get(name).map(|entry| entry.right);
        if !self.names.take(name) {
            self.violation(format!("mach_port_deallocate of name {name:#x}, which is none"));
            return Err(INVALID_NAME);
        }
        if let Some(Right::Token(task, token)) = right {
            self.tasks[task].tokens.retain(|held| *held != token);
            self.note_holds();
        }
        Ok(())
    }

    pub fn vm_deallocate(&mut self, memory: &OutOfLine) -> Code<()> {
        if memory.size == 0 {
            return Ok(());
        }
        if self.placed.get(&memory.address) != Some(&memory.size) {
            self.violation(format!("mach_vm_deallocate of {memory:?}, which no call placed"));
            return Err(INVALID_ADDRESS);
        }
        self.placed.remove(&memory.address);
        Ok(())
    }

    pub fn task_suspend2(&mut self, port: TaskPort) -> Code<SuspensionToken> {
        let task = self.task_or(port, FAILURE)?;
        if self.tasks.iter().any(|task| task.alive && task.is_held()) {
            self.violation("a suspension while another is held");
        }
        self.pass(self.costs.suspend_per_running * self.tasks[task].on_cpus());
        // It may have died during the wait.
        let task = self.task_or(port, FAILURE)?;
        self.tasks[task].last_stop_ns = self.tasks[task].ran_ns;
        self.tokens_made += 1;
        self.tasks[task].tokens.push(self.tokens_made);
        self.note_holds();
        Ok(SuspensionToken(self.names.give(Right::Token(task, self.tokens_made))))
    }

    pub fn task_resume2(&mut self, token: &SuspensionToken) -> Code<()> {
        let Some(Right::Token(task, number)) = self.names.get(token.0).map(|entry| entry.right) else {
            self.violation(format!("task_resume2 of {token:?}, which is no token"));
            return Err(INVALID_DEST);
        };
        self.names.take(token.0);
        self.tasks[task].tokens.retain(|held| *held != number);
        self.note_holds();
        if self.tasks[task].alive { Ok(()) } else { Err(INVALID_DEST) }
    }

    pub fn task_threads(
        &mut self,
        port: TaskPort,
        ports: &mut Vec<ThreadPort>,
        answer: Option<Answer>,
    ) -> Code<OutOfLine> {
        let task = self.task_or(port, FAILURE)?;
        let mut found: Vec<usize> = self.tasks[task].living().map(|(index, _)| index).collect();
        if answer == Some(Answer::NoThreads) {
            found.clear();
        }
        self.pass(self.costs.list_per_thread * found.len() as u64);
        if found.is_empty() {
            return Ok(OutOfLine { address: 0, size: 0 });
        }
        for thread in &found {
            ports.push(ThreadPort(self.names.give(Right::Thread(task, *thread))));
        }
        let (address, size) = (self.placed_next, found.len() as u64 * 4);
        self.placed_next += size.next_multiple_of(self.plan.page);
        self.placed.insert(address, size);
        self.placed_peak = self.placed_peak.max(self.placed.len());
        Ok(OutOfLine { address, size })
    }

    pub fn task_dyld_info(&mut self, port: TaskPort, count: u32) -> Code<TaskDyldInfo> {
        let task = self.task(port)?;
        if count < 5 {
            return Err(INVALID_ARGUMENT);
        }
        let task = &self.tasks[task];
        Ok(TaskDyldInfo {
            all_image_info_addr: task.dyld.registered,
            all_image_info_size: task.info_size,
            all_image_info_format: 1,
        })
    }

    /// Ready threads get the CPUs that those of a held task have left, and run up to their own stop, in the
    /// kernel (osfmk/kern/task.c, place_task_hold: it waits only until no thread is on a CPU).
    fn dispatch(&mut self, task: usize, thread: usize) {
        let Some(since_ns) = self.held_since_ns.filter(|_| self.tasks[task].is_held()) else { return };
        let (holds, now_ns, seed) = (self.holds, self.now_ns, self.seed);
        let ran_ns = self.tasks[task].ran_ns;
        let found = &mut self.tasks[task].threads[thread];
        let after_ns = hash(&[seed, found.thread_id, holds, 51]) % cost::DISPATCHED_WITHIN;
        if found.is_ready(ran_ns) && found.dispatched_in != holds && now_ns - since_ns >= after_ns {
            found.dispatched_in = holds;
            found.dispatch_ns += cost::DISPATCH;
        }
    }

    /// User and system time, and the run state.
    fn usage(&mut self, task: usize, thread: usize) -> Code<(u64, u64, i32)> {
        self.dispatch(task, thread);
        let (at, found) = (&self.tasks[task], &self.tasks[task].threads[thread]);
        let (cpu_ns, dispatch_ns) = match at.cpu_times {
            CpuTimes::Exact => (found.at(at.ran_ns).cpu_ns, found.dispatch_ns),
            CpuTimes::Lagging => (found.lagging_cpu_ns(at.ran_ns, at.last_stop_ns), found.dispatch_ns),
            CpuTimes::Zero => (0, 0),
            CpuTimes::Refused => return Err(NOT_SUPPORTED),
        };
        // osfmk/kern/thread_act.c: RUNNING, UNINTERRUPTIBLE, STOPPED, WAITING in this order. A
        // ready thread of a held task stays so until it gets a CPU and runs to its stop.
        let stopped = self.stands(task) || found.suspended_by_others > 0;
        let still_ready = at.is_held() && found.is_ready(at.ran_ns) && found.dispatched_in != self.holds;
        let run_state = match found.doing(at.ran_ns) {
            Doing::Run if still_ready => 1,
            Doing::Run if !stopped => 1,
            // A held thread waits, too: TH_SUSP is set by thread_stop alone.
            Doing::Run | Doing::Wait => 3,
        };
        Ok((cpu_ns - cpu_ns / 10, cpu_ns / 10 + dispatch_ns, run_state))
    }

    pub fn thread_basic_info(&mut self, port: ThreadPort, count: u32) -> Code<ThreadBasicInfo> {
        let (task, thread) = self.thread(port)?;
        if count < 10 {
            return Err(INVALID_ARGUMENT);
        }
        let (user_ns, system_ns, run_state) = self.usage(task, thread)?;
        let suspend_count = self.tasks[task].threads[thread].suspended_by_others;
        let us = |ns: u64| ns / 1_000 * 1_000;
        Ok(ThreadBasicInfo { user_ns: us(user_ns), system_ns: us(system_ns), run_state, suspend_count })
    }

    pub fn thread_identifier_info(&mut self, port: ThreadPort, count: u32) -> Code<ThreadIdentifierInfo> {
        let (task, thread) = self.thread(port)?;
        if count < 6 {
            return Err(INVALID_ARGUMENT);
        }
        let thread = &self.tasks[task].threads[thread];
        Ok(ThreadIdentifierInfo {
            thread_id: thread.thread_id,
            thread_handle: thread.handle,
            dispatch_qaddr: thread.qaddr,
        })
    }

    pub fn thread_extended_info(
        &mut self,
        port: ThreadPort,
        count: u32,
        answer: Option<Answer>,
    ) -> Code<ThreadExtendedInfo> {
        let (task, thread) = self.thread(port)?;
        if count < 28 {
            return Err(INVALID_ARGUMENT);
        }
        let (user_ns, system_ns, run_state) = self.usage(task, thread)?;
        let mut name = self.tasks[task].threads[thread].name.clone();
        if answer == Some(Answer::Empty) {
            name.clear();
        }
        Ok(ThreadExtendedInfo { user_ns, system_ns, run_state, name })
    }

    pub fn thread_get_state(
        &mut self,
        port: ThreadPort,
        flavor: i32,
        state: &mut [u32; StateFlavor::COUNT_MAX],
        count: &mut u32,
    ) -> Code<()> {
        let (task, thread) = self.thread(port)?;
        let (ours, other) = match self.arch {
            Arch::Aarch64 | Arch::Arm => (StateFlavor::ARM64, StateFlavor::X86_64),
            Arch::X86_64 | Arch::X86 => (StateFlavor::X86_64, StateFlavor::ARM64),
        };
        if flavor == other.flavor && self.seed.is_multiple_of(2) && *count >= 4 {
            // The number means a different state here (flavor 6 of x86: the exception state).
            for (word, index) in state.iter_mut().zip(0..(*count).min(other.count)) {
                *word = hash(&[self.seed, u64::from(index)]) as u32;
            }
            *count = 4;
            return Ok(());
        }
        if flavor != ours.flavor || *count < ours.count {
            return Err(INVALID_ARGUMENT);
        }
        *count = ours.count;
        let held = self.tasks[task].is_held();
        let is_signed = self.tasks[task].is_arm64e;
        let made = self.tasks[task].stack(thread);
        let mut put = |byte: usize, value: u64| {
            state[byte / 4] = value as u32;
            state[byte / 4 + 1] = (value >> 32) as u32;
        };
        for word in 0..(ours.count as usize / 2) {
            put(word * 8, hash(&[made.key, word as u64, 41]));
        }
        match self.arch {
            Arch::Aarch64 | Arch::Arm => {
                // osfmk/arm64/status.c: signed if both sides have pointer authentication.
                for (byte, value) in [(232, made.fp), (240, made.lr), (248, made.sp), (256, made.pc)] {
                    put(byte, if is_signed { stack::sign(value, byte as u64) } else { value });
                }
                put(264, u64::from(!is_signed) << 32); // cpsr, and flags: NO_PTRAUTH
            }
            Arch::X86_64 | Arch::X86 => {
                for (byte, value) in [(48, made.fp), (56, made.sp), (128, made.pc)] {
                    put(byte, value);
                }
            }
        }
        if held {
            let (at, found) = (&self.tasks[task], &self.tasks[task].threads[thread]);
            let names = found.stretches[found.at(at.ran_ns).stretch].names.clone();
            *self.captured.entry((found.thread_id, names)).or_default() += 1;
        }
        Ok(())
    }

    pub fn vm_read_overwrite(&mut self, port: TaskPort, address: u64, into: &mut [u8]) -> Code<()> {
        let task = self.task(port)?;
        self.pass(self.costs.read_per_block * (into.len() as u64).div_ceil(cost::READ_BLOCK_BYTES));
        if address.checked_add(into.len() as u64).is_none() {
            return Err(INVALID_ARGUMENT);
        }
        // osfmk/vm/vm_map.c, vm_map_copyin_kernel_buffer: KHEAP_MAX_SIZE at most, and any fault
        // of the copy is an invalid address.
        let copied = into.len() as u64 <= if self.plan.page == 0x4000 { 32 << 10 } else { 16 << 10 };
        self.virtual_copies += u64::from(!copied);
        // All or nothing: a failed read leaves the buffer unchanged.
        let mut bytes = vec![0; into.len()];
        match self.tasks[task].read(address, &mut bytes) {
            Ok(()) => {
                into.copy_from_slice(&bytes);
                Ok(())
            }
            Err(Some(_)) if !copied => Err(PROTECTION_FAILURE),
            Err(_) => Err(INVALID_ADDRESS),
        }
    }

    pub fn vm_region_recurse(
        &mut self,
        port: TaskPort,
        address: u64,
        depth: u32,
        count: u32,
    ) -> Code<Region> {
        let task = self.task(port)?;
        if count < 19 {
            return Err(INVALID_ARGUMENT);
        }
        let task = &self.tasks[task];
        let found = task.region_from(address);
        if let Some(submap) = task.memory.submap.clone().filter(|_| depth == 0) {
            let inside = submap.contains(&address) || found.is_some_and(|at| submap.contains(&at.start));
            if inside {
                return Ok(Region {
                    address: submap.start,
                    size: submap.end - submap.start,
                    protection: 5,
                    user_tag: 0,
                    is_submap: true,
                });
            }
        }
        let at = found.ok_or(INVALID_ADDRESS)?;
        Ok(Region {
            address: at.start,
            size: at.size,
            protection: at.protection,
            user_tag: at.tag,
            is_submap: false,
        })
    }

    pub fn wait_until(&mut self, deadline_ticks: u64) -> Code<()> {
        const ABORTED: i32 = 14;
        let deadline_ns = self.ns_of(deadline_ticks);
        let Some(left_ns) = deadline_ns.checked_sub(self.now_ns) else { return Ok(()) };
        if self.interrupt_waits > 0 && self.rng.chance(1, self.interrupt_waits) {
            self.pass(left_ns / 2);
            return Err(ABORTED);
        }
        let overshoot_ns = self.rng.within(0, self.overshoot_ns);
        // osfmk/arm/arm_timer.c: a timer of a background thread fires up to 32 intervals late,
        // at most 100 ms.
        let background_ns = match self.begins_in_background && !self.is_interactive {
            true => (32 * left_ns).min(100 * MS),
            false => 0,
        };
        self.pass(left_ns + overshoot_ns + background_ns);
        Ok(())
    }

    /// The cache of the first task that has one.
    fn cache(&self) -> Option<&super::images::Cache> {
        self.tasks.iter().find_map(|task| task.images.cache.as_ref())
    }

    /// Offset of the client's cache from the target's.
    fn own_cache_moved(&self) -> u64 {
        if self.own_cache == OwnCache::OtherSlide { 4 * self.plan.page } else { 0 }
    }

    pub fn own_shared_cache_identity(&self) -> Option<([u8; 16], u64, u64)> {
        let cache = self.cache().filter(|_| self.own_cache != OwnCache::Absent)?;
        let mut uuid = cache.uuid;
        uuid[0] ^= u8::from(self.own_cache == OwnCache::OtherUuid);
        let start = cache.range.start + self.own_cache_moved();
        Some((uuid, start, cache.range.end - cache.range.start))
    }

    pub fn own_shared_cache(&self, address: u64, len: usize) -> Option<ImageBytes> {
        let cache = self.cache().filter(|_| self.own_cache != OwnCache::Absent)?;
        let from = address.checked_sub(self.own_cache_moved())?;
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let at = from + out.len() as u64;
            let size = |bytes: &Vec<u8>| (bytes.len() as u64).next_multiple_of(self.plan.page);
            let (start, bytes, protection) = cache
                .regions
                .iter()
                .find(|(start, bytes, _)| (*start..*start + size(bytes)).contains(&at))?;
            if protection & 3 != 1 {
                return None;
            }
            let offset = at - start;
            let take = ((size(bytes) - offset) as usize).min(len - out.len());
            out.extend((0..take).map(|index| bytes.get(offset as usize + index).copied().unwrap_or(0)));
        }
        if self.own_cache == OwnCache::OtherUuid {
            // Different code at the same place.
            out.iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        Some(ImageBytes::new(out))
    }
}
