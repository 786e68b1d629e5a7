//! The stages' system access, implemented by the simulated kernel: clocks and /proc. A clock may be read late:
//! time passes meanwhile, and more records are written.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use libc::pid_t;

use super::super::pipeline::System;
use super::kernel::Kernel;
use crate::addr::Avma;
use crate::sources::linux::clocks::Clocks;
use crate::sources::linux::perf::process::filter::Procfs;
use crate::sources::linux::perf::stack::stacks::TargetMemory;
use crate::sources::linux::perf::waits::SleepingThreads;
use crate::sources::{Capture, SleepingThread};

/// A simulated kernel, shared by the stages and the test.
#[derive(Clone)]
pub(super) struct Machine(pub(super) Rc<RefCell<Kernel>>);

impl Machine {
    pub(super) fn system(&self) -> System {
        System {
            clocks: Box::new(self.clone()),
            procfs: Box::new(self.clone()),
            memory: Box::new(self.clone()),
            threads: Box::new(self.clone()),
        }
    }
}

impl Clocks for Machine {
    fn monotonic_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    fn process_cpu_ns(&self, pid: pid_t) -> Option<u64> {
        let mut kernel = self.0.borrow_mut();
        kernel.hold_up_clock();
        kernel.cpu_ns(pid)
    }

    fn update_thread_clocks(&self, _tids: &mut dyn Iterator<Item = pid_t>) {}
}

impl Procfs for Machine {
    fn processes(&self) -> Vec<pid_t> {
        self.0.borrow().pids()
    }

    fn parent(&self, pid: pid_t) -> Option<pid_t> {
        self.0.borrow().process(pid).map(|process| process.parent)
    }

    fn user(&self, _pid: pid_t) -> Option<u32> {
        None
    }

    fn is_in_cgroup(&self, _pid: pid_t, _cgroup: &str) -> Option<bool> {
        None
    }

    fn name(&self, pid: pid_t) -> String {
        self.0.borrow().process(pid).map(|process| process.name.clone()).unwrap_or_default()
    }

    fn program(&self, pid: pid_t) -> Option<Vec<u8>> {
        self.0.borrow().process(pid).map(|process| process.name.clone().into_bytes())
    }

    fn threads(&self, pid: pid_t) -> Vec<pid_t> {
        let kernel = self.0.borrow();
        kernel.process(pid).map(|process| process.threads.iter().copied().collect()).unwrap_or_default()
    }

    fn thread_name(&self, pid: pid_t, _tid: pid_t) -> Option<String> {
        self.0.borrow().process(pid).map(|process| process.name.clone())
    }

    fn stack_top(&self, _pid: pid_t) -> Option<Avma> {
        None
    }

    fn is_alive(&self, pid: pid_t) -> bool {
        self.0.borrow().process(pid).is_some()
    }
}

impl TargetMemory for Machine {
    fn read(&self, _tid: pid_t, _from: u64, _len: usize, _into: &mut Vec<u8>) -> io::Result<usize> {
        Err(io::ErrorKind::NotFound.into())
    }
}

impl SleepingThreads for Machine {
    fn capture(&self, _pid: pid_t, _tid: pid_t, _bytes: usize, _capture: &mut Capture) -> SleepingThread {
        SleepingThread::Hidden
    }

    fn exists(&self, pid: pid_t, tid: pid_t) -> bool {
        self.0.borrow().process(pid).is_some_and(|process| process.threads.contains(&tid))
    }
}
