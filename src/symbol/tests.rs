//! Naming frames: counts, sharing, reasons, and functions of the running test.
#![allow(clippy::unwrap_used)]

use super::jit::jitdump_tests::a_load;
use super::table::SymbolTable;
use super::table::tests::zoo;
use super::*;
use crate::addr::LookupAvma;
use crate::binary::elf::build;
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};

const BASE: u64 = 0x7f00_0000_0000;

/// A mapping of all of a file's addresses at `base`, for files with addresses equal to offsets, which is checked.
fn mapping(bytes: &ImageBytes, path: &str, inode: u64, base: u64) -> Mapping {
    let elf = crate::binary::elf::Elf::parse(bytes.bytes()).unwrap();
    let code = elf.segments.iter().find(|segment| segment.executable).unwrap();
    assert_eq!(code.file.start, code.svma.0);
    Mapping::of_file(
        Avma(base + code.file.start)..Avma(base + code.file.end),
        code.file.start,
        path,
        (8, inode),
    )
}

fn code(space: u32, address: u64) -> Frame {
    Frame::Code { space, address: LookupAvma(address) }
}

fn named(frames: &[Frame], images: &Images) -> (Names, Vec<Vec<String>>) {
    let frames = frames.iter().enumerate().map(|(index, frame)| (FrameId(index as u32), *frame));
    let names = symbolicate(frames.clone(), images, &Options::default());
    let texts = frames.map(|(id, _)| names.get(id).iter().map(|name| name.to_string()).collect());
    let texts = texts.collect();
    (names, texts)
}

fn address_of(bytes: &ImageBytes, name: &str) -> u64 {
    let table = SymbolTable::parse(bytes).unwrap();
    table.symbols().find(|symbol| symbol.name == name.as_bytes()).unwrap().start.0
}

#[test]
fn each_unique_address_is_looked_up_once() {
    let (_dir, bytes) = zoo(&["-shared", "-fPIC"]);
    let mapped = mapping(&bytes, "/lib/libzoo.so", 1, BASE);
    let moved = mapping(&bytes, "/lib/libzoo.so", 1, BASE + 0x1000_0000);
    let mut images = Images::default();
    let mut open = |_: &Mapping| Ok(bytes.clone());
    images.update(0, &[mapped], &mut open);
    images.update(0, &[moved], &mut open);
    assert_eq!(images.of(0).space(), 1);

    let zoo = BASE + address_of(&bytes, "zoo_sized");
    let frames = [
        Frame::Root(crate::recording::Root { group: 0, complete: true, fiber: false, waiting: false }),
        code(0, zoo + 4),
        code(1, zoo + 0x1000_0000 + 4), // the same place in the file
        code(0, zoo + 8),               // the same function
        code(0, zoo + 208),
        code(0, zoo + 216),
        code(0, zoo + 33), // between functions
        code(0, 0x10),     // in no image
        code(1, 0x10),
        code(0, 0x20),
    ];
    let (names, texts) = named(&frames, &images);
    let gap = format!("[libzoo.so+{:#x}]", address_of(&bytes, "zoo_sized") + 33);
    let expected = [
        &[][..],
        &["zoo_sized"],
        &["zoo_sized"],
        &["zoo_sized"],
        &["space::foo(int)"],
        &["123foo::bar"],
        &[&gap],
        &["[unknown]"],
        &["[unknown]"],
        &["[unknown]"],
    ];
    assert_eq!(texts, expected);
    assert!(Arc::ptr_eq(&names.get(FrameId(1))[0], &names.get(FrameId(3))[0]));
    assert!(Arc::ptr_eq(&names.get(FrameId(7))[0], &names.get(FrameId(9))[0]));
    assert!(names.get(FrameId(10)).is_empty() && names.get(FrameId(u32::MAX)).is_empty());

    assert_eq!(names.addresses_unique, 7);
    assert_eq!(names.addresses_looked_up, 7);
    assert_eq!(names.addresses_named, 4);
    let reasons: Vec<_> = names.addresses_unnamed.iter().map(|(why, count)| (why.clone(), *count)).collect();
    assert_eq!(reasons, [(Why::NoImage, 2), (Why::NotCovered, 1)]);
    assert_eq!(names.unnamed_by_image, [Unnamed { image: 0, why: Why::NotCovered, addresses: 1 }]);
}

#[test]
fn an_image_without_names_keeps_its_reason() {
    let (_dir, stripped) = zoo(&["-s"]);
    let good = mapping(&stripped, "/usr/bin/stripped", 1, BASE);
    let gone = mapping(&stripped, "/tmp/gone (x)", 2, 2 * BASE);
    let start = good.avma.start.0;
    let mut images = Images::default();
    images.update(0, &[good, gone.clone()], &mut |mapping| match mapping.identity.1 {
        1 => Ok(stripped.clone()),
        _ => Err(OpenError::Source("deleted from disk")),
    });
    let frames = [code(0, start), code(0, start + 1), code(0, gone.avma.start.0 + 0x40)];
    let (names, texts) = named(&frames, &images);
    assert_eq!(texts[1], [format!("[stripped+{:#x}]", start + 1 - BASE)]);
    assert_eq!(texts[2], [format!("[gone (x)+{:#x}]", gone.file_offset + 0x40)]);
    assert_eq!(
        names.unnamed_by_image,
        [
            Unnamed { image: 0, why: Why::NoSymbols, addresses: 2 },
            Unnamed { image: 1, why: Why::NoFile("deleted from disk".to_string()), addresses: 1 },
        ]
    );
    assert_eq!((names.addresses_looked_up, names.addresses_named), (3, 0));
}

#[test]
fn functions_without_a_name_are_named_by_their_start() {
    const SOURCE: &str = "__attribute__((noinline)) static int hidden(int x) { return x * 3 + 1; }
        __attribute__((noinline)) static int other(int x) { return hidden(x) * hidden(x + 7); }
        int exported(int x) { return other(x) + 1; }";
    let flags = ["-shared", "-fPIC", "-fno-inline", "-fasynchronous-unwind-tables"];
    let (_dir, whole) = super::table::tests::compile(SOURCE, &flags);
    let (_dir, stripped) = super::table::tests::compile(SOURCE, &[&flags[..], &["-s"]].concat());
    let [hidden, other] = ["hidden", "other"].map(|name| address_of(&whole, name));
    let mapped = mapping(&stripped, "/lib/libwork.so", 1, BASE);
    let mut images = Images::default();
    images.update(0, &[mapped], &mut |_| Ok(stripped.clone()));
    let exported = address_of(&stripped, "exported");
    let frames = [hidden, hidden + 2, other, other + 3, exported + 1].map(|at| code(0, BASE + at));
    let (names, texts) = named(&frames, &images);
    let [hidden, other] = [hidden, other].map(|start| format!("[libwork.so:fn+{start:#x}]"));
    assert_eq!(texts, [[hidden.as_str()], [&hidden], [&other], [&other], ["exported"]]);
    assert!(Arc::ptr_eq(&names.get(FrameId(0))[0], &names.get(FrameId(1))[0]));
    assert_eq!((names.addresses_named, names.addresses_unnamed[&Why::NotCovered]), (1, 4));
}

/// Assembly without sizes and types, like NASM's: of two functions only the first is exported, and so are a label
/// and, after code with unwind information, a third.
#[cfg(target_arch = "x86_64")]
const ASSEMBLY: &str = r#"
__asm__(".text\n.balign 16\n.globl first\nfirst: test %edi,%edi\n je 1f\n ret\n1: xor %eax,%eax\n"
    " nop\n ret\n.balign 16, 0x90\n"
    "second: push %rbx\n pop %rbx\n ret\n.balign 16, 0x90\n"
    ".globl third\nthird: nop\n nop\n"
    "described: .cfi_startproc\n nop\n ret\n.cfi_endproc\n nop\n nop\n");
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_symbol_without_a_size_names_only_its_function() {
    let flags = ["-shared", "-fPIC"];
    let (_dir, whole) = super::table::tests::compile(ASSEMBLY, &flags);
    let (_dir, stripped) = super::table::tests::compile(ASSEMBLY, &[&flags[..], &["-s"]].concat());
    let [first, second, third, described] =
        ["first", "second", "third", "described"].map(|name| address_of(&whole, name));
    let name = |file: &ImageBytes, at: u64| {
        let answer = name_addresses("/a.so", file.clone(), &[at], &Options::default());
        answer.names[0].clone().map(|functions| functions[0].name.clone().unwrap().to_string())
    };
    for (at, in_stripped, in_whole) in [
        (first, Ok("first"), "first"),
        (first + 8, Ok("first"), "first"), // after the first of its returns
        (second, Err(Why::NotCovered), "second"),
        (third, Ok("third"), "third"),
        (third + 1, Ok("third"), "third"),
        (described, Err(Why::NotCovered), "described"),
        (described + 1, Err(Why::NotCovered), "described"),
    ] {
        assert_eq!(name(&stripped, at), in_stripped.map(str::to_owned), "{:#x}", at - first);
        assert_eq!(name(&whole, at), Ok(in_whole.to_owned()), "{:#x}", at - first);
    }
    // After the described function the code is unknown, in both files.
    assert_eq!(name(&stripped, described + 3), Err(Why::NotCovered));
    assert_eq!(name(&whole, described + 3), Err(Why::NotCovered));
}

/// Functions longer than the size of their symbols: one with unwind information, one without, and one in which
/// another symbol begins.
#[cfg(target_arch = "x86_64")]
const SHORT_SYMBOLS: &str = r#"
__asm__(".text\n.macro function name\n.globl \\name\n.type \\name,@function\n.size \\name, 1\n\\name:\n.endm\n"
    "function described\n.cfi_startproc\n nop\n nop\n ret\n.cfi_endproc\n"
    "function bare\n nop\n nop\n ret\n"
    "function outer\n.cfi_startproc\n nop\n nop\nfunction inner\n nop\n nop\n ret\n.cfi_endproc\n");
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_symbol_shorter_than_its_function_names_all_of_it() {
    let (_dir, file) = super::table::tests::compile(SHORT_SYMBOLS, &["-shared", "-fPIC"]);
    let [described, bare, outer, inner] =
        ["described", "bare", "outer", "inner"].map(|name| address_of(&file, name));
    let name = |at: u64| {
        let answer = name_addresses("/a.so", file.clone(), &[at], &Options::default());
        answer.names[0].clone().map(|functions| functions[0].name.clone().unwrap().to_string())
    };
    for (at, expected) in [
        (described + 2, Ok("described")),
        (bare, Ok("bare")),
        (bare + 2, Err(Why::NotCovered)),
        (outer + 1, Ok("outer")),
        (inner, Ok("inner")),
        (inner + 1, Err(Why::NotCovered)),
    ] {
        assert_eq!(name(at), expected.map(str::to_owned), "{:#x}", at - described);
    }
}

#[test]
fn inlined_functions_have_their_scope() {
    const SOURCE: &str = "volatile long sink;
        namespace outer { namespace {
        struct S { template <class T> inline T twice(T x) { return spin(x) * 2; }
            static inline long spin(long x) { for (int i = 0; i < 100; i++) sink += x * i; return sink; } };
        inline long hidden(long x) { S s; auto add = [&](long y) { return s.twice(y) + 1; }; return add(x); } }
        __attribute__((noinline)) long visible(long x) { return hidden(x); } }";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.cpp"), SOURCE).unwrap();
    let Some(compiler) = crate::skip::installed(&["c++"]) else { return };
    let mut cc = std::process::Command::new(compiler);
    cc.current_dir(dir.path()).args(["-O2", "-g", "-shared", "-fPIC", "-o", "a.so", "a.cpp"]);
    let output = cc.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = ImageBytes::new(std::fs::read(dir.path().join("a.so")).unwrap());
    let start = address_of(&file, "_ZN5outer7visibleEl");
    let addresses: Vec<u64> = (start..start + 32).collect();
    let chains = |style| {
        let answer =
            name_addresses("/a.so", file.clone(), &addresses, &Options { style, ..Options::default() });
        let text = |chain: Vec<LineInfo>| {
            let names = chain.into_iter().map(|function| function.name.unwrap().to_string());
            names.collect::<Vec<_>>().join(" > ")
        };
        answer.names.into_iter().flatten().map(text).collect::<std::collections::BTreeSet<_>>()
    };
    let readable = chains(Style::Readable);
    let deepest = readable.iter().max_by_key(|chain| chain.len()).unwrap();
    assert!(
        deepest.starts_with("outer::visible(long) > outer::(anonymous namespace)::hidden"),
        "{readable:?}"
    );
    assert!(deepest.contains(" > outer::(anonymous namespace)::S::twice<long"), "{readable:?}");
    assert!(deepest.contains(" > outer::(anonymous namespace)::S::spin"), "{readable:?}");
    // Mangled names are available on request.
    let mangled = chains(Style::Mangled);
    assert!(mangled.iter().all(|chain| chain.starts_with("_ZN5outer7visibleEl")), "{mangled:?}");
}

#[test]
fn jit_code_is_named_by_its_runtime() {
    let memory = |start: u64, path: &str, kind: MappingKind, inode: u64| Mapping {
        avma: Avma(start)..Avma(start + 0x1000),
        file_offset: 0x3000,
        path: path.to_owned(),
        kind,
        identity: (0, inode),
    };
    let anonymous = |start, label| memory(start, label, MappingKind::Anonymous, 0);
    let file = |start, path, inode| memory(start, path, MappingKind::File, inode);
    let mut images = Images::default();
    let mut open = |mapping: &Mapping| match mapping.path.contains("elf") {
        true => Ok(ImageBytes::new(build::file(build::X86_64, &[]))),
        false => Err(OpenError::Source("neither")),
    };
    images.update(0, &[anonymous(0x1000, ""), file(0x9000, "/usr/bin/work", 9)], &mut open);
    images.begin_space(0);
    let after = [
        anonymous(0x1000, ""),
        anonymous(0x3000, "[anon:cache]"),
        file(0x5000, "/dev/zero (deleted)", 5),
        file(0x7000, "/memfd:elf (deleted)", 7),
        file(0x9000, "/usr/lib/php/opcache.so", 9),
    ];
    images.update(0, &after, &mut open);
    let addresses = [(0, 0x1008), (1, 0x1008), (1, 0x3008), (1, 0x5008), (1, 0x7008), (1, 0x2000)];
    let (names, texts) = named(&addresses.map(|(space, at)| code(space, at)), &images);
    let expected =
        ["[unknown]", "[php jit]", "[cache]", "[php jit]", "[memfd:elf (deleted)+0x3008]", "[unknown]"];
    assert_eq!(texts.concat(), expected);
    // The compiler's own map has priority, also for shared memory.
    let frames = addresses.into_iter().enumerate();
    let frames = frames.map(|(index, (space, at))| (FrameId(index as u32), code(space, at)));
    struct Map;
    impl Files for Map {
        fn open(&self, _path: &str) -> Result<ImageBytes, OpenError> {
            Err(OpenError::Source("no such file or directory"))
        }
        fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
            Some(("/tmp/perf-1.map".to_owned(), Ok(b"5000 1000 jitted\n".to_vec())))
        }
    }
    let mapped = symbolicate(frames, &images, &Options { files: &Map, ..Options::default() });
    assert_eq!(*mapped.get(FrameId(3))[0], *"jitted");
    assert_eq!(names.addresses_named, 0);
}

#[test]
fn the_order_of_frames_does_not_matter() {
    let (_dir, bytes) = zoo(&[]);
    let mapped = mapping(&bytes, "zoo", 1, BASE);
    let start = mapped.avma.start.0;
    let mut images = Images::default();
    images.update(0, &[mapped], &mut |_| Ok(bytes.clone()));
    let frames: Vec<Frame> = (0..600).map(|index| code(0, start + index * 7 % 600)).collect();
    let reversed: Vec<Frame> = frames.iter().rev().copied().collect();
    let (forward, mut texts) = named(&frames, &images);
    let (backward, texts_reversed) = named(&reversed, &images);
    texts.reverse();
    assert_eq!(texts, texts_reversed);
    assert_eq!(forward.unnamed_by_image, backward.unnamed_by_image);
}

#[test]
fn the_memory_for_names_is_bounded() {
    let shared = TextsShared::new(Style::Readable, |_| None);
    let mut texts = dwarf::Texts::new(&shared);
    let name = texts.plain("main").unwrap();
    let half = "x".repeat(TEXT_BYTES_MAX / 2);
    assert!(texts.plain(&half).is_some());
    assert_eq!(dwarf::Texts::new(&shared).plain(&half), None, "all threads together");
    assert!(Arc::ptr_eq(&texts.plain("main").unwrap(), &name), "costs nothing");
}

#[inline(never)]
fn a_function_of_this_test(x: u64) -> u64 {
    std::hint::black_box(x) + 1
}

/// End to end with known truth: this process's own mappings, and a function with a run-time address from the
/// language.
#[test]
fn this_process_names_its_own_functions() {
    let mut mappings = Vec::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if !fields[1].contains('x') {
            continue;
        }
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = fields[0].split_once('-').unwrap();
        let path = fields.get(5).copied().unwrap_or_default().to_string();
        mappings.push(Mapping {
            avma: Avma(hex(start))..Avma(hex(end)),
            file_offset: hex(fields[2]),
            kind: if path.starts_with('/') { MappingKind::File } else { MappingKind::Anonymous },
            path,
            identity: (1, fields[4].parse().unwrap()),
        });
    }
    let mut images = Images::default();
    images.update(0, &mappings, &mut |mapping| {
        std::fs::read(&mapping.path).map(ImageBytes::new).map_err(OpenError::from)
    });
    let here = a_function_of_this_test as fn(u64) -> u64 as usize as u64;
    assert_eq!(a_function_of_this_test(1), 2);
    assert!(images.of(0).contains(Avma(here)));
    let exe = std::env::current_exe().unwrap();
    let entry = images.entry_of(0, exe.to_str().unwrap()).unwrap();
    let (_, texts) = named(&[code(0, here), code(0, here + 1), code(0, entry.0)], &images);
    assert!(texts[0][0].ends_with("::a_function_of_this_test"), "{texts:?}");
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[2], ["_start"]);
}

/// A process with a JIT compiler.
struct WithMap;

impl Files for WithMap {
    fn open(&self, _path: &str) -> Result<ImageBytes, OpenError> {
        Err(OpenError::Source("no such file or directory"))
    }

    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
        Some(("/tmp/perf-1.map".to_owned(), Ok(b"1000 1000 jitted\n".to_vec())))
    }
}

#[test]
fn a_jit_map_names_code_of_the_last_program_only() {
    let anonymous = |start: u64, end: u64| Mapping::anonymous(Avma(start)..Avma(end));
    let mut library = anonymous(0x5000, 0x6000);
    (library.path, library.kind, library.identity) = ("/lib/a.so".to_owned(), MappingKind::File, (8, 1));
    let mut images = Images::default();
    let mut open = |_: &Mapping| Err(OpenError::Source("not here"));
    images.update(0, &[anonymous(0x1000, 0x2000)], &mut open);
    images.begin_space(0);
    images.update(0, &[anonymous(0x1000, 0x2000), library], &mut open);
    // The library is unmapped: a new space of the same program.
    images.update(0, &[anonymous(0x1000, 0x2000)], &mut open);
    assert_eq!(
        (images.of(0).space(), images.is_of_earlier_program(0), images.is_of_earlier_program(1)),
        (2, true, false)
    );

    let frames = [code(0, 0x1008), code(1, 0x1008), code(2, 0x1010)];
    let frames = frames.into_iter().enumerate().map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbolicate(frames, &images, &Options { files: &WithMap, ..Options::default() });
    let texts = [0, 1, 2].map(|id| names.get(FrameId(id))[0].to_string());
    assert_eq!(texts, ["[unknown]", "jitted", "jitted"]);
    assert_eq!(names.addresses_unnamed.into_iter().collect::<Vec<_>>(), [(Why::NoImage, 1)]);
}

/// A process with a jitdump, and a less accurate map.
struct WithDump;

impl Files for WithDump {
    fn open(&self, path: &str) -> Result<ImageBytes, OpenError> {
        assert_eq!(path, "/home/new/jit-7.dump");
        let loads = [a_load(0x1000, 0x100, 1, "old"), a_load(0x1000, 0x40, 2, "dumped")];
        Ok(ImageBytes::new(super::jit::jitdump_tests::file(&loads)))
    }

    fn own_pid(&self) -> Option<&str> {
        Some("7")
    }

    fn jit_map(&self) -> Option<(String, Result<Vec<u8>, OpenError>)> {
        Some(("/tmp/perf-7.map".to_owned(), Ok(b"1000 1000 jitted\n".to_vec())))
    }
}

#[test]
fn a_jitdump_of_the_last_program_has_priority_over_its_map() {
    let made = |start: u64, end: u64, path: &str| Mapping {
        avma: Avma(start)..Avma(end),
        file_offset: 0,
        path: path.to_owned(),
        kind: if path.is_empty() { MappingKind::Anonymous } else { MappingKind::File },
        identity: (8, start),
    };
    let mut images = Images::default();
    let mut open = |_: &Mapping| Err(OpenError::Source("not an image"));
    // An earlier program and another process have their own dumps.
    images.update(0, &[made(0x9000, 0xa000, "/home/old/jit-7.dump")], &mut open);
    images.begin_space(0);
    let mappings = [
        made(0x1000, 0x2000, ""),
        made(0x5000, 0x6000, "/home/new/jit-7.dump"),
        made(0x7000, 0x8000, "/home/new/jit-8.dump"),
    ];
    images.update(0, &mappings, &mut open);
    let space = images.of(0).space();
    // The program has ended its compiler.
    images.update(0, &mappings[..1], &mut open);
    let frames = [code(space, 0x1010), code(space, 0x1050), code(space, 0x1150)];
    let frames = frames.into_iter().enumerate().map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbolicate(frames, &images, &Options { files: &WithDump, ..Options::default() });
    let texts = [0, 1, 2].map(|id| names.get(FrameId(id))[0].to_string());
    assert_eq!(texts, ["dumped", "old", "jitted"]);
}

#[test]
fn the_name_of_an_address_is_independent_of_other_requests() {
    // Two names with one start: the shorter function is the better one within its size.
    let names = b"\0shortg\0longl\0".to_vec();
    let mut long = build::function(8, build::TEXT, 0x101);
    long[4] = 0x02; // STB_LOCAL
    let symbols = build::symbols(&[build::function(1, build::TEXT, 0x10), long], names);
    let file = ImageBytes::new(build::file(build::X86_64, &symbols));
    for (addresses, expected) in [
        (&[0x1050][..], &["longl"][..]),
        (&[0x1008], &["shortg"]),
        (&[0x1008, 0x1050], &["shortg", "longl"]),
        (&[0x1050, 0x1008, 0x1060], &["longl", "shortg", "longl"]),
    ] {
        let answer = name_addresses("/alias.so", file.clone(), addresses, &Options::default());
        let names = answer.names.into_iter().map(|name| name.unwrap()[0].name.clone().unwrap());
        assert_eq!(names.map(|name| name.to_string()).collect::<Vec<_>>(), expected, "{addresses:x?}");
    }
}

/// Neither symbols nor function starts are read from a file that has been replaced.
#[test]
fn a_rewritten_file_names_nothing() {
    let (dir, bytes) = zoo(&["-shared", "-fPIC"]);
    let path = dir.path().join("mapped.so");
    std::fs::write(&path, bytes.bytes()).unwrap();
    let mapped = mapping(&bytes, "/lib/libzoo.so", 1, BASE);
    let mut images = Images::default();
    images.update(0, &[mapped], &mut |_| crate::binary::files::map_regular(&path));
    let at = address_of(&bytes, "zoo_sized") + 4;
    let frames = [code(0, BASE + at)];
    assert_eq!(named(&frames, &images).1, [["zoo_sized"]]);
    // Two writes within one tick of the kernel leave the same modification time.
    std::thread::sleep(std::time::Duration::from_millis(25));
    std::fs::write(&path, bytes.bytes()).unwrap();
    let (names, texts) = named(&frames, &images);
    assert_eq!(texts, [[format!("[libzoo.so+{at:#x}]")]]);
    let why = Why::NoFile("replaced on disk since it was loaded".to_owned());
    assert_eq!(names.unnamed_by_image, [Unnamed { image: 0, why, addresses: 1 }]);
}

#[test]
fn a_table_with_more_symbols_than_real_ones_is_not_read() {
    // As in a file with a hole, memory that is not read costs nothing.
    let small = build::file(
        build::X86_64,
        &build::symbols(&[build::function(1, build::TEXT, 16)], b"\0f\0".to_vec()),
    );
    let with_symbols = |count: usize| {
        let at = small.len().next_multiple_of(8);
        let mut bytes = vec![0; at + count * 24];
        bytes[..small.len()].copy_from_slice(&small);
        bytes[at..at + 48].copy_from_slice(&[vec![0; 24], build::function(1, build::TEXT, 16)].concat());
        let headers = u64::from_le_bytes(small[0x28..0x30].try_into().unwrap()) as usize;
        let symtab = headers + 64 * build::FIRST as usize;
        for (offset, value) in [(24, at), (32, count * 24)] {
            bytes[symtab + offset..][..8].copy_from_slice(&(value as u64).to_le_bytes());
        }
        ImageBytes::new(bytes)
    };
    assert!(SymbolTable::parse(&with_symbols(2)).is_ok());
    let count = crate::binary::elf::SYMBOLS_MAX + 1;
    // Of the others the numbers are changed; the symbols are behind the file.
    let grown = |small: &[u8], count_at: usize, bytes_each: usize| {
        let mut bytes = vec![0; small.len() + count * bytes_each];
        bytes[..small.len()].copy_from_slice(small);
        bytes[count_at..][..4].copy_from_slice(&(count as u32).to_le_bytes());
        ImageBytes::new(bytes)
    };
    let macho = crate::binary::macho::build::File { nlists: vec![], ..Default::default() }.build();
    let command = macho.windows(8).position(|bytes| bytes == [2, 0, 0, 0, 24, 0, 0, 0]).unwrap();
    let pe = crate::binary::pe::build::File { code: vec![0x90; 16], ..Default::default() }.build();
    let header = 4 + u32::from_le_bytes(pe[0x3c..0x40].try_into().unwrap()) as usize;
    for bytes in [with_symbols(count), grown(&macho, command + 12, 16), grown(&pe, header + 12, 18)] {
        let why = SymbolTable::parse(&bytes).unwrap_err();
        assert_eq!(why, Why::BadFile("more symbols than are read".to_owned()));
    }
}

#[test]
fn what_all_sections_of_a_file_unpack_to_is_bounded_together() {
    const UNPACKED: usize = 56 << 20;
    let random = |seed| {
        let mut random = crate::rng::Rng::new(seed);
        let noise: Vec<u8> = (0..UNPACKED / 90).map(|_| random.next() as u8).collect();
        let content = [noise, vec![0; UNPACKED - UNPACKED / 90]].concat();
        let header =
            [&1u32.to_le_bytes()[..], &[0; 4], &(UNPACKED as u64).to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0]];
        [header.concat(), miniz_oxide::deflate::compress_to_vec_zlib(&content, 1)].concat()
    };
    let packed = |name, seed| {
        let flags = object::elf::SHF_COMPRESSED.0;
        build::Section { flags, ..build::section(name, build::PROGBITS, random(seed), 0) }
    };
    let ask = dwarf::DwarfParts { inlines: true, lines: true };
    let read = |sections: &[build::Section]| {
        let bytes = ImageBytes::new(build::file(build::X86_64, sections));
        dwarf::Sections::read(&bytes, false, ask).map(|read| read.is_some())
    };
    let (info, text) = (packed(".debug_info", 1), packed(".debug_str", 2));
    assert!(read(std::slice::from_ref(&info)).unwrap(), "each alone");
    let why = read(&[info, text]).unwrap_err().to_string();
    assert!(why.contains("out of proportion"), "{why}");
}
