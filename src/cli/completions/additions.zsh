# Processes for --pid: the names that one process has, and all numbers.
_stackprof_processes() {
    local word description
    local -a processes
    while read -r word description; do
        processes+=("$word:$description")
    done < <(_call_program processes stackprof completions --processes 2> /dev/null)
    _describe -V 'process' processes
}

