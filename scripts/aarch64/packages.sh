# Sourced by run-aarch64.sh: a Debian system for arm64, unpacked into a directory and not installed.
# shellcheck shell=bash

# What tests start in the guest, with the compiler that makes their fixtures there.
GUEST_PACKAGES=(
    base-files libc-bin dash coreutils grep sed procps util-linux mount
    gcc libc6-dev binutils musl-tools
    gcc-arm-linux-gnueabihf libc6-dev-armhf-cross
)

# guest_apt DIR WORD...: apt-get or apt-cache with a state of its own, for arm64, in which nothing is installed.
guest_apt() {
    local dir=$1 tool=$2
    shift 2
    "$tool" -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=false \
        -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o Acquire::Retries=3 \
        -o Dir::State="$dir" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir" \
        -o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Debug::NoLocking=true \
        -qq "$@"
}

# Debian's archives, as this machine names them.
debian_archives() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
        sort -u | sed 's/^/deb [arch=arm64] /'
}

# unpack_guest DIR: DIR/root is the system, DIR/vmlinuz its kernel. Done once; after a change of the
# list of packages, or without DIR/root, again.
unpack_guest() {
    local dir=$1 apt=$1/apt kernel deb
    local wanted="${GUEST_PACKAGES[*]}"
    if [[ -d $dir/root && -s $dir/vmlinuz && $(cat "$dir/unpacked" 2>/dev/null) == "$wanted" ]]; then
        return
    fi
    rm -rf "$dir/root" "$dir/unpacked" "$dir/system.cpio"
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$dir/root"
    : >"$apt/status"
    debian_archives >"$apt/sources.list"
    if [[ ! -s $apt/sources.list ]]; then
        # Nobody has fetched their lists yet.
        install_packages cpio
        debian_archives >"$apt/sources.list"
    fi
    [[ -s $apt/sources.list ]] || { echo "apt names no archive of Debian's here" >&2; return 1; }
    guest_apt "$apt" apt-get update
    guest_apt "$apt" apt-get install --yes --download-only "${GUEST_PACKAGES[@]}" >/dev/null
    # The image that the package of this name leads to.
    kernel=$(guest_apt "$apt" apt-cache depends --important linux-image-cloud-arm64 | sed -n 's/^ *Depends: *//p' | head -n 1)
    [[ -n $kernel ]] || { echo "there is no linux-image-cloud-arm64" >&2; return 1; }
    (cd "$apt/archives" && guest_apt "$apt" apt-get download "$kernel")

    # /bin, /lib and /sbin are links, as in every Debian system; packages still name them.
    local name
    for name in bin lib sbin; do
        mkdir -p "$dir/root/usr/$name"
        ln -s "usr/$name" "$dir/root/$name"
    done
    for deb in "$apt"/archives/*.deb; do
        case ${deb##*/} in
        linux-image-*)
            dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$dir" --wildcards --transform 's|.*/vmlinuz.*|vmlinuz|' './boot/vmlinuz-*'
            ;;
        *)
            dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$dir/root" --keep-directory-symlink --no-same-owner \
                --exclude './usr/share/doc' --exclude './usr/share/locale' --exclude './usr/share/man' \
                --exclude './usr/share/info' --exclude '*/lto1' --exclude '*/lto-wrapper' --exclude '*.a.debug'
            ;;
        esac
    done
    # What installing would have made.
    ln -sf gcc "$dir/root/usr/bin/cc"
    ln -sf dash "$dir/root/usr/bin/sh"
    # Programs of 32-bit Arm find their loader and libraries where Debian for armhf has them.
    mkdir -p "$dir/root/usr/lib/arm-linux-gnueabihf"
    for name in "$dir"/root/usr/arm-linux-gnueabihf/lib/*.so.*; do
        ln -s "../../arm-linux-gnueabihf/lib/${name##*/}" "$dir/root/usr/lib/arm-linux-gnueabihf/"
    done
    ln -s arm-linux-gnueabihf/ld-linux-armhf.so.3 "$dir/root/usr/lib/ld-linux-armhf.so.3"
    mkdir -p "$dir/root"/{dev,proc,sys,run,tmp,root,etc}
    chmod 1777 "$dir/root/tmp"
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n' >"$dir/root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$dir/root/etc/group"
    printf '%s' "$wanted" >"$dir/unpacked"
}
