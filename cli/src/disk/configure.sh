#!/bin/busybox sh
# The first program of the VM that configures a new disk: unpacks the second disk's archive onto the first disk, and lets dpkg configure
# the packages. Lines for the program outside begin with "stile: ".

export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
dmesg -n 1

finish() {
    sync
    echo "stile: $*"
    # Waits until the line is written.
    stty -echo
    poweroff -f
    sleep 1000
}

for module in /modules/*; do
    insmod "$module"
done
mount -t ext4 -o noatime /dev/vda /mnt || finish "failed: the new file system can't be mounted"
echo "stile: unpacking"
tar x -f /dev/vdb -C /mnt || finish "failed: the packages can't be unpacked"
mount -t proc proc /mnt/proc
mount -t sysfs sysfs /mnt/sys
mount --bind /dev /mnt/dev
mkdir -p /dev/pts
mount -t devpts devpts /mnt/dev/pts
mount -t tmpfs run /mnt/run

# No service is started here, and the initial RAM file system is already on the disk.
printf '#!/bin/sh\nexit 101\n' >/mnt/usr/sbin/policy-rc.d
chmod 755 /mnt/usr/sbin/policy-rc.d
mv /mnt/usr/sbin/update-initramfs /mnt/usr/sbin/update-initramfs.stile
ln -s ../bin/true /mnt/usr/sbin/update-initramfs

export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
export DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true
echo "stile: preparing"
for package in $(cat /preinst); do
    DPKG_MAINTSCRIPT_PACKAGE=${package%:*} DPKG_MAINTSCRIPT_PACKAGE_REFCOUNT=1 DPKG_MAINTSCRIPT_NAME=preinst \
        DPKG_MAINTSCRIPT_ARCH=$(cat /architecture) DPKG_ADMINDIR=/var/lib/dpkg DPKG_ROOT= \
        chroot /mnt "/var/lib/dpkg/info/$package.preinst" install </dev/null ||
        finish "failed: the preinst script of $package failed"
done
echo "stile: configuring"
chroot /mnt /usr/bin/dpkg --force-unsafe-io --configure -a </dev/null || finish "failed: dpkg can't configure the packages"

chroot /mnt /usr/bin/systemctl enable systemd-networkd.service || finish "failed: systemd-networkd can't be enabled"
# Nothing happens in the background, and nobody waits for networks that may not be there.
chroot /mnt /usr/bin/systemctl disable systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer
rm -f /mnt/usr/sbin/policy-rc.d /mnt/usr/sbin/update-initramfs
mv /mnt/usr/sbin/update-initramfs.stile /mnt/usr/sbin/update-initramfs
# Each disk gets an identity and keys of its own at its first boot.
: >/mnt/etc/machine-id
rm -f /mnt/etc/ssh/ssh_host_* /mnt/var/lib/dbus/machine-id
umount /mnt/run /mnt/dev/pts /mnt/dev /mnt/sys /mnt/proc
umount /mnt || finish "failed: the new file system can't be unmounted"
finish done
