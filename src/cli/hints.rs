//! Hints in the closing summary: what the user can do better, one line each.
//!
//! Input: a recording and its names. Output: lines for people. The advice depends on the runtime that owns the
//! outermost frames, which is determined from the images, never from the process name. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::args::{DEPTH_MAX, RecordOptions, Source};
use super::text::percent;
use crate::binary::MappingKind;
use crate::images::Image;
use crate::recording::{Frame, Recording};
use crate::sources::pushed::{IN_KERNEL, THROTTLED};
use crate::symbol::jit::JitRuntimes;
use crate::symbol::{Names, Why, kernel, sections};
use crate::trie::FrameId;
use crate::walk::{StackEnd, UnwindMethod};

/// Advice for JIT code: for complete stacks, and for names.
struct Advice {
    runtime: &'static str,
    stacks: Option<&'static str>,
    names: Option<&'static str>,
}

/// Options of runtimes, from their documentation.
const ADVICE: [Advice; 8] = [
    Advice {
        runtime: "java",
        stacks: Some("start java with -XX:+PreserveFramePointer"),
        names: Some("while it runs, jcmd PID Compiler.perfmap (JDK 17 and later) writes them down"),
    },
    Advice {
        runtime: "v8",
        stacks: None,
        names: Some("start node with --perf-basic-prof --interpreted-frames-native-stack"),
    },
    Advice {
        runtime: "erlang",
        // C functions run on a separate stack, without the Erlang frames.
        stacks: None,
        names: Some("start erl with +JPperf true"),
    },
    Advice { runtime: "php", stacks: None, names: Some("start php with -d opcache.jit_debug=16") },
    Advice {
        runtime: "ruby",
        stacks: Some("start ruby (3.3 and later) with --yjit-perf"),
        names: Some("start ruby (3.3 and later) with --yjit-perf"),
    },
    Advice { runtime: "dotnet", stacks: None, names: Some("set DOTNET_PerfMapEnabled=1") },
    // LLVM registers its code with debuggers if the program enables that.
    Advice { runtime: "llvm", stacks: Some(LLVM), names: Some(LLVM) },
    Advice { runtime: "qemu", stacks: None, names: Some("start qemu (8.0 and later) with -perfmap") },
];

/// JIT code of LLVM is readable only if it is registered with debuggers.
const LLVM: &str = "let it register that code with debuggers (PostgreSQL: jit_debugging_support = on)";

/// Minimum share of the samples for a hint, percent.
const WORTH_PERCENT: u64 = 10;

/// Minimum number of samples for the hint about a stripped file.
const SAMPLES_MIN: u64 = 20;

fn is_worth(count: u64, of: u64) -> bool {
    count * 100 > of * WORTH_PERCENT
}

/// The hints, at most a few lines, for a recording of this source with these options.
pub(super) fn of(recording: &Recording, names: &Names, request: &RecordOptions) -> Vec<String> {
    let sampling = &request.recording.sampling;
    let mut hints = Vec::new();
    let stats = &recording.stats;
    let seen = StackCounts::of(recording, names);
    hints.extend(incomplete_stacks_hint(recording, names, sampling.unwind, &seen));
    hints.extend(truncated_hint(recording, request));
    hints.extend(depth_hint(recording, sampling.max_depth));
    hints.extend(unnamed_hint(&seen, stats.samples));
    hints.extend(stripped_hint(recording, &seen));
    hints.extend(unseen_python(&seen, python_minor(recording), stats.samples));
    // Samples pushed by the kernel are late at any rate if a hypervisor takes the CPU away.
    if stats.samples_pushed == 0 && stats.ticks_late * 20 > stats.ticks {
        hints.push(if stats.ticks_late_wakeup.is_some_and(|wakeup| wakeup * 2 > stats.ticks_late) {
            "more than 5% of the ticks were missed, most of them by late wakeups: other programs keep the CPUs busy, or \
             stackprof runs in the background (taskpolicy -b, a background job of launchd)"
                .to_owned()
        } else {
            format!("more than 5% of the ticks were missed: use a lower --hz than {}", recording.hz)
        });
    }
    if recording.images.spaces_full() {
        hints.push("images were replaced too often to be told apart: some late code has no names".to_owned());
    }
    let in_kernel = stats.samples_lost.get(IN_KERNEL).copied().unwrap_or(0);
    if is_worth(in_kernel, stats.samples + in_kernel) {
        hints.push(format!(
            "{} of the CPU time was used in the kernel and is not in the recording: sudo, or --source ptrace, which \
             counts it for the functions that call the kernel",
            percent(in_kernel, stats.samples + in_kernel)
        ));
    }
    let throttled = stats.samples_lost.get(THROTTLED).copied().unwrap_or(0);
    if throttled * 100 > stats.samples + throttled {
        hints.push(format!(
            "the kernel throttled sampling for {} of the CPU time: raise kernel.perf_event_max_sample_rate, or use a lower \
             --hz than {}",
            percent(throttled, stats.samples + throttled),
            recording.hz
        ));
    }
    hints.extend(hidden_names(&seen, stats.samples));
    let problems = names.unnamed_by_image.iter().filter_map(|unnamed| {
        let image = recording.images.images().get(unnamed.image as usize)?;
        let problem = match &unnamed.why {
            // Includes files that were rewritten in place after they were loaded.
            Why::NoFile(why) => why.clone(),
            _ => image.problem()?.to_string(),
        };
        Some(format!("functions of {} have no names: {problem}", image.path))
    });
    hints.extend(problems.take(3));
    hints
}

/// What makes a recording nearly worthless, if it is: no stack is complete, or nothing has a name.
pub(super) fn problem(recording: &Recording, names: &Names) -> Option<String> {
    let stats = &recording.stats;
    let most = |(_, count): &(&&str, &u64)| **count;
    let incomplete = stats.stacks_incomplete.iter().filter(|(_, count)| **count > 0).max_by_key(most);
    let stacks = incomplete.filter(|_| stats.stacks_complete == 0);
    let stacks = stacks.map(|(why, _)| format!("no stack is complete ({why})"));
    let nameless = names.addresses_unique > 0 && names.addresses_named == 0;
    let unnamed = names.unnamed_by_image.iter().max_by_key(|unnamed| unnamed.addresses);
    let unnamed = nameless.then(|| match unnamed {
        Some(unnamed) => format!("no function has a name ({})", unnamed.why),
        None => "no function has a name (no address is in a mapped file)".to_owned(),
    });
    let parts: Vec<String> = stacks.into_iter().chain(unnamed).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The hint about kernel functions with hidden names. If any kernel name is visible, none is hidden: code loaded
/// later has no name for any user.
fn hidden_names(seen: &StackCounts, samples: u64) -> Option<String> {
    (!seen.kernel_named && is_worth(seen.kernel_unnamed, samples)).then(|| {
        "functions of the kernel have no names: the kernel shows their addresses with CAP_SYSLOG; sudo, or in a container --cap-add SYSLOG"
            .to_owned()
    })
}

/// The frame that makes a stack incomplete: its outermost, or one on the way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// Code of this JIT: `[java jit]`.
    Made(Arc<str>),
    /// An image, and whether it has unwind information for that code.
    Image(u32, bool),
}

/// Counts of the stacks that hints are about.
#[derive(Debug, Default)]
struct StackCounts {
    /// Incomplete stacks by cause.
    incomplete: BTreeMap<Cause, u64>,
    /// Stacks that end in JIT code without a name, by JIT.
    jit_unnamed: BTreeMap<Arc<str>, u64>,
    /// Stacks that end in functions without names, by image.
    files_unnamed: BTreeMap<u32, u64>,
    /// Outermost frames of incomplete stacks.
    outermost: BTreeSet<FrameId>,
    /// Stacks with unnamed kernel frames.
    kernel_unnamed: u64,
    /// Whether any kernel frame has a name.
    kernel_named: bool,
    /// Stacks through the Python interpreter without a frame of a Python function.
    python: u64,
}

/// CPython's interpreter, which runs Python functions (Python/ceval.c).
const PYTHON_EVALUATES: &str = "_PyEval_EvalFrameDefault";
/// Prefix of the names that CPython gives its functions for profilers (Python/perf_trampoline.c).
const PYTHON_FUNCTION: &str = "py::";

impl StackCounts {
    fn of(recording: &Recording, names: &Names) -> StackCounts {
        let mut seen = StackCounts::default();
        let mut makers = JitRuntimes::new(&recording.images);
        let frames = recording.trie.frames();
        let makers: Vec<Option<Arc<str>>> = frames
            .map(|frame| match frame {
                Frame::Code { space, address } => makers.name(space, address.at()),
                Frame::Root(_) => None,
            })
            .collect();
        let maker = |frame: FrameId| makers.get(frame.0 as usize).and_then(Option::as_ref);
        let begin = |with: &str| -> Vec<bool> {
            let frames = (0..makers.len()).map(|index| names.get(FrameId(index as u32)));
            frames.map(|names| names.iter().any(|name| name.starts_with(with))).collect()
        };
        let frames = recording.trie.frames().enumerate();
        let kernel: Vec<Option<bool>> = frames
            .map(|(index, frame)| {
                let of_kernel = matches!(frame, Frame::Code { address, .. } if address.at().is_kernel());
                let named = |name: &Arc<str>| **name != *kernel::UNNAMED;
                of_kernel.then(|| names.get(FrameId(index as u32)).iter().any(named))
            })
            .collect();
        seen.kernel_named = kernel.contains(&Some(true));
        let (evaluate, of_python) = (begin(PYTHON_EVALUATES), begin(PYTHON_FUNCTION));
        recording.trie.for_each_stack(|path, count| {
            let Some((root, code)) = path.split_first() else { return };
            let (Some(outermost), Some(leaf)) = (code.first(), code.last()) else { return };
            if let Some(maker) = maker(*leaf)
                && names.get(*leaf).iter().all(|name| name == maker)
            {
                *seen.jit_unnamed.entry(Arc::clone(maker)).or_default() += count;
            }
            if names.get(*leaf).iter().all(|name| name.starts_with('['))
                && let Some(image) = file_image(recording, *leaf)
            {
                *seen.files_unnamed.entry(image).or_default() += count;
            }
            let has = |those: &[bool]| code.iter().any(|frame| those.get(frame.0 as usize) == Some(&true));
            if code.iter().any(|frame| kernel.get(frame.0 as usize) == Some(&Some(false))) {
                seen.kernel_unnamed += count;
            }
            if has(&evaluate) && !has(&of_python) {
                seen.python += count;
            }
            let Some(Frame::Root(root)) = recording.trie.frame(*root) else { return };
            if root.complete {
                return;
            }
            seen.outermost.insert(*outermost);
            let cause = match code.iter().find_map(|frame| maker(*frame)) {
                Some(maker) => Some(Cause::Made(Arc::clone(maker))),
                None => ends_in(recording, *outermost),
            };
            if let Some(cause) = cause {
                *seen.incomplete.entry(cause).or_default() += count;
            }
        });
        seen
    }
}

/// The image of a frame with code from a file.
fn file_image(recording: &Recording, frame: FrameId) -> Option<u32> {
    let Some(Frame::Code { space, address }) = recording.trie.frame(frame) else { return None };
    let at = recording.images.locate(space, address.at())?;
    (at.image.kind == MappingKind::File).then_some(at.index)
}

fn ends_in(recording: &Recording, frame: FrameId) -> Option<Cause> {
    let Some(Frame::Code { space, address }) = recording.trie.frame(frame) else { return None };
    let at = recording.images.locate(space, address.at())?;
    if at.image.kind == MappingKind::GdbJit {
        return None;
    }
    Some(Cause::Image(at.index, at.image.described_function(at.svma).is_some()))
}

/// The hint about stacks that end early, if many do.
fn incomplete_stacks_hint(
    recording: &Recording,
    names: &Names,
    method: UnwindMethod,
    seen: &StackCounts,
) -> Option<String> {
    let stats = &recording.stats;
    // Other stacks are incomplete because of what the program does, not how it was built.
    let early: u64 = [
        StackEnd::BrokenFrameChain,
        StackEnd::NoUnwindInfo,
        StackEnd::UnverifiedFrameRecord,
        StackEnd::StackScan,
        StackEnd::TooMuchJitCode,
    ]
    .iter()
    .filter_map(|ended| stats.stacks_incomplete.get(ended.reason()))
    .sum();
    if !is_worth(early, stats.samples) {
        return None;
    }
    let (cause, count) = seen.incomplete.iter().max_by_key(|(_, count)| **count)?;
    let incomplete: u64 = stats.stacks_incomplete.values().sum();
    if !is_worth(*count, incomplete) {
        return None;
    }
    let part = percent(*count, incomplete.max(*count));
    let (place, advice) = match cause {
        Cause::Made(maker) => {
            let advice = advice(maker).find_map(|advice| advice.stacks);
            let place = format!("go through {maker}, which is JIT code");
            (
                place,
                advice.unwrap_or("it has no unwind information, and no option for it is known").to_owned(),
            )
        }
        Cause::Image(index, described) => {
            let image = recording.images.images().get(*index as usize)?;
            let described = *described;
            (
                format!("end in {}", image.shown_name()),
                in_image(recording, names, method, seen, image, described),
            )
        }
    };
    Some(format!("{part} of the incomplete stacks {place}: {advice}"))
}

/// The hint about stacks deeper than the copied bytes, if there are many.
fn truncated_hint(recording: &Recording, request: &RecordOptions) -> Option<String> {
    let stats = &recording.stats;
    let ran_out = stats.stacks_incomplete.get(StackEnd::DeeperThanCopied.reason()).copied().unwrap_or(0);
    if !is_worth(ran_out, stats.samples) {
        return None;
    }
    let part = percent(ran_out, stats.samples);
    // ptrace follows processes, not selections of them.
    let is_selection = matches!(&request.source, Source::Several(several) if several.pids.is_empty());
    let advice = match recording.process.backend {
        "ptrace" if request.max_stop_percent() < 100.0 => {
            Some("--max-stop 100 lets a stop last until a deep stack is read")
        }
        "perf_event" if !recording.process.backend_why.contains("on each CPU") => {
            Some("as root, stackprof reads deep stacks in the kernel; --source ptrace reads them at stops")
        }
        "perf_event" if !is_selection => Some("--source ptrace --max-stop 100 reads deep stacks at stops"),
        _ => None,
    };
    let advice = advice.map_or_else(String::new, |advice| format!(": {advice}"));
    Some(format!("{part} of the stacks are deeper than what was copied of them{advice}"))
}

/// The hint about stacks with more frames than are kept, if there are many.
fn depth_hint(recording: &Recording, max_depth: usize) -> Option<String> {
    let stats = &recording.stats;
    let deep = stats.stacks_incomplete.get(StackEnd::DepthLimit.reason()).copied().unwrap_or(0);
    (is_worth(deep, stats.samples) && max_depth < DEPTH_MAX).then(|| {
        format!(
            "{} of the stacks have more than {} frames: --max-depth keeps up to {DEPTH_MAX}",
            percent(deep, stats.samples),
            max_depth
        )
    })
}

/// Advice for stacks that end in an image; `described`: they end in functions with unwind information.
fn in_image(
    recording: &Recording,
    names: &Names,
    method: UnwindMethod,
    seen: &StackCounts,
    image: &Image,
    described: bool,
) -> String {
    let any_name = |is: &dyn Fn(&str) -> bool| {
        seen.outermost.iter().any(|frame| names.get(*frame).iter().any(|name| is(name)))
    };
    let is_musl = |image: &Image| image.name.starts_with("ld-musl-") || image.name.starts_with("libc.musl-");
    let has_musl = recording.images.images().iter().any(is_musl)
        || any_name(&|name| matches!(name, "libc_start_main_stage2" | "static_init_tls"));
    let is_fiber = |name: &str| name.contains("_fcontext") || name.contains("boost::context");
    if image.name.starts_with("libboost_context") || any_name(&is_fiber) {
        "they are of fibers, which begin where they were made; there is nothing to rebuild".to_owned()
    } else if is_go(image) {
        "Go's assembly and its changes of stacks lead no further; there is nothing to rebuild".to_owned()
    } else if has_musl && !described {
        "musl is built without unwind information; link one that was configured with --enable-debug"
            .to_owned()
    } else if method == UnwindMethod::FramePointer {
        "it or what it calls is built without frame pointers; leave --unwind fp out, or rebuild with \
         -fno-omit-frame-pointer (Rust: -C force-frame-pointers=yes)"
            .to_owned()
    } else if described {
        "its unwind information leads no further there".to_owned()
    } else {
        "that code has neither unwind information nor frame pointers; rebuild it with \
         -fasynchronous-unwind-tables (Rust: -C force-unwind-tables=yes), unless it is assembly"
            .to_owned()
    }
}

/// Whether a file is a Go program: `cmd/link` writes these sections into each, stripped or not.
fn is_go(image: &Image) -> bool {
    let Ok(bytes) = &image.bytes else { return false };
    let found = sections::all(bytes.bytes()).unwrap_or_default();
    found.iter().any(|section| matches!(&*section.name, ".note.go.buildid" | ".gopclntab" | "__gopclntab"))
}

/// The hint about unnamed code, if there is much.
fn unnamed_hint(seen: &StackCounts, samples: u64) -> Option<String> {
    let (maker, count) = seen.jit_unnamed.iter().max_by_key(|(_, count)| **count)?;
    let advice = advice(maker).find_map(|advice| advice.names)?;
    is_worth(*count, samples).then(|| {
        format!("{} of the samples are in {maker} without names: {advice}", percent(*count, samples))
    })
}

/// The hint about a file without symbols, if much of the time is spent in it.
fn stripped_hint(recording: &Recording, seen: &StackCounts) -> Option<String> {
    let (image, count) = seen.files_unnamed.iter().max_by_key(|(_, count)| **count)?;
    let image = recording.images.images().get(*image as usize)?;
    // A few samples do not justify installing symbols; unreadable files have their own hint.
    let few = recording.stats.samples < SAMPLES_MIN;
    if few || !is_worth(*count, recording.stats.samples) || image.problem().is_some() {
        return None;
    }
    Some(format!(
        "{} of the samples are in functions of {} without names: it is stripped; install its debug symbols (Debian, \
         Ubuntu: PACKAGE-dbgsym), or build it without strip",
        percent(*count, recording.stats.samples),
        image.shown_name()
    ))
}

/// The minor version of CPython 3 in the target, from its file name: 11 for `python3.11` and
/// `libpython3.11.so.1.0`.
fn python_minor(recording: &Recording) -> Option<u32> {
    recording.images.images().iter().find_map(|image| minor_of(&image.name))
}

fn minor_of(file: &str) -> Option<u32> {
    let minor = file.strip_prefix("lib").unwrap_or(file).strip_prefix("python3.")?;
    minor.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The first version with a `-X perf` that names Python functions to profilers.
const PYTHON_MINOR_WITH_PERF: u32 = 12;

/// The hint about invisible Python functions; `minor` is that of version 3.x, if known.
fn unseen_python(seen: &StackCounts, minor: Option<u32>, samples: u64) -> Option<String> {
    let advice = match minor {
        Some(minor) if minor < PYTHON_MINOR_WITH_PERF => {
            format!(
                "Python 3.{minor} has no option that names them; py-spy does, or Python 3.12 with -X perf"
            )
        }
        Some(minor) => format!("start python3.{minor} with -X perf"),
        None => "start python3 (3.12 and later) with -X perf".to_owned(),
    };
    is_worth(seen.python, samples).then(|| {
        format!(
            "{} of the samples run functions of Python, which have no names: {advice}",
            percent(seen.python, samples)
        )
    })
}

/// Advice for code of `[java jit]`, or of `[java or v8 jit]`.
fn advice(maker: &str) -> impl Iterator<Item = &'static Advice> {
    let makers = maker.trim_matches(['[', ']']);
    let makers = makers.strip_suffix(" jit").unwrap_or_default();
    ADVICE.iter().filter(move |advice| makers.split(" or ").any(|maker| maker == advice.runtime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_depends_on_the_runtime() {
        let stacks = |maker| advice(maker).find_map(|advice| advice.stacks);
        assert_eq!(stacks("[java jit]"), Some("start java with -XX:+PreserveFramePointer"));
        assert_eq!(stacks("[luajit or java jit]"), Some("start java with -XX:+PreserveFramePointer"));
        assert_eq!(stacks("[luajit jit]"), None);
        assert_eq!(stacks("[llvm jit]"), Some(LLVM));
        assert_eq!(stacks("[memory]"), None);
    }

    #[test]
    fn python_advice_depends_on_the_version() {
        let seen = |python| StackCounts { python, ..StackCounts::default() };
        assert_eq!(unseen_python(&seen(10), None, 100), None);
        let hint = |minor| unseen_python(&seen(60), minor, 100).unwrap_or_default();
        let begin = "60.0% of the samples run functions of Python, which have no names: ";
        assert_eq!(hint(None), format!("{begin}start python3 (3.12 and later) with -X perf"));
        assert_eq!(hint(Some(13)), format!("{begin}start python3.13 with -X perf"));
        let old = "Python 3.11 has no option that names them; py-spy does, or Python 3.12 with -X perf";
        assert_eq!(hint(Some(11)), format!("{begin}{old}"));
        for (file, minor) in [
            ("python3.11", Some(11)),
            ("libpython3.9.so.1.0", Some(9)),
            ("python3", None),
            ("python3.", None),
            ("libpython3.99999999999.so", None),
        ] {
            assert_eq!(minor_of(file), minor, "{file}");
        }
    }

    #[test]
    fn kernel_names_are_hidden_if_none_is_visible() {
        let seen = |kernel_unnamed, kernel_named| StackCounts {
            kernel_unnamed,
            kernel_named,
            ..StackCounts::default()
        };
        assert!(hidden_names(&seen(60, false), 100).is_some_and(|hint| hint.contains("--cap-add SYSLOG")));
        assert_eq!(hidden_names(&seen(60, true), 100), None, "one function without a name");
        assert_eq!(hidden_names(&seen(10, false), 100), None, "too few to matter");
    }

    #[test]
    fn missing_names_are_reported_only_if_frequent() {
        let seen = |count| StackCounts {
            jit_unnamed: BTreeMap::from([(Arc::from("[php jit]"), count)]),
            ..StackCounts::default()
        };
        assert_eq!(unnamed_hint(&seen(10), 100), None);
        assert_eq!(
            unnamed_hint(&seen(60), 100).as_deref(),
            Some(
                "60.0% of the samples are in [php jit] without names: start php with -d opcache.jit_debug=16"
            )
        );
    }
}
