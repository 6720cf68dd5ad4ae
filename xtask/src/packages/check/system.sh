# system.sh ROOT INPUTS SCRIPT: runs /packages/SCRIPT in a copy of ROOT, with INPUTS as /packages.
set -eux
root=$1 inputs=$2 script=$3
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/system
mount -t overlay overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/system
system=/mnt/system
mkdir "$system/packages"
mount --bind "$inputs" "$system/packages"
mount -t proc proc "$system/proc"
mount --rbind /sys "$system/sys"
mount --rbind /dev "$system/dev"
# Names and proxies are the machine's.
cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
    if [ -e "$file" ] && grep -qi 'acquire::' "$file"; then cp "$file" "$system/etc/apt/apt.conf.d/"; fi
done
case $script in
rpm.sh)
    # Debian's rpm, from outside: the system itself knows no rpm.
    exec sh "$inputs/$script" "$system" "$inputs"
    ;;
*)
    exec chroot "$system" /usr/bin/env -u TMPDIR PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        sh "/packages/$script"
    ;;
esac
