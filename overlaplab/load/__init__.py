"""Loading: a path to a run, a folder of foreign traces or one file becomes a `Run`."""

from overlaplab.load.cut import slice_run
from overlaplab.load.places import MANIFEST_NAME, is_trace_name
from overlaplab.load.run_folder import holds_trace, load_run
from overlaplab.load.sweeps import by_value, load_sweep, run_folders

__all__ = [
    "MANIFEST_NAME",
    "by_value",
    "holds_trace",
    "is_trace_name",
    "load_run",
    "load_sweep",
    "run_folders",
    "slice_run",
]
