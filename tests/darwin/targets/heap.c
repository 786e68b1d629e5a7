/*
 * Allocates at known places, all of what a function of the allocator can do: `heap sites` ends then, `heap fork` does
 * it in a child, too, and `heap long` goes on for a while and writes what it computed.
 */
typedef unsigned long size;
extern void *malloc(size), *calloc(size, size), *realloc(void *, size), *valloc(size), *aligned_alloc(size, size);
extern int posix_memalign(void **, size, size);
extern void free(void *);
extern void *malloc_default_zone(void), *malloc_zone_malloc(void *, size), *malloc_zone_calloc(void *, size, size),
    *malloc_zone_realloc(void *, void *, size), *malloc_zone_memalign(void *, size, size), *malloc_zone_valloc(void *, size);
extern void malloc_zone_free(void *, void *);
typedef unsigned long long type;
#define WEAK __attribute__((weak_import))
extern void *malloc_type_malloc(size, type) WEAK, *malloc_type_calloc(size, size, type) WEAK,
    *malloc_type_realloc(void *, size, type) WEAK, *malloc_type_valloc(size, type) WEAK,
    *malloc_type_aligned_alloc(size, size, type) WEAK, *malloc_type_zone_malloc(void *, size, type) WEAK,
    *malloc_type_zone_calloc(void *, size, size, type) WEAK, *malloc_type_zone_realloc(void *, void *, size, type) WEAK,
    *malloc_type_zone_memalign(void *, size, size, type) WEAK, *malloc_type_zone_valloc(void *, size, type) WEAK;
extern int malloc_type_posix_memalign(void **, size, size, type) WEAK;
extern void malloc_type_free(void *, type) WEAK, malloc_type_zone_free(void *, void *, type) WEAK;
extern int pthread_create(void **, const void *, void *(*)(void *), void *), pthread_join(void *, void **);
extern int fork(void), waitpid(int, int *, int);
extern void _exit(int) __attribute__((noreturn));
extern long write(int, const void *, size);
extern unsigned long strlen(const char *);
struct timebase {
    unsigned numer, denom;
};
extern int mach_timebase_info(struct timebase *);
extern unsigned long long mach_absolute_time(void);

static void *volatile kept;
static volatile unsigned long sum;

/* A block counts where it is kept; the frame stays on the stack. */
#define SITE(name, count, call)                      \
    __attribute__((noinline)) void name(void)        \
    {                                                \
        for (int i = 0; i < (count); i++) {          \
            kept = (call);                           \
            sum += ((size)kept & 15) + (kept == 0);  \
        }                                            \
    }

__attribute__((noinline)) static void *aligned(size to, size bytes)
{
    void *block = 0;
    posix_memalign(&block, to, bytes);
    return block;
}

__attribute__((noinline)) static void *aligned_typed(size to, size bytes)
{
    void *block = 0;
    malloc_type_posix_memalign(&block, to, bytes, 5);
    return block;
}

#define ZONE malloc_default_zone()

SITE(by_malloc, 100, malloc(1000))
SITE(by_calloc, 50, calloc(10, 20))
SITE(by_realloc, 20, realloc(realloc(0, 100), 5000))
SITE(by_posix_memalign, 4, aligned(64, 4096))
SITE(by_aligned_alloc, 3, aligned_alloc(64, 640))
SITE(by_valloc, 2, valloc(777))
SITE(by_zone_malloc, 10, malloc_zone_malloc(ZONE, 333))
SITE(by_zone_calloc, 11, malloc_zone_calloc(ZONE, 7, 13))
SITE(by_zone_realloc, 12, malloc_zone_realloc(ZONE, malloc_zone_malloc(ZONE, 10), 900))
SITE(by_zone_memalign, 5, malloc_zone_memalign(ZONE, 32, 96))
SITE(by_zone_valloc, 2, malloc_zone_valloc(ZONE, 555))
SITE(by_type_malloc, 13, malloc_type_malloc(444, 5))
SITE(by_type_calloc, 14, malloc_type_calloc(3, 17, 5))
SITE(by_type_realloc, 15, malloc_type_realloc(malloc_type_malloc(10, 5), 800, 5))
SITE(by_type_posix_memalign, 6, aligned_typed(64, 192))
SITE(by_type_aligned_alloc, 7, malloc_type_aligned_alloc(64, 128, 5))
SITE(by_type_valloc, 2, malloc_type_valloc(222, 5))
SITE(by_type_zone_malloc, 8, malloc_type_zone_malloc(ZONE, 111, 5))
SITE(by_type_zone_calloc, 9, malloc_type_zone_calloc(ZONE, 2, 31, 5))
SITE(by_type_zone_realloc, 10, malloc_type_zone_realloc(ZONE, malloc_type_zone_malloc(ZONE, 10, 5), 700, 5))
SITE(by_type_zone_memalign, 4, malloc_type_zone_memalign(ZONE, 64, 320, 5))
SITE(by_type_zone_valloc, 2, malloc_type_zone_valloc(ZONE, 99, 5))
SITE(in_thread, 20, malloc(2000))
SITE(in_child, 30, malloc(500))

__attribute__((noinline)) void freed(void)
{
    for (int i = 0; i < 1000; i++) {
        kept = malloc(64);
        free(kept);
        kept = malloc_zone_malloc(ZONE, 65);
        malloc_zone_free(ZONE, kept);
        if (malloc_type_malloc) {
            kept = malloc_type_malloc(66, 5);
            malloc_type_free(kept, 5);
            kept = malloc_type_zone_malloc(ZONE, 67, 5);
            malloc_type_zone_free(ZONE, kept, 5);
        }
    }
}

static void *worker(void *unused)
{
    in_thread();
    return unused;
}

__attribute__((noinline)) static void sites(void)
{
    void *thread;
    by_malloc(), by_calloc(), by_realloc(), by_posix_memalign(), by_aligned_alloc(), by_valloc();
    by_zone_malloc(), by_zone_calloc(), by_zone_realloc(), by_zone_memalign(), by_zone_valloc();
    if (malloc_type_malloc) {
        by_type_malloc(), by_type_calloc(), by_type_realloc(), by_type_posix_memalign();
        by_type_aligned_alloc(), by_type_valloc();
        by_type_zone_malloc(), by_type_zone_calloc(), by_type_zone_realloc(), by_type_zone_memalign();
        by_type_zone_valloc();
    }
    freed();
    pthread_create(&thread, 0, worker, 0);
    pthread_join(thread, 0);
}

/* So many milliseconds of small blocks; the number of rounds depends on no clock's reading but the last. */
static void work(unsigned long long ms)
{
    struct timebase base;
    unsigned long long begun = mach_absolute_time();
    mach_timebase_info(&base);
    do {
        for (int i = 0; i < 100; i++) {
            kept = malloc(100 + (size)i);
            free(kept);
        }
    } while ((mach_absolute_time() - begun) * base.numer / base.denom < ms * 1000000ull);
}

int main(int argc, char **argv)
{
    int status = 0;
    char how = argc > 1 ? argv[1][0] : 's';
    sites();
    if (how == 'f') {
        int child = fork();
        if (child == 0) {
            in_child();
            return 0;
        }
        waitpid(child, &status, 0);
    } else if (how == 'l') {
        work(3000);
    }
    const char *text = sum ? "wrong\n" : "done\n";
    return write(1, text, strlen(text)) < 0 || sum || status;
}
