"""The calls."""

from __future__ import annotations

import builtins
import ctypes
import enum
from typing import Any, NamedTuple, Optional

from ._control import Cancel, ProgressCallback, operate, visit
from ._enums import LibraryEnum
from ._errors import File, call
from ._library import (
    EXTENT_CALLBACK,
    LIBRARY,
    CreateOptionsStruct,
    CreateReportStruct,
    MaterializeOptionsStruct,
    MaterializeReportStruct,
    ProbeReportStruct,
    defaults,
)
from ._values import Pace, basis_points, encoded, number, values

_NO_PLACE = 2**64 - 1
_ALL = 2**64 - 1


class Preallocation(enum.IntEnum):
    """How much space a new file gets."""

    OFF = 0
    FALLOC = 1
    FULL = 2


class State(LibraryEnum):
    """State of a range."""

    HOLE = 0
    UNWRITTEN = 1
    WRITTEN = 2


class Way(LibraryEnum):
    """How space would become written."""

    NONE = 0
    WRITE_ZEROES = 1
    OVERWRITE = 2
    WRITE_IN_ORDER = 3


class CreateReport(NamedTuple):
    """What `create` did, in bytes, and the extents of the file."""

    allocation_bytes: int
    written_bytes: int
    resumed_bytes: int
    extents: int


class MaterializeReport(NamedTuple):
    """What `materialize` did, in bytes."""

    already_written_bytes: int
    zeroed_bytes: int
    unshared_bytes: int


class Extent(NamedTuple):
    """A range of a file in one state. `physical` is None where there is no place, or the map does not tell it."""

    logical: int
    length: int
    physical: Optional[int]
    state: State
    shared: bool
    encoded: bool
    delayed: bool


class ProbeReport(NamedTuple):
    """What a place can do."""

    way: Way
    reason: str
    filesystem: str
    block_bytes: int
    available_bytes: int
    has_reflink: bool


def version() -> str:
    """The version of the library."""
    text: bytes = LIBRARY.extant_version()
    return text.decode()


def create(
    path: File,
    size_bytes: int,
    *,
    preallocation: Preallocation = Preallocation.FULL,
    allocation_bytes: Optional[int] = None,
    pace: Pace = Pace.FULL,
    background_percent: Optional[float] = None,
    rate_bytes: int = 0,
    mode: Optional[int] = None,
    replace: bool = False,
    nocow: bool = False,
    keep_partial: bool = False,
    progress: Optional[ProgressCallback] = None,
    cancel: Optional[Cancel] = None,
) -> CreateReport:
    """Makes a file whose space is really there. It has its name when it is complete, and not before."""
    options, report = defaults(CreateOptionsStruct), CreateReportStruct()
    options.preallocation = preallocation
    options.pace = pace
    options.background_basis_points = basis_points(background_percent)
    options.rate_bytes = number("rate_bytes", rate_bytes)
    options.replace = replace
    options.nocow = nocow
    options.keep_partial = keep_partial
    if allocation_bytes is not None:
        options.allocation_bytes = number("allocation_bytes", allocation_bytes)
    if mode is not None:
        options.mode = mode
    size = number("size_bytes", size_bytes)
    named, given, made = encoded(path), ctypes.byref(options), ctypes.byref(report)
    operate(
        progress,
        cancel,
        lambda lines: call(LIBRARY.extant_create, named, size, given, lines, made),
    )
    return CreateReport(*values(report))


def materialize(
    file: File,
    *,
    offset: int = 0,
    length: Optional[int] = None,
    pace: Pace = Pace.FULL,
    background_percent: Optional[float] = None,
    rate_bytes: int = 0,
    shared_access: bool = False,
    unshare: bool = False,
    progress: Optional[ProgressCallback] = None,
    cancel: Optional[Cancel] = None,
) -> MaterializeReport:
    """Makes the holes and unwritten parts of a file, or of an open descriptor, written zeros; data stays."""
    options, report = defaults(MaterializeOptionsStruct), MaterializeReportStruct()
    options.offset = number("offset", offset)
    if length is not None:
        options.length = number("length", length)
    options.pace = pace
    options.background_basis_points = basis_points(background_percent)
    options.rate_bytes = number("rate_bytes", rate_bytes)
    options.shared_access = shared_access
    options.unshare = unshare
    function, target = _by_file("extant_materialize", file)
    given, done = ctypes.byref(options), ctypes.byref(report)
    operate(progress, cancel, lambda lines: call(function, target, given, lines, done))
    return MaterializeReport(*values(report))


def write_zeroes(
    file: File,
    offset: int,
    length: int,
    *,
    progress: Optional[ProgressCallback] = None,
    cancel: Optional[Cancel] = None,
) -> None:
    """Zeroes a range of a file, or of an open descriptor, and leaves it written."""
    function, target = _by_file("extant_write_zeroes", file)
    offset, length = number("offset", offset), number("length", length)
    operate(progress, cancel, lambda lines: call(function, target, offset, length, lines))


def map(file: File, offset: int = 0, length: Optional[int] = None) -> builtins.list[Extent]:
    """The extents of a file, or of an open descriptor, holes included."""
    found: builtins.list[Extent] = []

    def add(told: Any) -> None:
        place = None if told.physical == _NO_PLACE else told.physical
        flags = (bool(told.flags & bit) for bit in (1, 2, 4))
        found.append(Extent(told.logical, told.length, place, State(told.state), *flags))

    function, target = _by_file("extant_map", file)
    begin = number("offset", offset)
    until = _ALL if length is None else number("length", length)
    visit(EXTENT_CALLBACK, add, lambda callback: call(function, target, begin, until, callback, None))
    return found


def probe(path: File) -> ProbeReport:
    """What the file system at a path can do."""
    report = ProbeReportStruct()
    call(LIBRARY.extant_probe, encoded(path), ctypes.byref(report))
    return ProbeReport(
        Way(report.way),
        report.reason.decode(errors="replace"),
        report.filesystem.decode(errors="replace"),
        report.block_bytes,
        report.available_bytes,
        bool(report.has_reflink),
    )


def _by_file(name: str, file: File) -> tuple[Any, Any]:
    if isinstance(file, int):
        return getattr(LIBRARY, name + "_fd"), number("descriptor", file, 31)
    return getattr(LIBRARY, name), encoded(file)
