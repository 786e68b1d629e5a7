/*
 * Files, directories, memory and descriptors for Mach-O programs: Darwin's flags and
 * layouts in, Linux's calls out. Numbers: bsd/sys/{fcntl,stat,dirent,mman,ttycom}.h of xnu.
 */
#define _GNU_SOURCE
#include <sys/file.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "darwin.h"

/* struct stat of the 64-bit inode interface. */
struct darwin_stat {
    int32_t dev;
    uint16_t mode, nlink;
    uint64_t ino;
    uint32_t uid, gid;
    int32_t rdev;
    uint32_t pad;
    struct timespec accessed, modified, changed, born;
    int64_t size, blocks;
    int32_t blksize;
    uint32_t flags, gen;
    int32_t spare[5];
};
_Static_assert(sizeof(struct darwin_stat) == 144, "stat$INODE64");

struct darwin_dirent {
    uint64_t ino, seekoff;
    uint16_t reclen, namlen;
    uint8_t type;
    char name[1024];
};
_Static_assert(offsetof(struct darwin_dirent, name) == 21, "readdir_r$INODE64");

/* One bit of flags, both ways. */
struct bit {
    int darwin, linux_bit;
};
static const struct bit open_bits[] = {
    {0x4, O_NONBLOCK},     {0x8, O_APPEND},        {0x100, O_NOFOLLOW},     {0x200, O_CREAT},
    {0x400, O_TRUNC},      {0x800, O_EXCL},        {0x80, O_SYNC},          {0x20000, O_NOCTTY},
    {0x100000, O_DIRECTORY}, {0x1000000, O_CLOEXEC},  {0x40000000, O_PATH}, /* O_SEARCH */
};
static const struct bit map_bits[] = {
    {0x1, MAP_SHARED}, {0x2, MAP_PRIVATE}, {0x10, MAP_FIXED}, {0x40, MAP_NORESERVE}, {0x1000, MAP_ANONYMOUS},
};
#define COUNT(array) (sizeof array / sizeof *array)

static int to_linux(const struct bit *bits, size_t count, int darwin, const char *what)
{
    int out = 0;
    for (size_t i = 0; i < count; i++)
        if (darwin & bits[i].darwin) {
            out |= bits[i].linux_bit;
            darwin &= ~bits[i].darwin;
        }
    if (darwin != 0)
        not_implemented("%s flags %#x", what, (unsigned)darwin);
    return out;
}

static int d_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & 0x200 ? (mode_t)va_arg(arguments, int) : 0;
    va_end(arguments);
    return RESULT(open(path, (flags & 3) | to_linux(open_bits, COUNT(open_bits), flags & ~3, "open"), mode));
}

static void fill(struct darwin_stat *out, const struct stat *in)
{
    *out = (struct darwin_stat){
        .dev = (int32_t)in->st_dev, .mode = (uint16_t)in->st_mode, .nlink = (uint16_t)in->st_nlink,
        .ino = in->st_ino, .uid = in->st_uid, .gid = in->st_gid, .rdev = (int32_t)in->st_rdev,
        .accessed = in->st_atim, .modified = in->st_mtim, .changed = in->st_ctim, .born = in->st_ctim,
        .size = in->st_size, .blocks = in->st_blocks, .blksize = (int32_t)in->st_blksize,
    };
}

static int d_stat(const char *path, struct darwin_stat *out)
{
    struct stat in;
    int result = RESULT(stat(path, &in));
    if (result == 0)
        fill(out, &in);
    return result;
}

static int d_lstat(const char *path, struct darwin_stat *out)
{
    struct stat in;
    int result = RESULT(lstat(path, &in));
    if (result == 0)
        fill(out, &in);
    return result;
}

static int d_fstat(int fd, struct darwin_stat *out)
{
    struct stat in;
    int result = RESULT(fstat(fd, &in));
    if (result == 0)
        fill(out, &in);
    return result;
}

static int d_fstatat(int at, const char *path, struct darwin_stat *out, int flags)
{
    struct stat in;
    if (flags & ~0x20) /* AT_SYMLINK_NOFOLLOW there */
        not_implemented("fstatat flags %#x", (unsigned)flags);
    int result = RESULT(fstatat(at == -2 ? AT_FDCWD : at, path, &in, flags ? AT_SYMLINK_NOFOLLOW : 0));
    if (result == 0)
        fill(out, &in);
    return result;
}

static int d_fcntl(int fd, int command, uint64_t argument)
{
    switch (command) {
    case 0: /* F_DUPFD */
    case 1: /* F_GETFD */
    case 2: /* F_SETFD */
        return RESULT(fcntl(fd, command, argument));
    case 3: { /* F_GETFL */
        int flags = RESULT(fcntl(fd, F_GETFL)), out = flags & 3;
        for (size_t i = 0; flags != -1 && i < COUNT(open_bits); i++)
            if ((flags & open_bits[i].linux_bit) == open_bits[i].linux_bit)
                out |= open_bits[i].darwin;
        return flags == -1 ? -1 : out;
    }
    case 4: /* F_SETFL */
        return RESULT(fcntl(fd, F_SETFL, to_linux(open_bits, COUNT(open_bits), (int)argument & ~3, "F_SETFL")));
    case 51: /* F_FULLFSYNC */
        return RESULT(fsync(fd));
    case 67: /* F_DUPFD_CLOEXEC */
        return RESULT(fcntl(fd, F_DUPFD_CLOEXEC, argument));
    case 50: /* F_GETPATH */ {
        char name[64];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        ssize_t length = RESULT(readlink(name, (char *)argument, 1023));
        if (length >= 0)
            ((char *)argument)[length] = 0;
        return length < 0 ? -1 : 0;
    }
    default:
        not_implemented("fcntl %d", command);
    }
}

static int d_ioctl(int fd, uint64_t request, void *argument)
{
    switch (request) {
    case 0x20006601: /* FIOCLEX */
        return RESULT(ioctl(fd, FIOCLEX));
    case 0x8004667e: /* FIONBIO */
        return RESULT(ioctl(fd, FIONBIO, argument));
    case 0x40087468: /* TIOCGWINSZ: the same structure */
        return RESULT(ioctl(fd, TIOCGWINSZ, argument));
    default:
        not_implemented("ioctl %#llx", (unsigned long long)request);
    }
}

static int d_isatty(int fd)
{
    int is = isatty(fd);
    if (!is)
        take_errno();
    return is;
}

static void *d_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    flags = to_linux(map_bits, COUNT(map_bits), flags, "mmap");
    void *result = mmap(address, length, protection, flags, flags & MAP_ANONYMOUS ? -1 : fd, offset);
    if (result == MAP_FAILED)
        take_errno();
    return result;
}

static DIR *d_opendir(const char *path)
{
    DIR *directory = opendir(path);
    if (!directory)
        take_errno();
    return directory;
}

static int d_readdir_r(DIR *directory, struct darwin_dirent *entry, struct darwin_dirent **result)
{
    errno = 0;
    const struct dirent *in = readdir(directory);
    *result = NULL;
    if (!in)
        return errno ? darwin_errno_of(errno) : 0;
    entry->ino = in->d_ino;
    entry->seekoff = (uint64_t)in->d_off;
    entry->namlen = (uint16_t)strlen(in->d_name);
    entry->reclen = (uint16_t)sizeof *entry;
    entry->type = in->d_type; /* DT_* are the same */
    memcpy(entry->name, in->d_name, entry->namlen + 1ul);
    *result = entry;
    return 0;
}

static char *d_realpath(const char *path, char *into)
{
    char *result = realpath(path, into);
    if (!result)
        take_errno();
    return result;
}

static char *d_getcwd(char *into, size_t size)
{
    char *result = getcwd(into, size);
    if (!result)
        take_errno();
    return result;
}

static int d_openat(int at, const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & 0x200 ? (mode_t)va_arg(arguments, int) : 0;
    va_end(arguments);
    if (at == -2) /* AT_FDCWD there */
        at = AT_FDCWD;
    return RESULT(openat(at, path, (flags & 3) | to_linux(open_bits, COUNT(open_bits), flags & ~3, "openat"), mode));
}

static int d_unlinkat(int at, const char *path, int flags)
{
    return RESULT(unlinkat(at == -2 ? AT_FDCWD : at, path, flags & 0x80 ? AT_REMOVEDIR : 0));
}

#define AT(at) ((at) == -2 ? AT_FDCWD : (at))
static int d_linkat(int at, const char *from, int to_at, const char *to, int flags)
{
    if (flags & ~0x40) /* AT_SYMLINK_FOLLOW there */
        not_implemented("linkat flags %#x", (unsigned)flags);
    return RESULT(linkat(AT(at), from, AT(to_at), to, flags ? AT_SYMLINK_FOLLOW : 0));
}
static int d_faccessat(int at, const char *path, int mode, int flags)
{
    if (flags & ~0x10) /* AT_EACCESS there */
        not_implemented("faccessat flags %#x", (unsigned)flags);
    return RESULT(faccessat(AT(at), path, mode, flags ? AT_EACCESS : 0));
}
static int d_mkdirat(int at, const char *path, mode_t mode) { return RESULT(mkdirat(AT(at), path, mode)); }
static int d_renameat(int at, const char *from, int to_at, const char *to)
{
    return RESULT(renameat(AT(at), from, AT(to_at), to));
}
static ssize_t d_readlinkat(int at, const char *path, char *to, size_t size)
{
    return RESULT(readlinkat(AT(at), path, to, size));
}

/* Of struct statfs with 64-bit inodes only the flags: MNT_LOCAL, as of all files here. */
static int d_fstatfs(int fd, uint8_t *out)
{
    struct stat in;
    if (RESULT(fstat(fd, &in)) != 0)
        return -1;
    const uint32_t flags = 0x1000;
    memset(out, 0, 2168);
    memcpy(out + 64, &flags, sizeof flags);
    return 0;
}

static DIR *d_fdopendir(int fd)
{
    DIR *directory = fdopendir(fd);
    if (!directory)
        take_errno();
    return directory;
}

static int d_chmod(const char *path, uint16_t mode) { return RESULT(chmod(path, mode)); }
static int d_symlink(const char *to, const char *path) { return RESULT(symlink(to, path)); }
static off_t d_lseek(int fd, off_t offset, int whence) { return RESULT(lseek(fd, offset, whence)); }
static int d_mprotect(void *at, size_t size, int protection) { return RESULT(mprotect(at, size, protection)); }
static int d_munmap(void *at, size_t size) { return RESULT(munmap(at, size)); }
/* The first five advices have the same numbers (sys/mman.h of both). */
static int d_madvise(void *at, size_t size, int advice)
{
    if (advice < 0 || advice > MADV_DONTNEED) not_implemented("madvise %d", advice);
    return RESULT(madvise(at, size, advice));
}
/* VM_INHERIT_SHARE, _COPY and _NONE are 0, 1 and 2 (mach/vm_inherit.h). What is shared here is shared with children. */
static int d_minherit(void *at, size_t size, int inherit)
{
    if (inherit != 2) not_implemented("minherit %d", inherit);
    return RESULT(madvise(at, size, MADV_DONTFORK));
}
static int d_close(int fd) { return RESULT(close(fd)); }
static int d_closedir(DIR *directory) { return RESULT(closedir(directory)); }
static int d_dirfd(DIR *directory) { return RESULT(dirfd(directory)); }
static int d_dup(int fd) { return RESULT(dup(fd)); }
static int d_dup2(int from, int to) { return RESULT(dup2(from, to)); }
static int d_chdir(const char *path) { return RESULT(chdir(path)); }
static int d_fchmod(int fd, uint16_t mode) { return RESULT(fchmod(fd, mode)); }
static int d_fchown(int fd, uid_t uid, gid_t gid) { return RESULT(fchown(fd, uid, gid)); }
static int d_chown(const char *path, uid_t uid, gid_t gid) { return RESULT(chown(path, uid, gid)); }
static int d_lchown(const char *path, uid_t uid, gid_t gid) { return RESULT(lchown(path, uid, gid)); }
static int d_chroot(const char *path) { return RESULT(chroot(path)); }
static int d_mkdir(const char *path, uint16_t mode) { return RESULT(mkdir(path, mode)); }
static int d_rmdir(const char *path) { return RESULT(rmdir(path)); }
static int d_pipe(int fds[2]) { return RESULT(pipe(fds)); }
static int d_rename(const char *from, const char *to) { return RESULT(rename(from, to)); }
static int d_ftruncate(int fd, int64_t size) { return RESULT(ftruncate(fd, size)); }
static ssize_t d_pread(int fd, void *to, size_t size, int64_t at) { return RESULT(pread(fd, to, size, at)); }
static ssize_t d_pwrite(int fd, const void *from, size_t size, int64_t at) { return RESULT(pwrite(fd, from, size, at)); }
/* The operations have the numbers of Linux. */
static int d_flock(int fd, int operation) { return RESULT(flock(fd, operation)); }
/* struct attrlist of sys/attr.h, and of the attributes the times of access and of the content. */
struct darwin_attrlist {
    uint16_t count, reserved;
    uint32_t common, volume, directory, file, fork;
};
static int d_fsetattrlist(int fd, const struct darwin_attrlist *list, const struct timespec *given, size_t size, uint32_t options)
{
    enum { MODTIME = 0x400, ACCTIME = 0x1000 };
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
    size_t count = 0;
    if (list->common & ~(uint32_t)(MODTIME | ACCTIME) || options)
        not_implemented("_fsetattrlist of %#x", list->common);
    if (list->common & MODTIME)
        times[1] = given[count++];
    if (list->common & ACCTIME)
        times[0] = given[count++];
    if (size < count * sizeof *given)
        not_implemented("_fsetattrlist with %zu bytes", size);
    return RESULT(futimens(fd, times));
}
/* Blocks are counted in 32 bits there (sys/statvfs.h). */
struct darwin_statvfs {
    uint64_t block, fragment;
    uint32_t blocks, free, available, files, free_files, available_files;
    uint64_t id, flags, name_max;
};
static int d_statvfs(const char *path, struct darwin_statvfs *out)
{
    struct statvfs in;
    int result = RESULT(statvfs(path, &in));
    uint64_t most = UINT32_MAX;
#define CLAMPED(field) (uint32_t)(in.field < most ? in.field : most)
    if (result == 0)
        *out = (struct darwin_statvfs){in.f_bsize, in.f_frsize, CLAMPED(f_blocks), CLAMPED(f_bfree),
                                       CLAMPED(f_bavail), CLAMPED(f_files), CLAMPED(f_ffree), CLAMPED(f_favail),
                                       in.f_fsid, 0, in.f_namemax};
    return result;
}
static int d_unlink(const char *path) { return RESULT(unlink(path)); }
static ssize_t d_read(int fd, void *to, size_t size) { return RESULT(read(fd, to, size)); }
static ssize_t d_write(int fd, const void *from, size_t size) { return RESULT(write(fd, from, size)); }
static ssize_t d_readv(int fd, const struct iovec *to, int count) { return RESULT(readv(fd, to, count)); }
static ssize_t d_writev(int fd, const struct iovec *from, int count) { return RESULT(writev(fd, from, count)); }
static ssize_t d_readlink(const char *path, char *to, size_t size) { return RESULT(readlink(path, to, size)); }
/* The bits of poll that both systems have in common are all that programs use. */
static int d_poll(struct pollfd *fds, unsigned count, int timeout) { return RESULT(poll(fds, count, timeout)); }

const struct shim file_shims[] = {
    SHIM(open), SHIM(fcntl), SHIM(ioctl), SHIM(isatty), SHIM(mmap), SHIM(mprotect), SHIM(munmap), SHIM(madvise),
    SHIM(minherit),
    SHIM(closedir), SHIM(dirfd), SHIM(dup), SHIM(dup2), SHIM(chdir), SHIM(fchmod), SHIM(fchown), SHIM(mkdir),
    SHIM(rmdir), SHIM(pipe), SHIM(rename), SHIM(ftruncate), SHIM(flock), SHIM(pwrite), SHIM(pread), SHIM(fsetattrlist), SHIM(unlink), SHIM(read), SHIM(write), SHIM(readv), SHIM(writev),
    SHIM(readlink), SHIM(statvfs), SHIM(poll), SHIM(lseek), SHIM(getcwd), SHIM(close),
    NAMED("_close$NOCANCEL", d_close), NAMED("_realpath$DARWIN_EXTSN", d_realpath),
    NAMED("_stat$INODE64", d_stat), NAMED("_lstat$INODE64", d_lstat), NAMED("_fstat$INODE64", d_fstat),
    NAMED("_opendir$INODE64", d_opendir), NAMED("_readdir_r$INODE64", d_readdir_r),
    SHIM(chown), SHIM(lchown), SHIM(chroot), SHIM(linkat), SHIM(mkdirat), SHIM(renameat), SHIM(readlinkat), SHIM(faccessat), NAMED("_fstatfs$INODE64", d_fstatfs),
    SHIM(openat), SHIM(unlinkat), SHIM(chmod), SHIM(symlink), NAMED("_fstatat$INODE64", d_fstatat), NAMED("_fdopendir$INODE64", d_fdopendir),
    {NULL, NULL},
};
