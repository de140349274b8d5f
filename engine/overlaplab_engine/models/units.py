"""Units, the sets of parameters that are gathered and freed together, and the policies that form them.

A unit policy is FSDP's wrap policy: a function from a model to its units. Strategies are given one in `Options.units`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

__all__ = ["Unit", "UnitPolicy", "by_child", "reads_parameters_in_backward"]


@dataclass(slots=True)
class Unit:
    """Modules whose parameters are gathered and freed together."""

    name: str
    modules: list[nn.Module]
    """Those whose forward and backward passes use the parameters."""
    parameters: dict[str, nn.Parameter]
    """By their names in the model."""
    kept: bool = False
    """Whether its parameters stay gathered from the forward pass into the backward pass."""


UnitPolicy = Callable[[nn.Module], list[Unit]]
"""Forms a model's units. Each parameter must be in exactly one of them, and all ranks must get the same units."""


def by_child(model: nn.Module) -> list[Unit]:
    """One unit for each child of the model, one for each member of a list of layers, and `root` for the model's own
    parameters.

    Children that share a parameter form one unit. The last member of the last list of layers is kept from the forward
    into the backward pass, and so is every unit after it, because the backward pass needs them again at once. In a
    model without such a list the last unit is kept.
    """
    children, last = _children(model)
    names = {id(p): name for name, p in model.named_parameters()}
    units = [
        Unit(name, [module], {names[id(p)]: p for p in module.parameters()}, kept=i >= last)
        for i, (name, module) in enumerate(children)
    ]
    own = {names[id(p)]: p for p in model.parameters(recurse=False)}
    if own:
        units.insert(0, Unit("root", [model], own, kept=True))
    return [unit for unit in _merge_sharing(units) if unit.parameters]


def _children(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], int]:
    """The model's children by name, with lists of layers replaced by their members, and the index of the last layer."""
    children: list[tuple[str, nn.Module]] = []
    last: int | None = None
    for name, child in model.named_children():
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        if is_list and not list(child.parameters(recurse=False)):
            children += ((f"{name}.{key}", member) for key, member in child.named_children())
            last = len(children) - 1
        else:
            children.append((name, child))
    return children, len(children) - 1 if last is None else last


def _merge_sharing(units: list[Unit]) -> list[Unit]:
    """Merge units that share a parameter into the first of them."""
    merged: list[Unit] = []
    for unit in units:
        sharing = [m for m in merged if m.parameters.keys() & unit.parameters.keys()]
        if not sharing:
            merged.append(unit)
            continue
        first, *others = sharing
        for other in [*others, unit]:
            first.modules += other.modules
            first.parameters |= other.parameters
            first.kept |= other.kept
        merged = [m for m in merged if not any(m is other for other in others)]
    return merged


def reads_parameters_in_backward(module: nn.Module) -> bool:
    """Whether a module's backward pass reads its parameters; that of a table lookup does not."""
    owners = [m for m in module.modules() if list(m.parameters(recurse=False))]
    return not all(isinstance(m, nn.Embedding) for m in owners)
