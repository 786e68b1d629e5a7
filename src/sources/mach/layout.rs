//! The structures that xnu fills, field by field, and their conversion to the plain types of `kernel.rs`.
//!
//! Sizes and offsets are asserted below, so that a build for any system checks them; on Apple systems
//! `xnu.rs` compares them with its libraries' declarations. The headers of MIG structures are packed to 4
//! bytes. No calls here.

use std::mem::offset_of;

use super::kernel::{
    BsdInfo, Region, TaskDyldInfo, ThreadBasicInfo, ThreadExtendedInfo, ThreadIdentifierInfo,
};

/// `time_value_t`, osfmk/mach/time_value.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawTimeValue {
    /// Seconds.
    pub seconds: i32,
    /// Microseconds of the second.
    pub microseconds: i32,
}

impl RawTimeValue {
    fn ns(self) -> u64 {
        let positive = |value: i32| u64::try_from(value).unwrap_or(0);
        positive(self.seconds) * 1_000_000_000 + positive(self.microseconds) * 1_000
    }
}

/// `thread_basic_info`, osfmk/mach/thread_info.h: flavor 3, 10 words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawThreadBasicInfo {
    /// User CPU time.
    pub user_time: RawTimeValue,
    /// System CPU time.
    pub system_time: RawTimeValue,
    /// 0 to 1000, decayed: says nothing about the present.
    pub cpu_usage: i32,
    /// Scheduling policy.
    pub policy: i32,
    /// TH_STATE_*.
    pub run_state: i32,
    /// TH_FLAGS_*.
    pub flags: i32,
    /// Suspensions of this thread.
    pub suspend_count: i32,
    /// Always 0.
    pub sleep_time: i32,
}

/// `thread_identifier_info`, osfmk/mach/thread_info.h: flavor 4, 6 words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawThreadIdentifierInfo {
    /// System-wide unique number.
    pub thread_id: u64,
    /// TSD base; 0: no pthread.
    pub thread_handle: u64,
    /// Address of the pointer to the current dispatch queue.
    pub dispatch_qaddr: u64,
}

/// `thread_extended_info`, osfmk/mach/thread_info.h: flavor 5, 28 words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawThreadExtendedInfo {
    /// User CPU time, nanoseconds.
    pub user_time: u64,
    /// System CPU time, nanoseconds.
    pub system_time: u64,
    /// 0 to 1000, decayed.
    pub cpu_usage: i32,
    /// Scheduling policy.
    pub policy: i32,
    /// TH_STATE_*.
    pub run_state: i32,
    /// TH_FLAGS_*.
    pub flags: i32,
    /// Always 0.
    pub sleep_time: i32,
    /// Current priority.
    pub current_priority: i32,
    /// Base priority.
    pub priority: i32,
    /// Highest priority.
    pub max_priority: i32,
    /// Name, terminated by NUL; empty: unnamed.
    pub name: [u8; 64],
}

impl Default for RawThreadExtendedInfo {
    fn default() -> RawThreadExtendedInfo {
        RawThreadExtendedInfo {
            user_time: 0,
            system_time: 0,
            cpu_usage: 0,
            policy: 0,
            run_state: 0,
            flags: 0,
            sleep_time: 0,
            current_priority: 0,
            priority: 0,
            max_priority: 0,
            name: [0; 64],
        }
    }
}

/// `task_dyld_info`, osfmk/mach/task_info.h: flavor 17, 5 words. An unpacked one would have 6, which the
/// kernel refuses.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawTaskDyldInfo {
    /// Address of dyld_all_image_infos.
    pub all_image_info_addr: u64,
    /// Its size.
    pub all_image_info_size: u64,
    /// 0: 32-bit, 1: 64-bit.
    pub all_image_info_format: i32,
}

/// `vm_region_submap_info_64`, osfmk/mach/vm_region.h: 19 words.
#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawRegionInfo {
    /// VM_PROT_*.
    pub protection: i32,
    /// Most permissive VM_PROT_*.
    pub max_protection: i32,
    /// VM_INHERIT_*.
    pub inheritance: i32,
    /// Offset in the object.
    pub offset: u64,
    /// VM_MEMORY_*.
    pub user_tag: u32,
    /// Pages in memory.
    pub pages_resident: u32,
    /// Pages that were shared.
    pub pages_shared_now_private: u32,
    /// Pages swapped out.
    pub pages_swapped_out: u32,
    /// Pages dirtied.
    pub pages_dirtied: u32,
    /// References of the object.
    pub ref_count: u32,
    /// Length of the shadow chain.
    pub shadow_depth: u16,
    /// Whether an external pager manages it.
    pub external_pager: u8,
    /// SM_*.
    pub share_mode: u8,
    /// Whether it is a submap that was not descended.
    pub is_submap: i32,
    /// VM_BEHAVIOR_*.
    pub behavior: i32,
    /// Low 32 bits of the object's number.
    pub object_id: u32,
    /// Number of wirings.
    pub user_wired_count: u16,
    /// VM_REGION_FLAG_*.
    pub flags: u16,
    /// Reusable pages.
    pub pages_reusable: u32,
    /// Number of the object.
    pub object_id_full: u64,
}

/// `proc_bsdinfo`, bsd/sys/proc_info.h: PROC_PIDTBSDINFO, 136 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawBsdInfo {
    /// PROC_FLAG_*.
    pub flags: u32,
    /// SIDL, SRUN, SSLEEP, SSTOP, SZOMB.
    pub status: u32,
    /// Wait status.
    pub xstatus: u32,
    /// Process.
    pub pid: u32,
    /// Parent.
    pub ppid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Real user.
    pub ruid: u32,
    /// Real group.
    pub rgid: u32,
    /// Saved user.
    pub svuid: u32,
    /// Saved group.
    pub svgid: u32,
    /// Reserved.
    pub reserved: u32,
    /// First 15 bytes of the name.
    pub comm: [u8; 16],
    /// First 31 bytes of the name; may be empty.
    pub name: [u8; 32],
    /// Open files.
    pub nfiles: u32,
    /// Process group.
    pub pgid: u32,
    /// Job control count.
    pub pjobc: u32,
    /// Terminal.
    pub tdev: u32,
    /// Foreground group of the terminal.
    pub tpgid: u32,
    /// Nice value.
    pub nice: i32,
    /// Start, seconds since 1970.
    pub start_seconds: u64,
    /// Start, microseconds of the second.
    pub start_microseconds: u64,
}

/// Checks a size and offsets at compile time.
macro_rules! laid_out {
    ($raw:ty, $size:expr, $($field:ident = $offset:expr),* $(,)?) => {
        const _: () = assert!(size_of::<$raw>() == $size);
        $(const _: () = assert!(offset_of!($raw, $field) == $offset);)*
    };
}

laid_out!(RawThreadBasicInfo, 40, user_time = 0, system_time = 8, cpu_usage = 16, policy = 20);
laid_out!(RawThreadBasicInfo, 40, run_state = 24, flags = 28, suspend_count = 32, sleep_time = 36);
laid_out!(RawThreadIdentifierInfo, 24, thread_id = 0, thread_handle = 8, dispatch_qaddr = 16);
laid_out!(RawThreadExtendedInfo, 112, user_time = 0, system_time = 8, cpu_usage = 16, policy = 20);
laid_out!(RawThreadExtendedInfo, 112, run_state = 24, flags = 28, sleep_time = 32, name = 48);
laid_out!(RawThreadExtendedInfo, 112, current_priority = 36, priority = 40, max_priority = 44);
laid_out!(RawTaskDyldInfo, 20, all_image_info_addr = 0, all_image_info_size = 8);
laid_out!(RawTaskDyldInfo, 20, all_image_info_format = 16);
laid_out!(RawRegionInfo, 76, protection = 0, max_protection = 4, inheritance = 8, offset = 12);
laid_out!(RawRegionInfo, 76, user_tag = 20, ref_count = 40, share_mode = 47, is_submap = 48);
laid_out!(RawBsdInfo, 136, flags = 0, status = 4, ppid = 16, uid = 20, comm = 48, name = 64);
laid_out!(RawBsdInfo, 136, nfiles = 96, start_seconds = 120, start_microseconds = 128);

/// The number of words of a structure: the `count` of the call.
#[must_use]
pub const fn words<T>() -> u32 {
    (size_of::<T>() / size_of::<i32>()) as u32
}

/// The text before the first NUL, or all of it without one.
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl From<RawThreadBasicInfo> for ThreadBasicInfo {
    fn from(raw: RawThreadBasicInfo) -> ThreadBasicInfo {
        ThreadBasicInfo {
            user_ns: raw.user_time.ns(),
            system_ns: raw.system_time.ns(),
            run_state: raw.run_state,
            suspend_count: raw.suspend_count,
        }
    }
}

impl From<RawThreadExtendedInfo> for ThreadExtendedInfo {
    fn from(raw: RawThreadExtendedInfo) -> ThreadExtendedInfo {
        ThreadExtendedInfo {
            user_ns: raw.user_time,
            system_ns: raw.system_time,
            run_state: raw.run_state,
            name: text(&raw.name),
        }
    }
}

impl From<RawThreadIdentifierInfo> for ThreadIdentifierInfo {
    fn from(raw: RawThreadIdentifierInfo) -> ThreadIdentifierInfo {
        ThreadIdentifierInfo {
            thread_id: raw.thread_id,
            thread_handle: raw.thread_handle,
            dispatch_qaddr: raw.dispatch_qaddr,
        }
    }
}

impl From<RawTaskDyldInfo> for TaskDyldInfo {
    fn from(raw: RawTaskDyldInfo) -> TaskDyldInfo {
        TaskDyldInfo {
            all_image_info_addr: raw.all_image_info_addr,
            all_image_info_size: raw.all_image_info_size,
            all_image_info_format: raw.all_image_info_format,
        }
    }
}

impl From<RawBsdInfo> for BsdInfo {
    fn from(raw: RawBsdInfo) -> BsdInfo {
        let name = text(&raw.name);
        BsdInfo {
            flags: raw.flags,
            status: raw.status,
            ppid: raw.ppid,
            uid: raw.uid,
            name: if name.is_empty() { text(&raw.comm) } else { name },
            start_us: raw.start_seconds.saturating_mul(1_000_000).saturating_add(raw.start_microseconds),
        }
    }
}

impl RawRegionInfo {
    /// The region, with the address and the size that the call returned.
    #[must_use]
    pub fn at(self, address: u64, size: u64) -> Region {
        Region {
            address,
            size,
            protection: self.protection,
            user_tag: self.user_tag,
            is_submap: self.is_submap != 0,
        }
    }
}

/// Whether all `len` bytes at `address` are readable and not writable. `region` returns the region at an
/// address, or the next one above.
pub fn constant(address: u64, len: u64, region: impl Fn(u64) -> Option<Region>) -> bool {
    const READ_WRITE: i32 = 3;
    let Some(end) = address.checked_add(len) else { return false };
    let mut at = address;
    while at < end {
        let Some(found) = region(at) else { return false };
        let next = found.address.saturating_add(found.size);
        if found.address > at || next <= at || found.is_submap || found.protection & READ_WRITE != 1 {
            return false;
        }
        at = next;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_match_the_kernel() {
        assert_eq!(words::<RawThreadBasicInfo>(), 10);
        assert_eq!(words::<RawThreadIdentifierInfo>(), 6);
        assert_eq!(words::<RawThreadExtendedInfo>(), 28);
        assert_eq!(words::<RawTaskDyldInfo>(), 5);
        assert_eq!(words::<RawRegionInfo>(), 19);
    }

    #[test]
    fn times_are_converted_to_nanoseconds() {
        let time = |seconds, microseconds| RawTimeValue { seconds, microseconds };
        let raw = RawThreadBasicInfo {
            user_time: time(2, 999_999),
            system_time: time(i32::MAX, -1),
            run_state: 3,
            suspend_count: 1,
            ..RawThreadBasicInfo::default()
        };
        let info = ThreadBasicInfo::from(raw);
        assert_eq!((info.user_ns, info.system_ns), (2_999_999_000, 2_147_483_647_000_000_000));
        assert_eq!((info.run_state, info.suspend_count), (3, 1));
    }

    #[test]
    fn texts_end_at_nul_or_at_the_end() {
        assert_eq!(text(b"worker\0rest"), "worker");
        assert_eq!(text(b"\0"), "");
        assert_eq!(text(b""), "");
        assert_eq!(text(&[b'a'; 64]), "a".repeat(64));
        assert_eq!(text(b"\xff\0"), "\u{fffd}");
    }

    #[test]
    fn the_short_name_replaces_a_missing_long_one() {
        let mut raw = RawBsdInfo { status: 5, ppid: 1, uid: 501, ..RawBsdInfo::default() };
        raw.comm[..5].copy_from_slice(b"short");
        assert_eq!(BsdInfo::from(raw).name, "short");
        raw.name[..4].copy_from_slice(b"long");
        let info = BsdInfo::from(raw);
        assert_eq!((info.name.as_str(), info.status, info.ppid, info.uid), ("long", 5, 1, 501));
    }

    #[test]
    fn memory_is_constant_only_if_all_of_it_is() {
        let region = |address, size, protection| Region { address, size, protection, ..Region::default() };
        let regions = [
            region(0x1000, 0x1000, 5), // r-x
            region(0x2000, 0x1000, 1), // r--
            region(0x4000, 0x1000, 1), // after a hole
            region(0x5000, 0x1000, 3), // rw-
            region(0x6000, 0x1000, 0),
        ];
        let at = |address| regions.iter().find(|r| r.address + r.size > address).copied();
        assert!(constant(0x1000, 0x2000, at), "two regions that touch");
        assert!(constant(0x1fff, 2, at), "across their border");
        assert!(constant(0x1800, 0, at), "nothing");
        assert!(!constant(0x1000, 0x2001, at), "one byte of the hole");
        assert!(!constant(0x0fff, 2, at), "begins before the first");
        assert!(!constant(0x4000, 0x1001, at), "one byte that can be written");
        assert!(!constant(0x6000, 1, at), "no access");
        assert!(!constant(0x7000, 1, at), "nothing above");
        assert!(!constant(u64::MAX, 2, at), "around the end");
        assert!(!constant(0x1000, 1, |_| Some(region(0x1000, 0, 1))), "an empty region is no progress");
        assert!(!constant(0, 1, |_| Some(Region { is_submap: true, ..region(0, 8, 1) })), "a submap");
    }
}
