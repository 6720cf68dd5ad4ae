"""libextant as ctypes sees it: the structures and functions of extant.h."""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p


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


class CreateOptionsStruct(ctypes.Structure):
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


class MaterializeOptionsStruct(ctypes.Structure):
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


_FILE = {"": c_char_p, "_fd": c_int}
_ERROR = POINTER(c_void_p)
_CONTROL = POINTER(ControlStruct)


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
    library.extant_create_options_init.restype = None
    library.extant_create_options_init.argtypes = [POINTER(CreateOptionsStruct)]
    library.extant_create.argtypes = [
        c_char_p,
        c_uint64,
        POINTER(CreateOptionsStruct),
        _CONTROL,
        POINTER(CreateReportStruct),
        _ERROR,
    ]
    library.extant_materialize_options_init.restype = None
    library.extant_materialize_options_init.argtypes = [POINTER(MaterializeOptionsStruct)]
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
    return library


LIBRARY = _declared(_open())
