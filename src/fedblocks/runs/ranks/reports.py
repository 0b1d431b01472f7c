"""What happened at each rank, brought together at the first, in the order of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.parts import Blocks
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import Evaluation
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.rounds import SMALL

Numbers = Mapping[str, Mapping[int, Any]]  # name -> client -> a number, or several


def gather_report(ranks: Ranks, report: Report) -> Report:
    """The report of all clients at the first rank; elsewhere as it was."""
    own: dict[str, Any] = {
        "clients": torch.tensor(report.clients, dtype=torch.long),
        "down": _table(report.bytes_down, torch.long),
        "up": _table(report.bytes_up, torch.long),
        "counts": _table(report.counts, torch.double),
        "refusals": _rows(report.refusals),
    }
    said = ranks.collect_tree(own)
    if not said:
        return report
    counts = {
        view: {client: tuple(row) for client, row in by_client.items()}
        for view, by_client in _merge([one["counts"] for one in said]).items()
    }
    return Report(
        sorted(client for one in said for client in one["clients"].tolist()),
        _merge([one["down"] for one in said]),
        _merge([one["up"] for one in said]),
        _refusals([one["refusals"] for one in said]),
        counts,
    )


def gather_evaluation(ranks: Ranks, evaluation: Evaluation) -> Evaluation:
    """The evaluation of all clients at the first rank; elsewhere as it was."""
    own: dict[str, Any] = {
        "scores": {part: _table(views, torch.double) for part, views in evaluation.scores.items()},
        "portraits": {
            name: [[client, numbers] for client, numbers in by_client.items()]
            for name, by_client in evaluation.portraits.items()
        },
        "failures": _rows(evaluation.failures),
    }
    said = ranks.collect_tree(own)
    if not said:
        return evaluation
    whole = Evaluation(failures=_refusals([one["failures"] for one in said]))
    for part in dict.fromkeys(part for one in said for part in one["scores"]):
        merged = _merge([one["scores"].get(part, {}) for one in said])
        whole.scores[part] = {
            view: {client: tuple(row) for client, row in by_client.items()}
            for view, by_client in merged.items()
        }
    for name in dict.fromkeys(name for one in said for name in one["portraits"]):
        rows = sorted(row for one in said for row in one["portraits"].get(name, []))
        whole.portraits[name] = dict(rows)
    return whole


def gather_small(ranks: Ranks, private: Mapping[int, Blocks]) -> dict[int, Blocks]:
    """The small private blocks of all clients, which plots show, at the first rank."""
    own = {
        str(client): {
            name: block
            for name, block in blocks.items()
            if sum(value.numel() for value in block.values()) <= SMALL
        }
        for client, blocks in private.items()
    }
    merged = {
        int(client): blocks for one in ranks.collect_tree(own) for client, blocks in one.items()
    }
    return dict(sorted(merged.items()))


def _table(values: Numbers, dtype: torch.dtype) -> dict[str, Any]:
    return {
        name: {
            "clients": torch.tensor(list(by_client), dtype=torch.long),
            "values": torch.tensor(list(by_client.values()), dtype=dtype),
        }
        for name, by_client in values.items()
    }


def _merge(tables: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Any]]:
    """Name -> client -> number or numbers, ascending."""
    merged: dict[str, dict[int, Any]] = {}
    for table in tables:
        for name, own in table.items():
            rows = zip(own["clients"].tolist(), own["values"].tolist(), strict=True)
            merged.setdefault(name, {}).update(rows)
    return {name: dict(sorted(by_client.items())) for name, by_client in merged.items()}


def _rows(refusals: Sequence[Refusal]) -> list[Any]:
    return [[refusal.client, refusal.reason, refusal.detail] for refusal in refusals]


def _refusals(rows: Sequence[Sequence[Any]]) -> list[Refusal]:
    return sorted((Refusal(*row) for own in rows for row in own), key=lambda one: one.client)
