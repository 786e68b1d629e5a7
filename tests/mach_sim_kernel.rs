//! The simulated kernel itself: each rule that it is strict about is seen to refuse.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/sim_kernel/mod.rs"]
mod sim_kernel;

use std::collections::BTreeMap;

use sim_kernel::{World, busy, canned};
use stackprof::target::Arch;
use stackprof::target::mach::kernel::{MachKernel, StateFlavor, TaskPort, ThreadPort};

fn u64_at(kernel: &dyn MachKernel, task: TaskPort, address: u64) -> u64 {
    let mut bytes = [0; 8];
    kernel.vm_read_overwrite(task, address, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn state(kernel: &dyn MachKernel, thread: ThreadPort) -> [u64; 34] {
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
fn images(kernel: &dyn MachKernel, task: TaskPort) -> BTreeMap<u64, String> {
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

#[test]
fn stacks_are_real_frame_chains() {
    for (arch, pac) in [(Arch::Aarch64, false), (Arch::Aarch64, true), (Arch::X86_64, false)] {
        let kernel = World::new(arch, 3).process(canned(500).with(|process| process.pac = pac)).build();
        let task = kernel.task_for_pid(500).unwrap();
        let images = images(&kernel, task);
        assert_eq!(images.len(), 6, "{images:?}");
        let mut ports = Vec::new();
        let array = kernel.task_threads(task, &mut ports).unwrap();
        assert_eq!(ports.len(), 4);
        for round in 0..200 {
            kernel.pass(sim_kernel::MS / 3);
            let token = kernel.task_suspend2(task).unwrap();
            let before = kernel.captures();
            let thread = ports[round % 4];
            let registers = state(&kernel, thread);
            let after = kernel.captures();
            let stack = after.iter().find(|(stack, count)| before.get(*stack) != Some(count)).unwrap().0;
            let strip = |word: u64| word & ((1 << 47) - 1);
            let (mut fp, mut found) = match arch {
                Arch::Aarch64 => (registers[29], vec![registers[32]]),
                Arch::X86_64 => (registers[6], vec![registers[16]]),
            };
            let leafs = ["__psynch_cvwait", "mach_msg2_trap", "__semwait_signal", "strlen_leaf"];
            if leafs.contains(&stack.1.last().unwrap().as_str()) {
                found.push(match arch {
                    Arch::Aarch64 => strip(registers[30]),
                    Arch::X86_64 => u64_at(&kernel, task, registers[7]),
                });
            }
            while fp != 0 {
                assert!(fp.is_multiple_of(16));
                let (next, back) = (u64_at(&kernel, task, fp), u64_at(&kernel, task, fp + 8));
                if strip(back) != 0 {
                    found.push(strip(back));
                }
                assert!(next == 0 || next > fp);
                fp = next;
            }
            kernel.task_resume2(token).unwrap();
            assert_eq!(found.len(), stack.1.len(), "{arch:?} {found:x?} {stack:?}");
            for (index, (address, name)) in found.iter().zip(stack.1.iter().rev()).enumerate() {
                let lookup = address - u64::from(index > 0);
                let start = kernel.address(name);
                assert!((start..start + 1024).contains(&lookup), "{name} {address:x}");
            }
        }
        for port in ports {
            kernel.port_deallocate(port.0).unwrap();
        }
        kernel.vm_deallocate(array).unwrap();
        kernel.port_deallocate(task.0).unwrap();
        kernel.assert_clean();
    }
}

#[test]
fn a_world_is_clean_only_when_everything_was_given_back() {
    let kernel = World::arm64(1).process(busy(500)).build();
    let task = kernel.task_for_pid(500).unwrap();
    assert!(!kernel.report().is_clean());
    kernel.port_deallocate(task.0).unwrap();
    kernel.assert_clean();
}
