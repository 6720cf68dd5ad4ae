"""Progress and cancel."""

from __future__ import annotations

import ctypes
import enum
from typing import Any, Callable, Iterator, NamedTuple, Optional

import contextlib

from ._library import LIBRARY, PROGRESS_CALLBACK, ControlStruct


class Step(enum.IntEnum):
    """What a long operation is doing."""

    WAIT = 0
    SCAN = 1
    ALLOCATE = 2
    WRITE = 3
    SYNC = 4
    VERIFY = 5
    COPY = 6


class Progress(NamedTuple):
    """How far an operation is."""

    step: Step
    done_bytes: int
    total_bytes: int


ProgressCallback = Callable[[Progress], Optional[bool]]


class Cancel:
    """A request to stop. Operations may share it; it cannot be taken back."""

    def __init__(self) -> None:
        self._pointer = ctypes.c_void_p(LIBRARY.extant_cancel_new())

    def cancel(self) -> None:
        """Stops the operations, from any thread."""
        LIBRARY.extant_cancel_now(self._pointer)

    def __del__(self) -> None:
        # Missing where the library could not be loaded.
        if getattr(self, "_pointer", None):
            LIBRARY.extant_cancel_free(self._pointer)


@contextlib.contextmanager
def control(progress: Optional[ProgressCallback], cancel: Optional[Cancel]) -> Iterator[Any]:
    """The lines to a call; what the callback raised is raised at the end."""
    raised: list[BaseException] = []

    def tell(pointer: Any, _: Any) -> int:
        told = pointer.contents
        try:
            stop = progress is not None and progress(
                Progress(Step(told.step), told.done_bytes, told.total_bytes)
            )
        except BaseException as exception:  # Ctrl-C as well: it cannot pass through C.
            raised.append(exception)
            return 1
        return int(bool(stop))

    structure = ControlStruct()
    if progress is not None:
        structure.progress = PROGRESS_CALLBACK(tell)
    if cancel is not None:
        structure.cancel = cancel._pointer
    try:
        yield ctypes.byref(structure)
    except OSError:
        if raised:
            raise raised[0] from None
        raise
    if raised:
        raise raised[0]
