//! Conditions on the names of a profile: which stacks are kept.

/// Whether a name is meant.
pub type Condition<'f> = &'f dyn Fn(&str) -> bool;

/// What is kept. They are looked at in this order.
#[derive(Clone, Copy, Default)]
pub struct Filter<'f> {
    /// Threads by `name` or `name (id)`; stacks of merged threads are not kept.
    pub thread: Option<Condition<'f>>,
    /// Stacks with such a frame, the process, the thread and `[incomplete]` among them.
    pub include: Option<Condition<'f>>,
    /// Stacks without such a frame.
    pub exclude: Option<Condition<'f>>,
    /// Stacks with such a function, without what is outside of the outermost one. The
    /// process and the thread stay. Its stacks are whole from there.
    pub root: Option<Condition<'f>>,
}
