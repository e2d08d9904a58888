#!/bin/busybox sh
# The first program of the guest that real work is measured in: `init WORK UNITS [MODULE]` loads the kernel module,
# does so many units of the work, and turns the machine off.

export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
work=$1 units=$2 module=$3
mark() { :; }
[ ! -x /mark ] || mark() { /mark $1; }
# The boot alone: nothing more than to get here.
[ "$work" != boot ] || exec /bin/busybox poweroff -f
/bin/busybox --install -s 2>/dev/null

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
ip link set lo up
cd /tmp
if [ -n "$module" ] && ! insmod /$module.ko; then
    echo "work: $module can't be loaded"
    poweroff -f
fi
. /work
if ! prepare >/tmp/output 2>&1; then
    echo "work: $work could not be prepared"
    tail -n 5 /tmp/output
    poweroff -f
fi
# A kernel that has just started still has things to do; they must not be measured.
sleep 5
mark begin
run >/tmp/output 2>&1
status=$?
mark end
if [ $status = 0 ]; then
    echo "work: did $units of $work"
else
    echo "work: $work failed with $status"
    tail -n 5 /tmp/output
fi
# What was written must have left the UART; with it, the work's own last doings are over.
sleep 1
poweroff -f
