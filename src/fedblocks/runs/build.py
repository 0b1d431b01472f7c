"""From a configuration to all that a run needs: data, nets, methods, engine; checked
before the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedblocks.config.choices import MEANT, make
from fedblocks.config.model import ALL, Config
from fedblocks.config.sections import Choice, GroupSection
from fedblocks.config.sources import Key
from fedblocks.core.blocks import Pool
from fedblocks.core.errors import DataError, UserError, nearest
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.data import Federation
from fedblocks.engines.auto.choose import choose
from fedblocks.engines.auto.trial import TrialPlan, planned
from fedblocks.engines.memory import bytes_of, chunk_for
from fedblocks.engines.net_check.check import check_before_run
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.processes.workers import cores
from fedblocks.engines.round import Engine, Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.federations import hold_out, placed
from fedblocks.runs.shelf import hash_of, known
from fedblocks.runs.storage.record import Note

# floating-point operations of a run, about half a minute: below, engines are not tried
WORTH_A_TRIAL = 2e11


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that could start."""

    config: Config
    setting: Experiment
    clients: list[int]  # that are trained on
    unseen: list[int]  # that never are
    cohort: int  # clients a round
    engine: Engine
    notes: list[Note]  # what a reader of the results should know

    @property
    def hash(self) -> str:
        """The SHA-256 of the data."""
        return hash_of(self.setting.data)


def prepare(config: Config, federation: Federation | None = None) -> Prepared:
    """Make everything that a configuration describes, or say what does not fit; data
    that are known are not read.
    """
    device, why_device = device_of(config)
    federation, placed_there = (
        (federation, federation.to(device)) if federation else known(config, device)
    )
    clients, unseen = hold_out(config, federation)
    setting = _setting(config, placed_there, unseen)
    checks = _check_nets(config, setting)
    with placed(config, ("method",)):
        setting.start()  # blocks that cannot be shared show here
    cohort = _cohort(config, len(clients))
    engine, why_engine = engine_of(config, setting, cohort, device, clients)
    notes = [
        Note(f"device {device.type}: {why_device}"),
        Note(f"engine {engine.name}: {why_engine}"),
    ]
    notes += _large_batches(setting)
    remarks = [
        text for method in setting.methods.values() for text in method.remarks(_tags(federation))
    ]
    spare = [
        text for method in setting.methods.values() for text in _spare_slots(method, len(clients))
    ]
    notes += [Note(text, "warning") for text in (*federation.warnings(), *remarks, *spare, *checks)]
    return Prepared(config, setting, clients, unseen, cohort, engine, notes)


def _check_nets(config: Config, setting: Experiment) -> list[str]:
    """Refuse a user's module that would not train as in plain PyTorch; what a reader
    should know of the others.
    """
    warnings = []
    for group, method in setting.methods.items():
        with placed(config, ("net",) if group == ALL else ("groups", group, "net")):
            warnings.append(
                check_before_run(method.net, setting.data.x, config.engine == "vectorised")
            )
    return [text for text in warnings if text]


def _spare_slots(method: Method, clients: int) -> list[str]:
    """More components, clusters or branches than clients: allowed, but hardly meant."""
    pools = {name: block.size for name, block in method.blocks().items() if isinstance(block, Pool)}
    crowded = [
        f'block "{n}" has {size} slots for {clients} clients'
        for n, size in pools.items()
        if size > clients
    ]
    return [f"{text}; some may never be used" for text in crowded[:1]]


def _tags(federation: Federation) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in federation.tags.items()}


def device_of(config: Config) -> tuple[torch.device, str]:
    """The device, and why this one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if config.device == "auto":
        return torch.device(
            "cuda" if count else "cpu"
        ), "a GPU is there" if count else "torch finds no GPU"
    device = torch.device(config.device)
    if device.type == "cuda" and count <= (device.index or 0):
        with placed(config, ("device",)):
            if not count:
                raise UserError(
                    "torch finds no GPU",
                    'use device = "auto" or "cpu", or install a CUDA build of torch',
                )
            raise UserError(
                f"there is no {device}: torch finds {count} of them",
                f"use at most cuda:{count - 1}",
            )
    if device.index is not None:
        torch.cuda.set_device(device)  # kernels and recorded graphs start on the current device
    return device, "as configured" if device.index is None else f"as configured, {device}"


def engine_of(
    config: Config, setting: Experiment, cohort: int, device: torch.device, clients: Sequence[int]
) -> tuple[Engine, str]:
    """The engine, and why this one."""
    chunk, processes = _chunk(config, setting), config.processes or config.threads or cores()
    if config.engine == "sequential":
        return Sequential(), "as configured"
    if config.engine == "vectorised":
        return Vectorised(chunk=chunk), "as configured"
    if config.engine == "processes":
        return Processes(count=processes), f"as configured, {processes} of them"
    largest = max((method.net for method in setting.methods.values()), key=Net.size)
    if device.type != "cpu" or _is_short(config, setting, cohort):
        return choose(largest, device, cohort // len(setting.methods), chunk)
    return planned(
        TrialPlan(
            setting, clients, cohort, chunk, processes, config.threads or torch.get_num_threads()
        )
    )


def _is_short(config: Config, setting: Experiment, cohort: int) -> bool:
    """Whether a run takes seconds, so that trying engines would not pay."""
    method = max(setting.methods.values(), key=lambda method: Net.size(method.net))
    epochs = sum(phase.epochs for phase in method.phases())
    examples = config.rounds * cohort * epochs * float(setting.data.train.sizes.mean())
    return 6 * examples * Net.size(method.net) < WORTH_A_TRIAL


def _chunk(config: Config, setting: Experiment) -> int:
    """Clients that are trained at once: as configured, or as many as the memory allows."""
    if config.memory is None:
        return config.chunk
    with placed(config, ("memory",)):
        memory = bytes_of(config.memory)
        return min(
            chunk_for(memory, config.chunk, method, setting.data.x)
            for method in setting.methods.values()
        )


def net_of(choice: Choice, federation: Federation) -> Net:
    """A net that fits the federation; tried on two examples."""
    shape = tuple(federation.x.shape[1:])
    return _try_net(
        make("net", choice.table, input_shape=shape, classes=federation.classes),
        choice.name,
        federation,
    )


def _try_net(net: Net, name: str, federation: Federation) -> Net:
    """The net, if it turns examples into as many logits as there are classes."""
    shape = tuple(federation.x.shape[1:])
    wanted = [2, *federation.y.shape[1:], federation.classes]
    inputs = f"inputs of shape {list(shape)} ({str(federation.x.dtype).removeprefix('torch.')})"
    try:
        logits_shape = list(net(net.init(0), federation.x[:2].expand(2, *shape).cpu()).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        message = f'net "{name}" cannot take {inputs}: {reason}'
        raise UserError(message, "choose a net for such inputs") from error
    if logits_shape != wanted:
        message = (
            f'net "{name}" turns two {inputs} into {logits_shape}; {federation.classes} '
            f"classes need {wanted}"
        )
        raise UserError(
            message,
            "give the net as many outputs as there are classes, for every label of an example",
        )
    return net


def _setting(config: Config, federation: Federation, unseen: Sequence[int]) -> Experiment:
    groups = [ALL] * federation.clients
    for name, group in config.groups.items():
        for client in _members(config, name, group, federation):
            groups[client] = name
    tables = {ALL: (config.net, config.method)} | {
        name: (g.net, g.method) for name, g in config.groups.items()
    }
    used = {name: tables[name] for name in dict.fromkeys(groups)}
    methods = {name: _method(config, name, *choices, federation) for name, choices in used.items()}
    return Experiment(
        methods, federation, config.seed, groups if config.groups else (), unseen=unseen
    )


def _method(
    config: Config, group: str, net: Choice, method: Choice, federation: Federation
) -> Method:
    above: Key = () if group == ALL else ("groups", group)
    with placed(config, (*above, "net")):
        handed_over = _method_of_objects(config, group, federation)
        own_net = net_of(net, federation) if handed_over is None else handed_over.net
    with placed(config, (*above, "method")):
        complete: Method = handed_over or make("method", method.table, net=own_net)
        _check_degenerate(complete, config.allow_degenerate)
        _check_tags(method.name, complete, federation)
    return complete


def _method_of_objects(config: Config, group: str, federation: Federation) -> Method | None:
    """The method that was handed over for a group, with its net tried."""
    if config.ingredients is None:
        return None
    method = config.ingredients.method_of(group)
    _try_net(method.net, type(method.net.template).__name__, federation)
    return method


def _check_degenerate(method: Method, allowed: bool) -> None:
    """Refuse settings that make this another method with the net that it has."""
    said = [] if allowed else method.degenerate()
    if said:
        raise UserError(said[0], MEANT)


def _check_tags(name: str, method: Method, federation: Federation) -> None:
    for tag in method.tags:
        if tag not in federation.tags:
            message = f'"{name}" needs the tag "{tag}" of every client, which the data do not have'
            raise DataError(message, "choose a shift or a data set that gives it")


def _members(config: Config, name: str, group: GroupSection, federation: Federation) -> list[int]:
    """The clients of a group."""
    if group.tag is None:
        outside = [c for c in group.clients if not 0 <= c < federation.clients]
        if outside:
            with placed(config, ("groups", name, "clients")):
                raise UserError(
                    f"there is no client {outside[0]}", f"choose from 0..{federation.clients - 1}"
                )
        return list(group.clients)
    if group.tag not in federation.tags:
        with placed(config, ("groups", name, "tag")):
            raise UserError(
                f'the data have no tag "{group.tag}"', nearest(group.tag, federation.tags)
            )
    members: list[int] = np.flatnonzero(federation.tags[group.tag] == group.value).tolist()
    if not members:
        values = ", ".join(str(value) for value in np.unique(federation.tags[group.tag])[:20])
        with placed(config, ("groups", name, "value")):
            raise UserError(f"no client has {group.tag} = {group.value}", f"choose from {values}")
    return members


def _large_batches(setting: Experiment) -> list[Note]:
    """A note where no client has rows for one batch: each then trains on all its rows at once."""
    # 0: the clients of a real federation hold their rows
    largest = int(setting.data.train.sizes.max())
    smallest = min(method.batch_size for method in setting.methods.values())
    if not 0 < largest < smallest:
        return []
    text = f"batch_size = {smallest}, but no client has more than {largest} training rows"
    return [Note(f"{text}: each client trains on all its rows at once")]


def _cohort(config: Config, clients: int) -> int:
    size = config.cohort.size
    if isinstance(size, float):
        return max(1, round(size * clients))
    if size > clients:
        with placed(config, ("cohort", "size")):
            raise UserError(
                f"{size} clients a round, but there are {clients} to train on",
                f"use at most {clients}",
            )
    return size
