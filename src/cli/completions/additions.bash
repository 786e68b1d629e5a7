
# On top of what is generated above: processes for --pid, users, the words of a launched command, and
# options only where a dash was typed.
_stackprof_complete() {
    local cur="$2" prev="$3" at word
    local -a plain=()
    if [[ "${BASH_VERSINFO[0]}" -lt 4 ]]; then
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    COMPREPLY=()
    for ((at = 1; at < COMP_CWORD; at++)); do
        if [[ "${COMP_WORDS[at]}" == -- ]]; then
            if declare -F _comp_command_offset > /dev/null; then
                _comp_command_offset $((at + 1))
            elif declare -F _command_offset > /dev/null; then
                _command_offset $((at + 1))
            elif ((at + 1 == COMP_CWORD)); then
                COMPREPLY=($(compgen -c -- "$cur"))
            fi
            return 0
        fi
    done
    case "$prev" in
        -p | --pid)
            # The list has plain words only: nothing that a shell would expand.
            while read -r word _; do
                if [[ "$word" == "$cur"* ]]; then
                    COMPREPLY+=("$word")
                fi
            done < <("${COMP_WORDS[0]/#\~/$HOME}" completions --processes 2> /dev/null)
            return 0
            ;;
        --user | --as)
            COMPREPLY=($(compgen -u -- "$cur"))
            return 0
            ;;
    esac
    _stackprof "$@"
    if [[ "$cur" != -* ]]; then
        for word in "${COMPREPLY[@]}"; do
            # `[PROFILES]` stands for files, which bash offers where nothing else is left.
            if [[ "$word" != -* && "$word" != \[* ]]; then
                plain+=("$word")
            fi
        done
        COMPREPLY=(${plain[@]+"${plain[@]}"})
    fi
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _stackprof_complete -o nosort -o bashdefault -o default stackprof
else
    complete -F _stackprof_complete -o bashdefault -o default stackprof
fi
