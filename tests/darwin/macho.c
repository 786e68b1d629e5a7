/*
 * Maps a Mach-O file, applies its rebases and binds, and finds what is exported.
 *
 * Only what ld64.lld makes for x86_64: LC_DYLD_INFO_ONLY opcodes. Chained fixups, weak
 * binds and fat files end with a message. Layouts: EXTERNAL_HEADERS/mach-o/loader.h of xnu,
 * opcodes as in dyld's mach-o/loader.h.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "darwin.h"

struct mach_header {
    uint32_t magic, cputype, cpusubtype, filetype, ncmds, sizeofcmds, flags, reserved;
};
struct section {
    char name[16], segment[16];
    uint64_t addr, size;
    uint32_t offset, align, reloff, nreloc, flags, reserved[3];
};
struct segment {
    uint32_t cmd, cmdsize;
    char name[16];
    uint64_t vmaddr, vmsize, fileoff, filesize;
    int32_t maxprot, initprot;
    uint32_t nsects, flags;
    struct section sections[];
};
struct dyld_info {
    uint32_t cmd, cmdsize, rebase_off, rebase_size, bind_off, bind_size, weak_bind_off, weak_bind_size,
        lazy_bind_off, lazy_bind_size, export_off, export_size;
};

enum {
    LC_SEGMENT_64 = 0x19,
    LC_UUID = 0x1b,
    LC_DYLD_INFO_ONLY = 0x80000022,
    LC_MAIN = 0x80000028,
    LC_DYLD_EXPORTS_TRIE = 0x80000033,
    LC_DYLD_CHAINED_FIXUPS = 0x80000034,
    S_MOD_INIT_FUNC_POINTERS = 0x9,
    S_MOD_TERM_FUNC_POINTERS = 0xa,
    S_THREAD_LOCAL_REGULAR = 0x11,
    S_THREAD_LOCAL_ZEROFILL = 0x12,
    S_THREAD_LOCAL_VARIABLES = 0x13,
    S_INIT_FUNC_OFFSETS = 0x16,
};

struct image images[IMAGES_MAX];
int image_count;

static void broken(const struct image *image, const char *what)
{
    fprintf(stderr, "darwin-run: %s: %s\n", image->path, what);
    exit(125);
}

/* Calls `visit` for each load command. */
static const void *next_command(const struct image *image, const void *at)
{
    const struct mach_header *header = (const void *)image->header;
    const uint8_t *first = image->header + sizeof *header;
    const uint8_t *next = at ? (const uint8_t *)at + ((const uint32_t *)at)[1] : first;
    return next < first + header->sizeofcmds ? next : NULL;
}

static uint32_t kind(const void *command)
{
    return *(const uint32_t *)command;
}

static const struct segment *segment_at(const struct image *image, int index)
{
    for (const void *at = NULL; (at = next_command(image, at));)
        if (kind(at) == LC_SEGMENT_64 && index-- == 0)
            return at;
    broken(image, "there is no such segment");
    return NULL;
}

static int protection(int32_t prot)
{
    return (prot & 1 ? PROT_READ : 0) | (prot & 2 ? PROT_WRITE : 0) | (prot & 4 ? PROT_EXEC : 0);
}

/* Reserves room for all segments and maps each. */
static void map_segments(struct image *image, int fd, const uint8_t *commands, uint64_t wanted)
{
    uint64_t low = UINT64_MAX, high = 0;
    image->header = commands;
    for (const void *at = NULL; (at = next_command(image, at));) {
        const struct segment *segment = at;
        if (kind(at) != LC_SEGMENT_64 || segment->initprot == 0)
            continue; /* __PAGEZERO */
        low = segment->vmaddr < low ? segment->vmaddr : low;
        high = segment->vmaddr + segment->vmsize > high ? segment->vmaddr + segment->vmsize : high;
    }
    uint8_t *base = mmap((void *)wanted, high - low, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || (wanted && (uint64_t)base != wanted))
        broken(image, "no room for its segments");
    image->slide = (int64_t)((uint64_t)base - low);
    const uint8_t *header = NULL;
    for (const void *at = NULL; (at = next_command(image, at));) {
        const struct segment *segment = at;
        if (kind(at) != LC_SEGMENT_64 || segment->initprot == 0)
            continue;
        uint8_t *to = (uint8_t *)segment->vmaddr + image->slide;
        int prot = protection(segment->initprot);
        uint64_t whole = (segment->filesize + 4095) & ~4095ull;
        if (segment->filesize > 0 &&
            mmap(to, segment->filesize, prot, MAP_PRIVATE | MAP_FIXED, fd, (off_t)segment->fileoff) != to)
            broken(image, "a segment cannot be mapped");
        if (prot & PROT_WRITE) /* the file's page goes on behind the segment */
            memset(to + segment->filesize, 0, whole - segment->filesize);
        if (segment->vmsize > whole &&
            mmap(to + whole, segment->vmsize - whole, prot, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) !=
                to + whole)
            broken(image, "zero-filled memory cannot be mapped");
        if (strcmp(segment->name, "__TEXT") == 0) {
            header = to;
            image->text_size = segment->vmsize;
        } else if (strcmp(segment->name, "__LINKEDIT") == 0) {
            image->linkedit = to - segment->fileoff;
        }
    }
    image->header = header;
}

static void note_sections(struct image *image, const struct segment *segment)
{
    for (uint32_t i = 0; i < segment->nsects; i++) {
        const struct section *section = &segment->sections[i];
        const uint8_t *at = (const uint8_t *)section->addr + image->slide;
        uint32_t type = section->flags & 0xff;
        if (type == S_THREAD_LOCAL_REGULAR || type == S_THREAD_LOCAL_ZEROFILL) {
            if (!image->tls_template)
                image->tls_template = at;
            image->tls_size = (size_t)(at - image->tls_template) + section->size;
            if (type == S_THREAD_LOCAL_REGULAR)
                image->tls_data_size = image->tls_size;
        } else if (strncmp(section->name, "__eh_frame", 16) == 0) {
            image->eh_frame = at;
        } else if (strncmp(section->name, "__unwind_info", 16) == 0) {
            image->unwind_info = at;
        }
    }
}

struct image *image_map(const char *file, const char *path, uint64_t wanted)
{
    if (image_count == IMAGES_MAX)
        not_implemented("more than %d images", IMAGES_MAX);
    struct image *image = &images[image_count];
    *image = (struct image){.path = strdup(path)};
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0)
        broken(image, "cannot be opened");
    const struct mach_header *header = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (header == MAP_FAILED || header->magic != 0xfeedfacf || header->cputype != 0x01000007)
        broken(image, "is no thin x86_64 Mach-O file");
    map_segments(image, fd, (const uint8_t *)header, wanted);
    munmap((void *)header, (size_t)about.st_size);
    close(fd);
    image->filetype = ((const struct mach_header *)image->header)->filetype;
    for (const void *at = NULL; (at = next_command(image, at));) {
        if (kind(at) == LC_SEGMENT_64)
            note_sections(image, at);
        else if (kind(at) == LC_UUID)
            memcpy(image->uuid, (const uint8_t *)at + 8, 16);
        else if (kind(at) == LC_MAIN)
            image->entry = (uint64_t)image->header + *(const uint64_t *)((const uint8_t *)at + 8);
        else if (kind(at) == LC_DYLD_CHAINED_FIXUPS)
            not_implemented("chained fixups (%s)", path);
    }
    image_count++;
    return image;
}

static uint64_t uleb(const uint8_t **at)
{
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return value;
    }
}

static int64_t sleb(const uint8_t **at)
{
    int64_t value = 0;
    int shift = 0;
    uint8_t byte;
    do {
        byte = *(*at)++;
        value |= (int64_t)(byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80);
    return shift < 64 && byte & 0x40 ? value | -((int64_t)1 << shift) : value;
}

static uint64_t *place(const struct image *image, const struct segment *segment, uint64_t offset)
{
    return (uint64_t *)(segment->vmaddr + (uint64_t)image->slide + offset);
}

static void rebase(const struct image *image, const uint8_t *at, const uint8_t *end)
{
    const struct segment *segment = NULL;
    uint64_t offset = 0;
    while (at < end) {
        uint8_t immediate = *at & 0x0f, opcode = *at++ & 0xf0;
        uint64_t times = 0, skip = 0;
        switch (opcode) {
        case 0x00: /* DONE */
            return;
        case 0x10: /* SET_TYPE_IMM */
            if (immediate != 1)
                broken(image, "a rebase that is no pointer");
            break;
        case 0x20: /* SET_SEGMENT_AND_OFFSET_ULEB */
            segment = segment_at(image, immediate);
            offset = uleb(&at);
            break;
        case 0x30: /* ADD_ADDR_ULEB */
            offset += uleb(&at);
            break;
        case 0x40: /* ADD_ADDR_IMM_SCALED */
            offset += immediate * 8ull;
            break;
        case 0x50: /* DO_REBASE_IMM_TIMES */
            times = immediate;
            break;
        case 0x60: /* DO_REBASE_ULEB_TIMES */
            times = uleb(&at);
            break;
        case 0x70: /* DO_REBASE_ADD_ADDR_ULEB */
            times = 1;
            skip = uleb(&at);
            break;
        case 0x80: /* DO_REBASE_ULEB_TIMES_SKIPPING_ULEB */
            times = uleb(&at);
            skip = uleb(&at);
            break;
        default:
            broken(image, "an unknown rebase opcode");
        }
        for (; times > 0; times--, offset += 8 + skip)
            *place(image, segment, offset) += (uint64_t)image->slide;
    }
}

/* Pairs of functions of __interpose sections: dyld replaces `old` by `new` in all other images. */
static struct interposed {
    uint64_t new, old;
} interposed[64];
static size_t interposed_count;

/* What `name` is bound to; 0 for an imported function that may be missing, and is. */
static uint64_t target_of(const struct image *image, const char *name, bool weak)
{
    uint64_t target = (uint64_t)(weak ? known_symbol(name) : system_symbol(name));
    for (size_t i = 0; i < interposed_count && !image->interposes; i++)
        if (interposed[i].old == target)
            return interposed[i].new;
    return target;
}

static void bind(const struct image *image, const uint8_t *at, const uint8_t *end)
{
    const struct segment *segment = NULL;
    const char *name = "";
    bool weak = false;
    uint64_t offset = 0;
    int64_t addend = 0;
    while (at < end) {
        uint8_t immediate = *at & 0x0f, opcode = *at++ & 0xf0;
        uint64_t times = 0, skip = 0;
        switch (opcode) {
        case 0x00: /* DONE: in lazy binds, the end of one */
        case 0x10: /* SET_DYLIB_ORDINAL_IMM: all is libSystem, or an image loaded here */
        case 0x30: /* SET_DYLIB_SPECIAL_IMM */
            break;
        case 0x20: /* SET_DYLIB_ORDINAL_ULEB */
            uleb(&at);
            break;
        case 0x40: /* SET_SYMBOL_TRAILING_FLAGS_IMM */
            name = (const char *)at;
            weak = immediate & 1; /* WEAK_IMPORT */
            at += strlen(name) + 1;
            break;
        case 0x50: /* SET_TYPE_IMM */
            if (immediate != 1)
                broken(image, "a bind that is no pointer");
            break;
        case 0x60: /* SET_ADDEND_SLEB */
            addend = sleb(&at);
            break;
        case 0x70: /* SET_SEGMENT_AND_OFFSET_ULEB */
            segment = segment_at(image, immediate);
            offset = uleb(&at);
            break;
        case 0x80: /* ADD_ADDR_ULEB */
            offset += uleb(&at);
            break;
        case 0x90: /* DO_BIND */
            times = 1;
            break;
        case 0xa0: /* DO_BIND_ADD_ADDR_ULEB */
            times = 1;
            skip = uleb(&at);
            break;
        case 0xb0: /* DO_BIND_ADD_ADDR_IMM_SCALED */
            times = 1;
            skip = immediate * 8ull;
            break;
        case 0xc0: /* DO_BIND_ULEB_TIMES_SKIPPING_ULEB */
            times = uleb(&at);
            skip = uleb(&at);
            break;
        default:
            broken(image, "an unknown bind opcode");
        }
        for (; times > 0; times--, offset += 8 + skip)
            *place(image, segment, offset) = target_of(image, name, weak) + (uint64_t)addend;
    }
}

void image_bind(struct image *image)
{
    for (const void *at = NULL; (at = next_command(image, at));) {
        const struct dyld_info *info = at;
        if (kind(at) == LC_DYLD_INFO_ONLY) {
            const uint8_t *base = image->linkedit;
            if (info->weak_bind_size > 0)
                not_implemented("weak binds (%s)", image->path);
            rebase(image, base + info->rebase_off, base + info->rebase_off + info->rebase_size);
            bind(image, base + info->bind_off, base + info->bind_off + info->bind_size);
            bind(image, base + info->lazy_bind_off, base + info->lazy_bind_off + info->lazy_bind_size);
        }
    }
    /* Descriptors of thread-local variables: thunk, key, offset. The thunk was bound to
     * _tlv_bootstrap; the key becomes the number of the image. */
    for (const void *at = NULL; (at = next_command(image, at));) {
        const struct segment *segment = at;
        for (uint32_t i = 0; kind(at) == LC_SEGMENT_64 && i < segment->nsects; i++) {
            const struct section *section = &segment->sections[i];
            uint64_t *words = (uint64_t *)(section->addr + (uint64_t)image->slide);
            if ((section->flags & 0xff) == S_THREAD_LOCAL_VARIABLES)
                for (uint64_t word = 0; word < section->size / 8; word += 3)
                    words[word + 1] = (uint64_t)(image - images);
        }
    }
}

/* Takes the pairs of an image that is bound, and skips those whose function is missing, as dyld does. */
void image_interpose(struct image *image)
{
    for (const void *at = NULL; (at = next_command(image, at));) {
        const struct segment *segment = at;
        for (uint32_t i = 0; kind(at) == LC_SEGMENT_64 && i < segment->nsects; i++) {
            const struct section *section = &segment->sections[i];
            const struct interposed *pairs = (const void *)(section->addr + (uint64_t)image->slide);
            if (strncmp(section->name, "__interpose", 16) != 0)
                continue;
            image->interposes = true;
            for (uint64_t k = 0; k < section->size / sizeof *pairs; k++) {
                if (pairs[k].old == 0)
                    continue;
                if (interposed_count == sizeof interposed / sizeof *interposed)
                    not_implemented("more than %zu interposed functions", interposed_count);
                interposed[interposed_count++] = pairs[k];
            }
        }
    }
}

void image_terminate(const struct image *image)
{
    for (const void *at = NULL; (at = next_command(image, at));) {
        const struct segment *segment = at;
        for (uint32_t i = 0; kind(at) == LC_SEGMENT_64 && i < segment->nsects; i++) {
            const struct section *section = &segment->sections[i];
            typedef void terminator(void);
            terminator *const *functions = (void *)(section->addr + (uint64_t)image->slide);
            if ((section->flags & 0xff) == S_MOD_TERM_FUNC_POINTERS)
                for (uint64_t k = 0; k < section->size / 8; k++)
                    functions[k]();
        }
    }
}

void image_initialize(struct image *image, int argc, char **argv, char **envp, char **apple)
{
    for (const void *at = NULL; (at = next_command(image, at));) {
        const struct segment *segment = at;
        for (uint32_t i = 0; kind(at) == LC_SEGMENT_64 && i < segment->nsects; i++) {
            const struct section *section = &segment->sections[i];
            uint32_t type = section->flags & 0xff;
            if (type == S_INIT_FUNC_OFFSETS)
                not_implemented("initialisers by offset (%s)", image->path);
            typedef void initializer(int, char **, char **, char **);
            initializer **functions = (void *)(section->addr + (uint64_t)image->slide);
            if (type == S_MOD_INIT_FUNC_POINTERS)
                for (uint64_t k = 0; k < section->size / 8; k++)
                    functions[k](argc, argv, envp, apple);
        }
    }
}

/* Walks the exports trie along `symbol`. */
static uint64_t export_offset(const uint8_t *trie, const uint8_t *node, const char *symbol)
{
    uint64_t terminal = uleb(&node);
    if (*symbol == 0) {
        if (terminal == 0)
            return 0;
        uleb(&node); /* flags */
        return uleb(&node);
    }
    node += terminal;
    for (uint8_t children = *node++; children > 0; children--) {
        const char *edge = (const char *)node;
        size_t length = strlen(edge);
        node += length + 1;
        uint64_t next = uleb(&node);
        if (strncmp(symbol, edge, length) == 0)
            return export_offset(trie, trie + next, symbol + length);
    }
    return 0;
}

void *image_export(const struct image *image, const char *symbol)
{
    for (const void *at = NULL; (at = next_command(image, at));) {
        const uint32_t *words = at;
        uint32_t off = 0, size = 0;
        if (kind(at) == LC_DYLD_INFO_ONLY) {
            off = ((const struct dyld_info *)at)->export_off;
            size = ((const struct dyld_info *)at)->export_size;
        } else if (kind(at) == LC_DYLD_EXPORTS_TRIE) {
            off = words[2];
            size = words[3];
        }
        if (size > 0) {
            uint64_t offset = export_offset(image->linkedit + off, image->linkedit + off, symbol);
            if (offset != 0)
                return (void *)(image->header + offset);
        }
    }
    return NULL;
}
