#!/usr/bin/env bash
# Runs the aarch64 build of stackprof and its live tests on this machine, whatever its processor:
# Debian's kernel for arm64 boots in Debian's QEMU, from an initramfs that is made here of
# Debian's arm64 packages, the fixtures and the test programs. Both sources are tried there.
#
#   scripts/run-aarch64.sh                   some for each source: those that hold there
#   scripts/run-aarch64.sh --all             all, and unit tests of the Linux backend: some fail, since
#                                            the profiler is too slow there to keep up
#   scripts/run-aarch64.sh --filter NAME     those whose names have NAME in them; more than once
#   scripts/run-aarch64.sh --run 'COMMAND'   no test: a command of sh, in the guest
#
# Prints what the tests print, which were skipped and why, the seconds of each step and, at the end,
# `N passed, N failed`. Exits 1 if a test failed or none ran. The emulator, a cross compiler and cpio
# are installed through apt-get if missing; nothing of arm64 is installed on this machine: its packages
# are unpacked below the target directory, where they stay for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# shellcheck source=scripts/aarch64/packages.sh
. scripts/aarch64/packages.sh

fail() {
    echo "run-aarch64.sh: $*" >&2
    exit 1
}

# What of the whole shows that both sources work: sums, stacks, names, ends, what is started; and 32-bit Arm.
tests=(
    copies::callers_of_unusual_frames_are_found
    counts::samples_and_losses_add_up_to_the_cpu_time_of_the_process
    lifecycle::the_exit_of_a_command_is_reported
    lifecycle::successive_programs_have_their_own_names
    narrow::stacks_of_32_bit_programs_are_walked
    refusals::unattachable_processes_are_refused_in_one_line
    trees::children_of_an_attached_process_are_recorded_where_requested
    waiting::no_wait_is_interrupted_by_a_stop
)
filters=()
all=false
command=
while (($# > 0)); do
    case $1 in
    --all) all=true ;;
    --filter) filters+=("${2:?--filter needs a name}") && shift ;;
    --run) command=${2:?--run needs a command} && shift ;;
    *) fail "unknown argument \`$1\`; the top of this file lists them" ;;
    esac
    shift
done

if ! $all && ((${#filters[@]} == 0)); then
    filters=(--exact "${tests[@]}")
fi

began=$SECONDS
took() {
    printf '==== %s: %s s\n' "$1" "$((SECONDS - began))"
    began=$SECONDS
}

# ---- what is needed here, and what is needed there

missing=()
command -v qemu-system-aarch64 >/dev/null || missing+=(qemu-system-arm)
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
command -v cpio >/dev/null || missing+=(cpio)
command -v python3 >/dev/null || missing+=(python3)
if ((${#missing[@]} > 0)); then
    install_packages "${missing[@]}"
fi
target_dir=${CARGO_TARGET_DIR:-target}
mkdir -p "$target_dir/guest-aarch64"
target_dir=$(cd "$target_dir" && pwd)
guest=$target_dir/guest-aarch64
unpack_guest "$guest"
took packages

# ---- the programs

target=aarch64-unknown-linux-gnu
if ! have_target "$target"; then
    use_distro_rust
fi
# Lines and inlined functions of stackprof itself are not looked at in the guest.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CARGO_PROFILE_DEV_DEBUG=false
what=(--test live_linux)
if $all; then
    what+=(--lib)
fi
cargo test --locked --no-run --target "$target" "${what[@]}" --message-format=json-render-diagnostics >"$guest/build.json"
# executable TARGET-NAME KIND: the program that was built of it.
executable() {
    python3 - "$guest/build.json" "$@" <<'PYTHON'
import json, sys
for line in open(sys.argv[1]):
    told = json.loads(line)
    if told["reason"] == "compiler-artifact" and told["executable"]:
        if told["target"]["name"] == sys.argv[2] and sys.argv[3] in told["target"]["kind"]:
            print(told["executable"])
PYTHON
}
stackprof=$(executable stackprof bin)
live=$(executable live_linux test)
unit=$(executable stackprof lib)
[[ -x $stackprof && -x $live ]] || fail "cargo built no programs for $target"
took build

# ---- the initramfs: the unpacked packages, and below the same paths as here what the tests look for

place=$guest/place
rm -rf "$place"
for path in "$stackprof" "$live" $unit; do
    install -D "$path" "$place$path"
done
mkdir -p "$place$PWD/tests" "$place$target_dir/$target/tmp" "$place$target_dir/tmp"
cp -r tests/fixtures "$place$PWD/tests/"
install scripts/aarch64/init.sh "$place/init"
{
    echo "cd '$PWD'"
    # Fewer repetitions of what is tried at random moments: everything takes some twenty times as long.
    echo "export STACKPROF_NO_SKIP=1 STACKPROF_ROUNDS=0.1 PATH=\"$(dirname "$stackprof"):\$PATH\""
    if [[ -n $command ]]; then
        printf '%s\n' "$command"
    else
        if $all; then
            echo "'$unit' --test-threads=2 sources::linux walk::aarch64 binary::elf || failed=1"
        fi
        printf "'%s' --test-threads=1 --show-output" "$live"
        printf " '%s'" "${filters[@]}"
        echo " || failed=1"
    fi
} >"$place/tests.sh"
# Two archives, one behind the other, are one initramfs (Documentation/driver-api/early-userspace).
pack() {
    (cd "$1" && find . -print0 | cpio --null --create --format=newc --owner=0:0 --quiet)
}
if [[ ! -s $guest/system.cpio || $guest/root -nt $guest/system.cpio ]]; then
    pack "$guest/root" >"$guest/system.cpio"
fi
pack "$place" | cat "$guest/system.cpio" - >"$guest/initramfs"
took initramfs

# ---- the machine

# `max` has what newer processors have: signed return addresses (by a quick algorithm of QEMU's own)
# and 52-bit addresses among it. Its clock is the number of instructions (`-icount`, 2 ns for one, both
# CPUs in turn): whatever else this machine does, the guest is as quick as ever, and where all its
# CPUs wait no time passes here. `-no-reboot` and panic=-1: a kernel that fails ends the emulator.
log=$guest/console.log
timeout -k 5 "${STACKPROF_GUEST_SECONDS:-1500}" qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -smp 2 -m 3G \
    -accel tcg -icount shift=1,sleep=off -nographic -nodefaults -serial stdio -net none -no-reboot \
    -kernel "$guest/vmlinuz" -initrd "$guest/initramfs" \
    -append "console=ttyAMA0 quiet loglevel=3 panic=-1 rdinit=/init" </dev/null 2>&1 |
    stdbuf -o0 tr -d '\r' | tee "$log" || true
took 'the guest'

# ---- what came out

printf '\n'
awk '/^---- .* stdout ----$/ { name = $2 } /^SKIP / { print "skipped: " name ": " substr($0, 6) }' "$log" | cut -c 1-300
if [[ -n $command ]]; then
    grep -q '^guest: exit 0 ' "$log"
    exit
fi
grep -q '^guest: exit' "$log" || fail "the guest did not come to its end; $log has what it printed"
if grep -q '^SKIP .*cannot sample by --source perf' "$log"; then
    fail "the guest's kernel takes no samples"
fi
awk '/^test result: / { for (i = 2; i <= NF; i++) { if ($i == "passed;") p += $(i - 1); if ($i == "failed;") f += $(i - 1) } }
     END { printf "%d passed, %d failed\n", p, f; exit !(p > 0 && f == 0) }' "$log"
grep -q '^guest: exit 0 ' "$log"
