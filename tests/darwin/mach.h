/*
 * The Mach kernel of darwin-run: ports with reference counts over tasks, threads and
 * suspensions. Written from xnu's documented behaviour (osfmk/kern/{task,thread_act,
 * ipc_tt}.c, osfmk/vm/vm_user.c), not from any client of it.
 *
 * A task is a Linux process; it dies with its address space, so at exec, too.
 */
#ifndef MACH_H
#define MACH_H

#include <pthread.h>
#include <sys/user.h>

#include "darwin.h"

enum {
    KERN_SUCCESS = 0,
    KERN_INVALID_ADDRESS = 1,
    KERN_PROTECTION_FAILURE = 2,
    KERN_INVALID_ARGUMENT = 4,
    KERN_FAILURE = 5,
    KERN_INVALID_NAME = 15,
    KERN_INVALID_RIGHT = 17,
    MACH_SEND_INVALID_DEST = 0x10000003,
};

struct held_thread {
    pid_t tid;
    int signal; /* to be delivered when it goes on */
    struct user_regs_struct registers;
};

struct task {
    pid_t pid; /* 0: free */
    int memory; /* /proc/PID/mem: reads nothing once the address space is gone */
    int rights; /* names that stand for it or its threads or suspensions */
    int holds;
    uint64_t record; /* address of its process_record; 0: none */
    int thread_count;
    struct held_thread *threads; /* while held */
};

enum port_kind { PORT_FREE, PORT_TASK, PORT_THREAD, PORT_TOKEN };

struct port {
    enum port_kind kind;
    unsigned references;
    struct task *task;
    pid_t tid;
};

/* Reads that XNU makes virtual copies for: pages of the target become copy-on-write. */
extern unsigned virtual_copies;

/* All below is called with this held. */
extern pthread_mutex_t kernel;

/* A reference more to the name that stands for this already, or a new name. */
uint32_t port_for(enum port_kind kind, struct task *task, pid_t tid);
/* NULL: no such name, or of another kind. */
struct port *port_named(uint32_t name, enum port_kind kind);
int port_release(uint32_t name);

struct task *task_of_pid(pid_t pid);
bool task_alive(const struct task *task);
bool thread_alive(const struct task *task, pid_t tid);
/* The threads records of a task under darwin-run; false: it has none. */
bool task_thread_record(const struct task *task, pid_t tid, struct thread_record *record);

/* A list that the caller gives back with mach_vm_deallocate. */
void *out_of_line(const void *bytes, size_t size);

/* ---- tracer.c; all ptrace calls are made by one thread */
/* Stops every thread and takes its registers. False: it cannot be traced, or is gone. */
bool tracer_hold(struct task *task);
void tracer_release(struct task *task);
/* The registers of one thread of a task that is not held. */
bool tracer_registers(const struct task *task, pid_t tid, struct user_regs_struct *registers);

#endif
