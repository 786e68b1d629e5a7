/*
 * Zones of malloc, all of which are Linux's one, typed allocation (libmalloc, include/malloc/_malloc_type.h), and what
 * an inserted library asks of dyld and the system.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "darwin.h"

static char zone;

static void *d_malloc_default_zone(void) { return &zone; }
static void *d_malloc_zone_malloc(void *in, size_t size) { (void)in; return malloc(size); }
static void *d_malloc_zone_calloc(void *in, size_t count, size_t size) { (void)in; return calloc(count, size); }
static void *d_malloc_zone_realloc(void *in, void *block, size_t size) { (void)in; return realloc(block, size); }
static void *d_malloc_zone_memalign(void *in, size_t to, size_t size) { (void)in; return memalign(to, size); }
static void *d_malloc_zone_valloc(void *in, size_t size) { (void)in; return valloc(size); }
static void d_malloc_zone_free(void *in, void *block) { (void)in; free(block); }

static void *d_malloc_type_malloc(size_t size, uint64_t type) { (void)type; return malloc(size); }
static void *d_malloc_type_calloc(size_t count, size_t size, uint64_t type) { (void)type; return calloc(count, size); }
static void *d_malloc_type_realloc(void *block, size_t size, uint64_t type) { (void)type; return realloc(block, size); }
static void *d_malloc_type_valloc(size_t size, uint64_t type) { (void)type; return valloc(size); }
static void *d_malloc_type_aligned_alloc(size_t to, size_t size, uint64_t type) { (void)type; return aligned_alloc(to, size); }
static int d_malloc_type_posix_memalign(void **block, size_t to, size_t size, uint64_t type) { (void)type; return posix_memalign(block, to, size); }
static void d_malloc_type_free(void *block, uint64_t type) { (void)type; free(block); }
static void *d_malloc_type_zone_malloc(void *in, size_t size, uint64_t type) { (void)in, (void)type; return malloc(size); }
static void *d_malloc_type_zone_calloc(void *in, size_t count, size_t size, uint64_t type) { (void)in, (void)type; return calloc(count, size); }
static void *d_malloc_type_zone_realloc(void *in, void *block, size_t size, uint64_t type) { (void)in, (void)type; return realloc(block, size); }
static void *d_malloc_type_zone_memalign(void *in, size_t to, size_t size, uint64_t type) { (void)in, (void)type; return memalign(to, size); }
static void *d_malloc_type_zone_valloc(void *in, size_t size, uint64_t type) { (void)in, (void)type; return valloc(size); }
static void d_malloc_type_zone_free(void *in, void *block, uint64_t type) { (void)in, (void)type; free(block); }

/* CLOCK_UPTIME_RAW: mach_absolute_time in nanoseconds. */
static uint64_t d_clock_gettime_nsec_np(int clock)
{
    if (clock != 8)
        not_implemented("clock_gettime_nsec_np of clock %d", clock);
    return ns_of_ticks(now_ticks());
}

/* RLIM_INFINITY is the largest signed number there. */
static int d_getrlimit(int resource, uint64_t limits[2])
{
    struct rlimit of;
    if (resource != 1) /* RLIMIT_FSIZE, the same */
        not_implemented("getrlimit of %d", resource);
    int result = RESULT(getrlimit(RLIMIT_FSIZE, &of));
    limits[0] = of.rlim_cur > INT64_MAX ? INT64_MAX : of.rlim_cur;
    limits[1] = of.rlim_max > INT64_MAX ? INT64_MAX : of.rlim_max;
    return result;
}

struct darwin_dl_info {
    const char *path;
    const void *base;
    const char *symbol;
    const void *address;
};

static int d_dladdr(const void *address, struct darwin_dl_info *info)
{
    for (int i = 0; i < image_count; i++)
        if ((const uint8_t *)address >= images[i].header &&
            (const uint8_t *)address < images[i].header + images[i].text_size) {
            *info = (struct darwin_dl_info){images[i].path, images[i].header, NULL, NULL};
            return 1;
        }
    return 0;
}

/* Nothing is loaded or unloaded later. dyld itself is not reported. */
static void d_dyld_register_func_for_add_image(void (*notify)(const void *, int64_t))
{
    for (int i = 0; i < image_count; i++)
        if (&images[i] != image_dyld)
            notify(images[i].header, images[i].slide);
}

static void d_dyld_register_func_for_remove_image(void (*notify)(const void *, int64_t)) { (void)notify; }

const struct shim allocator_shims[] = {
    SHIM(malloc_default_zone), SHIM(malloc_zone_malloc), SHIM(malloc_zone_calloc), SHIM(malloc_zone_realloc),
    SHIM(malloc_zone_memalign), SHIM(malloc_zone_valloc), SHIM(malloc_zone_free), SAME(aligned_alloc), SAME(valloc),
    SHIM(clock_gettime_nsec_np), SHIM(getrlimit), SHIM(dladdr),
    NAMED("__dyld_register_func_for_add_image", d_dyld_register_func_for_add_image),
    NAMED("__dyld_register_func_for_remove_image", d_dyld_register_func_for_remove_image),
    {NULL, NULL},
};

/* Of macOS 14 and later. */
const struct shim typed_allocator_shims[] = {
    SHIM(malloc_type_malloc), SHIM(malloc_type_calloc), SHIM(malloc_type_realloc), SHIM(malloc_type_valloc),
    SHIM(malloc_type_aligned_alloc), SHIM(malloc_type_posix_memalign), SHIM(malloc_type_free),
    SHIM(malloc_type_zone_malloc), SHIM(malloc_type_zone_calloc), SHIM(malloc_type_zone_realloc),
    SHIM(malloc_type_zone_memalign), SHIM(malloc_type_zone_valloc), SHIM(malloc_type_zone_free),
    {NULL, NULL},
};
