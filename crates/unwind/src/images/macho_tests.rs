//! Mach-O images over time.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::addr::{Avma, Svma};
use crate::binary::macho::CPU_ARM64;
use crate::binary::macho::build::{File, TEXT};
use crate::binary::{ImageBytes, Mapping};
use crate::walk::Code;

#[test]
fn relative_addresses_count_from_the_text_segment() {
    let bytes = ImageBytes::new(File { entry: Some(0x1010), ..File::default() }.build());
    let load = 0x1_0480_c000;
    let mapping = Mapping::of_file(Avma(load)..Avma(load + 0x4000), 0, "/usr/local/bin/work", (1, 2));
    let mut images = Images::default();
    images.update(0, &[mapping], &mut |_| Ok(bytes.clone()));
    let location = images.locate(0, Avma(load + 0x1234)).unwrap();
    assert_eq!((location.svma, location.relative), (Svma(TEXT + 0x1234), 0x1234));
    assert_eq!(location.image.build_id.as_deref(), Some(b"0123456789abcdef".as_slice()));
    assert!(location.image.problem().is_none());
    assert_eq!(images.entry_of(0, "/usr/local/bin/work"), Some(Avma(load + 0x1010)));
    assert!(images.of(0).code(Avma(load + 0x1010)).is_some_and(|code| code.len() == 0x4000 - 0x1010));
    let macho = location.image.object().and_then(|object| object.macho()).unwrap();
    assert_eq!(macho.cpu_type, CPU_ARM64);
}

#[test]
fn function_bounds_are_run_time_addresses_clipped_to_the_mapping() {
    let bytes = File { function_starts: vec![0x1000, 0x1800], ..File::default() }.build();
    let mapping = |from: u64, to: u64| {
        Mapping::of_file(Avma(LOADED + from)..Avma(LOADED + to), from, "/usr/lib/libtest.dylib", (1, 2))
    };
    const LOADED: u64 = 0x1_8abc_0000;
    let mut images = Images::default();
    let mut open = |_: &Mapping| Ok(ImageBytes::new(bytes.clone()));
    images.update(0, &[mapping(0, 0x4000)], &mut open);
    let at = |images: &Images, at| {
        let function = images.of(0).function(Avma(LOADED + at))?;
        Some((function.start - Avma(LOADED), function.end - Avma(LOADED)))
    };
    assert_eq!(at(&images, 0x17ff), Some((0x1000, 0x1800)));
    assert_eq!(at(&images, 0x1800), Some((0x1800, 0x2000)));
    assert_eq!(at(&images, 0x2000), None);
    assert_eq!(images.of(0).function(Avma(TEXT + 0x1000)), None);
    let described = |at| images.images()[0].described_function(Svma(TEXT + at));
    assert_eq!(described(0x17ff), Some(Svma(TEXT + 0x1000)..Svma(TEXT + 0x1800)));
    assert_eq!(described(0x2000), None);
    // Half of a function, in a separate mapping.
    images.begin_space(0);
    images.update(0, &[mapping(0x1400, 0x1600)], &mut open);
    assert_eq!(at(&images, 0x1500), Some((0x1400, 0x1600)));
}
