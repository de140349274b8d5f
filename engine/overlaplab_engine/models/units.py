"""Units, the sets of parameters that are gathered and freed together, and the policies that form them.

A unit policy is FSDP's wrap policy: a function from a model to its units. Strategies are given one in `Options.units`.

[Note: what is called]
A unit's parameters are gathered, or waited for, when one of its modules is called. So a unit's modules must be modules
that the model calls, and no others may read its parameters before. Lists and dictionaries of modules or of parameters
are never called: the policies here look into them, and give parameters that lie in them directly to the next module
above that can be called.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from overlaplab_engine.errors import EngineError


@dataclass(slots=True)
class Unit:
    """Modules whose parameters are gathered and freed together."""

    name: str
    modules: list[nn.Module]
    """Those whose forward and backward passes use the parameters; see [Note: what is called]."""
    parameters: dict[str, nn.Parameter]
    """By their names in the model."""
    kept: bool = False
    """Whether its parameters stay gathered from the forward pass into the backward pass."""
    block: bool = False
    """Whether torch-fsdp2 wraps it by itself, and does not leave it to the root."""


UnitPolicy = Callable[[nn.Module], list[Unit]]
"""Forms a model's units. Each parameter must be in exactly one of them, and all ranks must get the same units."""


def by_block(model: nn.Module) -> list[Unit]:
    """One unit for each block, which is a member of an outermost list of layers, at any depth; one for each module
    beside those lists; and one for each module around them that has parameters of its own, `root` for the model's.

    A list of layers is a `ModuleList`, a `Sequential`, or a `ModuleDict` whose members are alike. Modules that share a
    parameter form one unit. The last block is kept from the forward into the backward pass, and so is every unit after
    it and every module around it, because the backward pass needs them again at once. In a model without blocks the
    last unit is kept.
    """
    names = {id(p): name for name, p in model.named_parameters()}

    def split(name: str, module: nn.Module, *, block: bool) -> Iterator[Unit]:
        if _is_called(module):
            is_around_blocks = module is model or (not block and (_is_plain_list(module) or _holds_blocks(module)))
            parameters = _direct_parameters(module) if is_around_blocks else list(module.parameters())
            yield Unit(name or "root", [module], {names[id(p)]: p for p in parameters}, block=block)
            if not is_around_blocks:
                return
        elif module is model:
            yield Unit("root", [module], {names[id(p)]: p for p in _direct_parameters(module)})
        for key, child in _members(module):
            yield from split(f"{name}.{key}" if name else key, child, block=_lists_layers(module))

    units = [unit for unit in split("", model, block=False) if unit.parameters]
    blocks = [i for i, unit in enumerate(units) if unit.block]
    compound_blocks = [i for i in blocks if _members(units[i].modules[0])]
    last = (compound_blocks or blocks or [len(units) - 1])[-1]  # a list of plain layers may follow, as a head
    return _merge_sharing(
        [
            replace(unit, kept=i >= last or units[last].modules[0] in unit.modules[0].modules())
            for i, unit in enumerate(units)
        ]
    )


def by_size(min_parameters: int) -> UnitPolicy:
    """The policy that makes a unit of each module with at least so many parameters that lie in no unit below it; what
    remains is the unit `root`.

    FSDP's `size_based_auto_wrap_policy`, whose `min_num_params` this is (torch/distributed/fsdp/wrap.py). The root and
    the last unit are kept from the forward into the backward pass. EngineError if `min_parameters` is below 1.
    """
    if min_parameters < 1:
        raise EngineError(f"by_size({min_parameters}): a unit has at least 1 parameter")

    def size_policy(model: nn.Module) -> list[Unit]:
        names = {id(p): name for name, p in model.named_parameters()}

        def split(name: str, module: nn.Module) -> tuple[list[Unit], list[nn.Parameter]]:
            """The units in a module, and its parameters that are left."""
            everything = list(module.parameters())
            if _count(everything) < min_parameters or isinstance(module, nn.MultiheadAttention):
                return [], everything  # attention reads its projection's weight without calling the projection
            units, left = [], list(module.parameters(recurse=False))
            for key, child in module.named_children():
                below, more = split(f"{name}.{key}" if name else key, child)
                units += below
                left += [p for p in more if not any(p is other for other in left)]
            if name and _is_called(module) and _count(left) >= min_parameters:
                parameters = {names[id(p)]: p for p in left}
                return [Unit(name, [module], parameters, block=True), *units], []
            return units, left

        units, left = split("", model)
        if left:
            units.insert(0, Unit("root", [model], {names[id(p)]: p for p in left}, kept=True))
        return _merge_sharing([*units[:-1], *(replace(unit, kept=True) for unit in units[-1:])])

    return size_policy


def policy(text: str) -> UnitPolicy:
    """The policy that a command line names: `by_block`, `by_size:N`, or `MODULE:FUNCTION` for a function of one's own.

    EngineError if there is no such policy.
    """
    name, _, argument = text.partition(":")
    if text == "by_block":
        return by_block
    if name == "by_size" and argument.isdecimal():
        return by_size(int(argument))
    if name in ("by_block", "by_size") or not argument:
        raise EngineError(f"--units {text!r} is none of by_block, by_size:N, MODULE:FUNCTION")
    try:
        users_policy: UnitPolicy = getattr(importlib.import_module(name), argument)
    except Exception as error:  # whatever there is in the module
        raise EngineError(f"--units {text}: {error}; is its folder on PYTHONPATH?") from error
    return users_policy


def form_units(model: nn.Module, policy: UnitPolicy) -> list[Unit]:
    """The model's units by `policy`. EngineError unless each has its name and each parameter is in exactly one."""
    units = policy(model)
    unit_of: dict[str, str] = {}
    for i, unit in enumerate(units):
        if unit.name in {other.name for other in units[:i]}:
            raise EngineError(f"two units are called {unit.name}: check the unit policy")
        for name in unit.parameters:
            if name in unit_of:
                raise EngineError(
                    f"parameter {name} is in two units, {unit_of[name]} and {unit.name}: check the policy"
                )
            unit_of[name] = unit.name
    for name, _ in model.named_parameters():
        if unit_of.pop(name, None) is None:
            raise EngineError(f"parameter {name} is in no unit: check the unit policy")
    for name, unit_name in unit_of.items():
        raise EngineError(f"unit {unit_name} has {name}, which is no parameter of the model: check the unit policy")
    return units


def reads_parameters_in_backward(module: nn.Module) -> bool:
    """Whether a module's backward pass reads its parameters; that of a table lookup does not."""
    owners = [m for m in module.modules() if list(m.parameters(recurse=False))]
    return not all(isinstance(m, nn.Embedding) for m in owners)


# What the policies look at


def _is_called(module: nn.Module) -> bool:
    """Whether a module can be called; lists and dictionaries of modules or parameters cannot."""
    return isinstance(module, torch.jit.ScriptModule) or type(module).forward is not nn.Module.forward


def _members(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Its children that have parameters, by name."""
    return [(name, child) for name, child in module.named_children() if any(True for _ in child.parameters())]


def _has_like_members(module: nn.Module) -> bool:
    """Whether its members that have parameters are of one class."""
    return len({type(child) for _, child in _members(module)}) == 1


def _lists_layers(module: nn.Module) -> bool:
    """Whether its members are layers."""
    return isinstance(module, nn.ModuleList | nn.Sequential) or (
        isinstance(module, nn.ModuleDict) and _has_like_members(module)
    )


def _is_plain_list(module: nn.Module) -> bool:
    """Whether it only calls its members."""
    return isinstance(module, nn.Sequential) and not any(True for _ in module.parameters(recurse=False))


def _holds_blocks(module: nn.Module) -> bool:
    """Whether it has a list of layers that consist of modules; an unlike `Sequential` may be the parts of one layer."""
    lists = [m for m in module.modules() if isinstance(m, nn.ModuleList) or (_lists_layers(m) and _has_like_members(m))]
    return any(_members(layer) for m in lists for _, layer in _members(m))


def _direct_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that lie in a module and in none that can be called below it."""
    below = [p for child in module.children() if not _is_called(child) for p in _direct_parameters(child)]
    return [*module.parameters(recurse=False), *below]


def _count(parameters: Sequence[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)


def _merge_sharing(units: list[Unit]) -> list[Unit]:
    """Merge units that share a parameter into the first of them."""
    merged: list[Unit] = []
    for unit in units:
        sharing = [m for m in merged if m.parameters.keys() & unit.parameters.keys()]
        if not sharing:
            merged.append(unit)
            continue
        group = [*sharing, unit]
        first = replace(
            sharing[0],
            modules=list(dict.fromkeys(module for member in group for module in member.modules)),
            parameters={name: p for member in group for name, p in member.parameters.items()},
            kept=any(member.kept for member in group),
            block=any(member.block for member in group),
        )
        merged = [first if m is sharing[0] else m for m in merged if not any(m is other for other in sharing[1:])]
    return merged
