/*
 * Lets libgcc's unwinder walk Mach-O code, so that Rust's panics and backtraces work:
 * __eh_frame is registered as it is, and what __unwind_info says in compact form is
 * written out as DWARF rules, one FDE for each run of functions.
 *
 * Formats: libunwind's compact_unwind_encoding.h, for x86_64.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "darwin.h"

/* libgcc, unwind-dw2-fde.c: several lists of FDEs, ended by NULL, as one object. (It looks
 * for an address in one object only, the last that begins before it.) */
void __register_frame_table(void *lists);

static uint8_t *buffer;
static size_t used, room;

static void put(const void *bytes, size_t size)
{
    if (used + size > room) {
        room = (used + size) * 2;
        buffer = realloc(buffer, room);
        if (!buffer)
            abort();
    }
    memcpy(buffer + used, bytes, size);
    used += size;
}

static void put_byte(unsigned value)
{
    uint8_t byte = (uint8_t)value;
    put(&byte, 1);
}

static void put_uleb(unsigned value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte((value & 0x7f) | 0x80);
    put_byte(value);
}

/* Pads to 8 bytes with DW_CFA_nop and sets the length of what began at `start`. */
static void finish(size_t start)
{
    while ((used - start) % 8 != 0)
        put_byte(0);
    uint32_t length = (uint32_t)(used - start - 4);
    memcpy(buffer + start, &length, 4);
}

/* DWARF numbers of rbx, r12 to r15 and rbp, by their compact numbers 1 to 6. */
static const unsigned dwarf_register[7] = {0, 3, 12, 13, 14, 15, 6};

static void saved(unsigned compact, unsigned words_below_cfa)
{
    if (compact == 0 || compact > 6)
        return;
    put_byte(0x80 | dwarf_register[compact]); /* DW_CFA_offset */
    put_uleb(words_below_cfa);
}

/* The registers of a frameless function: 10 bits hold which ones in what order. */
static void permutation(unsigned count, unsigned code, unsigned registers[6])
{
    static const unsigned factors[7][6] = {
        {0}, {1}, {5, 1}, {20, 4, 1}, {60, 12, 3, 1}, {120, 24, 6, 2, 1}, {120, 24, 6, 2, 1, 0},
    };
    bool taken[7] = {false};
    for (unsigned i = 0; i < count; i++) {
        unsigned which = 0;
        if (factors[count][i] > 0) {
            which = code / factors[count][i];
            code %= factors[count][i];
        }
        for (unsigned number = 1; number <= 6; number++)
            if (!taken[number] && which-- == 0) {
                registers[i] = number;
                taken[number] = true;
                break;
            }
    }
}

static void put_rules(uint32_t encoding)
{
    unsigned mode = encoding >> 24 & 0xf;
    if (mode == 1) { /* RBP frame: offset and five registers */
        unsigned offset = encoding >> 16 & 0xff;
        put_byte(0x0c), put_uleb(6), put_uleb(16); /* DW_CFA_def_cfa rbp+16 */
        put_byte(0x86), put_uleb(2);               /* rbp at cfa-16 */
        for (unsigned i = 0; i < 5; i++)
            saved(encoding >> (3 * i) & 7, offset + 2 - i);
    } else { /* frameless, size in the code */
        unsigned words = encoding >> 16 & 0xff, count = encoding >> 10 & 7, registers[6] = {0};
        put_byte(0x0c), put_uleb(7), put_uleb(words * 8); /* DW_CFA_def_cfa rsp+size */
        permutation(count, encoding & 0x3ff, registers);
        /* The last pushed lies just below the local variables' end: cfa - 8 * (i + 2). */
        for (unsigned i = 0; i < count; i++)
            saved(registers[i], count + 1 - i);
    }
}

static void put_function(uint64_t from, uint64_t to, uint32_t encoding)
{
    unsigned mode = encoding >> 24 & 0xf;
    if (mode == 0 || mode == 4 || from >= to) /* nothing known, or in __eh_frame */
        return;
    if (mode == 3 || encoding & 0x40000000)
        return; /* a size that is in the code, or an LSDA: neither occurs in frames that catch */
    size_t start = used;
    uint64_t size = to - from;
    put("\0\0\0\0", 4);
    uint32_t back = (uint32_t)(used); /* the CIE stands at offset 0 */
    put(&back, 4);
    put(&from, 8);
    put(&size, 8);
    put_rules(encoding);
    finish(start);
}

static uint32_t word(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint16_t half(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, 2);
    return value;
}

/* One page of the second level. */
static void put_page(const struct image *image, const uint8_t *index)
{
    const uint8_t *info = image->unwind_info, *page = info + word(index + 4);
    uint64_t base = (uint64_t)image->header, after = base + word(index + 12);
    unsigned entries = half(page + 6);
    for (unsigned i = 0; i < entries; i++) {
        const uint8_t *entry = page + half(page + 4);
        uint64_t from, to = after;
        uint32_t encoding;
        if (word(page) == 2) {
            from = base + word(entry + 8ul * i);
            encoding = word(entry + 8ul * i + 4);
            if (i + 1 < entries)
                to = base + word(entry + 8ul * (i + 1));
        } else {
            uint32_t packed = word(entry + 4ul * i), which = packed >> 24, common = word(info + 8);
            from = base + word(index) + (packed & 0xffffff);
            encoding = which < common ? word(info + word(info + 4) + 4ul * which)
                                      : word(page + half(page + 8) + 4ul * (which - common));
            if (i + 1 < entries)
                to = base + word(index) + (word(entry + 4ul * (i + 1)) & 0xffffff);
        }
        put_function(from, to, encoding);
    }
}

void image_register_unwinding(const struct image *image)
{
    void **lists = calloc(3, sizeof *lists); /* kept as long as the process, like the FDEs */
    int count = 0;
    if (image->eh_frame)
        lists[count++] = (void *)image->eh_frame; /* ended by the zeros after the section */
    if (image->unwind_info) {
        const uint8_t *info = image->unwind_info;
        used = 0;
        buffer = NULL;
        room = 0;
        /* CIE: version 1, no augmentation, code 1, data -8, return address in 16;
         * on entry cfa = rsp+8, return address at cfa-8. */
        put("\0\0\0\0\0\0\0\0\x01\0\x01\x78\x10\x0c\x07\x08\x90\x01", 18);
        finish(0);
        for (uint32_t i = 0; i + 1 < word(info + 24); i++) {
            const uint8_t *index = info + word(info + 20) + 12ul * i;
            if (word(index + 4) != 0)
                put_page(image, index);
        }
        put("\0\0\0\0", 4);
        lists[count++] = buffer;
    }
    if (count > 0)
        __register_frame_table(lists);
}
