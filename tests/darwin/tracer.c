/*
 * Holds of tasks by ptrace. Linux lets only the thread that attached make further calls,
 * so one thread makes them all; its death, with the process, lets every target go, as
 * the death of a suspension's holder does on macOS.
 *
 * A hold seizes and interrupts every thread and takes its registers; its end detaches
 * all of them. In between nothing is traced, so signals and new threads cost nothing.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mach.h"

/* ---- the thread that traces */

struct request {
    void (*run)(void *);
    void *argument;
};

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct request request;
static bool started;

__attribute__((noreturn)) static void *serve(void *unused)
{
    sigset_t all;
    (void)unused;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_mutex_lock(&door);
    for (;;) {
        while (!request.run)
            pthread_cond_wait(&changed, &door);
        request.run(request.argument);
        request.run = NULL;
        pthread_cond_broadcast(&changed);
    }
}

static void on_tracer(void (*run)(void *), void *argument)
{
    pthread_t thread;
    pthread_mutex_lock(&door);
    if (!started && pthread_create(&thread, NULL, serve, NULL) != 0)
        abort();
    started = true;
    while (request.run)
        pthread_cond_wait(&changed, &door);
    request = (struct request){run, argument};
    pthread_cond_broadcast(&changed);
    while (request.run)
        pthread_cond_wait(&changed, &door);
    pthread_mutex_unlock(&door);
}

/* ---- stops */

/* While the tracer expects stops, nobody else may wait: waitpid tells a tracer's stops to
 * any thread of its process. */
static pthread_mutex_t waiting = PTHREAD_MUTEX_INITIALIZER;

static bool is_own_child(pid_t pid)
{
    char path[64], text[512];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    const char *after = strrchr(text, ')');
    return after && sscanf(after + 1, " %*c %d", &parent) == 1 && parent == getpid();
}

/* Takes the end of a traced thread, which holds back that of its process: the thread is
 * dead, or dies. The end of an own child is left to wait_process. */
static void bury(pid_t pid, pid_t tid)
{
    int status;
    if (tid != pid || !is_own_child(pid))
        waitpid(tid, &status, __WALL);
}

static bool seize(pid_t tid)
{
    if (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0)
        return false;
    /* It may be dying; then its end is waited for. */
    ptrace(PTRACE_INTERRUPT, tid, 0, 0);
    return true;
}

/* An address space is gone after exec, too, but then there is another one. */
static bool is_dying(const struct task *task)
{
    char path[64], byte;
    if (task_alive(task))
        return false;
    snprintf(path, sizeof path, "/proc/%d/mem", task->pid);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    bool has_memory = memory >= 0 && pread(memory, &byte, 1, 0) < 0;
    if (memory >= 0)
        close(memory);
    return !has_memory;
}

/* The end of a killed process's first thread is only told after those of the others, which
 * may wait for their burial: who waited for it without looking around would wait for ever. */
static bool first_is_dying(const struct task *task, pid_t tid)
{
    siginfo_t info;
    for (int tries = 0; task->pid == tid; tries++) {
        info.si_pid = 0;
        waitid(P_PID, (id_t)tid, &info, WSTOPPED | WEXITED | WNOWAIT | WNOHANG | __WALL);
        if (info.si_pid != 0)
            return false;
        if (is_dying(task))
            return true;
        if (tries < 50)
            sched_yield();
        else
            usleep(50);
    }
    return false;
}

/* Waits for the stop of a thread that was interrupted: false if it has ended. */
static bool stopped(const struct task *task, struct held_thread *thread)
{
    siginfo_t info = {0};
    int status;
    if (first_is_dying(task, thread->tid))
        return true; /* still to be buried, by `release` */
    while (waitid(P_PID, (id_t)thread->tid, &info, WSTOPPED | WEXITED | WNOWAIT | __WALL) != 0)
        if (errno != EINTR)
            return false;
    if (info.si_code == CLD_EXITED || info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED) {
        bury(task->pid, thread->tid);
        return false;
    }
    if (waitpid(thread->tid, &status, __WALL) != thread->tid || !WIFSTOPPED(status))
        return false;
    /* Not stopped by the interrupt but for a signal that is about to arrive. */
    if (status >> 16 == 0 && WSTOPSIG(status) != SIGTRAP)
        thread->signal = WSTOPSIG(status);
    return ptrace(PTRACE_GETREGS, thread->tid, 0, &thread->registers) == 0;
}

static bool known(const struct task *task, pid_t tid)
{
    for (int i = 0; i < task->thread_count; i++)
        if (task->threads[i].tid == tid)
            return true;
    return false;
}

/* Interrupts all threads before it waits for any, and passes over them until one pass
 * finds no new one: threads start threads. */
static void hold(void *argument)
{
    struct task *task = argument;
    char path[64];
    int before;
    snprintf(path, sizeof path, "/proc/%d/task", task->pid);
    task->thread_count = 0;
    task->threads = malloc(THREADS_MAX * sizeof *task->threads);
    do {
        const struct dirent *entry;
        DIR *directory = opendir(path);
        int kept = before = task->thread_count;
        while (directory && (entry = readdir(directory)) && task->thread_count < THREADS_MAX) {
            pid_t tid = atoi(entry->d_name);
            if (tid > 0 && !known(task, tid) && seize(tid))
                task->threads[task->thread_count++] = (struct held_thread){.tid = tid};
        }
        if (directory)
            closedir(directory);
        /* The last first: if all are killed now, the first thread ends after the others. */
        for (int i = task->thread_count - 1; i >= before; i--)
            if (!stopped(task, &task->threads[i]))
                task->threads[i].tid = 0;
        for (int i = before; i < task->thread_count; i++)
            if (task->threads[i].tid != 0)
                task->threads[kept++] = task->threads[i];
        task->thread_count = kept;
    } while (task->thread_count > before);
}

static void release(void *argument)
{
    struct task *task = argument;
    /* The first thread last: it does not end before the others. */
    for (int i = task->thread_count - 1; i >= 0; i--)
        if (ptrace(PTRACE_DETACH, task->threads[i].tid, 0, task->threads[i].signal) != 0)
            bury(task->pid, task->threads[i].tid);
    free(task->threads);
    task->threads = NULL;
    task->thread_count = 0;
}

bool tracer_hold(struct task *task)
{
    pthread_mutex_lock(&waiting);
    on_tracer(hold, task);
    pthread_mutex_unlock(&waiting);
    return task->thread_count > 0;
}

void tracer_release(struct task *task)
{
    pthread_mutex_lock(&waiting);
    on_tracer(release, task);
    pthread_mutex_unlock(&waiting);
}

struct one {
    const struct task *task;
    struct held_thread thread;
    bool stopped;
};

static void look(void *argument)
{
    struct one *one = argument;
    one->stopped = seize(one->thread.tid) && stopped(one->task, &one->thread);
    if (one->stopped && ptrace(PTRACE_DETACH, one->thread.tid, 0, one->thread.signal) != 0) {
        bury(one->task->pid, one->thread.tid);
        one->stopped = false;
    }
}

bool tracer_registers(const struct task *task, pid_t tid, struct user_regs_struct *registers)
{
    struct one one = {.task = task, .thread = {.tid = tid}};
    pthread_mutex_lock(&waiting);
    on_tracer(look, &one);
    pthread_mutex_unlock(&waiting);
    *registers = one.thread.registers;
    return one.stopped;
}

pid_t wait_process(pid_t pid, int *status, int options)
{
    for (;;) {
        pthread_mutex_lock(&waiting);
        pid_t waited = waitpid(pid, status, options | WNOHANG);
        pthread_mutex_unlock(&waiting);
        if (waited > 0 && WIFSTOPPED(*status) && !(options & WUNTRACED))
            waited = 0; /* a stop of a traced child that went on by SIGCONT */
        if (waited != 0 || options & WNOHANG)
            return waited;
        usleep(1000);
    }
}
