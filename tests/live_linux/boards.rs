//! Boards of QEMU with aarch64 and 32-bit Arm cores, with firmware (`tests/fixtures/board`, `boards`) that
//! has four functions below a recursion, and interrupts in all of them: no stack that is called complete is
//! wrong. In a scheduler with FreeRTOS's lists, tasks are threads. `scripts/measure` measures shares.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::gdb_stub::{OFTEN, Stub, free_port, is_listening, record};
use crate::support::{
    Recorded, Stack, built_once, installed, live, record_until, rounds, stackprof, wait_for,
};

const LEAVES: [&str; 4] = ["leaf_40", "leaf_30", "leaf_20", "leaf_10"];

/// Compiles firmware; `None`, after a message, without its compiler.
pub(crate) fn firmware(board: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let needed: &[&str] = if compiler == "gcc" { &["arm-none-eabi-gcc"] } else { &["clang-19", "ld.lld-19"] };
    for name in needed {
        installed(&[name])?;
    }
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/boards/build.sh");
    let elf = built_once(&format!("{board}-{compiler}{}.elf", flags.concat()), |elf| {
        let output = Command::new(build).arg(elf).args([board, compiler]).args(flags).output().unwrap();
        assert!(output.status.success(), "{board}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    });
    Some(elf.unwrap())
}

/// A board that runs the firmware.
fn board(machine: &str, firmware: &Path) -> Option<Stub> {
    // Virtual time counts instructions: with the host's clock, a stop and a timer that are noticed late
    // coincide, and too many stops are at the first instruction of an interrupt.
    silent_board(machine, firmware, &["-icount", "shift=2"])
}

/// A board without audio.
pub(crate) fn silent_board(machine: &str, firmware: &Path, options: &[&str]) -> Option<Stub> {
    let emulator = installed(&["qemu-system-arm"])?;
    // Boards with audio use the host's; the option to disable it has changed.
    let version = Command::new(&emulator).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8_lossy(&version);
    let mut parts =
        version.split("version ").nth(1).unwrap().split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next(), parts.next());
    let silent =
        if version < (Some(8), Some(2)) { ["-audiodev", "none,id=none"] } else { ["-audio", "none"] };
    board_of("qemu-system-arm", &[&["-M", machine][..], options, &silent].concat(), firmware)
}

/// A board of this emulator with firmware.
fn board_of(emulator: &str, options: &[&str], firmware: &Path) -> Option<Stub> {
    let mut command = Command::new(installed(&[emulator])?);
    let port = free_port();
    command.args(options).args(["-nic", "none", "-display", "none", "-monitor", "none", "-serial", "none"]);
    command.args(["-gdb", &format!("tcp:127.0.0.1:{port}"), "-kernel"]).arg(firmware);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    wait_for("QEMU to listen", || is_listening(port));
    Some(Stub { child, place: format!("127.0.0.1:{port}") })
}

/// The functions of a stack without the program's name, functions inlined everywhere, and compilers'
/// suffixes; `None` for an incomplete stack.
fn complete(stack: &Stack) -> Option<Vec<&str>> {
    if stack.has("[incomplete]") {
        return None;
    }
    let plain = |name: &'_ String| name.split('.').next().map(str::len).unwrap_or_default();
    let names = stack.frames[1..].iter().map(|name| &name[..plain(name)]);
    // Tasks are on stacks created by the program.
    Some(names.filter(|name| !matches!(*name, "burn" | "[fiber]")).collect())
}

/// Whether functions call each other in this way in `load.c`; outermost first.
fn is_of_the_load(names: &[&str]) -> bool {
    const INTERRUPTS: [&[&str]; 2] =
        [&["[exception 15]", "SysTick_Handler", "tick", "in_tick"], &["irq_entry", "irq", "tick", "in_tick"]];
    let begins = |name: &&str| name.starts_with("[exception") || *name == "irq_entry";
    let interrupt = names.iter().position(begins).unwrap_or(names.len());
    let (names, above) = names.split_at(interrupt);
    let interrupted =
        above.is_empty() || INTERRUPTS.iter().any(|all| above.len() <= all.len() && all.starts_with(above));
    let calls = |caller: &str, called: &str| match caller {
        "Reset_Handler" | "_start" => called == "main",
        "main" => matches!(called, "recurse" | "start_timer"),
        "recurse" => matches!(called, "recurse" | "roomy" | "spread"),
        "roomy" => called == "recurse",
        "spread" => LEAVES.contains(&called),
        _ => false,
    };
    let begins = names.first().is_some_and(|name| matches!(*name, "Reset_Handler" | "_start"));
    // From `spread` outwards the depth is known: 0, 1, 2, 3, and from 4 on every fourth has a frame of its
    // own below it.
    let depths = names.iter().position(|name| *name == "spread").is_none_or(|at| {
        let mut outwards = names[..at].iter().rev();
        let mut depth = 0;
        loop {
            match outwards.next() {
                Some(&"recurse") if depth > 0 && depth % 4 == 0 => return false,
                Some(&"recurse") => depth += 1,
                Some(&"roomy") if depth > 0 && depth % 4 == 0 => match outwards.next() {
                    Some(&"recurse") => depth += 1,
                    _ => return false,
                },
                last => return last == Some(&"main"),
            }
        }
    });
    interrupted && begins && depths && names.windows(2).all(|pair| calls(pair[0], pair[1]))
}

/// Records a board until all of its work was seen.
fn check_board(machine: &str, board_name: &str, compiler: &str, flags: &[&str]) {
    let Some(elf) = firmware(board_name, compiler, flags) else { return };
    let Some(stub) = board(machine, &elf) else { return };
    let options = [&["--exec", elf.to_str().unwrap(), "--duration", "0.4"], OFTEN].concat();
    let recorded = || {
        let recorded = record(&stub.place, &options);
        recorded.check(recorded.is_empty() || recorded.stats["arch"] == "arm", "another processor");
        if !recorded.is_empty() {
            let is_right = |stack: &Stack| complete(stack).is_none_or(|names| is_of_the_load(&names));
            check_stacks(&recorded, machine, false, is_right);
        }
        recorded
    };
    record_until(format!("all of the firmware of {machine}"), recorded, |recorded| {
        LEAVES.iter().all(|name| recorded.shows(|stack| stack.has(name) && stack.is_complete()))
    });
    // It keeps running: a second connection shows that. A stop may be at the beginning of an interrupt, with
    // first instructions that have no way back.
    wait_for("a moment that shows main", || dump(&stub, &elf).contains(" main"));
}

fn dump(stub: &Stub, elf: &Path) -> String {
    let dumped =
        stackprof().args(["dump", "stacks", "--gdb", &stub.place, "--exec"]).arg(elf).output().unwrap();
    assert!(dumped.status.success(), "{dumped:?}");
    String::from_utf8(dumped.stdout).unwrap()
}

/// Code of an A-profile core before an interrupt's handler has a stack: the vector, and the first
/// instructions of the handler. Interrupt mode has a separate stack pointer, and no unwind row can refer to
/// the other one. How often a stop hits this depends on the emulator.
const INTERRUPT_ENTRY: [&str; 2] = ["vectors", "irq_entry"];

/// Where the scheduler switches stacks: the stack pointer is one task's, and the kernel's variables name
/// another.
const TASK_SWITCH: [&str; 2] = ["SVC_Handler", "PendSV_Handler"];

/// Checks that no complete stack is wrong, and each incomplete one has a cause: it is at the beginning of an
/// interrupt or at a task switch, or it continues on the stack of a task, which QEMU reports from version 8
/// on.
#[track_caller]
fn check_stacks(recorded: &Recorded, machine: &str, has_tasks: bool, is_right: impl Fn(&Stack) -> bool) {
    let wrong = recorded.stacks.iter().filter(|stack| !is_right(stack));
    let wrong: Vec<String> = wrong.map(|stack| stack.frames.join(";")).collect();
    recorded.check(wrong.is_empty(), format!("complete, but wrong:\n{}", wrong.join("\n")));
    let of_reason = |reason: &str| recorded.stats["stacks_incomplete"][reason].as_f64().unwrap_or(0.0);
    let elsewhere = of_reason("continues on another stack");
    recorded.check(has_tasks || elsewhere == 0.0, "a stack continues on another one, and there is none");
    let is_explained = |stack: &Stack| {
        let mut code =
            stack.frames.iter().map(String::as_str).skip_while(|name| *name != "[incomplete]").skip(1);
        match (code.next(), code.last()) {
            (Some(leaf), None) if INTERRUPT_ENTRY.contains(&leaf) => true,
            (Some(outermost), leaf) => has_tasks && TASK_SWITCH.contains(&leaf.unwrap_or(outermost)),
            (None, _) => false,
        }
    };
    let torn = || recorded.stacks.iter().filter(|stack| stack.has("[incomplete]") && !is_explained(stack));
    let unexplained: u64 = torn().map(|stack| stack.count).sum();
    println!(
        "{machine}: of {} samples {} are complete, {elsewhere} continue elsewhere, {unexplained} incomplete ones are not \
         where an interrupt begins or tasks are switched",
        recorded.figure("samples"),
        recorded.figure("stacks_complete"),
    );
    let torn: Vec<String> =
        torn().map(|stack| format!("{} of {}", stack.count, stack.frames.join(";"))).collect();
    recorded.check(unexplained as f64 <= elsewhere, format!("incomplete:\n{}", torn.join("\n")));
}

#[test]
fn complete_stacks_of_boards_are_correct() {
    if !live() {
        return;
    }
    check_board("lm3s6965evb", "m3", "gcc", &["-O2"]);
    check_board("mps2-an386", "m4f", "clang", &["-Os"]);
    check_board("vexpress-a9", "a9", "gcc", &["-O2"]);
    check_board("vexpress-a9", "a9t", "clang", &["-O2"]);
    check_aarch64();
}

/// The firmware of `tests/fixtures/board`; `None`, after a message, without its compiler.
fn firmware_of_aarch64(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let (clang, lld) = (installed(&["clang-19"])?, installed(&["ld.lld-19"])?);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/board");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let elf = built_once(name, |elf| {
        let objects = ["start.S", "main.c"].map(|source| {
            let object = elf.with_extension(format!("{source}.o"));
            let mut command = Command::new(&clang);
            command.args([
                "--target=aarch64-none-elf",
                "-O1",
                "-ffreestanding",
                "-fasynchronous-unwind-tables",
            ]);
            command.args(["-fno-optimize-sibling-calls", "-c"]).args(flags).arg(sources.join(source));
            run(command.arg("-o").arg(&object));
            object
        });
        run(Command::new(lld).arg("-T").arg(sources.join("link.ld")).args(objects).arg("-o").arg(elf));
        Ok(())
    });
    Some(elf.unwrap())
}

/// A board without an operating system, an idle one, and a program other than the one it runs.
fn check_aarch64() {
    const FUNCTIONS: [&str; 4] = ["leaf_50", "leaf_30", "leaf_15", "leaf_5"];
    let Some(busy) = firmware_of_aarch64("board", &[]) else { return };
    let Some(stub) = board_of("qemu-system-aarch64", &["-M", "virt", "-cpu", "cortex-a57"], &busy) else {
        return;
    };
    let options = [&["--exec", busy.to_str().unwrap(), "--duration", "0.4"][..], OFTEN].concat();
    let recorded = || {
        let recorded = record(&stub.place, &options);
        recorded.check_none("complete, but wrong", |stack| {
            FUNCTIONS.contains(&stack.leaf())
                && stack.is_complete()
                && !(stack.has("main") && stack.times("recurse") == 20)
        });
        recorded
    };
    let recorded = record_until("all of the firmware", recorded, |recorded| {
        FUNCTIONS.iter().all(|name| recorded.shows(|stack| stack.leaf() == *name && stack.is_complete()))
    });
    recorded.check(recorded.stats["arch"] == "aarch64", "another processor");
    assert!(dump(&stub, &busy).contains("main"), "it does not run on");

    let Some(idle) = firmware_of_aarch64("board_idle", &["-DIDLE"]) else { return };
    let Some(stub) = board_of("qemu-system-aarch64", &["-M", "virt", "-cpu", "cortex-a57"], &idle) else {
        return;
    };
    let exec = ["--exec", idle.to_str().unwrap(), "--duration", "0.3"];
    let recorded = record(&stub.place, &exec);
    recorded.check(recorded.is_empty(), "nothing should have been sampled");
    let recorded = record_until(
        "where it waits",
        || record(&stub.place, &[&exec[..], &["--idle"]].concat()),
        |recorded| recorded.total() > 0,
    );
    recorded.check_none("it stands elsewhere", |stack| stack.leaf() != "_start");
    let refused = record(&stub.place, &["--exec", busy.to_str().unwrap()]);
    let said = refused.stderr.contains("what it runs is not board");
    refused.check(refused.status.code() == Some(1) && said, "not refused");
}

/// The letter that all functions of a task begin with in `rtos-tasks.c`, by the task's name.
const TASKS: [(&str, &str); 5] =
    [("IDLE", "idle"), ("worker a", "a"), ("worker b", "b"), ("sleeper", "c"), ("suspended", "d")];

/// Interrupts above tasks are on a separate stack, which older emulators do not report.
const SHORT_TICKS: &str = "-DTICK_ROUNDS=50";

/// Whether the outermost functions of a stack are those of the task with this name, and all others are called
/// by tasks or are interrupts.
fn is_of_the_task(task: &str, names: &[&str]) -> bool {
    let Some((_, letter)) = TASKS.iter().find(|(name, _)| *name == task) else { return false };
    let own = format!("{letter}_");
    let begins = names.first().is_some_and(|first| *first == format!("{own}task"));
    let mut above = names.iter().skip_while(|name| name.starts_with(&own));
    let kernel = [
        "vTaskDelay",
        "vTaskSuspend",
        "uxListRemove",
        "vListInsert",
        "put_before",
        "vListInsertEnd",
        "lock",
        "unlock",
    ];
    let mut interrupted = false;
    begins
        && above.all(|name| {
            interrupted |= name.starts_with("[exception");
            interrupted || kernel.contains(name)
        })
}

/// The stacks of `dump stacks` by thread name, outermost function first, and whether they are called
/// complete.
fn dumped_stacks(text: &str) -> BTreeMap<String, (Vec<String>, bool)> {
    let mut threads: BTreeMap<String, (Vec<String>, bool)> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("thread ") {
            let name = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')')).unwrap().0;
            threads.insert(
                name.to_owned(),
                (Vec::new(), !rest.contains("incomplete") && !rest.contains("no stack")),
            );
            current = Some(name.to_owned());
        } else if let (Some(name), true) = (&current, line.trim_start().starts_with('#')) {
            let function = line.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
            if function != "burn" {
                threads.get_mut(name).unwrap().0.insert(0, function);
            }
        }
    }
    threads
}

/// Tasks of our scheduler as threads: names and stacks, in a recording and in one stop.
fn check_tasks(machine: &str, board_name: &str, compiler: &str, flags: &[&str]) {
    let Some(elf) = firmware(board_name, compiler, flags) else { return };
    let Some(stub) = board(machine, &elf) else { return };
    let options = [&["--exec", elf.to_str().unwrap(), "--duration", "0.4", "--threads"], OFTEN].concat();
    let task_of = |stack: &Stack| stack.frames[1].rsplit_once(" (").map(|(name, _)| name.to_owned());
    let recorded = || {
        let recorded = record(&stub.place, &options);
        if !recorded.is_empty() {
            let is_right = |stack: &Stack| {
                let names = complete(stack);
                names.is_none_or(|names| is_of_the_task(&task_of(stack).unwrap_or_default(), &names[1..]))
            };
            check_stacks(&recorded, machine, true, is_right);
        }
        recorded
    };
    record_until(format!("both workers of {machine}"), recorded, |recorded| {
        ["worker a", "worker b"].iter().all(|task| {
            recorded.shows(|stack| task_of(stack).as_deref() == Some(task) && complete(stack).is_some())
        })
    });
    for _ in 0..rounds(4) {
        let text = dump(&stub, &elf);
        let stacks = dumped_stacks(&text);
        let names: Vec<&str> = stacks.keys().map(String::as_str).collect();
        assert_eq!(names, ["IDLE", "sleeper", "suspended", "worker a", "worker b"], "{text}");
        for (task, (frames, is_complete)) in &stacks {
            let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
            assert!(!is_complete || is_of_the_task(task, &frames), "{task}: complete, but wrong\n{text}");
        }
        // A permanently suspended one never changes.
        let (frames, is_complete) = &stacks["suspended"];
        assert!(*is_complete && frames[..2] == ["d_task", "d_suspend"], "{text}");
        assert!(text.contains("(IDLE)") && frames.iter().any(|name| name == "vTaskSuspend"), "{text}");
    }
}

#[test]
fn tasks_of_boards_are_threads() {
    if !live() {
        return;
    }
    check_tasks("mps2-an385", "rtos-m3", "gcc", &["-O2", SHORT_TICKS]);
    check_tasks("mps2-an386", "rtos-m4f", "clang", &["-O2", SHORT_TICKS]);
}
