//! Recorded bytes with the text that `objdump` gives them, and hostile bytes.

use super::*;
use crate::rng::Rng;

fn texts(set: InstructionSet, code: &[u8], start: u64) -> Vec<(u64, usize, String)> {
    let mut found = Vec::new();
    decode(set, code, Svma(start), code.len(), &mut |instruction| {
        found.push((instruction.svma.0, instruction.bytes.len(), instruction.text));
    });
    found
}

#[track_caller]
fn check(set: InstructionSet, code: &[u8], start: u64, expected: &[(u64, usize, &str)]) {
    let found = texts(set, code, start);
    let found: Vec<(u64, usize, &str)> =
        found.iter().map(|(at, bytes, text)| (*at, *bytes, text.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn x86_64_is_what_objdump_says() {
    // push rbp; mov rbp,rsp; endbr64; call; lea rip-relative; vmovdqu; je; ret; a byte that is none.
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0xf3, 0x0f, 0x1e, 0xfa, 0xe8, 0x10, 0x00, 0x00, 0x00, 0x48, 0x8d, 0x05, 0x20,
        0x00, 0x00, 0x00, 0xc5, 0xfe, 0x6f, 0x06, 0x74, 0x02, 0xc3, 0x06, 0x90,
    ];
    check(
        InstructionSet::X86_64,
        &code,
        0x1000,
        &[
            (0x1000, 1, "push rbp"),
            (0x1001, 3, "mov rbp,rsp"),
            (0x1004, 4, "endbr64"),
            (0x1008, 5, "call 0x101d"),
            (0x100d, 7, "lea rax,[rip+0x20]"),
            (0x1014, 4, "vmovdqu ymm0,[rsi]"),
            (0x1018, 2, "je short 0x101c"),
            (0x101a, 1, "ret"),
            (0x101b, 1, ".byte 0x06"),
            (0x101c, 1, "nop"),
        ],
    );
}

#[test]
fn i386_is_what_objdump_says() {
    let code = [0x55, 0x89, 0xe5, 0x83, 0xec, 0x18, 0xe8, 0xfb, 0xff, 0xff, 0xff, 0x06, 0xc9, 0xc3];
    check(
        InstructionSet::X86,
        &code,
        0x8048000,
        &[
            (0x8048000, 1, "push ebp"),
            (0x8048001, 2, "mov ebp,esp"),
            (0x8048003, 3, "sub esp,0x18"),
            (0x8048006, 5, "call 0x8048006"),
            (0x804800b, 1, "push es"),
            (0x804800c, 1, "leave"),
            (0x804800d, 1, "ret"),
        ],
    );
}

#[test]
fn a64_is_what_objdump_says() {
    let words: [u32; 9] = [
        0xa9bf_7bfd,
        0x9400_0003,
        0x5400_0040,
        0x1000_0001,
        0x9000_0001,
        0xd503_201f,
        0x17ff_ffff,
        0xd65f_03c0,
        // udf #0: padding.
        0x0000_0000,
    ];
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let found = texts(InstructionSet::A64, &code, 0x1234);
    let found: Vec<&str> = found.iter().map(|(_, _, text)| text.as_str()).collect();
    assert_eq!(
        found,
        [
            "stp x29, x30, [sp, #-0x10]!",
            "bl 0x1244",
            "b.eq 0x1244",
            "adr x1, 0x1240",
            "adrp x1, 0x1000",
            "nop",
            "b 0x1248",
            "ret",
            "udf #0x0",
        ]
    );
}

#[test]
fn a32_is_what_objdump_says() {
    let words: [u32; 5] = [0xe92d_4010, 0xea00_0000, 0xeaff_fffe, 0xfb00_0000, 0xe8bd_8010];
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let found = texts(InstructionSet::A32, &code, 0x1000);
    let found: Vec<&str> = found.iter().map(|(_, _, text)| text.as_str()).collect();
    assert_eq!(found, ["push {r4, lr}", "b 0x100c", "b 0x1008", "blx 0x1016", "pop {r4, pc}"]);
}

#[test]
fn t32_is_what_objdump_says() {
    // Targets are objdump's over a C library: each encoding of a branch counts from another place.
    for (code, at, expected) in [
        (&[0x10, 0xb5][..], 0x1000, "push {r4, lr}"),
        (&[0x10, 0xd0], 0x1e02c, "beq 0x1e050"),
        (&[0x05, 0xd1], 0x1e036, "bne 0x1e044"),
        (&[0xf7, 0xd1], 0x1e03e, "bne 0x1e030"),
        (&[0xfe, 0xe7], 0x1000, "b 0x1000"),
        (&[0x00, 0xb1], 0x1000, "cbz r0, 0x1004"),
        (&[0x00, 0xf0, 0x1c, 0xf8], 0xe9de0, "bl.w 0xe9e1c"),
        (&[0x00, 0xf0, 0x00, 0xb8], 0x1000, "b.w 0x1004"),
        (&[0x34, 0xf7, 0x70, 0xe8], 0xe9df6, "blx.w 0x1ded8"),
    ] {
        let found = texts(InstructionSet::T32, code, at);
        let found: Vec<&str> = found.iter().map(|(_, _, text)| text.as_str()).collect();
        assert_eq!(found, [expected], "{code:x?}");
    }
}

#[test]
fn what_the_decoder_does_not_know_is_data() {
    // A vldr of T32, and a word that makes the decoder of A32 panic.
    check(InstructionSet::T32, &[0x9f, 0xed, 0x01, 0x0b], 0x10, &[(0x10, 4, ".inst.w 0xed9f0b01")]);
    check(InstructionSet::T32, &[0x9f, 0xed, 0x01], 0x10, &[(0x10, 3, ".byte 0x9f, 0xed, 0x01")]);
    check(InstructionSet::A64, &[1, 2], 0x10, &[(0x10, 2, ".short 0x0201")]);
}

/// Any bytes: no panic, and instructions that cover the range in order.
#[test]
fn hostile_bytes_make_a_listing_without_gaps() {
    let sets = [
        InstructionSet::X86_64,
        InstructionSet::X86,
        InstructionSet::A64,
        InstructionSet::A32,
        InstructionSet::T32,
    ];
    for set in sets {
        for seed in 0..16 {
            let mut rng = Rng::new(seed);
            let code: Vec<u8> = (0..16_384).map(|_| rng.next() as u8).collect();
            // The last address of all is within it for some.
            let start = if seed % 2 == 0 { 0x1000 } else { u64::MAX - 8_000 };
            let length = code.len() - 20;
            let mut next = 0;
            decode(set, &code, Svma(start), length, &mut |instruction| {
                assert_eq!(instruction.svma.0, start.wrapping_add(next as u64), "{set:?} {seed}");
                assert!(next < length && !instruction.text.is_empty());
                assert_eq!(instruction.bytes, code[next..next + instruction.bytes.len()]);
                assert!(!instruction.bytes.is_empty());
                next += instruction.bytes.len();
            });
            assert!(next >= length, "{set:?} {seed}: ended at {next}");
        }
    }
}

#[test]
fn ranges_that_are_not_in_the_file_are_refused() {
    let own = std::fs::read(std::env::current_exe().expect("a path")).expect("this program");
    let object = Object::parse(&own).expect("understood");
    let entry = object.entry().expect("a program begins somewhere");
    let image = ImageBytes::new(own);
    let found = list(&image, entry..Svma(entry.0 + 8)).expect("code");
    assert_eq!(found.instructions[0].svma, entry);
    assert!(!found.is_truncated);
    let far = Svma(u64::MAX - 16);
    assert_eq!(list(&image, far..Svma(u64::MAX)), Err(DisassemblyError::Outside(far)));
    assert_eq!(list(&image, entry..entry), Err(DisassemblyError::Outside(entry)));
    assert_eq!(list(&image, entry..Svma(0)), Err(DisassemblyError::Outside(entry)));
    let all = list(&image, entry..Svma(u64::MAX)).expect("code");
    assert!(all.is_truncated);
    let bytes: usize = all.instructions.iter().map(|instruction| instruction.bytes.len()).sum();
    assert!(bytes as u64 <= BYTES_MAX + 15, "{bytes}");
    let none = ImageBytes::new(b"no image".to_vec());
    assert!(matches!(list(&none, entry..far), Err(DisassemblyError::Format(_))));
}
