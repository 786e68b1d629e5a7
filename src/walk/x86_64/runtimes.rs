//! Frames of runtimes that make code with conventions of their own: HotSpot's interpreter, V8. Input: code,
//! or a frame and the copied stack; output: a row, or whether it is such a frame.

use super::RBP;
use super::frame::Frame;
use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::{Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::Input;

/// The row where HotSpot's interpreter goes on after a call: first it takes the stack pointer from
/// its frame, two words below rbp, and clears that word (templateInterpreterGenerator_x86.cpp,
/// `generate_return_entry_for`). The caller's stack pointer is in the word between that and the
/// frame record (frame_x86.hpp, `interpreter_frame_sender_sp_offset`).
pub(super) fn interpreter_of_hotspot(code: &[u8]) -> Option<Row> {
    // mov -16(%rbp),%rsp; movq $0,-16(%rbp)
    const GOES_ON: &[u8] = &[0x48, 0x8b, 0x65, 0xf0, 0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0];
    // mov -16(%rbp),%rcx; lea (%rbp,%rcx,8),%rsp; movq $0,-16(%rbp): the word is an index in OpenJDK 25.
    const GOES_ON_BY_INDEX: &[u8] =
        &[0x48, 0x8b, 0x4d, 0xf0, 0x48, 0x8d, 0x64, 0xcd, 0, 0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0];
    // DWARF: breg6 -8, deref; breg6 8; breg6 0
    const SENDER_SP: [u8; 3] = [0x76, 0x78, 0x06];
    [GOES_ON, GOES_ON_BY_INDEX].iter().any(|form| code.starts_with(form)).then(|| {
        let mut row = Row::new(Cfa::Expression(SENDER_SP.into()));
        row.columns[RETURN_ADDRESS] = Column::AtExpression([0x76, 8].into());
        row.columns[RBP] = Column::AtExpression([0x76, 0].into());
        row
    })
}

/// Whether rbp points to the frame record of a function of V8 that has called: V8 finds its own
/// frames so, at every call, and marks them. Below the saved frame pointer is the context, a tagged
/// pointer, and below that the function, another one; or, in other frames than those of
/// JavaScript, the kind of the frame as a small integer, whose tag is 0.
/// Source: V8 src/execution/frame-constants.h, frames.h (`StackFrame::TypeToMarker`).
pub(super) fn is_record_of_v8(from: &Frame, input: &Input<'_>) -> bool {
    const KIND_MAX: u64 = 128;
    let CodeAddress::Return(_) = from.address else { return false };
    if !input.code.keeps_records(from.address.lookup().at()) {
        return false;
    }
    let record = from.registers[RBP] & input.code_mask;
    let below = |bytes: u64| input.read::<u64>(Avma(record.checked_sub(bytes)?));
    let is_tagged = |word: u64| word & 3 == 1;
    match (below(8), below(16)) {
        (Some(context), Some(function)) if is_tagged(context) => is_tagged(function),
        (Some(kind), _) => kind > 0 && kind <= KIND_MAX && kind & 1 == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_of_hotspot_knows_where_its_caller_was() {
        const GOES_ON: &[u8] = &[
            0x48, 0x8b, 0x65, 0xf0, //                         mov -16(%rbp),%rsp
            0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0, //             movq $0,-16(%rbp)
            0x4c, 0x8b, 0x6d, 0xc0, 0x41, 0xff, 0x24, 0xda, // mov -64(%rbp),%r13; jmp *(%r10,%rbx,8)
        ];
        let row = interpreter_of_hotspot(GOES_ON).expect("a row");
        assert_eq!(row.cfa, Cfa::Expression([0x76, 0x78, 0x06].into()));
        assert_eq!(row.columns[RBP], Column::AtExpression([0x76, 0].into()));
        assert_eq!(row.columns[RETURN_ADDRESS], Column::AtExpression([0x76, 8].into()));
        assert_eq!(interpreter_of_hotspot(&GOES_ON[4..]), None);
        const GOES_ON_25: &[u8] = &[
            0x48, 0x8b, 0x4d, 0xf0, //                         mov -16(%rbp),%rcx
            0x48, 0x8d, 0x64, 0xcd, 0, //                      lea (%rbp,%rcx,8),%rsp
            0x48, 0xc7, 0x45, 0xf0, 0, 0, 0, 0, //             movq $0,-16(%rbp)
            0x4c, 0x8b, 0x6d, 0xc0, 0x4c, 0x8b, 0x75, 0xc8, // mov -64(%rbp),%r13; mov -56(%rbp),%r14
        ];
        assert_eq!(interpreter_of_hotspot(GOES_ON_25), Some(row));
        assert_eq!(interpreter_of_hotspot(&GOES_ON_25[4..]), None);
    }
}
