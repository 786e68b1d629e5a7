//! Moments of writing an output at which another user may interfere: tests act there.

#[cfg(test)]
pub(super) use hook::reached;

#[cfg(not(test))]
pub(super) fn reached(_: Step) {}

/// Moments at which another user can change what stands under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A component of the path was examined, and is not yet opened.
    Examined,
    /// The path is resolved.
    Resolved,
    /// The new file exists, without content.
    Created,
    /// The new file is whole, and does not have its name yet.
    Whole,
    /// A whole file has a temporary name, and takes its own next.
    Linked,
}

#[cfg(test)]
pub(crate) mod hook {
    //! Lets a test act at the decisive moments, in its own thread.
    use std::cell::RefCell;

    use crate::sources::output::step::Step;

    type Hook = Box<dyn FnMut(Step)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
        static NAMED_ONLY: RefCell<bool> = const { RefCell::new(false) };
    }

    /// Calls `hook` at each step of this thread until it returns.
    pub(crate) fn with<R>(hook: impl FnMut(Step) + 'static, body: impl FnOnce() -> R) -> R {
        HOOK.with(|place| *place.borrow_mut() = Some(Box::new(hook)));
        let result = body();
        HOOK.with(|place| *place.borrow_mut() = None);
        result
    }

    /// The file systems of this thread refuse files without a name.
    pub(crate) fn with_named_only<R>(named_only: bool, body: impl FnOnce() -> R) -> R {
        NAMED_ONLY.with(|place| *place.borrow_mut() = named_only);
        let result = body();
        NAMED_ONLY.with(|place| *place.borrow_mut() = false);
        result
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(in super::super) fn is_named_only() -> bool {
        NAMED_ONLY.with(|place| *place.borrow())
    }

    pub(in super::super) fn reached(step: Step) {
        // Taken out meanwhile: a hook may write files itself.
        let hook = HOOK.with(|place| place.borrow_mut().take());
        if let Some(mut hook) = hook {
            hook(step);
            HOOK.with(|place| *place.borrow_mut() = Some(hook));
        }
    }
}
