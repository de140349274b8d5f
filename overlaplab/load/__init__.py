"""Loading: a path to a run, a folder of foreign traces or one file becomes a `Run`."""

from overlaplab.load.run_folder import load_run

__all__ = ["load_run"]
