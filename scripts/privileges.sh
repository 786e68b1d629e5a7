#!/usr/bin/env bash
# Shows what each thread of the profiler may do in each phase of a recording, as /proc/PID/task/*/status has it:
# ids, permitted and effective capabilities, and NoNewPrivs. For people; needs root.
#
#   scripts/privileges.sh [PATH_OF_STACKPROF]
#
# Phases are held by their input: sampling by a target that runs, reading by a standard input that stays open, writing
# by a FIFO that nobody reads. As sudo starts the program, for the user nobody, and as root does.
set -euo pipefail
cd "$(dirname "$0")/.."

stackprof="${1:-target/debug/stackprof}"
[[ $(id -u) == 0 ]] || { echo "privileges.sh: run it as root" >&2; exit 2; }
[[ -x $stackprof ]] || { echo "privileges.sh: there is no $stackprof; cargo build" >&2; exit 2; }
stackprof="$(realpath "$stackprof")"

dir="$(mktemp -d)"
chmod 777 "$dir"
running=()
end_all() {
    for pid in "${running[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf "$dir"
}
trap end_all EXIT
cd "$dir"

caller="$(id -u nobody)"
# Becomes a command as sudo or root starts it.
as() {
    local who="$1"
    shift
    case $who in
    sudo) exec env SUDO_UID="$caller" SUDO_GID="$caller" "$@" ;;
    root) exec env -u SUDO_UID -u SUDO_GID "$@" ;;
    esac
}

# The names of the capabilities in a mask, in hex.
names() {
    if [[ $1 =~ ^0+$ ]]; then
        echo -
    elif command -v capsh >/dev/null; then
        capsh --decode="$1" | sed 's/.*=//; s/cap_//g'
    else
        echo "0x$1"
    fi
}

field() {
    sed -n "s/^$1:[[:space:]]*//p" "$2"
}

# One line for each thread of process $2, in phase $1.
show() {
    local status uid
    for status in /proc/"$2"/task/*/status; do
        uid="$(field Uid "$status" | cut -f1-4 --output-delimiter=,)"
        printf '%-34s %-13s uid %-24s NoNewPrivs %s\n' "$1" "$(field Name "$status")" "$uid" \
            "$(field NoNewPrivs "$status")"
        printf '%36s effective %s\n' '' "$(names "$(field CapEff "$status")")"
        printf '%36s permitted %s\n' '' "$(names "$(field CapPrm "$status")")"
    done
}

# Waits until a command is true.
until_true() {
    until "$@" 2>/dev/null; do
        sleep 0.02
    done
}

# The process that samples $1 has read it for a while: the thread that samples sleeps now and then.
samples() {
    local status
    for status in /proc/"$1"/task/*/status; do
        if [[ $(field Name "$status") == sampler && $(field voluntary_ctxt_switches "$status") -gt 20 ]]; then
            return 0
        fi
    done
    return 1
}

waits_for_reader() {
    local wchan
    wchan="$(cat "/proc/$1/wchan")"
    [[ $wchan == wait_for_partner || $wchan == fifo_open ]]
}

waits_for_input() {
    local wchan
    wchan="$(cat "/proc/$1/wchan")"
    [[ $wchan == *pipe_read* ]]
}

sh -c 'while :; do :; done' &
target=$!
running+=("$target")

for who in root sudo; do
    for source in perf ptrace; do
        for how in attach launch; do
            mkfifo -m 666 "$who-$source-$how.folded"
            arguments=(-q --source "$source" -o "$who-$source-$how.folded")
            if [[ $how == attach ]]; then
                arguments+=(--pid "$target")
            else
                arguments+=(-- sh -c 'while :; do :; done')
            fi
            as "$who" "$stackprof" "${arguments[@]}" &
            pid=$!
            running+=("$pid")
            until_true samples "$pid"
            show "$who, $source, $how: sampling" "$pid"
            if [[ $how == launch ]]; then
                read -r -a started <<<"$(cat /proc/"$pid"/task/*/children)"
                running+=("${started[@]}")
            fi
            kill -INT "$pid"
            until_true waits_for_reader "$pid"
            show "$who, $source, $how: writing" "$pid"
            cat "$who-$source-$how.folded" >/dev/null
            wait "$pid" || true
        done
    done
    mkfifo "$who.in"
    as "$who" "$stackprof" render -q - -o "$who.svg" <"$who.in" &
    pid=$!
    running+=("$pid")
    exec 3>"$who.in"
    until_true waits_for_input "$pid"
    show "$who, render: reading" "$pid"
    echo 'main;work 1' >&3
    exec 3>&-
    wait "$pid"
done
