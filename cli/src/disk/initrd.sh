#!/bin/busybox sh
# The first program of a disk's initial RAM file system: loads the kernel's modules for the disk, mounts the root file system that the
# kernel's command line names, and starts its first program.

export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do
    insmod "$module" 2>/dev/null
done

root= init=/sbin/init mode=ro options=
# Words of the command line: the last one of several wins.
for word in $(cat /proc/cmdline); do
    case $word in
    root=*) root=${word#root=} ;;
    init=*) init=${word#init=} ;;
    rootflags=*) options=,${word#rootflags=} ;;
    ro | rw) mode=$word ;;
    esac
done

# The name of the root's device; nothing if it isn't there yet.
device() {
    case $root in
    UUID=* | LABEL=*) findfs "$root" 2>/dev/null ;;
    *) [ ! -b "$root" ] || echo "$root" ;;
    esac
}

tries=0
until found=$(device) && [ -n "$found" ]; do
    tries=$((tries + 1))
    if [ $tries = 100 ]; then
        echo "stile: no disk has the root file system $root. These are there:"
        cat /proc/partitions
        exec sh
    fi
    sleep 0.1
done
mount -o "$mode$options" "$found" /root || {
    echo "stile: the root file system $root on $found can't be mounted: check the disk with e2fsck"
    exec sh
}
mount --move /dev /root/dev
umount /proc /sys
exec switch_root /root "$init"
