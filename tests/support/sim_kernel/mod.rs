//! A simulated XNU kernel for the tests of the macOS backend: `SimKernel: MachKernel`.
//!
//! Deterministic: the same world and the same calls give the same answers. Strict: answers are those of the
//! real kernel, never more lenient, and violations by the client are recorded (`assert_clean`). The facts are
//! from xnu-11417, dyld-1378 and libpthread-539; each file cites its own.
//!
//! ```text
//! spec      what a test states            world   from that to a kernel, ready-made worlds
//! code, macho, images   images as bytes   stack   frames from a known list of functions
//! memory, thread, dyld, task              ports   names and references
//! state     processes, time               faults, cost   what goes wrong, what calls cost
//! mach_calls, bsd_calls   the answers     report  what is left, what really happened
//! ```
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod bsd_calls;
mod code;
mod cost;
mod dyld;
mod faults;
mod images;
mod mach_calls;
mod macho;
mod memory;
mod ports;
mod report;
mod spec;
mod stack;
mod state;
mod task;
mod thread;
mod world;

use std::cell::RefCell;
use std::ffi::OsString;

use stackprof::arch::Arch;
use stackprof::binary::ImageBytes;
use stackprof::sources::mach::kernel::{
    BsdInfo, Errno, Kern, KernReturn, MachKernel, OutOfLine, Region, StateFlavor, SuspensionToken,
    TaskDyldInfo, TaskPort, ThreadBasicInfo, ThreadExtendedInfo, ThreadIdentifierInfo, ThreadPort,
};

pub use bsd_calls::SIGCONT;
pub use cost::{Costs, Delays};
pub use dyld::Op;
pub use faults::{
    Answer, EINVAL, ENOENT, EPERM, ESRCH, Happening, INVALID_DEST, Method, Which, plausible_codes,
};
pub use report::Truth;
pub use spec::*;
pub use stack::ADDRESS_BITS;
pub use stackprof::rng::Rng;
pub use state::{OwnCache, ZOMBIE_PARENT, timebase};
pub use task::QUEUE_LABEL;
pub use world::{World, busy, canned, seeded};

use state::State;

/// The simulated kernel.
#[derive(Debug)]
pub struct SimKernel {
    state: RefCell<State>,
}

/// Far more calls than any test makes: a client in an endless loop fails instead of hanging.
const MOST_CALLS: usize = 3_000_000;

/// Payload that unwinds through a killed client.
#[derive(Debug)]
pub struct ProfilerKilled;

impl SimKernel {
    /// Begins a call: planned events happen, time passes, the rules are checked. `None`: the client is dead.
    /// Otherwise returns the planned result, if any.
    fn enter(&self, method: Method) -> Option<Option<Answer>> {
        let mut state = self.state.borrow_mut();
        if state.killed {
            return None;
        }
        state.calls.push(method);
        if state.calls.len() >= MOST_CALLS || state.now_ns >= state.patience_until_ns {
            // Its calls while it unwinds must not fail again.
            state.killed = true;
            let (calls, ms) = (state.calls.len(), state.now_ns / MS);
            drop(state);
            panic!("the client goes in circles: {} is call {calls} at {ms} ms, and no end", method.name());
        }
        if state.interrupted.as_ref().is_some_and(|(at_ns, _)| *at_ns <= state.now_ns)
            && let Some((_, live)) = state.interrupted.take()
        {
            live.request_stop();
        }
        let of_method = state.by_method.entry(method).or_default();
        *of_method += 1;
        let of_method = *of_method;
        if state.before_call().is_some() {
            state.kill_client();
            drop(state);
            // Not `panic_any`: nothing has failed, so nothing is printed.
            std::panic::resume_unwind(Box::new(ProfilerKilled));
        }
        for index in 0..state.tasks.len() {
            let moves = state.tasks[index].alive && !state.stands(index);
            state.tasks[index].epoch += u64::from(moves);
        }
        let cost_ns = state.cost(method);
        state.pass(cost_ns);
        let held = state.tasks.iter().any(|task| task.alive && task.is_held());
        if held && !method.is_for_a_pause() && method != Method::TaskSuspend2 {
            state.violation(format!("{} while the target is held", method.name()));
        }
        let call = state.call();
        Some(state.faults.answer(call, method, of_method))
    }

    fn call<T>(
        &self,
        method: Method,
        answer: impl FnOnce(&mut State, Option<Answer>) -> Result<T, i32>,
    ) -> Result<T, i32> {
        let gone = if method.is_bsd() { ESRCH } else { INVALID_DEST };
        let planned = self.enter(method).ok_or(gone)?;
        answer(&mut self.state.borrow_mut(), planned)
    }

    /// A call without effect if it fails as planned.
    fn mach<T>(
        &self,
        method: Method,
        answer: impl FnOnce(&mut State, Option<Answer>) -> Result<T, i32>,
    ) -> Kern<T> {
        kern(self.call(method, |state, planned| match planned {
            Some(Answer::Code(code)) => Err(code),
            planned => answer(state, planned),
        }))
    }

    /// A call that releases something: on a planned failure it is already gone.
    fn taking(
        &self,
        method: Method,
        answer: impl FnOnce(&mut State) -> Result<(), i32>,
        gone: impl FnOnce(&mut State),
    ) -> Kern<()> {
        kern(self.call(method, |state, planned| match planned {
            Some(Answer::Code(code)) => {
                gone(state);
                Err(code)
            }
            _ => answer(state),
        }))
    }

    fn bsd<T>(
        &self,
        method: Method,
        answer: impl FnOnce(&mut State, Option<Answer>) -> Result<T, i32>,
    ) -> Result<T, Errno> {
        let result = self.call(method, |state, planned| match planned {
            Some(Answer::Code(errno)) => Err(errno),
            planned => answer(state, planned),
        });
        result.map_err(Errno)
    }

    fn text(
        &self,
        method: Method,
        answer: impl FnOnce(&mut State) -> Result<String, i32>,
    ) -> Result<String, Errno> {
        self.bsd(method, |state, planned| match planned {
            Some(Answer::Empty) => Ok(String::new()),
            _ => answer(state),
        })
    }
}

fn kern<T>(result: Result<T, i32>) -> Kern<T> {
    result.map_err(|code| KernReturn::from_code(code).expect("a failure"))
}

impl MachKernel for SimKernel {
    fn task_for_pid(&self, pid: i32) -> Kern<TaskPort> {
        self.mach(Method::TaskForPid, |state, _| state.task_for_pid(pid))
    }
    fn pid_for_task(&self, task: TaskPort) -> Kern<i32> {
        self.mach(Method::PidForTask, |state, _| state.pid_for_task(task))
    }
    fn port_deallocate(&self, name: u32) -> Kern<()> {
        let gone = |state: &mut State| state.port_deallocate(name).map_or((), |()| ());
        self.taking(Method::PortDeallocate, |state| state.port_deallocate(name), gone)
    }
    fn vm_deallocate(&self, memory: OutOfLine) -> Kern<()> {
        let gone = |state: &mut State| state.vm_deallocate(&memory).map_or((), |()| ());
        self.taking(Method::VmDeallocate, |state| state.vm_deallocate(&memory), gone)
    }
    fn task_suspend2(&self, task: TaskPort) -> Kern<SuspensionToken> {
        self.mach(Method::TaskSuspend2, |state, _| state.task_suspend2(task))
    }
    fn task_resume2(&self, token: SuspensionToken) -> Kern<()> {
        let gone = |state: &mut State| state.task_resume2(&token).map_or((), |()| ());
        self.taking(Method::TaskResume2, |state| state.task_resume2(&token), gone)
    }
    fn task_threads(&self, task: TaskPort, ports: &mut Vec<ThreadPort>) -> Kern<OutOfLine> {
        self.mach(Method::TaskThreads, |state, planned| state.task_threads(task, ports, planned))
    }
    fn task_dyld_info(&self, task: TaskPort, count: u32) -> Kern<TaskDyldInfo> {
        self.mach(Method::TaskDyldInfo, |state, _| state.task_dyld_info(task, count))
    }
    fn thread_basic_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadBasicInfo> {
        self.mach(Method::ThreadBasicInfo, |state, _| state.thread_basic_info(thread, count))
    }
    fn thread_identifier_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadIdentifierInfo> {
        self.mach(Method::ThreadIdentifierInfo, |state, _| state.thread_identifier_info(thread, count))
    }
    fn thread_extended_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadExtendedInfo> {
        self.mach(Method::ThreadExtendedInfo, |state, planned| {
            state.thread_extended_info(thread, count, planned)
        })
    }
    fn thread_get_state(
        &self,
        thread: ThreadPort,
        flavor: i32,
        words: &mut [u32; StateFlavor::COUNT_MAX],
        count: &mut u32,
    ) -> Kern<()> {
        self.mach(Method::ThreadGetState, |state, _| state.thread_get_state(thread, flavor, words, count))
    }
    fn vm_read_overwrite(&self, task: TaskPort, address: u64, into: &mut [u8]) -> Kern<()> {
        self.mach(Method::VmReadOverwrite, |state, _| state.vm_read_overwrite(task, address, into))
    }
    fn vm_region_recurse(&self, task: TaskPort, address: u64, depth: u32, count: u32) -> Kern<Region> {
        self.mach(Method::VmRegionRecurse, |state, _| state.vm_region_recurse(task, address, depth, count))
    }
    fn proc_bsdinfo(&self, pid: i32) -> Result<BsdInfo, Errno> {
        self.bsd(Method::ProcBsdinfo, |state, _| state.proc_bsdinfo(pid))
    }
    fn proc_pidpath(&self, pid: i32) -> Result<String, Errno> {
        self.text(Method::ProcPidpath, |state| state.proc_pidpath(pid))
    }
    fn proc_regionfilename(&self, pid: i32, address: u64) -> Result<String, Errno> {
        self.text(Method::ProcRegionfilename, |state| state.proc_regionfilename(pid, address))
    }
    fn proc_args(&self, pid: i32) -> Result<Vec<u8>, Errno> {
        self.bsd(Method::ProcArgs, |state, planned| match planned {
            Some(Answer::Empty) => Ok(Vec::new()),
            _ => state.proc_args(pid),
        })
    }
    fn code_signing_flags(&self, pid: i32) -> Result<u32, Errno> {
        self.bsd(Method::CodeSigningFlags, |state, _| state.code_signing_flags(pid))
    }
    fn sysctl_i32(&self, name: &str) -> Result<i32, Errno> {
        self.bsd(Method::SysctlI32, |state, _| state.sysctl_i32(name))
    }
    fn kill(&self, pid: i32, signal: i32) -> Result<(), Errno> {
        self.bsd(Method::Kill, |state, _| state.kill(pid, signal))
    }
    fn effective_uid(&self) -> u32 {
        self.state.borrow().euid
    }
    fn own_pid(&self) -> i32 {
        self.state.borrow().pid
    }
    fn spawn_suspended(&self, command: &[OsString], _: &[(OsString, OsString)]) -> Result<i32, Errno> {
        self.bsd(Method::SpawnSuspended, |state, _| state.spawn_suspended(command))
    }
    fn wait_ended(&self, pid: i32) -> Result<Option<i32>, Errno> {
        self.bsd(Method::WaitEnded, |state, _| state.wait_ended(pid))
    }
    fn absolute_time(&self) -> u64 {
        self.enter(Method::AbsoluteTime);
        let state = self.state.borrow();
        state.ticks(state.now_ns)
    }
    fn timebase(&self) -> (u32, u32) {
        timebase(self.state.borrow().arch)
    }
    fn wait_until(&self, deadline_ticks: u64) -> Kern<()> {
        self.mach(Method::WaitUntil, |state, _| state.wait_until(deadline_ticks))
    }
    fn request_interactive_qos(&self) -> Result<(), Errno> {
        self.bsd(Method::RequestInteractiveQos, |state, _| {
            state.is_interactive = true;
            Ok(())
        })
    }
    fn page_size(&self) -> u64 {
        self.state.borrow().plan.page
    }
    fn arch(&self) -> Arch {
        self.state.borrow().arch
    }
    fn own_shared_cache(&self, address: u64, len: usize) -> Option<ImageBytes> {
        self.enter(Method::OwnSharedCache)?;
        self.state.borrow().own_shared_cache(address, len)
    }
    fn own_shared_cache_identity(&self) -> Option<([u8; 16], u64, u64)> {
        self.state.borrow().own_shared_cache_identity()
    }
}
