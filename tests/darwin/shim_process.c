/*
 * What a process can ask about itself and others without a task port: libproc, sysctl,
 * code signing, identity. Answers come from /proc and from the record that a process under
 * darwin-run keeps. Layouts: bsd/sys/{proc_info,sysctl,codesign}.h of xnu.
 *
 * DARWIN_RUN_REFUSE may name proc_pidinfo, csops.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include "darwin.h"

static int fail(int darwin_errno)
{
    set_darwin_errno(darwin_errno);
    return -1;
}

enum { D_EPERM = 1, D_ENOENT = 2, D_ESRCH = 3, D_ENOMEM = 12, D_EINVAL = 22 };

struct about {
    char name[64], state;
    int ppid, pgid;
    unsigned uid;
    unsigned long long started; /* clock ticks since the machine was started */
};

/* /proc/PID/stat: pid (name) state ppid pgid ... */
static bool about_process(pid_t pid, struct about *about)
{
    char path[64], text[1024];
    struct stat owner;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    size_t size = fread(text, 1, sizeof text - 1, file);
    bool known = fstat(fileno(file), &owner) == 0;
    fclose(file);
    text[size] = 0;
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    if (!known || !open || !close)
        return false;
    snprintf(about->name, sizeof about->name, "%.*s", (int)(close - open - 1), open + 1);
    about->uid = owner.st_uid;
    return sscanf(close + 1, " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &about->state, &about->ppid, &about->pgid, &about->started) == 4;
}

struct bsdinfo {
    uint32_t flags, status, xstatus, pid, ppid, uid, gid, ruid, rgid, svuid, svgid, reserved;
    char comm[16], name[32];
    uint32_t nfiles, pgid, pjobc, tdev, tpgid;
    int32_t nice;
    uint64_t start_seconds, start_microseconds;
};
_Static_assert(sizeof(struct bsdinfo) == 136, "PROC_PIDTBSDINFO");

/* 0 is failure: libproc returns the size that was filled. */
static int d_proc_pidinfo(pid_t pid, int flavor, uint64_t argument, void *into, int size)
{
    struct about about;
    struct process_record record;
    if (flavor != 3)
        not_implemented("proc_pidinfo flavor %d", flavor);
    if (refused("proc_pidinfo"))
        return fail(D_EPERM), 0;
    if (!about_process(pid, &about) || (about.state == 'Z' && argument == 0))
        return fail(D_ESRCH), 0;
    if (geteuid() != 0 && about.uid != geteuid())
        return fail(D_EPERM), 0;
    if (size < (int)sizeof(struct bsdinfo))
        return fail(D_ENOMEM), 0;
    struct bsdinfo info = {
        .flags = 0x10, /* LP64 */
        .status = about.state == 'Z' ? 5 : about.state == 'T' ? 4 : 2,
        .pid = (uint32_t)pid, .ppid = (uint32_t)about.ppid, .uid = about.uid, .ruid = about.uid,
        .pgid = (uint32_t)about.pgid,
        /* Linux tells it from another beginning; only that it stays the same matters. */
        .start_seconds = about.started / 100, .start_microseconds = about.started % 100 * 10000,
    };
    const char *name = about.name;
    if (about.state != 'Z' && process_record_of(pid, &record)) {
        const char *slash = strrchr(record.path, '/');
        name = slash ? slash + 1 : record.path;
    }
    snprintf(info.comm, sizeof info.comm, "%.15s", name);
    snprintf(info.name, sizeof info.name, "%.31s", name);
    memcpy(into, &info, sizeof info);
    return (int)sizeof info;
}

static int d_proc_pidpath(pid_t pid, char *into, uint32_t size)
{
    struct about about;
    struct process_record record;
    char path[64], linked[4096];
    if (size < 1024 || size > 4096)
        return fail(D_ENOMEM), 0;
    if (!about_process(pid, &about) || about.state == 'Z')
        return fail(D_ESRCH), 0;
    if (process_record_of(pid, &record))
        return snprintf(into, size, "%s", record.path);
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t length = readlink(path, linked, sizeof linked - 1);
    if (length < 0)
        return fail(D_ENOENT), 0;
    return snprintf(into, size, "%.*s", (int)length, linked);
}

/* The ids of all processes; their number. */
static int d_proc_listallpids(int *ids, int size)
{
    int count = 0;
    DIR *directory = opendir("/proc");
    if (!directory)
        return fail(D_EPERM);
    for (struct dirent *entry; (entry = readdir(directory));)
        if (isdigit((unsigned char)entry->d_name[0]) && (count + 1) * (int)sizeof *ids <= size)
            ids[count++] = atoi(entry->d_name);
    closedir(directory);
    return count;
}

/* The file that is mapped at an address: its length, 0 for none. */
static int d_proc_regionfilename(pid_t pid, uint64_t address, char *into, uint32_t size)
{
    char path[64], line[4352];
    int length = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    if (!maps)
        return fail(errno == ENOENT ? D_ESRCH : D_EPERM), 0;
    while (length == 0 && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        int at = 0;
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &from, &to, &at) == 2 && address >= from && address < to) {
            line[strcspn(line, "\n")] = 0;
            if (line[at] != '/')
                break;
            length = snprintf(into, size, "%s", line + at);
        }
    }
    fclose(maps);
    return length;
}

/* What a record would say of a process that is not under darwin-run. */
static bool record_from_proc(pid_t pid, struct process_record *record)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/%d/exe", pid);
    ssize_t length = readlink(name, record->path, sizeof record->path - 1);
    snprintf(name, sizeof name, "/proc/%d/cmdline", pid);
    FILE *file = fopen(name, "re");
    if (length < 0 || !file)
        return false;
    record->path[length] = 0;
    record->arguments_size = (uint32_t)fread(record->arguments, 1, sizeof record->arguments, file);
    fclose(file);
    record->argc = 0;
    for (uint32_t i = 0; i < record->arguments_size; i++)
        record->argc += record->arguments[i] == 0;
    return true;
}

/* KERN_PROCARGS2: argc, path, NULs, arguments, environment. */
static int procargs(pid_t pid, char *into, size_t *size)
{
    struct process_record record;
    static __thread char text[sizeof(record.path) + sizeof record.arguments + 16 + 65536];
    if (!process_record_of(pid, &record) && !record_from_proc(pid, &record))
        return fail(D_EINVAL);
    size_t length = strlen(record.path) + 1, padded = (length + 7) & ~7ul;
    memset(text, 0, sizeof text);
    memcpy(text, &record.argc, 4);
    memcpy(text + 4, record.path, length);
    memcpy(text + 4 + padded, record.arguments, record.arguments_size);
    size_t whole = 4 + padded + record.arguments_size;
    char environment[64];
    snprintf(environment, sizeof environment, "/proc/%d/environ", pid);
    FILE *file = fopen(environment, "re");
    if (file) {
        whole += fread(text + whole, 1, 65536, file);
        fclose(file);
    }
    if (into && *size < whole)
        return fail(D_ENOMEM);
    if (into)
        memcpy(into, text, whole);
    *size = whole;
    return 0;
}

static int d_sysctl(const int *name, unsigned count, void *into, size_t *size, const void *new, size_t new_size)
{
    if (new || new_size)
        not_implemented("sysctl that sets");
    if (count == 3 && name[0] == 1 && name[1] == 49)
        return procargs(name[2], into, size);
    not_implemented("sysctl {%d, %d} of %u", name[0], count > 1 ? name[1] : -1, count);
}

static int d_sysctlbyname(const char *name, void *into, size_t *size, const void *new, size_t new_size)
{
    int32_t value;
    if (new || new_size)
        not_implemented("sysctlbyname that sets");
    if (strcmp(name, "hw.ncpu") == 0 || strcmp(name, "hw.logicalcpu") == 0)
        value = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    else if (strcmp(name, "hw.pagesize") == 0)
        value = (int32_t)sysconf(_SC_PAGESIZE);
    else
        /* An Intel Mac has neither machdep.virtual_address_size (bsd/dev/arm64/sysctl.c)
         * nor sysctl.proc_translated. */
        return fail(D_ENOENT);
    if (into && *size < sizeof value)
        return fail(D_ENOMEM);
    if (into)
        memcpy(into, &value, sizeof value);
    *size = sizeof value;
    return 0;
}

static int d_csops(pid_t pid, unsigned operation, void *into, size_t size)
{
    struct about about;
    /* CS_VALID, CS_ADHOC, CS_SIGNED; DARWIN_RUN_CSFLAGS sets others. */
    uint32_t flags = 0x20000003;
    const char *text = getenv("DARWIN_RUN_CSFLAGS");
    if (operation != 0)
        not_implemented("csops %u", operation);
    if (refused("csops"))
        return fail(D_EPERM);
    if (!about_process(pid, &about))
        return fail(D_ESRCH);
    if (size < sizeof flags)
        return fail(D_EINVAL);
    if (text)
        flags = (uint32_t)strtoul(text, NULL, 0);
    memcpy(into, &flags, sizeof flags);
    return 0;
}

/* ---- this process; its arguments are those of the Mach-O program */

static int *d_NSGetArgc(void)
{
    return (int *)&own_record->argc;
}

static char ***d_NSGetArgv(void)
{
    static char *words[1024], **argv = words;
    if (!words[0]) {
        char *at = own_record->arguments, *end = at + own_record->arguments_size;
        for (int i = 0; at < end && i < 1023; i++, at += strlen(at) + 1)
            words[i] = at;
    }
    return &argv;
}

static int d_NSGetExecutablePath(char *into, uint32_t *size)
{
    uint32_t needed = (uint32_t)strlen(own_record->path) + 1;
    bool fits = *size >= needed;
    if (fits)
        memcpy(into, own_record->path, needed);
    *size = needed;
    return fits ? 0 : -1;
}

struct darwin_passwd {
    char *name, *password;
    uint32_t uid, gid;
    int64_t changed;
    char *class, *gecos, *directory, *shell;
    int64_t expires;
};

static int d_getpwuid_r(uint32_t uid, struct darwin_passwd *out, char *text, size_t size, struct darwin_passwd **found)
{
    struct passwd in, *known = NULL;
    int failed = getpwuid_r(uid, &in, text, size, &known);
    *found = known ? out : NULL;
    if (known)
        *out = (struct darwin_passwd){
            .name = in.pw_name, .password = in.pw_passwd, .uid = in.pw_uid, .gid = in.pw_gid,
            .class = "", .gecos = in.pw_gecos, .directory = in.pw_dir, .shell = in.pw_shell,
        };
    return failed;
}

/* The user of the calling thread, for files. */
static int d_pthread_setugid_np(uint32_t uid, uint32_t gid)
{
    if (uid == (uint32_t)-101) { /* KAUTH_UID_NONE: as the process */
        setfsuid(geteuid());
        setfsgid(getegid());
    } else {
        setfsgid(gid);
        setfsuid(uid);
    }
    return 0;
}

static int d_setuid(uint32_t uid) { return RESULT(setuid(uid)); }
static int d_setgid(uint32_t gid) { return RESULT(setgid(gid)); }

static int d_setgroups(int count, const uint32_t *groups)
{
    if (count < 0 || count > 16) /* NGROUPS_MAX there */
        return fail(D_EINVAL);
    return RESULT(setgroups((size_t)count, groups));
}

const struct shim process_shims[] = {
    SHIM(proc_pidinfo), SHIM(proc_pidpath), SHIM(proc_regionfilename), SHIM(proc_listallpids), SHIM(sysctl), SHIM(sysctlbyname), SHIM(csops),
    NAMED("__NSGetArgc", d_NSGetArgc), NAMED("__NSGetArgv", d_NSGetArgv),
    NAMED("__NSGetExecutablePath", d_NSGetExecutablePath),
    SAME(getpid), SAME(getppid), SAME(getuid), SAME(geteuid), SAME(getgid), SAME(getegid), SAME(getgrouplist),
    SHIM(getpwuid_r), SHIM(setuid), SHIM(setgid), SHIM(setgroups), SHIM(pthread_setugid_np),
    {NULL, NULL},
};
