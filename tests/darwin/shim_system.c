/*
 * What needs no more than another name or number: memory, strings, numbers, clocks,
 * errno, limits, the list of images and the unwinder.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include "darwin.h"

/* ---- errno: bsd/sys/errno.h; 1 to 34 are the same, but for 11 */

static const struct {
    int darwin, linux_errno;
} errnos[] = {
    {35, EAGAIN},        {11, EDEADLK},      {63, ENAMETOOLONG}, {77, ENOLCK},       {78, ENOSYS},
    {66, ENOTEMPTY},     {62, ELOOP},        {60, ETIMEDOUT},    {36, EINPROGRESS},  {84, EOVERFLOW},
    {102, EOPNOTSUPP},   {92, EILSEQ},       {48, EADDRINUSE},   {54, ECONNRESET},   {61, ECONNREFUSED},
    {37, EALREADY},      {39, EDESTADDRREQ}, {40, EMSGSIZE},     {41, EPROTOTYPE},   {42, ENOPROTOOPT},
    {43, EPROTONOSUPPORT}, {44, ESOCKTNOSUPPORT}, {46, EPFNOSUPPORT}, {47, EAFNOSUPPORT}, {49, EADDRNOTAVAIL},
    {50, ENETDOWN},      {51, ENETUNREACH},  {52, ENETRESET},    {53, ECONNABORTED}, {55, ENOBUFS},
    {56, EISCONN},       {58, ESHUTDOWN},    {64, EHOSTDOWN},    {65, EHOSTUNREACH}, {100, EPROTO},
    {57, ENOTCONN},      {38, ENOTSOCK},     {69, EDQUOT},       {70, ESTALE},       {89, ECANCELED},
};

int darwin_errno_of(int linux_errno)
{
    if (linux_errno != EAGAIN && linux_errno <= 34)
        return linux_errno;
    for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++)
        if (errnos[i].linux_errno == linux_errno)
            return errnos[i].darwin;
    not_implemented("errno %d (%s)", linux_errno, strerror(linux_errno));
}

int linux_errno_of(int darwin_errno)
{
    for (size_t i = 0; i < sizeof errnos / sizeof *errnos; i++)
        if (errnos[i].darwin == darwin_errno)
            return errnos[i].linux_errno;
    return darwin_errno <= 34 ? darwin_errno : EIO;
}

static __thread int darwin_errno;

void take_errno(void)
{
    darwin_errno = darwin_errno_of(errno);
}

void set_darwin_errno(int value)
{
    darwin_errno = value;
}

static int *d_error(void)
{
    return &darwin_errno;
}

static int d_strerror_r(int code, char *into, size_t size)
{
    snprintf(into, size, "%s", strerror(linux_errno_of(code)));
    return 0;
}

/* ---- time: bsd/sys/_types, osfmk/mach/mach_time.h */

/* DARWIN_RUN_TIMEBASE=125/3 counts as Apple silicon does; 1/1, as Intel. */
static void timebase(uint64_t *numer, uint64_t *denom)
{
    static uint64_t n, d;
    unsigned long a = 1, b = 1;
    const char *text = getenv("DARWIN_RUN_TIMEBASE");
    if (d == 0) {
        if (text && sscanf(text, "%lu/%lu", &a, &b) != 2)
            not_implemented("DARWIN_RUN_TIMEBASE=%s", text);
        n = a;
        d = b;
    }
    *numer = n;
    *denom = d;
}

uint64_t ticks_of_ns(uint64_t ns)
{
    uint64_t numer, denom;
    timebase(&numer, &denom);
    return (uint64_t)((unsigned __int128)ns * denom / numer);
}

/* Rounded up: who waits until a tick must find it passed. */
uint64_t ns_of_ticks(uint64_t ticks)
{
    uint64_t numer, denom;
    timebase(&numer, &denom);
    unsigned __int128 ns = ((unsigned __int128)ticks * numer + denom - 1) / denom;
    return ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t now_ticks(void)
{
    return ticks_of_ns(now_ns());
}

/* Busy, as a call is: a sleep takes 50 us at least. */
void take_time(void)
{
    static _Atomic uint64_t random = 88172645463325252ull;
    static long least = -1, most;
    const char *text = getenv("DARWIN_RUN_CALL_US");
    if (least < 0) {
        if (text && sscanf(text, "%ld-%ld", &least, &most) != 2)
            not_implemented("DARWIN_RUN_CALL_US=%s", text);
        if (!text)
            least = 0;
    }
    if (most <= least)
        return;
    uint64_t number = random;
    number ^= number << 13;
    number ^= number >> 7;
    number ^= number << 17;
    random = number;
    uint64_t until = now_ns() + (uint64_t)least * 1000 + number % ((uint64_t)(most - least) * 1000);
    while (now_ns() < until)
        ;
}

static int d_mach_timebase_info(uint32_t *info)
{
    uint64_t numer, denom;
    timebase(&numer, &denom);
    info[0] = (uint32_t)numer;
    info[1] = (uint32_t)denom;
    return 0;
}

/* KERN_ABORTED when a signal came. */
static int d_mach_wait_until(uint64_t deadline)
{
    uint64_t ns = ns_of_ticks(deadline);
    struct timespec until = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == 0 ? 0 : 14;
}

static int d_clock_gettime(int clock, struct timespec *into)
{
    switch (clock) {
    case 0:
        return RESULT(clock_gettime(CLOCK_REALTIME, into));
    case 4: /* MONOTONIC_RAW */
    case 6: /* MONOTONIC */
    case 8: /* UPTIME_RAW: mach_absolute_time in nanoseconds */
        return RESULT(clock_gettime(CLOCK_MONOTONIC, into));
    case 12:
        return RESULT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, into));
    case 16:
        return RESULT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, into));
    default:
        not_implemented("clock_gettime(%d)", clock);
    }
}

static int d_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    return RESULT(nanosleep(wanted, left));
}

/* ---- limits */

static long d_sysconf(int name)
{
    switch (name) { /* unistd.h */
    case 29:
        return sysconf(_SC_PAGESIZE);
    case 56:
        return sysconf(_SC_IOV_MAX);
    case 57:
    case 58:
        return sysconf(_SC_NPROCESSORS_ONLN);
    default:
        not_implemented("sysconf(%d)", name);
    }
}

struct darwin_timeval {
    int64_t seconds;
    int32_t microseconds, pad;
};
struct darwin_rusage {
    struct darwin_timeval user, system;
    int64_t maxrss, others[13];
};
_Static_assert(sizeof(struct darwin_rusage) == 144, "rusage");

static int d_getrusage(int who, struct darwin_rusage *out)
{
    struct rusage in;
    int result = RESULT(getrusage(who, &in));
    if (result == 0) {
        memset(out, 0, sizeof *out);
        out->user = (struct darwin_timeval){in.ru_utime.tv_sec, (int32_t)in.ru_utime.tv_usec, 0};
        out->system = (struct darwin_timeval){in.ru_stime.tv_sec, (int32_t)in.ru_stime.tv_usec, 0};
        out->maxrss = in.ru_maxrss * 1024; /* bytes there */
    }
    return result;
}

static int d_CCRandomGenerateBytes(void *into, size_t size)
{
    return getrandom(into, size, 0) == (ssize_t)size ? 0 : -4308; /* kCCRNGFailure */
}

static int d_getentropy(void *into, size_t size)
{
    return RESULT(getentropy(into, size));
}

/* confstr: 65537, the directory for temporary files. */
static size_t d_confstr(int name, char *into, size_t size)
{
    static const char directory[] = "/tmp/";
    if (name != 65537)
        not_implemented("confstr(%d)", name);
    if (into)
        snprintf(into, size, "%s", directory);
    return sizeof directory;
}

static void d_memset_pattern16(uint8_t *at, const uint8_t pattern[16], size_t size)
{
    for (size_t i = 0; i < size; i++)
        at[i] = pattern[i % 16];
}

static void d_bzero(void *at, size_t size)
{
    memset(at, 0, size);
}

/* ---- images */

static uint32_t d_dyld_image_count(void)
{
    return (uint32_t)image_count;
}

static const void *d_dyld_get_image_header(uint32_t index)
{
    return index < (uint32_t)image_count ? images[index].header : NULL;
}

static const char *d_dyld_get_image_name(uint32_t index)
{
    return index < (uint32_t)image_count ? images[index].path : NULL;
}

static int64_t d_dyld_get_image_vmaddr_slide(uint32_t index)
{
    return index < (uint32_t)image_count ? images[index].slide : 0;
}

static bool d_dyld_get_shared_cache_uuid(uint8_t uuid[16])
{
    if (has_cache)
        memcpy(uuid, CACHE_UUID, 16);
    return has_cache;
}

static const void *d_dyld_get_shared_cache_range(size_t *size)
{
    *size = has_cache ? CACHE_SIZE : 0;
    return has_cache ? (const void *)CACHE_BASE : NULL;
}

/* What is asked for this way can be done without: newer functions, and the Swift runtime. */
static void *d_dlopen(const char *path, int mode)
{
    (void)path, (void)mode;
    return NULL;
}

static void *d_dlsym(void *handle, const char *name)
{
    (void)handle, (void)name;
    return NULL;
}

static void d_exit(int code)
{
    mach_report();
    exit(code);
}

static void d__exit(int code)
{
    mach_report();
    _exit(code);
}

static void dyld_stub_binder(void)
{
    not_implemented("lazy binding"); /* all is bound before main */
}

const struct shim system_shims[] = {
    NAMED("___error", d_error), SHIM(strerror_r), SHIM(mach_timebase_info), SHIM(mach_wait_until),
    NAMED("_mach_absolute_time", now_ticks), SHIM(clock_gettime), SHIM(nanosleep), SHIM(sysconf), SHIM(getrusage),
    SHIM(CCRandomGenerateBytes), NAMED("___bzero", d_bzero), SHIM(dlopen), SHIM(dlsym), SHIM(getentropy), SHIM(confstr), SHIM(memset_pattern16), SHIM(exit), SHIM(_exit),
    NAMED("__dyld_image_count", d_dyld_image_count), NAMED("__dyld_get_image_header", d_dyld_get_image_header),
    NAMED("__dyld_get_image_name", d_dyld_get_image_name),
    NAMED("__dyld_get_image_vmaddr_slide", d_dyld_get_image_vmaddr_slide),
    NAMED("__dyld_get_shared_cache_uuid", d_dyld_get_shared_cache_uuid),
    NAMED("__dyld_get_shared_cache_range", d_dyld_get_shared_cache_range),
    {"dyld_stub_binder", (void *)dyld_stub_binder},
    SAME(abort), SAME(calloc), SAME(free), SAME(malloc), SAME(realloc), SAME(posix_memalign),
    SAME(memcmp), SAME(memcpy), SAME(memmove), SAME(memset), SAME(strlen), SAME(strcmp), SAME(getenv),
    SAME(exp), SAME(expm1), SAME(log), SAME(sin), SAME(cos), SAME(tan), SAME(pow), SAME(fmod), SAME(sched_yield),
    SAME(_Unwind_Backtrace), SAME(_Unwind_DeleteException), SAME(_Unwind_GetDataRelBase), SAME(_Unwind_GetIP),
    SAME(_Unwind_GetIPInfo), SAME(_Unwind_GetLanguageSpecificData), SAME(_Unwind_GetRegionStart),
    SAME(_Unwind_GetTextRelBase), SAME(_Unwind_RaiseException), SAME(_Unwind_Resume), SAME(_Unwind_SetGR),
    SAME(_Unwind_SetIP),
    {NULL, NULL},
};
