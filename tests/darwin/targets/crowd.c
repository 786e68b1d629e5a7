/*
 * A program to be sampled with many threads that wait and one that works.
 *
 *   crowd THREADS    for ever
 */
#include <stddef.h>

typedef struct thread *pthread_t;
extern int pthread_create(pthread_t *, const void *, void *(*)(void *), void *);
extern int pause(void);

static volatile unsigned long sink;

__attribute__((noinline)) void work(void)
{
    for (unsigned long i = 0; i < 100000; i++)
        sink = sink * 31 + i;
}

static void *sleeper(void *unused)
{
    for (;;)
        pause();
    return unused;
}

int main(int argc, char **argv)
{
    int threads = 0;
    pthread_t thread;
    for (const char *text = argc > 1 ? argv[1] : "20"; *text >= '0' && *text <= '9'; text++)
        threads = threads * 10 + (*text - '0');
    for (int i = 0; i < threads; i++)
        pthread_create(&thread, NULL, sleeper, NULL);
    for (;;)
        work();
}
