//! Classifies file systems: whether a file may be read at all, and whether it may be mapped.
//!
//! A page fault in a mapped file waits for its file system, in whichever thread it happens. Only file systems
//! on this machine's storage are mapped; files on all others, including unknown ones, are copied.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// How a file's bytes may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// On storage of this machine: may be mapped.
    Local,
    /// May never answer: copied, in a thread that may hang.
    Remote,
    /// Local, unless the target could mount it itself (overlayfs in a user namespace).
    Layers,
    /// Kernel files, where a read may have any effect; with the reason for refusing.
    Kernel(&'static str),
}

/// File systems of kernel objects: regular files by their mode, but not by their behavior.
pub(super) const OF_KERNEL: [(u32, &str); 19] = [
    (0x0000_9fa0, "a file of procfs, which is not read"),
    (0x6265_6572, "a file of sysfs, which is not read"),
    (0x6462_6720, "a file of debugfs, which is not read"),
    (0x7472_6163, "a file of tracefs, which is not read"),
    (0x0027_e0eb, "a file of a cgroup, which is not read"),
    (0x6367_7270, "a file of a cgroup, which is not read"),
    (0xcafe_4a11, "a file of bpffs, which is not read"),
    (0x7363_6673, "a file of securityfs, which is not read"),
    (0x6265_6570, "a file of configfs, which is not read"),
    (0xf97c_ff8c, "a file of selinuxfs, which is not read"),
    (0x4341_5d53, "a file of smackfs, which is not read"),
    (0x5a3c_69f0, "a file of apparmorfs, which is not read"),
    (0xde5e_81e4, "a file of efivarfs, which is not read"),
    (0x6165_676c, "a file of pstore, which is not read"),
    (0x0765_5821, "a file of resctrl, which is not read"),
    (0x4249_4e4d, "a file of binfmt_misc, which is not read"),
    (0x1980_0202, "a file of mqueue, which is not read"),
    (0x0000_1cd1, "a file of devpts, which is not read"),
    (0x6e73_6673, "a file of nsfs, which is not read"),
];

/// File systems on storage of this machine (include/uapi/linux/magic.h, and out-of-tree ones).
const LOCAL: [u32; 26] = [
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs, devtmpfs, memfd
    0x8584_58f6, // ramfs, rootfs
    0x9584_58f6, // hugetlbfs
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // erofs
    0x28cd_3d45, // cramfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0xca45_1a4e, // bcachefs
    0x0000_3434, // nilfs2
    0x3153_464a, // jfs
    0x5265_4973, // reiserfs
    0x0000_9660, // isofs
    0x1501_3346, // udf
    0x0000_4d44, // vfat
    0x2011_bab0, // exfat
    0x5346_544e, // ntfs
    0x7366_746e, // ntfs3
    0x0000_4244, // hfs
    0x0000_482b, // hfs+
    0x0000_72b6, // jffs2
    0x2405_1905, // ubifs
    0x0000_137f, // minix
];

const OVERLAY: u32 = 0x794c_7630;

/// Returns the kind of file system that an open file is on. May wait for it.
pub(super) fn of(file: &File) -> io::Result<Storage> {
    // SAFETY: all bytes zero are a `statfs`; the call only writes to it.
    let (result, about) = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut about), about)
    };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // The type differs between C libraries; the kernel's numbers have 32 bits.
    #[allow(clippy::cast_lossless, clippy::unnecessary_cast)]
    Ok(by_magic(about.f_type as u64 as u32))
}

fn by_magic(magic: u32) -> Storage {
    if let Some((_, why)) = OF_KERNEL.iter().find(|(number, _)| *number == magic) {
        return Storage::Kernel(why);
    }
    match magic {
        OVERLAY => Storage::Layers,
        _ if LOCAL.contains(&magic) => Storage::Local,
        _ => Storage::Remote,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_local_file_systems_are_mapped() {
        for (file, storage) in [
            ("/proc/self/status", Storage::Kernel("a file of procfs, which is not read")),
            ("/sys/kernel/mm", Storage::Kernel("a file of sysfs, which is not read")),
            ("/dev/shm", Storage::Local),
        ] {
            assert_eq!(File::open(file).and_then(|file| of(&file)).ok(), Some(storage), "{file}");
        }
        // FUSE, NFS, CIFS, SMB2, 9p, Ceph, AFS, and an unassigned number.
        for remote in [
            0x6573_5546,
            0x6969,
            0xff53_4d42,
            0xfe53_4d42,
            0x0102_1997,
            0x00c3_6400,
            0x6b41_4653,
            0x1234_5678,
        ] {
            assert_eq!(by_magic(remote), Storage::Remote, "{remote:x}");
        }
        assert_eq!(by_magic(OVERLAY), Storage::Layers);
    }
}
