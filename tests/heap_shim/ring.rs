//! A simple reader of rings: files, not mappings. It releases what it takes, as the format requires.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::shared_memory::{COMMITTED, DATA_OFFSET, Kind, MAGIC, RESERVED, RING_PREFIX, RingHeader, Word};

/// An open ring.
pub(crate) struct Ring {
    file: File,
    pub(crate) name: String,
    data_size: u64,
}

/// A parsed record.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Allocation(Allocated),
    Free { address: u64 },
    Restore { address: u64 },
    Shrink,
}

#[derive(Clone, Debug)]
pub(crate) struct Allocated {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) tid: u32,
    pub(crate) function: u32,
    pub(crate) flags: u8,
    pub(crate) images: u32,
    pub(crate) registers: Vec<u64>,
    pub(crate) stack: Vec<u8>,
}

impl Ring {
    /// All rings in a directory, by name.
    pub(crate) fn all(directory: &Path) -> Vec<Self> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(RING_PREFIX))
            .collect();
        names.sort();
        names.into_iter().filter_map(|name| Self::open(&directory.join(&name), name)).collect()
    }

    /// Opens a ring; none before it is ready.
    fn open(path: &PathBuf, name: String) -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut ring = Self { file, name, data_size: 0 };
        if ring.file.metadata().unwrap().len() < DATA_OFFSET as u64 || ring.u64_at(0) != MAGIC {
            return None;
        }
        ring.data_size = ring.u64_at(std::mem::offset_of!(RingHeader, data_size));
        assert_eq!(ring.file.metadata().unwrap().len(), DATA_OFFSET as u64 + ring.data_size);
        Some(ring)
    }

    pub(crate) fn u64_at(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at as u64).unwrap();
        u64::from_ne_bytes(bytes)
    }

    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at as u64).unwrap();
        u32::from_ne_bytes(bytes)
    }

    /// Number of lost allocations, and their bytes.
    pub(crate) fn lost_allocations(&self) -> (u64, u64) {
        let begin = std::mem::offset_of!(RingHeader, lost_allocations);
        (0..64).fold((0, 0), |(count, bytes), class| {
            (count + self.u64_at(begin + 16 * class), bytes + self.u64_at(begin + 16 * class + 8))
        })
    }

    pub(crate) fn lost_frees(&self) -> u64 {
        self.u64_at(std::mem::offset_of!(RingHeader, lost_frees))
    }

    /// Takes the next record and releases its space. None: nothing is committed there.
    pub(crate) fn take(&self) -> Option<Record> {
        self.take_unless(false)
    }

    /// Takes the next record; if `dies`, without releasing its space.
    pub(crate) fn take_unless(&self, dies: bool) -> Option<Record> {
        loop {
            let read_at = std::mem::offset_of!(RingHeader, read);
            let read = self.u64_at(read_at);
            let position = DATA_OFFSET as u64 + (read & (self.data_size - 1));
            // If the ring is full, this is the oldest record; if it is empty, zero.
            let word = Word::decode(self.u64_at(position as usize));
            assert!(matches!(word.state, 0 | RESERVED | COMMITTED), "{word:?} at {read}");
            if word.state != COMMITTED {
                return None;
            }
            assert!(word.length > 0 && word.length.is_multiple_of(16), "{word:?} at {read}");
            let mut bytes = vec![0; word.length as usize];
            self.file.read_exact_at(&mut bytes, position).unwrap();
            self.file.write_all_at(&vec![0; bytes.len()], position).unwrap();
            let next = read + u64::from(word.length);
            if !dies || word.kind == Kind::Pad as u8 {
                self.file.write_all_at(&next.to_ne_bytes(), read_at as u64).unwrap();
            }
            if word.kind != Kind::Pad as u8 {
                return Some(parse(word, &bytes));
            }
        }
    }

    /// Takes all available records.
    pub(crate) fn take_all(&self) -> Vec<Record> {
        std::iter::from_fn(|| self.take()).collect()
    }
}

fn parse(word: Word, bytes: &[u8]) -> Record {
    let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!(u64_at(8) > 0, "a time");
    let address = u64_at(16);
    match Kind::from_number(word.kind).unwrap() {
        Kind::Pad => unreachable!("skipped"),
        Kind::Free => Record::Free { address },
        Kind::Restore => Record::Restore { address },
        Kind::Shrink => Record::Shrink,
        Kind::Allocation => {
            let stack_size = u32_at(40) as usize;
            Record::Allocation(Allocated {
                address,
                size: u64_at(24),
                tid: u32_at(32),
                function: u32_at(36),
                flags: word.flags,
                images: u32_at(44),
                registers: (0..16).map(|index| u64_at(48 + 8 * index)).collect(),
                stack: bytes[176..176 + stack_size].to_vec(),
            })
        }
    }
}
