"""Nothing that goes wrong while watching reaches the training."""

from collections.abc import Callable
from functools import wraps
from typing import Any


def guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, but its error goes to the object's `_failed`, and None is returned."""

    @wraps(method)
    def call(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            self._failed(error)
            return None

    return call
