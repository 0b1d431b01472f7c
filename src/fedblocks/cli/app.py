"""All commands, and what happens when one of them fails."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

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
    tune,
    watch,
)
from fedblocks.cli.output import show_error
from fedblocks.core.errors import UserError

UNEXPECTED = 1  # exit code of errors that are ours, not the user's

app = typer.Typer(
    name="fedblocks",
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
app.command("check-net")(check_net.check_net)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.command("schema")(schema.schema)
app.command("completion")(completion.completion)
app.add_typer(new.app, name="new", help="A method, a net or a data set of your own: make a package that works.")
app.add_typer(federation.app, name="federation", help="Real clients: on this machine, or each on its own.")
app.add_typer(data.app, name="data", help="Data sets, partitions and shifts: list, preview, save.")


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
