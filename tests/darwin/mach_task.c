/*
 * Calls on tasks: getting a port, holding, threads, dyld's address.
 *
 * DARWIN_RUN_REFUSE may name task_for_pid (KERN_FAILURE, as policy refuses).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "mach.h"

#define TASKS_MAX 64

static struct task tasks[TASKS_MAX];

/* Reading at address 0 fails while there is an address space, and reads nothing when it
 * is gone (fs/proc/base.c of Linux, mem_rw): at exit and at exec. */
bool task_alive(const struct task *task)
{
    char byte;
    return pread(task->memory, &byte, 1, 0) < 0;
}

bool thread_alive(const struct task *task, pid_t tid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d", task->pid, tid);
    return task_alive(task) && access(path, F_OK) == 0;
}

static uint64_t find_record(pid_t pid)
{
    char path[64], line[4352];
    uint64_t address = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    while (maps && !address && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:" PROCESS_RECORD " "))
            address = strtoull(line, NULL, 16);
    if (maps)
        fclose(maps);
    return address;
}

static bool read_task(const struct task *task, uint64_t at, void *into, size_t size)
{
    struct iovec to = {into, size}, from = {(void *)at, size};
    return process_vm_readv(task->pid, &to, 1, &from, 1, 0) == (ssize_t)size;
}

bool task_thread_record(const struct task *task, pid_t tid, struct thread_record *record)
{
    static struct thread_record records[THREADS_MAX]; /* the kernel's lock is held */
    uint64_t at = task->record + offsetof(struct process_record, threads);
    if (!task->record || !read_task(task, at, records, sizeof records))
        return false;
    for (int i = 0; i < THREADS_MAX; i++)
        if (records[i].tid == tid) {
            *record = records[i];
            return true;
        }
    return false;
}

/* The task that a process is now; NULL if there is none, or no room. */
struct task *task_of_pid(pid_t pid)
{
    char path[64];
    struct task *task = NULL;
    for (int i = 0; i < TASKS_MAX; i++) {
        if (tasks[i].pid == pid && task_alive(&tasks[i]))
            return &tasks[i];
        if (tasks[i].pid == 0)
            task = &tasks[i];
    }
    if (!task)
        not_implemented("more than %d tasks: a leak?", TASKS_MAX);
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    if (memory < 0)
        return NULL;
    *task = (struct task){.pid = pid, .memory = memory};
    if (!task_alive(task)) { /* a zombie */
        close(memory);
        task->pid = 0;
        return NULL;
    }
    task->record = find_record(pid);
    if (pid == getpid())
        task->rights = 1; /* for ever */
    return task;
}

/* The order of checks: zombie, uid (euid 0 passes), policy. All of them are 5. */
static int d_task_for_pid(uint32_t self, int pid, uint32_t *name)
{
    char path[64];
    struct stat owner;
    take_time();
    *name = 0;
    (void)self;
    snprintf(path, sizeof path, "/proc/%d", pid);
    if (pid <= 0 || stat(path, &owner) != 0 || refused("task_for_pid"))
        return KERN_FAILURE;
    if (geteuid() != 0 && owner.st_uid != geteuid())
        return KERN_FAILURE;
    pthread_mutex_lock(&kernel);
    struct task *task = task_of_pid(pid);
    if (task)
        *name = port_for(PORT_TASK, task, 0);
    pthread_mutex_unlock(&kernel);
    return task ? KERN_SUCCESS : KERN_FAILURE;
}

static int d_pid_for_task(uint32_t name, int *pid)
{
    take_time();
    pthread_mutex_lock(&kernel);
    const struct port *port = port_named(name, PORT_TASK);
    bool known = port && task_alive(port->task);
    *pid = known ? port->task->pid : -1;
    pthread_mutex_unlock(&kernel);
    return known ? KERN_SUCCESS : KERN_FAILURE;
}

/* 0 and the task, or why not: 4 for no task port, dead names as a send to them fails. */
static int task_named(uint32_t name, struct task **task)
{
    const struct port *port = port_named(name, PORT_TASK);
    *task = port ? port->task : NULL;
    if (!port)
        return name == 0 ? MACH_SEND_INVALID_DEST : KERN_INVALID_ARGUMENT;
    return task_alive(port->task) ? KERN_SUCCESS : MACH_SEND_INVALID_DEST;
}

/* ---- holds */

static int hold(struct task *task)
{
    if (task->pid == getpid())
        not_implemented("a task that suspends itself");
    if (task->holds == 0 && !tracer_hold(task))
        return KERN_FAILURE;
    task->holds++;
    return KERN_SUCCESS;
}

static int d_task_suspend2(uint32_t name, uint32_t *token)
{
    struct task *task;
    take_time();
    pthread_mutex_lock(&kernel);
    int result = task_named(name, &task);
    if (result == KERN_SUCCESS)
        result = hold(task);
    if (result == KERN_SUCCESS)
        *token = port_for(PORT_TOKEN, task, 0);
    pthread_mutex_unlock(&kernel);
    return result;
}

/* The token of a dead task is a dead name: the message is not sent, and the name stays. */
static int d_task_resume2(uint32_t token)
{
    take_time();
    pthread_mutex_lock(&kernel);
    const struct port *port = port_named(token, PORT_TOKEN);
    int result = !port                   ? MACH_SEND_INVALID_DEST
                 : task_alive(port->task) ? KERN_SUCCESS
                                          : MACH_SEND_INVALID_DEST;
    if (result == KERN_SUCCESS)
        port_release(token);
    pthread_mutex_unlock(&kernel);
    return result;
}

/* ---- threads and images */

static int d_task_threads(uint32_t name, uint32_t **array, uint32_t *count)
{
    char path[64];
    struct task *task;
    uint32_t names[THREADS_MAX];
    uint32_t found = 0;
    take_time();
    pthread_mutex_lock(&kernel);
    int result = task_named(name, &task);
    if (result == KERN_SUCCESS) {
        snprintf(path, sizeof path, "/proc/%d/task", task->pid);
        DIR *directory = opendir(path); /* in order of creation */
        const struct dirent *entry;
        while (directory && (entry = readdir(directory)) && found < THREADS_MAX)
            if (entry->d_name[0] != '.')
                names[found++] = port_for(PORT_THREAD, task, atoi(entry->d_name));
        if (directory)
            closedir(directory);
        *array = found ? out_of_line(names, found * sizeof *names) : NULL;
        *count = found;
    }
    pthread_mutex_unlock(&kernel);
    return result;
}

struct task_dyld_info {
    uint64_t address, size;
    int32_t format;
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct task_dyld_info) == 20, "TASK_DYLD_INFO has 5 words");

static int d_task_info(uint32_t name, uint32_t flavor, void *into, uint32_t *count)
{
    struct task *task;
    uint64_t told[2] = {0, 0};
    take_time();
    pthread_mutex_lock(&kernel);
    int result = task_named(name, &task);
    if (result == KERN_SUCCESS && flavor != 17)
        not_implemented("task_info flavor %u", flavor);
    if (result == KERN_SUCCESS && *count < 5)
        result = KERN_INVALID_ARGUMENT;
    /* macOS knows the place at exec; here the loader makes it a moment later. */
    if (result == KERN_SUCCESS && !task->record)
        task->record = find_record(task->pid);
    if (result == KERN_SUCCESS && task->record &&
        !read_task(task, task->record + offsetof(struct process_record, infos), told, sizeof told))
        result = task_alive(task) ? KERN_FAILURE : MACH_SEND_INVALID_DEST;
    if (result == KERN_SUCCESS) {
        struct task_dyld_info info = {told[0], told[1], 1};
        memcpy(into, &info, sizeof info);
        *count = 5;
    }
    pthread_mutex_unlock(&kernel);
    return result;
}

const struct shim task_shims[] = {
    SHIM(task_for_pid), SHIM(pid_for_task), SHIM(task_suspend2), SHIM(task_resume2),
    SHIM(task_threads), SHIM(task_info),    {NULL, NULL},
};
