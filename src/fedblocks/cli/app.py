"""All commands, and what happens when one of them fails."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedblocks.cli import (
    bench,
    compare,
    completion,
    data,
    doctor,
    export,
    federation,
    new,
    quickstart,
    report,
    reproduce,
    runs,
    schema,
    show,
    tune,
    watch,
)
from fedblocks.cli.output import show_error
from fedblocks.core.errors import UserError, nearest

UNEXPECTED = 1  # exit code of errors that are ours, not the user's


class Commands(TyperGroup):
    """Commands by name; an unknown one is answered with those that are spelt like it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise UserError(f'there is no command "{ctx.command_path} {args[0]}"', nearest(args[0], self.commands))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="fedblocks",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Personalised and modular federated learning.",
)
app.command("quickstart")(quickstart.quickstart)
app.command("run")(runs.run)
app.command("resume")(runs.resume)
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("report")(report.report)
app.command("reproduce")(reproduce.reproduce)
app.command("watch")(watch.watch)
app.command("export")(export.export)
app.command("predict")(export.predict)
app.command("methods")(show.methods)
app.command("plan")(show.plan)
app.command("check")(show.check)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.command("schema")(schema.schema)
app.command("completion")(completion.completion)
for name, group, about in (
    ("new", new.app, "Start a package with your own method, net or data set."),
    ("federation", federation.app, "Run a federation of real processes, on this machine or on several."),
    ("data", data.app, "List data sets, preview how they are divided, save federations."),
):
    app.add_typer(group, name=name, cls=Commands, help=about)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"fedblocks {version('fedblocks')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Personalised and modular federated learning."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; docs/commands.md lists the codes."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        app(args=[word for word in words if word != "--debug"], prog_name="fedblocks")
    except UserError as error:
        if debug:
            traceback.print_exc()
        show_error(error.message, error.fix)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if debug:
            raise
        show_error(f"unexpected {type(error).__name__}: {error}", "this is a bug; run again with --debug and report it")
        sys.exit(UNEXPECTED)
