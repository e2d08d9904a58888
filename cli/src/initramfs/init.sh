#!/bin/busybox sh
# The first program of the small system that Stile makes from Debian's busybox.

export PATH=/sbin:/bin:/usr/sbin:/usr/bin HOME=/root
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
# Drivers of devices, in the order in which they need each other; modules for direct interprocessor interrupts and served devices.
for driver in /stile/drivers/*; do
    [ -e "$driver" ] && insmod "$driver"
done
# Disks in memory appear asynchronously: a read of this file waits for them.
for probe in /sys/bus/nd/devices/ndbus*/wait_probe; do
    [ -e "$probe" ] && cat "$probe" >/dev/null
done
# Folders of the machine outside: their tags, file systems and options, a line each.
[ ! -e /stile/folders ] || while read -r tag system options; do
    mkdir -p "/mnt/$tag"
    mount -t "$system" -o "$options" "$tag" "/mnt/$tag" ||
        echo "stile: the shared folder $tag is not mounted: does this kernel have $system?"
done </stile/folders
hostname -F /etc/hostname
ip link set lo up 2>/dev/null
cd /root

# Marks that the command on the other side of the console takes out: what lies between them is the command's output.
. /stile/marks

# stty waits until everything is written before it changes the terminal; after a power-off nothing more comes.
drain() { stty -echo; }

if [ -e /stile/exec ]; then
    dmesg -n 1
    # Raw: no carriage returns are added to the output, nothing is echoed.
    stty raw -echo
    # A command's output is for programs, too: no colours, though it is a terminal's.
    export TERM=dumb LS_COLORS= NO_COLOR=1
    printf %s "$begin"
    sh /stile/exec
    printf '%s%d%s' "$end" "$?" "$stop"
else
    . /stile/terminal
    # Errors only, so that the kernel's messages don't get between the shell's.
    dmesg -n 4
    if [ "$rows" != 0 ]; then
        stty rows "$rows" cols "$columns"
        # Each prompt begins with a mark: the other side then sees when it can tell the shell that the terminal's size has changed.
        export PS1='\['"$ready"'\]\w \$ '
    fi
    # Input that doesn't come from a keyboard is there all at once, its end included: the shell must find it as it came.
    [ "$keyboard" = yes ] || stty -icanon -echo
    printf %s "$begin"
    setsid cttyhack sh -l
    printf %s "$bye"
fi
drain
poweroff -f
