/*
 * Signals by Darwin's numbers and layouts: bsd/sys/signal.h. Sets have 32 bits; handlers
 * are called through one function that turns number and siginfo back.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "darwin.h"

/* By Darwin's number; 0: Linux has no such signal (EMT, INFO). */
static const int linux_signals[32] = {
    0,       SIGHUP,  SIGINT,  SIGQUIT, SIGILL,   SIGTRAP, SIGABRT, 0,       SIGFPE,  SIGKILL,   SIGBUS,
    SIGSEGV, SIGSYS,  SIGPIPE, SIGALRM, SIGTERM,  SIGURG,  SIGSTOP, SIGTSTP, SIGCONT, SIGCHLD,   SIGTTIN,
    SIGTTOU, SIGIO,   SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGWINCH, 0,     SIGUSR1, SIGUSR2,
};

int linux_signal_of(int darwin_signal)
{
    if (darwin_signal == 0)
        return 0;
    return darwin_signal > 0 && darwin_signal < 32 && linux_signals[darwin_signal] ? linux_signals[darwin_signal]
                                                                                    : -1;
}

int darwin_signal_of(int linux_signal)
{
    for (int number = 1; number < 32; number++)
        if (linux_signals[number] == linux_signal)
            return number;
    not_implemented("signal %d of Linux", linux_signal);
}

int darwin_wait_status(int status)
{
    if (WIFSIGNALED(status))
        return darwin_signal_of(WTERMSIG(status)) | (status & 0x80);
    if (WIFSTOPPED(status))
        return darwin_signal_of(WSTOPSIG(status)) << 8 | 0x7f;
    return status;
}

struct darwin_sigaction {
    void *handler;
    uint32_t mask;
    int32_t flags;
};
struct darwin_siginfo {
    int32_t signo, error, code, pid;
    uint32_t uid;
    int32_t status;
    void *address;
    uint64_t value, band, pad[7];
};
struct darwin_stack {
    void *sp;
    uint64_t size;
    int32_t flags;
};

static struct darwin_sigaction actions[32];

static void handle(int number, siginfo_t *info, void *context)
{
    int darwin = darwin_signal_of(number);
    struct darwin_siginfo out = {.signo = darwin, .pid = info->si_pid, .uid = info->si_uid};
    if (info->si_code <= 0)
        out.code = 0x10001; /* SI_USER */
    else if (number == SIGSEGV || number == SIGBUS || number == SIGILL || number == SIGFPE)
        out.code = info->si_code, out.address = info->si_addr; /* the codes are those of Linux */
    typedef void handler(int, void *, void *);
    ((handler *)actions[darwin].handler)(darwin, &out, context);
}

static void to_set(sigset_t *out, uint32_t mask)
{
    sigemptyset(out);
    for (int number = 1; number < 32; number++)
        if (mask & 1u << (number - 1) && linux_signals[number])
            sigaddset(out, linux_signals[number]);
}

static int d_sigaction(int number, const struct darwin_sigaction *action, struct darwin_sigaction *old)
{
    int linux_number = linux_signal_of(number);
    if (linux_number <= 0) {
        set_darwin_errno(22);
        return -1;
    }
    struct darwin_sigaction before = actions[number];
    if (before.handler == NULL) { /* perhaps ignored before exec */
        struct sigaction now;
        sigaction(linux_number, NULL, &now);
        before.handler = now.sa_handler == SIG_IGN ? (void *)1 : NULL;
    }
    if (action) {
        static const struct {
            int darwin, linux_flag;
        } flags[] = {{1, SA_ONSTACK},   {2, SA_RESTART},    {4, (int)SA_RESETHAND}, {8, SA_NOCLDSTOP},
                     {0x10, SA_NODEFER}, {0x20, SA_NOCLDWAIT}};
        struct sigaction in = {0};
        actions[number] = *action;
        if ((uint64_t)action->handler <= 1)
            in.sa_handler = action->handler ? SIG_IGN : SIG_DFL;
        else
            in.sa_sigaction = handle, in.sa_flags = SA_SIGINFO;
        for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
            if (action->flags & flags[i].darwin)
                in.sa_flags |= flags[i].linux_flag;
        to_set(&in.sa_mask, action->mask);
        if (RESULT(sigaction(linux_number, &in, NULL)) != 0)
            return -1;
    }
    if (old)
        *old = before;
    return 0;
}

static void *d_signal(int number, void *handler)
{
    struct darwin_sigaction old, action = {handler, 0, 2};
    return d_sigaction(number, &action, &old) == 0 ? old.handler : (void *)-1;
}

static int d_sigaltstack(const struct darwin_stack *stack, struct darwin_stack *old)
{
    stack_t in = {0}, before;
    if (stack) {
        in.ss_sp = stack->sp;
        in.ss_size = stack->size;
        in.ss_flags = stack->flags & 4 ? SS_DISABLE : 0; /* SS_DISABLE is 4 there */
    }
    if (RESULT(sigaltstack(stack ? &in : NULL, &before)) != 0)
        return -1;
    if (old)
        *old = (struct darwin_stack){before.ss_sp, before.ss_size,
                                     (before.ss_flags & SS_DISABLE ? 4 : 0) | (before.ss_flags & SS_ONSTACK)};
    return 0;
}

static int d_sigemptyset(uint32_t *set)
{
    *set = 0;
    return 0;
}

static int d_sigaddset(uint32_t *set, int number)
{
    *set |= 1u << (number - 1);
    return 0;
}

static int d_pthread_sigmask(int how, const uint32_t *set, uint32_t *old)
{
    static const int hows[] = {-1, SIG_BLOCK, SIG_UNBLOCK, SIG_SETMASK}; /* 1, 2, 3 */
    sigset_t in, before;
    if (set && (how < 1 || how > 3))
        return 22;
    if (set)
        to_set(&in, *set);
    int failed = pthread_sigmask(set ? hows[how] : 0, set ? &in : NULL, &before);
    if (old) {
        *old = 0;
        for (int number = 1; number < 32; number++)
            if (linux_signals[number] && sigismember(&before, linux_signals[number]))
                *old |= 1u << (number - 1);
    }
    return failed ? darwin_errno_of(failed) : 0;
}

static int d_pause(void)
{
    return RESULT(pause());
}

static int d_kill(pid_t pid, int number)
{
    int linux_number = linux_signal_of(number);
    if (linux_number < 0) {
        set_darwin_errno(22);
        return -1;
    }
    return RESULT(kill(pid, linux_number));
}

static int d_raise(int number)
{
    int linux_number = linux_signal_of(number);
    return linux_number < 0 ? -1 : RESULT(raise(linux_number));
}

const struct shim signal_shims[] = {
    SHIM(sigaction), SHIM(signal),          SHIM(sigaltstack), SHIM(sigemptyset),
    SHIM(sigaddset), SHIM(pthread_sigmask), SHIM(pause),       SHIM(kill), SHIM(raise),
    {NULL, NULL},
};
