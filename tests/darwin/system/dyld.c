/*
 * Stands for dyld: the root of main threads' stacks. On macOS dyld's `start` is entered
 * with a frame pointer and a return address of 0, calls main, and never returns.
 */
extern void exit(int) __attribute__((noreturn));

typedef int program(int, char **, char **, char **);

__attribute__((noreturn)) void start(program *main, long argc, char **argv, char **envp, char **apple)
{
    exit(main((int)argc, argv, envp, apple));
}
