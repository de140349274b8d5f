"""A step of torch's DistributedDataParallel over gloo as torch.profiler records it, without anybody's labels."""

from __future__ import annotations

from typing import Any

from made.traces import event, gloo, op, step


def ddp_over_gloo(
    *, late_us: float = 0, second_ends_us: float = 14_000, optimizer: bool = True
) -> list[dict[str, Any]]:
    """A step of 20 ms: gradients of 1000 and 2000 bytes arrive at 4 and 8, each in a bucket, which end at 7 and 14.

    The rank copies both back and goes on as the second ends; its range ends `late_us` later.
    """
    accumulate = "torch::autograd::AccumulateGrad"
    events = [
        step(3, 0, 20_000),
        event("DistributedDataParallel.forward", 0, 2000, cat="user_annotation"),
        op("forward", 0, 2000),
    ]
    for at, end, late, elements in ((4000, 7000, 0, 250), (8000, second_ends_us, late_us, 500)):
        sent = {"args": {"Input Dims": [[elements]], "Input type": ["float"]}}
        events += [
            op("backward", at - 1900, at),
            event(f"autograd::engine::evaluate_function: {accumulate}", at, at + 100),
            event(accumulate, at + 1, at + 2, **{"Input Dims": [[elements]], "Input type": ["float"]}),
            event("c10d::allreduce_", at + 10, at + 60),
            gloo(at + 60, end + late) | sent,
        ]
    events += [op("copy_", second_ends_us + 10, second_ends_us + 20), op("copy_", 14_030, 19_000)]
    events += [event("Optimizer.step#SGD.step", 14_500, 19_000, cat="user_annotation")] if optimizer else []
    return sorted(events, key=lambda own: float(own["ts"]))


def launched_by_gloo(kind: str, root: int | None, start: float, end: float) -> list[dict[str, Any]]:
    """A collective of plain gloo, whose operator names the root's place in the group, if known."""
    shapes = {"Input Dims": [[[2]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
    scalars = {} if root is None else {"Concrete Inputs": ["", "", str(root), "0"]}
    tensors = {"Input Dims": [[2]], "Input type": ["float"]}
    call = event(f"c10d::{kind}_", start - 1, start, **shapes, **scalars)
    return [call, event(f"gloo:{kind}", start, end, tid=9, cat="user_annotation", **tensors)]
