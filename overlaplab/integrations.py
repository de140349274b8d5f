"""Callbacks of the engine that record what a framework trains (docs/recorder.md)."""

from typing import Any

from overlaplab.bridge import from_engine

_NAMES = ("AccelerateRecorder", "LightningRecorder", "TransformersRecorder")


def __dir__() -> list[str]:
    return [*_NAMES]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return from_engine(name, "overlaplab_engine.integrations")
