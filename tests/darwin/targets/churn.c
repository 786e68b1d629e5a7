/*
 * A program whose threads end almost as soon as they begin, for ever: names of threads and
 * their ports come and go, and are used again.
 */
#include <stddef.h>

typedef struct thread *pthread_t;
extern int pthread_create(pthread_t *, const void *, void *(*)(void *), void *);
extern int pthread_join(pthread_t, void **);
extern int pthread_setname_np(const char *);

static volatile unsigned long sink;

__attribute__((noinline)) void brief(void)
{
    for (unsigned long i = 0; i < 400000; i++)
        sink += i;
}

static void *worker(void *unused)
{
    pthread_setname_np("brief");
    brief();
    return unused;
}

int main(void)
{
    for (;;) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, worker, NULL);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
    }
}
