"""Check 8: what travels, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedblocks.core.blocks import Federated, Generated, Mixture, PerClient, Pool, Read, Selection
from fedblocks.core.method import Method
from fedblocks.core.parts import is_statistic
from fedblocks.core.server import own_server
from fedblocks.core.state import State
from fedblocks.testing.example import Example
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.rounds import ENGINES, Sendings, trained_groups
from fedblocks.testing.usual import usual_run

Bytes = dict[str, dict[int, int]]  # block -> client -> bytes

WEIGHT = 8  # bytes of one weight on the wire


def planned_bytes(example: Example) -> list[LearningProblem]:
    """Only the plan's blocks travel, and the bytes both ways are those of the plan and
    the weights.
    """
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        experiment, done = example.experiment(), usual_run(example, engine)
        for state, report, clients in zip(done.states, done.reports, example.cohorts()):
            groups = trained_groups(experiment, state, clients, engine).values()
            where = f"round {state.round}, {engine.name}"
            down = _join(_down(group, state) for group in groups)
            up = _join(_up(group, state) for group in groups)
            failures += problems(_unequal(report.bytes_down, down), f"bytes down, {where}")
            failures += problems(_unequal(report.bytes_up, up), f"bytes up, {where}")
    return failures


def _join(groups: Iterable[Bytes]) -> Bytes:
    """The bytes of all groups: several may have a block of one name."""
    whole: Bytes = {}
    for group in groups:
        for name, by_client in group.items():
            whole.setdefault(name, {}).update(by_client)
    return whole


def _unequal(
    seen: Mapping[str, Mapping[int, int]], planned: Mapping[str, Mapping[int, int]]
) -> list[str]:
    unplanned, absent = seen.keys() - planned.keys(), planned.keys() - seen.keys()
    sentences = [f'block "{name}" travels and is not in the plan' for name in unplanned]
    sentences += [f'block "{name}" should travel and does not' for name in absent]
    for name in seen.keys() & planned.keys():
        for client in seen[name].keys() | planned[name].keys():
            have, want = seen[name].get(client), planned[name].get(client)
            if have != want:
                why = f"{have} bytes, the plan says {want}"
                sentences.append(f'block "{name}", client {client}: {why}')
    return sentences


def _down(group: Sendings, state: State) -> Bytes:
    """Bytes to each client, from the homes of the blocks and what the method says it reads."""
    job, method = group.job, group.job.method
    reads = method.reads(own_server(method.blocks(), state.server), job.cohort)
    expected = {}
    for name, block in _federated(method):
        read = reads.get(name)
        if isinstance(block, Pool) and block.on_request:
            copies = [int(row.count_nonzero()) for row in group.trained.wanted[name]]
        else:
            copies = [_copies_seen(block, read)] * len(job.ids)
        one = _made_bytes(read) if isinstance(read, Generated) else _slot_bytes(method, block)
        expected[name] = {client: many * one for client, many in zip(job.ids, copies, strict=True)}
    return expected


def _copies_seen(block: Federated, read: Read | None) -> int:
    if isinstance(read, Selection):
        return read.slots.shape[1] if read.slots.dim() == 2 else 1
    return block.size if isinstance(block, Pool) and read is None else 1


def _made_bytes(read: Generated) -> int:
    return sum(v[0].numel() * v.element_size() for v in read.values.values())


def _slot_bytes(method: Method, block: Federated) -> int:
    one = block.part.init(0)
    if method.statistics == "local":
        one = {k: v for k, v in one.items() if not is_statistic(k)}
    return sum(v.numel() * v.element_size() for v in one.values())


def _up(group: Sendings, state: State) -> Bytes:
    """Bytes from each client: a copy for each slot with a weight (one if all are the
    same), and the weights.
    """
    job, method = group.job, group.job.method
    reads = method.reads(own_server(method.blocks(), state.server), job.cohort)
    expected = {}
    for name, block in _federated(method):
        read = reads.get(name)
        weights = _weights(block, name, read, group)  # [clients, slots]
        several = read is None or (isinstance(read, Selection) and read.slots.dim() == 2)
        apart = several and isinstance(block, Pool) and block.of is None
        copies = [int(row.count_nonzero()) if apart else int(row.any()) for row in weights]
        row_bytes = weights.shape[1] * WEIGHT
        one = _slot_bytes(method, block)
        expected[name] = {
            client: many * one + row_bytes for client, many in zip(job.ids, copies, strict=True)
        }
    return expected


def _weights(block: Federated, name: str, read: Read | None, group: Sendings) -> Tensor:
    """[clients, slots]: what the method said; else one for everything a client with
    data has read.
    """
    chosen_by_method = group.trained.weights.get(name)
    wanted = group.trained.wanted.get(name)
    clients = len(group.job.ids)
    if chosen_by_method is not None:
        return chosen_by_method.reshape(clients, -1)
    has_data = (group.job.cohort.sizes > 0)[:, None].double()
    if isinstance(block, PerClient):
        return has_data
    if wanted is not None:
        return has_data * (wanted != 0)
    if isinstance(read, Mixture):
        return has_data * (read.weights != 0)
    if isinstance(read, Selection):
        chosen = torch.zeros(clients, block.size, dtype=torch.double)
        for client, slots in enumerate(read.slots.view(clients, -1).tolist()):
            chosen[client, slots] = 1
        return has_data * chosen
    return has_data.expand(clients, block.size)


def _federated(method: Method) -> list[tuple[str, Federated]]:
    return [
        (name, block) for name, block in method.blocks().items() if isinstance(block, Federated)
    ]
