
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
