"""All commands, and what happens when one of them fails."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from fedblocks.cli import (
    bench,
    check_net,
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
    suite,
    tune,
    watch,
)
from fedblocks.cli.help import Command, Commands
from fedblocks.cli.output import show_error
from fedblocks.core.errors import UserError
from fedblocks.core.full_disks import FULL, write_error

FOR_RANKS = ("run", "resume", "doctor")  # commands that torchrun may start
UNEXPECTED = 1  # exit code of errors that are ours, not the user's

app = typer.Typer(
    name="fedblocks",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Personalised and modular federated learning.",
)
app.command("quickstart", cls=Command)(quickstart.quickstart)
app.command("run", cls=Command)(runs.run)
app.command("resume", cls=Command)(runs.resume)
app.command("compare", cls=Command)(compare.compare)
app.command("tune", cls=Command)(tune.tune)
app.command("report", cls=Command)(report.report)
app.command("reproduce", cls=Command)(reproduce.reproduce)
app.command("watch", cls=Command)(watch.watch)
app.command("export", cls=Command)(export.export)
app.command("predict", cls=Command)(export.predict)
app.command("methods", cls=Command)(show.methods)
app.command("presets", cls=Command)(show.presets)
app.command("plan", cls=Command)(show.plan)
app.command("check", cls=Command)(show.check)
app.command("suite", cls=Command)(suite.suite)
app.command("check-net", cls=Command)(check_net.check_net)
app.command("bench", cls=Command)(bench.bench)
app.command("doctor", cls=Command)(doctor.doctor)
app.command("schema", cls=Command)(schema.schema)
app.command("completion", cls=Command)(completion.completion)
for name, group, about in (
    ("new", new.app, "Start a package with your own method, net or data set."),
    ("federation", federation.app, "Run clients as real processes, here or on other machines."),
    ("data", data.app, "List data sets, preview partitions, save federations."),
):
    app.add_typer(group, name=name, cls=Commands, help=about)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"fedblocks {version('fedblocks')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks of errors; may stand anywhere.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Personalised and modular federated learning."""
    if "RANK" in os.environ and context.invoked_subcommand not in (*FOR_RANKS, None):
        from fedblocks.runs.ranks.joining import refuse_ranks

        refuse_ranks(f"fedblocks {context.invoked_subcommand}")


@cache
def command() -> Any:
    """All commands, built once in a process that runs several of them."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; docs/commands.md lists the codes."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        command()(args=[word for word in words if word != "--debug"], prog_name="fedblocks")
    except UserError as error:
        if debug:
            traceback.print_exc()
        if not vars(error).get("silent"):  # else another rank shows it
            show_error(error.message, error.fix)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.errno in FULL:
            full = write_error(Path(error.filename or "a file"), error)
            show_error(full.message, full.fix)
            sys.exit(full.exit_code)
        if vars(error).get("silent"):
            sys.exit(UNEXPECTED)
        show_error(
            f"unexpected {type(error).__name__}: {error}",
            "this is a bug; run again with --debug and report it",
        )
        sys.exit(UNEXPECTED)
