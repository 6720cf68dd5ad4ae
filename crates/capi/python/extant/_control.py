"""Progress and cancel."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import sys
import threading
from typing import Any, Callable, Iterator, NamedTuple, Optional

from ._enums import LibraryEnum
from ._library import LIBRARY, PROGRESS_CALLBACK, ControlStruct


class Step(LibraryEnum):
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
        self._is_cancelled = False
        self._followers: set[Cancel] = set()

    def cancel(self) -> None:
        """Stops the operations, from any thread."""
        self._is_cancelled = True
        LIBRARY.extant_cancel_now(self._pointer)
        for follower in tuple(self._followers):
            follower.cancel()

    @contextlib.contextmanager
    def _followed_by(self, follower: "Cancel") -> Iterator[None]:
        """Meanwhile `follower` is cancelled with it."""
        # Without a lock, which a signal handler that cancels would wait for.
        self._followers.add(follower)
        if self._is_cancelled:
            follower.cancel()
        try:
            yield
        finally:
            self._followers.discard(follower)

    def __del__(self) -> None:
        # Missing where the library could not be loaded.
        if getattr(self, "_pointer", None):
            LIBRARY.extant_cancel_free(self._pointer)


def operate(
    progress: Optional[ProgressCallback],
    cancel: Optional[Cancel],
    work: Callable[[Any], None],
) -> None:
    """Runs `work` with the lines to a long call; what `progress` raised is raised at the end."""
    own = Cancel()

    def with_lines(tell: ProgressCallback) -> None:
        def step(told: Any) -> bool:
            return bool(tell(Progress(Step(told.step), told.done_bytes, told.total_bytes)))

        structure = ControlStruct()
        structure.cancel = own._pointer
        with _callback(PROGRESS_CALLBACK, step) as callback:
            if progress is not None:
                structure.progress = callback
            work(ctypes.byref(structure))

    with cancel._followed_by(own) if cancel is not None else contextlib.nullcontext():
        _interruptibly(with_lines, progress or (lambda _: None), own.cancel)


def visit(kind: Any, take: Callable[[Any], None], work: Callable[[Any], None]) -> None:
    """Runs `work` with a callback for a list; what `take` raised is raised at the end."""
    stop = threading.Event()

    def with_callback(_: ProgressCallback) -> None:
        def step(told: Any) -> bool:
            take(told)
            return stop.is_set()

        with _callback(kind, step) as callback:
            work(callback)

    _interruptibly(with_callback, lambda _: None, stop.set)


@contextlib.contextmanager
def _callback(kind: Any, step: Callable[[Any], bool]) -> Iterator[Any]:
    """`step` as a function of C, which stops the call if it returns True or raises."""
    raised: list[BaseException] = []

    def call(pointer: Any, _: Any) -> int:
        if raised:
            return 1
        try:
            return int(step(pointer.contents))
        except BaseException as exception:  # It cannot pass through C.
            raised.append(exception)
            return 1

    try:
        yield kind(call)
    except OSError:
        if raised:
            raise raised.pop() from None
        raise
    if raised:
        raise raised.pop()


def _interruptibly(
    work: Callable[[ProgressCallback], None],
    tell: ProgressCallback,
    stop: Callable[[], None],
) -> None:
    """Runs `work`, whose progress goes to `tell` on this thread.

    Python handles signals on the main thread, between its own instructions: not inside a call of C, and what a handler raises on
    the way into a callback is lost. So the main thread waits for a helper that makes the call. An exception, Ctrl-C as well,
    stops the call and waits for its end.
    """
    # Before Python 3.12 a thread that is started while the interpreter ends never runs.
    if sys.is_finalizing() or threading.current_thread() is not threading.main_thread():
        work(tell)
        return
    told: "queue.SimpleQueue[Optional[Progress]]" = queue.SimpleQueue()
    answers: "queue.SimpleQueue[Optional[bool]]" = queue.SimpleQueue()
    failed: list[BaseException] = []
    has_left, has_ended = threading.Event(), threading.Event()

    def ask(progress: Progress) -> Optional[bool]:
        told.put(progress)
        while not has_left.is_set():
            try:
                return answers.get(timeout=0.1)
            except queue.Empty:
                continue
        return True

    def help() -> None:
        try:
            work(ask)
        except BaseException as exception:
            failed.append(exception)
        told.put(None)
        has_ended.set()

    helper = threading.Thread(target=help, name="extant-call")
    try:
        try:
            helper.start()
        except RuntimeError:  # No more threads, or the interpreter is about to end.
            work(tell)
            return
        while True:
            try:
                # The signal may arrive at another thread, which does not end this wait.
                progress = told.get(timeout=0.1)
            except queue.Empty:
                continue
            if progress is None:
                break
            answers.put(tell(progress))
    except BaseException:
        # Each of these happens, also where another signal arrives meanwhile.
        try:
            has_left.set()
        finally:
            try:
                stop()
            finally:
                # One that is being started is listed and not alive yet.
                if helper.is_alive() or helper in threading.enumerate():
                    has_ended.wait()
        raise
    helper.join()
    if failed:
        raise failed.pop()
