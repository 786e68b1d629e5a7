//! The records match what the program did.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::program::{Directory, Fixtures, Logged, Settings, fixtures, log_of};
use crate::ring::{Allocated, Record, Ring};
use crate::shared_memory::{
    Control, Function, MAPS_PREFIX, Origin, RING_PREFIX, RingHeader, aarch64_register, flag, x86_64_register,
};

/// The program's return address, stack pointer and frame pointer from the registers.
fn pc_sp_fp(registers: &[u64]) -> (u64, u64, u64) {
    if cfg!(target_arch = "x86_64") {
        (registers[x86_64_register::PC], registers[x86_64_register::SP], registers[x86_64_register::RBP])
    } else {
        (
            registers[aarch64_register::PC],
            registers[aarch64_register::SP],
            registers[aarch64_register::X19 + 10],
        )
    }
}

/// Address ranges of a file, from the copy of /proc/self/maps that belongs to a ring.
fn mapped(directory: &Path, ring: &Ring, program: &Path) -> Vec<(u64, u64)> {
    let name = ring.name.replace(RING_PREFIX, MAPS_PREFIX);
    let maps = fs::read_to_string(directory.join(name)).unwrap();
    let end = fs::read_to_string(directory.join(ring.name.replace(RING_PREFIX, MAPS_PREFIX) + ".end"));
    assert!(end.is_err() || end.unwrap().contains("[stack]"));
    let lines = maps.lines().filter(|line| line.ends_with(program.to_str().unwrap()));
    let range = |line: &str| {
        let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (u64::from_str_radix(begin, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
    };
    let ranges: Vec<_> = lines.map(range).collect();
    assert!(!ranges.is_empty(), "{program:?} is not in {maps}");
    ranges
}

/// Events by address, in order; only of the program's own calls.
fn by_address(events: impl Iterator<Item = Logged>) -> HashMap<u64, Vec<(char, u64)>> {
    let mut found: HashMap<u64, Vec<(char, u64)>> = HashMap::new();
    for event in events {
        found.entry(event.address).or_default().push((event.what, event.size));
    }
    found
}

/// Records of allocations by the program itself, and of their frees.
fn of_program(records: &[Record], ranges: &[(u64, u64)]) -> Vec<Logged> {
    let mut is_own: HashMap<u64, bool> = HashMap::new();
    let event = |what, address, size| Logged { what, address, size };
    let mut found = Vec::new();
    for record in records {
        match record {
            Record::Allocation(allocation) => {
                let (pc, ..) = pc_sp_fp(&allocation.registers);
                let own = ranges.iter().any(|(begin, end)| (*begin..*end).contains(&pc));
                is_own.insert(allocation.address, own);
                if own {
                    found.push(event('+', allocation.address, allocation.size));
                }
            }
            Record::Free { address } if is_own.get(address) == Some(&true) => {
                found.push(event('-', *address, 0))
            }
            Record::Restore { address } if is_own.get(address) == Some(&true) => {
                found.push(event('!', *address, 0));
            }
            Record::Free { .. } | Record::Restore { .. } | Record::Shrink => {}
        }
    }
    found
}

fn check_log(mode: &str, program: &Path) {
    let directory = Directory::new(Settings::all());
    let log = log_of(&directory.run(program, &[mode]));
    assert!(!log.is_empty());
    let ring = &directory.ring().unwrap();
    assert_eq!((ring.lost_allocations(), ring.lost_frees()), ((0, 0), 0));
    let recorded = of_program(&ring.take_all(), &mapped(directory.path(), ring, program));
    let (logged, recorded) = (by_address(log.into_iter()), by_address(recorded.into_iter()));
    for (address, events) in &logged {
        assert_eq!(recorded.get(address), Some(events), "{mode}: {address:#x}");
    }
    assert_eq!(logged.len(), recorded.len());
}

#[test]
fn programs_have_the_records_of_the_calls_that_they_log() {
    let Fixtures { calls, calls_of_library, .. } = fixtures();
    for (mode, program) in [
        // Each function.
        ("calls", calls),
        // Calls that are refused hide no later ones.
        ("refused", calls),
        // Operators and functions of an allocator that has its own, and where no library has them.
        ("operators", calls_of_library),
        ("operators", calls),
        // A thousand threads, and frees by other threads.
        ("threads", calls),
        ("few-threads", calls),
        // Before main, and after exit handlers.
        ("ends", calls),
        // Coroutines and alternate stacks.
        ("coroutines", calls),
        // Programs that restrict their system calls.
        ("filter", calls),
        ("filter-by-syscall", calls),
        // A child of vfork writes into the ring of its parent.
        ("vforks", calls),
        // Another allocator is called.
        ("few-threads", calls_of_library),
    ] {
        check_log(mode, program);
    }
}

#[test]
fn images_are_listed_before_an_unload() {
    let plugin = fixtures().allocator.to_str().unwrap();
    let directory = Directory::new(Settings::all());
    directory.run(&fixtures().calls, &["plugin", plugin]);
    let ring = directory.ring().unwrap();
    let has_plugin = |name: String| {
        let text = fs::read_to_string(directory.path().join(name)).unwrap();
        text.contains(plugin)
    };
    let name = ring.name.replace(RING_PREFIX, MAPS_PREFIX);
    assert!(!has_plugin(name.clone()) && has_plugin(name.clone() + ".0") && !has_plugin(name + ".end"));
    // Its own blocks are in that list, the output after it is in the next one.
    let lists: Vec<u32> = allocations(&ring.take_all()).map(|allocation| allocation.images).collect();
    assert!(lists.contains(&0) && lists.is_sorted() && lists.iter().all(|number| *number < 2), "{lists:?}");
}

/// The sizes of allocations.
fn sizes(records: &[Record]) -> impl Iterator<Item = u64> + '_ {
    allocations(records).map(|allocation| allocation.size)
}

fn allocations(records: &[Record]) -> impl Iterator<Item = &Allocated> + '_ {
    records.iter().filter_map(|record| match record {
        Record::Allocation(allocation) => Some(allocation),
        _ => None,
    })
}

/// Registers and stack bytes lead from the allocation to its callers, by frame pointers.
#[test]
fn registers_and_stack_are_those_of_the_caller() {
    let program = &fixtures().calls;
    let directory = Directory::new(Settings { stack_size: 4096, ..Settings::all() });
    log_of(&directory.run(program, &["callers"]));
    let ring = &directory.ring().unwrap();
    let base = mapped(directory.path(), ring, program)[0].0;
    let records = ring.take_all();
    let allocation = allocations(&records).find(|allocation| allocation.size == 4242).unwrap();
    assert_eq!(allocation.function, Function::Malloc as u32);
    assert!(allocation.tid > 0 && allocation.flags & flag::STACK_REFUSED == 0);
    let (pc, sp, mut fp) = pc_sp_fp(&allocation.registers);
    let word = |address: u64| {
        let at = (address - sp) as usize;
        u64::from_ne_bytes(allocation.stack[at..at + 8].try_into().unwrap())
    };
    let symbols = symbols(program);
    let name = |address: u64| {
        let at = address - 1 - base;
        symbols
            .iter()
            .find(|(begin, size, _)| (*begin..begin + size).contains(&at))
            .map(|found| found.2.as_str())
    };
    let mut names = vec![name(pc)];
    for _ in 0..4 {
        names.push(name(word(fp + 8)));
        fp = word(fp);
    }
    assert_eq!(names, ["logged_malloc", "inner", "middle", "outer", "main"].map(Some));
}

/// Checks the values that a program put into callee-saved registers, and its stack pointer.
#[test]
fn callee_saved_registers_and_the_stack_pointer_are_exact() {
    let directory = Directory::new(Settings::all());
    let log = log_of(&directory.run(&fixtures().calls, &["registers"]));
    let sp = log.iter().find(|call| call.what == 's').unwrap().address;
    let records = directory.ring().unwrap().take_all();
    let registers = &allocations(&records).find(|allocation| allocation.size == 5151).unwrap().registers;
    let (_, recorded_sp, fp) = pc_sp_fp(registers);
    assert_eq!(recorded_sp, sp);
    if cfg!(target_arch = "x86_64") {
        let first = x86_64_register::R12;
        assert_eq!(registers[first..first + 4], [0x1212, 0x1313, 0x1414, sp]);
        assert_eq!(fp, 0x6666);
    } else {
        let first = aarch64_register::X19;
        assert_eq!(registers[first..first + 4], [0x1212, 0x1313, 0x1414, sp]);
        assert_eq!(registers[first + 9], 0x6666);
    }
}

/// Handlers run at any moment, allocate, and leave by `longjmp`: each record that was started is completed.
#[test]
fn no_handler_leaves_an_incomplete_record() {
    let directory = Directory::new(Settings { data_size: 1 << 16, stack_size: 256, ..Settings::all() });
    let mut child = directory.start(&fixtures().calls_of_library, &["handlers"]);
    let mut taken = 0;
    // Releases space while it runs.
    while child.try_wait().unwrap().is_none() {
        taken += directory.ring().map_or(0, |ring| ring.take_all().len());
    }
    assert!(child.wait().unwrap().success());
    let ring = directory.ring().unwrap();
    taken += ring.take_all().len();
    // Each of the 300 signals allocates.
    let (lost, _) = ring.lost_allocations();
    assert!(taken as u64 + lost >= 300, "{taken} taken, {lost} lost");
    let position = |at| ring.u64_at(at);
    assert_eq!(
        position(std::mem::offset_of!(RingHeader, read)),
        position(std::mem::offset_of!(RingHeader, write))
    );
}

/// If a child of vfork takes the first sample, the ring still belongs to the parent.
#[test]
fn a_child_of_vfork_creates_no_ring() {
    let settings = Settings { mean_bytes: 1 << 20, seed: 1, ..Settings::all() };
    let directory = Directory::new(settings);
    let output = directory.run(&fixtures().calls, &["vfork-first"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(Ring::all(directory.path()).len(), 1);
    let ring = directory.ring().unwrap();
    // The child's sample is lost, and counted.
    assert_eq!(ring.lost_allocations(), (1, 64 << 20));
    assert_eq!(ring.take_all().len(), 1);
}

/// Address, size and name of each function.
fn symbols(program: &Path) -> Vec<(u64, u64, String)> {
    let output = Command::new("nm").args(["--print-size", "--defined-only"]).arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let symbol = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [begin, size, _, name] = fields[..] else { return None };
        Some((u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(size, 16).ok()?, name.to_owned()))
    };
    text.lines().filter_map(symbol).collect()
}

#[test]
fn stack_ends_are_flagged() {
    let directory = Directory::new(Settings { stack_size: 65536, ..Settings::all() });
    log_of(&directory.run(&fixtures().calls, &["coroutines"]));
    let mut on_small_stacks = 0;
    for allocation in allocations(&directory.ring().unwrap().take_all()) {
        if (100..120).contains(&allocation.size) {
            // A stack of five pages, with unmapped memory above.
            assert!(allocation.stack.len() <= 5 * 4096 && allocation.flags & flag::STACK_END != 0);
            on_small_stacks += 1;
        }
    }
    assert!(on_small_stacks >= 800, "{on_small_stacks}");
}

#[test]
fn children_of_fork_have_their_own_rings() {
    let directory = Directory::new(Settings { data_size: 1 << 20, ..Settings::all() });
    let output = directory.run(&fixtures().calls, &["forks"]);
    assert!(output.status.success(), "{output:?}");
    let rings = Ring::all(directory.path());
    // The program, a tree of 3 + 9 + 27 children that all allocate, and 30 children with threads.
    assert_eq!(rings.len(), 1 + 39 + 30);
    let field = |ring: &Ring, at| ring.u32_at(at);
    let pids: Vec<u32> =
        rings.iter().map(|ring| field(ring, std::mem::offset_of!(RingHeader, pid))).collect();
    let (mut programs, mut of_tree) = (0, 0);
    for (ring, pid) in rings.iter().zip(&pids) {
        assert_eq!(ring.name, format!("{RING_PREFIX}{pid}.0"));
        let origin = field(ring, std::mem::offset_of!(RingHeader, origin));
        let parent = field(ring, std::mem::offset_of!(RingHeader, parent_pid));
        if origin == Origin::Program as u32 {
            programs += 1;
            continue;
        }
        assert!(origin == Origin::Fork as u32 && pids.contains(&parent) && parent != *pid);
        assert_eq!(field(ring, std::mem::offset_of!(RingHeader, parent_has_ring)), 1);
        let records = ring.take_all();
        assert!(allocations(&records).all(|allocation| allocation.tid == *pid), "the only thread");
        let sizes: Vec<u64> = sizes(&records).filter(|size| (1000..1050).contains(size)).collect();
        if !sizes.is_empty() {
            assert_eq!(sizes, (1000..1050).collect::<Vec<u64>>());
            of_tree += 1;
        }
    }
    assert_eq!((programs, of_tree), (1, 39));
    assert_eq!(directory.control(48), 1, "programs");
}

#[test]
fn a_program_started_by_exec_has_the_next_ring() {
    let directory = Directory::new(Settings::all());
    log_of(&directory.run(&fixtures().calls, &["exec"]));
    let rings = Ring::all(directory.path());
    let names: Vec<&str> = rings.iter().map(|ring| ring.name.as_str()).collect();
    let pid = rings[0].u32_at(std::mem::offset_of!(RingHeader, pid));
    assert_eq!(names, [format!("ring.{pid}.0"), format!("ring.{pid}.1")]);
    for ring in &rings {
        assert_eq!(ring.u32_at(std::mem::offset_of!(RingHeader, origin)), Origin::Program as u32);
    }
    // The first ended by execve, without running its destructor.
    let end = std::mem::offset_of!(RingHeader, end_ns);
    assert!(rings[0].u64_at(end) == 0 && rings[1].u64_at(end) > 0);
    assert_eq!(directory.control(48), 2, "programs");
}

/// Weights of the samples add up to the bytes of all allocations, within the sampling error. The seed makes
/// each run the same.
#[test]
fn weights_of_samples_add_up_to_all_allocations() {
    let mut errors = Vec::new();
    for seed in 1..=20 {
        let mean = 16384.0;
        let directory = Directory::new(Settings { mean_bytes: 16384, seed, ..Settings::all() });
        let log = log_of(&directory.run(&fixtures().calls, &["sizes"]));
        let ring = &directory.ring().unwrap();
        let ranges = mapped(directory.path(), ring, &fixtures().calls);
        let records = of_program(&ring.take_all(), &ranges);
        let (mut bytes, mut variance) = (0.0, 0.0);
        let mut live = HashMap::new();
        for record in &records {
            let size = record.size as f64;
            if record.what == '+' {
                let p = -(-size / mean).exp_m1();
                bytes += size / p;
                live.insert(record.address, ());
            } else {
                assert!(live.remove(&record.address).is_some());
            }
        }
        let mut all_bytes = 0.0;
        for call in log.iter().filter(|call| call.what == '+') {
            let size = call.size as f64;
            let p = -(-size / mean).exp_m1();
            all_bytes += size;
            if call.size > 0 {
                variance += size * size * (1.0 - p) / p;
            }
        }
        assert!(records.len() > 1000, "{}", records.len());
        errors.push((bytes - all_bytes) / f64::sqrt(variance));
    }
    let mean_error = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(errors.iter().all(|error| error.abs() < 4.0), "{errors:?}");
    assert!(mean_error.abs() < 4.0 / f64::sqrt(errors.len() as f64), "{errors:?}");
}

/// Number of identical children with a sample: if they shared the rest of an interval, it would be all or none.
#[test]
fn samples_of_children_are_independent() {
    let directory = Directory::new(Settings { mean_bytes: 65_536, data_size: 65_536, ..Settings::all() });
    let output = directory.run(&fixtures().calls, &["siblings"]);
    assert!(output.status.success(), "{output:?}");
    let origin = |ring: &Ring| ring.u32_at(std::mem::offset_of!(RingHeader, origin));
    let sampled =
        Ring::all(directory.path()).iter().filter(|ring| origin(ring) == Origin::Fork as u32).count();
    // 200 (1 - exp(-20,000 / 65,536)) = 53, with a standard deviation of 6.2.
    assert!((12..95).contains(&sampled), "{sampled} of 200 children have a sample");
}

/// Programs that no replaced function tells of their filter are recorded, and not killed by the shim's calls.
#[test]
fn a_program_with_system_calls_of_its_own_is_not_killed_by_its_filter() {
    for how in ["seccomp", "prctl"] {
        let directory = Directory::new(Settings { data_size: 4 << 20, ..Settings::all() });
        let output = directory.run(&fixtures().filter, &[how]);
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"alive\n"[..]), "{output:?}");
        let records = directory.ring().unwrap().take_all();
        assert_eq!(sizes(&records).filter(|size| (5000..5300).contains(size)).count(), 300, "{how}");
    }
}

/// What a child of vfork allocates before there is a ring is lost once, not once more in each child of fork.
#[test]
fn what_was_lost_before_the_ring_is_counted_by_one_process() {
    // What is allocated before is not sampled, so that there is no ring yet.
    let directory = Directory::new(Settings { mean_bytes: 100_000, seed: 7, ..Settings::all() });
    let output = directory.run(&fixtures().calls, &["lost-once"]);
    assert!(output.status.success(), "{output:?}");
    let lost: Vec<_> = Ring::all(directory.path()).iter().map(Ring::lost_allocations).collect();
    assert_eq!(lost.len(), 4, "three children");
    let lost: Vec<_> = lost.into_iter().filter(|(count, _)| *count > 0).collect();
    assert_eq!(lost, [(1, 3_000_000)]);
}

/// A reader that is slow: the program waits for it, and nothing is lost. Without any it goes on.
#[test]
fn writers_wait_for_room_as_long_as_there_is_a_reader() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let settings = Settings { data_size: 8192, stack_size: 64, wait_ns: HOUR_NS, ..Settings::all() };
    let directory = Directory::new(settings);
    let mut program = directory.start(&fixtures().calls, &["many"]);
    let mut taken = 0;
    loop {
        // Asked before its ring is read.
        let has_ended = program.try_wait().unwrap().is_some();
        let Some(ring) = directory.ring() else { continue };
        let records = ring.take_all();
        taken += sizes(&records).filter(|size| *size == 7777).count();
        if has_ended && records.is_empty() {
            assert_eq!((ring.lost_allocations(), ring.lost_frees()), ((0, 0), 0));
            break;
        }
    }
    assert_eq!(taken, 20_000);
    let directory = Directory::new(Settings { wait_ns: 1_000_000, ..settings });
    assert!(directory.run(&fixtures().calls, &["many"]).status.success());
    assert!(directory.ring().unwrap().lost_allocations().0 > 19_000);
    assert_eq!(directory.control(std::mem::offset_of!(Control, is_stalled)) as u32, 1);
}
