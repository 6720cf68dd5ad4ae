"""Arguments and results as ctypes has them."""

from __future__ import annotations

import builtins
import ctypes
import enum
import os
from typing import Any, Optional

from ._errors import File


class Pace(enum.IntEnum):
    """How the disk is used."""

    FULL = 0
    BACKGROUND = 1


def encoded(file: File) -> bytes:
    """A path as the library takes it."""
    if isinstance(file, int):
        raise TypeError("a path is wanted, not a descriptor")
    path = os.fsencode(file)
    if b"\0" in path:
        raise ValueError("embedded null byte")
    return path


def optional(file: Optional[File]) -> Optional[bytes]:
    """The same, or null."""
    return None if file is None else encoded(file)


def text(name: str) -> bytes:
    """A name as the library takes it."""
    if "\0" in name:
        raise ValueError("embedded null byte")
    return name.encode()


def decoded(field: bytes) -> str:
    """A text of the library."""
    return field.decode(errors="replace")


def number(name: str, value: int, bits: int = 64) -> int:
    """An argument of a call, of which ctypes would take the lowest bits."""
    if not 0 <= value < 2**bits:
        raise OverflowError(f"{name} is {value}")
    return value


def basis_points(percent: Optional[float]) -> int:
    """Hundredths of a percent; 0: the default share."""
    if percent is None:
        return 0
    if not 0.1 <= percent <= 100:
        raise ValueError(f"background_percent is {percent}, not from 0.1 to 100")
    return round(percent * 100)


def sized(structure: Any) -> Any:
    """A report for the library to fill."""
    made = structure()
    made.struct_size = ctypes.sizeof(structure)
    return made


def values(structure: ctypes.Structure) -> builtins.list[Any]:
    """The fields, in order, without the size of the structure."""
    names = [name for name, *_ in structure._fields_]
    return [getattr(structure, name) for name in names if name != "struct_size"]
