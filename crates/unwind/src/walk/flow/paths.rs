//! Follows the possible paths of instructions from one address, within limits: where each arrives, and with what
//! state. Input: code, and the bounds of functions if known.
//!
//! `Paths` follows them, `FlowState` is the state and `Effect` what an instruction does; `Value` is the content of
//! a register, `Visited` the addresses reached.

use std::ops::Range;

use crate::addr::Avma;
use crate::walk::Code;
use crate::walk::code::Reader;
use crate::walk::processor::Processor;

/// Limit on instructions followed for one row, over all paths.
pub(super) const STEPS_MAX: u32 = 2048;
/// Limit on branch targets.
pub(super) const TARGETS_MAX: usize = 256;
/// Limits for large functions, if the first ones are exceeded: JIT compilers that inline produce functions of 20
/// KB with 700 branches.
pub(super) const LARGE_STEPS_MAX: u32 = 16_384;
pub(super) const LARGE_TARGETS_MAX: usize = 2048;
/// Limit on instructions of all callees followed for one row.
const CALLEE_STEPS_MAX: u32 = 4096;
/// Limit on subroutines of a function.
pub(super) const INNER_MAX: usize = 8;
/// Limit on instructions followed in an outlined callee: pieces split off by LLVM's machine outliner are that
/// short.
pub(super) const PIECE_MAX: u32 = 16;

/// The bounds of the function that contains an address, if known.
pub(crate) fn function_around(at: Avma, code: &dyn Code) -> Option<Range<Avma>> {
    code.function(at).filter(|function| function.contains(&at))
}

/// Results for callees.
#[derive(Clone, Debug)]
pub(super) struct Callees {
    pub(super) known: Vec<(Avma, bool)>,
    pub(super) depth: u32,
    pub(super) left: u32,
}

impl Default for Callees {
    fn default() -> Callees {
        Callees { known: Vec::new(), depth: 0, left: CALLEE_STEPS_MAX }
    }
}

/// The end of a path.
pub(super) enum PathEnd<'a> {
    Returns(&'a FlowState),
    /// A jump out of the function.
    Leaves(&'a FlowState, Option<Avma>),
    LeavesAnywhere(&'a FlowState),
    /// The goal.
    At(&'a FlowState),
    /// The end of the function, except after a call, or an unknown instruction.
    RunsOut,
}

/// The instruction where paths should arrive. If a call has just returned there, only that call leads to it; jumps
/// there may be on another path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) at: Avma,
    pub(super) returned: bool,
}

#[derive(Clone)]
pub(super) struct Paths<'c> {
    pub(super) function: Option<Range<Avma>>,
    /// Base registers of a frame, in order of preference.
    pub(super) bases: &'static [u8],
    pub(super) goal: Option<Goal>,
    pub(super) code: &'c dyn Code,
    pub(super) reader: Reader<'c>,
    /// The branch targets, by address, with the frame's place at the first visit: the frame pointer, or else the
    /// stack pointer.
    pub(super) targets: Vec<(Avma, Option<RegisterOffset>)>,
    pub(super) targets_max: usize,
    /// Two paths reached one address with different frames: one of them is never taken.
    pub(super) differ: bool,
    /// There were more branch targets than the limit.
    pub(super) is_full: bool,
    /// Paths continue after the goal.
    pub(super) goes_on: bool,
    /// Paths continue after calls.
    pub(super) past_calls: bool,
    pub(super) left: u32,
    pub(super) callees: Callees,
    /// Entries of subroutines inside the function, which it calls.
    pub(super) inner: Vec<Avma>,
}

impl<'c> Paths<'c> {
    pub(super) fn new<P: Processor>(function: Option<Range<Avma>>, code: &'c dyn Code) -> Paths<'c> {
        let bases = P::BASES.first().copied().unwrap_or_default();
        let callees = Callees::default();
        let (targets, left) = (Vec::new(), STEPS_MAX);
        Paths {
            function,
            bases,
            goal: None,
            code,
            reader: Reader::new(code),
            targets,
            targets_max: TARGETS_MAX,
            differ: false,
            is_full: false,
            goes_on: false,
            past_calls: true,
            left,
            callees,
            inner: Vec::new(),
        }
    }

    /// Follows every path from `start`, until `arrive` returns a result for the end of one.
    pub(super) fn follow<P: Processor, T, F>(
        &mut self,
        start: Avma,
        state: FlowState,
        mut arrive: F,
    ) -> Option<T>
    where
        F: FnMut(&mut Paths<'c>, PathEnd<'_>) -> Option<T>,
    {
        self.is_new::<P>(start, &state);
        let mut branches = vec![(start, state)];
        while let Some((mut at, mut state)) = branches.pop() {
            let (mut has_called, mut falls) = (false, false);
            loop {
                if self.goal == Some(Goal { at, returned: false }) {
                    match arrive(self, PathEnd::At(&state)) {
                        None if self.goes_on => {}
                        None => break,
                        found => return found,
                    }
                }
                // Another path continues from there with the same frame.
                if !P::EVERY_PATH && falls && self.is_known::<P>(at, &state) {
                    break;
                }
                falls = true;
                self.left = self.left.checked_sub(1)?;
                let is_inside = self.function.as_ref().is_none_or(|function| function.contains(&at));
                let bytes = self.reader.at(at).filter(|_| is_inside);
                let Some((effect, length)) = bytes.and_then(|bytes| P::step(at, bytes, &mut state)) else {
                    match arrive(self, PathEnd::RunsOut) {
                        Some(found) if is_inside || !has_called => return Some(found),
                        _ => break,
                    }
                };
                let next = at + length;
                has_called = matches!(effect, Effect::Calls(_));
                let mut comes_back = true;
                let found = match effect {
                    Effect::Plain => None,
                    Effect::Calls(target) => {
                        comes_back = self.call::<P>(target, next, &mut state);
                        let is_goal = self.goal == Some(Goal { at: next, returned: true });
                        is_goal.then(|| arrive(self, PathEnd::At(&state))).flatten()
                    }
                    Effect::Returns => arrive(self, PathEnd::Returns(&state)),
                    Effect::MayReturn => returned::<P>(at, bytes.unwrap_or_default(), state)
                        .and_then(|state| arrive(self, PathEnd::Returns(&state))),
                    Effect::Jumps(target) | Effect::MayJump(target) if self.leaves(target) => {
                        arrive(self, PathEnd::Leaves(&state, Some(target)))
                    }
                    Effect::JumpsAnywhere => arrive(self, PathEnd::LeavesAnywhere(&state)),
                    Effect::Ends => arrive(self, PathEnd::RunsOut),
                    _ => None,
                };
                if found.is_some() {
                    return found;
                }
                match effect {
                    Effect::Calls(_) if !comes_back || !self.past_calls => break,
                    Effect::Plain | Effect::Calls(_) | Effect::MayReturn => at = next,
                    Effect::Forks(condition) => {
                        let mut fulfilled = state;
                        fulfilled.mode.assumed = Some(condition);
                        branches.push((at, fulfilled));
                        state.mode.assumed = Some(condition ^ 1);
                    }
                    Effect::MayJump(target) => {
                        if !self.leaves(target) && self.is_new::<P>(target, &state) {
                            branches.push((target, state));
                        }
                        at = next;
                    }
                    Effect::Jumps(target) if !self.leaves(target) && self.is_new::<P>(target, &state) => {
                        (at, falls) = (target, false);
                    }
                    _ => break,
                }
            }
        }
        None
    }

    /// Applies a call to the state. Returns whether the call returns to `next`.
    fn call<P: Processor>(&mut self, target: Option<Avma>, next: Avma, state: &mut FlowState) -> bool {
        if let Some(target) = target.filter(|target| self.is_inner(*target)) {
            self.inner.push(target);
        }
        let comes_back = !target.is_some_and(|target| self.never_returns::<P>(target, state));
        match target.and_then(|target| self.piece::<P>(target, state, Some(next))) {
            Some(after) => *state = after,
            None => after_call::<P>(state),
        }
        comes_back
    }

    /// Whether a jump leaves the function for another one, or goes back to its entry. A jump into the middle of
    /// another function stays: hand-written code has several labels.
    pub(super) fn leaves(&self, target: Avma) -> bool {
        match &self.function {
            Some(function) if function.contains(&target) => function.start == target,
            Some(_) => true,
            None => false,
        }
    }

    /// The place of the frame. A callee may pop its arguments, which the call does not show; a frame pointer is
    /// right even then.
    pub(super) fn frame<P: Processor>(&self, state: &FlowState) -> Option<RegisterOffset> {
        let frame_pointers = self.bases.iter().filter(|base| **base != P::STACK_POINTER);
        let of_frame = frame_pointers
            .filter_map(|base| Some((*base, state.place(*base)?)))
            .find(|(_, place)| place.register == P::STACK_POINTER);
        // Which register has it must be the same on all paths, if there are several.
        let many = !P::EVERY_PATH && !self.bases.contains(&P::STACK_POINTER);
        let of_frame = of_frame.map(|(base, place)| RegisterOffset {
            register: if many { base } else { place.register },
            ..place
        });
        of_frame.or_else(|| state.place(P::STACK_POINTER))
    }

    /// Whether an address is a known branch target with the same frame.
    pub(super) fn is_known<P: Processor>(&self, at: Avma, state: &FlowState) -> bool {
        let index = self.targets.binary_search_by_key(&at, |(target, _)| *target);
        let known = index.ok().and_then(|index| self.targets.get(index));
        known.is_some_and(|(_, before)| *before == self.frame::<P>(state))
    }

    /// Records a branch target. Returns whether it is new and fits.
    pub(super) fn is_new<P: Processor>(&mut self, at: Avma, state: &FlowState) -> bool {
        let sp = self.frame::<P>(state);
        let index = match self.targets.binary_search_by_key(&at, |(target, _)| *target) {
            Ok(index) => {
                self.differ |= self.targets.get(index).is_none_or(|(_, before)| *before != sp);
                return false;
            }
            Err(index) => index,
        };
        let has_room = self.has_room();
        if has_room {
            self.targets.insert(index, (at, sp));
        }
        self.is_full |= !has_room;
        has_room
    }

    /// Whether a call leads into the function itself but not to its entry, and is new.
    pub(super) fn is_inner(&self, target: Avma) -> bool {
        let is_inside = self
            .function
            .as_ref()
            .is_some_and(|function| function.contains(&target) && function.start != target);
        self.goes_on && is_inside && self.inner.len() < INNER_MAX && !self.inner.contains(&target)
    }

    /// Whether one more branch target fits.
    pub(super) fn has_room(&self) -> bool {
        self.targets.len() < self.targets_max
    }

    /// The state after a short piece of code that ends in a return, without branches or calls: the machine
    /// outliner puts parts of prologues and epilogues into these functions. `returns_to`: the return address of a
    /// call to it.
    pub(super) fn piece<P: Processor>(
        &mut self,
        mut at: Avma,
        before: &FlowState,
        returns_to: Option<Avma>,
    ) -> Option<FlowState> {
        if returns_to.is_some() && P::LINK.is_none() {
            return None;
        }
        let mut state = *before;
        if let (Some(_), Some(link)) = (returns_to, P::LINK) {
            state.set(link, Value::Unknown);
        }
        for _ in 0..PIECE_MAX {
            self.left = self.left.checked_sub(1)?;
            let (effect, length) = P::step(at, self.reader.at(at)?, &mut state)?;
            match effect {
                Effect::Plain => at = at + length,
                Effect::Returns => return Some(state),
                _ => return None,
            }
        }
        None
    }
}

/// The state at a conditional return, if the instruction is one and its condition holds.
fn returned<P: Processor>(at: Avma, bytes: &[u8], mut state: FlowState) -> Option<FlowState> {
    state.mode.takes = true;
    matches!(P::step(at, bytes, &mut state), Some((Effect::Returns, _))).then_some(state)
}

/// Applies the call of an ordinary function to the state. In place: code is full of calls.
pub(crate) fn after_call<P: Processor>(state: &mut FlowState) {
    let one = |register: u8| 1u32 << register;
    let kept = P::SAVED.iter().filter(|saved| Some(**saved) != P::LINK);
    let kept = kept.fold(one(P::STACK_POINTER), |kept, saved| kept | one(*saved));
    state.keep_only(kept);
}

/// One bit per register.
const _: () = assert!(REGISTERS <= u32::BITS as usize);

// ---- Contents of registers and the stack on one path through instructions, relative to its start, and the effects of
// instructions on the path.

/// Limit on remembered saved registers.
const STORES_MAX: usize = 24;
/// The effect of an instruction on the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Plain,
    Returns,
    Calls(Option<Avma>),
    Jumps(Avma),
    MayJump(Avma),
    /// Jumps to an unknown address: a tail call, a stub, or a jump through a table.
    JumpsAnywhere,
    /// Returns, or continues with the next instruction, with the state of the latter. With [`Mode::takes`] set the
    /// same instruction returns.
    MayReturn,
    /// The frame depends on this condition: nothing has been executed. Execution continues with [`Mode::assumed`]
    /// set to the condition or to its opposite, which has the lowest bit inverted.
    Forks(u8),
    /// Nothing is known after it.
    Ends,
}

/// The decoder's mode for the next instruction, on processors with several instruction sets or with conditional
/// execution: 32-bit Arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mode {
    /// The instruction set is T32.
    pub(crate) t32: bool,
    /// Conditions of the next instructions in T32, in the form of `ITSTATE`; 0: none.
    pub(crate) it: u8,
    /// The condition of the next instruction is assumed to hold.
    pub(crate) takes: bool,
    /// This condition is assumed to hold, and its opposite not, until an instruction may change the flags.
    pub(crate) assumed: Option<u8>,
}

/// Registers, stored initial values, and the last pushed zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowState {
    registers: [Packed; REGISTERS],
    /// Places, with the stored values.
    stores: [(Packed, Packed); STORES_MAX],
    stored: usize,
    pub(crate) zero: Option<RegisterOffset>,
    pub(crate) mode: Mode,
}

impl FlowState {
    pub(crate) fn new() -> FlowState {
        FlowState {
            registers: std::array::from_fn(|number| Packed::first(number as u8)),
            stores: [(Packed::NOTHING, Packed::NOTHING); STORES_MAX],
            stored: 0,
            zero: None,
            mode: Mode::default(),
        }
    }

    pub(crate) fn get(&self, register: u8) -> Value {
        self.registers.get(usize::from(register)).map_or(Value::Unknown, |held| held.value())
    }

    pub(crate) fn set(&mut self, register: u8, value: Value) {
        if let Some(held) = self.registers.get_mut(usize::from(register)) {
            *held = Packed::of(value);
        }
    }

    /// Makes the registers without a set bit unknown.
    pub(crate) fn keep_only(&mut self, kept: u32) {
        for (register, held) in self.registers.iter_mut().enumerate() {
            if kept >> register & 1 == 0 {
                *held = Packed::NOTHING;
            }
        }
    }

    /// Stored values, with their places.
    pub(crate) fn stores(&self) -> impl Iterator<Item = (RegisterOffset, Value)> {
        self.stores[..self.stored].iter().map(|(place, value)| (place.place(), value.value()))
    }

    /// Keeps only what also holds in `other`, the state after one more instruction.
    pub(crate) fn merge(&mut self, other: &FlowState) {
        for (held, others) in self.registers.iter_mut().zip(&other.registers) {
            if held != others {
                *held = Packed::NOTHING;
            }
        }
        for (index, (place, value)) in other.stores().enumerate() {
            if self.stores().nth(index) != Some((place, value)) {
                self.store(Some(place), Value::Unknown);
            }
        }
    }

    /// The address in a register.
    pub(crate) fn place(&self, register: u8) -> Option<RegisterOffset> {
        match self.get(register) {
            Value::First(register) => Some(RegisterOffset { register, offset: 0 }),
            Value::At(place) => Some(place),
            _ => None,
        }
    }

    /// The sum of a register and a number of bytes.
    pub(crate) fn sum(&self, register: u8, bytes: i64) -> Value {
        match (self.place(register), self.get(register)) {
            (Some(place), _) => Value::At(place.plus(bytes)),
            (None, Value::Number(number)) => Value::Number(number.wrapping_add_signed(bytes)),
            _ => Value::Unknown,
        }
    }

    pub(crate) fn store(&mut self, at: Option<RegisterOffset>, value: Value) {
        let Some(at) = at else { return };
        self.zero = self.zero.filter(|zero| *zero != at);
        let (place, held) = (Packed::at(at), Packed::of(value));
        if let Some(known) = self.stores[..self.stored].iter_mut().find(|(known, _)| *known == place) {
            known.1 = held;
        } else if (matches!(value, Value::First(_) | Value::Loaded(_)) || at.offset >= 0)
            && let Some(free) = self.stores.get_mut(self.stored)
        {
            *free = (place, held);
            self.stored += 1;
        }
    }

    /// The value loaded from a place; `sp` is the stack pointer register. Below its initial value there was
    /// nothing.
    pub(crate) fn load(&self, at: Option<RegisterOffset>, sp: u8) -> Value {
        let Some(at) = at else { return Value::Unknown };
        let place = Packed::at(at);
        match self.stores[..self.stored].iter().find(|(known, _)| *known == place) {
            Some((_, held)) => held.value(),
            None if at.register == sp && at.offset < 0 => Value::Unknown,
            None => Value::Loaded(at),
        }
    }
}

// ---- The content of a register on a path, as a [`Value`] or a [`RegisterOffset`]; and packed into 64 bits: states are copied
// at each branch, and code is full of branches.

/// Number of registers, enough for either processor.
pub(crate) const REGISTERS: usize = 32;

/// An address as a register's initial value plus bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegisterOffset {
    pub(crate) register: u8,
    pub(crate) offset: i64,
}

impl RegisterOffset {
    pub(crate) fn plus(self, bytes: i64) -> RegisterOffset {
        RegisterOffset { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

/// The content of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// The initial value of that register.
    First(u8),
    /// An address.
    At(RegisterOffset),
    /// The initial content of memory at that place.
    Loaded(RegisterOffset),
    Number(u64),
    Unknown,
}

/// Kind in the lowest three bits, register in the next five, and a signed 56-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u64);

const UNKNOWN: u64 = 0;
const FIRST: u64 = 1;
const AT: u64 = 2;
const LOADED: u64 = 3;
const NUMBER: u64 = 4;

const REGISTER_SHIFT: u32 = 3;
const NUMBER_SHIFT: u32 = 8;
const _: () = assert!(REGISTERS <= 1 << (NUMBER_SHIFT - REGISTER_SHIFT));

impl Packed {
    pub(super) const NOTHING: Packed = Packed(UNKNOWN);

    /// The initial content of a register.
    pub(super) const fn first(register: u8) -> Packed {
        Packed(FIRST | (register as u64 % REGISTERS as u64) << REGISTER_SHIFT)
    }

    /// Packs a value. A number of more than 56 bits, too large for a frame, becomes unknown.
    pub(super) fn of(value: Value) -> Packed {
        match value {
            Value::Unknown => Packed(UNKNOWN),
            Value::First(register) => Packed::first(register),
            Value::At(place) => Packed::of_place(place, AT),
            Value::Loaded(place) => Packed::of_place(place, LOADED),
            Value::Number(number) => {
                let packed = Packed(NUMBER | number << NUMBER_SHIFT);
                if packed.number().cast_unsigned() == number { packed } else { Packed(UNKNOWN) }
            }
        }
    }

    pub(super) fn at(place: RegisterOffset) -> Packed {
        Packed::of_place(place, AT)
    }

    /// Offsets of more than 56 bits, which only hostile code has, are truncated.
    fn of_place(place: RegisterOffset, kind: u64) -> Packed {
        Packed(Packed::first(place.register).0 & !FIRST | kind | place.offset.cast_unsigned() << NUMBER_SHIFT)
    }

    #[inline]
    pub(super) fn value(self) -> Value {
        match self.0 & 7 {
            FIRST => Value::First(self.register()),
            AT => Value::At(self.place()),
            LOADED => Value::Loaded(self.place()),
            NUMBER => Value::Number(self.number().cast_unsigned()),
            _ => Value::Unknown,
        }
    }

    #[inline]
    pub(super) fn place(self) -> RegisterOffset {
        RegisterOffset { register: self.register(), offset: self.number() }
    }

    fn register(self) -> u8 {
        (self.0 >> REGISTER_SHIFT & (REGISTERS as u64 - 1)) as u8
    }

    fn number(self) -> i64 {
        self.0.cast_signed() >> NUMBER_SHIFT
    }
}

// ---- The addresses that paths have reached, each with the value noted there first. Looked up at every followed
// instruction.
//
// Open addressing by the low bits of addresses: neighboring instructions have neighboring slots. Clearing is free,
// unlike for a map.

/// Initial number of slots, a power of two; doubles when half of them are used.
const SLOTS_MIN: usize = 512;

/// The addresses that paths have reached, each with the value noted there first. Allocates nothing until the first
/// note.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visited<V> {
    slots: Vec<Slot<V>>,
    /// Slots of other rounds are free.
    round: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot<V> {
    at: u64,
    round: u32,
    noted: V,
}

impl<V: Copy + Default> Visited<V> {
    /// Removes all addresses.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            // After wrapping around, slots of an old round would look like those of this one.
            self.slots.clear();
        }
    }

    /// Notes a value at an address, or returns the earlier one, which is kept.
    #[inline]
    pub(crate) fn note(&mut self, at: Avma, noted: V) -> Option<V> {
        if 2 * self.len >= self.slots.len() {
            self.grow();
        }
        let slot = self.slot_of(at.0);
        let slot = self.slots.get_mut(slot)?;
        if slot.round == self.round {
            return Some(slot.noted);
        }
        *slot = Slot { at: at.0, round: self.round, noted };
        self.len += 1;
        None
    }

    /// The slot of an address, or the free slot for it: half of them are free.
    #[inline]
    fn slot_of(&self, at: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut index = at as usize & mask;
        while self.slots.get(index).is_some_and(|slot| slot.round == self.round && slot.at != at) {
            index = (index + 1) & mask;
        }
        index
    }

    #[cold]
    fn grow(&mut self) {
        let wanted = (2 * self.slots.len()).max(SLOTS_MIN);
        // A free slot belongs to the previous round.
        let free = Slot { at: 0, round: self.round.wrapping_sub(1), noted: V::default() };
        let before = std::mem::replace(&mut self.slots, vec![free; wanted]);
        for slot in before.into_iter().filter(|slot| slot.round == self.round) {
            let index = self.slot_of(slot.at);
            if let Some(place) = self.slots.get_mut(index) {
                *place = slot;
            }
        }
    }
}

#[cfg(test)]
mod value_tests {
    use super::*;

    #[test]
    fn values_survive_packing() {
        let offsets = [0, 8, -8, 0x7fff_ffff, -0x8000_0000, (1 << 55) - 1, -(1 << 55)];
        let mut values = vec![Value::Unknown];
        for register in [0, 7, 31] {
            values.push(Value::First(register));
            let places = offsets.map(|offset| RegisterOffset { register, offset });
            values.extend(places.map(Value::At));
            values.extend(places.map(Value::Loaded));
        }
        values.extend(offsets.map(|offset| Value::Number(offset.cast_unsigned())));
        for value in values {
            assert_eq!(Packed::of(value).value(), value);
        }
        assert_eq!(Packed::NOTHING.value(), Value::Unknown);
    }

    #[test]
    fn numbers_too_large_for_a_frame_become_unknown() {
        for number in [1 << 55, 0x8000_0000_0000_0000, u64::MAX >> 1] {
            assert_eq!(Packed::of(Value::Number(number)).value(), Value::Unknown, "{number:#x}");
        }
        let far = RegisterOffset { register: 3, offset: i64::MAX };
        assert_eq!(Packed::at(far).place(), RegisterOffset { register: 3, offset: -1 });
    }
}

#[cfg(test)]
mod visited_tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_first_value_is_kept_until_cleared() {
        let mut visited = Visited::default();
        for round in 0..40 {
            let mut expected = HashMap::new();
            for number in 0..round * 70 {
                // Addresses of one function, and of another with the same low bits; many repeat.
                let scattered = (number + round) * 2_654_435_761 % 2003;
                let at = 0x5555_0000 + scattered + ((number % 3 / 2) << 32);
                let before = expected.get(&at).copied();
                assert_eq!(visited.note(Avma(at), number), before, "{at:#x} in round {round}");
                expected.entry(at).or_insert(number);
            }
            visited.clear();
        }
    }

    #[test]
    fn rounds_restart_when_their_number_wraps() {
        let mut visited = Visited::default();
        assert_eq!(visited.note(Avma(1), 'a'), None);
        visited.round = u32::MAX;
        assert_eq!(visited.note(Avma(1), 'b'), None);
        assert_eq!(visited.note(Avma(1), 'c'), Some('b'));
        visited.clear();
        assert_eq!((visited.round, visited.note(Avma(1), 'd')), (0, None));
        assert_eq!(visited.note(Avma(1), 'e'), Some('d'));
    }
}
