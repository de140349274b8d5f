"""When bursts ask for a recording."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from overlaplab_engine import Recorder
from overlaplab_engine.errors import EngineError
from overlaplab_engine.watching.trigger import Trigger

MS = 1_000_000


def triggered(condition: str, *bursts_ms: float) -> list[int]:
    """The places of the bursts, each of three equal steps, after which a recording is asked for."""
    trigger = Trigger(condition)
    steps = [[round(value * MS)] * 3 for value in bursts_ms]
    return [place for place, burst in enumerate(steps) if trigger.observe(burst, burst) is not None]


@pytest.mark.parametrize(
    ("bursts_ms", "places"),
    [
        ([50] * 20, []),
        ([50] * 10 + [80] + [50] * 10, []),  # one alone may be chance
        ([50] * 10 + [80] * 10, [11]),  # and from then on it is usual
        ([50] * 10 + [80] * 4 + [130] * 4, [11, 15]),
        ([50, 80, 80, 80, 80, 80], []),  # what is usual is not known yet
        ([80] * 10 + [50] * 10, []),
        ([50] * 10 + [64] * 10, []),
    ],
)
def test_two_bursts_in_a_row_must_exceed_what_was_usual(bursts_ms: list[float], places: list[int]) -> None:
    assert triggered("step > 1.3 * median", *bursts_ms) == places
    assert triggered("exposed>1.3*median", *bursts_ms) == places


def test_a_checkpoint_in_a_burst_moves_nothing() -> None:
    trigger = Trigger("step > 1.3 * median")
    assert all(trigger.observe([50, 50, 500], []) is None for _ in range(20))


def test_it_says_why() -> None:
    trigger = Trigger("exposed > 1.5 * median")
    said = [trigger.observe([50 * MS], [ns * MS]) for ns in (10, 10, 10, 20, 20)]
    assert said == [None] * 4 + ["exposed 20.0 ms, usually 10.0 ms"]


def test_what_is_unknown_never_triggers() -> None:
    trigger = Trigger("exposed > 1.5 * median")
    assert all(trigger.observe([step], []) is None for step in (1, 1, 1, 9, 9, 9))


@pytest.mark.parametrize(
    "text", ["", "exposed", "exposed > 1 * median", "loss > 2 * median", "step > 1e9", "step < 2 * median"]
)
def test_other_conditions_are_refused(text: str) -> None:
    with pytest.raises(EngineError, match="record_when is such as"):
        Recorder("unused", record_when=text)


def test_what_a_recorder_has_triggered_on_is_what_is_usual_when_it_records(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, record_when="step > 1.3 * median", times=2)
    begun: list[str | None] = []
    recorder._request = SimpleNamespace(ask=lambda: begun.append(recorder._reason))  # type: ignore[assignment]
    for step_ns in (10, 10, 10, 20, 20):
        recorder._observe([step_ns], [])
    recorder._count_request()
    for step_ns in (20, 40, 40):
        recorder._observe([step_ns], [])
    assert len(begun) == 2


def test_after_more_signals_than_times_bursts_ask_for_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, on_signal=True, record_when="step > 1.3 * median", times=1)
    requests: list[str | None] = []
    recorder._request = SimpleNamespace(ask=lambda: requests.append(recorder._reason))  # type: ignore[assignment]
    for _ in range(2):
        recorder._count_request()
    for step_ns in (10, 10, 10, 20, 20):
        recorder._observe([step_ns], [])
    assert requests == []
