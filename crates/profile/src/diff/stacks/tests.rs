//! Which nodes profiles share, and which they do not.
use super::*;
use crate::{Function, Line, Mapping, SavedBuilder};

/// A profile of one process from `frame;frame` texts and counts.
pub(crate) fn saved(about: About, process: &str, stacks: &[(&str, u64)]) -> SavedProfile {
    let mut builder = SavedBuilder::new(about);
    let process = builder.text(process).expect("fits");
    let root = StackRoot::of(process);
    let root = builder.root(root).expect("fits");
    for (stack, count) in stacks {
        let frames: Vec<u32> =
            stack.split(';').map(|name| builder.named_frame(name).expect("fits")).collect();
        builder.add(root, &frames, *count).expect("fits");
    }
    builder.finish()
}

fn lines(stacks: &Stacks, run: usize) -> Vec<String> {
    let run = &stacks.runs()[run];
    run.own().map(|(node, count)| format!("{} {count}", stacks.path(node).join(";"))).collect()
}

#[test]
fn runs_share_nodes_regardless_of_numbers() {
    let mut stacks = Stacks::new(Matching::default());
    let base = saved(About::default(), "work", &[("main;run::{closure#1}", 5), ("main;[a.so+0x10]", 1)]);
    let new = saved(About::default(), "work", &[("main;run::{closure#2}", 7), ("main;[a.so+0x20]", 2)]);
    stacks.add("base", &base, None).expect("fits");
    stacks.add("new", &new, None).expect("fits");
    assert_eq!(lines(&stacks, 0), ["work;main;run::{closure} 5", "work;main;[a.so] 1"]);
    assert_eq!(lines(&stacks, 1), ["work;main;run::{closure} 7", "work;main;[a.so] 2"]);
    assert_eq!(stacks.node_count(), 5);
    let mut exact = Stacks::new(Matching { normalize: false, ..Matching::default() });
    exact.add("base", &base, None).expect("fits");
    exact.add("new", &new, Some("other")).expect("fits");
    assert_eq!(lines(&exact, 1), ["other;main;run::{closure#2} 7", "other;main;[a.so+0x20] 2"]);
    assert_eq!(exact.runs()[1].processes, ["work"]);
}

#[test]
fn closures_of_one_profile_are_merged_with_their_counts() {
    let mut stacks = Stacks::new(Matching::default());
    let base = saved(About::default(), "work", &[("f::{closure#1}", 5), ("f::{closure#2}", 6)]);
    stacks.add("base", &base, None).expect("fits");
    assert_eq!(lines(&stacks, 0), ["work;f::{closure} 11"]);
    assert_eq!(stacks.runs()[0].total, 11);
}

#[test]
fn threads_are_matched_by_name_and_are_no_functions() {
    let folded =
        saved(About::default(), "work", &[("io (17);[incomplete];read", 2), ("io (18);read;x (3)", 1)]);
    let mut builder = SavedBuilder::new(About::default());
    let (process, io) = (builder.text("work").expect("fits"), builder.text("io").expect("fits"));
    let read = builder.named_frame("read").expect("fits");
    for (id, complete, waiting, count) in [(5, false, false, 2), (6, true, false, 1), (6, true, true, 9)] {
        let root =
            StackRoot { process, thread: Some((io, id)), complete, waiting, labels: crate::LabelsId::NONE };
        let root = builder.root(root).expect("fits");
        builder.add(root, &[read], count).expect("fits");
    }
    let binary = builder.finish();
    let mut stacks = Stacks::new(Matching::default());
    stacks.add("a", &folded, None).expect("fits");
    stacks.add("b", &binary, None).expect("fits");
    assert_eq!(lines(&stacks, 0), ["work;io;[incomplete];read 2", "work;io;read;x (3) 1"]);
    assert_eq!(lines(&stacks, 1), ["work;io;[incomplete];read 2", "work;io;read 1"]);
    let functions: Vec<&str> = (0..stacks.node_count() as u32)
        .filter_map(|node| stacks.function(NodeId(node)))
        .map(|name| stacks.text(name))
        .collect();
    assert_eq!(functions, ["read", "read", "x (3)"]);
    let run = &stacks.runs()[1];
    assert_eq!((run.total, run.incomplete, run.waiting_left_out), (3, 2, 9));
}

#[test]
fn without_inlines_their_time_belongs_to_the_outer_function() {
    let mut builder = SavedBuilder::new(About::default());
    let process = builder.text("work").expect("fits");
    let root = StackRoot::of(process);
    let root = builder.root(root).expect("fits");
    let lines_of: Vec<crate::Line> = ["outer", "inner"]
        .iter()
        .map(|name| {
            let name = builder.text(name).expect("fits");
            let function = crate::Function { name, ..Default::default() };
            crate::Line { function: builder.function(function).expect("fits"), line: 1 }
        })
        .collect();
    let frame = builder.frame(0x10, None, &lines_of).expect("fits");
    builder.add(root, &[frame], 4).expect("fits");
    let saved = builder.finish();
    for (inlines, expected) in [(true, "work;outer;inner 4"), (false, "work;outer 4")] {
        let mut stacks = Stacks::new(Matching { inlines, ..Matching::default() });
        stacks.add("a", &saved, None).expect("fits");
        assert_eq!(lines(&stacks, 0), [expected]);
    }
}

/// A profile of stacks `main;[m.so:fn+0x10]`, with the build id of `m.so`.
fn of_build(id: &str, functions: &[(&str, u64)]) -> SavedProfile {
    let mut builder = SavedBuilder::new(About::default());
    let process = builder.text("work").expect("fits");
    let root = StackRoot::of(process);
    let root = builder.root(root).expect("fits");
    let (path, build_id) = (builder.text("/lib/m.so").expect("fits"), builder.text(id).expect("fits"));
    let mapping = Mapping { start: 0x1000, limit: 0x9000, file_offset: 0, path, build_id };
    let mapping = builder.mapping(mapping).expect("fits");
    let main = builder.named_frame("main").expect("fits");
    for (address, (name, count)) in (0x1000..).zip(functions) {
        let name = builder.text(name).expect("fits");
        let function = builder.function(Function { name, ..Function::default() }).expect("fits");
        let line = Line { function, line: 0 };
        let frame = builder.frame(address, Some(mapping), &[line]).expect("fits");
        builder.add(root, &[main, frame], *count).expect("fits");
    }
    builder.finish()
}

fn nameless(stacks: &Stacks, run: usize) -> Vec<String> {
    let nameless = stacks.runs()[run].nameless();
    let line = |(node, function, count)| {
        format!("{} is {} {count}", stacks.path(node).join(";"), stacks.text(function))
    };
    nameless.map(line).collect()
}

#[test]
fn functions_without_names_are_shared_by_runs_of_one_build() {
    let mut stacks = Stacks::new(Matching::default());
    let base = of_build("0a", &[("[m.so:fn+0x10]", 5), ("[m.so:fn+0x10]", 6), ("[m.so:fn+0x80]", 1)]);
    stacks.add("base", &base, None).expect("fits");
    stacks.add("new", &of_build("0a", &[("[m.so:fn+0x80]", 2)]), None).expect("fits");
    let base = ["work;main;[m.so:fn+0x10] 11", "work;main;[m.so:fn+0x80] 1"];
    assert_eq!(lines(&stacks, 0), base);
    assert_eq!(lines(&stacks, 1), ["work;main;[m.so:fn+0x80] 2"]);
    let functions =
        ["work;main;[m.so:fn+0x10] is [m.so:fn+0x10] 11", "work;main;[m.so:fn+0x80] is [m.so:fn+0x80] 1"];
    assert_eq!(nameless(&stacks, 0), functions);
    // Another build, or an unknown one: only the module is shared.
    for other in [of_build("0b", &[("[m.so:fn+0x80]", 3)]), of_build("", &[("[m.so:fn+0x80]", 3)])] {
        let mut stacks = stacks.clone();
        stacks.add("other", &other, None).expect("fits");
        stacks.add("again", &other, None).expect("fits");
        assert_eq!(lines(&stacks, 0), ["work;main;[m.so] 12"]);
        assert_eq!(lines(&stacks, 1), ["work;main;[m.so] 2"]);
        assert_eq!(lines(&stacks, 3), ["work;main;[m.so] 3"]);
        assert_eq!(stacks.node_count(), 4);
        let functions = ["work;main;[m.so] is [m.so:fn+0x10] 11", "work;main;[m.so] is [m.so:fn+0x80] 1"];
        assert_eq!(nameless(&stacks, 0), functions, "what they were is still known");
        assert_eq!(nameless(&stacks, 2), ["work;main;[m.so] is [m.so:fn+0x80] 3"]);
    }
    // Without normalization names are kept.
    let mut exact = Stacks::new(Matching { normalize: false, ..Matching::default() });
    exact.add("a", &of_build("0a", &[("[m.so:fn+0x80]", 3)]), None).expect("fits");
    exact.add("b", &of_build("0b", &[("[m.so:fn+0x80]", 4)]), None).expect("fits");
    assert_eq!(lines(&exact, 0), ["work;main;[m.so:fn+0x80] 3"]);
}

#[test]
fn a_module_of_two_builds_does_not_affect_others() {
    let mut stacks = Stacks::new(Matching::default());
    let mut both = of_build("0a", &[("[m.so:fn+0x10]", 5), ("[n.so:fn+0x10]", 6), ("f", 7)]);
    stacks.add("base", &both, None).expect("fits");
    both = of_build("0b", &[("[m.so:fn+0x10]", 5)]);
    stacks.add("new", &both, None).expect("fits");
    let base = ["work;main;[m.so] 5", "work;main;[n.so:fn+0x10] 6", "work;main;f 7"];
    assert_eq!(lines(&stacks, 0), base);
}
