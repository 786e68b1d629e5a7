//! Stacks of a recording as folded text, from their names alone.

use stackprof::profile::formats::folded;
use stackprof::profile::{About, ByName, SavedBuilder, StackRoot};

/// One stack of a thread.
pub struct Stack<'a> {
    pub thread: (&'a str, u64),
    pub complete: bool,
    /// Outermost first.
    pub names: &'a [String],
    pub count: u64,
}

/// The folded lines of stacks of a process.
pub fn text<'a>(process: &str, stacks: impl Iterator<Item = Stack<'a>>) -> String {
    let mut builder = SavedBuilder::new(About::default());
    for stack in stacks {
        let process = builder.text(process).unwrap();
        let thread = Some((builder.text(stack.thread.0).unwrap(), stack.thread.1));
        let root = StackRoot {
            process,
            thread,
            complete: stack.complete,
            waiting: false,
            labels: stackprof::profile::LabelsId::NONE,
        };
        let root = builder.root(root).unwrap();
        let frames: Vec<u32> = stack.names.iter().map(|name| builder.named_frame(name).unwrap()).collect();
        builder.add(root, &frames, stack.count).unwrap();
    }
    let mut out = Vec::new();
    folded::write(&ByName::of(&builder.finish(), false).unwrap(), &mut out).unwrap();
    String::from_utf8(out).expect("names are text")
}
