"""The clients of a machine, made ready for a run: their data, their method and their
disk, if the owner allows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from fedblocks import __version__
from fedblocks.config.choices import options
from fedblocks.config.model import Config
from fedblocks.config.registry import kinds
from fedblocks.config.sources import Source
from fedblocks.core.errors import DataError, UserError, count_of
from fedblocks.core.introspection import Option
from fedblocks.core.option_types import members
from fedblocks.core.task import Task
from fedblocks.data.federation import IGNORE, Federation
from fedblocks.data.targets import refuse_partly_known
from fedblocks.engines.devices import find_device
from fedblocks.flower.client.data_paths import start_paths_at
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.wire.messages import Malformed
from fedblocks.flower.wire.run_spec import RunSpec
from fedblocks.runs.federations import federation_of

# words for something on a disk
ON_DISK = {"file", "files", "folder", "directory", "dir", "path", "filename"}
# in the name of an option whose value is text
NAMES_OF_FILES = {*ON_DISK, "weights", "checkpoint", "pretrained"}


def sides_at(folder: Path, spec: RunSpec) -> dict[int, tuple[ClientSide, str]]:
    """Return the clients of a machine, each with its group; raise Malformed if they
    cannot take part in the run.
    """
    host = ClientHost.read(folder)
    if spec.version != __version__:
        raise Malformed(
            "version-mismatch",
            f"the server has fedblocks {spec.version}, this client {__version__}",
        )
    if spec.federation != host.federation:
        raise Malformed("wrong-federation", f'this client belongs to "{host.federation}"')
    if outside := [c for c in host.clients if not 0 <= c < spec.population]:
        raise Malformed("wrong-client", f"there is no client {outside[0]} among {spec.population}")
    if excess := spec.excess():
        raise Malformed("not-allowed", excess)
    data = _fitting_data(host, folder, spec)
    groups = {
        c: spec.group(c, {n: int(tag[at]) for n, tag in data.tags.items()})
        for at, c in enumerate(host.clients)
    }
    for group in {*groups.values()}:
        _permit(host.allow, spec, group)
    sends = frozenset(host.allow.send)
    sides: dict[int, tuple[ClientSide, str]] = {}
    for at, client in enumerate(host.clients):
        side = _side(folder, spec, data.subset([at]), groups[client], client)
        sides[client] = replace(side, sends=sends), groups[client]
    return sides


def _permit(allow: Allow, spec: RunSpec, group: str) -> None:
    """Refuse what the owner of this machine does not allow."""
    name = str(spec.tables(group)["method"]["name"])
    if not allow.runs(name):
        raise Malformed(
            "not-allowed", f'the method "{name}" is not among those that this client allows'
        )
    for kind in ("net", "method"):
        _refuse_files(kind, spec.tables(group)[kind])
    try:
        size = spec.model_bytes(group)
    except UserError as error:
        raise Malformed("data-mismatch", excuse_for(error)) from error
    except Exception as error:  # a net of another package need not allow this
        raise Malformed(
            "not-allowed", f"the size of the model cannot be found: {excuse_for(error)}"
        ) from error
    if size > allow.bytes:
        raise Malformed(
            "not-allowed", f"a model of {size} bytes, and this client allows {allow.largest}"
        )


def _refuse_files(kind: str, table: Mapping[str, Any]) -> None:
    """Refuse options that name files: which files of this machine are opened is not for
    a server to say.
    """
    name = str(table["name"])
    if name not in kinds()[kind]:
        raise Malformed("not-allowed", f'the {kind} "{name[:80]}" is not installed on this client')
    for option in options(kind, name).values():
        if isinstance(table.get(option.name), str) and _names_a_file(option):
            raise Malformed(
                "not-allowed",
                f"{kind}.{option.name} names a file, and this client opens none for a server",
            )


def _names_a_file(option: Option) -> bool:
    """Whether the value of an option is, by its type, name or description, something on a disk."""
    kinds_of_value = [kind for kind in members(option.kind) if isinstance(kind, type)]
    typed = any(issubclass(kind, PurePath) for kind in kinds_of_value)
    described = {*re.findall("[a-z]+", option.about.lower())} & ON_DISK
    return typed or bool(described) or not NAMES_OF_FILES.isdisjoint(option.name.lower().split("_"))


def data_of(host: ClientHost, folder: Path, task: Mapping[str, Any] | None = None) -> Federation:
    """Read the data of a machine's clients, in their order, as `client.toml` says, for a task."""
    own = start_paths_at(folder, host.data)
    table = {"rounds": 1, "data": own, "net": {"name": "mlp"}, "method": {"name": "fedavg"}}
    chosen = dict(task or host.task)
    table |= {"task": chosen} if chosen else {}
    federation = federation_of(Config.of(table, Source(str(folder / "client.toml"))))
    if federation.clients == len(host.clients):
        return federation
    if federation.clients <= max(host.clients):
        here = f"this machine holds {len(host.clients)}"
        message = f"the data are those of {count_of(federation.clients, 'client')}, and {here}"
        raise DataError(message, "set data.clients to the number of clients here")
    return federation.subset(list(host.clients))


def _fitting_data(host: ClientHost, folder: Path, spec: RunSpec) -> Federation:
    """Read the data of the clients here, and refuse those that do not fit the run."""
    data = data_of(host, folder, spec.task)
    shape = tuple(data.x.shape[1:])
    kinds_of_targets = {Task(**table).kind for table in (host.task, spec.task) if table}
    if len(kinds_of_targets) > 1:
        what = f"the targets here are of {Task(**host.task).kind}, the run is {data.task.kind}"
        raise Malformed("data-mismatch", what)
    if shape != spec.input_shape:
        raise Malformed(
            "data-mismatch",
            f"inputs have shape {list(shape)}, the run is for {list(spec.input_shape)}",
        )
    if data.task.of_classes:
        labels = data.y[data.y != IGNORE]
        if len(labels) and int(labels.max()) >= spec.classes:
            what = f"label {int(labels.max())} is here, the run has {spec.classes} classes"
            raise Malformed("data-mismatch", what)
    elif data.classes != spec.classes:
        what = f"{data.classes} targets an example are here, the run has {spec.classes}"
        raise Malformed("data-mismatch", what)
    own = {name: np.full(data.clients, value) for name, value in host.tags.items()}
    tags = {**data.tags, **own} if "tags" in host.allow.send else {}
    return replace(data.to(find_device(host.device)), classes=spec.classes, tags=tags)


def _side(folder: Path, spec: RunSpec, own: Federation, group: str, client: int) -> ClientSide:
    try:
        refuse_partly_known(own)
        method = spec.method_for(group, own)
        store = PersonalStore.of(folder / "state", spec.federation, spec.run, client)
        return ClientSide.of(method, own, client, spec.seed, spec.run, store)
    except UserError as error:
        raise Malformed("data-mismatch", excuse_for(error)) from error
