"""Loading: a path to a run, a folder of foreign traces or one file becomes a `Run`.

Each name is imported when it is first asked for (PEP 562): processes that only decode would otherwise wait for pandas.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlaplab.load.cut import slice_run
    from overlaplab.load.run_folder import holds_trace, load_manifest, load_run, load_sweep
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "cut" if name == "slice_run" else "run_folder"
        return getattr(importlib.import_module(f"overlaplab.load.{home}"), name)


__all__ = ["holds_trace", "load_manifest", "load_run", "load_sweep", "slice_run"]
