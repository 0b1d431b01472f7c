"""Faults on purpose: clients that drop out, come late, crash or send rubbish, as a
configuration asks; a function of seed, round and client alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from fedblocks.core.admission import Refusal
from fedblocks.core.client_names import client_numbers
from fedblocks.core.random import generator
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report, add_bytes
from fedblocks.runs.build import Prepared
from fedblocks.runs.refusals import NOT_FINITE, ON_PURPOSE

Fault: TypeAlias = Literal["drop", "slow", "crash", "corrupt"]
ABSENT: Mapping[Fault, str] = {  # fault -> the reason in the record
    "drop": "dropped-out",
    "slow": "late",
    "crash": "crashed",
}


def faults_of(prepared: Prepared, round: int, cohort: Sequence[int]) -> dict[int, Fault]:
    """The clients of a cohort that have a fault in this round."""
    chosen = prepared.config.faults
    if chosen is None:
        return {}
    faults: dict[int, Fault] = {}
    prone = cohort
    if chosen.clients is not None:
        prone = sorted({*cohort} & {*client_numbers(chosen.clients, prepared.sampling.names)})
    for client in prone:
        left = generator(prepared.config.seed, round, client, "fault").random()
        for fault in (*ABSENT, "corrupt"):
            left -= getattr(chosen, fault)
            if left < 0:
                faults[client] = fault
                break
    return faults


def note_absent(
    prepared: Prepared, state: State, report: Report, faults: Mapping[int, Fault]
) -> Report:
    """The report of a round with those who were absent from it; who came late, or
    crashed, had been sent something. What was refused because of a fault says so.
    """
    absent = {client: fault for client, fault in faults.items() if fault in ABSENT}
    rows = [Refusal(client, ABSENT[fault], ON_PURPOSE) for client, fault in absent.items()]
    refused = [
        replace(one, detail=f"{one.detail}: {ON_PURPOSE}")
        if faults.get(one.client) == "corrupt" and one.reason == NOT_FINITE
        else one
        for one in report.refusals
    ]
    bytes_down = {block: dict(by_client) for block, by_client in report.bytes_down.items()}
    reached = [client for client, fault in absent.items() if fault != "drop"]
    for group, ids in prepared.experiment.members(reached).items():
        if prepared.experiment.own(ids):
            job = prepared.experiment.training_job(group, ids, state)
            add_bytes(bytes_down, job.sent.bytes_down, job.ids)
    return replace(report, refusals=[*refused, *rows], bytes_down=bytes_down)
