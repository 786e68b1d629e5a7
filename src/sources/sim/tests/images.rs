//! Mapped images and their ELF files.

use object::read::elf::{ElfFile64, FileHeader};
use object::{Architecture, Endianness, Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind, elf};

use super::*;

fn mappings(target: &mut SimTarget) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    target.mappings(&mut mappings).expect("alive");
    mappings
}

#[test]
fn the_file_of_an_image_is_a_valid_shared_object_with_its_functions() {
    for (arch, expected) in [(Arch::X86_64, Architecture::X86_64), (Arch::Aarch64, Architecture::Aarch64)] {
        let mut config = process(arch, 1, vec![vec![run(1, &[0])]]);
        config.images[0].functions[3].code_bytes = 5000;
        let (mut target, _, _) = start(&config);
        let mapping = mappings(&mut target).remove(0);
        let image = target.image_bytes(&mapping).expect("on disk");
        let header = elf::FileHeader64::<Endianness>::parse(image.bytes()).expect("a header");
        assert_eq!(header.e_type(Endianness::Little), elf::ET_DYN);
        let file = ElfFile64::<Endianness>::parse(image.bytes()).expect("a valid file");
        assert!(file.is_little_endian() && file.is_64());
        assert_eq!(file.architecture(), expected);
        assert_eq!(file.build_id().expect("valid notes").map(<[u8]>::len), Some(8));

        let text = file.section_by_name(".text").expect("a text section");
        let segment =
            file.segments().find(|segment| segment.address() == text.address()).expect("a text segment");
        assert_eq!(segment.file_range(), text.file_range().expect("in the file"));
        assert_eq!(segment.data().expect("in the file").len() as u64, segment.size());
        assert_ne!(
            text.address(),
            segment.file_range().0,
            "offsets and addresses must differ to be told apart"
        );

        // avma → file offset → svma, according to the mapping.
        let svma = |avma: Avma| {
            avma - mapping.avma.start + mapping.file_offset - segment.file_range().0 + segment.address()
        };
        let symbols: Vec<_> = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text).collect();
        assert_eq!(symbols.len(), 6);
        for (number, symbol) in symbols.iter().enumerate() {
            let range = target.code.range(f(number));
            assert_eq!(symbol.name(), Ok(format!("f{number}").as_str()));
            assert_eq!((symbol.address(), symbol.size()), (svma(range.start), range.end - range.start));
        }
    }
}

#[test]
fn the_head_and_text_of_an_image_can_be_read_from_memory() {
    let config = process(Arch::X86_64, 1, vec![vec![run(1, &[0])]]);
    let (mut target, _, _) = start(&config);
    let mapping = mappings(&mut target).remove(0);
    let image = target.image_bytes(&mapping).expect("on disk");
    let head = Avma(mapping.avma.start.0 - config.images[0].text_svma);
    let mut bytes = vec![0; 8192];
    assert_eq!(target.read_memory(head, &mut bytes), Ok(4096), "the gap before the text is not mapped");
    assert_eq!(bytes[..4096], image.bytes()[..4096]);
    let last = Avma(mapping.avma.end.0 - 8);
    assert_eq!(target.read_memory(last, &mut bytes), Ok(8));
    assert!(matches!(target.read_memory(head + 4096, &mut bytes), Err(Fault::Transient(_))));
}

#[test]
fn another_image_can_take_the_address_of_an_unloaded_one() {
    let mut config = process(Arch::X86_64, 1, vec![vec![wait(1, &[0])]]);
    let mut old = SimImage::new("/sim/old.so", Avma(0x5600_0000_0000), &["old"]);
    let mut new = SimImage::new("/sim/new.so", Avma(0x5600_0000_0000), &["new"]);
    (old.unload_ns, new.load_ns) = (Some(5 * MS), 5 * MS);
    config.images.extend([old, new]);
    let (mut target, clock, _) = start(&config);
    let before = mappings(&mut target);
    clock.advance_to(5 * MS);
    let after = mappings(&mut target);
    assert_eq!((before.len(), after.len()), (2, 2));
    assert_eq!(before[1].avma, after[1].avma);
    assert_eq!((before[1].path.as_str(), after[1].path.as_str()), ("/sim/old.so", "/sim/new.so"));
    assert_ne!(before[1].identity, after[1].identity);
    assert_eq!(before[0], after[0]);
    for mapping in [&before[1], &after[1]] {
        let bytes = target.image_bytes(mapping).expect("on disk");
        let file = ElfFile64::<Endianness>::parse(bytes.bytes()).expect("valid");
        let name = if mapping.path == "/sim/old.so" { "old" } else { "new" };
        assert!(file.symbols().any(|symbol| symbol.name() == Ok(name)));
    }
    let unknown = Mapping { identity: (0, 0), ..before[0].clone() };
    assert!(target.image_bytes(&unknown).is_err());
}
