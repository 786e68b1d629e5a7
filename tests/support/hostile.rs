//! Everything that reads bytes of targets and files, as one table of targets: name, sound inputs, what is done with
//! any input. `scripts/fuzz.sh` runs a target for minutes (tests/fuzz), `cargo test` damages its inputs
//! (tests/files/hostile.rs). What compilers write is added by both.

#[path = "../../crates/unwind/src/binary/elf/build.rs"]
mod build;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use build::{PROGBITS, Section, TEXT, X86_64 as EM_X86_64, section};
use stackprof::addr::{Avma, Svma};
use stackprof::arch::{Aarch64, Arch, Arm, Registers, X86_64};
use stackprof::binary::cfi::Cfi;
use stackprof::binary::elf::functions::{self, Functions};
use stackprof::binary::elf::{Elf, relocated_object, same_file};
use stackprof::binary::exidx::Exidx;
use stackprof::binary::macho::{self, CPU_ARM64, MachO, function_starts, unwind};
use stackprof::binary::object::Object;
use stackprof::binary::unpack::{self, Packing};
use stackprof::binary::{Files, ImageBytes, Mapping, NoFiles, OpenError};
use stackprof::images::Images;
use stackprof::profile::formats::{detect, folded, otlp, perf_script, pprof};
use stackprof::profile::{ByName, SavedProfile};
use stackprof::server::ProfileServer;
use stackprof::server::http::Request;
use stackprof::server::symbols::Symbols;
use stackprof::sources::gdb::description::{Description, Layout};
use stackprof::sources::gdb::link::{Decoder, Item, encode};
use stackprof::sources::gdb::run::StopReply;
use stackprof::symbol::table::SymbolTable;
use stackprof::symbol::{Options, demangle, jit, name_addresses, sections};
use stackprof::walk::{self, Code, Frames, Input, OtherStack, StackBytes, UnwindMethod, Unwinder};

/// Name, sound inputs, and what is done with an input.
pub(crate) type Target = (&'static str, &'static [&'static [u8]], fn(&[u8]));

pub(crate) const TARGETS: [Target; 24] = [
    ("arm_code", &[], arm_code),
    // A file and the debug file beside it: whatever path is opened, the second half is there.
    ("debuglink", &[], |data| {
        struct One(Vec<u8>);
        impl Files for One {
            fn open(&self, _path: &str) -> Result<ImageBytes, OpenError> {
                Ok(ImageBytes::new(self.0.clone()))
            }
        }
        let (image, debug) = data.split_at(data.len() / 2);
        let options = Options { files: &One(debug.to_vec()), ..with_lines() };
        let _ = name_addresses("/a", ImageBytes::new(image.to_vec()), &[0x1000, 0x1010, 0x2000], &options);
    }),
    ("dwarf", &[], |data| {
        let addresses: Vec<u64> = all_over(16).collect();
        let _ = name_addresses("/a", ImageBytes::new(data.to_vec()), &addresses, &with_lines());
    }),
    // `.eh_frame`, `.eh_frame_hdr` and `.debug_frame` in an otherwise sound file; the input: CFA = rsp + 8 everywhere.
    ("eh_frame", &[b"\0\x10\0\0\0\0\0\0\0\x01\0\x01\x78\x10\x0c\x07\x08\x90\x01\0\0\
        \x14\0\0\0\x18\0\0\0\0\x10\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0"], |data| {
        let Some((kind, rest)) = data.split_first() else { return };
        let (frames, header) = match kind & 1 {
            0 => (rest, &[][..]),
            _ => rest.split_at(rest.len() * usize::from(kind >> 1) / 128),
        };
        let sections = [(".eh_frame", frames), (".eh_frame_hdr", header), (".debug_frame", frames)];
        let images = images_with(&[], &sections);
        for pc in (TEXT..2 * TEXT).step_by(16) {
            let _ = (images.of(0).row(Avma(pc)), images.of(0).frame_rule(Avma(pc)));
        }
    }),
    ("elf", &[], |data| {
        let _ = sections::all(data);
        // What the tasks of a board are found by; the last name is that of fuzz.sh's seeds.
        let _ = functions::find_structures(data, &["xLIST", "tskTaskControlBlock", "seed"]);
        let _ = functions::find_variables(data, &["pxCurrentTCB", "entry"]);
        let (head, file) = data.split_at(data.len() / 2);
        let _ = same_file(head, file);
        let Ok(object) = Object::parse(data) else { return };
        let (_, _, _) = (object.base_svma(), object.build_id(), object.entry());
        for at in all_over(16).chain([u64::MAX, u64::MAX / 2]) {
            if let Some(offset) = object.svma_of(at).and_then(|svma| object.file_offset_of(svma)) {
                let _ = object.svma_of(offset);
            }
            let _ = object.file_offset_of(Svma(at));
        }
    }),
    // `.ARM.exidx` and `.ARM.extab` in an otherwise sound file of 32-bit Arm.
    ("exidx", &[], |data| {
        const CODE: u32 = 0x1000;
        let Some((&[low, high], content)) = data.split_first_chunk() else { return };
        let (size, table_bytes) = ((116 + content.len()) as u32, u16::from_le_bytes([low, high]).into());
        let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x28\0".to_vec();
        let words = [
            [1, CODE, 52, 0, 0, 52 | 32 << 16, 2, 0],
            [0x7000_0001, 116, CODE - 0x800, 0, table_bytes, 0, 4, 4],
            [1, 0, CODE - 0x800 - 116, 0, size, 0, 5, 4],
        ];
        file.extend(words.as_flattened().iter().flat_map(|word| u32::to_le_bytes(*word)));
        file.extend_from_slice(content);
        let Some(exidx) = Exidx::find(&file) else { return };
        for at in (CODE..2 * CODE).step_by(16) {
            let _ = exidx.entry(&file, Svma(at.into()));
        }
        // Anything may be one.
        if let Some(exidx) = Exidx::find(data) {
            let _ = exidx.entry(data, Svma(CODE.into()));
        }
    }),
    ("firefox", &[], |data| {
        let _ = detect::read([b"{\"meta\":", data].concat().as_slice(), "fuzz", 0);
    }),
    // What is read is written and read again the same.
    ("folded", &[b"work;io (17);[incomplete];read 3\nwork;main;parse 2\n"], |data| {
        let Ok(saved) = folded::read(data, "fuzz") else { return };
        let text = |saved| {
            let mut out = Vec::new();
            folded::write(&ByName::of(saved, false).expect("fits"), &mut out).expect("memory");
            out
        };
        let once = text(&saved);
        // A process called `# x` is a remark, and names that end in numbers on every line are counts.
        let is_other = |line: &[u8]| {
            let before_count = line.iter().rev().skip_while(|byte| **byte != b' ').nth(1);
            line.starts_with(b"#") || before_count.is_some_and(u8::is_ascii_digit)
        };
        if !once.split(|byte| *byte == b'\n').any(is_other) {
            let again = folded::read(once.as_slice(), "fuzz").expect("what is written is read");
            assert_eq!(text(&again), once);
        }
    }),
    // In pieces of any size, with the stop replies in them; what is encoded is decoded the same.
    ("gdb_packet", &[b"+$qSupported:multiprocess+#c6$T02thread:p1.1;threads:1,2;#00%Stop:T0006:0*,;#00"], |data| {
        let decoded = |parts: &[&[u8]]| {
            let (mut decoder, mut items) = (Decoder::default(), VecDeque::new());
            parts.iter().for_each(|part| decoder.take(part, &mut items));
            items
        };
        let (first, second) = data.split_at(data.len() / 2);
        let items = decoded(&[data]);
        assert_eq!(decoded(&[first, second]), items);
        for item in items {
            if let Item::Packet(body) | Item::Notification(body) = item {
                let _ = StopReply::parse(&body);
            }
        }
        let _ = StopReply::parse(data);
        // Run lengths are only what stubs send.
        if !data.contains(&b'*') {
            assert_eq!(decoded(&[&encode(data)]), [Item::Packet(data.to_vec())]);
        }
    }),
    // The first byte says where the first document ends, and how many bytes of registers are sent.
    ("gdb_target_xml", &[b"\x7f<target><architecture>aarch64</architecture><xi:include href=\"a.xml\"/></target>\
        <feature><reg name=\"x0\" bitsize=\"64\" regnum=\"3\"/><reg name=\"sp\" bitsize=\"64\" offset=\"8\"/></feature>"], |data| {
        let Some((cut, rest)) = data.split_first() else { return };
        let (first, second) = rest.split_at(rest.len() * usize::from(*cut) / 256);
        let mut fetch = |name: &str| -> Result<Option<Vec<u8>>, String> {
            Ok([("target.xml", first), ("a.xml", second)].into_iter().find(|(known, _)| *known == name).map(|(_, text)| text.to_vec()))
        };
        let Ok(Some(description)) = Description::read(&mut fetch) else { return };
        for arch in [Arch::X86_64, Arch::Aarch64, Arch::X86, Arch::Arm] {
            if let Ok(layout) = Layout::of(arch, &description) {
                let sent = vec![Some(7); usize::from(*cut) * 4];
                let _ = layout.registers(&sent, &|number| number.is_multiple_of(2).then_some(1));
                let _ = layout.missing_registers(sent.len());
            }
        }
    }),
    // Answered where the request has the server's token.
    ("http_request", &[
        b"GET /token/profile.json HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n",
        b"POST /token/symbolicate/v5 HTTP/1.1\r\nHost: localhost:80\r\nContent-Length: 11\r\n\r\n{\"jobs\":[]}",
    ], |data| {
        static SERVER: LazyLock<ProfileServer> = LazyLock::new(|| {
            let symbols = Symbols::new(SavedProfile::default(), Arc::new(NoFiles));
            ProfileServer::new("token".to_owned(), 80, "https://viewer.example".to_owned(), symbols)
        });
        if let Ok(request) = Request::read(&mut &*data) {
            let answer = SERVER.answer(&request);
            assert!(SERVER.is_authorized(&request) || answer.status.0 >= 400);
            assert!(answer.write(&mut Vec::new()).is_ok());
        }
    }),
    ("jitdump", &[b"DTiJ\x01\0\0\0\x28\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        \0\0\0\0\x3a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0f\0"], |data| {
        let _ = jit::loads(data);
    }),
    // An object file that a JIT compiler registered: linked, and read as an executable is.
    ("linked", &[], |data| {
        let Some(linked) = relocated_object::link(data.to_vec()) else { return };
        let _ = Elf::parse(&linked.bytes);
        let (functions, cfi) = (Functions::read(&linked.bytes), Cfi::find(&linked.bytes));
        for range in linked.code {
            let _ = functions.at(Svma(range.start.0), &linked.bytes);
            let _ = cfi.as_ref().and_then(|cfi| cfi.any_row(&linked.bytes, Svma(range.start.0)));
        }
    }),
    // For one processor or several: symbols, function bounds, stubs, debug map.
    ("macho", &[], |data| {
        let _ = macho::slices(data);
        let wanted = macho::ImageIdentity { uuid: None, cpu_type: CPU_ARM64, cpu_subtype: 0 };
        let Ok(bytes) = macho::choose(&ImageBytes::new(data.to_vec()), &wanted) else { return };
        let Ok(macho) = MachO::parse(bytes.bytes()) else { return };
        let _ = function_starts(data, macho.text.start).take(4096).count();
        let addresses: Vec<u64> = all_over(8).map(|offset| macho.text.start.0.wrapping_add(offset)).collect();
        let _ = name_addresses("/a", bytes, &addresses, &with_lines());
    }),
    ("names", &[
        b"_ZNSt6vectorIiSaIiEE9push_backERKi",
        b"_RNvMsr_NtCs3ssYzQotkvD_3std4pathNtB5_7PathBuf3newCs15kBYyAo9fc_7mycrate",
    ], |data| {
        let _ = demangle::shorten(&demangle::demangle(data));
        let _ = demangle::shorten(&String::from_utf8_lossy(data));
    }),
    ("otlp", &[], |data| {
        let _ = otlp::read::read(data);
    }),
    ("perf_map", &[b"1000 10 f\n1008 8 LazyCompile:*g /a.js:1\nx\n"], |data| {
        let _ = jit::names(data, &all_over(256).take(256).collect::<Vec<u64>>());
    }),
    ("perf_script", &[b"work 5/6 [001] 10.5: 250000 cpu-clock:\n\t 55d0 inner+0x10 (/bin/work)\n\n"], |data| {
        let _ = perf_script::read(data, "fuzz");
    }),
    ("pprof", &[], |data| {
        let _ = pprof::read::read(data);
    }),
    ("speedscope", &[], |data| {
        let _ = detect::read([b"{\"shared\":", data].concat().as_slice(), "fuzz", 0);
    }),
    ("symtab", &[], |data| {
        if let Ok(table) = SymbolTable::parse(&ImageBytes::new(data.to_vec())) {
            all_over(16).for_each(|address| _ = table.lookup(Svma(address)));
        }
    }),
    ("unpack", &[], |data| {
        let Some((kind, rest)) = data.split_first() else { return };
        let _ = match kind % 3 {
            0 => unpack::exact(Packing::Zlib, rest, rest.len() as u64 * 4),
            1 => unpack::exact(Packing::Zstd, rest, rest.len() as u64 * 4),
            _ => unpack::xz(rest),
        };
    }),
    // As a section and as part of a file.
    ("unwind_info", &[], |data| {
        for offset in (0..1024).map(|index| index * 16) {
            if let Some(entry) = unwind::find(data, offset) {
                let _ = (unwind::x86_64(entry.encoding, data), unwind::arm64(entry.encoding));
            }
        }
        let Ok(macho) = MachO::parse(data) else { return };
        let Some(unwind) = unwind::Unwind::find(&macho) else { return };
        let bytes = ImageBytes::new(data.to_vec());
        for offset in all_over(16).take(1024) {
            let _ = unwind.body(&macho, &bytes, Svma(macho.text.start.0.wrapping_add(offset)));
        }
    }),
    ("walk", &[], walk),
];

/// 4,096 addresses, so far apart.
fn all_over(step: u64) -> impl Iterator<Item = u64> {
    (0..4096).map(move |index| index * step)
}

fn with_lines() -> Options<'static> {
    Options { lines: true, threads: 1, ..Options::default() }
}

/// The images of a process that has a page of code at [`TEXT`], with these sections in its file.
fn images_with(text: &[u8], sections: &[(&str, &[u8])]) -> Images {
    let placed = sections.iter().zip(1..).map(|((name, bytes), number)| {
        // SHF_ALLOC
        Section { flags: 2, svma: number << 20, ..section(name, PROGBITS, bytes.to_vec(), 0) }
    });
    let mut file = build::file(EM_X86_64, &placed.collect::<Vec<_>>());
    let text = &text[..text.len().min(TEXT as usize)];
    file[TEXT as usize..][..text.len()].copy_from_slice(text);
    let mapping = Mapping::of_file(Avma(TEXT)..Avma(2 * TEXT), TEXT, "/a", (1, 1));
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(ImageBytes::new(file.clone())));
    images
}

const DEPTH_MAX: usize = 64;

/// Every walk ends within its depth.
fn check_walk(
    how: UnwindMethod,
    registers: &Registers,
    input: &Input<'_>,
    other: Option<OtherStack<'_>>,
    unwinder: &mut Unwinder,
) {
    let mut frames = Frames::default();
    walk::unwind_with_other_stack(how, registers, input, other, unwinder, &mut frames)
        .expect("all code is in images");
    let found = frames.addresses.len();
    assert!((1..=input.max_depth).contains(&found) && frames.methods.len() == found);
}

/// Registers, a stack and code of 32-bit Arm: each way of walking follows the instructions, in A32 and in T32.
fn arm_code(data: &[u8]) {
    const CODE: u64 = 0x8000;
    const STACK: u64 = 0x2000_0000;
    struct Text<'a> {
        bytes: &'a [u8],
        function: Option<Range<u64>>,
    }
    impl Code for Text<'_> {
        fn is_code(&self, at: Avma) -> bool {
            self.code(at).is_some()
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.bytes.get(usize::try_from(at.0.checked_sub(CODE)?).ok()?..).filter(|bytes| !bytes.is_empty())
        }
        fn function(&self, at: Avma) -> Option<Range<Avma>> {
            self.function
                .clone()
                .filter(|function| function.contains(&at.0))
                .map(|f| Avma(f.start)..Avma(f.end))
        }
    }
    let Some((&[kind, start, length, stack_words], rest)) = data.split_first_chunk() else { return };
    let (words, bytes) = rest.split_at(rest.len().min(2 * (16 + usize::from(stack_words))));
    // Most words lead into the code or the stack, as those of a real stack do.
    let mut words = words.as_chunks::<2>().0.iter().map(|pair| {
        let value = u64::from(u16::from_le_bytes(*pair));
        match value >> 14 {
            0 | 1 => CODE + value % (bytes.len() as u64 + 2),
            2 => STACK + value % 0x400,
            _ => 0xffff_0000 | value,
        }
    });
    let mut r: [u64; 16] = std::array::from_fn(|_| words.next().unwrap_or_default());
    r[Arm::SP] = STACK;
    let stack: Vec<u8> = words.flat_map(|word| (word as u32).to_le_bytes()).collect();
    let from = CODE + 2 * u64::from(start);
    let function = (kind & 1 != 0).then_some(from..from + 2 * u64::from(length));
    let code = Text { bytes, function };
    let input = Input {
        stack_limit: (kind & 2 != 0).then_some(Avma(STACK + 0x800)),
        max_depth: DEPTH_MAX / 2,
        ..Input::new(StackBytes { base: Avma(STACK), bytes: &stack }, &code)
    };
    // Where the process stack pointer may be: in the same memory.
    let process = StackBytes { base: Avma(STACK + 0x200), bytes: stack.get(0x200..).unwrap_or_default() };
    let other = (kind & 16 != 0).then_some(OtherStack { stack: process, limit: None });
    // Known or not, in A32 or in T32.
    let cpsr = (kind & 32 == 0).then_some(if kind & 4 != 0 { 1 << 5 } else { 0 });
    let registers = Registers::Arm(Arm { r, cpsr, m_profile: kind & 8 != 0 });
    let mut unwinder = Unwinder::default();
    for (how, _) in UnwindMethod::ALL {
        check_walk(how, &registers, &input, other, &mut unwinder);
    }
}

/// Registers, a stack, code and unwind information, all from the input.
fn walk(data: &[u8]) {
    const STACK: u64 = 0x7fff_0000;
    fn words(bytes: &[u8]) -> Vec<u64> {
        let word = |[kind, low, high]: &[u8; 3]| {
            let value = u64::from(u16::from_le_bytes([*low, *high]));
            match kind & 3 {
                0 => TEXT + value % 0x2000,
                1 => STACK.wrapping_add(value & !7).wrapping_sub(64),
                2 => value << (kind >> 2),
                _ => !value,
            }
        };
        bytes.as_chunks::<3>().0.iter().map(word).collect()
    }
    let Some((&[kind, stack_words, code_bytes], rest)) = data.split_first_chunk() else { return };
    let (registers, rest) = rest.split_at(rest.len().min(33 * 3));
    let (stack, rest) = rest.split_at(rest.len().min(usize::from(stack_words) * 3));
    let (text, frames) = rest.split_at(rest.len().min(usize::from(code_bytes) * 4));
    let images = images_with(text, &[(".eh_frame", frames)]);
    let code = images.of(0);
    let stack: Vec<u8> = words(stack).into_iter().flat_map(u64::to_le_bytes).collect();
    let mut from = words(registers).into_iter().chain(std::iter::repeat(0));
    let mut next = || from.next().unwrap_or_default();
    let registers = if kind & 1 == 0 {
        let mut gpr: [u64; 16] = std::array::from_fn(|_| next());
        gpr[X86_64::RSP] = STACK;
        Registers::X86_64(X86_64 { gpr, rip: next(), fs_base: next() })
    } else {
        Registers::Aarch64(Aarch64 { x: std::array::from_fn(|_| next()), sp: STACK, pc: next() })
    };
    let input = Input {
        stack_top: (kind & 2 != 0).then_some(Avma(STACK + 0x400)),
        stack_limit: (kind & 4 != 0).then_some(Avma(STACK + 0x800)),
        fp_always: kind & 8 != 0,
        max_depth: DEPTH_MAX,
        address_mask: if kind & 16 == 0 { u64::MAX } else { (1 << 47) - 1 },
        ..Input::new(StackBytes { base: Avma(STACK), bytes: &stack }, &code)
    };
    let mut unwinder = Unwinder::default();
    for how in [UnwindMethod::Auto, UnwindMethod::Cfi, UnwindMethod::FramePointer] {
        check_walk(how, &registers, &input, None, &mut unwinder);
    }
}
