/*
 * Port names of this process and what is left of them at its end: osfmk/ipc/ipc_right.c.
 *
 * A freed name is the first to be used again, sooner than on macOS: who takes a name for
 * a thread's identity is to be found out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mach.h"

#define PORTS_MAX 4096
#define OWN_TASK 0x103

pthread_mutex_t kernel = PTHREAD_MUTEX_INITIALIZER;
/* mach_task_self(): a variable. */
static uint32_t mach_task_self_ = OWN_TASK;
static uint64_t vm_page_size = 4096;

static struct port ports[PORTS_MAX];
static uint32_t freed[PORTS_MAX];
static int freed_count, ever_used;
static int arrays;            /* out of line, not given back */
static unsigned wrong;        /* calls that no correct program makes */
static unsigned calls_hold, calls_attach;

static uint32_t name_of(int index)
{
    return 0x203 + (uint32_t)index * 0x100;
}

static struct port *slot(uint32_t name)
{
    if (name < 0x203 || (name & 0xff) != 0x03)
        return NULL;
    uint32_t index = (name - 0x203) / 0x100;
    return index < (uint32_t)ever_used && ports[index].kind != PORT_FREE ? &ports[index] : NULL;
}

uint32_t port_for(enum port_kind kind, struct task *task, pid_t tid)
{
    if (kind == PORT_TOKEN)
        calls_hold++;
    if (kind == PORT_TASK)
        calls_attach++;
    if (kind == PORT_TASK && task->pid == getpid())
        return OWN_TASK; /* that right is never counted down here */
    for (int i = 0; kind != PORT_TOKEN && i < ever_used; i++)
        if (ports[i].kind == kind && ports[i].task == task && ports[i].tid == tid) {
            ports[i].references++;
            return name_of(i);
        }
    int index = freed_count > 0 ? (int)freed[--freed_count] : ever_used++;
    if (index >= PORTS_MAX)
        not_implemented("more than %d ports: a leak?", PORTS_MAX);
    ports[index] = (struct port){kind, 1, task, tid};
    task->rights++;
    return name_of(index);
}

struct port *port_named(uint32_t name, enum port_kind kind)
{
    static struct port own = {PORT_TASK, 1, NULL, 0};
    if (name == OWN_TASK && kind == PORT_TASK) {
        own.task = task_of_pid(getpid());
        return &own;
    }
    struct port *port = slot(name);
    return port && port->kind == kind ? port : NULL;
}

static void end_hold(struct task *task)
{
    if (--task->holds == 0)
        tracer_release(task);
}

int port_release(uint32_t name)
{
    struct port *port = slot(name);
    if (name == OWN_TASK)
        return KERN_SUCCESS;
    if (!port) {
        if (name != 0)
            wrong++;
        return KERN_INVALID_NAME;
    }
    if (--port->references > 0)
        return KERN_SUCCESS;
    struct task *task = port->task;
    if (port->kind == PORT_TOKEN)
        end_hold(task);
    port->kind = PORT_FREE;
    freed[freed_count++] = (name - 0x203) / 0x100;
    if (--task->rights == 0) {
        close(task->memory);
        task->pid = 0;
    }
    return KERN_SUCCESS;
}

static int d_mach_port_deallocate(uint32_t space, uint32_t name)
{
    take_time();
    if (space != OWN_TASK)
        return MACH_SEND_INVALID_DEST;
    pthread_mutex_lock(&kernel);
    int result = port_release(name);
    pthread_mutex_unlock(&kernel);
    return result;
}

/* ---- memory that calls place in this process */

#define ARRAYS_MAX 1024
static struct {
    void *at;
    size_t size;
} list[ARRAYS_MAX];

void *out_of_line(const void *bytes, size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        abort();
    memcpy(at, bytes, size);
    for (int i = 0; i < ARRAYS_MAX; i++)
        if (!list[i].at) {
            list[i].at = at;
            list[i].size = size;
            arrays++;
            return at;
        }
    not_implemented("more than %d arrays out of line: a leak?", ARRAYS_MAX);
}

static int d_mach_vm_deallocate(uint32_t task, uint64_t address, uint64_t size)
{
    int result = KERN_INVALID_ADDRESS;
    take_time();
    if (task != OWN_TASK)
        return MACH_SEND_INVALID_DEST;
    if (size == 0)
        return KERN_SUCCESS;
    pthread_mutex_lock(&kernel);
    for (int i = 0; i < ARRAYS_MAX; i++)
        if (list[i].at && (uint64_t)list[i].at == address) {
            if (list[i].size != size)
                wrong++;
            munmap(list[i].at, list[i].size);
            list[i].at = NULL;
            arrays--;
            result = KERN_SUCCESS;
            break;
        }
    if (result != KERN_SUCCESS)
        wrong++; /* macOS would unmap whatever is there */
    pthread_mutex_unlock(&kernel);
    return result;
}

/* ---- the end */

/* DARWIN_RUN_REPORT names a file that gets one line when this process ends, if it had
 * taken a task port: what it left behind. */
void mach_report(void)
{
    static bool reported;
    char line[256];
    unsigned references = 0, names = 0, tokens = 0;
    const char *to = getenv("DARWIN_RUN_REPORT");
    if (!to || !*to || reported || calls_attach == 0)
        return;
    reported = true;
    pthread_mutex_lock(&kernel);
    for (int i = 0; i < ever_used; i++)
        if (ports[i].kind != PORT_FREE) {
            names++;
            references += ports[i].references;
            tokens += ports[i].kind == PORT_TOKEN;
        }
    int size = snprintf(line, sizeof line,
                        "names=%u references=%u suspensions=%u arrays=%d wrong=%u attaches=%u holds=%u "
                        "virtual_copies=%u qos=%#x\n",
                        names, references, tokens, arrays, wrong, calls_attach, calls_hold, virtual_copies, sampler_qos);
    pthread_mutex_unlock(&kernel);
    int fd = open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)size) != size)
        fprintf(stderr, "darwin-run: cannot write %s\n", to);
    close(fd);
}

const struct shim mach_shims[] = {
    SHIM(mach_port_deallocate), SHIM(mach_vm_deallocate),
    {"_mach_task_self_", &mach_task_self_}, {"_vm_page_size", &vm_page_size},
    {NULL, NULL},
};
