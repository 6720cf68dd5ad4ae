#!/bin/bash
# Start of the script in the guest: its functions. Each sample prints behind a mark of its own.
export PATH=/tmp:$PATH LC_ALL=C
set -E
trap 'printf "\n### failed: %s\n" "$BASH_COMMAND"; exit 1' ERR

mark() { printf '\n### %s\n' "$1"; }

# formatted DISK PLACE TYPE OPTIONS: a new file system, mounted.
formatted() {
	local disk=$1 place=$2 type=$3; shift 3
	mkfs."$type" -q "$@" "$disk"
	mkdir -p "$place"
	mount "$disk" "$place"
}

# settle PLACE: everything is synced, and free space holds nothing on the disk.
settle() { sync; fstrim "$1"; sync; sleep 0.3; }

# timed COMMAND: its output, then its time.
timed() {
	local begin=$EPOCHREALTIME end
	"$@" > /tmp/said 2>&1 || { cat /tmp/said; return 1; }
	end=$EPOCHREALTIME
	cat /tmp/said
	printf '\nmicroseconds %d\n' $((${end/./} - ${begin/./}))
}

# written FILE: fails unless all of its space is written.
written() {
	filefrag -v "$1" > /tmp/map
	if grep -q unwritten /tmp/map || ! grep -q last /tmp/map; then cat /tmp/map; return 1; fi
}

# image SIZE: a sparse image of ext4.
image() {
	rm -f /nvme/image
	truncate -s "$1" /nvme/image
	mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /nvme/image
}

mount_image() {
	loop=$(losetup --find --show --direct-io=on /nvme/image)
	mkdir -p /image
	mount "$loop" /image
}

unmount_image() { umount /image; losetup --detach "$loop"; }

# company RAMP COMMAND: repeats the command in the background, after RAMP seconds.
company() {
	rm -f /tmp/failed
	: > /tmp/made
	command=$2
	began=$EPOCHREALTIME
	setsid bash -c "sleep $1; while $2 > /tmp/company 2>&1; do echo >> /tmp/made; done; touch /tmp/failed" &
	company=$!
}

# company_ends RAMP BYTES: stops it; how many bytes were made, and in what time. The part of the last
# file is in the command's lines of progress, or is the size of what dd has written.
company_ends() {
	local ended=$EPOCHREALTIME bytes part
	case $command in
		dd*) part=$(stat -c %s /nvme/big || true) ;;
		*) part=$(tr ',' '\n' < /tmp/company | sed -n 's/^"done_bytes"://p' | tail -n 1) ;;
	esac
	kill -- "-$company" || true
	while kill -0 -- "-$company" 2> /tmp/gone; do sleep 0.05; done
	if [ -e /tmp/failed ]; then cat /tmp/company; return 1; fi
	bytes=$(($(wc -l < /tmp/made) * $2))
	printf '\nmade %d\nmicroseconds %d\n' $((bytes + ${part:-0})) $((${ended/./} - ${began/./} - $1 * 1000000))
	rm -f /nvme/big /nvme/.big.extant-partial
}

# counters DISK: what the kernel counts of it.
counters() { echo "counters $(cat "/sys/block/$(basename "$(readlink -f "$1")")/stat")"; }

cp /host/extant /tmp/
modprobe -a loop xfs
mark kernel
uname -r
