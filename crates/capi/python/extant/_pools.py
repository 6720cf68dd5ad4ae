"""Pools and volumes."""

from __future__ import annotations

import builtins
import ctypes
import enum
import os
from types import TracebackType
from typing import Any, Callable, NamedTuple, Optional, Type

from ._control import Cancel, ProgressCallback, operate, visit
from ._enums import LibraryEnum
from ._errors import ExtantError, File, Status, call, call_about, error_of
from ._files import Preallocation
from ._handle import Handle
from ._images import ImageFormat, ImagePreallocation, Qcow2, set_qcow2
from ._jobs import Job, JobInfo, info_of, new_info
from ._library import (
    JOB_CALLBACK,
    LIBRARY,
    POOL_CALLBACK,
    VOLUME_CALLBACK,
    ImageOptionsStruct,
    PoolInfoStruct,
    PoolOptionsStruct,
    VolumeInfoStruct,
    VolumeOptionsStruct,
    defaults,
)
from ._values import Pace, basis_points, decoded, encoded, number, optional, sized, text


class PoolKind(LibraryEnum):
    """Kind of a pool's storage."""

    DIR = 0
    EXT4 = 1
    DISK = 2
    LVM = 3
    RBD = 4
    OTHER = 5


class Priority(enum.IntEnum):
    """The order of jobs, and their shares of the pool's rate."""

    NORMAL = 0
    LOW = 1
    HIGH = 2


class CloneMethod(enum.IntEnum):
    """How a volume is cloned: AUTO shares space where the file system can, and copies otherwise."""

    AUTO = 0
    COPY = 1
    REFLINK = 2


class JobOptions(NamedTuple):
    """How a job runs while others run."""

    priority: Priority = Priority.NORMAL
    pace: Pace = Pace.FULL
    background_percent: Optional[float] = None
    rate_bytes: int = 0


class PoolEntry(NamedTuple):
    """A pool in a list; `error` is that of an unreadable definition."""

    name: str
    kind: PoolKind
    path: str
    error: Optional[ExtantError]


class PoolInfo(NamedTuple):
    """Properties of a pool; sizes are bytes."""

    name: Optional[str]
    kind: PoolKind
    path: str
    jobs: int
    volumes: int
    total_bytes: int
    allocated_bytes: int
    free_bytes: int
    promised_bytes: int
    reserved_bytes: int
    available_bytes: int


class VolumeEntry(NamedTuple):
    """A volume in a list. AUTO as its format: none is set, and its content looks like qcow2."""

    name: str
    format: ImageFormat
    capacity_bytes: int
    allocated_bytes: int


class VolumeInfo(NamedTuple):
    """Properties of a volume; sizes are bytes. `preallocation` is that of a qcow2 image, as found."""

    name: str
    path: str
    format: ImageFormat
    preallocation: Optional[ImagePreallocation]
    capacity_bytes: int
    size_bytes: int
    allocated_bytes: int
    written_bytes: int
    extents: int
    may_run_out_of_space: bool
    mode: int
    uid: int
    gid: int


def pools(definitions: Optional[File] = None) -> builtins.list[PoolEntry]:
    """The defined pools, by name: those of the user, or of a directory of definitions."""
    found: builtins.list[PoolEntry] = []

    def add(told: Any) -> None:
        error = None
        if told.status != Status.OK:
            error = error_of(told.status, 0, decoded(told.message), None)
        found.append(PoolEntry(decoded(told.name), PoolKind(told.kind), os.fsdecode(told.path), error))

    place = optional(definitions)
    visit(POOL_CALLBACK, add, lambda callback: call(LIBRARY.extant_pool_list, place, callback, None))
    return found


def undefine_pool(name: str, definitions: Optional[File] = None) -> None:
    """Removes the definition of a pool; its volumes are kept."""
    call_about(name, LIBRARY.extant_pool_undefine, text(name), optional(definitions))


class Pool:
    """A pool, open: by the name of its definition, or with a slash by the path of a directory or an ext4 image.

    Threads may share it. Each operation on a volume returns a `Job`, whose space is reserved.
    """

    def __init__(self, place: File, definitions: Optional[File] = None) -> None:
        pointer = ctypes.c_void_p()
        call(LIBRARY.extant_pool_open, encoded(place), optional(definitions), ctypes.byref(pointer))
        self._handle = Handle("pool", pointer, LIBRARY.extant_pool_free)

    @classmethod
    def define(
        cls,
        name: str,
        path: File,
        *,
        definitions: Optional[File] = None,
        kind: PoolKind = PoolKind.DIR,
        preallocation: Preallocation = Preallocation.FULL,
        total_bytes: int = 0,
        rate_bytes: int = 0,
        overcommit: float = 1.0,
        jobs_max: int = 4,
        adopt: bool = False,
        directory: Optional[File] = None,
        state: Optional[File] = None,
    ) -> "Pool":
        """Defines a pool in a directory, an ext4 image or a disk, and opens it."""
        options = defaults(PoolOptionsStruct)
        options.kind = kind
        options.preallocation = preallocation
        options.total_bytes = number("total_bytes", total_bytes)
        options.rate_bytes = number("rate_bytes", rate_bytes)
        options.overcommit = overcommit
        options.jobs_max = jobs_max
        options.adopt = adopt
        options.directory = optional(directory)
        options.state = optional(state)
        made = cls.__new__(cls)
        pointer = ctypes.c_void_p()
        call_about(
            name,
            LIBRARY.extant_pool_define,
            text(name),
            encoded(path),
            optional(definitions),
            ctypes.byref(options),
            ctypes.byref(pointer),
        )
        made._handle = Handle("pool", pointer, LIBRARY.extant_pool_free)
        return made

    def close(self) -> None:
        """Closes it; calls at work with it, also of other threads, continue, as do its jobs."""
        self._handle.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        raised: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Missing where it could not be opened.
        if hasattr(self, "_handle"):
            self.close()

    def info(self) -> PoolInfo:
        """Its space and promises."""
        told = sized(PoolInfoStruct)
        self._call(None, LIBRARY.extant_pool_get_info, ctypes.byref(told))
        return PoolInfo(
            decoded(told.name) or None,
            PoolKind(told.kind),
            os.fsdecode(told.path),
            told.jobs,
            told.volumes,
            told.total_bytes,
            told.allocated_bytes,
            told.free_bytes,
            told.promised_bytes,
            told.reserved_bytes,
            told.available_bytes,
        )

    def volumes(self) -> builtins.list[VolumeEntry]:
        """Its volumes, by name."""
        found: builtins.list[VolumeEntry] = []

        def add(told: Any) -> None:
            entry = VolumeEntry(
                decoded(told.name),
                ImageFormat(told.format),
                told.capacity_bytes,
                told.allocated_bytes,
            )
            found.append(entry)

        self._visit(LIBRARY.extant_volume_list, VOLUME_CALLBACK, add)
        return found

    def volume(self, name: str) -> VolumeInfo:
        """Properties of a volume."""
        told = sized(VolumeInfoStruct)
        self._call(name, LIBRARY.extant_volume_get_info, text(name), ctypes.byref(told))
        format = ImageFormat(told.format)
        found = ImagePreallocation(told.preallocation)
        return VolumeInfo(
            decoded(told.name),
            os.fsdecode(told.path),
            format,
            found if format is ImageFormat.QCOW2 else None,
            told.capacity_bytes,
            told.size_bytes,
            told.allocated_bytes,
            told.written_bytes,
            told.extents,
            bool(told.may_run_out_of_space),
            told.mode,
            told.uid,
            told.gid,
        )

    def delete(self, name: str, *, force: bool = False) -> None:
        """Removes a volume; one that another process has open only with `force`."""
        self._call(name, LIBRARY.extant_volume_delete, text(name), int(force))

    def create(
        self,
        name: str,
        capacity_bytes: int,
        *,
        preallocation: Optional[ImagePreallocation] = None,
        allocation_bytes: Optional[int] = None,
        format: ImageFormat = ImageFormat.AUTO,
        qcow2: Qcow2 = Qcow2(),
        mode: int = 0o600,
        nocow: bool = False,
        verify_all: bool = False,
        options: JobOptions = JobOptions(),
    ) -> Job:
        """A new volume. `preallocation` is that of the pool unless given, and off with a backing file."""
        given = _options(options)
        if preallocation is not None:
            given.preallocation = preallocation
        if allocation_bytes is not None:
            given.allocation_bytes = number("allocation_bytes", allocation_bytes)
        given.format = format
        image = defaults(ImageOptionsStruct)
        set_qcow2(image, qcow2)
        given.qcow2 = ctypes.pointer(image)
        given.mode = mode
        given.nocow = nocow
        given.verify_all = verify_all
        size = number("capacity_bytes", capacity_bytes)
        return self._job(name, LIBRARY.extant_volume_create, given, text(name), size)

    def clone(
        self,
        source: str,
        name: str,
        *,
        method: CloneMethod = CloneMethod.AUTO,
        mode: int = 0o600,
        options: JobOptions = JobOptions(),
    ) -> Job:
        """A new volume with the content of another."""
        given = _options(options)
        given.clone_method = method
        given.mode = mode
        return self._job(name, LIBRARY.extant_volume_clone, given, text(source), text(name))

    def resize(
        self,
        name: str,
        capacity_bytes: int,
        *,
        preallocation: Optional[ImagePreallocation] = None,
        shrink: bool = False,
        options: JobOptions = JobOptions(),
    ) -> Job:
        """Another capacity; a smaller one only with `shrink`, which loses the data past it."""
        given = _options(options)
        if preallocation is not None:
            given.preallocation = preallocation
        given.shrink = shrink
        size = number("capacity_bytes", capacity_bytes)
        return self._job(name, LIBRARY.extant_volume_resize, given, text(name), size)

    def materialize(
        self,
        name: str,
        *,
        unshare: bool = False,
        options: JobOptions = JobOptions(),
    ) -> Job:
        """Holes and unwritten parts of a volume become written; data stays."""
        given = _options(options)
        given.unshare = unshare
        return self._job(name, LIBRARY.extant_volume_materialize, given, text(name))

    def upload(
        self,
        name: str,
        source: File,
        *,
        format: ImageFormat = ImageFormat.AUTO,
        allow_backing: bool = False,
        replace: bool = False,
        mode: int = 0o600,
        options: JobOptions = JobOptions(),
    ) -> Job:
        """A new volume with the content of a file."""
        given = _options(options)
        given.format = format
        given.allow_backing = allow_backing
        given.replace = replace
        given.mode = mode
        return self._job(name, LIBRARY.extant_volume_upload, given, text(name), encoded(source))

    def download(
        self,
        name: str,
        target: File,
        *,
        replace: bool = False,
        options: JobOptions = JobOptions(),
    ) -> Job:
        """A new file with the content of a volume."""
        given = _options(options)
        given.replace = replace
        return self._job(name, LIBRARY.extant_volume_download, given, text(name), encoded(target))

    def jobs(self) -> builtins.list[JobInfo]:
        """The jobs of all processes that the pool remembers, oldest first."""
        found: builtins.list[JobInfo] = []

        def add(told: Any) -> None:
            found.append(info_of(told))

        self._visit(LIBRARY.extant_job_list, JOB_CALLBACK, add)
        return found

    def job(self, id: int) -> JobInfo:
        """The present state of a job of any process."""
        told = new_info()
        self._call(None, LIBRARY.extant_job_get_info, number("id", id), ctypes.byref(told))
        return info_of(told)

    def wait(
        self,
        id: int,
        *,
        progress: Optional[ProgressCallback] = None,
        cancel: Optional[Cancel] = None,
    ) -> JobInfo:
        """Waits until a job of any process has ended or is interrupted. A cancel ends the wait, not the job."""
        told = new_info()
        job, info = number("id", id), ctypes.byref(told)
        operate(
            progress,
            cancel,
            lambda lines: self._call(None, LIBRARY.extant_job_wait, job, lines, info),
        )
        return info_of(told)

    def cancel(self, id: int) -> JobInfo:
        """Cancels a job of any process: the pool is as before it when this returns."""
        told = new_info()
        self._call(None, LIBRARY.extant_job_cancel, number("id", id), ctypes.byref(told))
        return info_of(told)

    def resume(self, id: int) -> Job:
        """An interrupted job, to be run by this process."""
        pointer = ctypes.c_void_p()
        self._call(None, LIBRARY.extant_job_resume, number("id", id), ctypes.byref(pointer))
        return Job(self, pointer)

    def _call(self, named: Optional[str], function: Any, *arguments: Any) -> None:
        with self._handle.use() as pool:
            call_about(named, function, pool, *arguments)

    def _visit(self, function: Any, kind: Any, take: Callable[[Any], None]) -> None:
        visit(kind, take, lambda callback: self._call(None, function, callback, None))

    def _job(self, name: str, function: Any, options: Any, *arguments: Any) -> Job:
        pointer = ctypes.c_void_p()
        self._call(name, function, *arguments, ctypes.byref(options), ctypes.byref(pointer))
        return Job(self, pointer)


def _options(options: JobOptions) -> Any:
    given = defaults(VolumeOptionsStruct)
    given.priority = options.priority
    given.pace = options.pace
    given.background_basis_points = basis_points(options.background_percent)
    given.rate_bytes = number("rate_bytes", options.rate_bytes)
    return given
