//! Placed images of a program: bytes of their regions and files, addresses of their functions, and the shared
//! cache.

use std::collections::BTreeMap;
use std::ops::Range;

use stackprof::arch::Arch;

use super::code::{Code, Kind};
use super::macho::{self, Offsets, Segment, Stated};
use super::memory::{READ, READ_EXECUTE, READ_WRITE};
use super::spec::{Role, SimImage};
use stackprof::rng::hash;

/// A function: index of its image, index in it.
pub type FunctionRef = (usize, usize);

/// An image at its address.
#[derive(Clone, Debug)]
pub struct Placed {
    pub image: SimImage,
    pub code: Code,
    /// Address of its header.
    pub base: u64,
    pub uuid: [u8; 16],
    /// Address of its data segment.
    pub data_at: Option<u64>,
    /// Its own regions: start, bytes, protection.
    pub regions: Vec<(u64, Vec<u8>, i32)>,
    /// Its file: the bytes on disk, and in its own memory.
    pub file: Vec<u8>,
}

/// The shared cache as mapped.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The whole range, including holes.
    pub range: Range<u64>,
    pub slide: u64,
    pub uuid: [u8; 16],
    pub regions: Vec<(u64, Vec<u8>, i32)>,
}

/// All images of a program.
#[derive(Clone, Debug)]
pub struct Images {
    pub placed: Vec<Placed>,
    pub cache: Option<Cache>,
    names: BTreeMap<String, FunctionRef>,
}

/// Addresses that differ by platform.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub arch: Arch,
    pub page: u64,
    pub main: u64,
    pub dylibs: u64,
    pub heap: u64,
    pub stacks: u64,
    pub main_stack: u64,
    pub cache: u64,
}

impl Plan {
    pub fn of(arch: Arch) -> Plan {
        match arch {
            Arch::Aarch64 | Arch::Arm => Plan {
                arch,
                page: 0x4000,
                main: 0x1_0000_0000,
                dylibs: 0x1_1000_0000,
                heap: 0x1_4000_0000,
                stacks: 0x1_7000_0000,
                main_stack: 0x1_6f00_0000,
                cache: 0x1_8000_0000,
            },
            Arch::X86_64 | Arch::X86 => Plan {
                arch,
                page: 0x1000,
                main: 0x1_0000_0000,
                dylibs: 0x1_1000_0000,
                heap: 0x6000_0000_0000,
                stacks: 0x7000_0000_0000,
                main_stack: 0x7ff7_b000_0000,
                cache: 0x7ff8_0000_0000,
            },
        }
    }
}

fn uuid(seed: u64, path: &str) -> [u8; 16] {
    let text = path.bytes().fold(seed, |hashed, byte| hash(&[hashed, byte.into()]));
    let mut out = [0; 16];
    out[..8].copy_from_slice(&hash(&[text, 1]).to_le_bytes());
    out[8..].copy_from_slice(&hash(&[text, 2]).to_le_bytes());
    out
}

impl Images {
    /// Places images; the same seed gives the same slides.
    pub fn place(plan: &Plan, seed: u64, cache_seed: u64, images: &[SimImage]) -> Images {
        let mut placed: Vec<Placed> = images
            .iter()
            .map(|image| Placed {
                image: image.clone(),
                code: Code::new(plan.arch, seed, plan.page, image),
                base: 0,
                uuid: image.uuid.unwrap_or_else(|| uuid(seed, &image.path)),
                data_at: None,
                regions: Vec::new(),
                file: Vec::new(),
            })
            .collect();
        let mut next = plan.dylibs + hash(&[seed, 3]) % 64 * plan.page;
        for placed in placed.iter_mut().filter(|placed| !placed.image.cached) {
            let slide = hash(&[seed, 4]) % 256 * plan.page;
            let (svma, base) = match placed.image.role {
                Role::Main => (plan.main, plan.main + slide),
                _ => (0, next),
            };
            private(plan, placed, svma, base);
            if placed.image.role != Role::Main {
                next += (placed.file.len() as u64).next_multiple_of(plan.page) + 4 * plan.page;
            }
        }
        let cache = shared(plan, cache_seed, &mut placed);
        let mut names = BTreeMap::new();
        for (index, placed) in placed.iter().enumerate() {
            for (number, function) in placed.code.functions.iter().enumerate() {
                names.entry(function.name.clone()).or_insert((index, number));
            }
        }
        Images { placed, cache, names }
    }

    /// The function with a name.
    pub fn function(&self, name: &str) -> FunctionRef {
        *self.names.get(name).unwrap_or_else(|| panic!("no image has a function `{name}`"))
    }

    /// The function with a name in one image.
    pub fn function_in(&self, image: usize, name: &str) -> FunctionRef {
        let functions = &self.placed[image].code.functions;
        let number = functions.iter().position(|function| function.name == name);
        (image, number.unwrap_or_else(|| panic!("no function `{name}`")))
    }

    pub fn is_frameless(&self, (image, function): FunctionRef) -> bool {
        self.placed[image].code.functions[function].kind == Kind::Frameless
    }

    pub fn is_start_of_libdyld(&self, (image, function): FunctionRef) -> bool {
        self.placed[image].code.functions[function].kind == Kind::StartOfLibdyld
    }

    pub fn pc(&self, (image, function): FunctionRef, random: u64) -> u64 {
        let placed = &self.placed[image];
        placed.base + placed.code.pc(function, random)
    }

    /// Return address of a call from `caller` to `callee`.
    pub fn return_address(&self, (image, function): FunctionRef, callee: FunctionRef) -> u64 {
        let placed = &self.placed[image];
        placed.base + placed.code.return_address(function, hash(&[callee.0 as u64, callee.1 as u64]))
    }
}

/// An image with its own memory: text, data, linkedit consecutively, as in its file.
fn private(plan: &Plan, placed: &mut Placed, svma: u64, base: u64) {
    let (image, code) = (&placed.image, &placed.code);
    let data = macho::data(image);
    let data_size = (data.len() as u64).next_multiple_of(plan.page);
    let text = Segment { svma, size: code.size, offset: 0 };
    let data_segment =
        (data_size > 0).then_some(Segment { svma: svma + code.size, size: data_size, offset: code.size });
    let mut pool = vec![0];
    let pieces = macho::pieces(image, code, svma, data_segment.map(|segment| segment.svma), &mut pool);
    let offset = code.size + data_size;
    let starts = offset;
    let trie = starts + pieces.starts.len() as u64;
    let nlists = (trie + pieces.trie.len() as u64).next_multiple_of(8);
    let strings = nlists + pieces.nlists.len() as u64;
    let end = strings + pool.len() as u64;
    let linkedit = Segment { svma: svma + offset, size: (end - offset).next_multiple_of(plan.page), offset };
    let at = Offsets { starts, trie, nlists, strings, strings_size: pool.len() as u64 };
    let stated = Stated { text, data: data_segment, linkedit, at, uuid: placed.uuid };
    let mut file = code.bytes();
    let head = macho::head(image, code, &stated, &pieces);
    file[..head.len()].copy_from_slice(&head);
    file.extend_from_slice(&data);
    file.resize(offset as usize, 0);
    file.extend(&pieces.starts);
    file.extend(&pieces.trie);
    file.resize(nlists as usize, 0);
    file.extend(&pieces.nlists);
    file.extend(&pool);
    file.resize((offset + linkedit.size) as usize, 0);
    let part = |from: u64, size: u64| file[from as usize..(from + size) as usize].to_vec();
    let mut regions = vec![(base, part(0, code.size), READ_EXECUTE)];
    if data_size > 0 {
        regions.push((base + code.size, part(code.size, data_size), READ_WRITE));
        placed.data_at = Some(base + code.size);
    }
    regions.push((base + offset, part(offset, linkedit.size), READ));
    (placed.base, placed.regions, placed.file) = (base, regions, file);
}

/// The images of the shared cache: texts consecutively, then, each after a hole, their data and a common
/// linkedit.
fn shared(plan: &Plan, seed: u64, all: &mut [Placed]) -> Option<Cache> {
    let mut cached: Vec<&mut Placed> = all.iter_mut().filter(|placed| placed.image.cached).collect();
    if cached.is_empty() {
        return None;
    }
    let slide = hash(&[seed, 5]) % 512 * plan.page;
    // Its first mapping has the header and the texts of all images, as one region.
    let mut text_mapping = b"dyld_v1  arm64e\0".to_vec();
    let mut regions = Vec::new();
    let mut at = plan.cache + plan.page;
    let mut texts = Vec::new();
    for placed in &cached {
        texts.push(Segment { svma: at, size: placed.code.size, offset: at - plan.cache });
        at += placed.code.size;
    }
    let mut pool = vec![0];
    let mut pieces = Vec::new();
    let mut datas = Vec::new();
    at += plan.page;
    for (placed, text) in cached.iter_mut().zip(&texts) {
        let bytes = macho::data(&placed.image);
        let segment = Segment { svma: at, size: bytes.len() as u64, offset: at - plan.cache };
        let segment = (!bytes.is_empty()).then_some(segment);
        if segment.is_some() {
            placed.data_at = Some(at + slide);
            at += (bytes.len() as u64).next_multiple_of(plan.page);
            regions.push((placed.data_at.unwrap_or(0), bytes, READ_WRITE));
        }
        let svma = segment.map(|segment| segment.svma);
        pieces.push(macho::pieces(&placed.image, &placed.code, text.svma, svma, &mut pool));
        datas.push(segment);
    }
    at += plan.page;
    let start = at - plan.cache;
    let mut blob: Vec<u8> = Vec::new();
    let mut offsets = Vec::new();
    for pieces in &pieces {
        let mut put = |bytes: &[u8]| {
            blob.resize(blob.len().next_multiple_of(8), 0);
            blob.extend_from_slice(bytes);
            start + (blob.len() - bytes.len()) as u64
        };
        let (starts, trie, nlists) = (put(&pieces.starts), put(&pieces.trie), put(&pieces.nlists));
        offsets.push(Offsets { starts, trie, nlists, ..Offsets::default() });
    }
    let strings = start + blob.len() as u64;
    blob.extend_from_slice(&pool);
    let linkedit = Segment { svma: at, size: (blob.len() as u64).next_multiple_of(plan.page), offset: start };
    for (index, placed) in cached.iter_mut().enumerate() {
        let at = Offsets { strings, strings_size: pool.len() as u64, ..offsets[index] };
        let stated = Stated { text: texts[index], data: datas[index], linkedit, at, uuid: placed.uuid };
        let mut text = placed.code.bytes();
        let head = macho::head(&placed.image, &placed.code, &stated, &pieces[index]);
        text[..head.len()].copy_from_slice(&head);
        placed.base = texts[index].svma + slide;
        text_mapping.resize(texts[index].offset as usize, 0);
        text_mapping.extend(text);
    }
    regions.push((plan.cache + slide, text_mapping, READ_EXECUTE));
    regions.push((at + slide, blob, READ));
    let range = plan.cache + slide..at + slide + linkedit.size;
    // A different set of libraries is a different build of the system.
    let libraries: Vec<String> =
        cached.iter().map(|placed| format!("{}{:?}", placed.image.path, placed.image.functions)).collect();
    Some(Cache { range, slide, uuid: uuid(seed, &libraries.concat()), regions })
}
