//! Conditions on names: which stacks of a profile are kept.

/// Whether a name matches.
pub type Condition<'f> = &'f dyn Fn(&str) -> bool;

/// What to keep. Conditions are applied in this order.
#[derive(Clone, Copy, Default)]
pub struct Filter<'f> {
    /// Threads by `name` or `name (id)`; stacks of merged threads are not kept.
    pub thread: Option<Condition<'f>>,
    /// Stacks with a matching frame; the process, the thread and `[incomplete]` count as frames.
    pub include: Option<Condition<'f>>,
    /// Stacks without a matching frame.
    pub exclude: Option<Condition<'f>>,
    /// Stacks with a matching function, without the callers of the outermost match. The process and
    /// the thread stay. The resulting stacks are complete.
    pub root: Option<Condition<'f>>,
}
