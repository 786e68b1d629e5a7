#!/bin/sh
# The first process of the guest of run-aarch64.sh: mounts what programs expect, runs /tests.sh, tells how
# it ended, and switches the machine off.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8
mount -t devtmpfs none /dev
exec </dev/null >/dev/console 2>&1
mount -t proc none /proc
mount -t sysfs none /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
printf 'guest: Linux %s on %s, %s CPUs, %s bytes a page\n' "$(uname -r)" "$(uname -m)" "$(nproc)" "$(getconf PAGESIZE)"
grep -m 1 Features /proc/cpuinfo
failed=0
# shellcheck source=/dev/null
. /tests.sh
printf 'guest: exit %s after %s s\n' "$failed" "$(cut -d. -f1 /proc/uptime)"
echo o >/proc/sysrq-trigger
# It takes a moment; the first process must not end.
while :; do sleep 1; done
