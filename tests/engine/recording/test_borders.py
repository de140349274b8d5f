"""Where units' passes begin and end."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from overlaplab_engine import labels
from overlaplab_engine.labels import Word
from overlaplab_engine.models.transformer import Transformer
from overlaplab_engine.models.units import Unit, by_block
from overlaplab_engine.recording import borders as room
from overlaplab_engine.recording.borders import UnitBorders
from overlaplab_engine.recording.trace_file import label_gradients
from ranks.label_texts import parse
from torch import nn

SHAPE = {"layers": 2, "width": 8, "heads": 2, "seq": 4, "vocab": 16}
TOKENS = torch.zeros(1, 4, dtype=torch.int64)
FORWARD = [
    f"{edge}_use {unit} forward" for unit in ("embedding", "layers.0", "layers.1", "head") for edge in ("first", "last")
]
BACKWARD = [
    f"{edge}_use {unit} backward"
    for unit in ("head", "layers.1", "layers.0", "embedding")
    for edge in ("first", "last")
]


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The labels that are written, in short."""
    found: list[str] = []

    def text(word: Any, **values: Any) -> Any:
        return nullcontext() if word is Word.RECOMPUTE else labels.label(word, **values)

    def instant(made: str) -> None:
        word, values = parse(made)
        found.append(
            " ".join(map(str, (word, *(values[key] for key in ("unit", "parameter", "phase") if key in values))))
        )

    monkeypatch.setattr(room.labels, "span", text)
    monkeypatch.setattr(room.labels, "instant", instant)
    return found


def observed(model: nn.Module, units: list[Unit]) -> UnitBorders:
    borders = UnitBorders(units, lambda: 0)
    label_gradients(dict(model.named_parameters()), call=borders.gradient_came)
    return borders.register()


def uses(marks: list[str]) -> list[str]:
    return [mark for mark in marks if "_use" in mark]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_units_follow_each_other_forward_and_backward(marks: list[str], checkpointing: bool) -> None:
    model = Transformer(**SHAPE, checkpointing=checkpointing)
    borders = observed(model, by_block(model))
    for _ in range(2):
        marks.clear()
        with borders.measure_times() as times:
            model(TOKENS, TOKENS).backward()
        assert uses(marks) == FORWARD + BACKWARD
        assert list(times) == [tuple(mark.split()[1:]) for mark in uses(marks) if mark.startswith("last")]
        assert min(times.values()) > 0
    last = marks.index("last_use layers.1 backward")
    assert marks[last - 1].startswith("gradient_ready layers.1.")  # with its last gradient, not with the next unit
    assert marks[last + 1] == "first_use layers.0 backward"


def test_a_unit_without_all_its_gradients_ends_when_the_next_begins(marks: list[str]) -> None:
    model = Transformer(**SHAPE)
    units = by_block(model)
    left_out = nn.Parameter(torch.ones(1))
    units[2].parameters["never"] = left_out
    units[0].parameters["neither"] = left_out
    observed(model, units)
    model(TOKENS, TOKENS).backward()
    assert uses(marks) == FORWARD + BACKWARD


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.own = nn.Parameter(torch.ones(2))
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x * self.own)
        if self.fails:
            raise ValueError("now")
        return x * self.own


def test_of_nested_units_the_inner_one_counts(marks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = Nested()
    inner = Unit("inner", [model.inner], {f"inner.{n}": p for n, p in model.inner.named_parameters()})
    borders = observed(model, [Unit("root", [model], {"own": model.own}), inner])
    now = iter(range(0, 10_000, 100))
    monkeypatch.setattr(room.time, "perf_counter_ns", lambda: next(now))
    with borders.measure_times() as times:
        model(torch.ones(1, 2))
    assert times == {("inner", "forward"): 100, ("root", "forward"): 200}
    assert marks == [
        f"{mark} forward" for mark in ("first_use root", "first_use inner", "last_use inner", "last_use root")
    ]


def test_after_an_exception_everything_begins_anew(marks: list[str]) -> None:
    model = Nested()
    borders = observed(model, [Unit("root", [model], {"own": model.own})])
    model.fails = True
    with pytest.raises(ValueError, match="now"):
        model(torch.ones(1, 2))
    model.fails = False
    output = model(torch.ones(1, 2))
    output.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        output.sum().backward()
    marks.clear()
    with borders.measure_times() as times:
        model(torch.ones(1, 2)).sum().backward()
    assert uses(marks) == [
        f"{edge}_use root {phase}" for phase in ("forward", "backward") for edge in ("first", "last")
    ]
    assert {*times} == {("root", "forward"), ("root", "backward")}


def test_removed_hooks_write_nothing(marks: list[str]) -> None:
    model = Nested()
    borders = UnitBorders([Unit("root", [model], {"own": model.own})], lambda: 0).register()
    for handle in borders.handles:
        handle.remove()
    model(torch.ones(1, 2)).sum().backward()
    assert marks == []
