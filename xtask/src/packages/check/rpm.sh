# rpm.sh SYSTEM PACKAGES: installs, uses and removes the packages in a directory, with rpm.
set -eux
system=$1 packages=$2
rpm="rpm --root $system --dbpath /var/lib/rpm"
# A search path of distributions with rpm.
echo /usr/lib64 > "$system/etc/ld.so.conf.d/lib64.conf"

for package in "$packages"/*.rpm; do
    rpm -K --nosignature "$package"
    test "$(rpm -qp --queryformat '%{VERSION}' "$package")" = "$VERSION"
    test "$(rpm -qp --queryformat '%{LICENSE}' "$package")" = "MIT OR Apache-2.0"
    # All that others must provide: the C library up to that of Debian 12, and libgcc.
    rpm -qp --requires "$package" | grep -vE \
        '^(rpmlib\(|rtld\(GNU_HASH\)|/sbin/ldconfig$|libextant|/usr/bin/pkg-config$|pkgconfig|ld-linux|lib(c|m|dl|pthread|gcc_s)\.so\.[0-9]+\()' \
        && exit 1
    glibc=$(rpm -qp --requires "$package" | grep -oE 'GLIBC_2\.[0-9]+' | sort -V | tail -1)
    echo "$package needs ${glibc:-no glibc}"
    test -z "$glibc" || [ "${glibc#GLIBC_2.}" -le 36 ]
done
rpm -qp --scripts "$packages"/libextant0-*.rpm | grep -F 'postinstall program: /sbin/ldconfig'
test -z "$(rpm -qp --scripts "$packages"/extant-*.rpm "$packages"/libextant-devel-*.rpm)"

$rpm --initdb
# The system's own files are not in this database.
$rpm --install --nodeps "$packages"/*.rpm
$rpm --verify --nodeps extant libextant0 libextant-devel
for path in /usr/bin/extant /usr/sbin/mount.fuse.extant /usr/lib/systemd/system/extant-job@.service \
    /usr/share/man/man1/extant.1.gz /usr/include/extant.h /usr/lib64/pkgconfig/extant.pc; do
    $rpm -qf "$path"
done
# Its scriptlet ran.
chroot "$system" ldconfig -p | grep -F 'libextant.so.0'
chroot "$system" extant --version | grep -F "extant $VERSION"
chroot "$system" extant create /srv/a 8MiB
$rpm -ql extant libextant0 libextant-devel | sort -u > "$system/srv/before"
$rpm --erase extant libextant0 libextant-devel
while read -r path; do
    if [ -e "$system$path" ] && [ ! -d "$system$path" ]; then echo "left: $path"; exit 1; fi
done < "$system/srv/before"
left=$(find "$system" -xdev -name '*extant*' -not -path "$system/packages/*")
test -z "$left"
if chroot "$system" ldconfig -p | grep -F libextant; then exit 1; fi
