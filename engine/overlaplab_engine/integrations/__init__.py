"""The Recorder in training loops that belong to a framework; each name loads its framework when it is asked for."""

from typing import TYPE_CHECKING

from overlaplab_engine.lazily import lazy_getattr

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


__getattr__ = lazy_getattr(__name__, _HOMES)
