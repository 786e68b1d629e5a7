//! Stacks equal those of the simulated threads exactly.

use stackprof::arch::Arch;
use stackprof::sampler::Options;
use stackprof::walk::UnwindMethod;

use super::recorded::{HZ, Replay, idle, options, recorded};
use crate::seeds::rounds::seeds;
use crate::sim_kernel::*;

fn worlds(seed: u64) -> Vec<(String, World)> {
    let mut worlds = Vec::new();
    for arch in [Arch::Aarch64, Arch::X86_64] {
        for pac in [false, true] {
            for swift in [false, true] {
                let process = canned(500).with(|process| {
                    process.pac = pac;
                    process.program.threads.iter_mut().for_each(|thread| thread.swift = swift);
                });
                let name = format!("{arch:?}, pac {pac}, swift {swift}");
                // Swift's mark in saved frame pointers and signatures exist only on arm64.
                if arch == Arch::Aarch64 || !pac && !swift {
                    worlds.push((name, World::new(arch, seed).process(process)));
                }
            }
        }
    }
    worlds
}

#[test]
fn cpu_profiles_have_the_true_stacks_and_shares() {
    for seed in seeds(0..4) {
        let _replay = Replay(seed);
        for (name, world) in worlds(seed) {
            eprintln!("{name}");
            let (_, recorded) = recorded(world, &options(2_000));
            recorded.check_exact();
            recorded.check_shares(0.05);
            recorded.check_ran(&name);
        }
    }
}

#[test]
fn wall_clock_profiles_show_waiting_stacks_too() {
    for seed in seeds(0..4) {
        let _replay = Replay(seed);
        for (name, world) in worlds(seed) {
            eprintln!("{name}");
            let (_, recorded) = recorded(world, &idle(1_000));
            recorded.check_exact();
            for (id, names) in recorded.waits.keys() {
                assert!(recorded.shown().contains(&(*id, names.clone())), "{name}: {names:?}");
            }
        }
    }
}

#[test]
fn roots_of_pthreads_and_of_the_main_thread_are_kept() {
    for arch in [Arch::Aarch64, Arch::X86_64] {
        let (_, recorded) = recorded(World::new(arch, 2).process(canned(500)), &options(500));
        for (_, _, names) in recorded.stacks.keys() {
            let roots: Vec<&str> = names.iter().take(2).map(String::as_str).collect();
            assert!(
                roots == ["start", "main"] || roots == ["thread_start", "_pthread_start"],
                "{arch:?}: {roots:?}"
            );
        }
    }
}

/// Before macOS 12: `start` is a function of libdyld.dylib, where dyld makes `main` return to.
#[test]
fn roots_of_older_systems_are_kept() {
    for arch in [Arch::Aarch64, Arch::X86_64] {
        for unwind in [UnwindMethod::Auto, UnwindMethod::Cfi, UnwindMethod::FramePointer] {
            let process = canned(500).with(|process| {
                let images = &mut process.program.images;
                images.iter_mut().flat_map(|image| &mut image.functions).for_each(|name| {
                    if name == "start" {
                        *name = "dyldbootstrap_start".to_owned();
                    }
                });
                let libdyld =
                    SimImage::cached("/usr/lib/system/libdyld.dylib", &["dlsym", "start", "dlerror"]);
                images.push(libdyld);
            });
            let options = Options { unwind, ..options(500) };
            let (_, recorded) = recorded(World::new(arch, 2).process(process), &options);
            let main = recorded.stacks.iter().filter(|((_, _, names), _)| names.contains(&"main".to_owned()));
            let (mut whole, mut all) = (0, 0);
            for ((_, complete, names), count) in main {
                assert_eq!(names[..2], ["start", "main"], "{arch:?}, {unwind:?}");
                all += count;
                whole += if *complete { *count } else { 0 };
            }
            // With frame pointers alone some stacks cannot be proved complete.
            let is_proved = unwind != UnwindMethod::FramePointer || arch == Arch::Aarch64;
            assert!(all > 100 && (whole == all || !is_proved), "{arch:?}, {unwind:?}: {whole} of {all}");
        }
    }
}

#[test]
fn pointer_authentication_is_stripped_from_arm64e_registers() {
    let process = canned(500).pac().with(|process| process.arm64e = true);
    let (_, recorded) = recorded(World::arm64(3).process(process), &options(1_000));
    recorded.check_exact();
    recorded.check_ran("arm64e");
}

/// Includes stacks that need many pieces, and images.
#[test]
fn no_read_exceeds_the_kernels_buffer() {
    for world in [World::arm64(3), World::x86_64(3)] {
        let process = canned(500).with(|process| {
            process.program.threads.iter_mut().for_each(|thread| thread.locals = 4_000);
        });
        let (kernel, recorded) = recorded(world.process(process), &options(1_000));
        let stats = &recorded.profile.stats;
        assert!(stats.stacks_complete > 100, "{stats:?}");
        assert_eq!(kernel.report().virtual_copies, 0);
    }
}

#[test]
fn callers_of_stubs_without_frames_are_kept() {
    let (_, recorded) = recorded(World::arm64(3).process(canned(500)), &idle(500));
    let stub = |names: &Vec<String>| names.last().is_some_and(|leaf| leaf == "__psynch_cvwait");
    let found: Vec<_> =
        recorded.stacks.keys().map(|(_, _, names)| names).filter(|names| stub(names)).collect();
    assert!(!found.is_empty());
    for names in found {
        assert_eq!(names[names.len() - 2], "_pthread_cond_wait", "only in the link register");
    }
}

#[test]
fn stacks_beyond_the_initial_size_become_complete() {
    let process = canned(500).with(|process| {
        process.program.threads.iter_mut().for_each(|thread| thread.locals = 4_000);
    });
    let (_, recorded) = recorded(World::arm64(3).process(process), &options(2_000));
    let stats = &recorded.profile.stats;
    let whole = stats.stacks_complete as f64 / stats.samples as f64;
    assert!(whole > 0.98, "{stats:?}");
}

#[test]
fn threads_without_pthread_are_recorded_as_incomplete() {
    let thread = SimThread::bare().run(5 * MS, &["z4", "w5"]).wait(MS, &["mach_msg2_trap", "w5"]);
    let (_, recorded) = recorded(World::arm64(3).process(canned(500).thread(thread)), &options(500));
    let bare = vec!["w5".to_owned(), "z4".to_owned()];
    let found: Vec<bool> = recorded
        .stacks
        .keys()
        .filter(|(_, _, names)| *names == bare)
        .map(|(_, complete, _)| *complete)
        .collect();
    // It is unknown that such a thread starts in w5.
    assert_eq!(found, [false], "{:#?}", recorded.stacks);
    for (id, complete, names) in recorded.stacks.keys() {
        assert!(recorded.captures.contains_key(&(*id, names.clone())), "thread {id}: {names:?}");
        assert!(*complete || names[0] == "w5", "thread {id}: {names:?}");
    }
}

#[test]
fn samples_and_losses_add_up_to_the_cpu_time() {
    for times in [CpuTimes::Exact, CpuTimes::Lagging] {
        for seed in seeds(0..4) {
            let _replay = Replay(seed);
            let process = canned(500).cpu_times(times);
            let (_, recorded) = recorded(World::arm64(seed).process(process), &options(2_000));
            let real = recorded.truth.values().sum::<u64>() as f64 * f64::from(HZ) / 1e9;
            let told = (recorded.profile.stats.samples + recorded.lost()) as f64;
            assert!((told - real).abs() < 0.02 * real + 30.0, "{times:?}: {told} for {real}");
            recorded.check_exact();
        }
    }
}

#[test]
fn threads_suspended_by_another_debugger_are_left_alone() {
    for options in [options(500), idle(500)] {
        let held = SimThread::pthread("held").suspended_by_others(1).run(MS, &["z5", "w5"]);
        let (kernel, recorded) = recorded(World::arm64(3).process(canned(500).thread(held)), &options);
        recorded.check_exact();
        let ids = kernel.thread_ids();
        let held = ids.iter().find(|(_, name)| name == "held").unwrap().0;
        assert!(recorded.stacks.keys().all(|(id, ..)| *id != held));
    }
}

#[test]
fn the_same_world_gives_the_same_bytes() {
    for seed in seeds(0..3) {
        let _replay = Replay(seed);
        let once = || {
            let world = World::arm64(seed).process(seeded(500, seed, 400));
            recorded(world, &options(400)).1.folded()
        };
        let first = once();
        assert!(first.lines().count() > 5, "{first}");
        assert_eq!(first, once());
    }
}
