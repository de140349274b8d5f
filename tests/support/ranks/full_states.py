"""What a checkpoint holds, in one piece."""

from typing import Any

from overlaplab_engine import checkpoint
from overlaplab_engine.optimizer import MOMENTS, AdamW
from overlaplab_engine.strategies import Strategy


def full_state(strategy: Strategy, optimizer: AdamW, step: int) -> dict[str, Any] | None:
    """What a checkpoint after `step` steps holds, its parts put together, on rank 0; None on other ranks."""
    progress, specs = checkpoint._describe(strategy, optimizer, step)
    mine = {key: (part.begin, part.values.clone()) for key, part in checkpoint._slices(strategy, optimizer).items()}
    ranks = strategy.comm.gather_objects(mine)
    kinds = ("parameters", "buffers", "masters", *MOMENTS)
    state: dict[str, Any] = progress.document() | {kind: {} for kind in kinds}
    for key, spec in specs.items():
        kind, _, name = key.partition(".")
        whole = spec.zeros(spec.numel)
        for begin, values in (parts[key] for parts in ranks if key in parts):
            whole[begin : begin + values.numel()] = values
        state[kind][name] = whole.view(spec.shape)
    return state if strategy.comm.rank == 0 else None
