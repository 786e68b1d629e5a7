/*
 * darwin-run PROGRAM [ARGUMENT...]: runs an x86_64 Mach-O program on Linux.
 *
 * Maps the program, binds every function of libSystem that it imports to one of the
 * shims, keeps a dyld_all_image_infos like dyld's and calls its main. A function that no
 * shim implements says its name and aborts when it is called.
 *
 * DARWIN_RUN_SYSTEM names a directory with dyld.dylib and pthread.dylib (built from
 * system/): they become images whose paths exist on no disk, as macOS's own do not, and
 * every stack is rooted in them. With a file `cache` there is a shared cache, too, and
 * cached-pthread.dylib in it.
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "darwin.h"

char own_loader[4096];
struct process_record *own_record;
const struct image *image_dyld, *image_pthread;
bool has_cache;

void not_implemented(const char *what, ...)
{
    va_list arguments;
    va_start(arguments, what);
    fprintf(stderr, "darwin-run: not implemented: ");
    vfprintf(stderr, what, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

bool refused(const char *what)
{
    const char *list = getenv("DARWIN_RUN_REFUSE");
    size_t length = strlen(what);
    for (const char *at = list; at && (at = strstr(at, what)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == 0 || at[length] == ' '))
            return true;
    return false;
}

/* ---- symbols */

static void missing(const char *name)
{
    not_implemented("%s", name);
}

/* A function of its own for each missing name: mov $name, %rdi; mov $missing, %rax; jmp. */
static void *stub_for(const char *name)
{
    static uint8_t *room;
    static size_t used;
    if (!room || used + 32 > 65536) {
        used = 0;
        room = mmap(NULL, 65536, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED)
            abort();
    }
    uint8_t *code = room + used;
    used += 32;
    uint64_t text = (uint64_t)name, to = (uint64_t)missing;
    memcpy(code, "\x48\xbf", 2);
    memcpy(code + 2, &text, 8);
    memcpy(code + 10, "\x48\xb8", 2);
    memcpy(code + 12, &to, 8);
    memcpy(code + 20, "\xff\xe0", 2);
    return code;
}

void *known_symbol(const char *name)
{
    /* The last are those of macOS 14 and later. */
    const struct shim *const tables[] = {file_shims,   plain_shims,  process_shims, signal_shims,
                                         socket_shims, spawn_shims,  system_shims,  thread_shims,
                                         mach_shims,   task_shims,   thread_info_shims, vm_shims, allocator_shims,
                                         refused("malloc_type") ? allocator_shims : typed_allocator_shims};
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++)
        for (const struct shim *shim = tables[table]; shim->name; shim++)
            if (strcmp(shim->name, name) == 0)
                return shim->address;
    for (int i = 0; i < image_count; i++) {
        void *exported = image_export(&images[i], name);
        if (exported)
            return exported;
    }
    return NULL;
}

void *system_symbol(const char *name)
{
    void *known = known_symbol(name);
    return known ? known : stub_for(name);
}

/* ---- the record of this process */

static void make_record(const char *path, int argc, char **argv)
{
    int fd = memfd_create(PROCESS_RECORD, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof *own_record) != 0)
        abort();
    own_record = mmap(NULL, sizeof *own_record, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (own_record == MAP_FAILED)
        abort();
    close(fd);
    if (strlen(path) >= sizeof own_record->path)
        not_implemented("a path of more than %zu bytes", sizeof own_record->path);
    strcpy(own_record->path, path);
    own_record->argc = (uint32_t)argc;
    for (int i = 0; i < argc; i++) {
        size_t length = strlen(argv[i]) + 1;
        if (own_record->arguments_size + length > sizeof own_record->arguments)
            break;
        memcpy(own_record->arguments + own_record->arguments_size, argv[i], length);
        own_record->arguments_size += (uint32_t)length;
    }
    own_record->magic = PROCESS_MAGIC;
}

bool process_record_of(pid_t pid, struct process_record *record)
{
    char name[64], line[4352];
    if (pid == getpid()) {
        memcpy(record, own_record, sizeof *record);
        return true;
    }
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "re");
    uint64_t address = 0;
    while (maps && !address && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:" PROCESS_RECORD " "))
            address = strtoull(line, NULL, 16);
    if (maps)
        fclose(maps);
    struct iovec to = {record, sizeof *record}, from = {(void *)address, sizeof *record};
    return address && process_vm_readv(pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof *record &&
           record->magic == PROCESS_MAGIC;
}

/* ---- dyld's list of images: dyld-1378 include/mach-o/dyld_images.h */

struct image_entry {
    uint64_t address, path, modified;
};
struct all_image_infos {
    uint32_t version, count;
    _Atomic uint64_t array; /* of image_entry */
    uint64_t notification;
    uint8_t detached, initialized, unused[6];
    uint64_t dyld_address, jit, dyld_version, error_message, flags, unused1, unused2, uuid_count, uuids, self,
        initial_count, error_kind, error_strings[3], cache_slide;
    uint8_t cache_uuid[16];
    uint64_t cache_base;
    _Atomic uint64_t changed;
    uint64_t dyld_path, ports[4], reserved[7], cache_fsid, cache_object, compact, compact_size;
    uint32_t platform, aot_count;
    uint64_t aot_array, aot_changed, aot_base;
    uint8_t aot_uuid[16];
};
_Static_assert(sizeof(struct all_image_infos) == 368, "dyld_all_image_infos");
_Static_assert(offsetof(struct all_image_infos, dyld_address) == 32, "dyldImageLoadAddress");
_Static_assert(offsetof(struct all_image_infos, cache_uuid) == 160, "sharedCacheUUID");
_Static_assert(offsetof(struct all_image_infos, changed) == 184, "infoArrayChangeTimestamp");
_Static_assert(offsetof(struct all_image_infos, platform) == 320, "platform");

static struct all_image_infos *infos;

/* As the kernel finds it in dyld's file: nothing known yet. */
static void make_infos(void)
{
    infos = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (infos == MAP_FAILED)
        abort();
    infos->version = 17;
    own_record->infos = (uint64_t)infos;
    own_record->infos_size = sizeof *infos;
}

/* The order of dyld's updates: array away, count, time, new array. dyld itself is told of
 * by its own field, and is not in the array. */
static void publish_images(void)
{
    static struct image_entry entries[IMAGES_MAX];
    uint32_t count = 0;
    infos->array = 0;
    for (int i = 0; i < image_count; i++) {
        if (&images[i] == image_dyld) {
            infos->dyld_address = (uint64_t)images[i].header;
            infos->dyld_path = (uint64_t)images[i].path;
            continue;
        }
        entries[count++] = (struct image_entry){(uint64_t)images[i].header, (uint64_t)images[i].path, 0};
    }
    infos->count = infos->initial_count = count;
    infos->dyld_version = (uint64_t)"darwin-run";
    infos->self = (uint64_t)infos;
    infos->platform = 1; /* PLATFORM_MACOS */
    if (has_cache) {
        memcpy(infos->cache_uuid, CACHE_UUID, sizeof infos->cache_uuid);
        infos->cache_base = CACHE_BASE;
    }
    infos->changed = now_ticks();
    infos->array = (uint64_t)entries;
}

/* ---- threads */

struct thread_record *thread_enter(void)
{
    pthread_attr_t attributes;
    void *low;
    size_t size;
    /* libpthread-539, offsets_internal.h: the bounds of the stack lie before the TSD. */
    uint64_t *structure = calloc(16 + TSD_WORDS, sizeof *structure), *handle = structure + 16;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0 ||
        pthread_attr_getstack(&attributes, &low, &size) != 0)
        abort();
    pthread_attr_destroy(&attributes);
    handle[-6] = (uint64_t)low + size;
    handle[-5] = (uint64_t)low;
    /* The thread-specific words are at %gs, as libpthread has them on x86_64; Linux's use %fs. */
    if (syscall(SYS_arch_prctl, ARCH_SET_GS, handle) != 0)
        abort();
    for (int i = 0; i < THREADS_MAX; i++) {
        struct thread_record *record = &own_record->threads[i];
        int32_t nobody = 0;
        if (__atomic_compare_exchange_n((int32_t *)&record->tid, &nobody, -1, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            record->handle = (uint64_t)handle;
            record->stack_low = handle[-5];
            record->stack_high = handle[-6];
            record->name[0] = 0;
            record->tid = (int32_t)syscall(SYS_gettid);
            return record;
        }
    }
    not_implemented("more than %d threads", THREADS_MAX);
}

void thread_leave(struct thread_record *record)
{
    free((uint64_t *)record->handle - 16);
    record->tid = 0;
}

/* call_rooted(function, a...e): enters a function that never returns with a frame pointer
 * and a return address of 0, as the first function of a Darwin thread is entered.
 * rooted_return(value) takes the thread back to where call_rooted was called. */
__thread void *rooted_stack __attribute__((tls_model("local-exec")));
__asm__(".text\n.globl call_rooted\ncall_rooted:\n"
        "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
        "  mov %rsp, %fs:rooted_stack@tpoff\n"
        "  mov %rdi, %rax\n  mov %rsi, %rdi\n  mov %rdx, %rsi\n  mov %rcx, %rdx\n  mov %r8, %rcx\n"
        "  mov %r9, %r8\n  xor %ebp, %ebp\n  and $-16, %rsp\n  push $0\n  jmp *%rax\n"
        ".globl rooted_return\nrooted_return:\n"
        "  mov %rdi, %rax\n  mov %fs:rooted_stack@tpoff, %rsp\n"
        "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n  ret\n");

/* ---- main */

/* An image of the system: its path is one that no disk has. */
static const struct image *map_system(const char *file, const char *path, uint64_t wanted)
{
    const char *directory = getenv("DARWIN_RUN_SYSTEM");
    char whole[PATH_MAX];
    if (!directory)
        return NULL;
    snprintf(whole, sizeof whole, "%s/%s", directory, file);
    return image_map(whole, path, wanted);
}

/* DYLD_INSERT_LIBRARIES, which a hardened program does without: dyld ends a program whose inserted library is missing (dyld-1378,
 * RuntimeState::loadInsertedLibraries). */
static int map_inserted(struct image *inserted[4])
{
    const char *list = getenv("DYLD_INSERT_LIBRARIES");
    int count = 0;
    if (getenv("DARWIN_RUN_HARDENED"))
        unsetenv("DYLD_INSERT_LIBRARIES"), list = NULL;
    while (list && *list) {
        size_t length = strcspn(list, ":");
        char *path = strndup(list, length);
        list += length + (list[length] == ':');
        if (count == 4)
            not_implemented("more than four inserted libraries");
        if (access(path, R_OK) != 0) {
            fprintf(stderr, "dyld: terminating because inserted dylib '%s' could not be loaded\n", path);
            abort();
        }
        inserted[count++] = image_map(path, path, 0);
        free(path);
    }
    return count;
}

static struct image *inserted[4];
static int inserted_count;

static void terminate(void)
{
    for (int i = inserted_count; i-- > 0;)
        image_terminate(inserted[i]);
}

static void map_cache(void)
{
    const char *directory = getenv("DARWIN_RUN_SYSTEM");
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/cache", directory ? directory : "");
    int fd = directory ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    has_cache = fd >= 0;
    if (has_cache && mmap((void *)CACHE_BASE, 4096, PROT_READ, MAP_PRIVATE, fd, 0) != (void *)CACHE_BASE)
        not_implemented("a shared cache at another address");
    close(fd);
}

int main(int argc, char **argv, char **envp)
{
    char path[PATH_MAX], executable[PATH_MAX + 32];
    int first = 1;
    ssize_t length = readlink("/proc/self/exe", own_loader, sizeof own_loader - 1);
    if (argc > 2 && strcmp(argv[1], "--argv0") == 0)
        first = 3;
    if (length < 0 || first >= argc) {
        fprintf(stderr, "usage: darwin-run [--argv0 NAME] PROGRAM [ARGUMENT...]\n");
        return 125;
    }
    if (!realpath(argv[first], path)) {
        fprintf(stderr, "darwin-run: there is no %s\n", argv[first]);
        return 127;
    }
    if (first == 3)
        argv[first] = argv[2];
    argv += first;
    argc -= first;
    make_record(path, argc, argv);
    make_infos();
    struct image *program = image_map(path, path, 0);
    image_dyld = map_system("dyld.dylib", "/usr/lib/dyld", 0);
    map_cache();
    if (getenv(START_SUSPENDED)) {
        unsetenv(START_SUSPENDED);
        raise(SIGSTOP);
    }
    image_pthread = map_system(has_cache ? "cached-pthread.dylib" : "pthread.dylib",
                               "/usr/lib/system/libsystem_pthread.dylib", has_cache ? CACHE_BASE + 0x10000 : 0);
    inserted_count = map_inserted(inserted);
    for (int i = 0; i < inserted_count; i++) {
        image_bind(inserted[i]);
        image_interpose(inserted[i]);
    }
    for (int i = 0; i < image_count; i++) {
        if (!images[i].interposes)
            image_bind(&images[i]);
        image_register_unwinding(&images[i]);
    }
    thread_enter();
    publish_images();
    atexit(terminate);
    snprintf(executable, sizeof executable, "executable_path=%s", path);
    char *apple[] = {executable, NULL};
    for (int i = 0; i < inserted_count; i++)
        image_initialize(inserted[i], argc, argv, envp, apple);
    image_initialize(program, argc, argv, envp, apple);
    infos->initialized = 1;
    if (!program->entry)
        not_implemented("a program without LC_MAIN (%s)", path);
    void *start = image_dyld ? image_export(image_dyld, "_start") : NULL;
    typedef int entry(int, char **, char **, char **);
    if (!start)
        exit(((entry *)program->entry)(argc, argv, envp, apple));
    call_rooted(start, (void *)program->entry, (void *)(int64_t)argc, argv, envp, apple);
    not_implemented("dyld's start that returns");
}
