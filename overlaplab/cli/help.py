"""How the commands' help shows their options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup, TyperOption

_METAVARS = {"bool": "", "int": "N", "list[int]": "N"}
"""By the type of an option what stands beside its name: nothing beside a switch."""


class Commands(TyperGroup):
    """Commands in whose help no type of Python's stands beside switches and whole numbers."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's own options."""
        return _name_values(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _name_values(command.get_params(ctx))
        return command


def _name_values(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if isinstance(parameter, TyperOption) and parameter.metavar is None:
            parameter.metavar = _METAVARS.get(parameter.bare_type())
    return parameters
