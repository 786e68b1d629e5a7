//! Rings as written by the shim and by a hostile program.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use super::super::shared_memory::{FREE_LENGTH, RESERVED, allocation_length};
use super::*;
use crate::rng::mix;

pub(crate) const DATA_SIZE: u64 = 16384;

/// Writes a ring like the shim.
pub(crate) struct RingWriter {
    pub(crate) path: PathBuf,
    file: File,
    write: u64,
    data_size: u64,
}

impl RingWriter {
    pub(crate) fn new(directory: &Path, pid: u32, sequence: u32, name: &str) -> RingWriter {
        RingWriter::with_size(directory, (pid, sequence), name, DATA_SIZE)
    }

    pub(crate) fn with_size(
        directory: &Path,
        (pid, sequence): (u32, u32),
        name: &str,
        data_size: u64,
    ) -> RingWriter {
        let path = directory.join(format!("ring.{pid}.{sequence}"));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(DATA_OFFSET as u64 + data_size).unwrap();
        let writer = RingWriter { path, file, write: 0, data_size };
        let put = |at: usize, bytes: &[u8]| writer.file.write_all_at(bytes, at as u64).unwrap();
        put(offset_of!(RingHeader, data_size), &data_size.to_ne_bytes());
        put(offset_of!(RingHeader, pid), &pid.to_ne_bytes());
        put(offset_of!(RingHeader, sequence), &sequence.to_ne_bytes());
        put(offset_of!(RingHeader, origin), &(Origin::Program as u32).to_ne_bytes());
        let processor = if cfg!(target_arch = "aarch64") { AARCH64 } else { X86_64 };
        put(offset_of!(RingHeader, processor), &processor.to_ne_bytes());
        put(offset_of!(RingHeader, comm), name.as_bytes());
        put(offset_of!(RingHeader, magic), &MAGIC.to_ne_bytes());
        writer
    }

    pub(crate) fn allocate(&mut self, record: &AllocationRecord) {
        let length = allocation_length(record.stack.len() as u32);
        let mut bytes = vec![0; length as usize];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(offset_of!(Allocation, time_ns), &record.time_ns.to_ne_bytes());
        put(offset_of!(Allocation, address), &record.address.to_ne_bytes());
        put(offset_of!(Allocation, size), &record.size.to_ne_bytes());
        put(offset_of!(Allocation, tid), &record.tid.to_ne_bytes());
        put(offset_of!(Allocation, images), &record.images.to_ne_bytes());
        put(offset_of!(Allocation, stack_size), &(record.stack.len() as u32).to_ne_bytes());
        for (index, register) in record.registers.iter().enumerate() {
            put(offset_of!(Allocation, registers) + index * 8, &register.to_ne_bytes());
        }
        put(size_of::<Allocation>(), &record.stack);
        let ends = if record.stack_ends { flag::STACK_END } else { 0 };
        let untracked = if record.untracked { flag::UNTRACKED } else { 0 };
        self.record(Kind::Allocation as u8, ends | untracked, COMMITTED, bytes);
    }

    pub(crate) fn free(&mut self, kind: Kind, (time_ns, address, tid): (u64, u64, u32)) {
        let mut bytes = vec![0; FREE_LENGTH as usize];
        bytes[offset_of!(Free, time_ns)..][..8].copy_from_slice(&time_ns.to_ne_bytes());
        bytes[offset_of!(Free, address)..][..8].copy_from_slice(&address.to_ne_bytes());
        bytes[offset_of!(Free, tid)..][..4].copy_from_slice(&tid.to_ne_bytes());
        self.record(kind as u8, 0, COMMITTED, bytes);
    }

    #[cfg(target_os = "linux")] // Only its source is tested with it.
    /// The process has begun this many unloads of images.
    pub(crate) fn unload(&mut self, unloads: u64) {
        self.file.write_all_at(&unloads.to_ne_bytes(), offset_of!(RingHeader, unloads) as u64).unwrap();
    }

    #[cfg(target_os = "linux")] // Only its source is tested with it.
    /// The process begins to exit.
    pub(crate) fn end(&mut self, at_ns: u64) {
        self.file.write_all_at(&at_ns.to_ne_bytes(), offset_of!(RingHeader, end_ns) as u64).unwrap();
    }

    /// Reserves and fills a record; pads where it would wrap.
    pub(crate) fn record(&mut self, kind: u8, flags: u8, state: u8, mut bytes: Vec<u8>) {
        let position = self.write & (self.data_size - 1);
        let left = self.data_size - position;
        if bytes.len() as u64 > left {
            let word = Word { length: left as u32, flags: 0, kind: Kind::Pad as u8, state: COMMITTED };
            let at = DATA_OFFSET as u64 + position;
            self.file.write_all_at(&word.encode().to_ne_bytes(), at).unwrap();
            self.write += left;
            return self.record(kind, flags, state, bytes);
        }
        let word = Word { length: bytes.len() as u32, flags, kind, state };
        bytes[..8].copy_from_slice(&word.encode().to_ne_bytes());
        self.file.write_all_at(&bytes, DATA_OFFSET as u64 + position).unwrap();
        self.write += bytes.len() as u64;
        self.store_write(self.write);
    }

    fn store_write(&self, write: u64) {
        self.file.write_all_at(&write.to_ne_bytes(), offset_of!(RingHeader, write) as u64).unwrap();
    }

    fn put(&self, at: usize, value: u64) {
        self.file.write_all_at(&value.to_ne_bytes(), at as u64).unwrap();
    }
}

fn allocation(number: u64, stack_bytes: usize) -> AllocationRecord {
    AllocationRecord {
        time_ns: 1000 + number,
        address: 0x1000 * (number + 1),
        size: 24 + number,
        tid: 7,
        registers: std::array::from_fn(|index| number << 8 | index as u64),
        stack: (0..stack_bytes).map(|at| (at as u64 ^ number) as u8).collect(),
        untracked: number % 5 == 4,
        stack_ends: number % 3 == 2,
        images: number as u32,
    }
}

fn take_all(ring: &mut Ring, ended: bool) -> Vec<Record> {
    let mut records = Vec::new();
    while ring.take(ended, u64::MAX, &mut records).unwrap().bytes > 0 {}
    records
}

#[test]
fn records_are_read_in_order_across_wraparounds() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = RingWriter::new(directory.path(), 5, 0, "prog");
    let mut ring = Ring::open(&writer.path).unwrap().unwrap();
    let header = ring.header();
    assert_eq!((header.pid, header.sequence, &*header.name, header.is_forked), (5, 0, "prog", false));
    for round in 0..40 {
        let mut expected = Vec::new();
        for number in round * 4..round * 4 + 4 {
            let record = allocation(number, (number as usize * 37) % 1500);
            writer.allocate(&record);
            expected.push(Record::Allocation(Box::new(record)));
            let (time_ns, address, tid) = (number, number * 16, 3);
            writer.free(Kind::Free, (time_ns, address, tid));
            expected.push(Record::Free { time_ns, address, tid });
        }
        writer.free(Kind::Restore, (1, 2, 3));
        expected.push(Record::Restore { time_ns: 1, address: 2, tid: 3 });
        assert_eq!(take_all(&mut ring, false), expected, "round {round}");
    }
}

/// For a ring that may have holes and for one that may not.
#[test]
fn read_pieces_are_zeroed_before_writers_reuse_them() {
    for is_pinned in [0, 1] {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = RingWriter::new(directory.path(), 5, 0, "prog");
        writer.put(offset_of!(RingHeader, is_pinned), is_pinned);
        let mut ring = Ring::open(&writer.path).unwrap().unwrap();
        let piece = piece_size(DATA_SIZE);
        let (mut given_back, mut records) = (0, Vec::new());
        for number in 0..200 {
            writer.allocate(&allocation(number, (number as usize * 37) % 1500));
            // Sometimes only a part of the records.
            ring.take(false, 1 + number % 3 * 1000, &mut records).unwrap();
            let read = word_at(&writer.file, offset_of!(RingHeader, read)).unwrap();
            assert!(read.is_multiple_of(piece) && read >= given_back && writer.write - read < DATA_SIZE);
            let bytes = fs::read(&writer.path).unwrap();
            for at in (given_back..read).step_by(piece as usize) {
                let begin = DATA_OFFSET + (at % DATA_SIZE) as usize;
                let is_unwritten = writer.write <= at + DATA_SIZE;
                assert!(is_unwritten && bytes[begin..begin + piece as usize].iter().all(|byte| *byte == 0));
            }
            given_back = read;
        }
        assert!(given_back > 4 * DATA_SIZE);
        assert_eq!(fs::metadata(&writer.path).unwrap().len(), DATA_OFFSET as u64 + DATA_SIZE);
    }
}

#[test]
fn an_unfinished_record_is_skipped_only_once_its_process_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = RingWriter::new(directory.path(), 5, 0, "prog");
    let mut ring = Ring::open(&writer.path).unwrap().unwrap();
    writer.free(Kind::Free, (1, 16, 3));
    writer.record(Kind::Free as u8, 0, RESERVED, vec![0; 32]);
    writer.free(Kind::Free, (2, 32, 3));
    // Reserved, but not even the header is written.
    writer.store_write(writer.write + 64);
    assert_eq!(take_all(&mut ring, false), [Record::Free { time_ns: 1, address: 16, tid: 3 }]);
    assert_eq!(take_all(&mut ring, false), []);
    assert_eq!(take_all(&mut ring, true), [Record::Free { time_ns: 2, address: 32, tid: 3 }]);
    assert_eq!(take_all(&mut ring, true), []);
}

#[test]
fn a_ring_under_construction_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let writer = RingWriter::new(directory.path(), 5, 0, "prog");
    writer.put(offset_of!(RingHeader, magic), 0);
    assert!(Ring::open(&writer.path).unwrap().is_none());
    writer.put(offset_of!(RingHeader, magic), MAGIC + 1);
    assert!(matches!(Ring::open(&writer.path), Err(RingError::Malformed("it is of another version"))));
    fs::write(directory.path().join("ring.6.0"), "").unwrap();
    assert!(Ring::open(&directory.path().join("ring.6.0")).unwrap().is_none());
    std::os::unix::fs::symlink(&writer.path, directory.path().join("ring.7.0")).unwrap();
    assert!(Ring::open(&directory.path().join("ring.7.0")).is_err());
}

#[test]
fn malformed_rings_are_refused_with_a_reason() {
    let with = |change: &dyn Fn(&mut RingWriter)| {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = RingWriter::new(directory.path(), 5, 0, "prog");
        writer.free(Kind::Free, (1, 16, 3));
        let mut ring = Ring::open(&writer.path).unwrap().unwrap();
        change(&mut writer);
        let mut records = Vec::new();
        match ring.take(false, u64::MAX, &mut records) {
            Err(RingError::Malformed(why)) => (why, records.len()),
            other => panic!("{other:?}"),
        }
    };
    let bytes = |length| Word { length, flags: 0, kind: 3, state: COMMITTED }.encode();
    for (why, taken, change) in [
        (
            "its positions do not fit together",
            0,
            &(|w: &mut RingWriter| w.store_write(1 << 40)) as &dyn Fn(&mut _),
        ),
        ("its positions do not fit together", 0, &|w: &mut RingWriter| w.store_write(8)),
        ("the file was truncated", 0, &|w: &mut RingWriter| w.file.set_len(100).unwrap()),
        ("the file was truncated", 0, &|w: &mut RingWriter| w.file.set_len(DATA_OFFSET as u64).unwrap()),
        ("a record has no length", 0, &|w: &mut RingWriter| w.put(DATA_OFFSET, bytes(0))),
        ("a record has no length", 0, &|w: &mut RingWriter| w.put(DATA_OFFSET, bytes(24))),
        ("a record is longer than what is written", 0, &|w: &mut RingWriter| w.put(DATA_OFFSET, bytes(64))),
        ("a record is too short", 0, &|w: &mut RingWriter| w.put(DATA_OFFSET, bytes(16))),
        ("a record has no state", 0, &|w: &mut RingWriter| w.put(DATA_OFFSET, bytes(32) | 0xff)),
        ("a record is of no known kind", 1, &|w: &mut RingWriter| w.record(77, 0, COMMITTED, vec![0; 16])),
        ("a record is too short", 1, &|w: &mut RingWriter| {
            w.record(Kind::Allocation as u8, 0, COMMITTED, vec![0; 32])
        }),
        ("a record is too short", 1, &|w: &mut RingWriter| {
            // More stack than the record has.
            let mut record = vec![0; 192];
            record[offset_of!(Allocation, stack_size)..][..4].copy_from_slice(&17u32.to_ne_bytes());
            w.record(Kind::Allocation as u8, 0, COMMITTED, record);
        }),
    ] {
        assert_eq!(with(change), (why, taken));
    }
}

/// Arbitrary bytes anywhere: no panic, no endless read, no record larger than the ring.
#[test]
fn arbitrary_content_is_harmless() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 1..3000u64 {
        let mut state = seed;
        let mut random = |below: u64| {
            state = mix(state);
            state % below
        };
        let mut writer = RingWriter::new(directory.path(), seed as u32, 0, "prog");
        for number in 0..6 {
            writer.allocate(&allocation(number, random(900) as usize));
            writer.free(Kind::Free, (number, 16, 3));
        }
        let opened = Ring::open(&writer.path).unwrap().unwrap();
        for _ in 0..1 + random(4) {
            let at = match random(3) {
                0 => random(size_of::<RingHeader>() as u64),
                1 => DATA_OFFSET as u64 + random(400),
                _ => DATA_OFFSET as u64 + random(DATA_SIZE - 8),
            };
            let value = [0, u64::MAX, 1 << 32 | 0x302, random(u64::MAX)][random(4) as usize];
            writer.file.write_all_at(&value.to_ne_bytes(), at).unwrap();
        }
        for ring in [Some(opened), Ring::open(&writer.path).ok().flatten()] {
            let Some(mut ring) = ring else { continue };
            let mut records = Vec::new();
            for _ in 0..4 {
                let read = ring.take(random(2) == 1, 1 + random(5000), &mut records);
                if !read.is_ok_and(|progress| progress.left > 0) {
                    break;
                }
            }
            let stacks = records.iter().map(|record| match record {
                Record::Allocation(record) => record.stack.len() as u64,
                _ => 0,
            });
            assert!(stacks.sum::<u64>() <= 4 * DATA_SIZE, "seed {seed}");
            let _ = (ring.lost_allocations(), ring.lost_frees(), ring.lost_before_ring());
        }
        fs::remove_file(&writer.path).unwrap();
    }
}
