"""What a server is told to do: one run of training, or to give new clients their models; kept in its folder."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from fedblocks.core.errors import UserError
from fedblocks.flower.terms import RunTerms
from fedblocks.runs.folder import write_atomically

MODULE = "fedblocks.flower.deploy"


class Order(BaseModel):
    """One thing that the server does."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["train", "adapt"]
    folder: str  # of the run
    terms: RunTerms
    seconds: float = Field(gt=0)  # that a round may take
    patience: float = Field(gt=0)  # seconds to wait for clients that are not there
    minimum: float = Field(default=0.8, gt=0, le=1)  # share of the clients asked for whose updates make a round
    more: float = Field(default=1.0, ge=1)  # clients that are asked, for each one that is needed
    share: float = Field(default=1.0, gt=0, le=1)  # the largest part of a slot that one client may decide
    attempts: int = Field(default=3, ge=1)  # at one round
    clients: tuple[int, ...] = ()  # that are given their models

    def store(self, server: Path) -> str:
        """Keep the order where the server's app finds it, under a name."""
        name = f"{self.kind}-{secrets.token_hex(4)}"
        (server / "orders").mkdir(exist_ok=True, mode=0o700)
        write_atomically(server / "orders" / f"{name}.json", self.model_dump_json())
        return name

    @staticmethod
    def load(server: Path, name: str) -> Order:
        """The order of a name."""
        if not re.fullmatch(r"[a-z]+-[0-9a-f]{8}", name):
            raise UserError(f'"{name[:40]}" is not the name of an order', "start runs with `fedblocks federation run`")
        return Order.model_validate_json((server / "orders" / f"{name}.json").read_text())


def write_app(folder: Path, order: str) -> Path:
    """The app that Flower is given: a page that names functions of this package; clients never ask for it."""
    project = {"name": "fedblocks-run", "version": "1.0.0", "description": "a fedblocks run", "dependencies": []}
    components = {"serverapp": f"{MODULE}:server_app", "clientapp": f"{MODULE}:client_app"}
    app = {"publisher": "fedblocks", "components": components, "config": {"order": order}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    return folder
