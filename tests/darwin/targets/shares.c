/*
 * A program to be sampled, as a Mac would run it: each of its threads gives 60, 30 and
 * 10 % of its time to heavy, medium and light, under run and work; one thread sleeps.
 *
 *   shares [THREADS [SECONDS]]    without SECONDS: for ever
 */
#include <stddef.h>

typedef struct thread *pthread_t;
extern int pthread_create(pthread_t *, const void *, void *(*)(void *), void *);
extern int pthread_setname_np(const char *);
extern int pause(void);
extern unsigned long long mach_absolute_time(void);
struct timebase {
    unsigned numer, denom;
};
extern int mach_timebase_info(struct timebase *);

#define NOINLINE __attribute__((noinline))

static volatile unsigned long sink;

static inline __attribute__((always_inline)) void spin(unsigned long rounds)
{
    unsigned long value = rounds | 1;
    for (unsigned long i = 0; i < rounds; i++) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        __asm__ volatile("" : "+r"(value));
    }
    sink = value;
}

/*
 * A round takes some 2 ms: where calls are so slow that a thread runs a few hundred
 * microseconds between two stops, several samples fall into each round. With rounds as
 * short as that, stops would meet it at the same place again and again.
 */
NOINLINE void heavy(void) { spin(1200000); sink++; }
NOINLINE void medium(void) { spin(600000); sink++; }
NOINLINE void light(void) { spin(200000); sink++; }

NOINLINE void work(void)
{
    heavy();
    medium();
    light();
    sink++;
}

NOINLINE void run(unsigned long long seconds)
{
    struct timebase base;
    unsigned long long begun = mach_absolute_time();
    mach_timebase_info(&base);
    while (seconds == 0 || (mach_absolute_time() - begun) * base.numer / base.denom < seconds * 1000000000ull)
        for (int i = 0; i < 5; i++)
            work();
    sink++;
}

static unsigned long long seconds;

static void *worker(void *unused)
{
    pthread_setname_np("worker");
    run(seconds);
    return unused;
}

static void *sleeper(void *unused)
{
    pthread_setname_np("sleeper");
    for (;;)
        pause();
    return unused;
}

static int number(const char *text)
{
    int value = 0;
    while (*text >= '0' && *text <= '9')
        value = value * 10 + (*text++ - '0');
    return value;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? number(argv[1]) : 1;
    pthread_t thread;
    seconds = argc > 2 ? (unsigned long long)number(argv[2]) : 0;
    pthread_create(&thread, NULL, sleeper, NULL);
    for (int i = 1; i < threads; i++)
        pthread_create(&thread, NULL, worker, NULL);
    run(seconds);
    return 7;
}
