"""The Recorder in training loops that belong to a framework; each name loads its framework when it is asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlaplab_engine.integrations.with_accelerate import AccelerateRecorder
    from overlaplab_engine.integrations.with_lightning import LightningRecorder
    from overlaplab_engine.integrations.with_transformers import TransformersRecorder

__all__ = ["AccelerateRecorder", "LightningRecorder", "TransformersRecorder"]

_HOMES = {
    "AccelerateRecorder": "with_accelerate",
    "LightningRecorder": "with_lightning",
    "TransformersRecorder": "with_transformers",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "overlaplab_engine":
            raise
        extra = "'overlaplab[engine]'" if package == "torch" else package
        raise ImportError(f"{name} needs {package}; install it with: pip install {extra}") from None
