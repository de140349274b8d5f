"""Loading: a path to a run, a folder of foreign traces or one file becomes a `Run`."""

from overlaplab.load.cut import slice_run
from overlaplab.load.run_folder import holds_trace, load_manifest, load_run, load_sweep

__all__ = ["holds_trace", "load_manifest", "load_run", "load_sweep", "slice_run"]
