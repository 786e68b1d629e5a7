//! Boards of QEMU with 32-bit Arm cores, whose firmware (`tests/fixtures/boards`) has a known share of the
//! time in each of four functions, and interrupts in all of them: the shares are right, stacks are whole, and
//! none that is said to be complete is wrong. A scheduler with FreeRTOS's lists: its tasks are threads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::gdb_stub::{OFTEN, Stub, free_port, is_listening, program, record};
use crate::support::{Recorded, Stack, live, made, points, record_enough, rounds, stackprof, wait_for};

const SHARES: [(&str, f64); 4] = [("leaf_40", 40.0), ("leaf_30", 30.0), ("leaf_20", 20.0), ("leaf_10", 10.0)];
/// Points that a share may be off at most; fewer samples may allow more.
const OFF_POINTS: f64 = 3.0;

/// Compiles firmware; `None`, after a line that says so, without its compiler.
fn firmware(board: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let needed: &[&str] = if compiler == "gcc" { &["arm-none-eabi-gcc"] } else { &["clang-19", "ld.lld-19"] };
    for name in needed {
        program(&[name])?;
    }
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/boards/build.sh");
    let elf = made(&format!("{board}-{compiler}{}.elf", flags.concat()), |elf| {
        let output = Command::new(build).arg(elf).args([board, compiler]).args(flags).output().unwrap();
        assert!(output.status.success(), "{board}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    });
    Some(elf.unwrap())
}

/// A board that runs it.
fn board(machine: &str, firmware: &Path) -> Option<Stub> {
    let emulator = program(&["qemu-system-arm"])?;
    // Boards that have audio look for that of the host; how to say that there is none changed.
    let version = Command::new(&emulator).arg("--version").output().unwrap().stdout;
    let version = String::from_utf8_lossy(&version);
    let mut parts =
        version.split("version ").nth(1).unwrap().split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next(), parts.next());
    let silent =
        if version < (Some(8), Some(2)) { ["-audiodev", "none,id=none"] } else { ["-audio", "none"] };
    let mut command = Command::new(emulator);
    let port = free_port();
    // Time counts instructions: by the clock of the host, a stop and a timer that are seen late at the same time come
    // together, and too many stops are at the first instruction of an interrupt.
    command.args(["-M", machine, "-icount", "shift=2", "-nic", "none"]).args(silent);
    command.args(["-display", "none", "-monitor", "none", "-serial", "none"]);
    command.args(["-gdb", &format!("tcp:127.0.0.1:{port}"), "-kernel"]).arg(firmware);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    wait_for("QEMU to listen", || is_listening(port));
    Some(Stub { child, place: format!("127.0.0.1:{port}") })
}

/// The functions of a stack without the program's name, what is inlined everywhere, and what compilers add
/// to names; `None` for a stack that is said to lack some.
fn complete(stack: &Stack) -> Option<Vec<&str>> {
    if stack.has("[incomplete]") {
        return None;
    }
    let plain = |name: &'_ String| name.split('.').next().map(str::len).unwrap_or_default();
    let names = stack.frames[1..].iter().map(|name| &name[..plain(name)]);
    // Tasks are on stacks that the program made for them.
    Some(names.filter(|name| !matches!(*name, "burn" | "[fiber]")).collect())
}

/// Whether functions call each other like that in `load.c`; the outermost first.
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
        "spread" => SHARES.iter().any(|(name, _)| *name == called),
        _ => false,
    };
    let begins = names.first().is_some_and(|name| matches!(*name, "Reset_Handler" | "_start"));
    // From `spread` outwards the depth is known: 0, 1, 2, 3, and from 4 on every fourth is behind a
    // frame of its own.
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

/// Points that a share may be off. A stack that comes late, since the machine has other things to do,
/// stands for several: those that came in time are what the share is made of.
fn allowed(recorded: &Recorded, expected: f64) -> f64 {
    let (ticks, late) = (recorded.figure("ticks"), recorded.figure("ticks_late"));
    let in_time = recorded.stacks_taken() as f64 * ticks / (ticks + late).max(1.0);
    points(expected, in_time as u64).max(OFF_POINTS)
}

/// Records a board, and compares with what its firmware does.
fn shares_of(machine: &str, board_name: &str, compiler: &str, flags: &[&str]) {
    let Some(_one) = live() else { return };
    let Some(elf) = firmware(board_name, compiler, flags) else { return };
    let Some(stub) = board(machine, &elf) else { return };
    let options = [&["--exec", elf.to_str().unwrap(), "--duration", "5"], OFTEN].concat();
    let Some(recorded) = record_enough(|| Some(record(&stub.place, &options))) else { return };
    recorded.check_success();
    recorded.check(recorded.stats["arch"] == "arm", "another processor");
    recorded.check_stacks_taken();
    // Of the load: how long interrupts take is the emulator's affair.
    let of = |name: &str| recorded.count(|stack| stack.has(name)) as f64;
    let total: f64 = SHARES.iter().map(|(name, _)| of(name)).sum();
    for (name, expected) in SHARES {
        let share = 100.0 * of(name) / total;
        println!("{machine} {name} {share:.2} % of {} stacks", recorded.stacks_taken());
        let off = (share - expected).abs();
        recorded.check(off <= allowed(&recorded, expected), format!("{name} has {share:.2} %"));
    }
    check_stacks(&recorded, machine, false, |stack| {
        complete(stack).is_none_or(|names| is_of_the_load(&names))
    });
    // It runs on: a second visitor finds it so.
    // One moment may be where an interrupt begins, whose first instructions know no way back.
    let has_main = || {
        let dumped =
            stackprof().args(["dump", "stacks", "--gdb", &stub.place, "--exec"]).arg(&elf).output().unwrap();
        assert!(dumped.status.success(), "{dumped:?}");
        String::from_utf8_lossy(&dumped.stdout).contains(" main")
    };
    assert!((0..10).any(|_| has_main()), "none of ten moments shows main");
}

/// What an A-profile core runs before an interrupt's handler has a stack: the vector that it enters by, and the first
/// instructions of the handler. The mode of interrupts has a stack pointer of its own, and no row can name the other
/// one. How often a stop finds the core there is the emulator's affair.
const INTERRUPT_ENTRY: [&str; 2] = ["vectors", "irq_entry"];

/// Where the scheduler exchanges stacks: the stack pointer is that of one task, and the kernel's variables name another.
const TASK_SWITCH: [&str; 2] = ["SVC_Handler", "PendSV_Handler"];

/// No complete stack is wrong, and each incomplete one has a cause: it is where an interrupt begins or a task is
/// switched, or it continues on the stack of a task, which QEMU tells from version 8 on.
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
    recorded.check(recorded.figure("stacks_complete") > 0.0, "no stack is complete");
    let torn: Vec<String> =
        torn().map(|stack| format!("{} of {}", stack.count, stack.frames.join(";"))).collect();
    recorded.check(unexplained as f64 <= elsewhere, format!("incomplete:\n{}", torn.join("\n")));
}

#[test]
fn a_cortex_m3_with_interrupts_has_the_shares_of_its_firmware() {
    shares_of("lm3s6965evb", "m3", "gcc", &["-O2"]);
}

#[test]
fn a_cortex_m4_with_floating_point_has_the_shares_of_its_firmware() {
    shares_of("mps2-an386", "m4f", "clang", &["-Os"]);
}

#[test]
fn a_cortex_a9_in_a32_has_the_shares_of_its_firmware() {
    shares_of("vexpress-a9", "a9", "gcc", &["-O2"]);
}

#[test]
fn a_cortex_a9_in_t32_has_the_shares_of_its_firmware() {
    shares_of("vexpress-a9", "a9t", "clang", &["-O2"]);
}

#[test]
fn boards_of_32_bits_that_wait_are_idle() {
    let Some(_one) = live() else { return };
    for (machine, name, leaf) in [("lm3s6965evb", "m3", "main"), ("vexpress-a9", "a9", "main")] {
        // Hardly anything in its interrupts.
        let Some(elf) = firmware(name, "clang", &["-O2", "-DIDLE", "-DTICK_ROUNDS=1"]) else { return };
        let Some(stub) = board(machine, &elf) else { return };
        let exec = ["--exec", elf.to_str().unwrap(), "--duration", "2", "--idle"];
        let recorded = record(&stub.place, &[&exec, OFTEN].concat());
        recorded.check_success();
        let (waits, total) = (recorded.count(|stack| stack.leaf() == leaf) as f64, recorded.total() as f64);
        recorded.check(waits > 0.9 * total, "it stands elsewhere");
        let recorded = record(&stub.place, &[&exec[..4], OFTEN].concat());
        let ran = recorded.total() as f64;
        recorded.check(ran < 0.1 * total, format!("{ran} of {total} samples ran"));
    }
}

/// The letter that everything of a task begins with in `rtos-tasks.c`, by the task's name.
const TASKS: [(&str, &str); 5] =
    [("IDLE", "idle"), ("worker a", "a"), ("worker b", "b"), ("sleeper", "c"), ("suspended", "d")];

/// Interrupts above tasks are on another stack than these, which older emulators do not tell.
const SHORT_TICKS: &str = "-DTICK_ROUNDS=50";

/// Whether the outermost functions of a stack are those of the task of this name, and all that is above
/// them is what tasks call, or interrupts.
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

/// The stacks of `dump stacks` by the thread's name, the outermost function first, and whether they are
/// said to be complete.
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

/// Tasks of our scheduler as threads: names, shares, stacks, in a recording and in one stop.
fn tasks_of(machine: &str, board_name: &str, compiler: &str, flags: &[&str]) {
    let Some(_one) = live() else { return };
    let Some(elf) = firmware(board_name, compiler, flags) else { return };
    let Some(stub) = board(machine, &elf) else { return };
    let recorded = record(
        &stub.place,
        &[&["--exec", elf.to_str().unwrap(), "--duration", "4", "--threads"], OFTEN].concat(),
    );
    recorded.check_success();
    let task_of = |stack: &Stack| stack.frames[1].rsplit_once(" (").map(|(name, _)| name.to_owned());
    let total = recorded.total() as f64;
    for task in ["worker a", "worker b"] {
        let share = 100.0 * recorded.count(|stack| task_of(stack).as_deref() == Some(task)) as f64 / total;
        println!("{machine} {task} {share:.2} %");
        let off = (share - 50.0).abs();
        recorded.check(off <= allowed(&recorded, 50.0), format!("{task} has {share:.2} %"));
    }
    let is_right = |stack: &Stack| {
        let names = complete(stack);
        names.is_none_or(|names| is_of_the_task(&task_of(stack).unwrap_or_default(), &names[1..]))
    };
    check_stacks(&recorded, machine, true, is_right);
    for _ in 0..rounds(20) {
        let dumped =
            stackprof().args(["dump", "stacks", "--gdb", &stub.place, "--exec"]).arg(&elf).output().unwrap();
        assert!(dumped.status.success(), "{dumped:?}");
        let text = String::from_utf8_lossy(&dumped.stdout).into_owned();
        let stacks = dumped_stacks(&text);
        let names: Vec<&str> = stacks.keys().map(String::as_str).collect();
        assert_eq!(names, ["IDLE", "sleeper", "suspended", "worker a", "worker b"], "{text}");
        for (task, (frames, is_complete)) in &stacks {
            let frames: Vec<&str> = frames.iter().map(String::as_str).collect();
            assert!(!is_complete || is_of_the_task(task, &frames), "{task}: complete, but wrong\n{text}");
        }
        // One that waits for good is always the same.
        let (frames, is_complete) = &stacks["suspended"];
        assert!(*is_complete && frames[..2] == ["d_task", "d_suspend"], "{text}");
        assert!(text.contains("(IDLE)") && frames.iter().any(|name| name == "vTaskSuspend"), "{text}");
    }
}

#[test]
fn tasks_on_a_cortex_m3_are_threads() {
    tasks_of("mps2-an385", "rtos-m3", "gcc", &["-O2", SHORT_TICKS]);
}

#[test]
fn tasks_with_floating_point_are_threads() {
    tasks_of("mps2-an386", "rtos-m4f", "clang", &["-O2", SHORT_TICKS]);
}
