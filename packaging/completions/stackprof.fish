# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_stackprof_global_optspecs
    string join \n p/pid= gdb= exec= a/all cgroup= container= user= as= kill-after d/duration= threads unwind= max-depth= F/hz= idle timeline-memory= no-timeline source= kernel no-kernel max-stop= o/output= format= open viewer= no-browser timeout= stats= no-source source-dir= title= pprof-timestamps reverse no-inline lines short-names min-width= colors= dark inverted no-inverted q/quiet v/verbose h/help V/version off-cpu children no-children per-process
end

function __fish_stackprof_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    contains -- -- $cmd; and return 1
    set -e cmd[1]
    argparse -s (__fish_stackprof_global_optspecs) -- $cmd 2>/dev/null
    or argparse -s (__fish_stackprof_global_optspecs) -- $cmd[1..-2] 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_stackprof_using_subcommand
    set -l cmd (__fish_stackprof_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c stackprof -n "__fish_stackprof_needs_command" -s p -l pid -d 'Process to attach to, by id or name; a recording may have several' -r -f -f -a "(__fish_stackprof_processes)"
complete -c stackprof -n "__fish_stackprof_needs_command" -l gdb -d 'Target behind a stub of the gdb remote protocol (QEMU, OpenOCD, gdbserver, lldb-server): HOST:PORT, or \'|COMMAND\' for a stub on its standard input and output' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l exec -d 'With --gdb: the program\'s file, if the stub does not name it' -r -F
complete -c stackprof -n "__fish_stackprof_needs_command" -l cgroup -d 'The processes of a control group: /system.slice/nginx.service' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l container -d 'The processes of a container, by the beginning of its id' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l user -d 'The processes of a user' -r -f -a "(__fish_complete_users)"
complete -c stackprof -n "__fish_stackprof_needs_command" -l as -d 'Linux, as root: run the command as this user, with a login\'s groups and environment' -r -f -a "(__fish_complete_users)"
complete -c stackprof -n "__fish_stackprof_needs_command" -s d -l duration -d 'Stop after this many seconds (0.5 works) [default: at the end of the program or Ctrl-C]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l unwind -d 'How stacks are walked: auto, cfi (unwind information) or fp (frame pointers); 32-bit Arm also exidx, code or scan [default: auto]' -r -f -a "auto\t''
cfi\t''
fp\t''
exidx\t''
code\t''
scan\t''"
complete -c stackprof -n "__fish_stackprof_needs_command" -l max-depth -d 'Frames kept per stack, 1 to 65536 [default: 1024]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -s F -l hz -d 'Ticks per second, 1 to 10000 [default: 997]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l timeline-memory -d 'Memory for the times of samples, such as 64M or 500K; when it is full, times become coarser [default: 64M]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l source -d 'Linux: source of the samples: perf (the kernel, which stops nothing), ptrace (stops threads) or auto, the first that is permitted [default: auto]' -r -f -a "auto\t''
perf\t''
ptrace\t''"
complete -c stackprof -n "__fish_stackprof_needs_command" -l max-stop -d 'Stop the target for at most this share of its time: at the limit, less of large stacks is copied, then ticks are skipped [default: 2; 5 behind a stub]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -s o -l output -d 'Write the profile here; may be given more than once. The extension selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json .firefox.json .otlp .otlp.gz), - is folded stacks on standard output [default: stackprof-NAME-PID.svg]' -r -F
complete -c stackprof -n "__fish_stackprof_needs_command" -l format -d 'Format of outputs whose extension is none of these: svg, html, folded, pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)' -r -f -a "svg\t''
html\t''
folded\t''
pprof\t''
speedscope\t''
firefox\t''
otlp\t''"
complete -c stackprof -n "__fish_stackprof_needs_command" -l viewer -d 'firefox, speedscope, html (a page in a file), or the address of a Firefox Profiler that you host [default: firefox; html without a network]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l timeout -d 'Exit after this many seconds without a request, counted from the first request; 0 is never [default: 60]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l stats -d 'Write the numbers of the closing summary as JSON' -r -F
complete -c stackprof -n "__fish_stackprof_needs_command" -l source-dir -d 'Source in .html outputs from below this directory instead; may be given more than once' -r -F
complete -c stackprof -n "__fish_stackprof_needs_command" -l title -d 'Heading of the flame graph [default: NAME (pid N)]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l min-width -d 'Leave out frames narrower than this part of the graph [default: 0.01]' -r -f
complete -c stackprof -n "__fish_stackprof_needs_command" -l colors -d 'Colours of the flame graph: hot, or blue-orange for colour-blind readers [default: hot]' -r -f -a "hot\t''
blue-orange\t''"
complete -c stackprof -n "__fish_stackprof_needs_command" -s a -l all -d 'The whole machine: all processes, and the kernel\'s threads'
complete -c stackprof -n "__fish_stackprof_needs_command" -l kill-after -d 'End a command that still runs when the recording ends: SIGTERM, after 5 s SIGKILL [default: it runs on]'
complete -c stackprof -n "__fish_stackprof_needs_command" -l threads -d 'One subtree per thread instead of one for all'
complete -c stackprof -n "__fish_stackprof_needs_command" -l idle -d 'Also record waiting threads: a profile of wall-clock time'
complete -c stackprof -n "__fish_stackprof_needs_command" -l no-timeline -d 'Keep no times of samples'
complete -c stackprof -n "__fish_stackprof_needs_command" -l kernel -d 'Include frames of the kernel, marked _[k], if the source has them [default]'
complete -c stackprof -n "__fish_stackprof_needs_command" -l no-kernel -d 'No frames of the kernel: its time counts for the function that called it'
complete -c stackprof -n "__fish_stackprof_needs_command" -l open -d 'Open the profile in a viewer afterwards, as `stackprof open` does'
complete -c stackprof -n "__fish_stackprof_needs_command" -l no-browser -d 'Start no browser: print the address'
complete -c stackprof -n "__fish_stackprof_needs_command" -l no-source -d 'No source in .html outputs [default: files below the working directory that debug information names]'
complete -c stackprof -n "__fish_stackprof_needs_command" -l pprof-timestamps -d 'In pprof files, write each sample by itself, with its time as a label (end_timestamp_ns); files are larger'
complete -c stackprof -n "__fish_stackprof_needs_command" -l reverse -d 'Stack-reversed flame graph: leaf functions at the root, then their callers'
complete -c stackprof -n "__fish_stackprof_needs_command" -l no-inline -d 'No frames for inlined functions'
complete -c stackprof -n "__fish_stackprof_needs_command" -l lines -d 'Frames with their source line: function (file:line)'
complete -c stackprof -n "__fish_stackprof_needs_command" -l short-names -d 'Leave out the arguments of templates: std::vector<..>::push_back(..)'
complete -c stackprof -n "__fish_stackprof_needs_command" -l dark -d 'Flame graph on a dark page'
complete -c stackprof -n "__fish_stackprof_needs_command" -l inverted -d 'Flame graph with its root at the top, as an icicle [default]'
complete -c stackprof -n "__fish_stackprof_needs_command" -l no-inverted -d 'Flame graph with its root at the bottom'
complete -c stackprof -n "__fish_stackprof_needs_command" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_needs_command" -s v -l verbose -d 'Also print why names are missing, file by file'
complete -c stackprof -n "__fish_stackprof_needs_command" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_needs_command" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_needs_command" -l off-cpu -d 'Linux: record waiting time alone, under the stack that waits'
complete -c stackprof -n "__fish_stackprof_needs_command" -l children -d 'Also record the processes that the target starts [default for a command]'
complete -c stackprof -n "__fish_stackprof_needs_command" -l no-children -d 'Record only the process itself [default with --pid]'
complete -c stackprof -n "__fish_stackprof_needs_command" -l per-process -d 'One root frame per process, `name (pid)`, instead of one per name'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "record" -d 'Record a profile (the default).'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "heap" -d 'Record who allocates the memory of a command, and who never frees it.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "demo" -d 'Record a small built-in program, to see a profile without one of your own.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "dump" -d 'Show the threads, images, symbols or stacks of a process, without recording.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "render" -d 'Turn saved profiles into a flame graph or any other format; several are merged.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "open" -d 'Look at a saved profile in the Firefox Profiler, speedscope, or a page of its own.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "diff" -d 'Show what changed between two profiles: self and total of every function.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "gate" -d 'Fail when a program got slower: several recordings before, several after.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "completions" -d 'Print a script that completes stackprof\'s commands and options in a shell.'
complete -c stackprof -n "__fish_stackprof_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s p -l pid -d 'Process to attach to, by id or name; a recording may have several' -r -f -f -a "(__fish_stackprof_processes)"
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l gdb -d 'Target behind a stub of the gdb remote protocol (QEMU, OpenOCD, gdbserver, lldb-server): HOST:PORT, or \'|COMMAND\' for a stub on its standard input and output' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l exec -d 'With --gdb: the program\'s file, if the stub does not name it' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l cgroup -d 'The processes of a control group: /system.slice/nginx.service' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l container -d 'The processes of a container, by the beginning of its id' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l user -d 'The processes of a user' -r -f -a "(__fish_complete_users)"
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l as -d 'Linux, as root: run the command as this user, with a login\'s groups and environment' -r -f -a "(__fish_complete_users)"
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s d -l duration -d 'Stop after this many seconds (0.5 works) [default: at the end of the program or Ctrl-C]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l unwind -d 'How stacks are walked: auto, cfi (unwind information) or fp (frame pointers); 32-bit Arm also exidx, code or scan [default: auto]' -r -f -a "auto\t''
cfi\t''
fp\t''
exidx\t''
code\t''
scan\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l max-depth -d 'Frames kept per stack, 1 to 65536 [default: 1024]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s F -l hz -d 'Ticks per second, 1 to 10000 [default: 997]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l timeline-memory -d 'Memory for the times of samples, such as 64M or 500K; when it is full, times become coarser [default: 64M]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l source -d 'Linux: source of the samples: perf (the kernel, which stops nothing), ptrace (stops threads) or auto, the first that is permitted [default: auto]' -r -f -a "auto\t''
perf\t''
ptrace\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l max-stop -d 'Stop the target for at most this share of its time: at the limit, less of large stacks is copied, then ticks are skipped [default: 2; 5 behind a stub]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s o -l output -d 'Write the profile here; may be given more than once. The extension selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json .firefox.json .otlp .otlp.gz), - is folded stacks on standard output [default: stackprof-NAME-PID.svg]' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l format -d 'Format of outputs whose extension is none of these: svg, html, folded, pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)' -r -f -a "svg\t''
html\t''
folded\t''
pprof\t''
speedscope\t''
firefox\t''
otlp\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l viewer -d 'firefox, speedscope, html (a page in a file), or the address of a Firefox Profiler that you host [default: firefox; html without a network]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l timeout -d 'Exit after this many seconds without a request, counted from the first request; 0 is never [default: 60]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l stats -d 'Write the numbers of the closing summary as JSON' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l source-dir -d 'Source in .html outputs from below this directory instead; may be given more than once' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l title -d 'Heading of the flame graph [default: NAME (pid N)]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l min-width -d 'Leave out frames narrower than this part of the graph [default: 0.01]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l colors -d 'Colours of the flame graph: hot, or blue-orange for colour-blind readers [default: hot]' -r -f -a "hot\t''
blue-orange\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s a -l all -d 'The whole machine: all processes, and the kernel\'s threads'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l kill-after -d 'End a command that still runs when the recording ends: SIGTERM, after 5 s SIGKILL [default: it runs on]'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l threads -d 'One subtree per thread instead of one for all'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l idle -d 'Also record waiting threads: a profile of wall-clock time'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l no-timeline -d 'Keep no times of samples'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l kernel -d 'Include frames of the kernel, marked _[k], if the source has them [default]'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l no-kernel -d 'No frames of the kernel: its time counts for the function that called it'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l open -d 'Open the profile in a viewer afterwards, as `stackprof open` does'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l no-browser -d 'Start no browser: print the address'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l no-source -d 'No source in .html outputs [default: files below the working directory that debug information names]'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l pprof-timestamps -d 'In pprof files, write each sample by itself, with its time as a label (end_timestamp_ns); files are larger'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l reverse -d 'Stack-reversed flame graph: leaf functions at the root, then their callers'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l no-inline -d 'No frames for inlined functions'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l lines -d 'Frames with their source line: function (file:line)'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l short-names -d 'Leave out the arguments of templates: std::vector<..>::push_back(..)'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l dark -d 'Flame graph on a dark page'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l inverted -d 'Flame graph with its root at the top, as an icicle [default]'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l no-inverted -d 'Flame graph with its root at the bottom'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s v -l verbose -d 'Also print why names are missing, file by file'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l off-cpu -d 'Linux: record waiting time alone, under the stack that waits'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l children -d 'Also record the processes that the target starts [default for a command]'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l no-children -d 'Record only the process itself [default with --pid]'
complete -c stackprof -n "__fish_stackprof_using_subcommand record" -l per-process -d 'One root frame per process, `name (pid)`, instead of one per name'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l every -d 'Bytes allocated per sample, on average, such as 64K; 1 samples all allocations [default: 512K]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l type -d 'Value in flame graphs and folded stacks: inuse_space, inuse_objects, alloc_space, alloc_objects, churn_space or churn_objects (freed within 1 ms); pprof and OTLP have all [default: inuse_space]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l callers -d 'Callers per row of the table of leaks, 1 to 64 [default: as needed]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l skip -d 'Functions to skip in the table of leaks, like operator new and xmalloc: their callers are shown; may be given more than once' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l older-than -d 'Count as in use only blocks that are at least this old at the end: what is freed soon is no leak' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l max-slowdown -d 'With --pid: end the recording if the probes slow the process by more than this [default: 10]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l alloc -d 'With --gdb: a function that allocates as many bytes as its first argument says; may be given more than once [default: malloc and other known names]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l free -d 'With --gdb: a function that frees the block that its first argument points to' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l gdb -d 'Target behind a stub of the gdb remote protocol (QEMU, OpenOCD, gdbserver, lldb-server): HOST:PORT, or \'|COMMAND\' for a stub on its standard input and output' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l exec -d 'With --gdb: the program\'s file, if the stub does not name it' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -s d -l duration -d 'Stop after this many seconds (0.5 works) [default: at the end of the program or Ctrl-C]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l unwind -d 'How stacks are walked: auto, cfi (unwind information) or fp (frame pointers); 32-bit Arm also exidx, code or scan [default: auto]' -r -f -a "auto\t''
cfi\t''
fp\t''
exidx\t''
code\t''
scan\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l max-depth -d 'Frames kept per stack, 1 to 65536 [default: 1024]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -s o -l output -d 'Write the profile here; may be given more than once. The extension selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json .firefox.json .otlp .otlp.gz), - is folded stacks on standard output [default: stackprof-NAME-PID.svg]' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l format -d 'Format of outputs whose extension is none of these: svg, html, folded, pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)' -r -f -a "svg\t''
html\t''
folded\t''
pprof\t''
speedscope\t''
firefox\t''
otlp\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l viewer -d 'firefox, speedscope, html (a page in a file), or the address of a Firefox Profiler that you host [default: firefox; html without a network]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l timeout -d 'Exit after this many seconds without a request, counted from the first request; 0 is never [default: 60]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l stats -d 'Write the numbers of the closing summary as JSON' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l source-dir -d 'Source in .html outputs from below this directory instead; may be given more than once' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l title -d 'Heading of the flame graph [default: NAME (pid N)]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l min-width -d 'Leave out frames narrower than this part of the graph [default: 0.01]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l colors -d 'Colours of the flame graph: hot, or blue-orange for colour-blind readers [default: hot]' -r -f -a "hot\t''
blue-orange\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -s p -l pid -d 'Process to attach to, by id or name' -r -f -f -a "(__fish_stackprof_processes)"
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l mmap -d 'Also record anonymous mappings (mmap) of the command, which are freed page by page: arenas of Python, garbage collectors and other allocators'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l peak -d 'Report the memory in use at the peak [default: at the end]'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l per-process -d 'One root frame per process, `name (pid)`, instead of one per name'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l kill-after -d 'End a command that still runs when the recording ends: SIGTERM, after 5 s SIGKILL [default: it runs on]'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l threads -d 'One subtree per thread instead of one for all'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l open -d 'Open the profile in a viewer afterwards, as `stackprof open` does'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l no-browser -d 'Start no browser: print the address'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l no-source -d 'No source in .html outputs [default: files below the working directory that debug information names]'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l reverse -d 'Stack-reversed flame graph: leaf functions at the root, then their callers'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l no-inline -d 'No frames for inlined functions'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l lines -d 'Frames with their source line: function (file:line)'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l short-names -d 'Leave out the arguments of templates: std::vector<..>::push_back(..)'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l dark -d 'Flame graph on a dark page'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l inverted -d 'Flame graph with its root at the top, as an icicle [default]'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -l no-inverted -d 'Flame graph with its root at the bottom'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -s v -l verbose -d 'Also print why names are missing, file by file'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand heap" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l unwind -d 'How stacks are walked: auto, cfi (unwind information) or fp (frame pointers); 32-bit Arm also exidx, code or scan [default: auto]' -r -f -a "auto\t''
cfi\t''
fp\t''
exidx\t''
code\t''
scan\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l max-depth -d 'Frames kept per stack, 1 to 65536 [default: 1024]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -s F -l hz -d 'Ticks per second, 1 to 10000 [default: 997]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l timeline-memory -d 'Memory for the times of samples, such as 64M or 500K; when it is full, times become coarser [default: 64M]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l source -d 'Linux: source of the samples: perf (the kernel, which stops nothing), ptrace (stops threads) or auto, the first that is permitted [default: auto]' -r -f -a "auto\t''
perf\t''
ptrace\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l max-stop -d 'Stop the target for at most this share of its time: at the limit, less of large stacks is copied, then ticks are skipped [default: 2; 5 behind a stub]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l format -d 'Format of outputs whose extension is none of these: svg, html, folded, pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)' -r -f -a "svg\t''
html\t''
folded\t''
pprof\t''
speedscope\t''
firefox\t''
otlp\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l viewer -d 'firefox, speedscope, html (a page in a file), or the address of a Firefox Profiler that you host [default: firefox; html without a network]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l timeout -d 'Exit after this many seconds without a request, counted from the first request; 0 is never [default: 60]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l stats -d 'Write the numbers of the closing summary as JSON' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l source-dir -d 'Source in .html outputs from below this directory instead; may be given more than once' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l title -d 'Heading of the flame graph [default: NAME (pid N)]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l min-width -d 'Leave out frames narrower than this part of the graph [default: 0.01]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l colors -d 'Colours of the flame graph: hot, or blue-orange for colour-blind readers [default: hot]' -r -f -a "hot\t''
blue-orange\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -s o -l output -d 'Write the profile here; may be given more than once. The extension selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json .firefox.json .otlp .otlp.gz), - is folded stacks on standard output [default: stackprof-demo.svg]' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -s d -l duration -d 'Stop after this many seconds (0.5 works) [default: 3]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l threads -d 'One subtree per thread instead of one for all'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l idle -d 'Also record waiting threads: a profile of wall-clock time'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l no-timeline -d 'Keep no times of samples'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l kernel -d 'Include frames of the kernel, marked _[k], if the source has them [default]'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l no-kernel -d 'No frames of the kernel: its time counts for the function that called it'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l open -d 'Open the profile in a viewer afterwards, as `stackprof open` does'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l no-browser -d 'Start no browser: print the address'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l no-source -d 'No source in .html outputs [default: files below the working directory that debug information names]'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l pprof-timestamps -d 'In pprof files, write each sample by itself, with its time as a label (end_timestamp_ns); files are larger'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l reverse -d 'Stack-reversed flame graph: leaf functions at the root, then their callers'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l no-inline -d 'No frames for inlined functions'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l lines -d 'Frames with their source line: function (file:line)'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l short-names -d 'Leave out the arguments of templates: std::vector<..>::push_back(..)'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l dark -d 'Flame graph on a dark page'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l inverted -d 'Flame graph with its root at the top, as an icicle [default]'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -l no-inverted -d 'Flame graph with its root at the bottom'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -s v -l verbose -d 'Also print why names are missing, file by file'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand demo" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -l gdb -d 'Target behind a stub of the gdb remote protocol (QEMU, OpenOCD, gdbserver, lldb-server): HOST:PORT, or \'|COMMAND\' for a stub on its standard input and output' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -l exec -d 'With --gdb: the program\'s file, if the stub does not name it' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -l unwind -d 'How stacks are walked: auto, cfi (unwind information) or fp (frame pointers); 32-bit Arm also exidx, code or scan [default: auto]' -r -f -a "auto\t''
cfi\t''
fp\t''
exidx\t''
code\t''
scan\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -l max-depth -d 'Frames shown of a stack, 1 to 1048576 [default: 1024]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -s p -l pid -d 'Process to show, by id or name' -r -f -f -a "(__fish_stackprof_processes)"
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -l no-inline -d 'No frames for inlined functions'
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -l lines -d 'Frames with their source line: function (file:line)'
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -l short-names -d 'Leave out the arguments of templates: std::vector<..>::push_back(..)'
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -s o -l output -d 'Write the profile here; may be given more than once. The extension selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json .firefox.json .otlp .otlp.gz), - is folded stacks on standard output' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l format -d 'Format of outputs whose extension is none of these: svg, html, folded, pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)' -r -f -a "svg\t''
html\t''
folded\t''
pprof\t''
speedscope\t''
firefox\t''
otlp\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l top -d 'Print the N functions with the most self samples as a table [default: 20]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l title -d 'Heading of the flame graph [default: the name of the process]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l min-width -d 'Leave out frames narrower than this part of the graph [default: 0.01]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l colors -d 'Colours of the flame graph: hot, or blue-orange for colour-blind readers [default: hot]' -r -f -a "hot\t''
blue-orange\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l from -d 'Only samples since this time of the recording, such as 2.5s or 300ms' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l to -d 'Only samples before this time of the recording' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l thread -d 'Only threads whose name, or `name (id)`, matches; for profiles recorded with --threads, or with times of samples' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l source-dir -d 'Source and instructions in .html outputs: source files below this directory that the profile names; may be given more than once' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l include -d 'Only stacks with a matching frame; given twice, one match is enough' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l exclude -d 'No stacks with a matching frame' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l root -d 'Only stacks with a matching function, seen from the outermost one on' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l type -d 'Value of a heap profile to read: inuse_space, inuse_objects, alloc_space, alloc_objects or another one in the file [default: the one it shows]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l pprof-timestamps -d 'In pprof files, write each sample by itself, with its time as a label (end_timestamp_ns), if the profile has times'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l reverse -d 'Stack-reversed flame graph: leaf functions at the root, then their callers'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l lines -d 'Frames with their source line: function (file:line), where the profile has them'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l dark -d 'Flame graph on a dark page'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l inverted -d 'Flame graph with its root at the top, as an icicle [default]'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l no-inverted -d 'Flame graph with its root at the bottom'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -l strict -d 'Refuse a file with lines or samples that are not understood. Without this they are left out and counted, up to half of them'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand render" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -l viewer -d 'firefox, speedscope, html (a page in a file), or the address of a Firefox Profiler that you host [default: firefox; html without a network]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -l timeout -d 'Exit after this many seconds without a request, counted from the first request; 0 is never [default: 60]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -l no-browser -d 'Start no browser: print the address'
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -l strict -d 'Refuse a file with lines or samples that are not understood. Without this they are left out and counted, up to half of them'
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand open" -s v -l verbose -d 'Also print which images and files cannot be shown, and why'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l base -d 'The part of the time that is the base, of one profile with times, such as 0s..500ms; either end may be left out' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l new -d 'The part of the time that is compared with it' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -s o -l output -d 'Write the comparison here; may be given more than once. The extension selects the format: .svg differential flame graph, .html page with both profiles, .folded `stack BASE NEW`, .md and .json tables; - is folded on standard output' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l top -d 'Functions shown [default: 20]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l title -d 'Heading of the flame graph' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l min-width -d 'Leave out frames narrower than this part of the graph [default: 0.01]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l colors -d 'Colours of the flame graph: hot, or blue-orange for colour-blind readers [default: hot]' -r -f -a "hot\t''
blue-orange\t''"
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l type -d 'Value of a heap profile to read: inuse_space, inuse_objects, alloc_space, alloc_objects or another one in the file [default: the one it shows]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l absolute -d 'Compare CPU seconds, or numbers of samples if a file does not state its rate'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l share -d 'Compare shares of each profile'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l idle -d 'Also compare waiting threads, for profiles recorded with --idle'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l no-normalize -d 'Match names as they are. Without this, what differs between builds is left out: hashes, {closure#3}, .llvm.123, .cold, .part.0, .constprop.0, .isra.0, lambda numbers, offsets in [module+0x1f40], lines'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l no-inline -d 'Count inlined functions as the function they became part of, where the profile tells them apart. For builds that inline differently'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l dark -d 'Flame graph on a dark page'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l inverted -d 'Flame graph with its root at the top, as an icicle [default]'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l no-inverted -d 'Flame graph with its root at the bottom'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -l strict -d 'Refuse a file with lines or samples that are not understood. Without this they are left out and counted, up to half of them'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand diff" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l base -d 'Recordings before the change, or a directory of them' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l new -d 'Recordings after the change, or a directory of them' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l update-baseline -d 'If the gate passes, or without --base, keep the new recordings here as the base of later gates, in place of those kept before; the directory is for these only' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l type -d 'Value of a heap profile to read: inuse_space, inuse_objects, alloc_space, alloc_objects or another one in the file [default: the one it shows]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l max-increase -d 'Growth that passes, of the program\'s CPU time and of a function\'s own [default: 5%]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l min-share -d 'A function\'s growth by less than this part of the program\'s CPU time is no regression; functions too small for it are not tested [default: 0.5%]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l false-alarms -d 'How often a gate of unchanged code may fail [default: 5%]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l seed -d 'Seed of the permutations; the same files and seed give the same report [default: 0]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -s o -l output -d 'Write the report here; may be given more than once (.md, .json; - is JSON on standard output)' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l markdown -d 'Write the report as Markdown, whatever the file is called' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l junit -d 'Write the verdict as JUnit XML, for CI systems: one test case for the total and one for each function that failed or to which cost moved' -r -F
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l top -d 'Functions shown [default: 20]' -r -f
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l allow-different-names -d 'Compare programs of different names'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l strict -d 'Also fail when cost moved from one function to another'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l no-normalize -d 'Match names as they are. Without this, what differs between builds is left out: hashes, {closure#3}, .llvm.123, .cold, .part.0, .constprop.0, .isra.0, lambda numbers, offsets in [module+0x1f40], lines'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l inline -d 'Test inlined functions by themselves. Without this, their time is that of the function they became part of, where the profile tells them apart'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -l github -d 'For GitHub Actions: print the verdict as annotations, and append the Markdown report to the file that GITHUB_STEP_SUMMARY names'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -s q -l quiet -d 'Print errors only: no progress line, summary or report'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand gate" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand completions" -s h -l help -d 'Print this text'
complete -c stackprof -n "__fish_stackprof_using_subcommand completions" -s V -l version -d 'Print the version'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "record" -d 'Record a profile (the default).'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "heap" -d 'Record who allocates the memory of a command, and who never frees it.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "demo" -d 'Record a small built-in program, to see a profile without one of your own.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "dump" -d 'Show the threads, images, symbols or stacks of a process, without recording.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "render" -d 'Turn saved profiles into a flame graph or any other format; several are merged.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "open" -d 'Look at a saved profile in the Firefox Profiler, speedscope, or a page of its own.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "diff" -d 'Show what changed between two profiles: self and total of every function.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "gate" -d 'Fail when a program got slower: several recordings before, several after.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "completions" -d 'Print a script that completes stackprof\'s commands and options in a shell.'
complete -c stackprof -n "__fish_stackprof_using_subcommand help; and not __fish_seen_subcommand_from record heap demo dump render open diff gate completions help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

# Processes for --pid: the names that one process has, and all numbers.
function __fish_stackprof_processes
    stackprof completions --processes 2>/dev/null | string replace ' ' \t
end

# The words of a launched command.
function __fish_stackprof_launches
    set -l words (commandline -opc)
    contains -- -- $words
end

function __fish_stackprof_launched
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    set -e words[1..$at]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c stackprof -n __fish_stackprof_launches -f -a "(__fish_stackprof_launched)"
complete -c stackprof -n "__fish_stackprof_using_subcommand dump" -f -a "threads images symbols stacks"
complete -c stackprof -n "__fish_stackprof_using_subcommand completions" -f -a "bash elvish fish powershell zsh"
