"""libextant as ctypes sees it: the structures and functions of extant.h."""

from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_size_t, c_uint32, c_uint64, c_void_p


_BYTES: dict[Any, int] = {kind: ctypes.sizeof(kind) for kind in (c_size_t, c_uint32, c_uint64)}


class OptionsStruct(ctypes.Structure):
    """Options. ctypes would take the lowest bits of a number that does not fit."""

    def __setattr__(self, name: str, value: Any) -> None:
        for field, kind, *_ in self._fields_:
            bits = 8 * _BYTES.get(kind, 0) if field == name else 0
            if bits and isinstance(value, int) and not 0 <= value < 1 << bits:
                raise OverflowError(f"{name} is {value}")
        super().__setattr__(name, value)


class ProgressStruct(ctypes.Structure):
    _fields_ = [
        ("step", c_uint32),
        ("reserved", c_uint32),
        ("done_bytes", c_uint64),
        ("total_bytes", c_uint64),
    ]


PROGRESS_CALLBACK = ctypes.CFUNCTYPE(c_int, POINTER(ProgressStruct), c_void_p)


class ControlStruct(ctypes.Structure):
    _fields_ = [
        ("progress", PROGRESS_CALLBACK),
        ("user", c_void_p),
        ("cancel", c_void_p),
    ]


class CreateOptionsStruct(OptionsStruct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("preallocation", c_uint32),
        ("pace", c_uint32),
        ("rate_bytes", c_uint64),
        ("allocation_bytes", c_uint64),
        ("mode", c_uint32),
        ("replace", c_uint32),
        ("nocow", c_uint32),
        ("keep_partial", c_uint32),
        ("background_basis_points", c_uint32),
        ("reserved", c_uint32),
    ]


class CreateReportStruct(ctypes.Structure):
    _fields_ = [
        ("allocation_bytes", c_uint64),
        ("written_bytes", c_uint64),
        ("resumed_bytes", c_uint64),
        ("extents", c_uint64),
    ]


class MaterializeOptionsStruct(OptionsStruct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("pace", c_uint32),
        ("shared_access", c_uint32),
        ("rate_bytes", c_uint64),
        ("unshare", c_uint32),
        ("background_basis_points", c_uint32),
    ]


class MaterializeReportStruct(ctypes.Structure):
    _fields_ = [
        ("already_written_bytes", c_uint64),
        ("zeroed_bytes", c_uint64),
        ("unshared_bytes", c_uint64),
    ]


class ExtentStruct(ctypes.Structure):
    _fields_ = [
        ("logical", c_uint64),
        ("length", c_uint64),
        ("physical", c_uint64),
        ("state", c_uint32),
        ("flags", c_uint32),
    ]


EXTENT_CALLBACK = ctypes.CFUNCTYPE(c_int, POINTER(ExtentStruct), c_void_p)


class ProbeReportStruct(ctypes.Structure):
    _fields_ = [
        ("way", c_uint32),
        ("has_reflink", c_uint32),
        ("block_bytes", c_uint64),
        ("available_bytes", c_uint64),
        ("filesystem", c_char * 32),
        ("reason", c_char * 200),
    ]


PATH_BYTES = 4096
NAME_BYTES = 256
MESSAGE_BYTES = 1032


class ImageOptionsStruct(OptionsStruct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_uint32),
        ("preallocation", c_uint32),
        ("pace", c_uint32),
        ("background_basis_points", c_uint32),
        ("rate_bytes", c_uint64),
        ("allocation_bytes", c_uint64),
        ("mode", c_uint32),
        ("replace", c_uint32),
        ("nocow", c_uint32),
        ("keep_partial", c_uint32),
        ("cluster_bytes", c_uint32),
        ("refcount_bits", c_uint32),
        ("version", c_uint32),
        ("lazy_refcounts", c_uint32),
        ("compression", c_uint32),
        ("backing_format", c_uint32),
        ("backing_file", c_char_p),
        ("data_file", c_char_p),
        ("data_file_raw", c_uint32),
        ("backing_unchecked", c_uint32),
    ]


class ImageReportStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity_bytes", c_uint64),
        ("size_bytes", c_uint64),
        ("written_bytes", c_uint64),
        ("resumed_bytes", c_uint64),
        ("extents", c_uint64),
    ]


class ImageSourceStruct(OptionsStruct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_uint32),
        ("open_named_files", c_uint32),
        ("threads", c_uint32),
        ("reserved", c_uint32),
        ("capacity_bytes", c_uint64),
    ]


class ImageInfoStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_uint32),
        ("preallocation", c_uint32),
        ("capacity_bytes", c_uint64),
        ("size_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("hole_bytes", c_uint64),
        ("unwritten_bytes", c_uint64),
        ("written_bytes", c_uint64),
        ("mapped_bytes", c_uint64),
        ("cluster_bytes", c_uint64),
        ("refcount_bits", c_uint32),
        ("version", c_uint32),
        ("compression", c_uint32),
        ("lazy_refcounts", c_uint32),
        ("is_dirty", c_uint32),
        ("is_corrupt", c_uint32),
        ("snapshots", c_uint32),
        ("data_file_raw", c_uint32),
        ("backing_format", c_char * 32),
        ("backing_file", c_char * PATH_BYTES),
        ("data_file", c_char * PATH_BYTES),
    ]


class ImageMaterializeOptionsStruct(OptionsStruct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_uint32),
        ("open_named_files", c_uint32),
        ("pace", c_uint32),
        ("background_basis_points", c_uint32),
        ("rate_bytes", c_uint64),
    ]


class ImageMaterializeReportStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity_bytes", c_uint64),
        ("already_written_bytes", c_uint64),
        ("size_bytes", c_uint64),
    ]


class PoolOptionsStruct(OptionsStruct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("preallocation", c_uint32),
        ("total_bytes", c_uint64),
        ("rate_bytes", c_uint64),
        ("overcommit", c_double),
        ("jobs_max", c_uint32),
        ("adopt", c_uint32),
        ("directory", c_char_p),
        ("state", c_char_p),
    ]


class PoolEntryStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("status", c_uint32),
        ("name", c_char * NAME_BYTES),
        ("path", c_char * PATH_BYTES),
        ("message", c_char * MESSAGE_BYTES),
    ]


class PoolInfoStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_uint32),
        ("jobs", c_uint32),
        ("total_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("free_bytes", c_uint64),
        ("promised_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("available_bytes", c_uint64),
        ("volumes", c_uint64),
        ("name", c_char * NAME_BYTES),
        ("path", c_char * PATH_BYTES),
    ]


class VolumeEntryStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_uint32),
        ("reserved", c_uint32),
        ("capacity_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("name", c_char * NAME_BYTES),
    ]


class VolumeInfoStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("format", c_uint32),
        ("preallocation", c_uint32),
        ("capacity_bytes", c_uint64),
        ("size_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("written_bytes", c_uint64),
        ("extents", c_uint64),
        ("may_run_out_of_space", c_uint32),
        ("mode", c_uint32),
        ("uid", c_uint32),
        ("gid", c_uint32),
        ("name", c_char * NAME_BYTES),
        ("path", c_char * PATH_BYTES),
    ]


class VolumeOptionsStruct(OptionsStruct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("priority", c_uint32),
        ("pace", c_uint32),
        ("rate_bytes", c_uint64),
        ("background_basis_points", c_uint32),
        ("mode", c_uint32),
        ("preallocation", c_uint32),
        ("shrink", c_uint32),
        ("allocation_bytes", c_uint64),
        ("format", c_uint32),
        ("nocow", c_uint32),
        ("verify_all", c_uint32),
        ("clone_method", c_uint32),
        ("unshare", c_uint32),
        ("replace", c_uint32),
        ("allow_backing", c_uint32),
        ("reserved", c_uint32),
        ("qcow2", POINTER(ImageOptionsStruct)),
    ]


class JobInfoStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("id", c_uint64),
        ("state", c_uint32),
        ("operation", c_uint32),
        ("progress", ProgressStruct),
        ("created", c_uint64),
        ("ended", c_uint64),
        ("status", c_uint32),
        ("error_number", c_int),
        ("volume", c_char * NAME_BYTES),
        ("message", c_char * MESSAGE_BYTES),
    ]


POOL_CALLBACK = ctypes.CFUNCTYPE(c_int, POINTER(PoolEntryStruct), c_void_p)
VOLUME_CALLBACK = ctypes.CFUNCTYPE(c_int, POINTER(VolumeEntryStruct), c_void_p)
JOB_CALLBACK = ctypes.CFUNCTYPE(c_int, POINTER(JobInfoStruct), c_void_p)


_FILE = {"": c_char_p, "_fd": c_int}
_ERROR = POINTER(c_void_p)
_CONTROL = POINTER(ControlStruct)


_INITIALIZERS: dict[type[ctypes.Structure], str] = {
    CreateOptionsStruct: "extant_create_options_init_sized",
    MaterializeOptionsStruct: "extant_materialize_options_init_sized",
    ImageOptionsStruct: "extant_image_options_init_sized",
    ImageSourceStruct: "extant_image_source_init_sized",
    ImageMaterializeOptionsStruct: "extant_image_materialize_options_init_sized",
    PoolOptionsStruct: "extant_pool_options_init_sized",
    VolumeOptionsStruct: "extant_volume_options_init_sized",
}
_OUT = POINTER(c_void_p)
_JOB = [POINTER(VolumeOptionsStruct), _OUT]
# Each ends with a place for its error.
_CALLS: dict[str, list[Any]] = {
    "extant_image_create": [
        c_char_p,
        c_uint64,
        POINTER(ImageOptionsStruct),
        _CONTROL,
        POINTER(ImageReportStruct),
    ],
    "extant_image_convert": [
        c_char_p,
        c_char_p,
        POINTER(ImageSourceStruct),
        POINTER(ImageOptionsStruct),
        _CONTROL,
        POINTER(ImageReportStruct),
    ],
    "extant_image_materialize": [
        c_char_p,
        POINTER(ImageMaterializeOptionsStruct),
        _CONTROL,
        POINTER(ImageMaterializeReportStruct),
    ],
    "extant_image_get_info": [c_char_p, c_uint32, _CONTROL, POINTER(ImageInfoStruct)],
    "extant_pool_define": [c_char_p, c_char_p, c_char_p, POINTER(PoolOptionsStruct), _OUT],
    "extant_pool_open": [c_char_p, c_char_p, _OUT],
    "extant_pool_undefine": [c_char_p, c_char_p],
    "extant_pool_list": [c_char_p, POOL_CALLBACK, c_void_p],
    "extant_pool_get_info": [c_void_p, POINTER(PoolInfoStruct)],
    "extant_volume_list": [c_void_p, VOLUME_CALLBACK, c_void_p],
    "extant_volume_get_info": [c_void_p, c_char_p, POINTER(VolumeInfoStruct)],
    "extant_volume_delete": [c_void_p, c_char_p, c_uint32],
    "extant_volume_create": [c_void_p, c_char_p, c_uint64, *_JOB],
    "extant_volume_resize": [c_void_p, c_char_p, c_uint64, *_JOB],
    "extant_volume_materialize": [c_void_p, c_char_p, *_JOB],
    "extant_volume_clone": [c_void_p, c_char_p, c_char_p, *_JOB],
    "extant_volume_upload": [c_void_p, c_char_p, c_char_p, *_JOB],
    "extant_volume_download": [c_void_p, c_char_p, c_char_p, *_JOB],
    "extant_job_run": [c_void_p, c_uint32, _CONTROL],
    "extant_job_resume": [c_void_p, c_uint64, _OUT],
    "extant_job_list": [c_void_p, JOB_CALLBACK, c_void_p],
    "extant_job_get_info": [c_void_p, c_uint64, POINTER(JobInfoStruct)],
    "extant_job_wait": [c_void_p, c_uint64, _CONTROL, POINTER(JobInfoStruct)],
    "extant_job_cancel": [c_void_p, c_uint64, POINTER(JobInfoStruct)],
}


def _open() -> ctypes.CDLL:
    beside = pathlib.Path(__file__).with_name("libextant.so")
    named = os.environ.get("EXTANT_LIBRARY")
    names = [named] if named else [str(beside)] if beside.exists() else ["libextant.so.0", "libextant.so"]
    for name in names[:-1]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return ctypes.CDLL(names[-1])


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.extant_version.restype = c_char_p
    library.extant_version.argtypes = []
    library.extant_cancel_new.restype = c_void_p
    library.extant_cancel_new.argtypes = []
    for name in ("extant_cancel_now", "extant_cancel_free", "extant_error_free"):
        getattr(library, name).restype = None
        getattr(library, name).argtypes = [c_void_p]
    library.extant_error_message.restype = c_char_p
    library.extant_error_message.argtypes = [c_void_p]
    library.extant_error_errno.restype = c_int
    library.extant_error_errno.argtypes = [c_void_p]
    library.extant_create.argtypes = [
        c_char_p,
        c_uint64,
        POINTER(CreateOptionsStruct),
        _CONTROL,
        POINTER(CreateReportStruct),
        _ERROR,
    ]
    for suffix, file in _FILE.items():
        getattr(library, "extant_materialize" + suffix).argtypes = [
            file,
            POINTER(MaterializeOptionsStruct),
            _CONTROL,
            POINTER(MaterializeReportStruct),
            _ERROR,
        ]
        getattr(library, "extant_write_zeroes" + suffix).argtypes = [
            file,
            c_uint64,
            c_uint64,
            _CONTROL,
            _ERROR,
        ]
        getattr(library, "extant_map" + suffix).argtypes = [
            file,
            c_uint64,
            c_uint64,
            EXTENT_CALLBACK,
            c_void_p,
            _ERROR,
        ]
    library.extant_probe.argtypes = [c_char_p, POINTER(ProbeReportStruct), _ERROR]
    for structure, name in _INITIALIZERS.items():
        getattr(library, name).restype = None
        getattr(library, name).argtypes = [POINTER(structure), c_size_t]
    for name, arguments in _CALLS.items():
        getattr(library, name).argtypes = [*arguments, _ERROR]
    for name in ("extant_pool_free", "extant_job_free"):
        getattr(library, name).restype = None
        getattr(library, name).argtypes = [c_void_p]
    library.extant_job_id.restype = c_uint64
    library.extant_job_id.argtypes = [c_void_p]
    return library


LIBRARY = _declared(_open())


def defaults(structure: Any) -> Any:
    """Options with the defaults of the library, as much of them as this module knows."""
    made = structure()
    getattr(LIBRARY, _INITIALIZERS[structure])(ctypes.byref(made), ctypes.sizeof(structure))
    return made
