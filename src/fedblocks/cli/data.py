"""`fedblocks data`: what data there are, how a configuration divides them, and the
result as a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedblocks.cli.code import CodeFiles, read_code, with_ingredients
from fedblocks.cli.help import Command
from fedblocks.cli.output import AsJson, Changes, say, show_json, show_table, stoppable
from fedblocks.core.errors import count_of

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="TOML file, or preset such as digits-pfedmb.")
]
Most = Annotated[int, typer.Option("--most", min=1, help="Clients to show at most.")]


@app.command("list", cls=Command)
def show_all(code: CodeFiles = None, as_json: AsJson = False) -> None:
    """List data sets, partitions, test-beds and shifts.

    Says where the files of data sets are or belong. --json adds options.
    """

    def action() -> None:
        from fedblocks.config.catalogue import data

        read_code(code)
        entries = data()
        if as_json:
            show_json(entries)
        else:
            rows = [{**entry, "files": files_of(entry)} for entry in entries]
            headings = {"what": "what", "name": "name", "about": "what it is", "files": "files"}
            show_table(headings, rows)

    stoppable(action)


def files_of(entry: dict[str, Any]) -> str:
    """Where the files of a data set are, or would go; empty for what needs none."""
    if "where" not in entry:
        return ""
    if not entry["found"]:
        return f"missing: would go to {entry['where']}"
    return f"{entry['form']} in {entry['where']}"


@app.command("preview", cls=Command)
def preview(
    config: Config,
    changes: Changes = None,
    code: CodeFiles = None,
    most: Most = 50,
    as_json: AsJson = False,
) -> None:
    """Show which client holds which data, without training."""

    def action() -> None:
        from fedblocks.config.presets import read_config
        from fedblocks.data.targets import describe_targets
        from fedblocks.runs.federations import federation_of

        own = read_code(code)
        federation = federation_of(with_ingredients(read_config(config, changes or []), own))
        rows = [{"name": row.pop("client"), **row} for row in federation.preview(most)]
        if as_json:
            about = {
                "hash": federation.hash(),
                **federation.describe(),
                "warnings": federation.warnings(),
            }
            show_json({"clients": rows, "federation": about})
            return
        show_table({key: key.replace("_", " ") for key in rows[0]}, rows)
        if federation.clients > most:
            say(f"... and {count_of(federation.clients - most, 'more client')}")
        for warning in federation.warnings():
            say(f"warning: {warning}")
        targets, clients = describe_targets(federation), count_of(federation.clients, "client")
        say(f"{clients}, {targets}, SHA-256 {federation.hash()}")

    stoppable(action)


@app.command("save", cls=Command)
def save(
    config: Config,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="npz file to write.")],
    changes: Changes = None,
    code: CodeFiles = None,
    as_json: AsJson = False,
) -> None:
    """Save the federation of a configuration to a file.

    Use it with data.name = "saved".
    """

    def action() -> None:
        from fedblocks.config.presets import read_config
        from fedblocks.runs.federations import federation_of

        own = read_code(code)
        federation = federation_of(with_ingredients(read_config(config, changes or []), own))
        federation.save(out)
        data_hash = federation.hash()
        if as_json:
            about = {"name": out.name, "file": str(out)}
            show_json({**about, "hash": data_hash, "clients": federation.clients})
        else:
            say(f"{out}: {count_of(federation.clients, 'client')}, SHA-256 {data_hash}")

    stoppable(action)
