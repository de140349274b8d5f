"""Several models in one loop, such as a GAN's two: each has backward passes, buckets and a cap of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

from msgspec.structs import replace

from overlaplab.simulate.player import Launch, Mark, Move, Program, find_launches
from overlaplab.simulate.recorded import Recorded

_UNNAMED = {"gradient": "kept_gradient", "backward_end": "kept_end"}
"""What marks are called in a pass that sends no gradients with names."""


def named_buckets(program: Program) -> list[Launch]:
    """Those whose gradients have names; others are sent by models that the Recorder does not label."""
    return [launch for launch in find_launches(program, "bucket") if launch.parameters]


def sends_unnamed(program: Program) -> bool:
    """Whether any bucket's gradients have no names."""
    return not all(launch.parameters for launch in find_launches(program, "bucket"))


def find_models(program: Program) -> list[set[str]]:
    """The gradients of each model: passes that have any in common send the same model's."""
    models: list[set[str]] = []
    for moves in _split_passes(program):
        if names := _sent_names(moves):
            alike = [model for model in models if model & names]
            models = [model for model in models if not model & names] + [names.union(*alike)]
    return models


def model_name(gradients: Sequence[str]) -> str:
    """What all its gradients' names begin with; else one of them."""
    alike = takewhile(lambda words: len({*words}) == 1, zip(*(name.split(".") for name in gradients), strict=False))
    return ".".join(words[0] for words in alike) or f"the model with {gradients[-1]}"


def _split_passes(program: Program) -> Iterator[Sequence[Move]]:
    """The moves from the beginning of each backward pass to that of the next."""
    starts = [place for place, move in enumerate(program) if isinstance(move, Mark) and move.word == "backward"]
    yield from (program[begin:end] for begin, end in pairwise([0, *starts, len(program)]))


def _sent_names(moves: Sequence[Move]) -> set[str]:
    """The gradients that leave in these moves, by their names."""
    return {name for launch in find_launches(moves, "bucket") for name in launch.parameters}


def keep_model(recorded: Recorded, names: set[str]) -> Recorded:
    """The same programs, in which other models' passes and buckets are like those of models without labels."""
    programs = tuple(
        tuple(
            move
            for moves in _split_passes(program)
            for move in (moves if _sent_names(moves) <= names else map(_without_name, moves))
        )
        for program in recorded.programs
    )
    gradients = {name: size for name, size in recorded.gradients.items() if name in names}
    return replace(recorded, programs=programs, gradients=gradients)


def _without_name(move: Move) -> Move:
    if isinstance(move, Launch):
        return replace(move, parameters=())
    return replace(move, word=_UNNAMED.get(move.word, move.word)) if isinstance(move, Mark) else move
