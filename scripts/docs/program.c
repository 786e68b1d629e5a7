/* What the examples of the documents record: uses CPU time in functions with names.
 *
 *   program            a fixed amount of work, some tenths of a second
 *   program SECONDS    works until it has used that much CPU time, and waits now and then
 *
 * With -DSLOWER one of the functions does twice its work. */
#include <stdlib.h>
#include <time.h>

#ifdef SLOWER
#define SECOND 80000
#else
#define SECOND 40000
#endif

static volatile unsigned sink;

__attribute__((noinline)) static void first(void) {
    for (unsigned i = 0; i < 40000; i++) sink += i;
}

__attribute__((noinline)) static void second(void) {
    for (unsigned i = 0; i < SECOND; i++) sink ^= i;
}

__attribute__((noinline)) static void rest(void) {
    struct timespec time = {0, 2000000};
    nanosleep(&time, NULL);
}

__attribute__((noinline)) static void work(void) {
    first();
    second();
    sink++;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    for (int round = 0; seconds > 0 ? (double)clock() / CLOCKS_PER_SEC < seconds : round < 9000; round++) {
        work();
        if (seconds > 0 && round % 500 == 499) rest();
    }
    return 0;
}
