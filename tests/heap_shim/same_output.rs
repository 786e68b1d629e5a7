//! Programs print the same with the shim as without it, whatever they do and whatever happens to the
//! reader.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::program::{Directory, SHIM_NAME, Settings, fixtures, said};
use crate::ring::Ring;
use crate::shared_memory::{CONTROL_NAME, DATA_SIZE_MIN};

const MODES: [&str; 14] = [
    "calls",
    "threads",
    "few-threads",
    "ends",
    "coroutines",
    "forks",
    "vforks",
    "exec",
    "descriptors",
    "limits",
    "filter",
    "filter-by-syscall",
    "strict",
    "siblings",
];

/// Compares the output of each mode with that without the shim.
fn compare(settings: Settings, spoil: impl Fn(&Directory)) {
    let fixtures = fixtures();
    let allocator = fixtures.allocator.to_str().unwrap();
    let mut cases: Vec<_> = MODES.map(|mode| (&fixtures.calls, vec![mode])).into();
    cases.push((&fixtures.calls, vec!["plugin", allocator]));
    cases.push((&fixtures.calls_of_library, vec!["handlers"]));
    cases.push((&fixtures.calls_of_library, vec!["ends"]));
    for (program, arguments) in cases {
        let directory = Directory::new(settings);
        spoil(&directory);
        let with = said(&directory.run(program, &arguments));
        let mut command = std::process::Command::new(program);
        let without = said(&command.args(&arguments).output().unwrap());
        assert_eq!(with, without, "{arguments:?} with {settings:?}");
        assert_eq!(with.0, Some(0), "{with:?}");
    }
}

#[test]
fn with_every_allocation_sampled() {
    compare(Settings { data_size: 4 << 20, set_slots: 1 << 16, ..Settings::all() }, |_| {});
}

#[test]
fn with_every_mapping_sampled() {
    let settings = Settings { data_size: 4 << 20, set_slots: 1 << 16, ..Settings::all() };
    compare(Settings { records_mappings: true, ..settings }, |_| {});
}

#[test]
fn without_a_reader() {
    compare(Settings { data_size: DATA_SIZE_MIN, set_slots: 64, ..Settings::all() }, |_| {});
}

#[test]
fn with_some_allocations_sampled() {
    compare(Settings { mean_bytes: 300, data_size: 65536, ..Settings::all() }, |_| {});
}

#[test]
fn without_a_directory_or_with_a_damaged_control_file() {
    // The library must stay, or the loader prints an error.
    compare(Settings::all(), |directory| fs::remove_file(directory.path().join(CONTROL_NAME)).unwrap());
    for (offset, byte) in [(0, 0), (8, 0), (16, 3), (24, 3), (28, 255)] {
        let spoil = |directory: &Directory| {
            let path = directory.path().join(CONTROL_NAME);
            let mut bytes = fs::read(&path).unwrap();
            bytes[offset] = byte;
            if offset == 8 {
                bytes[8..16].fill(0);
            }
            fs::write(path, bytes).unwrap();
        };
        let directory = Directory::new(Settings::all());
        spoil(&directory);
        let with = said(&directory.run(&fixtures().calls, &["calls"]));
        assert_eq!(with.0, Some(0), "{with:?}");
        assert!(Ring::all(directory.path()).is_empty());
    }
    let directory = Directory::new(Settings::all());
    fs::write(directory.path().join(CONTROL_NAME), b"sp-heap").unwrap();
    assert_eq!(said(&directory.run(&fixtures().calls, &["calls"])).0, Some(0));
}

/// The directory is removed while the program runs: as if stackprof was killed and somebody cleaned
/// up.
#[test]
fn with_the_directory_removed() {
    let directory = Directory::new(Settings::all());
    let control = directory.path().join(CONTROL_NAME);
    let kept = tempfile::TempDir::new().unwrap();
    let shim = kept.path().join(SHIM_NAME);
    fs::copy(directory.path().join(SHIM_NAME), &shim).unwrap();
    fs::remove_file(control).unwrap();
    let mut command = directory.command(&fixtures().calls, &["forks"]);
    command.env("LD_PRELOAD", &shim);
    drop(directory);
    assert_eq!(said(&command.output().unwrap()).0, Some(0));
}

/// What other users can change is not used: the directory, the control file, a directory in the place of another.
#[test]
fn with_a_directory_that_others_can_change() {
    let is_recorded = |spoil: fn(&Path)| {
        let directory = Directory::new(Settings::all());
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        spoil(directory.path());
        assert_eq!(said(&directory.run(&fixtures().calls, &["calls"])).0, Some(0));
        directory.ring().is_some()
    };
    assert!(is_recorded(|_| {}));
    let spoils: [fn(&Path); 4] = [
        |path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap(),
        |path| fs::set_permissions(path, fs::Permissions::from_mode(0o1770)).unwrap(),
        |path| fs::set_permissions(path.join(CONTROL_NAME), fs::Permissions::from_mode(0o666)).unwrap(),
        |path| {
            let (control, other) = (path.join(CONTROL_NAME), path.join("other"));
            fs::rename(&control, &other).unwrap();
            std::os::unix::fs::symlink(&other, &control).unwrap();
        },
    ];
    for (index, spoil) in spoils.into_iter().enumerate() {
        assert!(!is_recorded(spoil), "{index}");
    }
}
