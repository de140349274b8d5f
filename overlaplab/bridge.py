"""Names of the engine that `overlaplab` passes on."""

import importlib
from typing import Any


def from_engine(name: str, module: str = "overlaplab_engine") -> Any:
    """`name` from a module of the engine; ImportError says which extra is missing.

    The engine is imported by its name as a string: neither package may depend on the other, since the trace file is
    the only bridge between them.
    """
    try:
        engine = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "overlaplab_engine":
            raise
        raise ImportError(f"{name} needs the engine; install it with: pip install 'overlaplab[engine]'") from None
    return getattr(engine, name)  # it says itself that torch is missing
