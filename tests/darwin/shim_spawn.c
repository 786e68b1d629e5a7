/*
 * Starting programs and waiting for them: posix_spawn of Darwin with its attributes
 * (bsd/sys/spawn.h). A Mach-O program is started through this loader, any other as it is.
 *
 * POSIX_SPAWN_START_SUSPENDED: a Mach-O program stops itself when it is mapped and before
 * anything of it runs; another one just before exec.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "darwin.h"

enum { D_SETPGROUP = 0x2, D_SETSIGDEF = 0x4, D_SETSIGMASK = 0x8, D_START_SUSPENDED = 0x80 };

struct attributes {
    uint16_t flags;
    uint32_t mask, defaults;
    pid_t group;
};
struct actions {
    int count;
    struct {
        int from, to; /* to CLOSE: `from` is closed */
    } one[16];
};
enum { CLOSE = -1 };

static int d_posix_spawnattr_init(struct attributes **out)
{
    *out = calloc(1, sizeof **out);
    return 0;
}

static int d_posix_spawnattr_destroy(struct attributes **at)
{
    free(*at);
    *at = NULL;
    return 0;
}

static int d_posix_spawnattr_setflags(struct attributes **at, int16_t flags)
{
    if (flags & ~(D_SETPGROUP | D_SETSIGDEF | D_SETSIGMASK | D_START_SUSPENDED))
        not_implemented("posix_spawn flags %#x", (unsigned)flags);
    (*at)->flags = (uint16_t)flags;
    return 0;
}

static int d_posix_spawnattr_setsigmask(struct attributes **at, const uint32_t *set)
{
    (*at)->mask = *set;
    return 0;
}

static int d_posix_spawnattr_setsigdefault(struct attributes **at, const uint32_t *set)
{
    (*at)->defaults = *set;
    return 0;
}

static int d_posix_spawnattr_setpgroup(struct attributes **at, pid_t group)
{
    (*at)->group = group;
    return 0;
}

static int d_posix_spawn_file_actions_init(struct actions **out)
{
    *out = calloc(1, sizeof **out);
    return 0;
}

static int d_posix_spawn_file_actions_destroy(struct actions **at)
{
    free(*at);
    *at = NULL;
    return 0;
}

static int add_action(struct actions *actions, int from, int to)
{
    if (actions->count == 16)
        not_implemented("more than 16 file actions");
    actions->one[actions->count].from = from;
    actions->one[actions->count++].to = to;
    return 0;
}

enum { D_EBADF = 9 };

static int d_posix_spawn_file_actions_adddup2(struct actions **at, int from, int to)
{
    return from < 0 || to < 0 ? D_EBADF : add_action(*at, from, to);
}

static int d_posix_spawn_file_actions_addclose(struct actions **at, int fd)
{
    return fd < 0 ? D_EBADF : add_action(*at, fd, CLOSE);
}

/* Finds a program as execvp does; false with errno. */
static bool find(const char *name, char *into, size_t size)
{
    const char *list = getenv("PATH");
    struct stat about;
    if (strchr(name, '/') || !list) {
        snprintf(into, size, "%s", name);
        return access(into, X_OK) == 0;
    }
    errno = ENOENT;
    while (*list) {
        size_t length = strcspn(list, ":");
        snprintf(into, size, "%.*s/%s", (int)length, list, name);
        if (stat(into, &about) == 0 && S_ISREG(about.st_mode) && access(into, X_OK) == 0)
            return true;
        list += length + (list[length] == ':');
    }
    errno = ENOENT;
    return false;
}

static bool is_mach_o(const char *path)
{
    uint32_t magic = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, &magic, sizeof magic) != (ssize_t)sizeof magic)
        magic = 0;
    close(fd);
    return magic == 0xfeedfacf;
}

/* exec; a Mach-O program runs in this loader. Returns with errno. */
static void replace(const char *path, char *const *argv, char *const *envp, bool suspended)
{
    int count = 0, variables = 0;
    if (!is_mach_o(path)) {
        execve(path, argv, envp);
        return;
    }
    while (argv[count])
        count++;
    while (envp[variables])
        variables++;
    char **words = calloc((size_t)count + 5, sizeof *words);
    char **environment = calloc((size_t)variables + 2, sizeof *environment);
    words[0] = own_loader;
    words[1] = "--argv0";
    words[2] = argv[0];
    words[3] = (char *)path;
    for (int i = 1; i < count; i++)
        words[3 + i] = argv[i];
    memcpy(environment, envp, (size_t)variables * sizeof *environment);
    if (suspended)
        environment[variables] = START_SUSPENDED "=1";
    execve(own_loader, words, environment);
    free(words);
    free(environment);
}

/* The child's part; does not return. Failures go through `report`. */
static void become(const char *path, const struct actions *actions, const struct attributes *at, char *const *argv,
                   char *const *envp, int report)
{
    int failed;
    bool suspended = at && at->flags & D_START_SUSPENDED;
    sigset_t mask;
    for (int i = 0; actions && i < actions->count; i++) {
        int from = actions->one[i].from, to = actions->one[i].to;
        if ((to == CLOSE ? close(from) : dup2(from, to)) < 0)
            goto fail;
    }
    if (at && at->flags & D_SETPGROUP && setpgid(0, at->group) != 0)
        goto fail;
    for (int number = 1; at && at->flags & D_SETSIGDEF && number < 32; number++)
        if (at->defaults & 1u << (number - 1) && linux_signal_of(number) > 0)
            signal(linux_signal_of(number), SIG_DFL);
    if (at && at->flags & D_SETSIGMASK) {
        sigemptyset(&mask);
        for (int number = 1; number < 32; number++)
            if (at->mask & 1u << (number - 1) && linux_signal_of(number) > 0)
                sigaddset(&mask, linux_signal_of(number));
        sigprocmask(SIG_SETMASK, &mask, NULL);
    }
    if (!is_mach_o(path) && suspended)
        raise(SIGSTOP);
    replace(path, argv, envp, suspended);
fail:
    failed = errno;
    if (write(report, &failed, sizeof failed) != (ssize_t)sizeof failed)
        _exit(126);
    _exit(127);
}

/* Returns an errno, as posix_spawn does. */
static int d_posix_spawnp(pid_t *pid, const char *name, struct actions *const *actions,
                          struct attributes *const *at, char *const *argv, char *const *envp)
{
    char path[4096];
    int report[2], failed = 0, status;
    if (!find(name, path, sizeof path))
        return darwin_errno_of(errno);
    if (pipe2(report, O_CLOEXEC) != 0)
        return darwin_errno_of(errno);
    pid_t child = fork();
    if (child == 0)
        become(path, actions ? *actions : NULL, at ? *at : NULL, argv, envp, report[1]);
    close(report[1]);
    bool suspended = at && (*at)->flags & D_START_SUSPENDED;
    /* Not suspended, or a Mach-O program: the pipe closes with exec. */
    if (child > 0 && suspended)
        waitpid(child, &status, WUNTRACED);
    if (child > 0 && !(suspended && !is_mach_o(path)) &&
        read(report[0], &failed, sizeof failed) == (ssize_t)sizeof failed)
        waitpid(child, &status, 0);
    close(report[0]);
    if (child < 0)
        return darwin_errno_of(errno);
    *pid = child;
    return failed ? darwin_errno_of(failed) : 0;
}

static int d_execv(const char *path, char *const *argv)
{
    replace(path, argv, environ, false);
    return RESULT(-1);
}

/* The child has this thread alone: no Mach calls in it before it becomes another program. */
static pid_t d_fork(void)
{
    return RESULT(fork());
}

static int d_execvp(const char *name, char *const *argv)
{
    char path[4096];
    if (find(name, path, sizeof path))
        replace(path, argv, environ, false);
    return RESULT(-1);
}

static int d_setpgid(pid_t pid, pid_t group)
{
    return RESULT(setpgid(pid, group));
}

static pid_t d_setsid(void)
{
    return RESULT(setsid());
}

static pid_t d_waitpid(pid_t pid, int *status, int options)
{
    int raw = 0;
    pid_t waited = RESULT(wait_process(pid, &raw, options)); /* WNOHANG 1, WUNTRACED 2: the same */
    if (waited > 0 && status)
        *status = darwin_wait_status(raw);
    return waited;
}

static char ***d_NSGetEnviron(void)
{
    return &environ;
}

const struct shim spawn_shims[] = {
    SHIM(posix_spawnattr_init), SHIM(posix_spawnattr_destroy), SHIM(posix_spawnattr_setflags),
    SHIM(posix_spawnattr_setsigmask), SHIM(posix_spawnattr_setsigdefault), SHIM(posix_spawnattr_setpgroup),
    SHIM(posix_spawn_file_actions_init), SHIM(posix_spawn_file_actions_destroy),
    SHIM(posix_spawn_file_actions_adddup2), SHIM(posix_spawn_file_actions_addclose), SHIM(posix_spawnp), SHIM(waitpid), SHIM(execv), SHIM(execvp), SHIM(fork), SHIM(setpgid), SHIM(setsid),
    NAMED("__NSGetEnviron", d_NSGetEnviron),
    {NULL, NULL},
};
