"""`fedblocks federation local | simulate | run`: train a configuration with Flower."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedblocks.cli.code import CodeFiles, share_code
from fedblocks.cli.output import AsJson, Changes, say, stoppable
from fedblocks.core.errors import count_of

if TYPE_CHECKING:
    from fedblocks.cli.progress import Watch
    from fedblocks.runs.result import RunResult

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FOLDER", help="Run folder; default: runs/METHOD-DATA-001, ..."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only warnings and the result.")]
Deadline = Annotated[float, typer.Option("--deadline", help="Seconds that a round may take.")]
Patience = Annotated[float, typer.Option("--patience", help="Seconds to wait for missing clients.")]
Minimum = Annotated[
    float, typer.Option("--minimum", help="Share of updates below which a round is repeated.")
]
More = Annotated[float, typer.Option("--ask", help="Clients to ask for each one needed, e.g. 1.3.")]
Share = Annotated[
    float,
    typer.Option("--largest-share", help="Largest share of an average that one client may have."),
]
Largest = Annotated[
    int | None,
    typer.Option(
        "--largest-examples",
        min=1,
        help="Most examples that a client may claim; default: 5 x the median.",
    ),
]
Server = Annotated[
    Path, typer.Option("--server", metavar="FOLDER", help="Server folder, created by `init`.")
]


def local(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="TOML file, or preset.")
    ] = None,
    nodes: Annotated[
        int, typer.Option("-n", "--nodes", min=1, help="Nodes; clients are divided among them.")
    ] = 2,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Preset, e.g. digits-pfedmb.")
    ] = None,
    changes: Changes = None,
    code: CodeFiles = None,
    out: Out = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port of the server; default: a free one.")
    ] = None,
    deadline: Deadline = 300.0,
    patience: Patience = 120.0,
    minimum: Minimum = 0.8,
    more: More = 1.0,
    share: Share = 1.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a federation of real processes on this machine.

    It has certificates and keys like a federation on several machines.
    """

    def action() -> None:
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        share_code(code)
        from fedblocks.flower.hosts.federation import local as start

        here = f"{count_of(nodes, 'node')} on this machine"
        note = f"engine flower: {here}, with certificates and keys"
        path = _folder(config or preset or "digits-pfedmb", changes, out, note)
        terms = {
            "seconds": deadline,
            "patience": patience,
            "minimum": minimum,
            "more": more,
            "share": share,
        }
        with _watch(path, quiet, as_json) as watch:
            result = start(path, nodes, terms, watch.on_round, watch.on_note, port)
        _show(result, as_json)

    stoppable(action)


def simulate(
    what: Annotated[
        str, typer.Argument(metavar="CONFIG", help="TOML file, preset, or run folder to continue.")
    ],
    nodes: Annotated[
        int, typer.Option("-n", "--nodes", min=1, help="Nodes; clients are divided among them.")
    ] = 2,
    cpus: Annotated[int, typer.Option("--cpus", min=1, help="CPU cores of each node.")] = 1,
    gpus: Annotated[
        float, typer.Option("--gpus", min=0.0, help="GPUs of each node; with 0.25 four share one.")
    ] = 0.0,
    address: Annotated[
        str | None, typer.Option("--address", help="Ray cluster; default: this machine.")
    ] = None,
    changes: Changes = None,
    code: CodeFiles = None,
    out: Out = None,
    deadline: Deadline = 600.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a configuration on Flower's simulation runtime (Ray).

    It can use several GPUs or machines.
    """

    def action() -> None:
        from fedblocks.flower.simulation import need_ray

        need_ray()
        share_code(code)
        from fedblocks.flower.simulation import simulate as start

        path = _folder(what, changes, out, f"engine flower: {count_of(nodes, 'node')} on Ray")
        terms = {"seconds": deadline, "patience": 120.0}
        with _watch(path, quiet, as_json) as watch:
            result = start(
                path,
                nodes,
                cpus=cpus,
                gpus=gpus,
                address=address,
                choices=terms,
                on_round=watch.on_round,
                on_note=watch.on_note,
            )
        _show(result, as_json)

    stoppable(action)


def run(
    what: Annotated[
        str, typer.Argument(metavar="CONFIG", help="TOML file, preset, or run folder to continue.")
    ],
    server: Server,
    changes: Changes = None,
    code: CodeFiles = None,
    out: Out = None,
    deadline: Deadline = 600.0,
    patience: Patience = 600.0,
    minimum: Minimum = 0.8,
    more: More = 1.0,
    share: Share = 1.0,
    largest: Largest = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train on the clients of a running server.

    Rounds are shown as they end; Ctrl-C stops showing them, not the run.
    """

    def action() -> None:
        from fedblocks.flower.hosts import launch

        launch.need_flower()
        share_code(code)
        from fedblocks.flower.hosts.federation import go_on
        from fedblocks.flower.hosts.running import check_running

        check_running(server.resolve())  # before a folder is made
        path = _folder(what, changes, out, "engine flower: clients on their own machines")
        terms = {
            "seconds": deadline,
            "patience": patience,
            "minimum": minimum,
            "more": more,
            "share": share,
            "largest_examples": largest,
        }
        with _watch(path, quiet, as_json) as watch:
            result = go_on(server.resolve(), path, terms, watch.on_round, watch.on_note)
        _show(result, as_json)

    stoppable(action)


def _folder(what: str, changes: list[str] | None, out: Path | None, note: str) -> Path:
    """The run to go on with, or a new one of a configuration."""
    from fedblocks.config.presets import read_config
    from fedblocks.flower.hosts.federation import new_run

    # one of them may be lost, which whoever opens the run says
    begun = any((Path(what) / name).exists() for name in ("config.toml", "run.sqlite"))
    return Path(what).resolve() if begun else new_run(read_config(what, changes or []), out, [note])


def _watch(path: Path, quiet: bool, as_json: bool) -> Watch:
    """Rounds and notes on the screen; JSON leaves it the error stream."""
    from fedblocks.cli.progress import Watch

    return Watch(path.name, quiet, sys.stderr if as_json else None)


def _show(result: RunResult, as_json: bool) -> None:
    """The table of a simulated run, and its report."""
    from fedblocks.cli.runs import show_run
    from fedblocks.core.errors import UserError

    show_run(result, None, as_json)
    if not as_json:
        try:
            from fedblocks.reports.html import write_report

            say(f"report: {write_report(result.folder, None)}")
        except UserError as error:  # what it needs is not installed
            say(f"no report: {error.message}; {error.fix}")
