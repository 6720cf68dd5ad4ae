"""Errors, as Python has them."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Optional, Union

from ._enums import LibraryEnum
from ._library import LIBRARY

File = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", int]


class Status(LibraryEnum):
    """What became of a call: `extant_status`."""

    OK = 0
    INVALID_ARGUMENT = 1
    NOT_FOUND = 2
    ALREADY_EXISTS = 3
    WRONG_TYPE = 4
    READ_ONLY = 5
    PERMISSION_DENIED = 6
    IN_USE = 7
    NO_SPACE = 8
    QUOTA_EXCEEDED = 9
    TOO_LARGE = 10
    UNSUPPORTED = 11
    COPY_ON_WRITE = 12
    NOT_KEPT = 13
    CANCELLED = 14
    IO = 15
    INTERNAL = 16


class ExtantError(OSError):
    """What went wrong: `errno`, `filename`, a line for people as `strerror`, and the library's `status`.

    Errors that Python knows are of its class as well: `FileExistsError`, `FileNotFoundError`, `PermissionError`,
    `InterruptedError` (a cancel), `BlockingIOError` (in use).
    """

    status: Status = Status.IO

    def __str__(self) -> str:
        return str(self.strerror)


_CLASSES: dict[type, type[ExtantError]] = {}


def _class_of(number: int) -> type[ExtantError]:
    known = type(OSError(number, ""))
    if known is OSError:
        return ExtantError
    if known not in _CLASSES:
        _CLASSES[known] = type(f"Extant{known.__name__}", (ExtantError, known), {})
    return _CLASSES[known]


def call(function: Any, file: Any, *arguments: Any) -> None:
    """Runs a call of the library on a file that ends with a place for its error."""
    named: Optional[str] = os.fsdecode(file) if isinstance(file, bytes) else None
    call_about(named, function, file, *arguments)


def call_about(named: Optional[str], function: Any, *arguments: Any) -> None:
    """The same; errors have `named` as their file."""
    error = ctypes.c_void_p()
    status = function(*arguments, ctypes.byref(error))
    if status == 0:
        return
    number: int = LIBRARY.extant_error_errno(error)
    message: bytes = LIBRARY.extant_error_message(error)
    LIBRARY.extant_error_free(error)
    raise error_of(status, number, message.decode(errors="replace"), named)


def error_of(status: int, number: int, message: str, named: Optional[str]) -> ExtantError:
    """The exception for a status."""
    raised = _class_of(number)(number, message, named)
    raised.status = Status(status)
    return raised
