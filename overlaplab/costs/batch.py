"""The arithmetic of a batch: samples = microbatch × accumulation × data-parallel ranks, tokens = samples × sequence."""

from __future__ import annotations

from dataclasses import dataclass

from overlaplab.errors import OverlaplabError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
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
        """Of all ranks in a step: microbatch × accumulation × ranks."""
        return self.microbatch * self.accumulate * self.ranks

    @property
    def tokens(self) -> int:
        """Of all ranks in a step."""
        return self.samples * self.seq


def planned_batch(*, tokens: int, seq: int, microbatch: int, ranks: int) -> Batch:
    """The accumulation with which so many ranks train on so many tokens per step.

    Raises `OverlaplabError` where these do not divide, which says what would.
    """
    for name, value in (("tokens", tokens), ("seq", seq), ("microbatch", microbatch), ("gpus", ranks)):
        if value < 1:
            raise OverlaplabError(f"--{name} {value}: not a positive number")
    samples, rest = divmod(tokens, seq)
    if rest or not samples:
        near = max(round(tokens / seq), 1) * seq
        raise OverlaplabError(
            f"{tokens:,} tokens are no whole number of sequences of {seq:,}", remedy=f"{near:,} tokens would be."
        )
    accumulate, rest = divmod(samples, microbatch * ranks)
    if rest or not accumulate:
        raise OverlaplabError(
            f"{samples:,} samples per step do not divide among {ranks:,} GPUs × {microbatch:,} samples each",
            remedy=_would_do(samples, microbatch, ranks),
        )
    return Batch(seq=seq, microbatch=microbatch, accumulate=accumulate, ranks=ranks)


def _would_do(samples: int, microbatch: int, ranks: int) -> str:
    """The nearest numbers, each changed alone, with which it would divide."""
    said = []
    if not samples % microbatch:
        said.append(f"{_listed(_beside(samples // microbatch, ranks))} GPUs")
    if not samples % ranks:
        said.append(f"{_listed(_beside(samples // ranks, microbatch))} samples each")
    each = microbatch * ranks
    fewer = samples // each * each
    said.append(f"{_listed([some for some in (fewer, fewer + each) if some])} samples per step")
    return f"What would do: {'; or '.join(said)}."


def _beside(number: int, wanted: int) -> list[int]:
    """The divisors next to the wanted one, on either side."""
    divisors = [one for one in range(1, int(number**0.5) + 1) if number % one == 0]
    divisors = sorted({*divisors, *(number // one for one in divisors)})
    below, above = [one for one in divisors if one < wanted], [one for one in divisors if one > wanted]
    return below[-1:] + above[:1]


def _listed(numbers: list[int]) -> str:
    return " or ".join(f"{number:,}" for number in numbers)
