#!/usr/bin/env bash
# Runs the x86_64 macOS build of stackprof on this Linux machine: tests/darwin is a loader
# for Mach-O programs with a libSystem and a Mach kernel of its own, written apart from
# src/sources/mach. So xnu.rs and all of the macOS backend run, on real processes.
#
#   scripts/run-macos-build.sh             after scripts/check-macos.sh, whose programs it runs
#   scripts/run-macos-build.sh --build     the programs and the loader only, into target/macos/run
#
# Prints a line for each check and, at the end, `N passed, N failed`.
# shellcheck disable=SC2317 # checks are functions that `check` calls by their names
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $(uname -sm) != "Linux x86_64" ]]; then
    echo "SKIP: macOS programs for x86_64 are run on x86_64 Linux only; this is $(uname -sm)"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive CARGO_TERM_COLOR=never PATH="$PATH:$HOME/.cargo/bin"

fail() {
    echo "run-macos-build.sh: $*" >&2
    exit 1
}

packages=()
command -v clang-19 >/dev/null || packages+=(clang-19)
command -v ld64.lld-19 >/dev/null || packages+=(lld-19)
printf '#include <stdlib.h>\n' | cc -E - >/dev/null 2>&1 || packages+=(gcc libc6-dev)
if ((${#packages[@]} > 0)); then
    as_root=()
    if ((EUID != 0)); then
        as_root=(sudo -n)
    fi
    "${as_root[@]}" apt-get update -qq </dev/null
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null
fi

# ---- the programs of check-macos.sh; made anew if the source is newer

built="$PWD/target/macos/x86_64-apple-darwin"
if [[ ! -d $built && -d $PWD/target/macos/distro ]]; then
    built="$PWD/target/macos/distro/x86_64-apple-darwin"
fi
newest_of() {
    local newest='' file
    for file in "$built/debug/deps/$1"-*; do
        if [[ -x $file && $file != *.d && (-z $newest || $file -nt $newest) ]]; then
            newest="$file"
        fi
    done
    printf '%s' "$newest"
}
is_fresh() {
    [[ -x $1 && -z $(find src Cargo.toml Cargo.lock "${@:2}" \( -name '*.rs' -o -name 'Cargo.*' \) -newer "$1" -print -quit) ]]
}
stackprof="$built/debug/stackprof"
if ! is_fresh "$stackprof" || ! is_fresh "$(newest_of xnu_links)" tests/xnu_links.rs; then
    scripts/check-macos.sh
    built="$PWD/target/macos/x86_64-apple-darwin"
    [[ -x $built/debug/stackprof ]] || built="$PWD/target/macos/distro/x86_64-apple-darwin"
    stackprof="$built/debug/stackprof"
fi
links="$(newest_of xnu_links)"
[[ -x $stackprof && -x $links ]] || fail "scripts/check-macos.sh made no programs for x86_64"

# ---- the loader, and Mach-O programs to be sampled

work="$PWD/target/macos/run"
stubs="$PWD/target/macos/stubs"
rm -rf "$work"
mkdir -p "$work"
run="$work/darwin-run"
cc -O1 -g -fno-omit-frame-pointer -fexceptions -pthread -shared-libgcc -Wall -Wextra -Werror \
    -o "$run" tests/darwin/*.c -lm

mach_o() {
    local from="$1" to="$2"
    shift 2
    clang-19 -target x86_64-apple-macos11 -fno-builtin -fno-stack-protector -O1 -fno-omit-frame-pointer -Wall -Wextra -Werror \
        -Wno-incompatible-library-redeclaration -c -o "$to.o" "$from"
    ld64.lld-19 -arch x86_64 -platform_version macos 11.0 11.0 "-L$stubs" -lSystem "$@" -o "$to" "$to.o"
    rm "$to.o"
}
for from in tests/darwin/targets/*.c; do
    mach_o "$from" "$work/$(basename "$from" .c)"
done
for name in dyld pthread; do
    mach_o "tests/darwin/system/$name.c" "$work/$name.dylib" -dylib -undefined dynamic_lookup
done
# The file type of dyld, MH_DYLINKER, which the linker does not make.
printf '\7' | dd "of=$work/dyld.dylib" bs=1 seek=12 conv=notrunc status=none
# The same for a system with a shared cache: the image in it bears the flag
# MH_DYLIB_IN_CACHE, the highest bit of the flags in its header.
mkdir "$work/with-cache"
cp "$work/dyld.dylib" "$work/with-cache/"
cp "$work/pthread.dylib" "$work/with-cache/cached-pthread.dylib"
printf '\200' | dd "of=$work/with-cache/cached-pthread.dylib" bs=1 seek=27 conv=notrunc status=none
printf 'dyld_v1 x86_64h' >"$work/with-cache/cache"
if [[ ${1:-} == --build ]]; then
    exit 0
fi
cargo build --locked --quiet
native="$PWD/${CARGO_TARGET_DIR:-target}/debug/stackprof"
[[ -x $native ]] || native="${CARGO_TARGET_DIR:-}/debug/stackprof"
export DARWIN_RUN_SYSTEM="$work" DARWIN_RUN_REPORT="$work/report"

# ---- checks

passed=0
failed=0
log="$work/log"
target=
end_target() {
    if [[ -n $target ]]; then
        kill -9 "$target" 2>/dev/null || true
    fi
}

# What a check ends with where the machine was too busy to tell: it is tried again, three times in all, and takes
# more time for what it samples then.
too_busy=75
times=1

# check NAME COMMAND...: one line, and what it printed if it fails.
check() {
    local name="$1" result=$too_busy
    shift
    for ((times = 1; times <= 9 && result == too_busy; times *= 3)); do
        rm -f "$work/report" "$work/out.folded" "$work/stats.json"
        # Not in a condition: there, set -e would not hold in the checks.
        set +e
        (
            set -e
            trap end_target EXIT
            "$@"
        ) >"$log" 2>&1 </dev/null
        result=$?
        set -e
    done
    if ((result == 0)); then
        passed=$((passed + 1))
        printf 'ok    %s\n' "$name"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n' "$name"
        sed 's/^/      /' "$log"
        if [[ -s $work/out.folded ]]; then
            sed 's/^/      folded: /' "$work/out.folded" | head -n 30
        fi
        if [[ -s $work/report ]]; then
            sed 's/^/      left: /' "$work/report"
        fi
    fi
}

darwin() {
    timeout -k 5 60 "$run" "$@"
}

# Test programs are built without optimisation, and machines may be busy.
darwin_slowly() {
    timeout -k 5 600 "$run" "$@"
}

# wait_for COMMAND...: until it succeeds, for two minutes at most.
wait_for() {
    local until=$((SECONDS + 120))
    until "$@"; do
        ((SECONDS < until)) || {
            echo "waited two minutes for: $*"
            return 1
        }
        sleep 0.02
    done
}

# CPU time that $target has used, in hundredths of a second.
target_used() {
    # By fields behind the name, which may hold anything.
    sed 's/.*) //' "/proc/$target/stat" | awk '{ print $12 + $13 }'
}
target_has_used() {
    (($(target_used) >= $1))
}
# target_works HUNDREDTHS: until $target has used so much more CPU time.
target_works() {
    wait_for target_has_used $(($(target_used) + $1))
}

# Starts a program to be sampled; its number is then in $target. It is loaded, and its threads are there.
start() {
    DARWIN_RUN_REPORT='' "$run" "$@" >/dev/null 2>&1 </dev/null &
    target=$!
    wait_for target_has_used 30
}

# Whether $target is held, as each stack of it is taken.
target_is_held() {
    grep -qE '^TracerPid:.[1-9]' "/proc/$target"/task/*/status
}

# Holds by ptrace take milliseconds on a busy machine: with the usual limit of what the target
# may stand, samples would be too few to compare shares.
unlimited=(--max-stop 100)

# sample SECONDS ARGUMENT...: records $target, for $asked seconds.
sample() {
    asked="$(awk "BEGIN { print $1 * $times }")"
    darwin "$stackprof" --pid "$target" --duration "$asked" "${unlimited[@]}" -o "$work/out.folded" --stats "$work/stats.json" "${@:2}"
}

# 60, 30 and 10 % under run and work, each within nine points, or five standard deviations of as many
# samples as there are: on a machine that does other things, too, some stand for many.
shares_are_right() {
    local samples
    samples="$(sed -n 's/^ *"samples_effective": *\([0-9]*\).*/\1/p' "$work/stats.json")"
    if ((samples < 60)); then
        echo "as much as $samples samples of the same weight"
        return "$too_busy"
    fi
    awk -v "samples=$samples" '/;run;work;/ { count[leaf($0)] += $NF; all += $NF }
         function leaf(line) { sub(/ [0-9]+$/, "", line); sub(/.*;/, "", line); return line }
         function off(name, share, by) {
             by = 25 * share * (1 - share) / samples
             return (count[name] / all - share) ^ 2 > (by > 0.09 ^ 2 ? by : 0.09 ^ 2)
         }
         END {
             if (all < 100) { print "only " all + 0 " counts of work"; exit 1 }
             printf "heavy %.3f medium %.3f light %.3f of %d, as much as %d\n", count["heavy"] / all, count["medium"] / all, count["light"] / all, all, samples
             exit off("heavy", 0.6) || off("medium", 0.3) || off("light", 0.1)
         }' "$work/out.folded"
}
# All stacks that are in the program begin where those of macOS begin, whole.
stacks_are_rooted() {
    awk '!/(start;main;run|thread_start;_pthread_start;(worker;run|sleeper))/ { wrong += $NF } { all += $NF }
         END { if (wrong * 50 > all) { print wrong " of " all " not rooted"; exit 1 } }' "$work/out.folded"
}
nothing_is_left() {
    grep -q "^names=0 references=0 suspensions=0 arrays=0 wrong=0 attaches=[1-9]" "$work/report" || {
        echo "not all was given back"
        return 1
    }
}
# $target is not traced, not stopped, and uses CPU time.
target_is_free() {
    ! grep -hE '^(State:.[tT]|TracerPid:.[1-9])' "/proc/$target"/task/*/status
}
target_runs() {
    wait_for target_is_free
    target_works 5
}
sampled_well() {
    shares_are_right
    stacks_are_rooted
    nothing_is_left
    target_runs
}

links_pass() {
    darwin "$links"
}
check 'tests/xnu_links.rs' links_pass
check 'tests/xnu_links.rs, ticks of 125/3 ns' env DARWIN_RUN_TIMEBASE=125/3 timeout -k 5 60 "$run" "$links"

# tests_pass PROGRAM: all tests of the test programs of that name (stackprof: the unit tests).
tests_pass() {
    local file ran=0
    for file in "$built/debug/deps/$1"-*; do
        # The program itself is there, too, and lists no tests.
        if [[ $file != *.d ]] && is_fresh "$file" tests && darwin "$file" --list >/dev/null 2>&1; then
            darwin_slowly "$file"
            ran=$((ran + 1))
        fi
    done
    ((ran > 0))
}
# Not tests/cli: its shells start Mach-O programs, which Linux by itself cannot.
for tests in stackprof fast files; do
    if compgen -G "tests/$tests*" >/dev/null || [[ $tests == stackprof ]]; then
        check "tests of the macOS build: $tests" tests_pass "$tests"
    fi
done

same_text() {
    diff <(darwin "$stackprof" "$@") <("$native" "$@")
}
check '--version as on Linux' same_text --version
check '--help as on Linux' same_text --help
check 'dump of a simulated process as on Linux' same_text dump stacks --target sim:3

same_profile() {
    local seed
    for seed in 1 2 3 4 5 6 7 8; do
        darwin "$stackprof" --target "sim:$seed" -q --threads -o "$work/d.folded" -o "$work/d.svg"
        "$native" --target "sim:$seed" -q --threads -o "$work/n.folded" -o "$work/n.svg"
        cmp "$work/d.folded" "$work/n.folded"
        cmp "$work/d.svg" "$work/n.svg"
    done
}
check 'profiles of eight simulated processes are those of Linux, byte for byte' same_profile

attached() {
    start "$work/shares" 1
    sample 2
    sampled_well
}
check 'attach: shares, roots, nothing left, target unharmed' attached

# No read made pages of the target copy-on-write, and the sampler's thread asked for user-interactive QoS.
reads_and_wakes() {
    start "$work/shares" 1
    sample 1
    grep -q ' virtual_copies=0 qos=0x21$' "$work/report"
}
check 'reads within the kernel buffer, user-interactive QoS' reads_and_wakes

with_threads() {
    start "$work/shares" 3
    sample 2 --threads
    sampled_well
    grep -q '^shares;main thread (' "$work/out.folded"
    [[ $(grep -c '^shares;worker (.*;work;heavy ' "$work/out.folded") == 2 ]]
}
check 'attach: three busy threads by name' with_threads

without() {
    export DARWIN_RUN_REFUSE="$1"
    start "$work/shares" 1
    sample 1.5
    sampled_well
}
check 'without CPU times' without cpu_times
check 'without regions, process information, signing flags, names' \
    without 'region proc_pidinfo csops thread_names'

ticks() {
    export DARWIN_RUN_TIMEBASE=125/3
    start "$work/shares" 1
    sample 2
    sampled_well
    # Ticks taken for nanoseconds would make it 42 times as long or short.
    awk -v "asked=$asked" -v "too_busy=$too_busy" -F'[:,]' \
        '/"duration_s"/ { exit $2 < 0.95 * asked || $2 > 10 * asked ? 1 : $2 < asked + 1 ? 0 : too_busy }' \
        "$work/stats.json"
}
check 'ticks of 125/3 ns' ticks

# Each Mach call takes 20 to 100 us more, and there are 21 threads: what ends by its time and
# by Ctrl-C must not depend on calls being fast.
slow_calls() {
    # What others do on this machine is not to slow them, too; only root may say so.
    renice -n -20 -p "$BASHPID" >/dev/null 2>&1 || true
    export DARWIN_RUN_CALL_US=20-100
    start "$work/crowd" 20
    local unlimited=() begun=$SECONDS
    sample 2 --hz 100
    local took=$((SECONDS - begun))
    nothing_is_left
    target_runs
    # Where a stop takes so many slow calls, some ticks are spared the target.
    awk -v "took=$took" -v "asked=$asked" -v "too_busy=$too_busy" -F'[:,]' \
        '/"duration_s"/ { duration = $2 } /"ticks"|"ticks_spared"/ { ticks += $2 }
        END {
            print ticks " ticks in " duration " s, " took " s with all"
            exit took < asked + 10 && duration < asked + 0.3 && ticks > 85 * duration ? 0 : too_busy
        }' "$work/stats.json"
}
check 'slow calls: 21 threads are sampled at the rate, for as long as asked' slow_calls

idle() {
    start "$work/shares" 1
    sample 1 --idle
    nothing_is_left
    target_runs
    # It waits in the C library of Linux, of whose code nothing is known here.
    grep -qE '^shares;(\[incomplete\];)?thread_start;_pthread_start;sleeper;' "$work/out.folded"
}
check '--idle: the thread that waits, too' idle

launched() {
    darwin "$stackprof" "${unlimited[@]}" -o "$work/out.folded" --stats "$work/stats.json" -- \
        "$work/shares" 1 $((2 * times))
    shares_are_right
    stacks_are_rooted
    nothing_is_left
    grep -q '"exit_status": 7' "$work/stats.json"
}
check 'launch: from its start to its exit status' launched

demo() {
    darwin "$stackprof" demo --threads -o "$work/out.folded"
    nothing_is_left
    grep -q ';stackprof::cli::demo::recurse;stackprof::cli::demo::burn_50_percent[ ;]' "$work/out.folded"
    grep -q '^stackprof;main thread (' "$work/out.folded"
}
check 'demo: Rust names, of this program itself' demo

replaced() {
    darwin "$stackprof" "${unlimited[@]}" -o "$work/out.folded" --stats "$work/stats.json" -- \
        "$work/replace" "$work/shares" 1 "$times"
    nothing_is_left
    grep -q '"exit_status": 7' "$work/stats.json"
    grep -q 'start;main;before_exec ' "$work/out.folded" || return "$too_busy"
    grep -q 'start;main;run;work;heavy ' "$work/out.folded" || return "$too_busy"
}
check 'exec: both programs by their own names' replaced

churn() {
    start "$work/churn"
    sample 2
    nothing_is_left
    target_runs
    grep -q ';_pthread_start;worker;brief ' "$work/out.folded" || return "$too_busy"
}
check 'threads that come and go leave no right behind' churn

killed_target() {
    start "$work/shares" 2
    "$run" "$stackprof" --pid "$target" --duration 600 "${unlimited[@]}" -o "$work/out.folded" &
    local profiler=$!
    wait_for target_is_held
    target_works 80
    kill -9 "$target"
    wait "$profiler"
    nothing_is_left
    # Less than a second of a busy machine is too little to compare shares.
    stacks_are_rooted
    (($(awk '/;run;work;/ { all += $NF } END { print all + 0 }' "$work/out.folded") >= 50))
}
check 'a target that is killed ends the recording' killed_target

killed_profiler() {
    local round profiler
    start "$work/shares" 2
    for round in 1 2 3 4 5; do
        "$run" "$stackprof" --pid "$target" --duration 30 -q -o "$work/out.folded" &
        profiler=$!
        sleep "0.4$round"
        kill -9 "$profiler"
        wait "$profiler" || true
        target_runs
    done
}
check 'a profiler that is killed leaves the target running' killed_profiler

interrupted() {
    start "$work/shares" 1
    "$run" "$stackprof" --pid "$target" --duration 600 "${unlimited[@]}" -o "$work/out.folded" \
        --stats "$work/stats.json" &
    local profiler=$!
    wait_for target_is_held
    target_works $((150 * times))
    # Not INT, which a script has its background jobs ignore.
    kill -TERM "$profiler"
    wait "$profiler"
    sampled_well
}
check 'SIGTERM ends the recording as Ctrl-C does, and writes it' interrupted

# refused_with TEXT ARGUMENT...: exit code 1, and these words.
refused_with() {
    local said code=0
    said="$(darwin "$stackprof" -o "$work/out.folded" "${@:2}" 2>&1)" || code=$?
    echo "exit code $code: $said"
    ((code == 1))
    [[ $said == *"$1"* && ! -e $work/out.folded ]]
}
check 'no such process' refused_with 'no such process' --pid 4194304
check 'no such command' refused_with 'no such file or directory' -- "$work/no-such-program"
policy() {
    export DARWIN_RUN_REFUSE=task_for_pid
    start "$work/shares" 1
    refused_with 'kern_return 5' --pid "$target"
    target_runs
}
check 'a policy that refuses the port' policy

dumped() {
    start "$work/shares" 1
    darwin "$stackprof" dump images --pid "$target" | tee "$work/images"
    grep -q '/usr/lib/system/libsystem_pthread.dylib$' "$work/images"
    grep -q '/usr/lib/dyld$' "$work/images"
    darwin "$stackprof" dump symbols --pid "$target" | tee "$work/symbols"
    grep -q ' heavy$' "$work/symbols"
    # Of an image that is on no disk: read from memory.
    grep -q ' _pthread_start$' "$work/symbols"
    darwin "$stackprof" dump threads --pid "$target" | grep -q 'waiting .* sleeper$'
    darwin "$stackprof" dump stacks --pid "$target" | grep -q ' main$'
    nothing_is_left
    target_runs
}
check 'dump: threads, images, symbols, stacks' dumped

# What is in the target's cache is in our own: names come from there, and from nowhere else
# where the target's cannot be read.
cached() {
    export DARWIN_RUN_SYSTEM="$work/with-cache" DARWIN_RUN_REFUSE=cache_tables
    darwin "$links" memory_regions
    start "$work/shares" 2
    sample 2
    sampled_well
    grep -q ';thread_start;_pthread_start;worker;run;work;heavy ' "$work/out.folded"
}
check 'names of the shared cache from our own' cached

# ---- stackprof heap

# heap_record ARGUMENT...: records the program of known allocations, each of them; what it prints is in heap.out.
heap_record() {
    darwin "$stackprof" heap --every 1 -o "$work/out.folded" --stats "$work/stats.json" "${@:2}" -- \
        "$work/heap" "$1" >"$work/heap.out" 2>"$work/heap.err" || {
        cat "$work/heap.err"
        return 1
    }
    cat "$work/heap.err"
    [[ $(<"$work/heap.out") == "done" ]]
}

# Bytes in use by function, to the byte: the counts and sizes of tests/darwin/targets/heap.c.
plain_sites='by_malloc 100000 by_calloc 10000 by_realloc 100000 aligned 16384 by_aligned_alloc 1920 by_valloc 1554
    by_zone_malloc 3330 by_zone_calloc 1001 by_zone_realloc 10800 by_zone_memalign 480 by_zone_valloc 1110
    in_thread 40000'
typed_sites='by_type_malloc 5772 by_type_calloc 714 by_type_realloc 12000 aligned_typed 1152 by_type_aligned_alloc 896
    by_type_valloc 444 by_type_zone_malloc 888 by_type_zone_calloc 558 by_type_zone_realloc 7000
    by_type_zone_memalign 1280 by_type_zone_valloc 198'
# sites_are_exact NAME BYTES...
sites_are_exact() {
    awk -v "wanted=$*" '{ bytes = $NF; line = $0; sub(/ [0-9]+$/, "", line); sub(/.*;/, "", line); found[line] += bytes }
        END {
            count = split(wanted, word, /[ \n]+/)
            for (i = 1; i < count; i += 2) {
                want[word[i]] = word[i + 1]
                if (found[word[i]] != word[i + 1]) { print word[i] ": " found[word[i]] + 0 " bytes, not " word[i + 1]; wrong = 1 }
            }
            for (name in found) if (!(name in want)) { print name ": " found[name] " bytes that are not in the program"; wrong = 1 }
            exit wrong
        }' "$work/out.folded"
}

heap_exact() {
    heap_record sites
    # shellcheck disable=SC2086 # words
    sites_are_exact $plain_sites $typed_sites
    grep -qE '(^|;)main;sites;by_malloc 100000$' "$work/out.folded"
}
check 'heap: 23 kinds of allocation sites are exact to the byte' heap_exact

# The system's images are on no disk: their code is that of our own cache.
heap_cached() {
    export DARWIN_RUN_SYSTEM="$work/with-cache"
    heap_record sites
    # shellcheck disable=SC2086 # words
    sites_are_exact $plain_sites $typed_sites
    grep -qE '(^|;)thread_start;_pthread_start;worker;in_thread 40000$' "$work/out.folded"
}
check 'heap: images of the shared cache are those of our own' heap_cached

heap_older() {
    export DARWIN_RUN_REFUSE=malloc_type
    heap_record sites
    # shellcheck disable=SC2086 # words
    sites_are_exact $plain_sites
}
check 'heap: on a macOS without typed allocation' heap_older

# No right to the task, and none is asked for.
heap_without_rights() {
    export DARWIN_RUN_REFUSE='task_for_pid region'
    heap_record sites
    # shellcheck disable=SC2086 # words
    sites_are_exact $plain_sites $typed_sites
}
check 'heap: without a right to the task' heap_without_rights

# The other sites are named like wrappers of an allocator, which the table passes over.
heap_leak() {
    heap_record sites --callers 2
    grep -qE ' 40,000 +20 +in_thread < worker$' "$work/heap.err"
}
check 'heap: a leak is named with its caller' heap_leak

heap_child() {
    heap_record fork
    # shellcheck disable=SC2086 # words
    sites_are_exact $plain_sites $typed_sites in_child 15000
    grep -q '"processes": *2' "$work/stats.json" || grep -q 'in_child 15000$' "$work/out.folded"
}
check 'heap: a forked child is followed, and its copies are not counted twice' heap_child

heap_sampled() {
    darwin "$stackprof" heap --every 4K --seed 7 -o "$work/out.folded" -- "$work/heap" sites
    # Of 310 KB of small blocks: certain to be sampled somewhere.
    grep -q ';by_malloc [1-9]' "$work/out.folded"
}
check 'heap: one in 4 KiB' heap_sampled

heap_killed() {
    "$run" "$work/heap" long >"$work/plain.out"
    "$run" "$stackprof" heap --every 1 -q -o "$work/out.folded" -- "$work/heap" long >"$work/heap.out" &
    local profiler=$! pid=
    mapping_process() {
        pid="$(pgrep -P "$profiler" | head -n 1)"
        [[ -n $pid ]] && grep -q 'heap-[0-9a-f]*\.dylib' "/proc/$pid/maps"
    }
    wait_for mapping_process
    kill -9 "$profiler"
    wait "$profiler" || true
    is_gone() {
        [[ ! -e /proc/$pid || $(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) == Z* ]]
    }
    wait_for is_gone
    cmp "$work/plain.out" "$work/heap.out"
    # The next recording removes what the killed one left.
    heap_record sites
    ! compgen -G '/dev/shm/stackprof-heap-*' >/dev/null || ! compgen -G '/dev/shm/stackprof-heap-*/control' >/dev/null
}
check 'heap: kill -9 of stackprof leaves the output of the program unchanged' heap_killed

heap_refused() {
    local said code=0
    said="$(darwin "$stackprof" heap -o "$work/out.folded" -- "$@" 2>&1)" || code=$?
    echo "exit code $code: $said"
    ((code != 0)) && [[ $said == *"$expected"* && ! -e $work/out.folded ]]
}
protected() {
    expected='System Integrity Protection guards'
    heap_refused /bin/sh -c true
    printf '#!/bin/sh\nexit 0\n' >"$work/script"
    chmod +x "$work/script"
    expected='record the program that the script starts'
    heap_refused "$work/script"
}
check 'heap: programs of macOS and their scripts are refused' protected
hardened() {
    # The flags as csops tells them, and what dyld makes of them.
    export DARWIN_RUN_CSFLAGS=0x20010003 DARWIN_RUN_HARDENED=1
    expected='codesign --force --sign - COPY'
    heap_refused "$work/heap" sites
}
check 'heap: the hardened runtime is named, with the next step' hardened

printf '%s passed, %s failed\n' "$passed" "$failed"
exit $((failed > 0))
