"""Jobs: long operations on volumes, with progress and cancel."""

from __future__ import annotations

import ctypes
import enum
import queue
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Optional, Type

from ._control import Cancel, Progress, ProgressCallback, Step, operate
from ._enums import LibraryEnum
from ._errors import ExtantError, Status, call_about, error_of
from ._handle import Handle
from ._library import LIBRARY, JobInfoStruct
from ._values import decoded, number, sized

if TYPE_CHECKING:
    from ._pools import Pool


class JobState(LibraryEnum):
    """Phase of a job. An interrupted one can be resumed or cancelled."""

    WAITING = 0
    RUNNING = 1
    INTERRUPTED = 2
    DONE = 3
    FAILED = 4
    CANCELLED = 5


class JobOperation(LibraryEnum):
    """Operation of a job."""

    CREATE = 0
    CLONE = 1
    RESIZE = 2
    WIPE = 3
    MATERIALIZE = 4
    UPLOAD = 5
    DOWNLOAD = 6
    OTHER = 7


class JobInfo(NamedTuple):
    """Snapshot of a job. Times are seconds since 1970; `error` says why it ended otherwise than well."""

    id: int
    state: JobState
    operation: JobOperation
    volume: str
    progress: Progress
    created: int
    ended: Optional[int]
    error: Optional[ExtantError]


class OnStop(enum.IntEnum):
    """Treatment of a job whose run is stopped."""

    CANCEL = 0
    INTERRUPT = 1


class Job:
    """A job that this process is to run: by `run`, or on a thread by `start` or by iteration.

        with pool.create("web.raw", 20 << 30) as job:
            for progress in job:
                print(progress.done_bytes)

    The end of a `with` block waits for a job that was started; an exception in the block cancels it. One that has not been
    started is interrupted, and `Pool.resume` continues it.
    """

    def __init__(self, pool: "Pool", pointer: ctypes.c_void_p) -> None:
        self._pool = pool
        self._handle = Handle("job", pointer, LIBRARY.extant_job_free)
        self.id: int = LIBRARY.extant_job_id(pointer)
        self._stop = Cancel()
        self._thread: Optional[threading.Thread] = None
        self._steps: "queue.SimpleQueue[Optional[Progress]]" = queue.SimpleQueue()
        self._raised: Optional[BaseException] = None
        self._has_run = False

    def run(
        self,
        *,
        progress: Optional[ProgressCallback] = None,
        cancel: Optional[Cancel] = None,
        on_stop: OnStop = OnStop.CANCEL,
    ) -> None:
        """Waits for its turn and does its work, on this thread. A job runs once."""
        self._has_run = True
        stop = number("on_stop", int(on_stop), 32)

        def work(lines: Any) -> None:
            with self._handle.use() as job:
                call_about(None, LIBRARY.extant_job_run, job, stop, lines)

        operate(progress, cancel or self._stop, work)

    def start(self) -> "Job":
        """Does its work on a thread of its own; see `wait`, `interrupt` and `cancel`."""
        if self._thread is not None or self._has_run:
            raise ValueError(f"job {self.id} has been started already")
        self._thread = threading.Thread(target=self._work, name=f"extant-job-{self.id}")
        self._thread.start()
        return self

    def wait(self) -> None:
        """Waits for its end, and raises the error with which it ended, once."""
        if self._thread is not None:
            self._thread.join()
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def __iter__(self) -> Iterator[Progress]:
        """Its progress until it ends; the error with which it ended is raised. Starts it if necessary."""
        if self._thread is None:
            self.start()
        while True:
            step = self._steps.get()
            if step is None:
                # For the next loop over it.
                self._steps.put(None)
                break
            yield step
        self.wait()

    def info(self) -> JobInfo:
        """Its present state."""
        return self._pool.job(self.id)

    def interrupt(self) -> None:
        """Stops its work; `Pool.resume` continues it, in any process."""
        self._stop.cancel()

    def cancel(self) -> JobInfo:
        """Cancels it: the pool is as before it when this returns."""
        if self._thread is None and not self._has_run:
            self._free()
        return self._pool.cancel(self.id)

    def close(self) -> None:
        """Waits for its end if it was started, and frees it; a `run` at work, of another thread, continues."""
        if self._thread is not None:
            self._thread.join()
        self._free()

    def __enter__(self) -> "Job":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if raised is not None and self._thread is not None and self._thread.is_alive():
            try:
                self.cancel()
            except ExtantError:
                # It has just ended. The first exception is the one to report.
                pass
        self.close()
        if raised is None:
            self.wait()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._handle.close()

    def _free(self) -> None:
        self._has_run = True
        self._handle.close()

    def _work(self) -> None:
        def tell(progress: Progress) -> None:
            self._steps.put(progress)

        try:
            self.run(progress=tell, on_stop=OnStop.INTERRUPT)
        except BaseException as exception:  # Raised again by `wait`.
            self._raised = exception
        self._steps.put(None)


def info_of(told: Any) -> JobInfo:
    """The snapshot in a structure of the library."""
    error = None
    if told.status != Status.OK:
        error = error_of(told.status, told.error_number, decoded(told.message), None)
    step = told.progress
    return JobInfo(
        told.id,
        JobState(told.state),
        JobOperation(told.operation),
        decoded(told.volume),
        Progress(Step(step.step), step.done_bytes, step.total_bytes),
        told.created,
        told.ended or None,
        error,
    )


def new_info() -> Any:
    """A structure for a snapshot."""
    return sized(JobInfoStruct)
