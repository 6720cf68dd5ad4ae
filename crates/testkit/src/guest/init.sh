#!/bin/busybox sh
# First process of the guest: puts a writable layer over the userland that the host shares
# read-only, and goes on in it. Modules that reach the shares are listed in /modules.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/lib/modules/$module"; done < /modules

share=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o ro,cache=loose,$share root /lower || poweroff -f
mount -t tmpfs -o size=75% layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work root /root
for place in proc sys dev; do mount --move /$place /root/$place; done
mkdir -p /root/control /root/host
mount -t tmpfs run /root/run
mount -t tmpfs tmp /root/tmp
mount -t 9p -o cache=none,$share control /root/control
if grep -qw extant.host /root/proc/cmdline; then
	mount -t 9p -o cache=mmap,$share host /root/host
fi
exec switch_root /root /control/start
