"""`fedblocks schema`: what may stand in a configuration, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.output import AsJson, say, show_json
from fedblocks.core.errors import UserError


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the schema to a file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON Schema of configurations.

    Editors use it to complete and check TOML files.
    """
    from fedblocks.config.schema import config_schema

    text = json.dumps(config_schema(), indent=2, default=str) + "\n"
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write {out}: {error.strerror or error}", "choose another file"
        ) from error
    if as_json:
        show_json({"name": out.name, "file": str(out), "bytes": out.stat().st_size})
    else:
        say(f"{out}: write `#:schema {out}` into the first line of a TOML file beside it")
