"""Checks 8, 11 and 12: what travels, with what weight, and what it does to the server's slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedblocks.core.aggregate import aggregate
from fedblocks.core.blocks import Federated, Generated, Mixture, PerClient, Pool, Read, Selection
from fedblocks.core.method import Method
from fedblocks.core.parts import is_statistic
from fedblocks.core.reduction import reduce_slots
from fedblocks.core.rules import Average
from fedblocks.core.server import own_server
from fedblocks.core.state import State
from fedblocks.core.uploads import Upload
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.example import Example
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.rounds import ENGINES, Sendings, run, trained_groups

WEIGHT = 8  # bytes of one weight on the wire


def planned_bytes(example: Example) -> list[LearningProblem]:
    """Only the plan's blocks travel, and the bytes both ways are those of the plan and
    the weights.
    """
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        setting = example.setting()
        state = setting.start()
        for clients in example.cohorts():
            groups = trained_groups(setting, state, clients, engine)
            after, report = run_round(setting, state, clients, engine)
            for way, seen, planned in (
                ("down", report.bytes_down, _down),
                ("up", report.bytes_up, _up),
            ):
                expected: dict[str, dict[int, int]] = {}
                for group in groups.values():
                    for name, by_client in planned(group, state).items():
                        expected.setdefault(name, {}).update(by_client)
                failures += problems(
                    _unequal(seen, expected), f"bytes {way}, round {state.round}, {engine.name}"
                )
            state = after
    return failures


def _unequal(
    seen: Mapping[str, Mapping[int, int]], planned: Mapping[str, Mapping[int, int]]
) -> list[str]:
    sentences = [
        f'block "{name}" travels and is not in the plan' for name in seen.keys() - planned.keys()
    ]
    sentences += [
        f'block "{name}" should travel and does not' for name in planned.keys() - seen.keys()
    ]
    for name in seen.keys() & planned.keys():
        for client in seen[name].keys() | planned[name].keys():
            have, want = seen[name].get(client), planned[name].get(client)
            if have != want:
                sentences.append(
                    f'block "{name}", client {client}: {have} bytes, the plan says {want}'
                )
    return sentences


def _down(group: Sendings, state: State) -> dict[str, dict[int, int]]:
    """Bytes to each client, from the homes of the blocks and what the method says it reads."""
    job, method = group.job, group.job.method
    reads = method.reads(own_server(method.blocks(), state.server), job.cohort)
    expected = {}
    for name, block in _federated(method):
        if isinstance(block, Pool) and block.on_request:
            copies = [int(row.count_nonzero()) for row in group.trained.wanted[name]]
        else:
            copies = [_copies_seen(block, reads.get(name))] * len(job.ids)
        one = (
            _made_bytes(read)
            if isinstance(read := reads.get(name), Generated)
            else _slot_bytes(method, block)
        )
        expected[name] = {client: many * one for client, many in zip(job.ids, copies, strict=True)}
    return expected


def _copies_seen(block: Federated, read: Read | None) -> int:
    if isinstance(read, Selection):
        return read.slots.shape[1] if read.slots.dim() == 2 else 1
    return block.size if isinstance(block, Pool) and read is None else 1


def _made_bytes(read: Generated) -> int:
    return sum(v[0].numel() * v.element_size() for v in read.values.values())


def _slot_bytes(method: Method, block: Federated) -> int:
    sent = {
        k: v
        for k, v in block.part.init(0).items()
        if method.statistics != "local" or not is_statistic(k)
    }
    return sum(v.numel() * v.element_size() for v in sent.values())


def _up(group: Sendings, state: State) -> dict[str, dict[int, int]]:
    """Bytes from each client: a copy for each slot with a weight (one if all are the
    same), and the weights.
    """
    job, method = group.job, group.job.method
    reads = method.reads(own_server(method.blocks(), state.server), job.cohort)
    expected = {}
    for name, block in _federated(method):
        weights = _weights(block, name, reads.get(name), group)  # [clients, slots]
        read = reads.get(name)
        apart = (
            isinstance(block, Pool)
            and block.of is None
            and not isinstance(read, Mixture | Generated)
        )
        apart = apart and (read is None or (isinstance(read, Selection) and read.slots.dim() == 2))
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
    chosen_by_method, wanted = group.trained.weights.get(name), group.trained.wanted.get(name)
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


def unwritten_slots(example: Example) -> list[LearningProblem]:
    """A slot whose weights are all 0 keeps its value and its rule's memory, and
    disturbs no other.
    """
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        setting = example.setting()
        state = run(setting, engine, [example.everybody]).last
        groups = trained_groups(setting, state, example.cohorts()[-1], engine)
        base = _aggregate(setting, state, groups, {})
        for name in sorted(
            {upload.name for sent in groups.values() for upload in sent.uploads.values()}
        ):
            slots = range(len(next(iter(state.server[name].values()))))
            moved = any(_row_changed(base, state, name, slot) for slot in slots)
            failures += (
                []
                if moved
                else [LearningProblem(f'no slot of "{name}" is ever written, {engine.name}', name)]
            )
            for slot in slots:
                after = _aggregate(setting, state, groups, {name: slot})
                sentences = ["it changed"] if _row_changed(after, state, name, slot) else []
                if not any(_concludes(method) for method in setting.methods.values()):
                    sentences += [f"also {text}" for text in _disturbed(after, base, name, slot)]
                failures += problems(
                    sentences, f'slot {slot} of "{name}", which nobody writes, {engine.name}', name
                )
    return failures


def _concludes(method: Method) -> bool:
    """Whether a method does more on the server than averaging."""
    return type(method).conclude is not Method.conclude


def _aggregate(
    setting: Experiment, state: State, groups: Mapping[str, Sendings], silent: Mapping[str, int]
) -> State:
    """The server's half of a round in which nobody writes some slots."""
    uploads = {
        group: {
            name: _silence(upload, silent.get(upload.name)) for name, upload in sent.uploads.items()
        }
        for group, sent in groups.items()
    }
    return aggregate(
        setting.methods, state, uploads, {group: sent.job.cohort for group, sent in groups.items()}
    )


def _silence(upload: Upload, slot: int | None) -> Upload:
    if slot is None:
        return upload
    weights = upload.weights.clone()
    if upload.own:
        weights[upload.ids == slot] = 0
    else:
        weights[:, slot] = 0
    return replace(upload, weights=weights)


def _row(state: State, name: str, slot: int) -> dict[str, Tensor]:
    rows = {f"{k}": v[slot] for k, v in state.server[name].items()}
    memory = state.memory.get(name, {}).items()
    return rows | {
        f"memory {block}.{k}": v[slot] for block, params in memory for k, v in params.items()
    }


def _row_changed(after: State, before: State, name: str, slot: int) -> bool:
    return bool(differences(_row(after, name, slot), _row(before, name, slot)))


def _disturbed(after: State, base: State, name: str, slot: int) -> list[str]:
    """What else differs from the round in which the slot was written."""

    def rest(state: State) -> State:
        slots = {k: torch.cat([v[:slot], v[slot + 1 :]]) for k, v in state.server[name].items()}
        return replace(state, server={**state.server, name: slots}, memory={})

    return differences(state_leaves(rest(after)), state_leaves(rest(base)))


def weights(example: Example) -> list[LearningProblem]:
    """Weights are finite and not negative, and every written slot is the weighted mean
    of its uploads.
    """
    failures: list[LearningProblem] = []
    for engine in ENGINES:
        setting = example.setting()
        state = setting.start()
        for clients in example.cohorts():
            groups = trained_groups(setting, state, clients, engine)
            for group in groups.values():
                for name, upload in group.uploads.items():
                    sentences = _wrong_weights(upload, state)
                    failures += problems(
                        sentences, f'block "{name}", round {state.round}, {engine.name}', name
                    )
            failures += _wrong_means(setting, state, clients, groups, engine)
            state = run_round(setting, state, clients, engine)[0]
    return failures


def _wrong_weights(upload: Upload, state: State) -> list[str]:
    sentences = [] if torch.isfinite(upload.weights).all() else ["a weight is not finite"]
    sentences += (
        [f"a weight is {upload.weights.min().item():.3g}"] if (upload.weights < 0).any() else []
    )
    ones = replace(upload, copies={k: torch.ones_like(v) for k, v in upload.copies.items()})
    zeros = {k: torch.zeros_like(v) for k, v in state.server[upload.name].items()}
    sums, written = reduce_slots(zeros, ones)
    for key in upload.copies:
        off = (sums[key][written] - 1).abs()
        sentences += (
            [f"shares sum to 1 {off.max().item():+.2g}"] if off.numel() and off.max() > 1e-6 else []
        )
        sentences += ["an unwritten slot was given something"] if sums[key][~written].any() else []
    return sentences


def _wrong_means(
    setting: Experiment,
    state: State,
    clients: list[int],
    groups: Mapping[str, Sendings],
    engine: Engine,
) -> list[LearningProblem]:
    """Plain averages, computed slot by slot and client by client, against what a round
    makes of them.
    """
    names = [upload.name for sent in groups.values() for upload in sent.uploads.values()]
    after = run_round(setting, state, clients, engine)[0]
    failures: list[LearningProblem] = []
    for group, sent in groups.items():
        for name, upload in sent.uploads.items():
            plain = (
                isinstance(upload.rule, Average)
                and not upload.own
                and names.count(upload.name) == 1
            )
            if plain and not _concludes(setting.methods[group]):
                expected = {
                    k: _mean(v, upload, state.server[upload.name][k])
                    for k, v in upload.copies.items()
                }
                seen = {k: after.server[upload.name][k].double() for k in expected}
                sentences = differences(seen, expected, 1e-6)
                failures += problems(
                    sentences, f'mean of block "{name}", round {state.round}, {engine.name}', name
                )
    return failures


def _mean(copies: Tensor, upload: Upload, old: Tensor) -> Tensor:
    slots = []
    for slot in range(upload.weights.shape[1]):
        own = [
            (w[slot].item(), c[slot] if upload.per_slot else c)
            for w, c in zip(upload.weights, copies, strict=True)
        ]
        total = sum(weight for weight, _ in own)
        terms = (
            [weight / total * copy.double() for weight, copy in own]
            if total > 0
            else [old[slot].double()]
        )
        slots.append(torch.stack(terms).sum(0))
    return torch.stack(slots)
