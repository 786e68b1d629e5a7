//! Images that are loaded and unloaded during the recording, and the sources of their names.

use stackprof::arch::Arch;
use stackprof::binary::{Mapping, MappingKind};
use stackprof::sources::Observed;
use stackprof::sources::mach::MachTarget;

use super::recorded::{Replay, options, record, recorded};
use crate::seeds::rounds::seeds;
use crate::sim_kernel::*;

fn mappings(target: &mut MachTarget<'_>) -> Vec<Mapping> {
    let mut out = Vec::new();
    for _ in 0..20 {
        if target.mappings(&mut out).is_ok() {
            break;
        }
    }
    out
}

#[test]
fn every_image_is_listed_at_its_address() {
    for arch in [Arch::Aarch64, Arch::X86_64] {
        let kernel = World::new(arch, 3).process(canned(500)).build();
        let mut target = MachTarget::attach(&kernel, 500).unwrap();
        let found = mappings(&mut target);
        let mut real = kernel.images();
        real.sort_by_key(|(_, base, ..)| *base);
        assert_eq!(found.len(), 7, "dyld too");
        for (mapping, (path, base, size, _)) in found.iter().zip(&real) {
            assert_eq!((mapping.avma.start.0, mapping.avma.end - mapping.avma.start), (*base, *size));
            assert_eq!((&mapping.path, &mapping.kind), (path, &MappingKind::File));
            assert!(target.image_bytes(mapping).is_ok(), "{path}");
        }
        drop(target);
        kernel.assert_clean();
    }
}

#[test]
fn names_come_from_any_available_cache() {
    for own in [OwnCache::Absent, OwnCache::Same, OwnCache::OtherUuid, OwnCache::OtherSlide] {
        for arch in [Arch::Aarch64, Arch::X86_64] {
            let world = World::new(arch, 3).process(canned(500)).own_cache(own);
            let (kernel, recorded) = recorded(world, &options(500));
            recorded.check_exact();
            assert_eq!(kernel.count(Method::OwnSharedCache) > 0, own == OwnCache::Same, "{own:?}");
        }
    }
}

#[test]
fn names_come_from_files_from_memory_and_from_exports_alone() {
    let directory = tempfile::tempdir().unwrap();
    for symbols in [Symbols::All, Symbols::ExportsOnly] {
        for on_disk in [true, false] {
            let process = canned(500).with(|process| {
                for image in process.program.images.iter_mut().filter(|image| !image.cached) {
                    image.symbols = symbols;
                    if on_disk {
                        *image = image.clone().on_disk(directory.path());
                    }
                }
            });
            let (_, recorded) = recorded(World::arm64(3).process(process), &options(300));
            recorded.check_exact();
        }
    }
}

#[test]
fn a_replaced_file_is_not_used() {
    let directory = tempfile::tempdir().unwrap();
    let process = canned(500).with(|process| {
        for image in process.program.images.iter_mut().filter(|image| !image.cached) {
            *image = image.clone().on_disk(directory.path());
        }
    });
    let kernel = World::arm64(3).process(process.clone()).build();
    // The same paths, other builds: different UUIDs and functions.
    let other = process.with(|process| {
        for image in process.program.images.iter_mut().filter(|image| !image.cached) {
            image.uuid = Some([7; 16]);
            image.functions.insert(0, "inserted".to_owned());
        }
    });
    drop(World::arm64(3).process(other).build());
    let recorded = record(&kernel, &options(300)).unwrap();
    recorded.check_exact();
}

#[test]
fn constantly_changing_images_are_named_while_loaded() {
    for seed in seeds(0..4) {
        let _replay = Replay(seed);
        let mut process = canned(500);
        for number in 0..60 {
            let name = format!("storm{number}");
            let at = (10 + number * 7 + seed % 5) * MS;
            let image = SimImage::dylib(&format!("/opt/sim/{name}"), &[&name]);
            process = process.image(image.during(at, (number % 3 != 0).then_some(at + 30 * MS)));
            let thread = SimThread::pthread("plugin").run(MS, &[&name, "w5"]);
            process = process.thread(thread.during(at + 5 * MS, Some(at + 25 * MS)));
        }
        let (_, recorded) = recorded(World::arm64(seed).process(process), &options(600));
        let stats = &recorded.profile.stats;
        let wrong: Vec<_> = recorded
            .stacks
            .keys()
            .filter(|(id, complete, names)| {
                *complete && !recorded.captures.contains_key(&(*id, names.clone()))
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}\n{stats:?}");
        let named = (0..60).filter(|number| {
            let name = format!("storm{number}");
            recorded.stacks.keys().any(|(_, _, names)| names.contains(&name))
        });
        assert!(named.count() > 55, "{stats:?}");
    }
}

#[test]
fn the_list_may_change_between_any_two_calls() {
    let late = SimImage::dylib("/opt/sim/late.dylib", &["late"]).during(1_000 * SECOND, None);
    let world = || World::arm64(4).process(canned(500).image(late.clone()));
    let list = |kernel: &SimKernel| {
        let mut target = MachTarget::attach(kernel, 500).unwrap();
        let mut all: Vec<String> = Vec::new();
        for _ in 0..3 {
            all = mappings(&mut target).into_iter().map(|mapping| mapping.path).collect();
        }
        drop(target);
        kernel.assert_clean();
        all.sort();
        all
    };
    let kernel = world().build();
    let before = list(&kernel);
    let calls = kernel.calls().len() as u64;
    let mut after = before.clone();
    after.push("/opt/sim/late.dylib".to_owned());
    after.sort();
    for steps in 0..=6 {
        for hold in [1, 2, 5, 40, 400] {
            for call in 1..=calls {
                let kernel = world().happens(call, Happening::Tear { steps, hold }).build();
                let found = list(&kernel);
                // During a change the old list is kept; never a part of one. There is no old one if the first
                // read came during a long change.
                assert!(
                    found == before || found == after || hold == 400 && found.is_empty(),
                    "torn after {steps} steps before call {call} for {hold} calls: {found:?}"
                );
            }
        }
    }
}

#[test]
fn an_unload_may_happen_between_any_two_calls() {
    let spare = SimImage::dylib("/opt/sim/spare.dylib", &["spare"]);
    let world = || World::arm64(4).process(canned(500).image(spare.clone()));
    let kernel = world().build();
    record(&kernel, &options(5)).unwrap();
    let spare_index = kernel.images().len() - 1;
    for steps in 0..=6 {
        for call in 1..=kernel.calls().len() as u64 {
            let kernel = world()
                .happens(call, Happening::Change(Op::Unload(vec![spare_index])))
                .happens(call, Happening::Tear { steps, hold: 6 })
                .build();
            let recorded = record(&kernel, &options(12));
            let what = format!("torn after {steps} steps before call {call}");
            let recorded = recorded.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(recorded.profile.stats.samples > 4, "{what}");
            assert!(!kernel.listed().contains(&spare.path), "{what}: it was unloaded");
            recorded.check_exact();
        }
    }
}

#[test]
fn images_are_found_in_every_stage_of_startup() {
    let startup = Startup::Stages { listed_ns: 20 * MS, moved_ns: 40 * MS, initialized_ns: 60 * MS };
    let kernel = World::arm64(4).process(canned(500).startup(startup)).build();
    let mut target = MachTarget::attach(&kernel, 500).unwrap();
    let paths = |target: &mut MachTarget<'_>| -> Vec<String> {
        let mut found: Vec<String> = mappings(target).into_iter().map(|mapping| mapping.path).collect();
        found.sort();
        found
    };
    // Before dyld runs: found in memory.
    assert_eq!(paths(&mut target), ["/opt/sim/canned", "/usr/lib/dyld"]);
    kernel.pass(25 * MS);
    assert_eq!(paths(&mut target), ["/opt/sim/canned", "/usr/lib/dyld"]);
    kernel.pass(25 * MS);
    assert_eq!(paths(&mut target).len(), 7, "the structure has moved");
    kernel.pass(25 * MS);
    assert_eq!(paths(&mut target).len(), 7);
    drop(target);
    kernel.assert_clean();
}

#[test]
fn an_unchanged_list_costs_one_read_each_tick() {
    let kernel = World::arm64(4).process(canned(500)).build();
    record(&kernel, &options(20)).unwrap();
    let few = kernel.count(Method::VmReadOverwrite);
    let kernel = World::arm64(4).process(canned(500)).build();
    let recorded = record(&kernel, &options(1_020)).unwrap();
    let reads = kernel.count(Method::VmReadOverwrite) - few - recorded.profile.stats.stops;
    let ticks = recorded.profile.stats.ticks;
    assert!(reads < ticks * 3 / 2 + 400, "{reads} reads besides stacks in {ticks} ticks");
}

#[test]
fn startup_may_progress_between_any_two_calls() {
    const FAR: u64 = 1_000 * SECOND;
    let startup = Startup::Stages { listed_ns: FAR, moved_ns: FAR + 1, initialized_ns: FAR + 2 };
    // The main thread always runs in the dyld on disk: its own stages never come.
    let world = || World::arm64(4).process(canned(500).startup(startup));
    for steps in [0, 1, 2, 4, 5, 8, 10, 12] {
        for call in 1..=60 {
            let kernel = world()
                .happens(call, Happening::Tear { steps, hold: 3 })
                .happens(call + 7, Happening::Tear { steps, hold: 6 })
                .happens(call + 21, Happening::Tear { steps: steps.min(1), hold: 2 })
                .build();
            let mut target = MachTarget::attach(&kernel, 500).unwrap();
            let mut found = Vec::new();
            for _ in 0..30 {
                kernel.pass(6 * MS);
                found = mappings(&mut target);
            }
            let paths: Vec<String> = found.into_iter().map(|mapping| mapping.path).collect();
            assert_eq!(paths.len(), 7, "{steps} steps from call {call}: {paths:?}");
            drop(target);
            kernel.assert_clean();
        }
    }
}

#[test]
fn hostile_image_lists_are_harmless() {
    let huge = u32::MAX.to_le_bytes();
    let wild = 0x7fff_ffff_ffff_fff8u64.to_le_bytes();
    let ones = [0xff; 8];
    // Count; array; dyld's header; cache; base; timestamp; dyld's path.
    let places: [(u64, &[u8]); 8] = [
        (4, &huge),
        (8, &wild),
        (8, &ones),
        (0, &huge),
        (32, &wild),
        (176, &ones),
        (184, &ones),
        (192, &wild),
    ];
    for (offset, bytes) in places {
        let kernel = World::arm64(4).process(canned(500)).build();
        kernel.poke(kernel.all_image_infos() + offset, bytes);
        let result = record(&kernel, &options(30));
        let recorded = result.unwrap_or_else(|error| panic!("at {offset}: {error}"));
        assert!(recorded.profile.stats.stops > 10, "at {offset}: {:?}", recorded.profile.stats);
        let spent = kernel.calls().len();
        assert!(spent < 40_000, "at {offset}: {spent} calls");
    }
    let kernel = World::arm64(4).process(canned(500)).build();
    // The header of the program: no Mach-O; and endless commands.
    let (_, base, ..) = kernel.images().into_iter().find(|(path, ..)| path == "/opt/sim/canned").unwrap();
    kernel.poke(base + 20, &huge);
    record(&kernel, &options(30)).unwrap();
    kernel.poke(base, &huge);
    record(&kernel, &options(30)).unwrap();
}

#[test]
fn a_path_at_the_highest_address_ends() {
    let kernel = World::arm64(4).process(canned(500)).build();
    kernel.poke(kernel.all_image_infos() + 192, &[0xff; 8]);
    record(&kernel, &options(30)).unwrap();
}
