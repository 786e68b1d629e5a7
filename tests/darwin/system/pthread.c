/*
 * Stands for libsystem_pthread: the root of all other threads' stacks. As on macOS,
 * thread_start pushes a return address of 0, makes its frame and calls _pthread_start, which
 * never returns (libpthread, src/pthread_asm.s).
 */
/* darwin-run ends the thread. */
extern void darwin_run_thread_end(void *) __attribute__((noreturn));

__attribute__((noreturn)) void _pthread_start(void *(*function)(void *), void *argument)
{
    darwin_run_thread_end(function(argument));
}

__asm__(".globl _thread_start\n_thread_start:\n"
        "  push $0\n  push %rbp\n  mov %rsp, %rbp\n  sub $24, %rsp\n  call __pthread_start\n  ud2\n");
