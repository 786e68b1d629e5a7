/*
 * Thread-local variables: the thunk that each descriptor {thunk, image, offset} calls
 * with its address in rdi. Compilers take it to keep every register but rax
 * (dyld, threadLocalHelpers.s).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "darwin.h"

/* One block for each image. In the executable itself, so at a known place from %fs. */
__thread void *tls_blocks[IMAGES_MAX] __attribute__((tls_model("local-exec")));

static pthread_key_t at_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_blocks(void *unused)
{
    (void)unused;
    for (int i = 0; i < IMAGES_MAX; i++) {
        free(tls_blocks[i]);
        tls_blocks[i] = NULL;
    }
}

static void make_key(void)
{
    pthread_key_create(&at_end, free_blocks);
}

/* Called by the thunk for the first variable of an image that a thread asks for. */
void *image_tls_block(uint64_t index)
{
    const struct image *image = &images[index];
    void *block = NULL;
    pthread_once(&once, make_key);
    pthread_setspecific(at_end, tls_blocks);
    if (posix_memalign(&block, 64, image->tls_size) != 0)
        abort();
    memset(block, 0, image->tls_size);
    memcpy(block, image->tls_template, image->tls_data_size);
    tls_blocks[index] = block;
    return block;
}

void tlv_get(void);
__asm__(".text\n.globl tlv_get\ntlv_get:\n"
        "  mov 8(%rdi), %rax\n"
        "  mov %fs:tls_blocks@tpoff(,%rax,8), %rax\n"
        "  test %rax, %rax\n  jz 1f\n"
        "  add 16(%rdi), %rax\n  ret\n"
        "1: push %rbp\n  mov %rsp, %rbp\n"
        "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n"
        "  push %r8\n  push %r9\n  push %r10\n  push %r11\n"
        "  mov 8(%rdi), %rdi\n"
        "  mov %rsp, %rsi\n  sub $544, %rsp\n  and $-64, %rsp\n"
        "  mov %rsi, 512(%rsp)\n  fxsave (%rsp)\n"
        "  call image_tls_block\n"
        "  fxrstor (%rsp)\n  mov 512(%rsp), %rsp\n"
        "  pop %r11\n  pop %r10\n  pop %r9\n  pop %r8\n"
        "  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n  pop %rbp\n"
        "  add 16(%rdi), %rax\n  ret\n");

/* glibc: calls `function` when this thread ends, the last given first; `dso` is any address
 * of the program or library that must stay loaded until then. */
int __cxa_thread_atexit_impl(void (*function)(void *), void *object, void *dso);

static void d_tlv_atexit(void (*function)(void *), void *object)
{
    __cxa_thread_atexit_impl(function, object, images);
}

const struct shim plain_shims[] = {
    NAMED("__tlv_bootstrap", tlv_get),
    NAMED("__tlv_atexit", d_tlv_atexit),
    {NULL, NULL},
};
