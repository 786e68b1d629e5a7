# Sourced by gdb-stacks.sh: an emulator that tells the process stack pointer of a Cortex-M, as QEMU does from
# version 8 on. Where the one that is installed is older, Debian's backports have it: unpacked into a directory, with a
# state of apt's own, and not installed.
# shellcheck shell=bash

QEMU_PACKAGES=(qemu-system-arm qemu-system-common qemu-system-data)

# qemu_version PROGRAM: 702 is version 7.2.
qemu_version() { "$1" --version | awk 'NR == 1 { split($4, part, "."); print part[1] * 100 + part[2] }'; }

# backports_apt DIR WORD...: apt-get with that state.
backports_apt() {
    local dir=$1
    shift
    apt-get -o Dir::State="$dir" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir" \
        -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=3 -o Debug::NoLocking=true -qq "$@"
}

# qemu_with_stack_pointers DIR: prints the emulator's name, or after a line on standard error the installed one's.
qemu_with_stack_pointers() {
    local dir=$1 codename deb installed=qemu-system-arm
    local unpacked=$dir/root/usr/bin/$installed
    if (($(qemu_version "$installed") >= 800)); then
        echo "$installed"
        return
    fi
    if [[ ! -x $unpacked ]]; then
        # shellcheck disable=SC1091
        codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
        mkdir -p "$dir/lists/partial" "$dir/archives/partial"
        : >"$dir/status"
        # shellcheck disable=SC2016 # apt's own variables
        apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' "Codename: $codename" |
            sort -u | sed "s/^/deb /; s/ $codename / $codename-backports /" >"$dir/sources.list"
        if ! { backports_apt "$dir" update && (cd "$dir/archives" && backports_apt "$dir" download "${QEMU_PACKAGES[@]}"); } >&2; then
            echo "no newer QEMU is to be had: stacks of interrupts above tasks end where the process stack begins" >&2
            echo "$installed"
            return
        fi
        for deb in "$dir"/archives/*.deb; do dpkg-deb --extract "$deb" "$dir/root"; done
    fi
    echo "$unpacked"
}
