"""Files, disk images and volumes whose space is really there: zeroed, written, in few extents.

The calls are those of libextant (extant.h), and promise what the header says. Long ones take a `progress`, which is called with a
`Progress` at least 5 times a second while something moves, on the thread that made the call, and a `cancel`, which any thread may
use. A progress that returns True stops its operation; one that raises does as well, and the exception is what the caller sees.
So does an exception of a signal handler on the main thread, such as Ctrl-C.

Operations on the volumes of a `Pool` are jobs: objects with progress and cancel, which other processes see too.
"""

from ._control import Cancel, Progress, Step
from ._errors import ExtantError, Status
from ._files import (
    CreateReport,
    Extent,
    MaterializeReport,
    Preallocation,
    ProbeReport,
    State,
    Way,
    create,
    map,
    materialize,
    probe,
    version,
    write_zeroes,
)
from ._images import (
    Compression,
    ImageFormat,
    ImageInfo,
    ImageMaterializeReport,
    ImagePreallocation,
    ImageReport,
    Qcow2,
    convert_image,
    create_image,
    image_info,
    materialize_image,
)
from ._jobs import (
    Job,
    JobInfo,
    JobOperation,
    JobState,
    OnStop,
)
from ._pools import (
    CloneMethod,
    JobOptions,
    Pool,
    PoolEntry,
    PoolInfo,
    PoolKind,
    Priority,
    VolumeEntry,
    VolumeInfo,
    pools,
    undefine_pool,
)
from ._values import Pace

__all__ = [
    "Cancel",
    "CloneMethod",
    "Compression",
    "CreateReport",
    "ExtantError",
    "Extent",
    "ImageFormat",
    "ImageInfo",
    "ImageMaterializeReport",
    "ImagePreallocation",
    "ImageReport",
    "Job",
    "JobInfo",
    "JobOperation",
    "JobOptions",
    "JobState",
    "MaterializeReport",
    "OnStop",
    "Pace",
    "Pool",
    "PoolEntry",
    "PoolInfo",
    "PoolKind",
    "Preallocation",
    "Priority",
    "ProbeReport",
    "Progress",
    "Qcow2",
    "State",
    "Status",
    "Step",
    "VolumeEntry",
    "VolumeInfo",
    "Way",
    "convert_image",
    "create",
    "create_image",
    "image_info",
    "map",
    "materialize",
    "materialize_image",
    "pools",
    "probe",
    "undefine_pool",
    "version",
    "write_zeroes",
]
