"""Builds the wheel with libextant in it. EXTANT_LIBRARY names the shared library, stripped or not.

The module is independent of the version of Python, the library is not of the C library: the tag of the wheel names the least
glibc that has the symbol versions it needs (PEP 600).
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

# PEP 600 lets a wheel take these from the system.
SYSTEM = {"libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1"}


def printed(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def platform_of(library):
    facts = printed("objdump", "-p", library)
    needed = set(re.findall(r"NEEDED\s+(\S+)", facts))
    others = {name for name in needed - SYSTEM if not name.startswith("ld-linux")}
    if others:
        raise SystemExit(f"{library} needs {', '.join(sorted(others))}, which is not on every system")
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", facts)
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


class Library(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib, "extant", "libextant.so")
        shutil.copyfile(os.environ["EXTANT_LIBRARY"], target)
        subprocess.run(["strip", "--strip-unneeded", target], check=True)
        target.chmod(0o755)


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", platform_of(os.environ["EXTANT_LIBRARY"])


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": Library, "bdist_wheel": Wheel}, distclass=Binary)
