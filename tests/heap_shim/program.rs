//! Programs with and without the shim.

use std::cell::Cell;
use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::ring::Ring;
use crate::shared_memory::{CONTROL_NAME, CONTROL_SIZE, Control, DIRECTORY_VARIABLE, MAGIC, RING_PREFIX};

/// File name of the shim in the directory.
pub(crate) const SHIM_NAME: &str = "heap.so";

/// The compiled fixtures.
pub(crate) struct Fixtures {
    _directory: TempDir,
    /// Allocates with libc.
    pub(crate) calls: PathBuf,
    /// Allocates with `allocator`.
    pub(crate) calls_of_library: PathBuf,
    /// A library with an allocator.
    pub(crate) allocator: PathBuf,
    /// Restricts its system calls by system calls of its own.
    pub(crate) filter: PathBuf,
}

/// Compiles them once.
pub(crate) fn fixtures() -> &'static Fixtures {
    static FIXTURES: OnceLock<Fixtures> = OnceLock::new();
    FIXTURES.get_or_init(|| {
        let directory = TempDir::new().unwrap();
        let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let compile = |name: &str, to: &Path, flags: &[&str]| {
            let mut cc = Command::new("cc");
            cc.args(["-O1", "-g", "-w", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-o"]);
            let output = cc.arg(to).arg(source(name)).args(flags).output().unwrap();
            assert!(output.status.success(), "{cc:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let at = |name: &str| directory.path().join(name);
        let (calls, calls_of_library, allocator) =
            (at("calls"), at("calls_of_library"), at("liballocator.so"));
        compile("heap_calls.c", &calls, &["-pthread", "-ldl"]);
        compile("heap_allocator.c", &allocator, &["-shared", "-fPIC", "-fno-builtin"]);
        let library = allocator.to_str().unwrap();
        let flags = ["-pthread", "-Wl,--no-as-needed", library, "-ldl"];
        compile("heap_calls.c", &calls_of_library, &flags);
        let filter = at("filter");
        compile("heap_filter.c", &filter, &[]);
        Fixtures { _directory: directory, calls, calls_of_library, allocator, filter }
    })
}

/// Settings of the control file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) mean_bytes: u64,
    pub(crate) data_size: u64,
    pub(crate) set_slots: u64,
    pub(crate) stack_size: u32,
    pub(crate) seed: u64,
    pub(crate) records_mappings: bool,
    pub(crate) wait_ns: u64,
}

impl Settings {
    /// Samples every allocation, with room for all of them.
    pub(crate) fn all() -> Self {
        Self {
            mean_bytes: 1,
            data_size: 64 << 20,
            set_slots: 1 << 20,
            stack_size: 512,
            seed: 0,
            records_mappings: false,
            wait_ns: 0,
        }
    }
}

/// A directory like that of stackprof.
pub(crate) struct Directory(TempDir, Cell<u32>);

impl Directory {
    pub(crate) fn new(settings: Settings) -> Self {
        let Settings { mean_bytes, data_size, set_slots, stack_size, seed, .. } = settings;
        let Settings { records_mappings, wait_ns, .. } = settings;
        let mut control = Vec::new();
        for number in [MAGIC, mean_bytes, data_size, set_slots, u64::from(stack_size), seed] {
            control.extend(number.to_ne_bytes());
        }
        control.resize(CONTROL_SIZE, 0);
        control[offset_of!(Control, records_mappings)] = u8::from(records_mappings);
        control[offset_of!(Control, wait_ns)..][..8].copy_from_slice(&wait_ns.to_ne_bytes());
        let directory = Self(TempDir::new().unwrap(), Cell::new(0));
        fs::write(directory.path().join(CONTROL_NAME), control).unwrap();
        let library = stackprof::sources::heap_shim::library().expect("this build has a shim");
        fs::write(directory.path().join(SHIM_NAME), library).unwrap();
        directory
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A field of the control file.
    pub(crate) fn control(&self, offset: usize) -> u64 {
        let bytes = fs::read(self.path().join(CONTROL_NAME)).unwrap();
        u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap())
    }

    /// A command with the shim loaded.
    pub(crate) fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command.env("LD_PRELOAD", self.path().join(SHIM_NAME)).env(DIRECTORY_VARIABLE, self.path());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        self.start(program, arguments).wait_with_output().unwrap()
    }

    /// Starts it and captures its output.
    pub(crate) fn start(&self, program: &Path, arguments: &[&str]) -> Child {
        self.start_with(program, arguments, Stdio::null())
    }

    /// Starts it with this standard input.
    pub(crate) fn start_with(&self, program: &Path, arguments: &[&str], input: Stdio) -> Child {
        let mut command = self.command(program, arguments);
        let child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        self.1.set(child.id());
        child
    }

    /// The first ring of the process that was started last, once it exists.
    pub(crate) fn ring(&self) -> Option<Ring> {
        let name = format!("{RING_PREFIX}{}.0", self.1.get());
        Ring::all(self.path()).into_iter().find(|ring| ring.name == name)
    }
}

/// One line of a program's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) what: char,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// The log of a program, in the order of its calls.
pub(crate) fn log_of(output: &Output) -> Vec<Logged> {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.strip_prefix("log "));
    lines
        .map(|line| {
            let mut fields = line.split(' ');
            Logged {
                what: fields.next().unwrap().chars().next().unwrap(),
                address: u64::from_str_radix(fields.next().unwrap(), 16).unwrap(),
                size: fields.next().unwrap().parse().unwrap(),
            }
        })
        .collect()
}

/// The output of a program without addresses.
pub(crate) fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("log ")).collect();
    (output.status.code(), lines.join("\n"), String::from_utf8_lossy(&output.stderr).into_owned())
}
