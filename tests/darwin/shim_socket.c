/*
 * Sockets for Mach-O programs: addresses begin with a length there (bsd/sys/socket.h), and
 * families, options and flags have numbers of their own (bsd/netinet6/in6.h, lib netdb.h).
 */
#define _GNU_SOURCE
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "darwin.h"

enum { D_AF_INET6 = 30, D_EINVAL = 22 };

struct darwin_sockaddr {
    uint8_t length, family;
    char rest[126];
};

static int family_to_linux(int darwin)
{
    switch (darwin) {
    case 0:
        return AF_UNSPEC;
    case 1:
        return AF_UNIX;
    case 2:
        return AF_INET;
    case D_AF_INET6:
        return AF_INET6;
    default:
        not_implemented("sockets of family %d", darwin);
    }
}

static int family_to_darwin(int linux_family)
{
    switch (linux_family) {
    case AF_UNSPEC:
    case AF_UNIX:
    case AF_INET:
        return linux_family;
    case AF_INET6:
        return D_AF_INET6;
    default:
        not_implemented("sockets of Linux's family %d", linux_family);
    }
}

/* All but the first two bytes is the same; a path of Darwin has 104 bytes, one of Linux 108. */
static socklen_t to_linux(struct sockaddr_storage *out, const struct darwin_sockaddr *in, socklen_t size)
{
    memset(out, 0, sizeof *out);
    if (size < 2 || size > sizeof *out)
        return 0; /* refused by the call as EINVAL */
    memcpy(out, in, size);
    out->ss_family = (sa_family_t)family_to_linux(in->family);
    return size;
}

static void to_darwin(void *into, socklen_t *room, const struct sockaddr_storage *in, socklen_t size)
{
    struct darwin_sockaddr out;
    memcpy(&out, in, size < sizeof out ? size : sizeof out);
    out.length = (uint8_t)size;
    out.family = (uint8_t)family_to_darwin(in->ss_family);
    memcpy(into, &out, size < *room ? size : *room);
    *room = size;
}

/* Linux has no SO_NOSIGPIPE: it is asked for with each message. */
#define FDS_MAX 4096
static _Atomic bool no_sigpipe[FDS_MAX];

static int opened(int fd, bool silent)
{
    if (fd >= FDS_MAX)
        not_implemented("socket %d", fd);
    if (fd >= 0)
        no_sigpipe[fd] = silent;
    return fd;
}

/* Types, and protocols of families, are the same; Darwin's types have no flags. */
static int d_socket(int family, int type, int protocol)
{
    return opened(RESULT(socket(family_to_linux(family), type, protocol)), false);
}

static int d_socketpair(int family, int type, int protocol, int fds[2])
{
    int result = RESULT(socketpair(family_to_linux(family), type, protocol, fds));
    for (int i = 0; result == 0 && i < 2; i++)
        opened(fds[i], false);
    return result;
}

static int d_connect(int fd, const struct darwin_sockaddr *address, socklen_t size)
{
    struct sockaddr_storage in;
    size = to_linux(&in, address, size);
    return RESULT(connect(fd, (struct sockaddr *)&in, size));
}

static int d_bind(int fd, const struct darwin_sockaddr *address, socklen_t size)
{
    struct sockaddr_storage in;
    size = to_linux(&in, address, size);
    return RESULT(bind(fd, (struct sockaddr *)&in, size));
}

static int d_listen(int fd, int backlog) { return RESULT(listen(fd, backlog)); }

/* What is accepted has the options of the socket that listens. */
static int d_accept(int fd, void *address, socklen_t *room)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    int accepted = RESULT(accept(fd, (struct sockaddr *)&peer, &size));
    if (accepted >= 0 && address)
        to_darwin(address, room, &peer, size);
    return opened(accepted, accepted >= 0 && no_sigpipe[fd]);
}

static int d_getsockname(int fd, void *address, socklen_t *room)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    int result = RESULT(getsockname(fd, (struct sockaddr *)&own, &size));
    if (result == 0)
        to_darwin(address, room, &own, size);
    return result;
}

static int d_shutdown(int fd, int how) { return RESULT(shutdown(fd, how)); }

/* OOB, PEEK and DONTROUTE are the same. */
static int flags_to_linux(int darwin)
{
    static const struct {
        int darwin, linux_flag;
    } flags[] = {{0x40, MSG_WAITALL}, {0x80, MSG_DONTWAIT}, {0x80000, MSG_NOSIGNAL}};
    int out = darwin & 7;
    darwin &= ~7;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (darwin & flags[i].darwin) {
            out |= flags[i].linux_flag;
            darwin &= ~flags[i].darwin;
        }
    if (darwin != 0)
        not_implemented("message flags %#x", (unsigned)darwin);
    return out;
}

static ssize_t d_recv(int fd, void *into, size_t size, int flags)
{
    return RESULT(recv(fd, into, size, flags_to_linux(flags)));
}

static ssize_t d_send(int fd, const void *from, size_t size, int flags)
{
    bool silent = fd >= 0 && fd < FDS_MAX && no_sigpipe[fd];
    return RESULT(send(fd, from, size, flags_to_linux(flags) | (silent ? MSG_NOSIGNAL : 0)));
}

/* ---- options: integers, and times of struct timeval with 32 bits of microseconds */

struct darwin_timeval {
    int64_t seconds;
    int32_t microseconds, pad;
};

enum { D_SOL_SOCKET = 0xffff, D_SO_SNDTIMEO = 0x1005, D_SO_RCVTIMEO = 0x1006, D_SO_ERROR = 0x1007, D_SO_NOSIGPIPE = 0x1022 };

static void option(int *level, int *name)
{
    static const struct {
        int level, name, linux_level, linux_name;
    } options[] = {
        {D_SOL_SOCKET, 0x4, SOL_SOCKET, SO_REUSEADDR},         {D_SOL_SOCKET, 0x8, SOL_SOCKET, SO_KEEPALIVE},
        {D_SOL_SOCKET, 0x1001, SOL_SOCKET, SO_SNDBUF},         {D_SOL_SOCKET, 0x1002, SOL_SOCKET, SO_RCVBUF},
        {D_SOL_SOCKET, D_SO_SNDTIMEO, SOL_SOCKET, SO_SNDTIMEO}, {D_SOL_SOCKET, D_SO_RCVTIMEO, SOL_SOCKET, SO_RCVTIMEO},
        {D_SOL_SOCKET, D_SO_ERROR, SOL_SOCKET, SO_ERROR},      {IPPROTO_TCP, 1, IPPROTO_TCP, TCP_NODELAY},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].level == *level && options[i].name == *name) {
            *level = options[i].linux_level;
            *name = options[i].linux_name;
            return;
        }
    not_implemented("socket option %#x of %#x", (unsigned)*name, (unsigned)*level);
}

static bool is_time(int level, int name)
{
    return level == D_SOL_SOCKET && (name == D_SO_SNDTIMEO || name == D_SO_RCVTIMEO);
}

static int invalid(void)
{
    set_darwin_errno(D_EINVAL);
    return -1;
}

static int d_setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    if (level == D_SOL_SOCKET && name == D_SO_NOSIGPIPE) {
        if (size < sizeof(int))
            return invalid();
        return opened(fd, *(const int *)value != 0) < 0 ? -1 : 0;
    }
    struct timeval time;
    if (is_time(level, name)) {
        struct darwin_timeval given;
        if (size < sizeof given)
            return invalid();
        memcpy(&given, value, sizeof given);
        time = (struct timeval){given.seconds, given.microseconds};
        value = &time;
        size = sizeof time;
    }
    option(&level, &name);
    return RESULT(setsockopt(fd, level, name, value, size));
}

static int d_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    int darwin_level = level, darwin_name = name;
    if (is_time(level, name)) {
        struct timeval time;
        socklen_t own = sizeof time;
        if (*size < sizeof(struct darwin_timeval))
            return invalid();
        option(&level, &name);
        if (RESULT(getsockopt(fd, level, name, &time, &own)) != 0)
            return -1;
        struct darwin_timeval out = {time.tv_sec, (int32_t)time.tv_usec, 0};
        memcpy(value, &out, sizeof out);
        *size = sizeof out;
        return 0;
    }
    option(&level, &name);
    int result = RESULT(getsockopt(fd, level, name, value, size));
    if (result == 0 && darwin_level == D_SOL_SOCKET && darwin_name == D_SO_ERROR)
        *(int *)value = darwin_errno_of(*(int *)value);
    return result;
}

/* ---- names of hosts */

struct darwin_addrinfo {
    int flags, family, type, protocol;
    socklen_t length;
    char *name;
    struct darwin_sockaddr *address;
    struct darwin_addrinfo *next;
};
_Static_assert(offsetof(struct darwin_addrinfo, name) == 24, "addrinfo: the name comes first");

static const struct {
    int darwin, linux_code;
} lookup_errors[] = {
    {2, EAI_AGAIN},  {3, EAI_BADFLAGS}, {4, EAI_FAIL},      {5, EAI_FAMILY},  {6, EAI_MEMORY},
    {8, EAI_NONAME}, {9, EAI_SERVICE},  {10, EAI_SOCKTYPE}, {11, EAI_SYSTEM}, {14, EAI_OVERFLOW},
};

static void d_freeaddrinfo(struct darwin_addrinfo *list)
{
    while (list) {
        struct darwin_addrinfo *next = list->next;
        free(list->address);
        free(list);
        list = next;
    }
}

static int d_getaddrinfo(const char *host, const char *service, const struct darwin_addrinfo *hints,
                         struct darwin_addrinfo **result)
{
    struct addrinfo in = {0}, *found;
    if (hints) {
        if (hints->flags)
            not_implemented("getaddrinfo flags %#x", (unsigned)hints->flags);
        in.ai_family = family_to_linux(hints->family);
        in.ai_socktype = hints->type;
        in.ai_protocol = hints->protocol;
    }
    int failed = getaddrinfo(host, service, &in, &found);
    if (failed == EAI_SYSTEM)
        take_errno();
    for (size_t i = 0; failed && i < sizeof lookup_errors / sizeof *lookup_errors; i++)
        if (lookup_errors[i].linux_code == failed)
            return lookup_errors[i].darwin;
    if (failed)
        not_implemented("getaddrinfo error %d", failed);
    struct darwin_addrinfo **last = result;
    for (const struct addrinfo *at = found; at; at = at->ai_next) {
        struct darwin_addrinfo *out = calloc(1, sizeof *out);
        struct sockaddr_storage address;
        *last = out;
        last = &out->next;
        memcpy(&address, at->ai_addr, at->ai_addrlen);
        out->family = family_to_darwin(at->ai_family);
        out->type = at->ai_socktype;
        out->protocol = at->ai_protocol;
        out->length = sizeof address;
        out->address = malloc(sizeof address);
        to_darwin(out->address, &out->length, &address, at->ai_addrlen);
    }
    freeaddrinfo(found);
    return 0;
}

static const char *d_gai_strerror(int code)
{
    for (size_t i = 0; i < sizeof lookup_errors / sizeof *lookup_errors; i++)
        if (lookup_errors[i].darwin == code)
            return gai_strerror(lookup_errors[i].linux_code);
    return "Unknown error";
}

const struct shim socket_shims[] = {
    SHIM(socket), SHIM(socketpair), SHIM(connect), SHIM(bind), SHIM(listen), SHIM(accept), SHIM(getsockname),
    SHIM(shutdown), SHIM(recv), SHIM(send), SHIM(setsockopt), SHIM(getsockopt), SHIM(getaddrinfo),
    SHIM(freeaddrinfo), SHIM(gai_strerror),
    {NULL, NULL},
};
