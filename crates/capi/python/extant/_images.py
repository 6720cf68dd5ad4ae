"""Disk images."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional

from ._control import Cancel, ProgressCallback, operate
from ._enums import LibraryEnum
from ._errors import File, call
from ._library import (
    LIBRARY,
    ImageInfoStruct,
    ImageMaterializeOptionsStruct,
    ImageMaterializeReportStruct,
    ImageOptionsStruct,
    ImageReportStruct,
    ImageSourceStruct,
    defaults,
)
from ._values import Pace, basis_points, decoded, encoded, number, optional, sized, values


class ImageFormat(LibraryEnum):
    """Format of a disk image. AUTO: that of its name and contents."""

    AUTO = 0
    RAW = 1
    QCOW2 = 2


class ImagePreallocation(LibraryEnum):
    """How much of an image is allocated, by QEMU's names."""

    OFF = 0
    METADATA = 1
    FALLOC = 2
    FULL = 3


class Compression(LibraryEnum):
    """Compression of clusters that other programs compress later."""

    ZLIB = 0
    ZSTD = 1


class Qcow2(NamedTuple):
    """Options of a new qcow2 image; None: QEMU's defaults."""

    cluster_bytes: Optional[int] = None
    refcount_bits: Optional[int] = None
    version: Optional[int] = None
    lazy_refcounts: bool = False
    compression: Compression = Compression.ZLIB
    backing_file: Optional[File] = None
    backing_format: ImageFormat = ImageFormat.AUTO
    backing_unchecked: bool = False
    data_file: Optional[File] = None
    data_file_raw: bool = False


class ImageReport(NamedTuple):
    """What `create_image` and `convert_image` did, in bytes, and the extents of the file."""

    capacity_bytes: int
    size_bytes: int
    written_bytes: int
    resumed_bytes: int
    extents: int


class ImageMaterializeReport(NamedTuple):
    """What `materialize_image` did, in bytes."""

    capacity_bytes: int
    already_written_bytes: int
    size_bytes: int


class ImageInfo(NamedTuple):
    """Properties of an image. Those of qcow2 are 0, False or None for raw images."""

    format: ImageFormat
    preallocation: ImagePreallocation
    capacity_bytes: int
    size_bytes: int
    allocated_bytes: int
    hole_bytes: int
    unwritten_bytes: int
    written_bytes: int
    mapped_bytes: int
    cluster_bytes: int
    refcount_bits: int
    version: int
    compression: Compression
    lazy_refcounts: bool
    is_dirty: bool
    is_corrupt: bool
    snapshots: int
    data_file_raw: bool
    backing_format: Optional[str]
    backing_file: Optional[bytes]
    data_file: Optional[bytes]


def create_image(
    path: File,
    capacity_bytes: int,
    *,
    format: ImageFormat = ImageFormat.AUTO,
    preallocation: Optional[ImagePreallocation] = None,
    qcow2: Qcow2 = Qcow2(),
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
) -> ImageReport:
    """Makes a disk image. `preallocation` is full unless given, and off with a backing file."""
    options = _new(format, preallocation, pace, background_percent, rate_bytes, mode, replace, nocow)
    options.keep_partial = keep_partial
    if allocation_bytes is not None:
        options.allocation_bytes = number("allocation_bytes", allocation_bytes)
    set_qcow2(options, qcow2)
    report = sized(ImageReportStruct)
    size = number("capacity_bytes", capacity_bytes)
    named, given, made = encoded(path), ctypes.byref(options), ctypes.byref(report)
    operate(
        progress,
        cancel,
        lambda lines: call(LIBRARY.extant_image_create, named, size, given, lines, made),
    )
    return ImageReport(*values(report))


def convert_image(
    source: File,
    target: File,
    *,
    source_format: ImageFormat = ImageFormat.AUTO,
    open_named_files: bool = False,
    threads: int = 0,
    capacity_bytes: int = 0,
    format: ImageFormat = ImageFormat.AUTO,
    preallocation: Optional[ImagePreallocation] = None,
    qcow2: Qcow2 = Qcow2(),
    pace: Pace = Pace.FULL,
    background_percent: Optional[float] = None,
    rate_bytes: int = 0,
    mode: Optional[int] = None,
    replace: bool = False,
    nocow: bool = False,
    progress: Optional[ProgressCallback] = None,
    cancel: Optional[Cancel] = None,
) -> ImageReport:
    """Copies the disk in an image into a new one, of which `preallocation` is off unless given."""
    how = defaults(ImageSourceStruct)
    how.format = source_format
    how.open_named_files = open_named_files
    how.threads = threads
    how.capacity_bytes = number("capacity_bytes", capacity_bytes)
    options = _new(format, preallocation, pace, background_percent, rate_bytes, mode, replace, nocow)
    set_qcow2(options, qcow2)
    report = sized(ImageReportStruct)
    files = encoded(source), encoded(target)
    given = ctypes.byref(how), ctypes.byref(options)
    made = ctypes.byref(report)
    operate(
        progress,
        cancel,
        lambda lines: call(LIBRARY.extant_image_convert, *files, *given, lines, made),
    )
    return ImageReport(*values(report))


def materialize_image(
    path: File,
    *,
    format: ImageFormat = ImageFormat.AUTO,
    open_named_files: bool = False,
    pace: Pace = Pace.FULL,
    background_percent: Optional[float] = None,
    rate_bytes: int = 0,
    progress: Optional[ProgressCallback] = None,
    cancel: Optional[Cancel] = None,
) -> ImageMaterializeReport:
    """Makes an image full in place: every cluster mapped and written; data stays."""
    options, report = defaults(ImageMaterializeOptionsStruct), sized(ImageMaterializeReportStruct)
    options.format = format
    options.open_named_files = open_named_files
    options.pace = pace
    options.background_basis_points = basis_points(background_percent)
    options.rate_bytes = number("rate_bytes", rate_bytes)
    named, given, done = encoded(path), ctypes.byref(options), ctypes.byref(report)
    operate(
        progress,
        cancel,
        lambda lines: call(LIBRARY.extant_image_materialize, named, given, lines, done),
    )
    return ImageMaterializeReport(*values(report))


def image_info(
    path: File,
    *,
    format: ImageFormat = ImageFormat.AUTO,
    cancel: Optional[Cancel] = None,
) -> ImageInfo:
    """Describes an image. The files that it names are not opened."""
    info = sized(ImageInfoStruct)
    named, said, found = encoded(path), number("format", int(format), 32), ctypes.byref(info)
    operate(
        None,
        cancel,
        lambda lines: call(LIBRARY.extant_image_get_info, named, said, lines, found),
    )
    return ImageInfo(
        ImageFormat(info.format),
        ImagePreallocation(info.preallocation),
        info.capacity_bytes,
        info.size_bytes,
        info.allocated_bytes,
        info.hole_bytes,
        info.unwritten_bytes,
        info.written_bytes,
        info.mapped_bytes,
        info.cluster_bytes,
        info.refcount_bits,
        info.version,
        Compression(info.compression),
        bool(info.lazy_refcounts),
        bool(info.is_dirty),
        bool(info.is_corrupt),
        info.snapshots,
        bool(info.data_file_raw),
        decoded(info.backing_format) or None,
        info.backing_file or None,
        info.data_file or None,
    )


def set_qcow2(options: Any, qcow2: Qcow2) -> None:
    """The fields of qcow2."""
    options.cluster_bytes = qcow2.cluster_bytes or 0
    options.refcount_bits = qcow2.refcount_bits or 0
    options.version = qcow2.version or 0
    options.lazy_refcounts = qcow2.lazy_refcounts
    options.compression = qcow2.compression
    options.backing_file = optional(qcow2.backing_file)
    options.backing_format = qcow2.backing_format
    options.backing_unchecked = qcow2.backing_unchecked
    options.data_file = optional(qcow2.data_file)
    options.data_file_raw = qcow2.data_file_raw


def _new(
    format: ImageFormat,
    preallocation: Optional[ImagePreallocation],
    pace: Pace,
    background_percent: Optional[float],
    rate_bytes: int,
    mode: Optional[int],
    replace: bool,
    nocow: bool,
) -> Any:
    options = defaults(ImageOptionsStruct)
    options.format = format
    if preallocation is not None:
        options.preallocation = preallocation
    options.pace = pace
    options.background_basis_points = basis_points(background_percent)
    options.rate_bytes = number("rate_bytes", rate_bytes)
    if mode is not None:
        options.mode = mode
    options.replace = replace
    options.nocow = nocow
    return options
