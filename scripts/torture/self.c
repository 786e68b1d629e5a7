/* A program that checks itself while it is profiled: registers, memory, waits that nothing may interrupt,
   signals in order, timers, children's wait statuses, threads that come and go. What is wrong is
   counted in a file that the checker maps, too, beside a counter for each thread that has to advance.
   usage: self MAP serve [storm]     until its standard input is closed
          self MAP run MS            for so long, with a storm of forks, execs and threads
          self exit CODE             what its children are
   Exit code 7: nothing was wrong, 1: something was. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GOOD 7
#define BEATS 32
#define WAIT_MS 3
#define PERIOD_NS 4000000u

/* What the checker reads; scripts/torture/targets.py has the same offsets. */
struct map {
    atomic_ulong ready, wrong, interrupted, started, ended, beats;
    atomic_ulong beat[BEATS];
    char beat_name[BEATS][16];
    atomic_ulong text_length;
    char text[2048];
};

extern char **environ;
static struct map *map;
static const char *self, *map_path;
static atomic_int ends;
static int storm;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void tell(const char *format, va_list arguments)
{
    char line[160];
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    unsigned long at = atomic_fetch_add(&map->text_length, (unsigned long)length);
    if (at + (unsigned long)length < sizeof map->text) memcpy(map->text + at, line, (size_t)length);
}

__attribute__((format(printf, 1, 2))) static void wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    tell(format, arguments);
    va_end(arguments);
    map->wrong++;
}

/* Counted apart: a profiler that is killed, and a stop of the program itself, may interrupt some calls. */
__attribute__((format(printf, 1, 2))) static void interrupted(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    tell(format, arguments);
    va_end(arguments);
    map->interrupted++;
}

static void expect(int right, const char *what)
{
    int error = errno;
    if (!right) wrong("%s (errno %d)", what, error);
}

static void nap(long us)
{
    struct timespec t = { us / 1000000, us % 1000000 * 1000 };
    while (nanosleep(&t, &t) == -1 && errno == EINTR) {}
}

/* ---- registers and memory */

static uint64_t shuffle(uint64_t rounds, uint64_t value)
{
    for (uint64_t i = 0; i < rounds; i++) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    return value;
}

#if defined __x86_64__
/* Known values in general and vector registers and flags over a loop: 0 if all are as they were. */
static uint64_t registers_held(uint64_t rounds)
{
    uint64_t differ = 0;
    __asm__ volatile(
        "mov $0x1111111111111111, %%r8\n mov $0x2222222222222222, %%r9\n"
        "mov $0x3333333333333333, %%r10\n mov $0x4444444444444444, %%r11\n"
        "mov $0x5555555555555555, %%r12\n mov $0x6666666666666666, %%r13\n"
        "movq %%r8, %%xmm0\n movq %%r9, %%xmm7\n movq %%r10, %%xmm15\n"
        "stc\n"
        "1: dec %[rounds]\n jnz 1b\n" /* leaves the carry flag alone */
        "jc 2f\n inc %[differ]\n 2:\n"
        "movq %%xmm0, %%rax\n xor %%r8, %%rax\n or %%rax, %[differ]\n"
        "movq %%xmm7, %%rax\n xor %%r9, %%rax\n or %%rax, %[differ]\n"
        "movq %%xmm15, %%rax\n xor %%r10, %%rax\n or %%rax, %[differ]\n"
        "mov $0x1111111111111111, %%rax\n xor %%r8, %%rax\n or %%rax, %[differ]\n"
        "mov $0x4444444444444444, %%rax\n xor %%r11, %%rax\n or %%rax, %[differ]\n"
        "mov $0x5555555555555555, %%rax\n xor %%r12, %%rax\n or %%rax, %[differ]\n"
        "mov $0x6666666666666666, %%rax\n xor %%r13, %%rax\n or %%rax, %[differ]\n"
        : [rounds] "+r"(rounds), [differ] "+r"(differ)
        :
        : "rax", "r8", "r9", "r10", "r11", "r12", "r13", "xmm0", "xmm7", "xmm15", "cc");
    return differ;
}
#else
static uint64_t registers_held(uint64_t rounds)
{
    return shuffle(rounds, 42) != shuffle(rounds, 42);
}
#endif

static void registers(void)
{
    static uint64_t first;
    static double first_sum;
    double sum = 0;
    uint64_t value = shuffle(150000, 88172645463325252u);
    for (int i = 1; i < 20000; i++) sum += 1.0 / i;
    if (!first) first = value, first_sum = sum;
    expect(value == first && sum == first_sum, "a computation came out differently");
    expect(registers_held(200000) == 0, "registers or flags have changed");
    nap(1000);
}

static void memory(void)
{
    static uint64_t words[1 << 14], seed;
    for (size_t i = 0; i < 1 << 14; i++) words[i] = shuffle(1, seed + i + 1);
    nap(500);
    for (size_t i = 0; i < 1 << 14; i++)
        if (words[i] != shuffle(1, seed + i + 1)) {
            wrong("word %zu of memory has changed", i);
            break;
        }
    seed += 977;
}

/* Blocks of many sizes keep what was written to them, also when they move. */
static void blocks(void)
{
    static uint64_t seed;
    uint64_t *kept[64];
    for (size_t i = 0; i < 64; i++) {
        size_t words = 1 + shuffle(1, ++seed) % 4096;
        if (!(kept[i] = malloc(words * 8))) return;
        kept[i][0] = seed;
        if (i % 3 == 0 && !(kept[i] = realloc(kept[i], words * 24))) return;
    }
    for (size_t i = 0; i < 64; i++) {
        expect(kept[i][0] == seed - 63 + i, "a block has another content");
        free(kept[i]);
    }
    nap(500);
}

/* ---- waits that nothing interrupts: no signal is ever sent to these threads */

static int last_wait;

static void waited(const char *call, int result, int expected_error, uint64_t began)
{
    int error = errno;
    uint64_t took_ns = now_ns() - began;
    if (result == -1 && error == EINTR) {
        interrupted("%s was interrupted", call);
        return;
    }
    if (expected_error ? result != -1 || error != expected_error : result != 0) wrong("%s: %d, errno %d", call, result, error);
    /* A socket's timeout ends with a tick of the kernel, the first of which may come at once. */
    else if (strcmp(call, "recv") && took_ns < WAIT_MS * 1000000u - 100000u) wrong("%s ended after %llu ns", call, (unsigned long long)took_ns);
}

static void waits(void)
{
    static int epoll = -1, semaphores = -1, sockets[2];
    static sem_t semaphore;
    struct timespec span = { 0, WAIT_MS * 1000000 };
    struct timeval span_us = { 0, WAIT_MS * 1000 };
    if (epoll == -1) {
        epoll = epoll_create1(0);
        semaphores = semget(IPC_PRIVATE, 1, 0600);
        if (semaphores != -1) semctl(semaphores, 0, SETVAL, 0);
        sem_init(&semaphore, 0, 0);
        socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
        setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &span_us, sizeof span_us);
    }
    struct epoll_event event;
    struct timespec real;
    char byte;
    sigset_t none;
    sigemptyset(&none);
    sigaddset(&none, SIGUSR2);
    uint64_t began = now_ns();
    switch (last_wait++ % 9) {
    case 0: waited("epoll_wait", epoll_wait(epoll, &event, 1, WAIT_MS), 0, began); break;
    case 1: waited("nanosleep", nanosleep(&span, NULL), 0, began); break;
    case 2: waited("poll", poll(NULL, 0, WAIT_MS), 0, began); break;
    case 3: waited("select", select(0, NULL, NULL, NULL, &span_us), 0, began); break;
    case 4: waited("ppoll", ppoll(NULL, 0, &span, &none), 0, began); break;
    case 5: waited("sigtimedwait", sigtimedwait(&none, NULL, &span), EAGAIN, began); break;
    case 6: waited("recv", (int)recv(sockets[0], &byte, 1, 0), EAGAIN, began); break;
    case 7:
        if (semaphores != -1) {
            struct sembuf down = { 0, -1, 0 };
            waited("semtimedop", semtimedop(semaphores, &down, 1, &span), EAGAIN, began);
        }
        break;
    case 8:
        clock_gettime(CLOCK_REALTIME, &real);
        real.tv_nsec += WAIT_MS * 1000000;
        if (real.tv_nsec >= 1000000000) real.tv_sec++, real.tv_nsec -= 1000000000;
        waited("sem_timedwait", sem_timedwait(&semaphore, &real), ETIMEDOUT, began);
        break;
    }
    /* Of IPC objects nothing may be left when this is killed. */
    if (semaphores != -1 && last_wait % 9 == 8) {
        semctl(semaphores, 0, IPC_RMID);
        semaphores = semget(IPC_PRIVATE, 1, 0600);
        if (semaphores != -1) semctl(semaphores, 0, SETVAL, 0);
    }
}

/* ---- pipes: each number goes there and back */

static int there[2], back[2];
static atomic_int pipe_closed;

static int transfer(ssize_t (*call)(int, void *, size_t), int fd, uint64_t *number, const char *name)
{
    ssize_t done = call(fd, number, sizeof *number);
    if (done == -1 && errno == EINTR) {
        interrupted("%s of a pipe was interrupted", name);
        return transfer(call, fd, number, name);
    }
    if (done != sizeof *number && !ends) wrong("%s of a pipe: %zd, errno %d", name, done, errno);
    return done == sizeof *number;
}

static ssize_t write_any(int fd, void *from, size_t length) { return write(fd, from, length); }

static void ping(void)
{
    static uint64_t number;
    uint64_t sent = ++number, got = 0;
    if (transfer(write_any, there[1], &sent, "write") && transfer(read, back[0], &got, "read"))
        expect(got == sent, "a number that came back by a pipe is another one");
    nap(300);
}

static void pong(void)
{
    static uint64_t last;
    uint64_t number = 0;
    if (!transfer(read, there[0], &number, "read")) {
        nap(1000);
        return;
    }
    expect(number == ++last, "numbers in a pipe are out of order");
    transfer(write_any, back[1], &number, "write");
}

/* ---- signals: queued ones in order, each handled once */

static pthread_t waiter, handler_thread;
static atomic_ulong waiter_there, handler_there;
static atomic_long queued_got, handled, handled_at;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    if (info->si_code != SI_QUEUE || info->si_pid != getpid()) wrong("a signal's sender: code %d, pid %d", info->si_code, info->si_pid);
    if (info->si_value.sival_int != (int)handled) wrong("signal %d came as number %ld", info->si_value.sival_int, (long)handled);
    handled++;
}

static void wait_for_queued(void)
{
    sigset_t set;
    siginfo_t info;
    struct timespec second = { 1, 0 };
    waiter = pthread_self();
    waiter_there = 1;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    int got = sigtimedwait(&set, &info, &second);
    if (got == -1) {
        if (errno == EINTR) interrupted("sigtimedwait of queued signals was interrupted");
        return;
    }
    if (info.si_value.sival_int != (int)queued_got || info.si_code != SI_QUEUE)
        wrong("queued signal %d came as number %ld", info.si_value.sival_int, (long)queued_got);
    queued_got++;
}

/* Stands in a read that the handler's SA_RESTART makes go on. */
static void handle_in_read(void)
{
    static int idle[2] = { -1, -1 };
    static int bytes;
    if (idle[0] == -1 && pipe(idle) == -1) return;
    handler_thread = pthread_self();
    handler_there = 1;
    if (++bytes % 8 == 0) {
        /* A poll, which a handler ends by EINTR: with a signal only. */
        long before = handled;
        int result = poll(NULL, 0, 5);
        if (result == -1 && errno == EINTR && handled == before) interrupted("poll was interrupted without a signal");
    } else {
        nap(500);
    }
}

static void send_signals(void)
{
    static int queued_sent, handled_sent;
    if (waiter_there && queued_got == queued_sent) {
        union sigval value = { .sival_int = queued_sent };
        if (pthread_sigqueue(waiter, SIGRTMIN + 1, value) == 0) queued_sent++;
    }
    if (handler_there && handled == handled_sent) {
        union sigval value = { .sival_int = handled_sent };
        if (pthread_sigqueue(handler_thread, SIGRTMIN + 2, value) == 0) handled_sent++;
    }
    handled_at = handled_sent;
    nap(700);
}

/* ---- timers: no expiry is lost, none comes early */

static void timer(void)
{
    static int fd = -1;
    static uint64_t begin, total;
    if (fd == -1) {
        fd = timerfd_create(CLOCK_MONOTONIC, 0);
        begin = now_ns();
        uint64_t first = begin + PERIOD_NS;
        struct itimerspec every = { { 0, PERIOD_NS }, { (time_t)(first / 1000000000u), (long)(first % 1000000000u) } };
        timerfd_settime(fd, TFD_TIMER_ABSTIME, &every, NULL);
    }
    uint64_t expired = 0, before = now_ns();
    ssize_t got = read(fd, &expired, sizeof expired);
    if (got == -1 && errno == EINTR) {
        interrupted("read of a timer was interrupted");
        return;
    }
    expect(got == sizeof expired, "read of a timer");
    total += expired;
    uint64_t after = now_ns();
    if (total > (after - begin) / PERIOD_NS) wrong("a timer expired too often: %llu", (unsigned long long)total);
    if (total < (before - begin) / PERIOD_NS) wrong("expiries of a timer are lost: %llu", (unsigned long long)total);
}

static void posix_timer(void)
{
    static timer_t id;
    static uint64_t begin, total;
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    if (!begin) {
        struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 3 };
        event._sigev_un._tid = (int)syscall(SYS_gettid);
        timer_create(CLOCK_MONOTONIC, &event, &id);
        begin = now_ns();
        uint64_t first = begin + PERIOD_NS;
        struct itimerspec every = { { 0, PERIOD_NS }, { (time_t)(first / 1000000000u), (long)(first % 1000000000u) } };
        timer_settime(id, TIMER_ABSTIME, &every, NULL);
    }
    uint64_t before = now_ns();
    struct timespec second = { 1, 0 };
    if (sigtimedwait(&set, &info, &second) == -1) {
        if (errno == EINTR) interrupted("sigtimedwait of a timer was interrupted");
        return;
    }
    total += 1 + (uint64_t)info.si_overrun;
    uint64_t after = now_ns();
    if (total > (after - begin) / PERIOD_NS) wrong("a timer's signals are too many: %llu", (unsigned long long)total);
    if (total + 2 < (before - begin) / PERIOD_NS) wrong("a timer's signals are lost: %llu", (unsigned long long)total);
}

/* ---- children and threads that come and go */

/* A fork that fails for want of memory or processes is no fault; its -1 would mean everybody to kill and waitpid. */
#define FORK_OR_RETURN(child)          \
    do {                               \
        (child) = fork();              \
        if ((child) == -1) {           \
            nap(1000);                 \
            return;                    \
        }                              \
    } while (0)

static int wait_status(pid_t child, int options, const char *what)
{
    int status = -1;
    pid_t got;
    while ((got = waitpid(child, &status, options)) == -1 && errno == EINTR) interrupted("waitpid was interrupted");
    if (got != child) wrong("waitpid of %s: %d, errno %d", what, got, errno);
    return status;
}

static void children(void)
{
    static int round;
    static const int killed_by[] = { SIGKILL, SIGTERM, SIGABRT };
    int number = round++, status;
    pid_t child;
    char code[16];
    switch (number % 5) {
    case 0: /* ends by itself */
        FORK_OR_RETURN(child);
        if (child == 0) _exit(number % 128);
        status = wait_status(child, 0, "a child that ends");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != number % 128) wrong("exit status %x instead of %d", (unsigned)status, number % 128);
        break;
    case 1: /* ends by a signal */
        FORK_OR_RETURN(child);
        if (child == 0) {
            signal(killed_by[number / 5 % 3], SIG_DFL);
            raise(killed_by[number / 5 % 3]);
            _exit(99);
        }
        status = wait_status(child, 0, "a child that is killed");
        if (!WIFSIGNALED(status) || WTERMSIG(status) != killed_by[number / 5 % 3]) wrong("status %x of a child that was killed", (unsigned)status);
        break;
    case 2: { /* another program; posix_spawn is a vfork */
        snprintf(code, sizeof code, "%d", number % 128);
        char *arguments[] = { (char *)self, "exit", code, NULL };
        if (posix_spawn(&child, self, NULL, NULL, arguments, environ) != 0) return;
        status = wait_status(child, 0, "another program");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != number % 128) wrong("exit status %x of a program instead of %d", (unsigned)status, number % 128);
        break;
    }
    case 3: /* stops, goes on, ends */
        FORK_OR_RETURN(child);
        if (child == 0) {
            /* Where its parent is killed meanwhile, nobody else would continue it. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            raise(SIGSTOP);
            _exit(33);
        }
        status = wait_status(child, WUNTRACED, "a child that stops");
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) {
            wrong("status %x of a child that stopped", (unsigned)status);
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            break;
        }
        kill(child, SIGCONT);
        status = wait_status(child, WCONTINUED, "a child that goes on");
        /* It may have ended before this was asked. */
        if (WIFCONTINUED(status)) status = wait_status(child, 0, "a child that went on");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 33) wrong("status %x of a child that stopped and went on", (unsigned)status);
        break;
    case 4: /* a child of a thread, with a child of its own */
        FORK_OR_RETURN(child);
        if (child == 0) {
            int inner = 0;
            pid_t grandchild = fork();
            if (grandchild == 0) _exit(5);
            if (grandchild == -1) _exit(6);
            _exit(waitpid(grandchild, &inner, 0) == grandchild && WIFEXITED(inner) && WEXITSTATUS(inner) == 5 ? 6 : 98);
        }
        status = wait_status(child, 0, "a child with a child");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 6) wrong("status %x of a child with a child", (unsigned)status);
        break;
    }
    if (!storm) nap(15000);
}

static void *brief(void *argument) { return (void *)(uintptr_t)shuffle(100, (uintptr_t)argument); }

static void threads(void)
{
    pthread_t thread[4];
    int made = 0;
    for (uintptr_t i = 0; i < 4; i++) made += pthread_create(&thread[i], NULL, brief, (void *)(i + 1)) == 0;
    for (int i = 0; i < made; i++) {
        void *result;
        pthread_join(thread[i], &result);
        expect(made < 4 || (uintptr_t)result == shuffle(100, (uintptr_t)i + 1), "a thread's result");
    }
    if (!storm) nap(10000);
}

/* ---- all together */

static const struct activity {
    const char *name;
    void (*round)(void);
} activities[] = {
    { "registers", registers }, { "memory", memory }, { "blocks", blocks }, { "waits", waits }, { "ping", ping }, { "pong", pong },
    { "queued", wait_for_queued }, { "handled", handle_in_read }, { "sender", send_signals }, { "timer", timer },
    { "posix-timer", posix_timer }, { "children", children }, { "threads", threads },
};
#define ACTIVITIES (sizeof activities / sizeof *activities)

static void *act(void *argument)
{
    const struct activity *activity = argument;
    atomic_ulong *beat = &map->beat[activity - activities];
    sigset_t set;
    /* Signals for one thread are blocked in the others. */
    sigemptyset(&set);
    if (!strcmp(activity->name, "handled")) {
        sigaddset(&set, SIGRTMIN + 2);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    /* A number may be on its way when all ends: `pong` answers until the pipe is closed, or `ping` would wait for ever. */
    while (activity->round == pong ? !pipe_closed : !ends) {
        activity->round();
        ++*beat;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "exit")) return atoi(argv[2]);
    if (argc < 3) return 2;
    self = "/proc/self/exe";
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length > 0) path[length] = 0, self = path;
    map_path = argv[1];
    int serves = !strcmp(argv[2], "serve");
    storm = !serves || argc > 3;
    int file = open(map_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file == -1 || ftruncate(file, sizeof *map) == -1) return 2;
    map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED || pipe(there) == -1 || pipe(back) == -1) return 2;
    map->started = (unsigned long)getpid();
    sigset_t set;
    sigemptyset(&set);
    for (int i = 1; i <= 3; i++) sigaddset(&set, SIGRTMIN + i);
    sigaddset(&set, SIGUSR2);
    /* A signal that a process ignores can, rarely, interrupt a wait under ptrace: docs/limits.md. This one would be. */
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGRTMIN + 2, &action, NULL);
    pthread_t thread[ACTIVITIES];
    for (size_t i = 0; i < ACTIVITIES; i++) {
        strncpy(map->beat_name[i], activities[i].name, sizeof map->beat_name[i] - 1);
        if (pthread_create(&thread[i], NULL, act, (void *)&activities[i]) != 0) return 2;
    }
    map->beats = ACTIVITIES;
    map->ready = 1;
    if (!serves) {
        nap(argc > 3 ? atol(argv[3]) * 1000 : 500000);
    } else {
        char byte;
        while (read(0, &byte, 1) > 0) {}
    }
    ends = 1;
    /* Those that wait for each other by a pipe end with it. */
    for (size_t i = 0; i < ACTIVITIES; i++)
        if (activities[i].round == ping) {
            pthread_join(thread[i], NULL);
            pipe_closed = 1;
            close(there[1]);
        }
    for (size_t i = 0; i < ACTIVITIES; i++)
        if (activities[i].round != ping) pthread_join(thread[i], NULL);
    map->ended = 1;
    return map->wrong ? 1 : GOOD;
}
