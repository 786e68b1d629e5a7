//! Memory, regions, stacks, and what dyld keeps in a task.

use stackprof::arch::Arch;
use stackprof::sources::mach::kernel::{KernReturn, MachKernel};

use super::client::*;
use crate::sim_kernel::*;

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
            kernel.pass(MS / 3);
            let token = kernel.task_suspend2(task).unwrap();
            let before = kernel.captures();
            let thread = ports[round % 4];
            let registers = state(&kernel, thread);
            let after = kernel.captures();
            let stack = after.iter().find(|(stack, count)| before.get(*stack) != Some(count)).unwrap().0;
            let strip = |word: u64| word & ((1 << 47) - 1);
            let (mut fp, mut found) = match arch {
                Arch::Aarch64 | Arch::Arm => (registers[29], vec![registers[32]]),
                Arch::X86_64 | Arch::X86 => (registers[6], vec![registers[16]]),
            };
            let leafs = ["__psynch_cvwait", "mach_msg2_trap", "__semwait_signal", "strlen_leaf"];
            if leafs.contains(&stack.1.last().unwrap().as_str()) {
                found.push(match arch {
                    Arch::Aarch64 | Arch::Arm => strip(registers[30]),
                    Arch::X86_64 | Arch::X86 => u64_at(&kernel, task, registers[7]),
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
fn reads_are_all_or_nothing() {
    for (arch, small) in [(Arch::Aarch64, 32 << 10), (Arch::X86_64, 16 << 10)] {
        let kernel = World::new(arch, 4).process(canned(500)).build();
        let client = Client::new(&kernel);
        let ports = client.threads();
        let handle = kernel.thread_identifier_info(ports[1], 6).unwrap().thread_handle;
        let (high, low) =
            (u64_at(&kernel, client.task, handle - 48), u64_at(&kernel, client.task, handle - 40));
        assert!((512 << 10..544 << 10).contains(&(high - low)));
        let read = |at: u64, size: usize| {
            let mut into = vec![0x77; size];
            let got = kernel.vm_read_overwrite(client.task, at, &mut into).map_err(KernReturn::code);
            assert!(got.is_ok() || into.iter().all(|byte| *byte == 0x77), "nothing is written");
            got
        };
        assert_eq!(read(low, small), Ok(()));
        assert_eq!(read(low - 8, 16), Err(1), "the guard, in a small read");
        assert_eq!(read(low - 8, small + 1), Err(2), "and in a large one");
        assert_eq!(read(0x10, 8), Err(1));
        assert_eq!(read(0x10, small + 1), Err(1), "a hole is 1 in both");
        assert_eq!(read(0x10, 0), Ok(()));
        assert_eq!(read(u64::MAX - 3, 8), Err(4));
        client.give_back(&ports);
        client.done();
        let report = kernel.report();
        assert_eq!(report.virtual_copies, 2, "those of more than the kernel's buffer");
        assert!(Report { virtual_copies: 0, ..report }.is_clean());
    }
}

#[test]
fn regions_are_the_next_above_and_submaps_are_shown_at_depth_0() {
    let kernel = World::arm64(4).process(canned(500).with(|p| p.submap = true)).build();
    let client = Client::new(&kernel);
    let region = |at, depth| kernel.vm_region_recurse(client.task, at, depth, 19);
    let first = region(0, 1024).unwrap();
    assert!(first.address > 0 && first.size > 0);
    assert_eq!(code(region(u64::MAX - 1, 1024)), 1);
    let cached = kernel.address("sort");
    let (submap, inside) = (region(cached, 0).unwrap(), region(cached, 1).unwrap());
    assert!(submap.is_submap && !inside.is_submap);
    assert!(submap.size > inside.size && inside.address <= cached && inside.protection == 5);
    // Every region once, in order, the guards of stacks below them.
    let (mut at, mut regions) = (0, Vec::new());
    while let Ok(found) = region(at, 1024) {
        assert!(found.address >= at);
        at = found.address + found.size;
        regions.push(found);
    }
    let stacks: Vec<i32> = regions.iter().filter(|r| r.user_tag == 30).map(|r| r.protection).collect();
    assert_eq!(stacks.iter().filter(|p| **p == 0).count(), 4, "{stacks:?}");
    assert_eq!(stacks.len(), 4 * 2 + 1, "that of the main thread in two");
}

#[test]
fn dyld_changes_its_list_in_steps_that_can_be_held() {
    let image = SimImage::dylib("/opt/sim/late.dylib", &["late"]).during(1_000 * SECOND, None);
    let mut arrays = Vec::new();
    for steps in 0..=6 {
        let kernel = World::arm64(4).process(canned(500).image(image.clone())).build();
        let client = Client::new(&kernel);
        let info = kernel.task_dyld_info(client.task, 5).unwrap().all_image_info_addr;
        let old = u64_at(&kernel, client.task, info + 8);
        kernel.plan_happening(kernel.calls().len() as u64 + 1, Happening::Tear { steps, hold: 4 });
        let array = u64_at(&kernel, client.task, info + 8);
        let count = u64_at(&kernel, client.task, info) >> 32;
        let timestamp = u64_at(&kernel, client.task, info + 184);
        let freed = kernel.vm_read_overwrite(client.task, old, &mut [0; 8]).is_err();
        arrays.push((array == old, array == 0, count, freed));
        assert_eq!(u64_at(&kernel, client.task, info) >> 32, 7, "the rest came to pass");
        assert_eq!(timestamp != u64_at(&kernel, client.task, info + 184), steps < 4);
    }
    // Mapped; NULL; count; timestamp; pointer; the old array freed.
    assert_eq!(arrays[0], (true, false, 6, false));
    assert_eq!(arrays[1], (true, false, 6, false));
    assert_eq!(arrays[2], (false, true, 6, false));
    assert_eq!(arrays[3], (false, true, 7, false));
    assert_eq!(arrays[4], (false, true, 7, false));
    assert_eq!(arrays[5], (false, false, 7, false));
    assert_eq!(arrays[6], (false, false, 7, true));
}

#[test]
fn the_structure_moves_while_a_program_starts() {
    let startup = Startup::Stages { listed_ns: MS, moved_ns: 2 * MS, initialized_ns: 3 * MS };
    let kernel = World::arm64(4).process(canned(500).startup(startup)).build();
    let client = Client::new(&kernel);
    let place = || kernel.task_dyld_info(client.task, 5).unwrap().all_image_info_addr;
    let old = place();
    assert_eq!([u64_at(&kernel, client.task, old + 8), u64_at(&kernel, client.task, old + 184)], [0, 0]);
    kernel.pass(MS);
    assert_eq!(u64_at(&kernel, client.task, old) >> 32, 1, "the program alone");
    kernel.pass(MS);
    let new = place();
    assert_ne!(old, new);
    assert_eq!(u64_at(&kernel, client.task, old) >> 32, 1, "the old one is stale");
    assert_eq!(images(&kernel, client.task).len(), 6);
    assert_eq!(u64_at(&kernel, client.task, new + 24) >> 8 & 0xff, 0);
    kernel.pass(MS);
    assert_eq!(u64_at(&kernel, client.task, new + 24) >> 8 & 0xff, 1);
}

#[test]
fn the_clients_own_cache_is_what_the_world_says() {
    let build = |own| World::arm64(4).process(canned(500)).own_cache(own).build();
    let same = build(OwnCache::Same);
    let (at, (uuid, start, size)) = (same.address("sort"), same.own_shared_cache_identity().unwrap());
    assert!((start..start + size).contains(&at));
    let client = Client::new(&same);
    let mut theirs = [0; 64];
    same.vm_read_overwrite(client.task, at, &mut theirs).unwrap();
    assert_eq!(same.own_shared_cache(at, 64).unwrap().bytes(), theirs);
    assert!(same.own_shared_cache(start, size as usize).is_none(), "it has holes");
    let other = build(OwnCache::OtherUuid);
    assert_ne!(other.own_shared_cache_identity().unwrap().0, uuid);
    assert_ne!(other.own_shared_cache(at, 64).unwrap().bytes(), theirs, "other code");
    assert_ne!(build(OwnCache::OtherSlide).own_shared_cache_identity().unwrap().1, start);
    let absent = build(OwnCache::Absent);
    assert!(absent.own_shared_cache_identity().is_none() && absent.own_shared_cache(at, 64).is_none());
}
