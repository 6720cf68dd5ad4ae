# Installs, uses and removes the packages, in a clean Debian.
set -eux
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt="apt-get -qq --yes --no-install-recommends -o Acquire::Retries=3 -o APT::Sandbox::User=root"
cd /srv

$apt update
$apt install /packages/*.deb
# With no other package than the dependencies of ours:
extant --version | grep -F "extant $VERSION"
extant create a 8MiB --json | grep -F '"path"'
test "$(stat -c %s a)" = 8388608
extant probe /srv
python3 -c 'import extant; extant.create("p", 1 << 20); assert extant.map("p")'
dpkg --verify extant libextant0 libextant-dev python3-extant

$apt install bash-completion e2fsprogs fuse3 gcc libc6-dev man-db mount pkg-config systemd zsh
# shellcheck disable=SC2046
cc -Wall -Werror -o shared /packages/example.c $(pkg-config --cflags --libs extant)
ldd ./shared | grep -F "/lib/$(gcc -print-multiarch)/libextant.so.0"
./shared shared.raw
cc -o static /packages/example.c -Wl,-Bstatic -lextant -Wl,-Bdynamic $(pkg-config --static --libs extant | sed s/-lextant//)
if ldd ./static | grep -F libextant; then exit 1; fi
./static static.raw
test "$(pkg-config --modversion extant)" = "$VERSION"

for page in extant extant-create mount.fuse.extant umount.fuse.extant 5\ extant-pool; do
    # shellcheck disable=SC2086
    man -w $page
done
bash -ec '. /usr/share/bash-completion/bash_completion
    _comp_load extant 2>/dev/null || __load_completion extant
    complete -p extant'
zsh -ec 'autoload -U compinit; compinit -u -D; test -n "$_comps[extant]"'
systemd-analyze verify extant-job@vms.service extant-serve@web.service extant-serve@web.socket

# The type of mount(8) in fstab.
truncate -s 64M disk.ext4
mke2fs -q -t ext4 disk.ext4
mkdir disk
echo '/srv/disk.ext4 /srv/disk fuse.extant defaults,helper=fuse.extant 0 0' >> /etc/fstab
mount disk
findmnt --types fuse.extant disk
echo kept > disk/file
umount disk
e2fsck -fn disk.ext4
debugfs -R 'cat file' disk.ext4 | grep -Fx kept

for package in extant libextant0 libextant-dev python3-extant; do
    dpkg -L "$package"
done | sort -u > before
$apt purge extant libextant0 libextant-dev python3-extant
# A directory may belong to others as well.
while read -r path; do
    if [ -e "$path" ] && [ ! -d "$path" ]; then echo "left: $path"; exit 1; fi
done < before
left=$(find / -xdev -name '*extant*' -not -path '/srv/*' -not -path '/packages/*' -not -path '/var/cache/*')
test -z "$left"
if dpkg -l | grep -F extant; then exit 1; fi
