//! A small right client of the simulated kernel, and helpers of its tests.

use std::collections::BTreeMap;

use stackprof::arch::Arch;
use stackprof::sources::mach::kernel::{KernReturn, MachKernel, StateFlavor, TaskPort, ThreadPort};

use crate::sim_kernel::*;

pub fn u64_at(kernel: &dyn MachKernel, task: TaskPort, address: u64) -> u64 {
    let mut bytes = [0; 8];
    kernel.vm_read_overwrite(task, address, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

pub fn state(kernel: &dyn MachKernel, thread: ThreadPort) -> [u64; 34] {
    let flavor = if kernel.arch() == Arch::Aarch64 { StateFlavor::ARM64 } else { StateFlavor::X86_64 };
    let (mut words, mut count) = ([0; StateFlavor::MAX_COUNT], flavor.count);
    kernel.thread_get_state(thread, flavor.flavor, &mut words, &mut count).unwrap();
    assert_eq!(count, flavor.count);
    let mut out = [0; 34];
    for (out, pair) in out.iter_mut().zip(words.chunks(2)) {
        *out = u64::from(pair[0]) | u64::from(pair[1]) << 32;
    }
    out
}

/// Images as dyld lists them: path and address of the header.
pub fn images(kernel: &dyn MachKernel, task: TaskPort) -> BTreeMap<u64, String> {
    let info = kernel.task_dyld_info(task, 5).unwrap().all_image_info_addr;
    let array = u64_at(kernel, task, info + 8);
    let count = u64_at(kernel, task, info) >> 32;
    let mut out = BTreeMap::new();
    for index in 0..count {
        let base = u64_at(kernel, task, array + 24 * index);
        let mut path = u64_at(kernel, task, array + 24 * index + 8);
        let mut text = Vec::new();
        loop {
            let mut byte = [0];
            kernel.vm_read_overwrite(task, path, &mut byte).unwrap();
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
            path += 1;
        }
        assert_eq!(u64_at(kernel, task, base) as u32, 0xfeed_facf);
        out.insert(base, String::from_utf8(text).unwrap());
    }
    out
}

/// A client that has the task of process 500 and lists its threads.
pub struct Client<'k> {
    pub kernel: &'k SimKernel,
    pub task: TaskPort,
}

impl<'k> Client<'k> {
    pub fn new(kernel: &'k SimKernel) -> Client<'k> {
        Client { kernel, task: kernel.task_for_pid(500).unwrap() }
    }

    pub fn threads(&self) -> Vec<ThreadPort> {
        let mut ports = Vec::new();
        let array = self.kernel.task_threads(self.task, &mut ports).unwrap();
        self.kernel.vm_deallocate(array).unwrap();
        ports
    }

    pub fn give_back(&self, ports: &[ThreadPort]) {
        ports.iter().for_each(|port| self.kernel.port_deallocate(port.0).unwrap());
    }

    pub fn done(self) {
        self.kernel.port_deallocate(self.task.0).unwrap();
    }
}

pub fn code<T: std::fmt::Debug>(result: Result<T, KernReturn>) -> i32 {
    result.unwrap_err().code()
}

pub fn violations(kernel: &SimKernel) -> Vec<String> {
    kernel.report().violations.into_iter().map(|violation| violation.what).collect()
}
