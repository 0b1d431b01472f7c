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
from fedblocks.config.choices import make
from fedblocks.config.model import ALL, Choice, Config
from fedblocks.config.registry import REMOTE
from fedblocks.config.sources import Source
from fedblocks.core.blocks import ServerOnly
from fedblocks.core.errors import DataError, UserError
from fedblocks.core.method import Method
from fedblocks.core.state import count_bytes
from fedblocks.data.federation import IGNORE, Federation, Rows
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.wire.messages import Malformed
from fedblocks.runs.build import net_of
from fedblocks.runs.federations import federation_of


class RunSpec(BaseModel):
    """One run, as clients need to know it; it names things that are installed and holds no code."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    federation: str
    run: str
    population: int = Field(ge=1)
    seed: int = Field(ge=0)
    threads: int | None = Field(default=None, ge=1)
    input_shape: tuple[int, ...]
    classes: int = Field(ge=1)
    net: dict[str, Any]
    method: dict[str, Any]
    groups: dict[str, dict[str, Any]] = {}

    @staticmethod
    def of(config: Config, data: Federation, federation: str, run: str) -> RunSpec:
        """The terms of a run that a configuration describes."""
        full = config.resolved()
        told = {name: full[name] for name in ("seed", "net", "method")}
        return RunSpec(
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

    def tables(self, group: str) -> dict[str, Any]:
        """Net and method of a group."""
        return self.groups.get(group, {"net": self.net, "method": self.method})

    def made(self, group: str, data: Federation) -> Method:
        """The method of a group, on data as a client holds them."""
        tables = self.tables(group)
        net = net_of(Choice(**tables["net"]), data)
        found: Method = make("method", tables["method"], net=net)
        return found

    def model_bytes(self, group: str) -> int:
        """All that a client of a group is sent or keeps; nothing of that size is made to find out."""
        tables = self.tables(group)
        with torch.device("meta"):
            net = make("net", tables["net"], input_shape=self.input_shape, classes=self.classes)
            layout = make("method", tables["method"], net=net).blocks().values()
            copies = [(getattr(b, "size", 1), b.part) for b in layout if not isinstance(b, ServerOnly)]
            return sum(size * count_bytes(part.init(0)) for size, part in copies if part is not None)


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


def sides_at(folder: Path, terms: RunSpec) -> dict[int, tuple[ClientSide, str]]:
    """The clients that a machine holds, ready for a run; or why it cannot take part."""
    host = ClientHost.read(folder)
    if terms.version != __version__:
        raise Malformed("version-mismatch", f"the server has fedblocks {terms.version}, this client {__version__}")
    if terms.federation != host.federation:
        raise Malformed("wrong-federation", f'this client belongs to "{host.federation}"')
    if outside := [c for c in host.clients if not 0 <= c < terms.population]:
        raise Malformed("wrong-client", f"there is no client {outside[0]} among {terms.population}")
    data = _held(host, folder, terms)
    groups = {c: terms.group(c, {n: int(tag[at]) for n, tag in data.tags.items()}) for at, c in enumerate(host.clients)}
    for group in {*groups.values()}:
        _permit(host.allow, terms, group)
    found = {c: _side(folder, terms, data.subset([at]), groups[c], c) for at, c in enumerate(host.clients)}
    return {c: (replace(side, sends=frozenset(host.allow.send)), groups[c]) for c, side in found.items()}


def _permit(allow: Allow, terms: RunSpec, group: str) -> None:
    """Refuse what the owner of this machine does not allow."""
    name = str(terms.tables(group)["method"]["name"])
    if not allow.runs(name):
        raise Malformed("not-allowed", f'the method "{name}" is not among those that this client allows')
    try:
        size = terms.model_bytes(group)
    except UserError as error:
        raise Malformed("data-mismatch", error.message) from error
    except Exception as error:  # a net of another package need not allow this
        raise Malformed("not-allowed", f"the size of the model cannot be found: {str(error)[:200]}") from error
    if size > allow.bytes:
        raise Malformed("not-allowed", f"a model of {size} bytes, and this client allows {allow.largest}")


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


def _held(host: ClientHost, folder: Path, terms: RunSpec) -> Federation:
    """The data of the clients here, if they fit the run."""
    found = data_of(host, folder)
    shape, labels = tuple(found.x.shape[1:]), found.y[found.y != IGNORE]
    if shape != terms.input_shape:
        raise Malformed("data-mismatch", f"inputs have shape {list(shape)}, the run is for {list(terms.input_shape)}")
    if len(labels) and int(labels.max()) >= terms.classes:
        raise Malformed("data-mismatch", f"label {int(labels.max())} is here, the run has {terms.classes} classes")
    own = {name: np.full(found.clients, value) for name, value in host.tags.items()}
    tags = {**found.tags, **own} if "tags" in host.allow.send else {}
    return replace(found.to(host.device), classes=terms.classes, tags=tags)


def _side(folder: Path, terms: RunSpec, own: Federation, group: str, client: int) -> ClientSide:
    try:
        method = terms.made(group, own)
        store = PersonalStore.of(folder / "state", terms.federation, terms.run, client)
        return ClientSide.of(method, own, client, terms.seed, terms.run, store)
    except UserError as error:
        raise Malformed("data-mismatch", error.message) from error
