/*
 * Threads for Mach-O programs: pthread objects live inside Darwin's larger ones, whose
 * sizes are those of bsd/sys/_pthread/_pthread_types.h; dispatch semaphores are Linux's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "darwin.h"

_Static_assert(sizeof(pthread_mutex_t) <= 64, "a mutex fits into Darwin's");
_Static_assert(sizeof(pthread_cond_t) <= 48, "a condition fits into Darwin's");
_Static_assert(sizeof(pthread_attr_t) <= 64, "attributes fit into Darwin's");
_Static_assert(sizeof(pthread_mutexattr_t) <= 16, "mutex attributes fit into Darwin's");

static __thread struct thread_record *own_thread;

struct start {
    void *function, *argument;
};

static void ended(void *record)
{
    thread_leave(record);
}

static void *run(void *argument)
{
    struct start start = *(struct start *)argument;
    void *result;
    free(argument);
    own_thread = thread_enter();
    pthread_cleanup_push(ended, own_thread);
    void *rooted = image_pthread ? image_export(image_pthread, "_thread_start") : NULL;
    if (rooted)
        result = call_rooted(rooted, start.function, start.argument, NULL, NULL, NULL);
    else
        result = ((void *(*)(void *))start.function)(start.argument);
    pthread_cleanup_pop(1);
    return result;
}

/* Errors are returned by all of these, not left in errno. */
static int d_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *function, void *argument)
{
    struct start *start = malloc(sizeof *start);
    *start = (struct start){function, argument};
    int failed = pthread_create(thread, attributes, run, start);
    if (failed)
        free(start);
    return failed ? darwin_errno_of(failed) : 0;
}

static int d_pthread_mutexattr_settype(pthread_mutexattr_t *attributes, int type)
{
    static const int types[] = {PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_RECURSIVE};
    if (type < 0 || type > 2)
        return 22;
    return pthread_mutexattr_settype(attributes, types[type]);
}

/*
 * PTHREAD_MUTEX_INITIALIZER and PTHREAD_COND_INITIALIZER of Darwin begin with these; those of
 * Linux are all zeros. Whoever finds an object of Darwin's first makes it one of Linux, the
 * word that tells them apart last.
 */
enum { D_MUTEX = 0x32AAABA7, D_COND = 0x3CB0B1BB };

static void *initialised(void *object, uint64_t signature, size_t size)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    if (__atomic_load_n((uint64_t *)object, __ATOMIC_ACQUIRE) != signature)
        return object;
    pthread_mutex_lock(&one_at_a_time);
    if (*(uint64_t *)object == signature) {
        memset((char *)object + 8, 0, size - 8);
        __atomic_store_n((uint64_t *)object, 0, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&one_at_a_time);
    return object;
}

static pthread_mutex_t *mutex(void *object) { return initialised(object, D_MUTEX, sizeof(pthread_mutex_t)); }
static pthread_cond_t *cond(void *object) { return initialised(object, D_COND, sizeof(pthread_cond_t)); }

static int result_of(int failed)
{
    return failed ? darwin_errno_of(failed) : 0;
}

static int d_pthread_mutex_lock(void *m) { return result_of(pthread_mutex_lock(mutex(m))); }
static int d_pthread_mutex_trylock(void *m) { return result_of(pthread_mutex_trylock(mutex(m))); }
static int d_pthread_mutex_unlock(void *m) { return result_of(pthread_mutex_unlock(mutex(m))); }
static int d_pthread_mutex_destroy(void *m) { return result_of(pthread_mutex_destroy(mutex(m))); }
static int d_pthread_cond_signal(void *c) { return result_of(pthread_cond_signal(cond(c))); }
static int d_pthread_cond_broadcast(void *c) { return result_of(pthread_cond_broadcast(cond(c))); }
static int d_pthread_cond_destroy(void *c) { return result_of(pthread_cond_destroy(cond(c))); }
static int d_pthread_cond_wait(void *c, void *m) { return result_of(pthread_cond_wait(cond(c), mutex(m))); }
static int d_pthread_join(pthread_t thread, void **result) { return result_of(pthread_join(thread, result)); }
static int d_pthread_detach(pthread_t thread) { return result_of(pthread_detach(thread)); }
static int d_pthread_attr_setstacksize(pthread_attr_t *attributes, size_t size)
{
    return result_of(pthread_attr_setstacksize(attributes, size));
}

static int d_pthread_setname_np(const char *name)
{
    if (strlen(name) >= 64)
        return 63; /* ENAMETOOLONG: MAXTHREADNAMESIZE */
    prctl(PR_SET_NAME, name);
    if (own_thread)
        snprintf(own_thread->name, sizeof own_thread->name, "%s", name);
    return 0;
}

unsigned sampler_qos;

/* libpthread, src/qos.c: EINVAL for what is no class (sys/qos.h) or a priority above it. */
static int d_pthread_set_qos_class_self_np(unsigned class, int relative)
{
    static const unsigned classes[] = {0x21, 0x19, 0x15, 0x11, 0x09};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (classes[i] == class && relative <= 0 && relative >= -15) {
            sampler_qos = class > sampler_qos ? class : sampler_qos;
            return 0;
        }
    return 22;
}

static int d_pthread_threadid_np(pthread_t thread, uint64_t *id)
{
    if (thread != 0 && !pthread_equal(thread, pthread_self()))
        not_implemented("pthread_threadid_np of another thread");
    *id = (uint64_t)syscall(SYS_gettid);
    return 0;
}

/* libpthread-539: a key is the index of a word at %gs. */
static int d_pthread_key_create(uint64_t *key, void (*destructor)(void *))
{
    static uint64_t next = TSD_FIRST_KEY;
    if (destructor)
        not_implemented("pthread_key_create with a destructor");
    *key = __atomic_fetch_add(&next, 1, __ATOMIC_SEQ_CST);
    return *key < TSD_WORDS ? 0 : 35; /* EAGAIN */
}

static void *d_pthread_getspecific(uint64_t key)
{
    void *value;
    if (key >= TSD_WORDS)
        return NULL;
    __asm__ volatile("mov %%gs:(,%1,8), %0" : "=r"(value) : "r"(key));
    return value;
}

static int d_pthread_setspecific(uint64_t key, const void *value)
{
    if (key >= TSD_WORDS)
        return 22;
    __asm__ volatile("mov %1, %%gs:(,%0,8)" : : "r"(key), "r"(value) : "memory");
    return 0;
}

static void stack_of(pthread_t thread, void **low, size_t *size)
{
    /* Of the calling thread it does not change, and Linux reads it from a file. */
    static __thread void *own_low;
    static __thread size_t own_size;
    pthread_attr_t attributes;
    if (pthread_equal(thread, pthread_self()) && own_low) {
        *low = own_low;
        *size = own_size;
        return;
    }
    if (pthread_getattr_np(thread, &attributes) != 0)
        abort();
    pthread_attr_getstack(&attributes, low, size);
    pthread_attr_destroy(&attributes);
    if (pthread_equal(thread, pthread_self())) {
        own_low = *low;
        own_size = *size;
    }
}

/* The end of the stack: it grows down from there. */
static void *d_pthread_get_stackaddr_np(pthread_t thread)
{
    void *low;
    size_t size;
    stack_of(thread, &low, &size);
    return (char *)low + size;
}

static size_t d_pthread_get_stacksize_np(pthread_t thread)
{
    void *low;
    size_t size;
    stack_of(thread, &low, &size);
    return size;
}

/* ---- dispatch semaphores: dispatch/semaphore.h */

static sem_t *d_dispatch_semaphore_create(intptr_t value)
{
    sem_t *semaphore = malloc(sizeof *semaphore);
    if (sem_init(semaphore, 0, (unsigned)value) != 0)
        abort();
    return semaphore;
}

static void d_dispatch_release(sem_t *semaphore)
{
    sem_destroy(semaphore);
    free(semaphore);
}

static intptr_t d_dispatch_semaphore_signal(sem_t *semaphore)
{
    return sem_post(semaphore);
}

/* DISPATCH_TIME_NOW plus so many nanoseconds, as a monotonic time. */
static uint64_t d_dispatch_time(uint64_t base, int64_t delta)
{
    struct timespec now;
    if (base != 0)
        not_implemented("dispatch_time from another time than now");
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    return delta > 0 && ns > UINT64_MAX - (uint64_t)delta ? UINT64_MAX : ns + (uint64_t)delta;
}

static intptr_t d_dispatch_semaphore_wait(sem_t *semaphore, uint64_t until)
{
    struct timespec deadline = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
    int result;
    do
        result = until == UINT64_MAX ? sem_wait(semaphore) : sem_clockwait(semaphore, CLOCK_MONOTONIC, &deadline);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : 49; /* KERN_OPERATION_TIMED_OUT */
}

const struct shim thread_shims[] = {
    SHIM(pthread_create), SHIM(pthread_join), SHIM(pthread_detach), SHIM(pthread_mutex_lock),
    SHIM(pthread_mutex_trylock), SHIM(pthread_mutex_unlock), SHIM(pthread_mutex_destroy),
    SHIM(pthread_cond_signal), SHIM(pthread_cond_broadcast), SHIM(pthread_cond_destroy), SHIM(pthread_cond_wait),
    SHIM(pthread_mutexattr_settype), SHIM(pthread_setname_np), SHIM(pthread_set_qos_class_self_np), SHIM(pthread_threadid_np),
    SHIM(pthread_get_stackaddr_np), SHIM(pthread_get_stacksize_np), SHIM(pthread_attr_setstacksize),
    SAME(pthread_self), SAME(pthread_attr_init), SAME(pthread_attr_destroy), SAME(pthread_mutex_init),
    SAME(pthread_mutexattr_init), SAME(pthread_mutexattr_destroy), SHIM(dispatch_semaphore_create),
    SHIM(pthread_key_create), SHIM(pthread_getspecific), SHIM(pthread_setspecific), SAME(pthread_atfork),
    SHIM(dispatch_semaphore_signal), SHIM(dispatch_semaphore_wait), SHIM(dispatch_release), SHIM(dispatch_time),
    NAMED("_darwin_run_thread_end", rooted_return),
    {NULL, NULL},
};
