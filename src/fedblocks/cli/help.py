"""The help of commands, and the answer to a command that does not exist."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from fedblocks.core.errors import Interrupted, UserError, nearest


class StoppedCommand(UserError):
    """A command that Ctrl-C ended."""

    exit_code = Interrupted.exit_code


class Command(TyperCommand):
    """A command whose help explains its arguments, which typer 0.20 leaves out with click 8.5."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what Ctrl-C ended, click would call aborted and say no more."""
        try:
            return super().invoke(ctx)
        except Interrupted as error:
            stopped = StoppedCommand(error.message, error.fix)
            vars(stopped).update(vars(error))
            raise stopped from error

    def get_help(self, ctx: Any) -> str:
        """Return the help text, without the backslashes that typer puts before brackets
        for rich.
        """
        explained = _arguments(self.callback) if self.callback is not None else {}
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and not parameter.help:
                parameter.help = explained.get(parameter.name or "")
        return super().get_help(ctx).replace("\\[", "[")

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Write nothing: typer lists the arguments together with the options."""


class Commands(TyperGroup):
    """Commands by name; an unknown one is answered with those that are spelt like it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command by its name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UserError(
                f'there is no command "{ctx.command_path} {args[0]}"',
                nearest(args[0], self.commands),
            )
        return super().resolve_command(ctx, args)


def _arguments(function: Any) -> dict[str, str | None]:
    """Return what the arguments of a command are, by name, as written in its signature."""
    parameters = inspect.signature(function, eval_str=True).parameters
    marks = {name: getattr(one.annotation, "__metadata__", ()) for name, one in parameters.items()}
    return {
        name: mark.help
        for name, own in marks.items()
        for mark in own
        if isinstance(mark, ArgumentInfo)
    }
