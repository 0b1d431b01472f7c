"""`fedblocks federation server | client | status | stop | adapt`: the machines of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.code import CodeFiles, share_code
from fedblocks.cli.federated_runs import Deadline, Patience, Server
from fedblocks.cli.output import AsJson, say, show_json, show_table, stoppable


def server(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Server folder.")],
    code: CodeFiles = None,
) -> None:
    """Run the server until Ctrl-C; unfinished jobs are continued."""
    share_code(code)
    from fedblocks.flower.hosts.server_host import host_server

    host_server(folder, say)


def client(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Client folder.")],
    code: CodeFiles = None,
) -> None:
    """Run the clients of this machine until Ctrl-C."""
    share_code(code)
    from fedblocks.flower.client.host import host_client

    host_client(folder, say)


def status(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Server folder.")],
    as_json: AsJson = False,
) -> None:
    """Show the certificates, the machines and all jobs of a server."""

    def action() -> None:
        from fedblocks.flower.hosts.status import status_of

        rows = status_of(folder.resolve())
        if as_json:
            show_json(rows)
        else:
            times = {"when": "when"} if any(row.get("when") for row in rows) else {}
            show_table({"what": "", "name": "name", "status": "status", **times}, rows)

    stoppable(action)


def stop(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Server folder.")],
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Run folder, if several are going on.")
    ] = None,
) -> None:
    """Stop a run; stored rounds are kept."""

    def action() -> None:
        from fedblocks.flower.hosts.server_host import stop_jobs
        from fedblocks.flower.server.jobs import command_for

        jobs = stop_jobs(folder.resolve(), None if run is None else run.resolve(), say)
        for record in jobs:
            if record.job.kind == "train":
                again = command_for(folder, record.job.folder)
                say(f"stopped the run {record.job.folder}; go on with: {again}")
            else:
                say(f"stopped giving models of {record.job.folder}")

    stoppable(action)


def adapt(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.")],
    server: Server,
    clients: Annotated[
        list[int], typer.Option("--client", help="Number of a new client; may be repeated.")
    ],
    code: CodeFiles = None,
    deadline: Deadline = 600.0,
    patience: Patience = 600.0,
) -> None:
    """Give personalised models to new clients.

    The models come from a trained federation, which is not trained further.
    """

    def action() -> None:
        share_code(code)
        from fedblocks.flower.hosts.server_host import adapt as give

        give(server.resolve(), folder, clients, say, deadline, patience)

    stoppable(action)
