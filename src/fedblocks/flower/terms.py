"""What a server tells its clients of a run: method, net, seed and the shape of the data; and what they make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from fedblocks import __version__
from fedblocks.core.errors import DataError, UserError
from fedblocks.core.method import Method
from fedblocks.data.federation import IGNORE, Federation, Rows
from fedblocks.flower.client import ClientSide
from fedblocks.flower.hosts import ClientHost
from fedblocks.flower.messages import Malformed
from fedblocks.flower.store import PersonalStore
from fedblocks.runs.build import ALL, net_of
from fedblocks.runs.choices import make
from fedblocks.runs.config import Choice, Config
from fedblocks.runs.federations import federation_of
from fedblocks.runs.registry import REMOTE
from fedblocks.runs.source import Source


class RunTerms(BaseModel):
    """One run, as clients need to know it; it names things that are installed and holds no code."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    federation: str
    run: str
    population: int = Field(ge=1)
    seed: int = Field(ge=0)
    threads: int | None = None
    input_shape: tuple[int, ...]
    classes: int = Field(ge=1)
    net: dict[str, Any]
    method: dict[str, Any]
    groups: dict[str, dict[str, Any]] = {}

    @staticmethod
    def of(config: Config, data: Federation, federation: str, run: str) -> RunTerms:
        """The terms of a run that a configuration describes."""
        full = config.resolved()
        told = {name: full[name] for name in ("seed", "net", "method")}
        return RunTerms(
            version=__version__,
            federation=federation,
            run=run,
            population=data.clients,
            threads=config.threads,
            input_shape=tuple(data.x.shape[1:]),
            classes=data.classes,
            groups=full.get("groups", {}),
            **told,
        )

    def group(self, client: int, tags: Mapping[str, int]) -> str:
        """The group that a client belongs to."""
        for name, group in self.groups.items():
            by_tag = group.get("tag") is not None and tags.get(group["tag"]) == group["value"]
            if by_tag or client in group.get("clients", ()):
                return name
        return ALL

    def made(self, group: str, data: Federation) -> Method:
        """The method of a group, on data as a client holds them."""
        tables = self.groups.get(group, {"net": self.net, "method": self.method})
        net = net_of(Choice(**tables["net"]), data)
        found: Method = make("method", tables["method"], net=net)
        return found


def shape_of(config: Config) -> Federation:
    """What the server knows of the data: all of them where they are public, else their shape and no rows."""
    if config.data.name != REMOTE:
        return federation_of(config)
    told = config.data.options
    clients = config.data.clients or 1
    nobody = Rows(np.zeros(0, dtype=np.int64), np.zeros(clients + 1, dtype=np.int64))
    x = torch.zeros((2, *told["input_shape"]), dtype=torch.int64 if told["tokens"] else torch.float32)
    y = torch.zeros((2, *told["label_shape"]), dtype=torch.int64)
    return Federation(x, y, nobody, nobody, nobody, told["classes"])


def sides_at(folder: Path, terms: RunTerms) -> dict[int, tuple[ClientSide, str]]:
    """The clients that a machine holds, ready for a run; or why it cannot take part."""
    host = ClientHost.read(folder)
    if terms.version != __version__:
        raise Malformed("version-mismatch", f"the server has fedblocks {terms.version}, this client {__version__}")
    if terms.federation != host.federation:
        raise Malformed("wrong-federation", f'this client belongs to "{host.federation}"')
    if outside := [c for c in host.clients if not 0 <= c < terms.population]:
        raise Malformed("wrong-client", f"there is no client {outside[0]} among {terms.population}")
    data = _held(host, folder, terms)
    found = {client: _side(folder, terms, data, place, client) for place, client in enumerate(host.clients)}
    return {client: (replace(side, pictures=host.pictures), group) for client, (side, group) in found.items()}


def data_of(host: ClientHost, folder: Path) -> Federation:
    """The data of the clients of a machine, in their order, as its own configuration says."""
    table = {"rounds": 1, "data": host.data, "net": {"name": "mlp"}, "method": {"name": "fedavg"}}
    found = federation_of(Config.of(table, Source(str(folder / "client.toml"))))
    if found.clients == len(host.clients):
        return found
    if found.clients <= max(host.clients):
        message = f"the data are those of {found.clients} clients, and this machine holds {len(host.clients)}"
        raise DataError(message, "set data.clients to the number of clients here")
    return found.subset(list(host.clients))


def _held(host: ClientHost, folder: Path, terms: RunTerms) -> Federation:
    """The data of the clients here, if they fit the run."""
    found = data_of(host, folder)
    shape, labels = tuple(found.x.shape[1:]), found.y[found.y != IGNORE]
    if shape != terms.input_shape:
        raise Malformed("data-mismatch", f"inputs have shape {list(shape)}, the run is for {list(terms.input_shape)}")
    if len(labels) and int(labels.max()) >= terms.classes:
        raise Malformed("data-mismatch", f"label {int(labels.max())} is here, the run has {terms.classes} classes")
    tags = {**found.tags, **{name: np.full(found.clients, value) for name, value in host.tags.items()}}
    return replace(found.to(host.device), classes=terms.classes, tags=tags)


def _side(folder: Path, terms: RunTerms, data: Federation, place: int, client: int) -> tuple[ClientSide, str]:
    own = data.subset([place])
    group = terms.group(client, {name: int(tag[0]) for name, tag in own.tags.items()})
    try:
        method = terms.made(group, own)
        store = PersonalStore.of(folder / "state", terms.federation, terms.run, client)
        return ClientSide.of(method, own, client, terms.seed, terms.run, store), group
    except UserError as error:
        raise Malformed("data-mismatch", error.message) from error
