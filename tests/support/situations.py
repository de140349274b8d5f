"""Ten recordings of a sleeping device, each with one true cause of exposed time built in, and its remedy.

The file is also the script that their ranks run: the engine, and two strategies of the kind that users write.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from ranks.warm_ranks import run_warm

LINK = "0.05Gbps,200us"
SLOW_TO_ANSWER = "0.05Gbps,500us"
"""For many small collectives in turn: gloo itself takes up to 0.9 ms for each when its threads have slept."""
COMMON = (
    *("--device", "cpu", "--layers", "6", "--width", "40", "--vocab", "320", "--seq", "8", "--batch", "1"),
    *("--steps", "3", "--warmup", "2"),
)
"""Six layers of 80 kB, an embedding and a head of 50 kB, so that moving them takes no core long: 92 ms on the link."""
SLEEP = ("--compute", "sleep:10ms,20ms,1ms")
"""Of each of the eight units, forward, backward and by the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """How to record it, and how with its remedy."""

    name: str
    options: tuple[str, ...]
    remedied: tuple[str, ...] = ()
    """The options with the remedy, `SETTING` for the number that it is about; none where there is nothing to do."""
    label: str
    """The cause as every screen words it, or what it says instead."""
    advice: str
    """What the advice says to try."""
    page: str = "Buckets"
    """The page that it is most about."""
    shown: str = ""
    """What that page shows of it beside the advice; empty for nothing."""
    is_problem: bool | None = True
    """Whether communication is the step's problem; None where it depends on how long ranks wait besides."""
    remedy: str = ""
    """As `simulate.remedies` spells it."""


BUCKETED = ("--strategy", "bucketed", "--link", LINK, *SLEEP)
PAUSING = (*BUCKETED, "--compute", "sleep:20ms,40ms,1ms", "--bucket-cap-mb", "0.05", "--first-bucket-mb", "0.19")
SITUATIONS = (
    Situation(
        name="late rank",
        options=(*BUCKETED, "--bucket-cap-mb", "0.05", "--slow-rank", "1:1.5"),
        remedied=(*BUCKETED, "--bucket-cap-mb", "0.05"),
        label="waited for rank 1",
        page="Collectives",
        shown="longest waits were for rank 1",
        advice="making rank 1 as fast as the others: see on the timeline what it does",
        remedy="balance",
    ),
    Situation(
        name="slow link",
        options=("--strategy", "bucketed", *SLEEP, "--bucket-cap-mb", "0.05", "--link", "0.008Gbps,200us"),
        remedied=("--strategy", "bucketed", *SLEEP, "--bucket-cap-mb", "0.05", "--link", "0.016Gbps,200us"),
        label="cannot be hidden by any bucketing",
        shown=" ms cannot be hidden",
        advice="half the bytes",
        remedy="half_the_bytes",
    ),
    Situation(
        name="last bucket too large",
        options=(*BUCKETED, "--bucket-cap-mb", "1", "--first-bucket-mb", "0.1"),
        remedied=(*BUCKETED, "--bucket-cap-mb", "SETTING"),
        label="nothing left to overlap (tail)",
        shown=" ms tail",
        advice="bucket_cap_mb {setting:g} (now 1).",
        remedy="cap",
    ),
    Situation(
        name="first bucket too large",
        options=(*BUCKETED, "--bucket-cap-mb", "0.05", "--first-bucket-mb", "0.4"),
        remedied=(*BUCKETED, "--bucket-cap-mb", "0.05", "--first-bucket-mb", "SETTING"),
        label="link busy (queued)",
        shown=" ms link busy",
        advice="a first bucket of {setting:g} MiB",
        remedy="first_bucket",
    ),
    Situation(
        name="host paused",
        options=(*PAUSING, "--pause-ms", "40"),
        remedied=PAUSING,
        label="ost paused (compute gap)",  # the headline begins with it, or with the exposed communication around it
        page="Timeline",
        advice="finding what blocks the host",
        is_problem=None,
        remedy="no_pause",
    ),
    Situation(
        name="blocking hook",
        options=("--strategy", "blocking", "--link", SLOW_TO_ANSWER, *SLEEP),
        remedied=("--strategy", "bucketed", "--link", SLOW_TO_ANSWER, *SLEEP, "--bucket-cap-mb", "SETTING"),
        label="waited for at once (blocking)",
        page="Timeline",
        shown="waited for at once (blocking)",
        advice="strategy bucketed with bucket_cap_mb {setting:g}",
        remedy="cap",
    ),
    Situation(
        name="queueing behind a gather",
        options=("--strategy", "contrastive", "--link", LINK, *SLEEP, "--bucket-cap-mb", "0.05"),
        remedied=("--strategy", "contrastive-early", "--link", LINK, *SLEEP, "--bucket-cap-mb", "0.05"),
        label="link busy (queued)",
        shown=" ms link busy",
        advice="launching what bucket",
        remedy="earlier",
    ),
    Situation(
        name="prefetch 0",
        options=("--strategy", "zero3", "--link", LINK, *SLEEP, "--prefetch", "0"),
        remedied=("--strategy", "zero3", "--link", LINK, *SLEEP, "--prefetch", "SETTING"),
        label="launched late (late launch)",
        page="Gathered parameters (ZeRO-3, FSDP)",
        shown="ms for gathers",
        advice="prefetch 1",
        remedy="prefetch",
    ),
    Situation(
        name="cannot be hidden",
        options=(*BUCKETED, "--bucket-cap-mb", "0.05", "--vocab", "6400", "--tied"),
        remedied=(
            *("--strategy", "frozen", "--link", LINK, *SLEEP),
            *("--bucket-cap-mb", "0.05", "--vocab", "6400", "--tied"),
        ),
        label="cannot be hidden by any bucketing",
        shown=" ms cannot be hidden",
        advice="freezing embedding.tokens.weight",
        remedy="one_gradient_less",
    ),
    Situation(
        name="no problem",
        # 21 ms are exposed by design, of 1.5 s: of 1 s a rank that came 8 ms late made it a problem
        options=(*BUCKETED, "--compute", "sleep:60ms,120ms,1ms", "--bucket-cap-mb", "0.1"),
        label="Communication is not the problem",
        page="Timeline",
        advice="What is left is computation",
        is_problem=False,
    ),
)


def record(out: Path, *options: str, ranks: int = 2) -> Path:
    """Record with these options; the run's folder."""
    for rank in run_warm(ranks, __file__, *COMMON, *options, "--out", str(out)):
        assert rank.code == 0, rank.stderr
    return out


def _strategies() -> None:
    """The strategies that are not the engine's own."""
    from typing import Any

    import torch
    from overlaplab_engine.network.communicator import Work
    from overlaplab_engine.strategies import register
    from overlaplab_engine.strategies.base import Traits
    from overlaplab_engine.strategies.bucketed import Bucketed
    from overlaplab_engine.strategies.per_param import PerParam

    class Blocking(PerParam):
        """A hook on each parameter waits for its all-reduce."""

        name = "blocking"

        def _launch(self, number: int) -> Work:
            work = super()._launch(number)
            with self._wait_label:
                work.wait()
            return work

    class Contrastive(Bucketed):
        """Features of all ranks are gathered, 1.6 MB, for a loss: at the start of the backward pass."""

        name = "contrastive"
        traits = Traits(buckets=True)
        early = False

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            own = torch.zeros(400_000 // self.comm.world_size)
            self._features = own.new_zeros(400_000), own

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.early:
                self._gathering = self.comm.all_gather(*self._features)
            return super().__call__(*args, **kwargs)

        def backward(self, loss: torch.Tensor, microbatch: int = 0) -> None:
            if not self.early:
                self._gathering = self.comm.all_gather(*self._features)
            super().backward(loss, microbatch)

        def _finish(self) -> None:
            super()._finish()
            with self._wait_label:
                self._gathering.wait()

    class ContrastiveEarly(Contrastive):
        """The same before the forward pass."""

        name = "contrastive-early"
        early = True

    class Frozen(Bucketed):
        """Its embedding is not trained."""

        name = "frozen"

        def __init__(self, model: torch.nn.Module, *args: Any) -> None:
            model.get_submodule("embedding").requires_grad_(False)
            super().__init__(model, *args)

    for strategy in (Blocking, Contrastive, ContrastiveEarly, Frozen):
        register(strategy)


if __name__ == "__main__":
    _strategies()
    from overlaplab_engine.cli import main

    sys.exit(main(sys.argv[1:]))
