"""From a configuration to a rank's part of a run; all ranks must have read and made the same."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import fedblocks.core
from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.engines.round import Engine
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import Prepared, look_over
from fedblocks.runs.clients import clients_text
from fedblocks.runs.engine_choice import device_of, engine_of
from fedblocks.runs.experiment import experiment_of
from fedblocks.runs.federations import federation_of, hold_out, placed
from fedblocks.runs.patience import check_stopping
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.ranks.joining import local_number, local_ranks
from fedblocks.runs.ranks.ownership import owners_of, part_of
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.rounds import RankRun
from fedblocks.runs.sampling import sampling_of
from fedblocks.runs.shelf import remember_hash
from fedblocks.runs.storage.code_record import entries_of
from fedblocks.runs.storage.record import Note


def prepare_part(ranks: Ranks, config: Config) -> RankRun:
    """This rank's part of a run, or what does not fit, at all ranks."""
    check_alike(ranks, config)
    run = ranks.together(lambda: _read_part(ranks, config))
    _give_back_memory()
    hashes = ranks.share(run.prepared.hash)
    ranks.together(lambda: _refuse_other_data(hashes))
    engine, reason = _choose_engine(ranks, run.prepared)
    note = Note(f"engine {engine.name}: {reason}")
    notes = [run.prepared.notes[0], note, *run.prepared.notes[1:]]
    return replace(run, prepared=replace(run.prepared, engine=engine, notes=notes))


def check_alike(ranks: Ranks, config: Config) -> None:
    """Refuse ranks that were given another configuration, or that run other code."""
    table = json.loads(json.dumps(config.resolved(), default=str))
    own = {"config": table, "code": _code(), "own code": ranks.together(lambda: _own_code(config))}
    said = ranks.share(own)
    ranks.together(lambda: _refuse_others(said))


def _refuse_others(said: list[Any]) -> None:
    for number, other in enumerate(said):
        _refuse_other(number, said[0], other)


def _refuse_other(number: int, first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    if other["code"] != first["code"]:
        pairs = {name: (first["code"][name], text) for name, text in other["code"].items()}
        name = next(name for name, (here, there) in pairs.items() if here != there)
        here, there = pairs[name]
        raise UserError(
            f"rank {number} has another {name} than rank 0: {there}, not {here}",
            "install the same version of everything on all machines",
        )
    differ = _difference(first["config"], other["config"])
    if differ is not None:
        raise UserError(
            f"rank {number} has another configuration than rank 0: {differ}",
            "start all ranks with the same command and the same files",
        )
    if other["own code"] != first["own code"]:
        raise UserError(
            f"rank {number} has other code of yours than rank 0: {_what(first, other)}",
            "copy the same files to all machines",
        )


def _what(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    pairs = zip(first["own code"], other["own code"], strict=False)
    return next((str(here.get("defines")) for here, there in pairs if here != there), "its files")


def _difference(first: Any, other: Any, path: str = "") -> str | None:
    """The first place where two configurations differ."""
    if isinstance(first, dict) and isinstance(other, dict):
        for name in dict.fromkeys([*first, *other]):
            below = f"{path}.{name}" if path else name
            difference = _difference(first.get(name), other.get(name), below)
            if difference is not None:
                return difference
        return None
    return None if first == other else f"{path} is {other!r}, not {first!r}"


@cache
def _code() -> dict[str, str]:
    """Versions, and a hash over the sources of this package."""
    root = Path(fedblocks.core.__file__ or "").parents[1]
    digest = sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    versions = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {**versions, "fedblocks": digest.hexdigest()[:16]}


def _own_code(config: Config) -> list[dict[str, str]]:
    kept = ("defines", "sha256", "package")
    entries = entries_of(config.resolved())
    return [{k: v for k, v in entry.items() if k in kept} for entry in entries]


def _refuse_other_data(hashes: list[str]) -> None:
    for number, other in enumerate(hashes):
        if other != hashes[0]:
            raise UserError(
                f"rank {number} has other data than rank 0", "copy the same data to all machines"
            )


def _read_part(ranks: Ranks, config: Config) -> RankRun:
    device, why = _device(config)
    federation = federation_of(config)
    clients, unseen = hold_out(config, federation)
    check_stopping(config, federation)
    sizes = federation.train.sizes
    owners = owners_of(sizes, unseen, ranks.count)
    part = part_of(federation, owners == ranks.number).to(device)
    remember_hash(part, federation)
    whole = experiment_of(config, part, unseen)
    experiment = RankExperiment.part_of(whole, sizes, owners, ranks.number)
    cohort, notes = look_over(config, experiment, federation, len(clients))
    notes = [Note(f"device {device.type}: {why}, {ranks.count} ranks"), *notes]
    sampling = sampling_of(config, federation, clients, cohort)
    prepared = Prepared(config, experiment, clients, unseen, cohort, Sequential(), notes, sampling)
    return RankRun(ranks, prepared, experiment, clients_text(federation))


def _give_back_memory() -> None:
    """Memory of the data of other ranks, which is free now, to the system."""
    with suppress(AttributeError, OSError):  # only glibc has this
        ctypes.CDLL(None).malloc_trim(0)


def _device(config: Config) -> tuple[torch.device, str]:
    """The GPU with the number of this rank on its machine, or the CPU."""
    device, why = device_of(config)
    if device.type != "cuda":
        return device, why
    if device.index is not None:
        with placed(config, ("device",)):
            message = f"{device} is one GPU, and this is one of several ranks"
            raise UserError(message, 'use device = "cuda": each rank has a GPU of its own')
    count = torch.cuda.device_count()
    device = torch.device("cuda", local_number() % count)
    torch.cuda.set_device(device)
    shared = local_ranks() > count
    return device, f"{why}; {local_ranks()} ranks share {count}" if shared else why


def _choose_engine(ranks: Ranks, prepared: Prepared) -> tuple[Engine, str]:
    """The engine that the first rank chooses for all: as configured, or by its own trial."""
    config, experiment = prepared.config, prepared.experiment
    device = experiment.data.device
    ends: list[Engine] = []

    def at_first() -> Any:
        if config.engine == "processes":
            with placed(config, ("engine",)):
                message = "ranks are processes already, each with an engine of its own"
                raise UserError(message, 'use engine = "auto", "sequential" or "vectorised"')
        alone = config.model_copy(update={"processes": 1})
        cohort = -(-prepared.cohort // ranks.count)
        engine, reason = engine_of(alone, experiment, cohort, device, prepared.clients)
        ends.append(engine)
        return [engine.name, engine.chunk if isinstance(engine, Vectorised) else 0, reason]

    name, chunk, reason = ranks.lead(at_first, lambda message: None)
    if ends:
        return ends[0], reason
    return Vectorised(chunk=chunk) if name == "vectorised" else Sequential(), reason
