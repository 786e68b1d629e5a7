//! Apple's debugserver lists the images of its process: files here are taken if they have the UUID of
//! what is loaded, and those that are not are told by name.

use std::path::Path;

use stackprof::addr::Avma;
use stackprof::sources::Observed;
use stackprof::sources::gdb::InitialState;

use super::fake::{Fake, Manner};
use super::targets::MACH_LOAD;

const UUID: [u8; 16] = [0xe2, 0xa1, 0xc0, 0xde, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
const TEXT_BYTES: u64 = 0x4000;

/// A Mach-O file of arm64 that has nothing but code and a UUID (`<mach-o/loader.h>`).
fn macho(uuid: [u8; 16]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let longs = |longs: &[u64]| longs.iter().flat_map(|long| long.to_le_bytes()).collect::<Vec<u8>>();
    let mut name = b"__TEXT".to_vec();
    name.resize(16, 0);
    let mut file = [
        words(&[0xfeed_facf, 0x0100_000c, 0, 2, 2, 72 + 24, 0, 0]),
        words(&[0x19, 72]),
        name,
        longs(&[0x1_0000_0000, TEXT_BYTES, 0, TEXT_BYTES]),
        words(&[5, 5, 0, 0]),
        words(&[0x1b, 24]),
        uuid.to_vec(),
    ]
    .concat();
    file.resize(TEXT_BYTES as usize, 0);
    file
}

fn listed(path: &Path, load: u64) -> String {
    let uuid: String = UUID.iter().map(|byte| format!("{byte:02X}")).collect();
    let path = path.display();
    format!(
        r#"{{"load_address":{load},"mod_date":0,"pathname":"{path}","uuid":"{uuid}","mach_header":{{"magic":4277009103,"cputype":16777228,"cpusubtype":0,"filetype":2,"flags":0}},"segments":[{{"name":"__TEXT","vmaddr":4294967296,"vmsize":{TEXT_BYTES},"fileoff":0,"filesize":{TEXT_BYTES},"maxprot":5}}]}}"#
    )
}

#[test]
fn images_are_those_that_debugserver_lists() {
    let place = tempfile::tempdir().unwrap();
    let [same, other, none] = ["same", "other", "none"].map(|name| place.path().join(name));
    std::fs::write(&same, macho(UUID)).unwrap();
    let mut uuid = UUID;
    uuid[15] ^= 1;
    std::fs::write(&other, macho(uuid)).unwrap();
    let images: Vec<String> = [&other, &same, &none]
        .into_iter()
        .zip([MACH_LOAD + 0x10_0000, MACH_LOAD, MACH_LOAD + 0x20_0000])
        .map(|(path, load)| listed(path, load))
        .collect();
    let fake = Fake::with_images(Manner::debugserver(), format!("{{\"images\":[{}]}}", images.join(",")));
    let mut target = fake.attach(InitialState::Stopped).unwrap();
    assert_eq!((target.process().pid, &*target.process().name), (0x1f, "same"));
    let mut mappings = Vec::new();
    target.mappings(&mut mappings).unwrap();
    let starts: Vec<Avma> = mappings.iter().map(|mapping| mapping.avma.start).collect();
    assert_eq!(starts, [0, 0x10_0000, 0x20_0000].map(|at| Avma(MACH_LOAD + at)));
    let mut length = |mapping| match target.image_bytes(mapping) {
        Ok(bytes) => Ok(bytes.bytes().len()),
        Err(why) => Err(why.to_string()),
    };
    let bytes: Vec<Result<usize, String>> = mappings.iter().map(&mut length).collect();
    assert_eq!(bytes[0], Ok(TEXT_BYTES as usize));
    assert_eq!(bytes[1], Err("replaced on disk since it was loaded".to_owned()));
    assert!(bytes[2].as_ref().is_err_and(|why| why.starts_with("not here: ")), "{bytes:?}");
    drop(target);
    let fate = fake.fate();
    assert!(fate.runs && fate.detached && fate.harm.is_empty(), "{fate:?}");
}
