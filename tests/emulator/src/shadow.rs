//! The truth: the stack of calls as it was observed, and what each instruction boundary is.
//!
//! Input: the registers before each instruction and the instruction that was executed.
//! Output: return addresses, and a class for each boundary. Nothing here looks at frame
//! records to find a caller, or at code to guess what it will do: a call is a call
//! instruction that was executed and wrote the return address, a frame record is memory
//! that holds the caller's frame pointer and the return address of this very activation.

use crate::load::Function;
use crate::machine::ADDRESS_MASK;

/// Swift's mark in a saved frame pointer, and in rbp just before it is saved.
const ASYNC_MARK: u64 = 1 << 60;

/// What an instruction boundary is; decided by what the activation did, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// fp points to the activation's own record.
    Framed,
    /// No record in this activation, and no call.
    Leaf,
    /// No record in this activation though it calls, or in one that led to it: its caller
    /// is in no register and in no record, and only unwind information finds it.
    Frameless,
    /// Before the record of this activation is there.
    Prologue,
    /// After it has gone.
    Epilogue,
    /// At the jump of a tail call.
    Tail,
    /// In a stub that leads to a library.
    Stub,
    /// In the thread's outermost function.
    Root,
}

impl Class {
    pub const ALL: [Class; 8] = [
        Class::Framed,
        Class::Leaf,
        Class::Frameless,
        Class::Prologue,
        Class::Epilogue,
        Class::Tail,
        Class::Stub,
        Class::Root,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Class::Framed => "framed",
            Class::Leaf => "leaf",
            Class::Frameless => "frameless",
            Class::Prologue => "prologue",
            Class::Epilogue => "epilogue",
            Class::Tail => "tail",
            Class::Stub => "stub",
            Class::Root => "root",
        }
    }
}

/// The registers that calls and frames change. `link` is lr, or the word at rsp.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    pub link: u64,
}

/// What the instruction that was just executed is, by its encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    Call {
        returns_to: u64,
    },
    /// Takes this many bytes from the stack: the return address, and arguments with `ret N`.
    Return {
        pops: u64,
    },
    Other,
}

/// A verdict on a boundary that has its class.
#[derive(Clone, Copy, Debug)]
pub struct Judged<V> {
    pub class: Class,
    pub pc: u64,
    pub verdict: V,
}

struct Activation<V> {
    /// `None` for the thread's first function.
    return_address: Option<u64>,
    entry: Point,
    function: usize,
    /// Whether there was a record since its function began, and whether there is now.
    framed: bool,
    framed_now: bool,
    called: bool,
    /// Whether one of the callers has no record.
    over_frameless: bool,
    /// Boundaries without a record whose class is not yet decided.
    open: Vec<(u64, V)>,
}

pub struct Shadow<V> {
    functions: Vec<Function>,
    stack: Vec<Activation<V>>,
    pub judged: Vec<Judged<V>>,
}

impl<V: Copy> Shadow<V> {
    /// `functions` sorted by address.
    pub fn new(functions: Vec<Function>, entry: Point) -> Shadow<V> {
        let mut shadow = Shadow { functions, stack: Vec::new(), judged: Vec::new() };
        shadow.enter(None, entry);
        shadow
    }

    /// Takes note of an executed instruction that led to `now`.
    pub fn step(&mut self, executed: Executed, now: Point) {
        match executed {
            Executed::Call { returns_to } => {
                assert_eq!(now.link, returns_to, "a call to {:#x} keeps where it returns to", now.pc);
                self.top().called = true;
                self.enter(Some(returns_to), now);
            }
            Executed::Return { pops } => {
                let ended = self.stack.pop().expect("a return from an activation");
                assert_eq!(ended.return_address, Some(now.pc), "a return leads to behind its call");
                if !self.functions[ended.function].is_outlined() {
                    assert_eq!(ended.entry.sp + pops, now.sp, "a return leaves the stack as it was");
                    assert_eq!(ended.entry.fp, now.fp, "a return leaves the frame pointer as it was");
                }
                self.close(ended, false);
            }
            Executed::Other => {
                let function = self.function_at(now.pc);
                let (from, entry) = (self.top().function, self.top().entry);
                // A loop may lead back to the first instruction, but not with this stack.
                let jumped = from != function || entry.sp == now.sp;
                if self.functions[function].is_outlined() && from != function {
                    // The end of the function, of which the outliner (-Oz) made one for all.
                    self.top().function = function;
                } else if jumped && self.functions[function].start == now.pc {
                    // A tail call: another function, or the same anew, for the same caller.
                    let ended = self.stack.pop().expect("an activation");
                    assert_eq!(ended.entry.sp, now.sp, "a tail call leaves the stack as it was");
                    let return_address = ended.return_address;
                    self.close(ended, true);
                    self.enter(return_address, now);
                }
            }
        }
    }

    /// The look-up addresses of the whole stack at `now`, leaf first.
    pub fn expected(&self, now: Point) -> impl Iterator<Item = u64> + '_ {
        let returns = self.stack.iter().rev().filter_map(|activation| activation.return_address);
        std::iter::once(now.pc).chain(returns.map(|address| address - 1))
    }

    /// Judges the boundary at `now`; `word` reads the stack.
    pub fn judge(&mut self, now: Point, verdict: V, word: impl Fn(u64) -> Option<u64>) {
        let top = self.stack.last_mut().expect("an activation");
        let Some(return_address) = top.return_address else {
            self.judged.push(Judged { class: Class::Root, pc: now.pc, verdict });
            return;
        };
        let caller = top.entry.fp;
        let own_record = now.fp != caller
            && word(now.fp).is_some_and(|saved| saved & !ASYNC_MARK == caller)
            && word(now.fp + 8).is_some_and(|word| word & ADDRESS_MASK == return_address);
        top.framed_now = own_record;
        if top.over_frameless {
            self.judged.push(Judged { class: Class::Frameless, pc: now.pc, verdict });
            return;
        }
        if !own_record {
            top.open.push((now.pc, verdict));
            return;
        }
        let class = if top.framed { Class::Epilogue } else { Class::Prologue };
        top.framed = true;
        let opened = top.open.drain(..).map(|(pc, verdict)| Judged { class, pc, verdict });
        self.judged.extend(opened);
        self.judged.push(Judged { class: Class::Framed, pc: now.pc, verdict });
    }

    /// Decides what is open when the program has ended.
    pub fn finish(&mut self) {
        while let Some(activation) = self.stack.pop() {
            self.close(activation, false);
        }
    }

    pub fn name(&self, pc: u64) -> String {
        let function = &self.functions[self.function_at(pc)];
        format!("{}+{:#x}", function.name, pc - function.start)
    }

    fn top(&mut self) -> &mut Activation<V> {
        self.stack.last_mut().expect("an activation")
    }

    fn enter(&mut self, return_address: Option<u64>, entry: Point) {
        let function = self.function_at(entry.pc);
        assert_eq!(self.functions[function].start, entry.pc, "calls lead to the start of a function");
        let callers = self.stack.iter().filter(|caller| caller.return_address.is_some());
        self.stack.push(Activation {
            return_address,
            entry,
            function,
            framed: false,
            framed_now: false,
            called: false,
            over_frameless: callers.into_iter().any(|caller| !caller.framed_now),
            open: Vec::new(),
        });
    }

    fn close(&mut self, mut ended: Activation<V>, by_tail_call: bool) {
        let is_stub = self.functions[ended.function].is_stub;
        let last = if by_tail_call && !is_stub { ended.open.pop() } else { None };
        let class = if is_stub {
            Class::Stub
        } else if ended.framed {
            Class::Epilogue
        } else if ended.called {
            Class::Frameless
        } else {
            Class::Leaf
        };
        self.judged.extend(ended.open.drain(..).map(|(pc, verdict)| Judged { class, pc, verdict }));
        self.judged.extend(last.map(|(pc, verdict)| Judged { class: Class::Tail, pc, verdict }));
    }

    fn function_at(&self, pc: u64) -> usize {
        let after = self.functions.partition_point(|function| function.start <= pc);
        after.checked_sub(1).unwrap_or_else(|| panic!("{pc:#x} is in no function"))
    }
}
