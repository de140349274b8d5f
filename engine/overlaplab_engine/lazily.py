"""Names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_getattr(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__`, from names and the modules below it that hold them.

    It raises ImportError with what to install where a module needs something that is missing.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == "overlaplab_engine":
                raise
            install = "'overlaplab[engine]'" if missing == "torch" else missing
            raise ImportError(f"{name} needs {missing}; install it with: pip install {install}") from None

    return find
