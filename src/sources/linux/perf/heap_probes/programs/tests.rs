//! Runs the programs of probes on a simulated kernel.

use super::super::super::bpf::instructions::machine::Machine;
use super::super::Header;
use super::super::allocator::FUNCTIONS;
use super::*;

const SHARED: Shared =
    Shared { states: 11, intervals: 12, calls: 13, blocks: 14, ring: 15, namespace: (4, 0xefff_fffc) };
const STACK_AT: u64 = 0x7000_0000;
/// Bytes that a return takes off the stack.
const RETURN_BYTES: u64 = if cfg!(target_arch = "x86_64") { 8 } else { 0 };

/// A machine with 5,000 bytes of stack.
fn machine(every_bytes: u64) -> Machine {
    let mut machine = Machine::new(77, 70, SHARED.namespace);
    let state = first_state(intervals(every_bytes)[INTERVALS / 2]);
    let all = intervals(every_bytes).into_iter().flat_map(u64::to_le_bytes).collect();
    machine.lists = vec![(SHARED.states, 0, state), (SHARED.intervals, 0, all)];
    machine.wide = vec![(SHARED.calls, 8 * CALL_WORDS, Default::default())];
    machine.addresses = vec![(SHARED.blocks, Default::default())];
    machine.ring = SHARED.ring;
    machine.memory = (STACK_AT, (0..5000).map(|at| at as u8).collect());
    machine
}

/// The number of a function, and what it is.
fn named(name: &str) -> (usize, ProbedFunction) {
    let index = FUNCTIONS.iter().position(|(known, _)| *known == name);
    index.map(|index| (index, FUNCTIONS[index].1)).unwrap_or_else(|| panic!("{name} is not probed"))
}

/// Runs a program with this stack pointer, these arguments or this result.
fn run(machine: &mut Machine, sp: u64, arguments: &[u64], result: u64, program: &[u64]) {
    let mut words = vec![0; super::COUNT];
    for (number, argument) in arguments.iter().enumerate() {
        words[argument_offset(number) as usize / 8] = *argument;
    }
    if arguments.is_empty() {
        words[RESULT_OFFSET as usize / 8] = result;
    }
    words[SP_OFFSET as usize / 8] = sp;
    machine.context = words.into_iter().flat_map(u64::to_le_bytes).collect();
    assert_eq!(machine.run(program), 0, "no other record is made");
}

/// Calls a function `depth` bytes down the stack.
fn call_at(machine: &mut Machine, depth: u64, name: &str, arguments: &[u64]) {
    let (number, function) = named(name);
    run(machine, STACK_AT + 4096 - depth, arguments, 0, &at_entry(number, &function, SHARED));
}

/// Returns from a function that was called there.
fn return_at(machine: &mut Machine, depth: u64, result: u64) {
    let sp = STACK_AT + 4096 - depth + RETURN_BYTES;
    run(machine, sp, &[], result, &at_return(ReturnKind::Trampoline, SHARED));
}

fn call_and_return(machine: &mut Machine, name: &str, arguments: &[u64], result: u64) {
    call_at(machine, 0, name, arguments);
    return_at(machine, 0, result);
}

/// Kind, block and bytes of the records.
fn records(machine: &mut Machine) -> Vec<(u64, u64, u64)> {
    let headers = machine.records.drain(..).filter_map(|record| Header::read(&record));
    headers.map(|header| (header.kind, header.block, header.bytes)).collect()
}

#[test]
fn each_function_is_recorded_by_its_role() {
    let mut machine = machine(1);
    call_and_return(&mut machine, "malloc", &[100], 0x5000);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100), (RETURNED, 0x5000, 100)]);
    call_and_return(&mut machine, "calloc", &[3, 50], 0x6000);
    assert_eq!(records(&mut machine), [(CALLED, 0, 150), (RETURNED, 0x6000, 150)]);
    call_and_return(&mut machine, "realloc", &[0x5000, 200], 0x7000);
    assert_eq!(records(&mut machine), [(FREED, 0x5000, 0), (CALLED, 0, 200), (RETURNED, 0x7000, 200)]);
    call_and_return(&mut machine, "realloc", &[0, 200], 0x8000);
    assert_eq!(records(&mut machine), [(CALLED, 0, 200), (RETURNED, 0x8000, 200)]);
    call_and_return(&mut machine, "reallocarray", &[0x8000, 5, 60], 0x8000);
    assert_eq!(records(&mut machine), [(FREED, 0x8000, 0), (CALLED, 0, 300), (RETURNED, 0x8000, 300)]);
    for _ in 0..2 {
        call_at(&mut machine, 0, "free", &[0x6000]);
    }
    call_at(&mut machine, 0, "free", &[0]);
    assert_eq!(records(&mut machine), [(FREED, 0x6000, 0)], "a block that was sampled, once");
    call_and_return(&mut machine, "malloc", &[100], 0);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100)], "there was no memory");
}

#[test]
fn a_block_may_be_returned_through_a_pointer() {
    let mut machine = machine(1);
    // The bytes there are 0x08, 0x09, ...
    let block = u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15]);
    call_and_return(&mut machine, "posix_memalign", &[STACK_AT + 8, 64, 100], 0);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100), (RETURNED, block, 100)]);
    call_and_return(&mut machine, "posix_memalign", &[STACK_AT + 8, 64, 100], 12);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100)], "ENOMEM");
    call_and_return(&mut machine, "posix_memalign", &[1, 64, 100], 0);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100)], "the pointer cannot be read");
}

#[test]
fn what_a_failing_realloc_would_have_freed_is_still_there() {
    let mut machine = machine(1);
    call_and_return(&mut machine, "malloc", &[100], 0x5000);
    records(&mut machine);
    call_and_return(&mut machine, "realloc", &[0x5000, 1 << 40], 0);
    let expected = [(FREED, 0x5000, 0), (CALLED, 0, 1 << 40), (RESTORED, 0x5000, 0)];
    assert_eq!(records(&mut machine), expected);
    call_and_return(&mut machine, "reallocarray", &[0x5000, 1 << 33, 1 << 33], 0);
    let last = records(&mut machine).last().copied();
    assert_eq!(last, Some((RESTORED, 0x5000, 0)), "a product that overflows to 0");
    call_and_return(&mut machine, "realloc", &[0x5000, 0], 0);
    assert_eq!(records(&mut machine), [(FREED, 0x5000, 0)], "0 bytes: it is freed");
    call_and_return(&mut machine, "realloc", &[0x5000, 1 << 40], 0);
    assert_eq!(records(&mut machine), [(CALLED, 0, 1 << 40)], "it was not sampled");
}

#[test]
fn a_call_that_is_refused_hides_no_others() {
    for every_bytes in [1, 4096] {
        let mut machine = machine(every_bytes);
        call_and_return(&mut machine, "malloc", &[1 << 20], 0x5000);
        records(&mut machine);
        for bytes in [u64::MAX, u64::MAX - (1 << 30), (1 << 63) + (1 << 30), 1 << 63, 1 << 47] {
            call_and_return(&mut machine, "malloc", &[bytes], 0);
            call_and_return(&mut machine, "realloc", &[0x5000, bytes], 0);
            assert_eq!(records(&mut machine), [(FREED, 0x5000, 0), (RESTORED, 0x5000, 0)], "{bytes:#x}");
            call_and_return(&mut machine, "malloc", &[1 << 20], 0x6000);
            let expected = [(CALLED, 0, 1 << 20), (RETURNED, 0x6000, 1 << 20)];
            assert_eq!(records(&mut machine), expected, "after {bytes:#x} bytes");
        }
    }
}

#[test]
fn what_an_allocator_calls_of_its_own_is_part_of_the_call() {
    let mut machine = machine(1);
    // realloc jumps to malloc: the same stack pointer, and two trampolines at the return.
    call_at(&mut machine, 0, "realloc", &[0, 200]);
    call_at(&mut machine, 0, "malloc", &[200]);
    return_at(&mut machine, 0, 0x5000);
    return_at(&mut machine, 0, 0x5000);
    assert_eq!(records(&mut machine), [(CALLED, 0, 200), (RETURNED, 0x5000, 200)]);
    // memalign calls malloc, at once or deeper down.
    for depth in [8, 160] {
        call_at(&mut machine, 0, "memalign", &[64, 100]);
        call_at(&mut machine, depth, "malloc", &[164]);
        return_at(&mut machine, depth, 0x6010);
        return_at(&mut machine, 0, 0x6040);
        assert_eq!(records(&mut machine), [(CALLED, 0, 100), (RETURNED, 0x6040, 100)], "{depth}");
    }
    // The same with the return seen at its instruction.
    call_at(&mut machine, 0, "malloc", &[100]);
    call_at(&mut machine, 8, "calloc", &[1, 100]);
    return_at(&mut machine, 8, 0x7000);
    let program = at_return(ReturnKind::Instruction, SHARED);
    run(&mut machine, STACK_AT + 4096, &[], 0x7000, &program);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100), (RETURNED, 0x7000, 100)]);
}

#[test]
fn a_call_that_never_returns_hides_no_others() {
    let mut machine = machine(1);
    // Left by an exception, then called again by the same code, and by code above.
    for (depth, name) in [(0, "malloc"), (0, "malloc"), (160, "malloc"), (8, "calloc")] {
        call_at(&mut machine, depth, name, &[100, 1]);
        if depth != 160 {
            assert_eq!(records(&mut machine), [(CALLED, 0, 100)], "{depth}");
        } else {
            assert!(records(&mut machine).is_empty(), "as if it were called by it");
            machine.time_ns += 2 << CALL_NS_MAX_BITS;
        }
    }
    call_at(&mut machine, 400, "malloc", &[100]);
    return_at(&mut machine, 400, 0x9000);
    assert!(records(&mut machine).is_empty(), "within the time of a call");
    machine.time_ns += 2 << CALL_NS_MAX_BITS;
    call_at(&mut machine, 400, "malloc", &[100]);
    return_at(&mut machine, 400, 0x9000);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100), (RETURNED, 0x9000, 100)]);
}

#[test]
fn an_exception_of_operator_new_hides_no_others() {
    let mut machine = machine(1);
    let new = ProbedFunction { throws: true, ..named("malloc").1 };
    let entry = at_entry(99, &new, SHARED);
    let sp = STACK_AT + 4096;
    run(&mut machine, sp, &[1 << 40], 0, &entry);
    // A part of it, and not: something else is where its return address was.
    call_at(&mut machine, 160, "malloc", &[100]);
    assert_eq!(records(&mut machine), [(CALLED, 0, 1 << 40)]);
    machine.memory.1[4096] ^= 1;
    call_at(&mut machine, 160, "malloc", &[100]);
    return_at(&mut machine, 160, 0x5000);
    assert_eq!(records(&mut machine), [(CALLED, 0, 100), (RETURNED, 0x5000, 100)]);
}

#[test]
fn the_stack_is_recorded_up_to_its_end() {
    let mut machine = machine(1);
    call_at(&mut machine, 4096, "malloc", &[100]);
    let record = machine.records.pop().unwrap_or_default();
    let header = Header::read(&record).map(|header| header.stack_bytes);
    // 4,096 + 512 + 256 + 128 of 5,000.
    assert_eq!(header, Some(4992));
    assert!(record[STACK..STACK + 4992].iter().enumerate().all(|(at, byte)| *byte == at as u8));
}

/// A counter of the CPU.
fn counter(machine: &Machine, number: i16) -> u64 {
    let at = number as usize;
    u64::from_le_bytes(std::array::from_fn(|index| machine.lists[0].2[at + index]))
}

#[test]
fn records_without_room_are_counted_with_their_bytes() {
    let mut machine = machine(1);
    call_and_return(&mut machine, "malloc", &[100], 0x4000);
    machine.room = machine.records.len();
    call_and_return(&mut machine, "malloc", &[100], 0x5000);
    call_and_return(&mut machine, "malloc", &[64], 0x6000);
    call_and_return(&mut machine, "malloc", &[u64::MAX], 0);
    call_and_return(&mut machine, "malloc", &[(1 << 47) - 1], 0x7000);
    call_and_return(&mut machine, "realloc", &[0x4000, 1], 0x4000);
    // The call fits, its return does not.
    machine.room += 1;
    call_and_return(&mut machine, "malloc", &[1 << 20], 0x8000);
    assert_eq!((counter(&machine, ENTRIES), counter(&machine, RETURNS)), (7, 7));
    assert_eq!(counter(&machine, LOST_FREES), 1);
    let class = |bits: i16| {
        (counter(&machine, LOST_SIZES + 16 * bits), counter(&machine, LOST_SIZES + 16 * bits + 8))
    };
    let classes: Vec<_> = (0..=SIZE_BITS_MAX as i16).map(|bits| (bits, class(bits))).collect();
    let lost: Vec<_> = classes.into_iter().filter(|(_, (count, _))| *count > 0).collect();
    let expected = [(1, (1, 1)), (7, (2, 164)), (21, (1, 1 << 20)), (47, (1, (1 << 47) - 1))];
    assert_eq!(lost, expected);
}

#[test]
fn samples_represent_all_bytes() {
    let mut machine = machine(4096);
    let (mut samples, mut bytes) = (0.0, 0);
    for round in 0..20_000u64 {
        let size = 16 + round * 7919 % 4000;
        call_at(&mut machine, 0, "malloc", &[size]);
        bytes += size;
        for (_, _, size) in records(&mut machine) {
            samples += size as f64 / (1.0 - (-(size as f64) / 4096.0).exp());
        }
    }
    // The standard error of ten thousand samples is 1 %.
    assert!((samples / bytes as f64 - 1.0).abs() < 0.04, "{samples} of {bytes}");
}

#[test]
fn intervals_have_the_requested_mean() {
    for mean_bytes in [1, 4096, 512 << 10, 1 << 30] {
        let mean = intervals(mean_bytes).iter().sum::<u64>() as f64 / INTERVALS as f64;
        assert!((mean / mean_bytes as f64 - 1.0).abs() < 1e-4, "{mean} of {mean_bytes}");
    }
    assert_eq!(STACK_PIECES.iter().sum::<i32>() as usize, STACK_BYTES);
}
