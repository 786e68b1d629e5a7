//! The BSD calls of the simulated kernel. Errors are errnos.

use std::ffi::OsString;

use stackprof::arch::Arch;
use stackprof::sources::mach::kernel::BsdInfo;

use super::faults::{ECHILD, EINVAL, ENOENT, EPERM, ESRCH};
use super::spec::SimProcess;
use super::state::State;

type Errno<T> = Result<T, i32>;

/// Signal numbers of macOS, which differ from Linux's.
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGSTOP: i32 = 17;
pub const SIGCONT: i32 = 19;

const SRUN: u32 = 2;
const SSTOP: u32 = 4;
const SZOMB: u32 = 5;

impl State {
    fn may_ask(&self, uid: u32) -> bool {
        self.euid == 0 || self.euid == uid
    }

    pub fn proc_bsdinfo(&mut self, pid: i32) -> Errno<BsdInfo> {
        let proc = self.procs.get(&pid).ok_or(ESRCH)?;
        if !self.may_ask(proc.spec.uid) {
            return Err(EPERM);
        }
        let status = match (proc.ended, proc.stopped) {
            (Some(_), _) => SZOMB,
            (None, true) => SSTOP,
            (None, false) => SRUN,
        };
        let SimProcess { flags, ppid, uid, name, .. } = &proc.spec;
        let (ppid, uid) = (*ppid as u32, *uid);
        let start_us = 1_700_000_000_000_000 + pid as u64 * 1_000_000;
        Ok(BsdInfo { flags: *flags, status, ppid, uid, name: name.clone(), start_us })
    }

    pub fn proc_pidpath(&mut self, pid: i32) -> Errno<String> {
        let proc = self.procs.get(&pid).filter(|proc| proc.ended.is_none()).ok_or(ESRCH)?;
        Ok(proc.program.path.clone())
    }

    pub fn proc_regionfilename(&mut self, pid: i32, address: u64) -> Errno<String> {
        let proc = self.procs.get(&pid).filter(|proc| proc.ended.is_none()).ok_or(ESRCH)?;
        if !self.may_ask(proc.spec.uid) {
            return Err(EPERM);
        }
        let memory = &self.tasks[proc.task.ok_or(ESRCH)?].memory;
        let region = memory.at(address).and_then(|at| memory.map.get(&at.start));
        region.and_then(|region| region.file.clone()).ok_or(ENOENT)
    }

    pub fn proc_args(&mut self, pid: i32) -> Errno<Vec<u8>> {
        let proc = self.procs.get(&pid).filter(|proc| proc.ended.is_none()).ok_or(EINVAL)?;
        if !self.may_ask(proc.spec.uid) {
            return Err(EINVAL);
        }
        let mut out = (proc.spec.args.len() as i32).to_le_bytes().to_vec();
        out.extend(proc.program.path.as_bytes());
        out.push(0);
        out.resize(out.len().next_multiple_of(8), 0);
        for text in proc.spec.args.iter().map(String::as_str).chain(["PATH=/bin"]) {
            out.extend(text.as_bytes());
            out.push(0);
        }
        Ok(out)
    }

    /// Not restricted to root (bsd/kern/kern_proc.c, csops_internal).
    pub fn code_signing_flags(&mut self, pid: i32) -> Errno<u32> {
        let proc = self.procs.get(&pid).filter(|proc| proc.ended.is_none()).ok_or(ESRCH)?;
        Ok(proc.spec.code_signing)
    }

    pub fn sysctl_i32(&mut self, name: &str) -> Errno<i32> {
        match (name, self.arch) {
            ("hw.ncpu", _) => Ok(self.ncpu),
            ("machdep.virtual_address_size", Arch::Aarch64) => Ok(super::stack::ADDRESS_BITS as i32),
            ("sysctl.proc_translated", _) if self.translated => Ok(1),
            ("sysctl.proc_translated", Arch::Aarch64) => Ok(0),
            _ => Err(ENOENT),
        }
    }

    pub fn kill(&mut self, pid: i32, signal: i32) -> Errno<()> {
        let now_ns = self.now_ns;
        let may = |uid| self.euid == 0 || self.euid == uid;
        let proc = self.procs.get_mut(&pid).filter(|_| pid > 0).ok_or(ESRCH)?;
        if !may(proc.spec.uid) {
            return Err(EPERM);
        }
        if proc.ended.is_some() || signal == 0 {
            return Ok(());
        }
        *proc.signals.entry(signal).or_default() += 1;
        match signal {
            SIGKILL | SIGTERM => self.exit(pid, signal),
            SIGSTOP => proc.stopped = true,
            SIGCONT => {
                if proc.stopped && proc.is_child {
                    proc.respawn_at_ns = proc.spec.respawns_ns.map(|after_ns| now_ns + after_ns);
                }
                proc.stopped = false;
            }
            _ => {}
        }
        Ok(())
    }

    pub fn spawn_suspended(&mut self, command: &[OsString]) -> Errno<i32> {
        let program = command.first().and_then(|first| first.to_str()).ok_or(ENOENT)?;
        let known = |spec: &&SimProcess| spec.name == program || spec.program.path == program;
        let mut spec = self.launchable.as_ref().filter(known).cloned().ok_or(ENOENT)?;
        spec.pid = self.next_pid;
        self.next_pid += 1;
        (spec.ppid, spec.uid) = (self.pid, self.euid);
        spec.args = command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let pid = spec.pid;
        self.add_process(spec, true, true);
        Ok(pid)
    }

    pub fn wait_ended(&mut self, pid: i32) -> Errno<Option<i32>> {
        let proc = self.procs.get(&pid).filter(|proc| proc.is_child).ok_or(ECHILD)?;
        let ended = proc.ended;
        if ended.is_some() {
            self.procs.remove(&pid);
        }
        Ok(ended)
    }
}
