//! Points in writing an output at which another user may interfere: tests hook in there.

#[cfg(test)]
pub(super) use hook::reached;

#[cfg(not(test))]
pub(super) fn reached(_: Step) {}

/// Points at which another user can replace the file under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A component of the path was examined, but is not yet open.
    Examined,
    /// The path is resolved.
    Resolved,
    /// The new file exists, without content.
    Created,
    /// The new file is complete, but does not have its name yet.
    Whole,
    /// A complete file has a temporary name, and gets its final one next.
    Linked,
}

#[cfg(test)]
pub(crate) mod hook {
    //! Lets a test hook into each step, in its own thread.
    use std::cell::RefCell;

    use crate::sources::output::step::Step;

    type Hook = Box<dyn FnMut(Step)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
        static NAMED_ONLY: RefCell<bool> = const { RefCell::new(false) };
    }

    /// Calls `hook` at each step of this thread while `body` runs.
    pub(crate) fn with<R>(hook: impl FnMut(Step) + 'static, body: impl FnOnce() -> R) -> R {
        HOOK.with(|place| *place.borrow_mut() = Some(Box::new(hook)));
        let result = body();
        HOOK.with(|place| *place.borrow_mut() = None);
        result
    }

    /// Makes the file systems of this thread refuse nameless files.
    pub(crate) fn with_named_only<R>(named_only: bool, body: impl FnOnce() -> R) -> R {
        NAMED_ONLY.with(|place| *place.borrow_mut() = named_only);
        let result = body();
        NAMED_ONLY.with(|place| *place.borrow_mut() = false);
        result
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn is_named_only() -> bool {
        NAMED_ONLY.with(|place| *place.borrow())
    }

    pub(crate) fn reached(step: Step) {
        // Removed during the call: a hook may write files itself.
        let hook = HOOK.with(|place| place.borrow_mut().take());
        if let Some(mut hook) = hook {
            hook(step);
            HOOK.with(|place| *place.borrow_mut() = Some(hook));
        }
    }
}
