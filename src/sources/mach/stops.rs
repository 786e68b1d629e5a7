//! Stops: the whole task is held (see `hold.rs`) while registers and stacks of a few threads are copied.
//! Everything possible is read before, or else after.
//!
//! A ready thread is reported as running like one on a CPU (TH_STATE_RUNNING), but is where it lost its CPU,
//! which is not where it uses time. No call distinguishes the two at one moment; the hold itself does. CPU
//! times are exact for threads on no CPU (they are updated when a thread leaves it), as all are in a held
//! task: a thread that was on a CPU has used time between a poll right before the hold and one during it. And
//! it has blocked in its stop, while a ready one is still ready: a hold waits only until no thread is on a
//! CPU (osfmk/kern/task.c, place_task_hold: task_wait_locked without `until_not_runnable`).

use super::hold::Hold;
use super::kernel::StateFlavor;
use super::state;
use super::stop_queue::{HOLD_NS, Stop, StopRequest};
use super::task::MachTarget;
use super::threads::is_gone;
use crate::addr::Avma;
use crate::clock::Clock;
use crate::sources::{Activity, Outcome, TargetEvent, ThreadStatus};

impl MachTarget<'_> {
    /// Holds the task and copies threads with a stop request.
    pub(super) fn capture_asked(&mut self) {
        if self.taskless_ns.is_some() {
            return self.stops.answer_asked("the program ended or was replaced before it was stopped");
        }
        let mut stops = self.prepare();
        if stops.is_empty() {
            return;
        }
        let begun_ns = self.clock.now_ns();
        let mut copied = 0;
        match Hold::begin(self.kernel, self.task) {
            Ok(hold) => {
                let held_ns = self.clock.now_ns();
                let mut now_ns = held_ns;
                for stop in &mut stops {
                    // Calls may take longer than in the last hold.
                    if copied > 0 && now_ns >= held_ns.saturating_add(HOLD_NS) {
                        break;
                    }
                    stop.outcome = self.stopped(stop, begun_ns);
                    copied += 1;
                    now_ns = self.clock.now_ns();
                }
                drop(hold);
                self.stops.copy_ns = now_ns.saturating_sub(held_ns) / copied as u64;
            }
            Err(_) => {
                copied = stops.len();
                let failed = Outcome::Unreadable("task could not be suspended");
                stops.iter_mut().for_each(|stop| stop.outcome = failed);
            }
        }
        let pause_ns = self.clock.now_ns().saturating_sub(begun_ns);
        for stop in stops.drain(copied..).rev() {
            self.stops.asked.push_front(stop.asked);
            self.stops.spare.push(stop.capture);
        }
        let (mut new_code, mut stopped_ns) = (false, pause_ns);
        for mut stop in stops {
            let capture = &mut stop.capture;
            capture.pause_ns = pause_ns;
            capture.stopped_ns = std::mem::take(&mut stopped_ns);
            if stop.outcome == Outcome::Captured {
                let (sp, pc) =
                    (capture.registers.sp().0, capture.registers.pc().0 & self.process.address_mask);
                if let Some(thread) = self.threads.get_mut(stop.asked.thread) {
                    thread.stack.learn(&self.memory, sp);
                    capture.stack_limit = thread.stack.limit(sp).map(Avma);
                }
                new_code |= self.jit.learn(&self.memory, &self.dyld, pc);
            }
            self.stops.made.push_back(stop);
        }
        if new_code {
            self.events.push_back(TargetEvent::ImagesChanged);
        }
    }

    /// Prepares buffers and facts for the threads of a hold. Threads found waiting need none.
    fn prepare(&mut self) -> Vec<Stop> {
        let count = self.stops.asked.len().min(self.stops.at_once());
        let asked: Vec<StopRequest> = self.stops.asked.drain(..count).collect();
        let mut stops = Vec::with_capacity(count);
        for asked in asked {
            let mut capture = self.stops.buffer();
            capture.stack.resize(asked.stack_bytes, 0);
            if let Some(thread) = self.threads.get_mut(asked.thread) {
                thread.stack.ask(&self.memory, thread.handle);
            }
            stops.push(Stop { asked, outcome: Outcome::Captured, capture, before: None });
        }
        // Last, so that little happens between these polls and the hold.
        for stop in stops.iter_mut().filter(|stop| !stop.asked.keep_waiting) {
            let told = self.threads.told_around_stop(self.kernel, stop.asked.thread);
            stop.before = told.map(|told| (told, self.clock.now_ns()));
        }
        let waits = |stop: &Stop| stop.before.is_some_and(|(told, _)| !told.is_runnable());
        let (waiting, stops): (Vec<Stop>, Vec<Stop>) = stops.into_iter().partition(waits);
        self.stops.made.extend(waiting.into_iter().map(|mut stop| {
            stop.outcome = Outcome::BeganToWait;
            stop
        }));
        stops
    }

    /// Copies a thread's registers and stack while the task is held, if it was on a CPU or is to be captured
    /// anywhere.
    fn stopped(&mut self, stop: &mut Stop, begun_ns: u64) -> Outcome {
        let id = stop.asked.thread;
        if let Some((before, told_ns)) = stop.before
            && let Some(held) = self.threads.told_around_stop(self.kernel, id)
        {
            if !self.stops.was_on_cpu(before, held, begun_ns.saturating_sub(told_ns)) {
                return Outcome::NotOnCpu;
            }
            let (cpu_ns, activity) = (held.cpu_ns(), Activity::Running);
            stop.capture.status = Some(ThreadStatus { cpu_ns, switches: 0, activity });
        }
        let capture = &mut stop.capture;
        let Some(thread) = self.threads.get_mut(id).filter(|thread| !thread.has_gone) else {
            return Outcome::Unreadable("thread ended before it was stopped");
        };
        let StateFlavor { flavor, count: wanted } = state::flavor(self.process.arch);
        let (mut words, mut count) = ([0; StateFlavor::COUNT_MAX], wanted);
        match self.kernel.thread_get_state(thread.port, flavor, &mut words, &mut count) {
            Ok(()) if count >= wanted => {}
            Err(failed) if is_gone(failed) => {
                thread.has_gone = true;
                return Outcome::Unreadable("thread ended before it was stopped");
            }
            _ => return Outcome::Unreadable("registers could not be read"),
        }
        capture.registers = state::registers(self.process.arch, &words, self.process.address_mask);
        let sp = capture.registers.sp().0;
        let stack_bytes = capture.stack.len();
        let from = thread.stack.red_zone(sp);
        let mut copy = |from: u64| {
            capture.stack_base = Avma(from);
            capture.stack.resize(stack_bytes.saturating_add((sp - from) as usize), 0);
            thread.stack.copy(&self.memory, from, &mut capture.stack)
        };
        match copy(from).or_else(|failed| if from < sp { copy(sp) } else { Err(failed) }) {
            Ok(()) => Outcome::Captured,
            Err(_) => Outcome::Unreadable("stack could not be read"),
        }
    }
}
