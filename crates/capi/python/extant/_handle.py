"""Objects of the library that threads share, and that are freed once."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any, Iterator


class Handle:
    """An object of the library. Closing it makes later calls fail; the last call at work frees it."""

    def __init__(self, what: str, pointer: ctypes.c_void_p, free: Any) -> None:
        self._what = what
        self._pointer = pointer
        self._free = free
        # A signal handler may close what the same thread is about to use.
        self._lock = threading.RLock()
        self._users = 0
        self._is_closed = False

    @contextlib.contextmanager
    def use(self) -> Iterator[ctypes.c_void_p]:
        """The object, for one call."""
        is_counted = False
        try:
            with self._lock:
                if self._is_closed:
                    raise ValueError(f"the {self._what} is closed")
                self._users += 1
                is_counted = True
            yield self._pointer
        finally:
            if is_counted:
                with self._lock:
                    self._users -= 1
                    self._free_unused()

    def close(self) -> None:
        """Frees it now or after the calls at work."""
        with self._lock:
            self._is_closed = True
            self._free_unused()

    def _free_unused(self) -> None:
        if self._is_closed and self._users == 0 and self._pointer:
            pointer, self._pointer = self._pointer, ctypes.c_void_p()
            self._free(pointer)
