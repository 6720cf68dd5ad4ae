#!/bin/sh
# Builds the wheel with the shared library $1 in it, into the directory $2; without network, by Debian's setuptools. The file $3
# has the licences of the crates in the library, which a wheel for others contains.
set -e
library=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=$(realpath "${0%/*}")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
# setuptools takes all files whose names begin with LICENSE.
[ -z "$3" ] || cp "$3" "$place/LICENSES-THIRD-PARTY"
cp "$here/python/setup.py" "$here/python/pyproject.toml" "$here/python/README.md" "$here"/../../LICENSE-* "$place"
mkdir "$place/extant"
cp "$here"/python/extant/*.py "$here/python/extant/py.typed" "$place/extant"
cd "$place"
# The same sources and library are the same wheel.
find . -exec touch -d @315532800 {} +
umask 022
EXTANT_LIBRARY=$library SOURCE_DATE_EPOCH=315532800 /usr/bin/python3 -c '
import sys
import setuptools.build_meta
setuptools.build_meta.build_wheel(sys.argv[1])
' "$out"
