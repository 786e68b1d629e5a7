//! Stack memory: frame records, stack sizes, partial reads.

use super::*;

fn capture_of(config: &SimConfig, stack_bytes: usize) -> (SimTarget, Capture) {
    let (mut target, clock, mut capture) = start(config);
    clock.advance_to(MS);
    target.interrupt(LEADER, stack_bytes, false).expect("alive");
    assert_eq!(target.next(SECOND, &mut capture), Ok(stopped(LEADER, StopOutcome::Captured)));
    (target, capture)
}

#[test]
fn frames_walk_to_the_true_stack_on_both_architectures() {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        for (stack, frameless_leaf) in [
            (&[0, 1, 2, 3, 3, 3, 4][..], false),
            (&[0, 1, 2][..], true),
            (&[0, 1][..], true),
            (&[0][..], false),
        ] {
            for signed in [false, true] {
                let mut config = process(arch, 1, vec![vec![run(100, stack)]]);
                config.threads[0].script[0].frameless_leaf = frameless_leaf;
                config.signed_returns = signed;
                let (target, capture) = capture_of(&config, STACK_BYTES);
                assert_walks(&target, &target.ledger(), LEADER, &capture);
                let names = target.ledger().last_capture().expect("captured").names;
                assert_eq!(names, stack.iter().map(|n| format!("f{n}")).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn addresses_are_inside_their_functions() {
    let config = process(Arch::Aarch64, 1, vec![vec![run(100, &[0, 1, 2, 1, 5])]]);
    let (target, _) = capture_of(&config, STACK_BYTES);
    let truth = target.ledger().last_capture().expect("captured");
    let functions = [5, 1, 2, 1, 0].map(|n| target.code.range(f(n)));
    assert!(functions[0].contains(&truth.addresses[0]));
    for (function, address) in functions.iter().zip(&truth.addresses).skip(1) {
        // A return address may be the first byte after its function.
        assert!(function.start + 4 < *address && *address <= function.end, "{address} not in {function:?}");
        assert_eq!(address.0 % 4, 0);
    }
}

#[test]
fn signed_return_addresses_differ_from_plain_ones_only_above_the_mask() {
    let mut config = process(Arch::Aarch64, 1, vec![vec![run(100, &[0, 1, 2, 1, 5])]]);
    config.signed_returns = true;
    let (target, capture) = capture_of(&config, STACK_BYTES);
    let raw = walk(&capture, u64::MAX);
    let masked = walk(&capture, target.process().address_mask);
    assert!(raw.iter().zip(&masked).any(|(raw, masked)| raw != masked));
    assert_eq!(masked, target.ledger().last_capture().expect("captured").addresses);
}

#[test]
fn the_copied_stack_is_limited_to_the_request_and_the_top_of_the_stack() {
    let config = process(Arch::X86_64, 1, vec![vec![run(100, &[0, 1, 2])]]);
    let (target, capture) = capture_of(&config, STACK_BYTES);
    let top = target.machine.threads[0].stack_top().expect("known");
    assert_eq!(capture.stack_base + capture.stack.len() as u64, top);
    let (_, short) = capture_of(&config, 24);
    assert_eq!(short.stack_base + RED_ZONE_BYTES, short.registers.sp());
    assert_eq!(short.stack, capture.stack[..RED_ZONE_BYTES as usize + 24]);
}

#[test]
fn memory_of_a_stack_equals_the_capture_and_ends_with_its_mapping() {
    let config = process(Arch::X86_64, 1, vec![vec![run(100, &[0, 1, 2])]]);
    let (mut target, capture) = capture_of(&config, STACK_BYTES);
    let sp = capture.registers.sp();
    let mut bytes = vec![0xff; capture.stack.len()];
    let base = capture.stack_base;
    assert_eq!(target.read_memory(base, &mut bytes), Ok(bytes.len()));
    assert_eq!(bytes, capture.stack);
    // Below the stack pointer it is mapped, and zero.
    let mut below = vec![0xff; 16 + 8];
    assert_eq!(target.read_memory(Avma(base.0 - 16), &mut below), Ok(24));
    assert_eq!((&below[..16], &below[16..]), (&[0; 16][..], &capture.stack[..8]));
    // A long read ends with the mapping, which extends above the stack's top.
    let mut long = vec![0; 64 << 10];
    let count = target.read_memory(sp, &mut long).expect("mapped") as u64;
    assert!(sp.0 + count >= base.0 + capture.stack.len() as u64 && count < long.len() as u64);
    assert_eq!((sp.0 + count) % 4096, 0);
    assert!(matches!(target.read_memory(sp + count, &mut [0]), Err(Fault::Transient(_))));
    assert!(matches!(target.read_memory(Avma(0), &mut [0]), Err(Fault::Transient(_))));
}
