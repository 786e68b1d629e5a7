//! Finds the debug information of a Mach-O image: its dSYM.
//!
//! Input: an image and [`Files`]. Output: files with the image's UUID. Searches for dSYMs next to the binary, in
//! cargo's `deps`, and through Spotlight.

use super::DebugFiles;
use crate::binary::macho::{MachO, fat};
use crate::binary::{Files, ImageBytes};
use crate::images::Image;
use crate::symbol::error::DebugFileError;

/// Limit on dSYMs opened per directory.
const CANDIDATES_MAX: usize = 256;

pub(super) fn locate(
    image: &Image,
    bytes: &ImageBytes,
    files: &dyn Files,
    dwarf: bool,
    found: &mut DebugFiles,
) {
    found.symbols.push(bytes.clone());
    let Some(macho) = image.object().and_then(|object| object.macho()) else { return };
    let Some(uuid) = macho.uuid.filter(|_| dwarf) else { return };
    for path in beside(&image.path) {
        if try_dsym(&path, &uuid, macho, files, found, true) {
            return;
        }
    }
    // `target/debug/deps/work-0123456789abcdef.dSYM`, of any build with the same name.
    for path in in_deps(&image.path, files) {
        if try_dsym(&path, &uuid, macho, files, found, false) {
            return;
        }
    }
    for path in files.known_by_uuid(&uuid).into_iter().take(CANDIDATES_MAX) {
        // Spotlight returns the bundle; its content is named like the binary.
        for path in inside(&path, &image.name, files) {
            if try_dsym(&path, &uuid, macho, files, found, true) {
                return;
            }
        }
    }
}

const INSIDE: &str = "Contents/Resources/DWARF";

fn beside(path: &str) -> Vec<String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    vec![format!("{path}.dSYM/{INSIDE}/{name}")]
}

fn inside(bundle: &str, name: &str, files: &dyn Files) -> Vec<String> {
    if !bundle.ends_with(".dSYM") {
        return vec![bundle.to_owned()];
    }
    let mut paths = vec![format!("{bundle}/{INSIDE}/{name}")];
    let others = files.list(&format!("{bundle}/{INSIDE}"));
    paths.extend(others.into_iter().map(|other| format!("{bundle}/{INSIDE}/{other}")));
    paths
}

fn in_deps(path: &str, files: &dyn Files) -> Vec<String> {
    let Some((directory, name)) = path.rsplit_once('/') else { return Vec::new() };
    let deps = if directory.ends_with("/deps") { directory.to_owned() } else { format!("{directory}/deps") };
    // Cargo names its output after the crate, with `_` for `-`.
    let stem = format!("{}-", name.replace('-', "_"));
    let is_it = |entry: &String| entry.ends_with(".dSYM") && entry.starts_with(&stem);
    let bundles = files.list(&deps).into_iter().filter(is_it).take(CANDIDATES_MAX);
    bundles.map(|bundle| format!("{deps}/{bundle}/{INSIDE}/{}", bundle.trim_end_matches(".dSYM"))).collect()
}

/// Accepts a dSYM if it belongs to the image. `named`: it should belong, so a mismatch is reported.
fn try_dsym(
    path: &str,
    uuid: &[u8; 16],
    image: &MachO,
    files: &dyn Files,
    found: &mut DebugFiles,
    named: bool,
) -> bool {
    let Ok(bytes) = files.open(path) else { return false };
    let wanted = fat::ImageIdentity { uuid: None, cpu_type: image.cpu_type, cpu_subtype: image.cpu_subtype };
    let fits =
        fat::choose(&bytes, &wanted).map_err(DebugFileError::from).and_then(|bytes| {
            match MachO::parse(bytes.bytes())?.uuid {
                Some(found) if found == *uuid => Ok(bytes),
                Some(found) => Err(DebugFileError::OtherUuid { found, wanted: *uuid }),
                None => Err(DebugFileError::NoUuid),
            }
        });
    match fits {
        Ok(bytes) => {
            found.debug = Some(bytes);
            true
        }
        Err(why) => {
            if named {
                found.problems.push(format!("{path}: {why}"));
            }
            false
        }
    }
}
