//! dyld's data for debuggers in a simulated task, and its updates.
//!
//! `dyld_all_image_infos` with the offsets of <mach-o/dyld_images.h>, written into the target's memory. A
//! change follows dyld's protocol (ExternallyViewableState.cpp): infoArray = NULL, count, timestamp,
//! infoArray = new, and the old array is freed at once. Each of these is a step, so that a plan can stop dyld
//! between any two of them.

use std::collections::{BTreeMap, VecDeque};

use super::images::Images;
use super::memory::Memory;

const COUNT: u64 = 4;
const ARRAY: u64 = 8;
const INITIALIZED: u64 = 25;
const DYLD_ADDRESS: u64 = 32;
const TIMESTAMP: u64 = 184;
/// sizeof(dyld_all_image_infos), version 17 and later.
pub const INFO_BYTES: usize = 368;

/// A change due at a time of the task's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Load(Vec<usize>),
    Unload(Vec<usize>),
    /// dyld starts and lists the program.
    Listed,
    /// The dyld of the shared cache takes over, with another structure.
    Moved,
    /// libSystemInitialized.
    Initialized,
}

/// An atomic step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Map(usize),
    Unmap(usize),
    WriteInfo,
    Register,
    ArrayNull,
    SetCount,
    SetTimestamp,
    SetArray,
    FreeOld,
    Stale,
    Initialized,
}

/// dyld in a task.
#[derive(Clone, Debug, Default)]
pub struct Dyld {
    /// Result of TASK_DYLD_INFO.
    pub registered: u64,
    /// The current structure.
    info: u64,
    /// Images in infoArray.
    pub listed: Vec<usize>,
    array: u64,
    old_array: u64,
    paths: BTreeMap<usize, u64>,
    pub pending: VecDeque<(u64, Op)>,
    steps: VecDeque<Step>,
    /// Number of changes begun.
    pub begun: usize,
    /// Index of dyld itself, and of the one on disk that starts first.
    pub dyld: Option<usize>,
    pub disk_dyld: Option<usize>,
    /// Images that the dyld of the shared cache lists when it takes over.
    pub initial: Vec<usize>,
}

impl Dyld {
    /// Whether a change is in progress.
    pub fn is_torn(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Begins the next change.
    pub fn begin(&mut self) -> bool {
        let Some((_, op)) = self.pending.pop_front() else { return false };
        self.begun += 1;
        let publish = [Step::ArrayNull, Step::SetCount, Step::SetTimestamp, Step::SetArray];
        match op {
            Op::Load(images) => {
                self.steps.extend(images.iter().map(|image| Step::Map(*image)));
                self.listed.extend(images);
                self.steps.extend(publish);
                self.steps.push_back(Step::FreeOld);
            }
            Op::Unload(images) => {
                self.listed.retain(|image| !images.contains(image));
                self.steps.extend(publish);
                self.steps.push_back(Step::FreeOld);
                self.steps.extend(images.iter().map(|image| Step::Unmap(*image)));
            }
            Op::Listed => {
                self.listed = self.initial.iter().copied().take(1).collect();
                self.steps.push_back(Step::WriteInfo);
                self.steps.extend(publish);
            }
            Op::Moved => {
                let rest = self.initial.iter().filter(|image| !self.listed.contains(image));
                self.steps.extend(rest.map(|image| Step::Map(*image)));
                self.listed.clone_from(&self.initial);
                self.info = 0;
                self.steps.extend([Step::WriteInfo, Step::Register]);
                self.steps.extend(publish);
                self.steps.push_back(Step::Stale);
            }
            Op::Initialized => self.steps.push_back(Step::Initialized),
        }
        true
    }

    /// Performs the next step.
    pub fn step(&mut self, memory: &mut Memory, images: &Images, ticks: u64) {
        let Some(step) = self.steps.pop_front() else { return };
        let info = self.info;
        match step {
            Step::Map(image) => self.map(memory, images, image),
            Step::Unmap(image) => {
                for (start, ..) in &images.placed[image].regions {
                    memory.free(*start);
                }
                if let Some(path) = self.paths.remove(&image) {
                    memory.free(path);
                }
            }
            Step::WriteInfo => self.write_info(memory, images),
            Step::Register => self.registered = self.info,
            Step::ArrayNull => memory.write(info + ARRAY, &[0; 8]),
            Step::SetCount => memory.write(info + COUNT, &(self.listed.len() as u32).to_le_bytes()),
            Step::SetTimestamp => memory.write(info + TIMESTAMP, &ticks.to_le_bytes()),
            Step::SetArray => {
                let mut entries = Vec::new();
                for image in &self.listed {
                    for word in [images.placed[*image].base, self.paths[image], 0] {
                        entries.extend(word.to_le_bytes());
                    }
                }
                self.old_array = self.array;
                self.array = memory.allocate(entries);
                memory.write(info + ARRAY, &self.array.to_le_bytes());
            }
            Step::FreeOld => memory.free(std::mem::take(&mut self.old_array)),
            // The structure of the replaced dyld stays unchanged; its version says so.
            Step::Stale => {
                if let Some(disk) = self.disk_dyld.take() {
                    for (start, ..) in &images.placed[disk].regions {
                        memory.free(*start);
                    }
                }
            }
            Step::Initialized => memory.write(info + INITIALIZED, &[1]),
        }
    }

    /// Performs all remaining steps of a change.
    pub fn finish(&mut self, memory: &mut Memory, images: &Images, ticks: u64) {
        while self.is_torn() {
            self.step(memory, images, ticks);
        }
    }

    /// Maps an image with its own memory, and its path.
    pub fn map(&mut self, memory: &mut Memory, images: &Images, index: usize) {
        let placed = &images.placed[index];
        let file = (!placed.image.cached).then_some(placed.image.path.as_str());
        for (start, bytes, protection) in &placed.regions {
            memory.place(*start, bytes.clone(), *protection, file);
        }
        self.paths.insert(index, memory.allocate_text(&placed.image.path));
    }

    /// The structure before dyld runs: as in the file, with unrebased pointers.
    pub fn before(&mut self, memory: &mut Memory) {
        let mut bytes = vec![0; INFO_BYTES];
        bytes[..4].copy_from_slice(&17u32.to_le_bytes());
        for offset in [DYLD_ADDRESS as usize, 48, 104, 192] {
            bytes[offset..offset + 8].copy_from_slice(&(0x0010_0000_0000_4000 + offset as u64).to_le_bytes());
        }
        self.info = memory.allocate(bytes);
        self.registered = self.info;
    }

    /// A structure without a list, at a new place or over the existing one.
    fn write_info(&mut self, memory: &mut Memory, images: &Images) {
        let mut bytes = vec![0; INFO_BYTES];
        let mut put = |offset: usize, data: &[u8]| bytes[offset..offset + data.len()].copy_from_slice(data);
        let by_disk = self.disk_dyld.filter(|_| self.info != 0);
        let version = memory.allocate_text(if by_disk.is_some() { "cache" } else { "1378.0.0" });
        let path = memory.allocate_text("/usr/lib/dyld");
        put(0, &17u32.to_le_bytes());
        put(24, &[0, u8::from(self.disk_dyld.is_none())]);
        if let Some(dyld) = by_disk.or(self.dyld) {
            put(DYLD_ADDRESS as usize, &images.placed[dyld].base.to_le_bytes());
        }
        put(48, &version.to_le_bytes());
        if let Some(cache) = &images.cache {
            put(152, &cache.slide.to_le_bytes());
            put(160, &cache.uuid);
            put(176, &cache.range.start.to_le_bytes());
        }
        put(192, &path.to_le_bytes());
        put(320, &1u32.to_le_bytes()); // PLATFORM_MACOS
        if self.info == 0 {
            self.info = memory.allocate(bytes.clone());
        }
        bytes[104..112].copy_from_slice(&self.info.to_le_bytes());
        memory.write(self.info, &bytes);
    }

    /// Completes startup: the state of a long-running process.
    pub fn ready(&mut self, memory: &mut Memory, images: &Images, ticks: u64) {
        self.listed.clone_from(&self.initial);
        for image in self.initial.clone() {
            self.map(memory, images, image);
        }
        self.steps.extend([Step::WriteInfo, Step::Register]);
        self.steps.extend([Step::SetCount, Step::SetTimestamp, Step::SetArray]);
        self.finish(memory, images, ticks);
    }
}
