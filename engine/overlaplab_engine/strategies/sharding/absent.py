"""Parameters whose values have not arrived yet: a read of one is noticed, whatever way it takes.

[Note: how a read is noticed]
While its values are absent, a parameter's class is a subclass of its own that has a `__torch_function__`. So torch
hands over every function that gets the parameter, autograd's apart, wherever the caller has it from. With its values
the parameter gets its own class back, and computing with it costs nothing more. (Lazy parameters change their class so:
`UninitializedTensorMixin.materialize` in torch/nn/parameter.py.)
"""

import copy
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from overlaplab_engine.errors import EngineError

_ON_READ = "overlaplab_on_read"
"""The attribute of an absent parameter that is called before it is read."""

# fmt: off
_METADATA = frozenset(
    {"__len__", "_has_compatible_shallow_copy_type", "dim", "element_size", "empty_like", "full_like",
     "get_device", "is_complex", "is_contiguous", "is_floating_point", "is_same_size", "ndimension",
     "nelement", "numel", "ones_like", "rand_like", "randn_like", "register_hook",
     "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad", "size", "storage_offset", "stride",
     "untyped_storage", "zeros_like"}
)
# fmt: on
"""Functions that do not read values."""

_VALUES = frozenset({"data", "T", "H", "mT", "mH", "real", "imag"})
"""Attributes that are values; all others are metadata, `grad` included."""


def mark_absent(parameters: Iterable[nn.Parameter], on_read: Callable[[], None]) -> None:
    """Call `on_read` from now on before one of them is read; it calls `mark_present`, or raises."""
    for parameter in parameters:
        if not isinstance(parameter, _Absent):
            parameter.__class__ = _absent_class(type(parameter))
        setattr(parameter, _ON_READ, on_read)


def mark_present(parameters: Iterable[nn.Parameter]) -> None:
    """Let them be read: their values have arrived."""
    for parameter in parameters:
        if isinstance(parameter, _Absent):
            parameter.__class__ = type(parameter).present  # type: ignore[assignment]
            delattr(parameter, _ON_READ)


def early_read_error(strategy: str, unit: str) -> EngineError:
    """The error for a forward pass that reads a unit's parameters before it calls one of the unit's modules."""
    return EngineError(
        f"{strategy}: parameters of unit {unit} are read before a module of the unit is called; "
        "choose a unit policy that puts them into the unit of the module that reads them"
    )


class _Absent:
    """See [Note: how a read is noticed]."""

    present: type[nn.Parameter]
    """The parameter's own class."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _reads(function):
            for x in tree_leaves((args, kwargs)):
                if isinstance(x, _Absent):
                    getattr(x, _ON_READ)()
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        getattr(self, _ON_READ)()
        return copy.deepcopy(self, memo)


def _reads(function: Any) -> bool:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        return getattr(function.__self__, "__name__", "") in _VALUES
    return name not in _METADATA


@cache
def _absent_class(present: type[nn.Parameter]) -> Any:
    return type(f"Absent{present.__name__}", (_Absent, present), {"present": present})
