//! The threads of a target: their list, names and registers, by requests to the stub; and whether a stopped thread
//! was waiting (`ThreadState`), by its registers and the code at its program counter.

use hashbrown::HashMap;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::description::{Layout, ThreadRegisters, attribute};
use super::link;
use super::run::{THREADS_MAX, Tid, sorted, too_many, unexpected};
use super::session::Stub;
use super::transport::ConnectionError;
use crate::arch::Registers;

/// Most bytes of a list of threads with their names.
const LIST_BYTES_MAX: usize = 4 << 20;
/// Longest name.
const NAME_BYTES_MAX: usize = 256;
/// Most threads with names requested one by one.
const NAMES_ONE_BY_ONE_MAX: usize = 256;

impl Stub {
    /// Requests the list of threads.
    ///
    /// # Errors
    /// The stub cannot be reached, or the list does not end.
    pub(super) fn list_threads(&mut self) -> Result<(), ConnectionError> {
        let answers = self.flight(&[b"qfThreadInfo".to_vec(), b"qsThreadInfo".to_vec()])?;
        self.finish_list(&answers)
    }

    /// Takes the first two parts of a list, and requests the others. For a stub without lists the known
    /// threads are kept.
    pub(super) fn finish_list(&mut self, parts: &[Vec<u8>]) -> Result<(), ConnectionError> {
        let mut threads = Vec::new();
        for part in parts {
            match take_part(part, &mut threads)? {
                Part::More => {}
                Part::End => return self.listed(threads),
                Part::None => return Ok(()),
            }
        }
        loop {
            let part = self.call(b"qsThreadInfo")?;
            match take_part(&part, &mut threads)? {
                Part::More => {}
                Part::End => return self.listed(threads),
                Part::None => return Err(unexpected("qsThreadInfo", &part)),
            }
        }
    }

    fn listed(&mut self, threads: Vec<Tid>) -> Result<(), ConnectionError> {
        let ours =
            |thread: &Tid| thread.pid.is_none() || self.run.pid.is_none() || thread.pid == self.run.pid;
        let threads: Vec<Tid> = threads.into_iter().filter(ours).collect();
        if !threads.is_empty() {
            self.run.threads = sorted(threads);
        }
        Ok(())
    }

    /// The names of threads, if the stub has them.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn thread_names(&mut self) -> Result<HashMap<u64, String>, ConnectionError> {
        if self.offers.threads_xml
            && let Some(list) = self.transfer("threads", "", LIST_BYTES_MAX)?
        {
            return Ok(names_in_xml(&list));
        }
        if self.offers.lldb {
            let list = self.call(b"jThreadsInfo")?;
            return Ok(names_in_json(&list));
        }
        let threads: Vec<Tid> = self.run.threads.iter().copied().take(NAMES_ONE_BY_ONE_MAX).collect();
        let question = |thread: &Tid| format!("qThreadExtraInfo,{thread}").into_bytes();
        let questions: Vec<Vec<u8>> = threads.iter().map(question).collect();
        let answers = self.flight(&questions)?;
        let names = threads
            .iter()
            .zip(answers)
            .filter_map(|(thread, answer)| Some((thread.tid, plain(&link::text(&answer)?)?)));
        Ok(names.collect())
    }

    /// The registers of stopped threads, each `None` if unknown.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn registers(
        &mut self,
        threads: &[Tid],
        layout: &Layout,
    ) -> Result<Vec<Option<ThreadRegisters>>, ConnectionError> {
        let (mut questions, mut answers_at) = (Vec::with_capacity(2 * threads.len()), Vec::new());
        for thread in threads {
            let (select, suffix) = self.thread_words(*thread);
            questions.extend(select);
            answers_at.push(questions.len());
            questions.push(format!("g{suffix}").into_bytes());
        }
        let answers = self.flight(&questions)?;
        let mut registers = Vec::with_capacity(threads.len());
        for (thread, at) in threads.iter().zip(answers_at) {
            let selected = at == 0 || questions[at - 1].first() != Some(&b'H') || answers[at - 1] == b"OK";
            let sent = register_bytes(&answers[at]).filter(|_| selected);
            registers.push(match sent {
                Some(sent) => self.registers_of(*thread, layout, &sent)?,
                // Without `g` each register is read separately. An error means that this thread has none.
                None if answers[at].is_empty() && selected => self.registers_of(*thread, layout, &[])?,
                None => None,
            });
        }
        Ok(registers)
    }

    /// The registers of one thread, some of them from a reply to `g`.
    fn registers_of(
        &mut self,
        thread: Tid,
        layout: &Layout,
        sent: &[Option<u8>],
    ) -> Result<Option<ThreadRegisters>, ConnectionError> {
        let missing = layout.missing_registers(sent.len());
        if missing.is_empty() {
            return Ok(layout.registers(sent, &|_| None));
        }
        let (select, suffix) = self.thread_words(thread);
        let selects = usize::from(select.is_some());
        let question = |number: &u32| format!("p{number:x}{suffix}").into_bytes();
        let questions: Vec<Vec<u8>> = select.into_iter().chain(missing.iter().map(question)).collect();
        let answers = self.flight(&questions)?;
        let bytes = layout.arch.pointer_bytes() as usize;
        let values: HashMap<u32, u64> = missing
            .iter()
            .zip(&answers[selects..])
            .filter_map(|(number, answer)| Some((*number, value(answer, bytes)?)))
            .collect();
        Ok(layout.registers(sent, &|number| values.get(&number).copied()))
    }

    /// 32-bit registers by thread and number, each `None` if unknown.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn words(&mut self, wanted: &[(Tid, u32)]) -> Result<Vec<Option<u64>>, ConnectionError> {
        let (mut questions, mut answers_at) = (Vec::with_capacity(2 * wanted.len()), Vec::new());
        for (thread, number) in wanted {
            let (select, suffix) = self.thread_words(*thread);
            questions.extend(select);
            answers_at.push(questions.len());
            questions.push(format!("p{number:x}{suffix}").into_bytes());
        }
        let answers = self.flight(&questions)?;
        Ok(answers_at.into_iter().map(|at| value(&answers[at], 4)).collect())
    }
}

enum Part {
    More,
    End,
    /// Not a list.
    None,
}

/// `mp1.1,p1.2` or `l`.
fn take_part(part: &[u8], threads: &mut Vec<Tid>) -> Result<Part, ConnectionError> {
    match part.split_first() {
        Some((b'l', _)) => Ok(Part::End),
        Some((b'm', list)) => {
            for thread in list.split(|byte| *byte == b',') {
                let Some(thread) = Tid::parse(thread) else { return Err(unexpected("qfThreadInfo", part)) };
                threads.push(thread);
            }
            if threads.len() > THREADS_MAX { Err(too_many()) } else { Ok(Part::More) }
        }
        _ => Ok(Part::None),
    }
}

/// The value in a reply to `p`, of this many bytes; `None` for an error.
fn value(answer: &[u8], bytes: usize) -> Option<u64> {
    let decoded = link::decode(answer)?;
    Some(decoded.get(..bytes)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// The bytes of a reply to `g`; `xx` means unknown.
fn register_bytes(answer: &[u8]) -> Option<Vec<Option<u8>>> {
    if answer.is_empty() || !answer.len().is_multiple_of(2) {
        return None;
    }
    let byte = |pair: &[u8]| match pair {
        b"xx" => Some(None),
        pair => Some(Some(*link::decode(pair)?.first()?)),
    };
    answer.chunks_exact(2).map(byte).collect()
}

/// `<threads><thread id="p1.1" core="0" name="work">...`
fn names_in_xml(list: &[u8]) -> HashMap<u64, String> {
    let mut reader = Reader::from_reader(list);
    let mut names = HashMap::new();
    // Damaged XML has no names.
    while let Ok(event) = reader.read_event() {
        let element = match event {
            Event::Eof => break,
            Event::Start(element) | Event::Empty(element) => element,
            _ => continue,
        };
        let id = attribute(&element, b"id").and_then(|id| Tid::parse(id.as_bytes()));
        let name = attribute(&element, b"name").and_then(|name| plain(&name));
        names.extend(id.zip(name).map(|(id, name)| (id.tid, name)));
    }
    names
}

/// `[{"tid":1,"name":"work",...}]`
fn names_in_json(list: &[u8]) -> HashMap<u64, String> {
    let list: serde_json::Value = serde_json::from_slice(list).unwrap_or_default();
    let threads = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |thread: &serde_json::Value| Some((thread["tid"].as_u64()?, plain(thread["name"].as_str()?)?));
    threads.iter().filter_map(name).collect()
}

/// A printable name.
fn plain(name: &str) -> Option<String> {
    let end = name.char_indices().map(|(at, _)| at).take_while(|at| *at <= NAME_BYTES_MAX).last()?;
    let name = if name.len() > NAME_BYTES_MAX { &name[..end] } else { name };
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

// ---- Whether a stopped thread was waiting: no stub reports it, but the program counter shows it. Input:
// registers, and the code around the program counter. Output: yes or no. Pure.
//
// - Linux, x86_64: the result of a system call interrupted by a stop is an error that programs never see
//   (ERESTARTSYS and its like), or EINTR, and the program counter is behind `syscall`
//   (arch/x86/kernel/signal.c, handle_signal and arch_do_signal_or_restart).
// - Linux, aarch64: the kernel has reset the program counter to `svc` before it stops the thread
//   (arch/arm64/kernel/signal.c, do_signal); calls that are not restarted return EINTR behind it.
// - Linux, 32-bit Arm: the program counter is reset to `svc`, or EINTR is behind it, as on aarch64
//   (arch/arm/kernel/signal.c, do_signal).
// - macOS: a thread in the kernel is behind `syscall` or `svc #0x80`, whether it waits or not.
// - Bare metal: a processor at `hlt`, `wfi` or `wfe` or right behind it is idle.

/// The system that runs the target's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Linux: threads of a process.
    Linux,
    /// macOS and its like.
    Mach,
    /// No operating system known to the stub: threads are processors, or tasks.
    Bare,
}

/// Bytes of code to read before the program counter, and from it on.
pub const AROUND_BYTES: usize = 4;

const EINTR: i64 = -4;
/// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (include/linux/errno.h).
const RESTART_CODES: [i64; 4] = [-512, -513, -514, -516];

/// Activity of a thread, from its registers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// It waits.
    Waits,
    /// It runs or is ready.
    Runs,
    /// The code around its program counter decides.
    CodeDecides,
}

/// Derives the state from registers.
#[must_use]
pub fn by_registers(answer: &ThreadRegisters, system: System) -> ThreadState {
    let in_call = |result: i64| {
        let interrupted = result == EINTR || RESTART_CODES.contains(&result);
        match answer.call {
            _ if !interrupted => ThreadState::Runs,
            Some(call) if call >= 0 => ThreadState::Waits,
            Some(_) => ThreadState::Runs,
            None => ThreadState::CodeDecides,
        }
    };
    match (system, &answer.registers) {
        (System::Linux, Registers::X86_64(registers)) => in_call(registers.gpr[0].cast_signed()),
        (System::Linux, Registers::X86(registers)) => in_call((registers.gpr[0] as u32).cast_signed().into()),
        _ => ThreadState::CodeDecides,
    }
}

/// Whether code shows that a thread waits: `before` ends at the program counter, `after` begins there.
#[must_use]
pub fn by_code(
    answer: &ThreadRegisters,
    before: [u8; AROUND_BYTES],
    after: [u8; AROUND_BYTES],
    system: System,
) -> bool {
    const HLT: u8 = 0xf4;
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const INT_80: [u8; 2] = [0xcd, 0x80];
    const SVC_0: u32 = 0xd400_0001;
    const SVC_80: u32 = 0xd400_1001;
    const WAITS: [u32; 2] = [0xd503_207f, 0xd503_205f];
    match &answer.registers {
        Registers::X86_64(_) => match system {
            System::Linux | System::Mach => before[2..] == SYSCALL,
            System::Bare => before[3] == HLT || after[0] == HLT,
        },
        // `int $0x80`, or `sysenter` of the vDSO, with a caller that continues behind the vDSO's `int $0x80`
        // (arch/x86/entry/vdso/vdso32/system_call.S).
        Registers::X86(_) => match system {
            System::Linux | System::Mach => before[2..] == INT_80,
            System::Bare => before[3] == HLT || after[0] == HLT,
        },
        Registers::Arm(registers) => {
            let thumb = registers.m_profile || registers.cpsr.is_some_and(|status| status & CPSR_T != 0);
            match system {
                System::Linux => {
                    let call = |code: &[u8]| match thumb {
                        true => code == SVC_T32,
                        false => code == SVC_A32,
                    };
                    let (before, after) = match thumb {
                        true => (&before[2..], &after[..2]),
                        false => (&before[..], &after[..]),
                    };
                    call(after) || call(before) && i64::from((registers.r[0] as u32).cast_signed()) == EINTR
                }
                System::Mach => false,
                System::Bare if thumb => is_wait_t32(before, after),
                System::Bare => [before, after].iter().any(|code| is_wait_a32(u32::from_le_bytes(*code))),
            }
        }
        Registers::Aarch64(registers) => {
            let (before, after) = (u32::from_le_bytes(before), u32::from_le_bytes(after));
            match system {
                System::Linux => after == SVC_0 || before == SVC_0 && registers.x[0].cast_signed() == EINTR,
                System::Mach => before == SVC_80,
                System::Bare => WAITS.contains(&before) || WAITS.contains(&after),
            }
        }
    }
}

/// The T32 bit of CPSR (Armv7-A ARM, B1.3.3).
const CPSR_T: u32 = 1 << 5;
/// `svc #0`.
const SVC_A32: [u8; 4] = [0, 0, 0, 0xef];
const SVC_T32: [u8; 2] = [0, 0xdf];

/// `wfi` or `wfe` in T32, narrow or wide (Armv7-M ARM, A7.7.261 and A7.7.262).
fn is_wait_t32(before: [u8; AROUND_BYTES], after: [u8; AROUND_BYTES]) -> bool {
    const NARROW: [[u8; 2]; 2] = [[0x30, 0xbf], [0x20, 0xbf]];
    const WIDE: [[u8; 4]; 2] = [[0xaf, 0xf3, 0x03, 0x80], [0xaf, 0xf3, 0x02, 0x80]];
    let narrow = |code: &[u8]| NARROW.iter().any(|wait| code == wait);
    narrow(&before[2..]) || narrow(&after[..2]) || WIDE.contains(&before) || WIDE.contains(&after)
}

/// `wfi` or `wfe` in A32, under any condition (Armv7-A ARM, A8.8.425 and A8.8.424), or the older CP15 write
/// with the same effect (Arm1176 TRM, 3.2.22).
fn is_wait_a32(word: u32) -> bool {
    const WITHOUT_CONDITION: u32 = 0x0fff_ffff;
    const NEVER: u32 = 0xf;
    let plain = word & WITHOUT_CONDITION;
    let cp15 = plain & !0xf000 == 0x0e07_0f90;
    word >> 28 != NEVER && (matches!(plain, 0x0320_f002 | 0x0320_f003) || cp15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_lists_arrive_in_parts() {
        let mut threads = Vec::new();
        assert!(matches!(take_part(b"mp1.1,p1.2", &mut threads), Ok(Part::More)));
        assert!(matches!(take_part(b"m3", &mut threads), Ok(Part::More)));
        assert!(matches!(take_part(b"l", &mut threads), Ok(Part::End)));
        assert_eq!(threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(matches!(take_part(b"", &mut threads), Ok(Part::None)));
        assert!(take_part(b"m", &mut threads).is_err());
        assert!(take_part(b"m1,,2", &mut threads).is_err());
    }

    #[test]
    fn names_are_read_from_both_formats() {
        let xml =
            b"<?xml version=\"1.0\"?><threads><thread id=\"p1.a\" core=\"1\" name=\"work &amp; rest\"/>\
                    <thread id=\"p1.b\">CPU#1 [running]</thread></threads>";
        assert_eq!(names_in_xml(xml).get(&10).map(String::as_str), Some("work & rest"));
        assert_eq!(names_in_xml(xml).len(), 1);
        let json = br#"[{"tid":7,"name":"pool"},{"tid":8},{"name":"x"}]"#;
        assert_eq!(names_in_json(json).get(&7).map(String::as_str), Some("pool"));
        assert_eq!(names_in_json(json).len(), 1);
        assert!(names_in_json(b"{").is_empty());
    }

    #[test]
    fn unknown_registers_are_marked() {
        assert_eq!(register_bytes(b"01xxff"), Some(vec![Some(1), None, Some(255)]));
        assert_eq!(register_bytes(b"E01"), None);
        assert_eq!(register_bytes(b"zz"), None);
        assert_eq!(plain(&"ä".repeat(300)).map(|name| name.len()), Some(256));
    }
}

#[cfg(test)]
mod waits_tests {
    use super::*;
    use crate::arch::{Aarch64, Arm, X86_64};

    fn x86(rax: i64, call: Option<i64>) -> ThreadRegisters {
        let mut registers = X86_64::default();
        registers.gpr[0] = rax.cast_unsigned();
        ThreadRegisters { registers: Registers::X86_64(registers), call }
    }

    #[test]
    fn interrupted_linux_calls_are_waits() {
        assert_eq!(by_registers(&x86(-512, Some(0)), System::Linux), ThreadState::Waits);
        assert_eq!(by_registers(&x86(-4, Some(232)), System::Linux), ThreadState::Waits);
        assert_eq!(by_registers(&x86(-4, Some(-1)), System::Linux), ThreadState::Runs, "in user mode");
        assert_eq!(by_registers(&x86(17, Some(1)), System::Linux), ThreadState::Runs, "the call is done");
        let unknown = x86(-516, None);
        assert_eq!(by_registers(&unknown, System::Linux), ThreadState::CodeDecides);
        assert!(by_code(&unknown, [0x90, 0x90, 0x0f, 0x05], [0xc3; 4], System::Linux));
        assert!(!by_code(&unknown, [0x90, 0x90, 0x0f, 0x0b], [0xc3; 4], System::Linux));
    }

    #[test]
    fn arm_waits_are_at_svc_or_wfi() {
        let answer = |x0: i64| ThreadRegisters {
            registers: Registers::Aarch64(Aarch64 {
                x: std::array::from_fn(|number| if number == 0 { x0.cast_unsigned() } else { 0 }),
                sp: 0,
                pc: 0,
            }),
            call: None,
        };
        let (svc, nop, wfi) =
            (0xd400_0001u32.to_le_bytes(), 0xd503_201fu32.to_le_bytes(), 0xd503_207fu32.to_le_bytes());
        assert!(by_code(&answer(3), nop, svc, System::Linux));
        assert!(by_code(&answer(-4), svc, nop, System::Linux));
        assert!(!by_code(&answer(8), svc, nop, System::Linux), "the call is done");
        assert!(by_code(&answer(0), wfi, nop, System::Bare) && by_code(&answer(0), nop, wfi, System::Bare));
        assert!(!by_code(&answer(0), nop, nop, System::Bare));
    }

    fn arm(status: u32, m_profile: bool) -> ThreadRegisters {
        let registers = Arm { cpsr: Some(status), m_profile, ..Arm::default() };
        ThreadRegisters { registers: Registers::Arm(registers), call: None }
    }

    #[test]
    fn waits_of_32_bit_cores_depend_on_their_instruction_set() {
        let a32 = |word: u32| word.to_le_bytes();
        let (nop, wfi, wfe_eq, wfi_arm11) =
            (a32(0xe320_f000), a32(0xe320_f003), a32(0x0320_f002), a32(0xee07_0f90));
        let in_a32 = |before, after| by_code(&arm(0x13, false), before, after, System::Bare);
        assert!(in_a32(wfi, nop) && in_a32(nop, wfe_eq) && in_a32(wfi_arm11, nop));
        assert!(!in_a32(nop, nop) && !in_a32(nop, a32(0xf320_f003)));
        // nop; wfi | nop; nop
        let in_t32 = |before, after| by_code(&arm(1 << 24, true), before, after, System::Bare);
        assert!(in_t32([0, 0xbf, 0x30, 0xbf], [0, 0xbf, 0, 0xbf]));
        assert!(in_t32([0, 0xbf, 0, 0xbf], [0x20, 0xbf, 0, 0xbf]));
        assert!(in_t32([0xaf, 0xf3, 0x03, 0x80], [0, 0xbf, 0, 0xbf]));
        assert!(!in_t32([0x30, 0xbf, 0, 0xbf], [0, 0xbf, 0x30, 0xbf]), "one instruction away");
        assert!(by_code(&arm(0x33, false), [0, 0xbf, 0x30, 0xbf], [0, 0xbf, 0, 0xbf], System::Bare));
        assert!(!in_a32([0, 0xbf, 0x30, 0xbf], [0, 0xbf, 0, 0xbf]), "T32 in A32");
    }

    #[test]
    fn waits_of_32_bit_linux_threads_are_at_svc() {
        let at = |status, before, after| by_code(&arm(status, false), before, after, System::Linux);
        assert!(at(0x10, [0; 4], [0, 0, 0, 0xef]) && at(0x30, [0; 4], [0, 0xdf, 0, 0]));
        assert!(!at(0x10, [0, 0, 0, 0xef], [0; 4]), "the call is done");
    }
}
