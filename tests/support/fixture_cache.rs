//! Files built by tests, once per run, by the first of the concurrent tests that needs them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The file `name` for live tests, written by `make` to the given path; or the error, the same for every
/// caller.
pub(crate) fn built_once(
    name: &str,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    static BUILT: OnceLock<Mutex<HashMap<String, Result<PathBuf, String>>>> = OnceLock::new();
    let mut built = BUILT.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    built.entry(name.to_owned()).or_insert_with(|| renamed_into_place(name, make)).clone()
}

fn renamed_into_place(name: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live");
    fs::create_dir_all(&into).map_err(|error| error.to_string())?;
    // A concurrent run of these tests may be executing the old one.
    let fresh = into.join(format!("{name}.{}", std::process::id()));
    make(&fresh)?;
    let path = into.join(name);
    fs::rename(&fresh, &path).map_err(|error| error.to_string())?;
    Ok(path)
}
