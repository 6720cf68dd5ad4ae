#!/bin/sh
# Runs the test's script once its disks are there, leaves its output and status in the
# control directory, and ends the machine.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TERM=dumb
modprobe -a nvme virtio_blk ext4

# Disks are known by their serial number: the order in which they appear is no order.
for disk in $(cat /control/disks); do
	tries=0
	until [ -e "/dev/$disk" ] || [ $tries -gt 200 ]; do
		for serial in /sys/block/*/serial /sys/block/*/device/serial; do
			[ -e "$serial" ] && [ "$(tr -d ' ' < "$serial")" = "$disk" ] || continue
			node=${serial#/sys/block/}
			ln -s "${node%%/*}" "/dev/$disk"
			break
		done
		tries=$((tries + 1))
		[ -e "/dev/$disk" ] || sleep 0.05
	done
done

cd /root
setsid /control/script > /control/output 2>&1 < /dev/null
echo $? > /control/status
sync
# The host waits at this port; should nobody listen, power off.
printf '\0' | dd of=/dev/port bs=1 seek=244 conv=notrunc status=none
echo o > /proc/sysrq-trigger
sleep 60
