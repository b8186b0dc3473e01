#!/run/kernel-lab/busybox sh
# The guest after its root is mounted: file systems, modules, the roles that need a hand (mounted disk, default route),
# then the command of this boot. Its exit status goes to the share; then the machine is switched off.
bb=/run/kernel-lab/busybox
share=/run/kernel-lab/share
. "$share/boot.env"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=${TERM:-linux}
export NPUFLEET_LAB_GUEST=$share/$BOOT
log() { echo "kernel-lab: $($bb cut -d' ' -f1 /proc/uptime) $*"; }

log "root mounted"
$bb cat /dev/kmsg >"$share/$BOOT/dmesg.log" 2>/dev/null &
$bb mkdir -p /dev/pts /dev/shm /state /results /mnt/kernel-lab-disk /lib/modules
$bb mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
$bb mount -t tmpfs shm /dev/shm
$bb mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null
$bb mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
$bb mount -t bpf bpf /sys/fs/bpf 2>/dev/null
$bb mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
$bb mount --bind "$share/state" /state
$bb mount --bind "$share/results" /results
$bb rm -rf "/lib/modules/$RELEASE"
$bb ln -s "$MODULES" "/lib/modules/$RELEASE"
$bb hostname kernel-lab
$bb ip link set lo up

# Without it Python comes over the shared file system, slower.
modprobe -a virtio_blk ext4
$bb mkdir -p /run/kernel-lab/python
if $bb mount -t ext4 -o ro,noatime /dev/vda /run/kernel-lab/python; then
  $bb mount --bind /run/kernel-lab/python/library "$PYTHON_LIBRARY"
  $bb mount --bind /run/kernel-lab/python/packages "$PYTHON_PACKAGES"
else
  log "no image of Python"
fi

# Beside the start of Python, which takes as long; the guest's pytest waits for the file before its first test.
prepare_roles() {
  modprobe -a igb igbvf e1000 e1000e nvme || log "not all native drivers loaded"
  for name in /sys/bus/pci/devices/0000:00:0b.0/0000:*/nvme/nvme*/nvme*n1; do
    # With multipath the block device of a path (nvme0c0n1) has no node; its head (nvme0n1) has.
    disk=/dev/$(echo "${name##*/}" | $bb sed -E 's/c[0-9]+n/n/')
    tries=0
    until [ -b "$disk" ] || [ $tries = 200 ]; do $bb usleep 50000; tries=$((tries + 1)); done
    $bb mount -t ext4 "$disk" /mnt/kernel-lab-disk || log "cannot mount $disk"
  done
  for net in /sys/bus/pci/devices/0000:00:04.0/net/*; do
    $bb ip address add "$ROUTE_ADDRESS" dev "${net##*/}"
    $bb ip link set "${net##*/}" up
    $bb ip route add default via "$ROUTE_GATEWAY" dev "${net##*/}" || log "no default route"
  done
  log "ready"
  echo ready >"$share/$BOOT/ready"
}
prepare_roles &
roles=$!

cd "$DIRECTORY" || log "no $DIRECTORY"
[ "$WAIT_FOR_ROLES" = 0 ] || wait $roles
if [ "$INTERACTIVE" = 1 ]; then
  $bb setsid $bb cttyhack "$share/$BOOT/command" </dev/console >/dev/console 2>&1
else
  "$share/$BOOT/command" >"$share/$BOOT/output.log" 2>&1 </dev/null
fi
echo $? >"$share/$BOOT/status.new"
$bb mv "$share/$BOOT/status.new" "$share/$BOOT/status"
log "done"
$bb umount /mnt/kernel-lab-disk
$bb sync
$bb poweroff -f
