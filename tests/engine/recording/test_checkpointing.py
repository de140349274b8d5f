"""What activation checkpointing keeps, and what it computes again, against torch's own counters."""

import re

import pytest
import torch
from overlaplab_engine.config import Config
from overlaplab_engine.errors import EngineError
from overlaplab_engine.models.transformer import Layer, Transformer
from overlaplab_engine.recording.memory import count_saved
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

SHAPE = {"layers": 4, "width": 32, "heads": 2, "seq": 16, "vocab": 50}
TOKENS = torch.arange(3 * 16).view(3, 16) % 50
EVERY = {0: [], 1: [0, 1, 2, 3], 2: [0, 2], 3: [0, 3]}
"""The layers that are checkpointed, by every how many."""


def passes(every: int) -> tuple[int, list[torch.Tensor], list[str]]:
    """The operations of a forward and a backward pass, the gradients, and the modules that were computed again."""
    model = Transformer(**SHAPE, checkpointing=every)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # it counts no other kernel of CPUs
        model(TOKENS, TOKENS).backward()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        model(TOKENS, TOKENS).backward()
    labels = [re.fullmatch(r"engine::recompute module=(\S+)", event.name) for event in profiler.events()]
    return counter.get_total_flops(), [p.grad for p in model.parameters()], [found[1] for found in labels if found]


def layer_flops() -> int:
    """A layer's forward pass up to its last matrix product, whose result nobody needs again."""
    layer, x = Layer(32, 2), torch.ones(3, 16, 32)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        layer(x)
    return int(counter.get_total_flops()) - 2 * 3 * 16 * 128 * 32


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_layers_forward_passes_run_again(every: int) -> None:
    plain, want, _ = passes(0)
    flops, got, modules = passes(every)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert flops - plain == len(EVERY[every]) * layer_flops()
    assert modules == [f"layers.{number}" for number in reversed(EVERY[every])]


@pytest.mark.parametrize("every", EVERY)
def test_what_is_kept_is_what_torch_tracks(every: int) -> None:
    model = Transformer(**SHAPE, checkpointing=every)
    with count_saved(model) as kept:
        model(TOKENS, TOKENS).backward()
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        loss = model(TOKENS, TOKENS)
        now = tracker.get_tracker_snapshot("current")[TOKENS.device]
        loss.backward()
    assert sum(kept.values()) == pytest.approx(now[_MemRefType.ACT], rel=0.02)


@pytest.mark.parametrize("text", ["0", "-1", "every", "1.5", ""])
def test_what_is_no_number_of_layers(text: str, tmp_path: object) -> None:
    with pytest.raises(EngineError, match=f"--checkpointing '{text}' is none of all, none, or a number K such as 2"):
        Config(strategy="naive", out=tmp_path / "run", checkpointing=text)
