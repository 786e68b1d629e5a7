//! Rules in Go's code, which has no table entries that mark its first functions.

mod shared;

use super::*;
use crate::walk::text::Text;

const AT: u64 = 0x1000;

/// Code at 0x1000 with the row of a function that pushed nothing at every instruction.
fn described(code: impl Into<Vec<u8>>) -> Text {
    let mut row: Row = Row::new(Cfa::Register(7, 8));
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    Text::new(AT, code).with_row(Some(row.into()))
}

fn returned(at: u64) -> CodeAddress {
    CodeAddress::Return(Avma(AT + at))
}

#[test]
fn goroutines_begin_at_goexit_which_calls_nothing() {
    let goexit = |padding: u8| {
        let mut code = vec![0x90, 0xe8, 0x1a, 0x25, 0, 0, 0x90];
        code.resize(16, padding);
        described(code)
    };
    let mut cache = Cache::default();
    let code = goexit(0xcc);
    let first = cache.rule(returned(1), &code);
    assert!(first.returns() && cache.not_called(first) && cache.is_root(first));
    // Inside it, and in its callee.
    for at in [CodeAddress::Pc(Avma(AT)), CodeAddress::Pc(Avma(AT + 1)), returned(6)] {
        let rule = cache.rule(at, &code);
        assert_eq!((rule.kind(), cache.not_called(rule)), (RuleKind::Root, false), "{at:?}");
    }
    // The following bytes are no padding: another function with the same start.
    let mut cache = Cache::default();
    let other = cache.rule(returned(1), &goexit(0x50));
    assert!(!other.returns() && other.kind() == RuleKind::StackPointer);
}

#[test]
fn a_thread_of_go_begins_where_clone_continues_to_exit() {
    // call *%r12; mov $111,%edi; mov $60,%eax; syscall; jmp back to the mov
    let code = [0x41, 0xff, 0xd4, 0xbf, 0x6f, 0, 0, 0, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf2];
    let first = Cache::default().rule(returned(3), &described(code));
    assert_eq!((first.kind(), first.returns()), (RuleKind::Root, true));
    // exit_group(0) after the last call is not the start of a thread.
    let mut other = code;
    other[9] = 0xe7;
    let caller = Cache::default().rule(returned(3), &described(other));
    assert_eq!((caller.kind(), caller.returns()), (RuleKind::StackPointer, true));
}

#[test]
fn a_signal_trampoline_is_recognized_whatever_its_table_says() {
    // nop; mov $15,%rax; syscall
    let code = described([0x90, 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]);
    let mut cache = Cache::default();
    let rule = cache.rule(returned(1), &code);
    assert!(rule.returns() && cache.not_called(rule));
    assert!(cache.unusual(rule).is_some_and(|row| row.signal));
}

#[test]
fn an_emulated_entry_point_returns_to_its_caller() {
    let code = described([0xcc]);
    let rule = Cache::default().rule(CodeAddress::Pc(Avma(0xffff_ffff_ff60_0400)), &code);
    assert_eq!((rule.kind(), rule.cfa(), rule.return_at()), (RuleKind::StackPointer, 1, 0));
    let other = Cache::default().rule(CodeAddress::Pc(Avma(0xffff_ffff_ff60_1400)), &code);
    assert_eq!(other.kind(), RuleKind::Unknown);
}

#[test]
fn a_system_call_that_ends_a_trampoline_has_the_signal_frame() {
    // mov $15,%eax; syscall, of musl, without unwind information
    let mut cache = Cache::default();
    let rule = cache.rule(CodeAddress::Pc(Avma(AT + 5)), &Text::new(AT, [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]));
    assert!(cache.unusual(rule).is_some_and(|row| row.signal));
}

#[test]
fn code_without_callers_is_followed_less_until_it_has_some() {
    let mut follow_limit = FollowLimit::default();
    let nowhere = |follow_limit: &mut FollowLimit, times: u32| (0..times).for_each(|_| follow_limit.note(0));
    nowhere(&mut follow_limit, FollowLimit::BALANCE_MAX - 1);
    assert!((0..64).all(|_| !follow_limit.is_short()));
    nowhere(&mut follow_limit, 1000);
    let short = (0..64).filter(|_| follow_limit.is_short()).count();
    assert_eq!(short, 60, "the others are followed as far as ever");
    (0..5).for_each(|_| follow_limit.note(FollowLimit::CERTAIN_CALLER_CREDIT));
    assert!((0..64).all(|_| !follow_limit.is_short()));
}

/// The same, with an instruction of an epilogue at +4.
struct WithEpilogue(Text);

impl Code for WithEpilogue {
    fn is_code(&self, at: Avma) -> bool {
        self.0.is_code(at)
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.0.code(at)
    }
    fn row(&self, at: Avma) -> Option<AnyRow> {
        self.0.row(at)
    }
    fn row_in_epilogue(&self, pc: Avma) -> Option<Row> {
        let mut row = row::<X86_64>(self, pc)?;
        row.cfa = Cfa::Register(7, 24);
        (pc == Avma(AT + 4)).then_some(row)
    }
}

#[test]
fn only_a_program_counter_can_be_in_an_epilogue() {
    // The last byte of a call looks like a return: call +0xc3000000; nop
    let code = WithEpilogue(described([0xe8, 0, 0, 0, 0xc3, 0x90, 0x90]));
    let cfa = |address| Cache::default().rule(address, &code).cfa();
    assert_eq!((cfa(CodeAddress::Pc(Avma(AT + 4))), cfa(CodeAddress::Pc(Avma(AT)))), (3, 1));
    assert_eq!(cfa(returned(5)), 1);
}
