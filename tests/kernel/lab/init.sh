#!/bin/busybox sh
# First process of the guest: mounts the host's files read-only under an overlay in memory, and the share, and goes on
# with stage2 from the share. Whatever fails here ends the guest with the reason on the serial line.
bb=/bin/busybox
fail() { echo "kernel-lab: $*"; $bb poweroff -f; }
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs dev /dev 2>/dev/null
while read -r module; do
  $bb insmod "/modules/$module" || fail "cannot load $module"
done </modules/order
$bb mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 root9p /lower || fail "cannot mount the root"
$bb mount -t tmpfs -o mode=0755 upper /upper
$bb mkdir -p /upper/files /upper/work
$bb mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root || fail "cannot overlay"
$bb mkdir -p /root/proc /root/sys /root/dev /root/run
$bb mount -t tmpfs -o mode=0755 run /root/run
$bb mkdir -p /root/run/kernel-lab/share
$bb cp $bb /root/run/kernel-lab/busybox
$bb mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 share9p /root/run/kernel-lab/share ||
  fail "cannot mount the share"
$bb mount --move /proc /root/proc
$bb mount --move /sys /root/sys
$bb mount --move /dev /root/dev
exec $bb switch_root /root /run/kernel-lab/busybox sh /run/kernel-lab/share/stage2.sh
