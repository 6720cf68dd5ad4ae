"""Files whose space is really there: zeroed, written, in few extents.

The calls are those of libextant (extant.h), and promise what the header says. Long ones take a `progress`, which is called with a
`Progress` at least 5 times a second while something moves, on the thread that made the call, and a `cancel`, which any thread may
use. A progress that returns True stops its operation; one that raises does as well, and the exception is what the caller sees.
"""

from ._errors import ExtantError, Status
from ._files import (
    CreateReport,
    Extent,
    MaterializeReport,
    Pace,
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
from ._control import Cancel, Progress, Step

__all__ = [
    "Cancel",
    "CreateReport",
    "ExtantError",
    "Extent",
    "MaterializeReport",
    "Pace",
    "Preallocation",
    "ProbeReport",
    "Progress",
    "State",
    "Status",
    "Step",
    "Way",
    "create",
    "map",
    "materialize",
    "probe",
    "version",
    "write_zeroes",
]
