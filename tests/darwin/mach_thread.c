/*
 * Calls on threads: times, names, numbers, registers. Counts and layouts:
 * osfmk/mach/thread_info.h, osfmk/mach/i386/thread_status.h.
 *
 * CPU time is /proc's sum_exec_runtime, which Linux brings up to date at each tick and
 * switch; all of it is told as user time. DARWIN_RUN_REFUSE may name thread_names, cpu_times.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "mach.h"

struct basic_info {
    int32_t user_seconds, user_microseconds, system_seconds, system_microseconds;
    int32_t cpu_usage, policy, run_state, flags, suspend_count, sleep_time;
};
struct identifier_info {
    uint64_t thread_id, thread_handle, dispatch_qaddr;
};
struct extended_info {
    uint64_t user_time, system_time;
    int32_t cpu_usage, policy, run_state, flags, sleep_time, current_priority, priority, max_priority;
    char name[64];
};
_Static_assert(sizeof(struct basic_info) == 4 * 10, "THREAD_BASIC_INFO");
_Static_assert(sizeof(struct identifier_info) == 4 * 6, "THREAD_IDENTIFIER_INFO");
_Static_assert(sizeof(struct extended_info) == 4 * 28, "THREAD_EXTENDED_INFO");

static bool read_thread_file(pid_t pid, pid_t tid, const char *file, char *into, size_t size)
{
    char path[96];
    snprintf(path, sizeof path, "/proc/%d/task/%d/%s", pid, tid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, into, size - 1);
    if (fd >= 0)
        close(fd);
    into[got > 0 ? got : 0] = 0;
    return got >= 0;
}

static bool state_and_time(const struct port *port, int32_t *state, uint64_t *ns)
{
    char text[512];
    if (!read_thread_file(port->task->pid, port->tid, "schedstat", text, sizeof text))
        return false;
    *ns = refused("cpu_times") ? 0 : strtoull(text, NULL, 10);
    if (!read_thread_file(port->task->pid, port->tid, "stat", text, sizeof text) || !strrchr(text, ')'))
        return false;
    switch (strrchr(text, ')')[2]) {
    case 'R':
        *state = 1;
        break;
    case 'S':
    case 'I':
        *state = 3;
        break;
    case 'D':
        *state = 4;
        break;
    case 't':
    case 'T':
        *state = 3; /* a thread that is held waits; 2 is for thread_stop alone */
        break;
    default: /* Z, X: ending */
        return false;
    }
    return true;
}

static int fill(const struct port *port, uint32_t flavor, void *into)
{
    int32_t state = 0;
    uint64_t ns = 0;
    struct thread_record record = {0};
    if (!state_and_time(port, &state, &ns))
        return 37; /* KERN_TERMINATED */
    if (flavor == 3) {
        struct basic_info info = {.run_state = state, .policy = 1};
        info.user_seconds = (int32_t)(ns / 1000000000);
        info.user_microseconds = (int32_t)(ns % 1000000000 / 1000);
        memcpy(into, &info, sizeof info);
        return KERN_SUCCESS;
    }
    bool known = task_thread_record(port->task, port->tid, &record);
    if (flavor == 4) {
        struct identifier_info info = {.thread_id = (uint64_t)port->tid};
        if (known) {
            info.thread_handle = record.handle;
            info.dispatch_qaddr = record.handle + 20 * 8; /* holds 0: no queue */
        }
        memcpy(into, &info, sizeof info);
        return KERN_SUCCESS;
    }
    struct extended_info info = {.user_time = ns, .run_state = state, .policy = 1, .current_priority = 31};
    if (!refused("thread_names"))
        memcpy(info.name, record.name, sizeof info.name);
    memcpy(into, &info, sizeof info);
    return KERN_SUCCESS;
}

static const struct port *live_thread(uint32_t name, int *result)
{
    const struct port *port = port_named(name, PORT_THREAD);
    *result = KERN_SUCCESS;
    if (!port)
        *result = name == 0 ? MACH_SEND_INVALID_DEST : KERN_INVALID_ARGUMENT;
    else if (!thread_alive(port->task, port->tid))
        *result = MACH_SEND_INVALID_DEST;
    return port;
}

static int d_thread_info(uint32_t name, uint32_t flavor, void *into, uint32_t *count)
{
    static const uint32_t words[6] = {0, 0, 0, 10, 6, 28};
    int result;
    take_time();
    if (flavor < 3 || flavor > 5)
        not_implemented("thread_info flavor %u", flavor);
    pthread_mutex_lock(&kernel);
    const struct port *port = live_thread(name, &result);
    if (result == KERN_SUCCESS && *count < words[flavor])
        result = KERN_INVALID_ARGUMENT;
    if (result == KERN_SUCCESS)
        result = fill(port, flavor, into);
    if (result == KERN_SUCCESS)
        *count = words[flavor];
    pthread_mutex_unlock(&kernel);
    return result;
}

/* ---- registers */

static sem_t answered;
static struct user_regs_struct answer;

/* A thread of this process tells where a signal met it. */
static void tell(int number, siginfo_t *info, void *context)
{
    const greg_t *from = ((const ucontext_t *)context)->uc_mcontext.gregs;
    (void)number, (void)info;
    answer = (struct user_regs_struct){
        .rax = (uint64_t)from[REG_RAX], .rbx = (uint64_t)from[REG_RBX], .rcx = (uint64_t)from[REG_RCX],
        .rdx = (uint64_t)from[REG_RDX], .rdi = (uint64_t)from[REG_RDI], .rsi = (uint64_t)from[REG_RSI],
        .rbp = (uint64_t)from[REG_RBP], .rsp = (uint64_t)from[REG_RSP], .r8 = (uint64_t)from[REG_R8],
        .r9 = (uint64_t)from[REG_R9], .r10 = (uint64_t)from[REG_R10], .r11 = (uint64_t)from[REG_R11],
        .r12 = (uint64_t)from[REG_R12], .r13 = (uint64_t)from[REG_R13], .r14 = (uint64_t)from[REG_R14],
        .r15 = (uint64_t)from[REG_R15], .rip = (uint64_t)from[REG_RIP], .eflags = (uint64_t)from[REG_EFL],
    };
    sem_post(&answered);
}

static bool own_registers(pid_t tid, struct user_regs_struct *registers)
{
    static bool ready;
    struct timespec patience;
    struct sigaction action = {.sa_sigaction = tell, .sa_flags = SA_SIGINFO | SA_RESTART};
    if (!ready && (sem_init(&answered, 0, 0) != 0 || sigaction(SIGRTMIN + 5, &action, NULL) != 0))
        abort();
    ready = true;
    if (syscall(SYS_tgkill, getpid(), tid, SIGRTMIN + 5) != 0)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &patience);
    patience.tv_sec += 2;
    while (sem_clockwait(&answered, CLOCK_MONOTONIC, &patience) != 0)
        if (errno != EINTR)
            return false; /* it ended meanwhile */
    *registers = answer;
    return true;
}

static bool registers_of(const struct port *port, struct user_regs_struct *registers)
{
    const struct task *task = port->task;
    if (task->pid == getpid())
        return own_registers(port->tid, registers);
    if (task->holds == 0)
        return tracer_registers(task, port->tid, registers);
    for (int i = 0; i < task->thread_count; i++)
        if (task->threads[i].tid == port->tid) {
            *registers = task->threads[i].registers;
            return true;
        }
    return false;
}

static int d_thread_get_state(uint32_t name, int flavor, uint64_t *state, uint32_t *count)
{
    int result;
    struct user_regs_struct r;
    take_time();
    if (flavor != 4)
        not_implemented("thread_get_state flavor %d", flavor);
    pthread_mutex_lock(&kernel);
    const struct port *port = live_thread(name, &result);
    if (result == KERN_SUCCESS && *count < 42)
        result = KERN_INVALID_ARGUMENT;
    if (result == KERN_SUCCESS && !registers_of(port, &r))
        result = KERN_INVALID_ARGUMENT; /* a thread that ends: 37, then 4 */
    if (result == KERN_SUCCESS) {
        const uint64_t words[21] = {r.rax, r.rbx, r.rcx, r.rdx, r.rdi, r.rsi, r.rbp, r.rsp,    r.r8, r.r9, r.r10,
                                    r.r11, r.r12, r.r13, r.r14, r.r15, r.rip, r.eflags, r.cs, r.fs, r.gs};
        memcpy(state, words, sizeof words);
        *count = 42;
    }
    pthread_mutex_unlock(&kernel);
    return result;
}

const struct shim thread_info_shims[] = {
    SHIM(thread_info),
    SHIM(thread_get_state),
    {NULL, NULL},
};
