"""The run specification: what a server says to its clients of a run (method, net, seed,
shape of the data).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from fedblocks import __version__
from fedblocks.config.choices import make
from fedblocks.config.code.ingredients import task_table
from fedblocks.config.model import ALL, Config
from fedblocks.config.registry import REMOTE
from fedblocks.config.sections import Choice
from fedblocks.core.blocks import ServerOnly
from fedblocks.core.client_names import client_numbers
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.state import count_bytes
from fedblocks.core.task import CLASSIFICATION
from fedblocks.data.federation import Federation, Rows
from fedblocks.runs.experiment import net_of
from fedblocks.runs.federations import federation_of, task_of

LONGEST = 2**16  # characters of a specification
LARGEST = 2**31  # every number in it is smaller, but for the seed
MOST = 10_000  # of what a client makes or does one by one
ONE_BY_ONE = {
    "epochs",
    "steps",
    "rounds",
    "layers",
    "branches",
    "clusters",
    "components",
    "modules",
}


class RunSpec(BaseModel):
    """One run, as clients need to know it; it names things that are installed and holds no code."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    federation: str
    run: str
    population: int = Field(ge=1, lt=LARGEST)
    rounds: int = Field(ge=1, lt=LARGEST)  # that schedules go over
    seed: int = Field(ge=0, lt=2**63)
    threads: int | None = Field(default=None, ge=1)
    input_shape: tuple[int, ...]
    classes: int = Field(ge=1, lt=LARGEST)
    net: dict[str, Any]
    method: dict[str, Any]
    groups: dict[str, dict[str, Any]] = {}
    task: dict[str, Any] = {}  # what is learned; empty: one class for each example

    @staticmethod
    def of(config: Config, data: Federation, federation: str, run: str) -> RunSpec:
        """Return the specification of a run that a configuration describes."""
        if config.precision == "bf16":
            raise UserError(
                'clients of a federation train in single precision, not with precision = "bf16"',
                "leave out `precision`",
            )
        full = config.resolved()
        chosen = {name: full[name] for name in ("seed", "net", "method")}
        spec = RunSpec(
            version=__version__,
            federation=federation,
            run=run,
            population=data.clients,
            rounds=config.horizon,
            threads=config.threads,
            input_shape=tuple(data.x.shape[1:]),
            classes=data.classes,
            groups=_numbered(full.get("groups", {}), data.names),
            task=task_table(data.task) or {},
            **chosen,
        )
        if excess := spec.excess():
            raise UserError(f"no client would take part: {excess}", "choose less")
        return spec

    def excess(self) -> str:
        """Say what is more than any client does for a server; nothing is built to find
        out. Empty: all is well.
        """
        if (length := len(self.model_dump_json())) > LONGEST:
            return f"a run specification of {length} characters, and {LONGEST} are the most"
        tables = {
            "net": self.net,
            "method": self.method,
            "groups": self.groups,
            "task": self.task,
        }
        for name, number in _numbers("", tables):
            most = MOST if name.split("_")[-1] in ONE_BY_ONE else LARGEST - 1
            if abs(number) > most:
                return f"{name[:40]} is larger than {most}"
        return ""

    def group(self, client: int, tags: Mapping[str, int]) -> str:
        """Return the group that a client belongs to."""
        for name, group in self.groups.items():
            by_tag = group.get("tag") is not None and tags.get(group["tag"]) == group["value"]
            if by_tag or client in group.get("clients", ()):
                return name
        return ALL

    def tables(self, group: str) -> dict[str, Any]:
        """Return the tables of a group's net and method."""
        return self.groups.get(group, {"net": self.net, "method": self.method})

    def method_for(self, group: str, data: Federation) -> Method:
        """Return the method of a group for the data that a client holds."""
        tables = self.tables(group)
        net = net_of(Choice(**tables["net"]), data)
        method: Method = make("method", tables["method"], net=net)
        return method.over(self.rounds)

    def model_bytes(self, group: str) -> int:
        """Count the bytes that a client of a group is sent or keeps, without allocating them."""
        tables = self.tables(group)
        with torch.device("meta"):
            net = make("net", tables["net"], input_shape=self.input_shape, classes=self.classes)
            layout = make("method", tables["method"], net=net).blocks().values()
            copies = [
                (getattr(b, "size", 1), b.part) for b in layout if not isinstance(b, ServerOnly)
            ]
            return sum(
                size * count_bytes(part.init(0)) for size, part in copies if part is not None
            )


def _numbered(groups: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The same groups, their clients by number: a client knows its number alone."""
    return {
        name: {**group, "clients": client_numbers(group["clients"], names)}
        if group.get("clients")
        else group
        for name, group in groups.items()
    }


def _numbers(name: str, value: Any) -> Iterator[tuple[str, int | float]]:
    """Return all numbers of a table, each with the name that it stands under."""
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, dict):
        for inner, entry in value.items():
            yield from _numbers(inner, entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _numbers(name, entry)


def shape_of(config: Config) -> Federation:
    """Return what the server knows of the data: all of them if they are public, else
    their shape and no rows.
    """
    if config.data.name != REMOTE:
        return federation_of(config)
    options = config.data.options
    clients = config.data.clients or 1
    nobody = Rows(np.zeros(0, dtype=np.int64), np.zeros(clients + 1, dtype=np.int64))
    x = torch.zeros(
        (2, *options["input_shape"]), dtype=torch.int64 if options["tokens"] else torch.float32
    )
    task = task_of(config) or CLASSIFICATION
    y = torch.zeros((2, *options["label_shape"]), dtype=torch.int64)
    if not task.of_classes:
        y = torch.zeros((2, options["classes"]))
    return Federation(x, y, nobody, nobody, nobody, options["classes"], task=task)
