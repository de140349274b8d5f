"""An instrumented data-parallel engine on torch.distributed, and a recorder for any training loop."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlaplab_engine.recording.recorder import Recorder

__all__ = ["Recorder"]


def __getattr__(name: str) -> Any:
    """Import `Recorder` on first access: loading torch takes seconds, and the command line's help does not need it."""
    if name != "Recorder":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from overlaplab_engine.recording.recorder import Recorder
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("Recorder needs torch; install it with: pip install 'overlaplab[engine]'") from None
    return Recorder
