"""The arithmetic of a batch: samples = microbatch × accumulation × data-parallel ranks, tokens = samples × sequence.

And what training in such batches takes and costs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from msgspec import Struct

from overlaplab.errors import OverlaplabError

_NS_PER_S, _S_PER_HOUR = 10**9, 3600


class Batch(Struct, frozen=True, kw_only=True):
    """What one optimizer step trains on."""

    seq: int
    """Tokens per sample."""
    microbatch: int
    """Samples that a rank computes with at once."""
    accumulate: int
    """Microbatches of a rank per step."""
    ranks: int
    """Data-parallel ranks."""

    @property
    def samples(self) -> int:
        """Samples of all ranks in a step: microbatch × accumulation × ranks."""
        return self.microbatch * self.accumulate * self.ranks

    @property
    def tokens(self) -> int:
        """Tokens of all ranks in a step."""
        return self.samples * self.seq


class Training(Struct, frozen=True, kw_only=True):
    """A planned training run whose step is known."""

    step_ns: int
    """The mean."""
    batch: Batch
    tokens: int | None = None
    """To train on, over all steps; None: unknown."""
    price: float | None = None
    """Price of a GPU per hour, in any currency."""

    @property
    def tokens_per_s(self) -> float | None:
        """On all GPUs; None where a step takes no time."""
        return self.batch.tokens * _NS_PER_S / self.step_ns if self.step_ns > 0 else None

    @property
    def hours(self) -> float | None:
        """Until the tokens are done; None where they, or how long a step takes, are unknown."""
        speed = self.tokens_per_s
        return None if self.tokens is None or speed is None else self.tokens / speed / _S_PER_HOUR

    @property
    def gpu_hours(self) -> float | None:
        """Hours of all GPUs together."""
        return None if self.hours is None else self.hours * self.batch.ranks

    @property
    def cost(self) -> float | None:
        """In the currency of the price; None where one or the hours are unknown."""
        return None if self.gpu_hours is None or self.price is None else self.gpu_hours * self.price


def planned_batch(*, tokens: int, seq: int, microbatch: int, ranks: int) -> Batch:
    """The accumulation with which so many ranks train on so many tokens per step.

    Raises `OverlaplabError` where these do not divide, which says what would.
    """
    for name, value in (("tokens", tokens), ("seq", seq), ("microbatch", microbatch), ("gpus", ranks)):
        if value < 1:
            raise OverlaplabError(f"--{name} {value}: not a positive number")
    samples, remainder = divmod(tokens, seq)
    if remainder or not samples:
        near = max(round(tokens / seq), 1) * seq
        what = f"{tokens:,} tokens are no whole number of sequences of {seq:,}"
        raise OverlaplabError(what, remedy=f"{near:,} tokens would be.")
    accumulate, remainder = divmod(samples, microbatch * ranks)
    if remainder or not accumulate:
        what = f"{samples:,} samples per step do not divide among {ranks:,} GPUs × {microbatch:,} samples each"
        raise OverlaplabError(what, remedy=_would_do(samples, microbatch, ranks))
    return Batch(seq=seq, microbatch=microbatch, accumulate=accumulate, ranks=ranks)


def _would_do(samples: int, microbatch: int, ranks: int) -> str:
    """The nearest numbers, each changed alone, with which it would divide."""
    choices = []
    if not samples % microbatch:
        choices.append(f"{_join_numbers(_nearest_divisors(samples // microbatch, ranks))} GPUs")
    if not samples % ranks:
        choices.append(f"{_join_numbers(_nearest_divisors(samples // ranks, microbatch))} samples each")
    each = microbatch * ranks
    fewer = samples // each * each
    choices.append(f"{_join_numbers([some for some in (fewer, fewer + each) if some])} samples per step")
    return f"What would do: {'; or '.join(choices)}."


def _nearest_divisors(number: int, wanted: int) -> list[int]:
    """The divisors next to the wanted one, on either side."""
    divisors = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    divisors = sorted({*divisors, *(number // divisor for divisor in divisors)})
    return [*divisors[: bisect_left(divisors, wanted)][-1:], *divisors[bisect_right(divisors, wanted) :][:1]]


def _join_numbers(numbers: list[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)
