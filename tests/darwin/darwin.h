/*
 * What the files of darwin-run share: images that were loaded, the record that each
 * process keeps of itself, and the tables of functions that stand in for libSystem.
 *
 * darwin-run runs an x86_64 Mach-O program on x86_64 Linux: both follow the System V
 * calling convention, so that only the loader and the system's functions are missing.
 * Numbers and layouts named D_* or darwin_* are those of macOS; all others are Linux's.
 */
#ifndef DARWIN_H
#define DARWIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define IMAGES_MAX 32
#define THREADS_MAX 512
/* Thread-specific words of a thread: those of the system, then those of keys. */
#define TSD_WORDS 768
#define TSD_FIRST_KEY 256

/* A function or variable of libSystem under the name that a linker gives it. */
struct shim {
    const char *name;
    void *address;
};
/* Ended by a name that is NULL. */
extern const struct shim file_shims[], plain_shims[], process_shims[], signal_shims[], socket_shims[],
    spawn_shims[], system_shims[], thread_shims[], mach_shims[], task_shims[], thread_info_shims[], vm_shims[],
    allocator_shims[], typed_allocator_shims[];

#define SAME(function) {"_" #function, (void *)(function)}
#define SHIM(function) {"_" #function, (void *)(d_##function)}
#define NAMED(name, function) {name, (void *)(function)}

/* A Mach-O file in memory. */
struct image {
    const char *path;        /* as dyld tells of it */
    const uint8_t *header;   /* where __TEXT begins */
    int64_t slide;
    uint64_t text_size;
    const uint8_t *linkedit; /* what file offsets are added to, for tables of __LINKEDIT */
    uint32_t filetype;
    uint64_t entry;          /* LC_MAIN, an address; 0: none */
    const uint8_t *tls_template;
    size_t tls_size;
    size_t tls_data_size;    /* the part that is not zero */
    const uint8_t *eh_frame, *unwind_info;
    uint8_t uuid[16];
    bool interposes;         /* has an __interpose section */
};
extern struct image images[IMAGES_MAX];
extern int image_count;

/* At the address wanted, or for 0 anywhere. */
struct image *image_map(const char *file, const char *path, uint64_t wanted);
void image_bind(struct image *image);
/* Later binds of other images get the functions of its __interpose section. */
void image_interpose(struct image *image);
void image_terminate(const struct image *image);
void image_initialize(struct image *image, int argc, char **argv, char **envp, char **apple);
void image_register_unwinding(const struct image *image);
void *image_export(const struct image *image, const char *symbol);
/* A function of libSystem: a shim, or one that says its name and aborts. */
void *system_symbol(const char *name);
/* The same; NULL if there is none. */
void *known_symbol(const char *name);
void *image_tls_block(uint64_t index);

/* ---- what a process says of itself to others that run here (the "kernel" asks it) */

struct thread_record {
    _Atomic int32_t tid; /* 0: free */
    uint32_t unused;
    uint64_t handle;     /* pthread_t of the Darwin side: thread_identifier_info */
    uint64_t stack_low, stack_high;
    char name[64];
};

/* In a memfd of this name, mapped shared; others find it in /proc/PID/maps. */
#define PROCESS_RECORD "darwin-run-process"
#define PROCESS_MAGIC 0x6e75726e69777261ull

struct process_record {
    uint64_t magic;
    uint64_t infos;      /* dyld_all_image_infos */
    uint64_t infos_size;
    char path[1024];     /* of the program */
    uint32_t argc;
    uint32_t arguments_size;
    char arguments[8192]; /* NUL-ended words */
    struct thread_record threads[THREADS_MAX];
};
extern struct process_record *own_record;

/* Reads the record of a process; false: it does not run under darwin-run. */
bool process_record_of(pid_t pid, struct process_record *record);

/* The calling thread comes, and goes. */
struct thread_record *thread_enter(void);
void thread_leave(struct thread_record *record);

/* ---- system.dylib and dyld, if they were loaded: roots of the stacks */
extern const struct image *image_dyld, *image_pthread;

/* A shared cache, if DARWIN_RUN_SYSTEM has the file `cache`: it begins with that page, has
 * the same address and UUID in every process, and pthread.dylib in it. */
#define CACHE_BASE 0x7ff800000000ull
#define CACHE_SIZE 0x1000000ull
#define CACHE_UUID "a cache's number"
extern bool has_cache;
void *call_rooted(void *function, void *a, void *b, void *c, void *d, void *e);
__attribute__((noreturn)) void rooted_return(void *value);

/* ---- conversions */
int darwin_errno_of(int linux_errno);
int linux_errno_of(int darwin_errno);
int darwin_signal_of(int linux_signal);
int linux_signal_of(int darwin_signal);
int darwin_wait_status(int linux_status);
/* Sets the calling thread's Darwin errno from Linux's. */
void take_errno(void);
void set_darwin_errno(int darwin_errno);

/* The value of a call that says -1 when it failed. */
#define RESULT(call) \
    ({ \
        __typeof__(call) result_ = (call); \
        if (result_ == -1) \
            take_errno(); \
        result_; \
    })

/* Ends this process with a message: what is not implemented must not pretend. */
__attribute__((noreturn, format(printf, 1, 2))) void not_implemented(const char *what, ...);

/* Whether the environment asks to refuse something: DARWIN_RUN_REFUSE="a b c". */
bool refused(const char *what);

/* Makes a call take longer: DARWIN_RUN_CALL_US="20-100" microseconds. */
void take_time(void);

/* The path of this loader, to start Mach-O programs with. */
extern char own_loader[4096];
/* Has a child, when it is started, stop before its first instruction. */
#define START_SUSPENDED "DARWIN_RUN_START_SUSPENDED"

/* ---- ticks, as mach_absolute_time counts */
uint64_t ticks_of_ns(uint64_t ns);
uint64_t ns_of_ticks(uint64_t ticks);
uint64_t now_ticks(void);

/* The highest QoS class that a thread asked for. */
extern unsigned sampler_qos;

/* ---- Mach */
void mach_report(void);
/* waitpid that leaves the stops of traced threads to the tracer. */
pid_t wait_process(pid_t pid, int *status, int options);

#endif
