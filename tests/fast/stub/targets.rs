//! The targets of simulated stubs: descriptions, registers and memory.

pub(super) const X86_64: &str = "<target><architecture>i386:x86-64</architecture><feature name=\"c\">\
    <reg name=\"rax\" bitsize=\"64\"/><reg name=\"rbx\" bitsize=\"64\"/><reg name=\"rcx\" bitsize=\"64\"/>\
    <reg name=\"rdx\" bitsize=\"64\"/><reg name=\"rsi\" bitsize=\"64\"/><reg name=\"rdi\" bitsize=\"64\"/>\
    <reg name=\"rbp\" bitsize=\"64\"/><reg name=\"rsp\" bitsize=\"64\"/><reg name=\"r8\" bitsize=\"64\"/>\
    <reg name=\"r9\" bitsize=\"64\"/><reg name=\"r10\" bitsize=\"64\"/><reg name=\"r11\" bitsize=\"64\"/>\
    <reg name=\"r12\" bitsize=\"64\"/><reg name=\"r13\" bitsize=\"64\"/><reg name=\"r14\" bitsize=\"64\"/>\
    <reg name=\"r15\" bitsize=\"64\"/><reg name=\"rip\" bitsize=\"64\"/></feature></target>";

/// The registers of a core of the M profile; its feature is still open.
macro_rules! cortex_m {
    () => {
        "<target><architecture>arm</architecture>\
    <feature name=\"org.gnu.gdb.arm.m-profile\"><reg name=\"r0\" bitsize=\"32\"/><reg name=\"r1\" bitsize=\"32\"/>\
    <reg name=\"r2\" bitsize=\"32\"/><reg name=\"r3\" bitsize=\"32\"/><reg name=\"r4\" bitsize=\"32\"/>\
    <reg name=\"r5\" bitsize=\"32\"/><reg name=\"r6\" bitsize=\"32\"/><reg name=\"r7\" bitsize=\"32\"/>\
    <reg name=\"r8\" bitsize=\"32\"/><reg name=\"r9\" bitsize=\"32\"/><reg name=\"r10\" bitsize=\"32\"/>\
    <reg name=\"r11\" bitsize=\"32\"/><reg name=\"r12\" bitsize=\"32\"/><reg name=\"sp\" bitsize=\"32\"/>\
    <reg name=\"lr\" bitsize=\"32\"/><reg name=\"pc\" bitsize=\"32\"/>\
    <reg name=\"xpsr\" bitsize=\"32\" regnum=\"25\"/>"
    };
}
pub(super) const CORTEX_M: &str = concat!(cortex_m!(), "</feature></target>");
/// With the stack pointers, as QEMU 8 and OpenOCD describe them.
pub(super) const CORTEX_M_SYSTEM: &str = concat!(
    cortex_m!(),
    "</feature><feature name=\"org.gnu.gdb.arm.m-system\"><reg name=\"msp\" bitsize=\"32\"/>\
     <reg name=\"psp\" bitsize=\"32\" regnum=\"27\"/></feature></target>"
);
pub(super) const ARM_WITHOUT_REGISTERS: &str = "<target><architecture>arm</architecture></target>";

/// What debugserver says of its machine and its process.
pub(super) const HOST_INFO: &str =
    "cputype:16777228;cpusubtype:2;ostype:macosx;vendor:apple;endian:little;ptrsize:8;";
pub(super) const PROCESS_INFO: &str =
    "pid:1f;parent-pid:1;cputype:100000c;cpusubtype:2;ptrsize:8;ostype:macosx;endian:little;";
/// Where debugserver's process has its program.
pub(super) const MACH_LOAD: u64 = 0x1_0400_0000;

/// Where the made-up stacks are: 64 KiB that end here.
pub(super) const STACK_END: u64 = 0x7000_0000;
const STACK_BYTES: u64 = 0x1_0000;
/// The process stack pointer, in the same memory, and its number.
pub(super) const PROCESS_SP: u64 = STACK_END - 0x400;
pub(super) const PROCESS_SP_QUESTION: &str = "p1b";

/// Registers of x86_64: all zero, but the stack pointer and the program counter.
pub(super) fn registers() -> String {
    let mut words = [0u64; 17];
    words[7] = STACK_END - 0x1000;
    words[16] = 0x40_1000;
    in_digits(words.iter().flat_map(|word| word.to_le_bytes()))
}

pub(super) fn in_digits(bytes: impl Iterator<Item = u8>) -> String {
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// r0 to pc, so many words of something else, and the status register.
pub(super) fn arm_registers(between: usize, status: u32) -> String {
    let mut words = [0u32; 16];
    (words[13], words[15]) = ((STACK_END - 0x1000) as u32, 0x1000);
    let more = std::iter::repeat_n(0, between).chain([status]);
    in_digits(words.into_iter().chain(more).flat_map(u32::to_le_bytes))
}

/// x0 to x30, sp and pc of arm64.
pub(super) fn register_info(question: &str) -> String {
    let number = usize::from_str_radix(&question["qRegisterInfo".len()..], 16).unwrap();
    let name = match number {
        0..=30 => format!("x{number}"),
        31 => "sp".to_owned(),
        32 => "pc".to_owned(),
        _ => return "E45".to_owned(),
    };
    format!(
        "name:{name};bitsize:64;offset:{};encoding:uint;format:hex;set:General Purpose Registers;",
        8 * number
    )
}

pub(super) fn memory(text: &str) -> String {
    let Some((at, length)) = text[1..].split_once(',') else { return "E01".to_owned() };
    let (Ok(at), Ok(length)) = (u64::from_str_radix(at, 16), u64::from_str_radix(length, 16)) else {
        return "E01".to_owned();
    };
    let stack = STACK_END - STACK_BYTES..=STACK_END;
    if length > 0x800 || !stack.contains(&at) || !stack.contains(&at.saturating_add(length)) {
        return "E01".to_owned();
    }
    "00".repeat(length as usize)
}
