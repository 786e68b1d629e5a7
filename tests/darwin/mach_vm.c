/*
 * Memory of tasks: reads that are all or nothing, and regions as /proc/PID/maps tells
 * them. osfmk/vm/vm_user.c, osfmk/mach/vm_region.h. DARWIN_RUN_REFUSE may name region,
 * and cache_tables: what other tasks' shared cache holds beside code.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "mach.h"

static struct task *live_task(uint32_t name, int *result)
{
    const struct port *port = port_named(name, PORT_TASK);
    *result = KERN_SUCCESS;
    if (!port)
        *result = name == 0 ? MACH_SEND_INVALID_DEST : KERN_INVALID_ARGUMENT;
    else if (!task_alive(port->task))
        *result = MACH_SEND_INVALID_DEST;
    return port ? port->task : NULL;
}

/* osfmk/kern/kalloc.h, KHEAP_MAX_SIZE of x86_64: what a read copies through a kernel buffer. */
enum { BUFFERED_BYTES = 16 << 10 };

unsigned virtual_copies;

/* A fault is 1 for up to 16 KiB (x86_64); above, 1 for a hole and 2 for what is not
 * readable, which is not told apart here. What was read before it is not told of. */
static int d_mach_vm_read_overwrite(uint32_t name, uint64_t address, uint64_t size, uint64_t into, uint64_t *read)
{
    int result;
    take_time();
    pthread_mutex_lock(&kernel);
    const struct task *task = live_task(name, &result);
    virtual_copies += size > BUFFERED_BYTES;
    if (result == KERN_SUCCESS && address + size < address)
        result = KERN_INVALID_ARGUMENT;
    /* Behind the first pages of the image in the cache: its tables of names. */
    if (result == KERN_SUCCESS && task->pid != getpid() && address >= CACHE_BASE + 0x11000 &&
        address < CACHE_BASE + CACHE_SIZE && refused("cache_tables"))
        result = KERN_PROTECTION_FAILURE;
    if (result == KERN_SUCCESS && size > 0) {
        struct iovec to = {(void *)into, size}, from = {(void *)address, size};
        if (process_vm_readv(task->pid, &to, 1, &from, 1, 0) != (ssize_t)size)
            result = task_alive(task) ? KERN_INVALID_ADDRESS : MACH_SEND_INVALID_DEST;
    }
    pthread_mutex_unlock(&kernel);
    if (result == KERN_SUCCESS)
        *read = size;
    return result;
}

struct region_info {
    int32_t protection, max_protection, inheritance;
    uint64_t offset;
    uint32_t user_tag, pages[4], ref_count;
    uint16_t shadow_depth;
    uint8_t external_pager, share_mode;
    int32_t is_submap, behavior;
    uint32_t object_id;
    uint16_t wired, flags;
    uint32_t reusable;
    uint64_t object_id_full;
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct region_info) == 4 * 19, "vm_region_submap_info_64");
_Static_assert(offsetof(struct region_info, ref_count) == 40, "ref_count");
_Static_assert(offsetof(struct region_info, is_submap) == 48, "is_submap");

/* Whether a thread's stack lies there, guard pages included. */
static bool is_stack(const struct task *task, uint64_t from, uint64_t to)
{
    static struct thread_record records[THREADS_MAX];
    struct iovec into = {records, sizeof records};
    struct iovec at = {(void *)(task->record + offsetof(struct process_record, threads)), sizeof records};
    if (!task->record || process_vm_readv(task->pid, &into, 1, &at, 1, 0) != (ssize_t)sizeof records)
        return false;
    for (int i = 0; i < THREADS_MAX; i++)
        if (records[i].tid > 0 && from < records[i].stack_high && to >= records[i].stack_low)
            return true;
    return false;
}

/* The region at an address, or the next above. */
static int d_mach_vm_region_recurse(uint32_t name, uint64_t *address, uint64_t *size, uint32_t *depth, void *into,
                                    uint32_t *count)
{
    char path[64], line[4352];
    int result;
    take_time();
    pthread_mutex_lock(&kernel);
    const struct task *task = live_task(name, &result);
    if (result == KERN_SUCCESS && *count < 19)
        result = KERN_INVALID_ARGUMENT;
    if (result == KERN_SUCCESS && refused("region"))
        result = KERN_FAILURE;
    if (result == KERN_SUCCESS) {
        snprintf(path, sizeof path, "/proc/%d/maps", task->pid);
        FILE *maps = fopen(path, "re");
        result = KERN_INVALID_ADDRESS;
        while (maps && fgets(line, sizeof line, maps)) {
            unsigned long from, to, offset;
            char rights[8];
            if (sscanf(line, "%lx-%lx %7s %lx", &from, &to, rights, &offset) != 4 || to <= *address ||
                from >= 0x800000000000)
                continue;
            struct region_info info = {.offset = offset, .max_protection = 7, .ref_count = 1};
            info.protection = (rights[0] == 'r') | (rights[1] == 'w') << 1 | (rights[2] == 'x') << 2;
            if (strstr(line, "[stack]") || is_stack(task, from, to))
                info.user_tag = 30; /* VM_MEMORY_STACK */
            *address = from;
            *size = to - from;
            *depth = 0;
            *count = 19;
            memcpy(into, &info, sizeof info);
            result = KERN_SUCCESS;
            break;
        }
        if (maps)
            fclose(maps);
    }
    pthread_mutex_unlock(&kernel);
    return result;
}

const struct shim vm_shims[] = {
    SHIM(mach_vm_read_overwrite),
    SHIM(mach_vm_region_recurse),
    {NULL, NULL},
};
