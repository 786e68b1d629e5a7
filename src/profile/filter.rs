//! Parts of a profile: stacks of some threads, stacks through some functions, stacks seen
//! from one function on.
//!
//! Input: a [`Saved`] and conditions on names. Output: a [`Saved`] of what is left, and how
//! much each condition left. Names are as folded text shows them; each is looked at once,
//! however many stacks have it. Not for: the language of the conditions.

use super::builder::SavedBuilder;
use super::saved::{Full, Saved, StackRoot};
use super::{INCOMPLETE, shown};

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

/// Counts that were left after each of the conditions of a [`Filter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// After `thread`.
    pub thread: u64,
    /// After `include`.
    pub include: u64,
    /// After `exclude`.
    pub exclude: u64,
    /// After `root`: what the result has.
    pub root: u64,
}

/// What the conditions say of the names of a frame.
#[derive(Clone, Copy, Default)]
struct Verdict {
    included: bool,
    excluded: bool,
    /// The outermost function that is a new root.
    root: Option<u32>,
}

/// Keeps what `filter` says; names are with lines if `lines`.
///
/// # Errors
/// [`Full`] if a table does not hold it.
pub fn apply(saved: &Saved, filter: &Filter<'_>, lines: bool) -> Result<(Saved, Left), Full> {
    let verdicts: Vec<Verdict> =
        (0..saved.frames().len()).map(|frame| judge(saved, filter, frame as u32, lines)).collect();
    let mut builder = SavedBuilder::new(saved.about.clone());
    let taken = builder.take_tables(saved)?;
    let mut left = Left::default();
    let mut full = Ok(());
    let mut stack = Vec::new();
    saved.for_each_stack(|root, frames, count| {
        if full.is_err() || !thread_is_kept(saved, filter, root) {
            return;
        }
        left.thread = left.thread.saturating_add(count);
        let of = |frame: &u32| verdicts.get(*frame as usize).copied().unwrap_or_default();
        let root_has = |condition: Option<Condition<'_>>| {
            condition.is_some_and(|condition| root_names(saved, root).iter().any(|name| condition(name)))
        };
        let included = filter.include.is_none()
            || frames.iter().any(|frame| of(frame).included)
            || root_has(filter.include);
        if !included {
            return;
        }
        left.include = left.include.saturating_add(count);
        if frames.iter().any(|frame| of(frame).excluded) || root_has(filter.exclude) {
            return;
        }
        left.exclude = left.exclude.saturating_add(count);
        let mut begin = None;
        if filter.root.is_some() {
            begin = frames.iter().position(|frame| of(frame).root.is_some());
            if begin.is_none() {
                return;
            }
        }
        left.root = left.root.saturating_add(count);
        let kept = frames.get(begin.unwrap_or(0)..).unwrap_or_default();
        stack.clear();
        stack.extend(kept.iter().map(|frame| taken.frames.get(*frame as usize).copied().unwrap_or(u32::MAX)));
        let mut root = *root;
        root.complete |= begin.is_some();
        if let (Some(_), Some(first), Some(slot)) = (begin, kept.first(), stack.first_mut()) {
            match cut(&mut builder, *slot, of(first).root.unwrap_or(0)) {
                Ok(frame) => *slot = frame,
                Err(why) => full = Err(why),
            }
        }
        let added = take_root(&mut builder, saved, root).and_then(|root| builder.add(root, &stack, count));
        full = full.and(added.map(drop));
    });
    full.map(|()| (builder.finish(), left))
}

/// The frame without its outermost functions.
fn cut(builder: &mut SavedBuilder, frame: u32, functions: u32) -> Result<u32, Full> {
    if functions == 0 {
        return Ok(frame);
    }
    let Some(whole) = builder.so_far().frames().get(frame as usize).cloned() else { return Ok(frame) };
    let lines = builder.so_far().lines_of(&whole).get(functions as usize..).unwrap_or_default().to_vec();
    builder.frame(whole.address, whole.mapping, &lines)
}

fn take_root(builder: &mut SavedBuilder, saved: &Saved, root: StackRoot) -> Result<u32, Full> {
    let process = builder.text(saved.text(root.process))?;
    let thread = match root.thread {
        Some((name, id)) => Some((builder.text(saved.text(name))?, id)),
        None => None,
    };
    builder.root(StackRoot { process, thread, ..root })
}

fn judge(saved: &Saved, filter: &Filter<'_>, frame: u32, lines: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let mut index = 0;
    let says = |condition: Option<Condition<'_>>, name: &str| condition.is_some_and(|says| says(name));
    saved.names_of(frame, lines, &mut |name| {
        let name = &shown(name);
        verdict.included |= says(filter.include, name);
        verdict.excluded |= says(filter.exclude, name);
        if verdict.root.is_none() && says(filter.root, name) {
            verdict.root = Some(index);
        }
        index += 1;
    });
    verdict
}

fn thread_is_kept(saved: &Saved, filter: &Filter<'_>, root: &StackRoot) -> bool {
    let Some(condition) = filter.thread else { return true };
    root.thread.is_some_and(|(name, id)| {
        let name = saved.text(name);
        condition(name) || condition(&shown(&format!("{name} ({id})")))
    })
}

/// The frames that stand before the code of a stack.
fn root_names(saved: &Saved, root: &StackRoot) -> Vec<String> {
    let mut names = vec![shown(saved.text(root.process)).into_owned()];
    if let Some((name, id)) = root.thread {
        names.push(shown(&format!("{} ({id})", saved.text(name))).into_owned());
    }
    if !root.complete {
        names.push(INCOMPLETE.to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{ByName, Function, Line, folded, folded_read};

    const TEXT: &str = "\
p;io (7);[incomplete];read;copy 1
p;io (7);main;read;copy 2
p;io (8);main;work 4
p;main;read;main;copy 8
";

    fn kept(filter: &Filter<'_>) -> (String, Left) {
        let saved = folded_read::read(TEXT.as_bytes(), "a").expect("reads");
        let (saved, left) = apply(&saved, filter, false).expect("fits");
        let mut out = Vec::new();
        folded::write(&ByName::of(&saved, false).expect("fits"), &mut out).expect("a Vec takes everything");
        (String::from_utf8(out).expect("UTF-8"), left)
    }

    #[test]
    fn each_condition_keeps_what_it_says() {
        assert_eq!(kept(&Filter::default()).0, TEXT);
        let name = |name: &'static str| move |found: &str| found == name;
        let thread = Filter { thread: Some(&name("io (8)")), ..Filter::default() };
        assert_eq!(kept(&thread).0, "p;io (8);main;work 4\n");
        let threads = Filter { thread: Some(&name("io")), ..Filter::default() };
        assert_eq!(kept(&threads).1.root, 7);
        let include = Filter { include: Some(&name("work")), ..Filter::default() };
        assert_eq!(kept(&include).0, "p;io (8);main;work 4\n");
        let incomplete = Filter { include: Some(&name("[incomplete]")), ..Filter::default() };
        assert_eq!(kept(&incomplete).1.root, 1);
        let exclude = Filter { exclude: Some(&name("read")), ..Filter::default() };
        assert_eq!(kept(&exclude).0, "p;io (8);main;work 4\n");
    }

    #[test]
    fn a_new_root_is_the_outermost_one() {
        let read = |name: &str| name == "read";
        let root = Filter { root: Some(&read), ..Filter::default() };
        assert_eq!(kept(&root).0, "p;io (7);read;copy 3\np;read;main;copy 8\n");
        let main = |name: &str| name == "main";
        let root = Filter { root: Some(&main), ..Filter::default() };
        assert_eq!(
            kept(&root).0,
            "p;io (7);main;read;copy 2\np;io (8);main;work 4\np;main;read;main;copy 8\n"
        );
    }

    #[test]
    fn what_each_condition_left_is_told() {
        let (io, copy, none) =
            (|name: &str| name == "io", |name: &str| name == "copy", |name: &str| name == "nobody");
        let filter = Filter { thread: Some(&io), include: Some(&copy), exclude: None, root: Some(&none) };
        let (text, left) = kept(&filter);
        assert_eq!((text.as_str(), left), ("", Left { thread: 7, include: 3, exclude: 3, root: 0 }));
    }

    #[test]
    fn an_inlined_function_can_be_the_root() {
        let mut builder = SavedBuilder::new(super::super::About::default());
        let process = builder.text("p").expect("fits");
        let root = StackRoot { process, thread: None, complete: true, waiting: false };
        let root = builder.root(root).expect("fits");
        let line = |builder: &mut SavedBuilder, name: &str| {
            let name = builder.text(name).expect("fits");
            Line {
                function: builder.function(Function { name, ..Function::default() }).expect("fits"),
                line: 1,
            }
        };
        let lines = ["outer", "inner", "innermost"].map(|name| line(&mut builder, name));
        let frame = builder.frame(0x10, None, &lines).expect("fits");
        builder.add(root, &[frame], 5).expect("fits");
        let inner = |name: &str| name.starts_with("inner (") || name == "inner";
        let filter = Filter { root: Some(&inner), ..Filter::default() };
        let (saved, _) = apply(&builder.finish(), &filter, false).expect("fits");
        let by_name = ByName::of(&saved, false).expect("fits");
        let mut out = Vec::new();
        folded::write(&by_name, &mut out).expect("a Vec takes everything");
        assert_eq!(out, b"p;inner;innermost 5\n");
        assert_eq!(saved.frames().last().map(|frame| frame.address), Some(0x10));
    }
}
