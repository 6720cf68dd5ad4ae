"""Enumerations that later libraries extend."""

from __future__ import annotations

import enum
from typing import Optional


class LibraryEnum(enum.IntEnum):
    """Values of the library. One that only a later version knows is a member as well, named `UNKNOWN_` and its number."""

    @classmethod
    def _missing_(cls, value: object) -> "Optional[LibraryEnum]":
        if not isinstance(value, int) or not 0 <= value < 2**32:
            return None
        made = int.__new__(cls, value)
        made._name_ = f"UNKNOWN_{value}"
        made._value_ = value
        # The same object each time, also of several threads.
        known: LibraryEnum = cls._value2member_map_.setdefault(value, made)  # type: ignore[assignment]
        return known
