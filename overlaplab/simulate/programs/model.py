"""What a strategy has to know of the model: sizes of gradients and units, and which units stay gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod

from msgspec import Struct

from overlaplab.costs.memory import element_bytes
from overlaplab.manifest import Manifest, Parameter
from overlaplab.vocabulary import layer_number


class RecordedModel(Struct, frozen=True, kw_only=True):
    """The model of a recorded run."""

    manifest: Manifest
    parameters: Mapping[str, Parameter]
    """In order of definition."""
    units: Mapping[str, tuple[str, ...]]
    """The parameters' names by unit."""
    uses: Sequence[str]
    """Units in the order in which a forward pass uses them; one may be used twice."""
    order: Sequence[str]
    """The gradients in the order that buckets follow: rank 0's order of arrival."""

    @classmethod
    def from_manifest(cls, manifest: Manifest, uses: Sequence[str], arrived: Sequence[str]) -> RecordedModel:
        """Read what run.json tells; `arrived` are gradients, those that did not arrive come last, in reverse order."""
        return cls(
            manifest=manifest,
            parameters={parameter.name: parameter for parameter in manifest.parameters},
            units=_units(manifest, uses),
            uses=uses,
            order=[*arrived, *(p.name for p in reversed(manifest.parameters) if p.name not in set(arrived))],
        )

    def elements(self, name: str) -> int:
        return prod(self.parameters[name].shape)

    def gradient_item(self, name: str) -> int:
        """Bytes of an element of the parameter's gradient, as it is kept and sent."""
        return element_bytes("float32") if self.manifest.main_grad else self.own_item(name)

    def gradient_bytes(self, name: str) -> int:
        """The bytes of a parameter's gradient, as it is kept and sent."""
        return self.elements(name) * self.gradient_item(name)

    def gathered_item(self, name: str) -> int:
        """Bytes of an element of a parameter in units that are gathered."""
        return element_bytes(self.manifest.param_dtype) if self.manifest.param_dtype else self.own_item(name)

    def scattered_item(self, name: str) -> int:
        """Bytes of an element of a gradient in units that are gathered."""
        reduced = self.manifest.reduce_dtype or self.manifest.param_dtype
        return element_bytes(reduced) if reduced else self.gradient_item(name)

    def own_item(self, name: str) -> int:
        """Bytes of an element of a parameter as it is kept."""
        return self.parameters[name].bytes // max(self.elements(name), 1)

    @property
    def layers(self) -> list[int]:
        """The places in `uses` of the layers."""
        return [place for place, unit in enumerate(self.uses) if layer_number(unit) is not None]

    def stays_gathered(self, unit: str) -> bool:
        """Whether it stays gathered into the backward pass (`by_block` in engine/overlaplab_engine/models/units.py)."""
        return not self.layers or unit in self.uses[self.layers[-1] :]

    def read_in_backward(self, place: int) -> bool:
        """Whether the backward pass of this use reads parameters; an embedding's reads none."""
        return not self.layers or place >= self.layers[0]

    def share(self, owned: Mapping[str, int], unit: str) -> float:
        """The part of a unit, or of all for "", that a rank updates which owns so many elements of parameters."""
        names = self.units[unit] if unit else list(self.parameters)
        return sum(owned[name] for name in names) / max(sum(map(self.elements, names)), 1)


def _units(manifest: Manifest, uses: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each unit's parameters in order of definition; where FSDP2's root stands for several, names tell them apart."""
    units: dict[str, list[str]] = {}
    home = {name: unit.name for unit in manifest.units for name in unit.parameters}
    for parameter in manifest.parameters:
        unit = home.get(parameter.name, "")
        if unit not in uses:
            unit = next((unit for unit in uses if parameter.name.startswith(f"{unit}.")), unit)
        units.setdefault(unit, []).append(parameter.name)
    return {unit: tuple(names) for unit, names in units.items()}


def padded_elements(elements: int, ranks: int) -> int:
    """Elements of a flat buffer that is cut into equal parts."""
    return -(-elements // ranks) * ranks


def owned_elements(model: RecordedModel, flats: Sequence[Sequence[str]], rank: int, ranks: int) -> dict[str, int]:
    """Elements of each parameter that lie in a rank's parts of flat buffers, which hold these parameters in turn."""
    elements: dict[str, int] = {}
    for names in flats:
        sizes = [model.elements(name) for name in names]
        chunk = padded_elements(sum(sizes), ranks) // ranks
        for name, (begin, end) in zip(names, pairwise(accumulate(sizes, initial=0)), strict=True):
            elements[name] = max(min(end, (rank + 1) * chunk) - max(begin, rank * chunk), 0)
    return elements
