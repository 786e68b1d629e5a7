/*
 * A program that works for half a second and then becomes another one, given by its path
 * and arguments: a new task under the old number.
 */
extern int execv(const char *, char *const *);
extern unsigned long long mach_absolute_time(void);
struct timebase {
    unsigned numer, denom;
};
extern int mach_timebase_info(struct timebase *);

static volatile unsigned long sink;

__attribute__((noinline)) void before_exec(void)
{
    for (unsigned long i = 0; i < 100000; i++)
        sink += i;
}

int main(int argc, char **argv)
{
    struct timebase base;
    unsigned long long begun = mach_absolute_time();
    mach_timebase_info(&base);
    while ((mach_absolute_time() - begun) * base.numer / base.denom < 500000000ull)
        before_exec();
    return argc > 1 ? execv(argv[1], argv + 1) : 1;
}
