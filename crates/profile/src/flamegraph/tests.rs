use super::*;

fn graph() -> Graph {
    Graph { title: "work (pid 4242)".into(), subtitle: "10 samples".into(), ..Graph::default() }
}

/// The nodes of sorted stacks.
fn nodes<'a>(stacks: &[(&'a str, u64)]) -> Vec<Frame<'a>> {
    let mut nodes: Vec<Frame<'_>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    for (stack, count) in stacks {
        let names: Vec<&str> = stack.split(';').collect();
        let shared =
            open.iter().zip(&names).take_while(|(index, name)| nodes[**index].name == **name).count();
        open.truncate(shared);
        for name in &names[shared..] {
            nodes.push(node(open.len() as u32, name, 0, 0));
            open.push(nodes.len() - 1);
        }
        open.iter().for_each(|&index| nodes[index].new += count);
    }
    nodes
}

fn draw(graph: &Graph, stacks: &[(&str, u64)]) -> String {
    drawn(graph, &nodes(stacks))
}

fn drawn(graph: &Graph, nodes: &[Frame<'_>]) -> String {
    let mut out = Vec::new();
    let total = nodes.iter().filter(|node| node.depth == 0).map(|node| node.new).sum();
    write(graph, nodes, total, &mut out).expect("drawn");
    String::from_utf8(out).expect("UTF-8")
}

/// The tooltips, sorted: `name (count samples, share)`.
fn frames(svg: &str) -> Vec<String> {
    let mut frames: Vec<String> = svg
        .split("<title>")
        .skip(1)
        .map(|rest| rest.split("</title>").next().unwrap_or_default().to_string())
        .collect();
    frames.sort();
    frames
}

#[test]
fn a_frame_stays_one_box_with_siblings_sorting_into_it() {
    let svg = draw(&graph(), &[("p;a", 1), ("p;a;c", 3), ("p;a b;c", 4), ("p;a::b", 2)]);
    assert_eq!(
        frames(&svg),
        [
            "a (4 samples, 40.00%)",
            "a b (4 samples, 40.00%)",
            "a::b (2 samples, 20.00%)",
            "all (10 samples, 100%)",
            "c (3 samples, 30.00%)",
            "c (4 samples, 40.00%)",
            "p (10 samples, 100.00%)",
        ]
    );
}

#[test]
fn names_like_counts_or_comments_are_drawn() {
    let svg =
        draw(&graph(), &[("worker 12", 1), ("# x;a", 2), ("#  7", 3), ("-;--;_[k]", 4), ("v 1.5;v 1.5", 5)]);
    let frames = frames(&svg).join("\n");
    for frame in [
        "worker 12 (1 sample,",
        "# x (2 ",
        "#  7 (3 ",
        "- (4 ",
        "-- (4 ",
        "_[k] (4 ",
        "v 1.5 (5 ",
        "all (15 ",
    ] {
        assert!(frames.contains(frame), "{frame} in {frames}");
    }
}

#[test]
fn names_are_escaped_and_never_break_the_file() {
    let mut graph = graph();
    graph.title = "<b>\u{0}&\u{ffff}".into();
    let svg = draw(&graph, &[("p;Vec<T>::push(&str)", 1), ("p;\u{1}x\u{fffe}y", 1)]);
    assert!(svg.contains(r"&lt;b&gt;\u{0}&amp;\u{ffff}</text>"), "{svg}");
    assert!(svg.contains("Vec&lt;T&gt;::push(&amp;str) (1 sample,"), "{svg}");
    assert!(svg.contains(r"\u{1}x\u{fffe}y (1 sample,"), "{svg}");
}

#[test]
fn same_input_same_bytes() {
    let lines = [("p;main;f", 3), ("p;main;g", 4), ("p;[incomplete];f", 1)];
    assert_eq!(draw(&graph(), &lines), draw(&graph(), &lines));
}

#[test]
fn narrow_frames_are_omitted_without_changing_figures() {
    let mut graph = graph();
    graph.min_width_percent = 10.0;
    let lines =
        [("p;wide;a", 50), ("p;wide;thin", 5), ("p;wide;thin;er", 1), ("p;z", 37), ("q;x", 3), ("r", 4)];
    assert_eq!(
        frames(&draw(&graph, &lines)),
        [
            "a (50 samples, 50.00%)",
            "all (100 samples, 100%)",
            "p (93 samples, 93.00%)",
            "wide (56 samples, 56.00%)",
            "z (37 samples, 37.00%)",
        ]
    );
}

#[test]
fn omitted_outermost_frames_count_in_the_total() {
    let written = |nodes: &[Frame<'_>]| {
        let mut out = Vec::new();
        write(&graph(), nodes, 30, &mut out).expect("drawn");
        frames(&String::from_utf8(out).expect("UTF-8"))
    };
    assert_eq!(written(&[node(0, "hot", 0, 10)]), ["all (30 samples, 100%)", "hot (10 samples, 33.33%)"]);
    assert_eq!(written(&[]), ["all (30 samples, 100%)"]);
}

#[test]
fn other_units_than_samples_are_supported() {
    let svg = draw(&Graph { unit: "bytes".into(), ..graph() }, &[("p;a", 1), ("p;b", 1023)]);
    assert_eq!(
        frames(&svg)[1..],
        ["all (1,024 bytes, 100%)", "b (1,023 bytes, 99.90%)", "p (1,024 bytes, 100.00%)"]
    );
}

#[test]
fn an_empty_profile_is_an_error_and_writes_nothing() {
    let mut out = Vec::new();
    let error = write(&graph(), &[node(0, "p", 0, 0)], 0, &mut out).expect_err("nothing to draw");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!(out.is_empty());
}

fn node(depth: u32, name: &str, base: u64, new: u64) -> Frame<'_> {
    Frame { depth, name, base, new }
}

/// `p` calls `same`, `gone`, `more`, `born`.
fn compared() -> [Frame<'static>; 5] {
    [
        node(0, "p", 200, 180),
        node(1, "same", 100, 100),
        node(1, "gone", 40, 0),
        node(1, "more", 60, 75),
        node(1, "born", 0, 5),
    ]
}

fn diff(graph: &Graph, by: Compared, nodes: &[Frame<'_>]) -> String {
    let mut out = Vec::new();
    write_diff(graph, by, nodes, &mut out).expect("drawn");
    String::from_utf8(out).expect("UTF-8")
}

/// Value of an attribute of the box with a tooltip that begins with `name`.
fn attribute(svg: &str, name: &str, attribute: &str) -> String {
    let frame = svg.split("<title>").find(|frame| frame.starts_with(&format!("{name} ("))).expect("drawn");
    let value = frame.split(&format!(" {attribute}=\"")).nth(1).expect("an attribute");
    value.split('"').next().unwrap_or_default().to_owned()
}

fn fill(svg: &str, name: &str) -> (u8, u8, u8) {
    let text = attribute(svg, name, "fill");
    let parts: Vec<u8> = text
        .trim_matches(|c: char| !c.is_ascii_digit())
        .split(',')
        .map(|n| n.parse().expect("a byte"))
        .collect();
    (parts[0], parts[1], parts[2])
}

#[test]
fn a_comparison_shows_both_sides_of_every_frame() {
    let svg = diff(&graph(), Compared::Counts, &compared());
    assert_eq!(
        frames(&svg),
        [
            "all (base 200 samples, 100.00%; new 180 samples, 100.00%; -10.0%)",
            "born (base 0 samples, 0.00%; new 5 samples, 2.78%; only in new)",
            "gone (base 40 samples, 20.00%; new 0 samples, 0.00%; only in base)",
            "more (base 60 samples, 30.00%; new 75 samples, 41.67%; +25.0%)",
            "p (base 200 samples, 100.00%; new 180 samples, 100.00%; -10.0%)",
            "same (base 100 samples, 50.00%; new 100 samples, 55.56%; +0.0%)",
        ]
    );
    // The sum of both sides: callees fill their caller.
    for (name, width) in [("p", "380"), ("same", "200"), ("gone", "40"), ("more", "135"), ("born", "5")] {
        assert_eq!(attribute(&svg, name, "fg:w"), width, "{name}");
    }
    assert!(svg.contains("red: grew, blue: shrank · width: mean of both<"), "{svg}");
}

#[test]
fn the_color_shows_each_frames_own_change() {
    for colors in [Colors::Hot, Colors::BlueOrange] {
        let svg = diff(&Graph { colors, ..graph() }, Compared::Counts, &compared());
        let warm = |(r, _, b): (u8, u8, u8)| i32::from(r) - i32::from(b);
        let [p, same, gone, more, born] =
            ["p", "same", "gone", "more", "born"].map(|name| warm(fill(&svg, name)));
        assert!(gone < p && p < same, "{colors:?}: gone {gone}, less {p}, same {same}");
        assert!(same < more && more < born, "{colors:?}: same {same}, more {more}, born {born}");
    }
}

#[test]
fn shares_compare_recordings_of_different_length() {
    let nodes = [node(0, "p", 100, 1000), node(1, "a", 50, 500), node(1, "b", 50, 250), node(1, "c", 0, 250)];
    let svg = diff(&graph(), Compared::Shares, &nodes);
    let frames = frames(&svg);
    assert!(
        frames.contains(&"a (base 50 samples, 50.00%; new 500 samples, 50.00%; +0.0%)".into()),
        "{frames:?}"
    );
    assert!(
        frames.contains(&"b (base 50 samples, 50.00%; new 250 samples, 25.00%; -50.0%)".into()),
        "{frames:?}"
    );
    let width = |name| attribute(&svg, name, "width");
    assert_eq!((width("a").as_str(), width("b").as_str()), ("50.0000%", "37.5000%"));
    assert_eq!(fill(&svg, "a"), fill(&svg, "p"));
    // One side is empty: there is no total for shares.
    let only_new = [node(0, "p", 0, 7)];
    assert!(diff(&graph(), Compared::Shares, &only_new).contains("only in new"));
}

#[test]
fn counts_near_the_end_of_64_bits_are_drawn() {
    let huge = u64::MAX / 2;
    let svg = diff(&graph(), Compared::Counts, &[node(0, "p", huge, huge), node(1, "a", huge / 2, 0)]);
    assert_eq!(
        (attribute(&svg, "p", "width"), attribute(&svg, "a", "width")),
        ("100.0000%".into(), "25.0000%".into())
    );
}

#[test]
fn too_many_frames_raise_the_minimum_width() {
    let names: Vec<String> = (0..FRAMES_DRAWN_MAX + 500).map(|n| format!("f{n}")).collect();
    let mut nodes = vec![node(0, "p", 0, 10 * names.len() as u64)];
    let weight = |index: usize| if index < 600 { 5 } else { 10 };
    nodes.extend(names.iter().enumerate().map(|(index, name)| node(1, name, 0, weight(index))));
    let svg = drawn(&graph(), &nodes);
    assert_eq!(frames(&svg).len(), 2 + names.len() - 600);
    assert!(svg.contains("too many frames: those below 0.01% are not drawn"), "{}", &svg[..2000]);
}

#[test]
fn deep_stacks_are_drawn_up_to_the_height_limit() {
    let nodes: Vec<Frame<'_>> = (0..100_000).map(|depth| node(depth, "f", 0, 3)).collect();
    let svg = drawn(&graph(), &nodes);
    assert_eq!(frames(&svg).len(), 1 + LEVELS_DRAWN_MAX as usize);
    assert!(svg.contains("levels above 2000 are not drawn"));
}

#[test]
fn an_inverted_graph_has_its_root_at_the_top() {
    let y = |svg: &str, name| attribute(svg, name, "y").parse::<f64>().expect("a number");
    let nodes = [node(0, "p", 0, 3), node(1, "f", 0, 3)];
    for inverted in [true, false] {
        let graph = Graph { inverted, ..graph() };
        let (plain, compared) = (drawn(&graph, &nodes), diff(&graph, Compared::Counts, &nodes));
        for svg in [plain, compared] {
            assert_eq!(y(&svg, "p") < y(&svg, "f"), inverted);
            assert!(svg.contains(&format!("var inverted = {inverted};")), "which the scripts ask");
        }
    }
}

#[test]
fn a_dark_page_has_light_text() {
    let svg = draw(&Graph { dark: true, ..graph() }, &[("p", 1)]);
    assert!(svg.contains("#subtitle { fill:rgb(170,172,176); }") && svg.contains("stop-color=\"#1b1d21\""));
}

#[test]
fn an_empty_picture_has_its_heading() {
    let graph = Graph { title: "a<b".to_owned(), subtitle: "0 B in use".to_owned(), ..Graph::default() };
    let mut out = Vec::new();
    write_empty(&graph, &mut out).expect("it is written");
    let text = String::from_utf8(out).expect("text");
    assert!(text.contains("a&lt;b") && text.contains("0 B in use"), "{text}");
    let mut reader = quick_xml::Reader::from_str(&text);
    while !matches!(reader.read_event().expect("XML"), quick_xml::events::Event::Eof) {}
}
