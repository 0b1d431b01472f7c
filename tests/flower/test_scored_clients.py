"""Means are over the same clients in every round, or the run says over how many; a refused client
counts in no mean of a round of the federation in which it was refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedblocks.flower.server.score_bounds import find_absurd_losses
from fedblocks.flower.server.watching import _done
from fedblocks.runs.result import load_run
from fedblocks.runs.storage.folder import RunFolder

from .local_grid import Meddle
from .test_service import Host

CLIENTS, BAD = 3, 1
TABLE: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "clients": CLIENTS, "split": [0.6, 0.2, 0.2]},
    "evaluation": {"every": 1},
}


def not_finite(content: RecordDict) -> None:
    """Every array that a client sends becomes NaN, its weights excepted."""
    for name, record in [*content.items()]:
        if isinstance(record, ArrayRecord):
            arrays = {key: value.numpy() for key, value in record.items()}
            content[name] = ArrayRecord(
                {
                    key: Array(np.full_like(value, np.nan) if key.startswith("blocks/") else value)
                    for key, value in arrays.items()
                }
            )


def refused_in(*rounds: int) -> Meddle:
    """The updates of one client are not finite in these rounds."""
    groups = {str(round - 1) for round in rounds}

    def meddle(node: int, answer: Message) -> Message:
        if node == 100 + BAD and answer.metadata.group_id in groups:
            not_finite(answer.content)
        return answer

    return meddle


def absent_in(round: int) -> Meddle:
    return lambda node, answer: (
        None if node == 100 + BAD and answer.metadata.group_id == str(round - 1) else answer
    )


def scored(host: Host) -> dict[int, list[int]]:
    """Round -> the clients in its means."""
    rows = host.rows(
        "SELECT round, client FROM client_metrics WHERE part = 'validation' "
        "AND view = 'personal' ORDER BY round, client"
    )
    by_round: dict[int, list[int]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row["client"])
    return by_round


def lines(host: Host) -> list[str]:
    with RunFolder.open(host.path) as folder:
        rows = folder.store.rows("SELECT * FROM rounds ORDER BY round")
        return [_done(folder.store, row, 3).line() for row in rows]


def test_a_client_that_is_refused_in_every_round_counts_in_no_mean(tmp_path: Path) -> None:
    host = Host(tmp_path, TABLE)
    host.serve(refused_in(1, 2, 3), range(CLIENTS), minimum=0.5)
    assert scored(host) == {round: [0, 2] for round in (1, 2, 3)}
    assert all("2 of 3 scored" in line for line in lines(host))
    assert load_run(host.path).remarks[0] == "2 of 3 scored after round 3"


def test_an_update_that_is_refused_does_not_cost_the_scores_of_the_round_before(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, TABLE)
    host.serve(refused_in(2), range(CLIENTS), minimum=0.5)
    assert scored(host) == {1: [0, 1, 2], 2: [0, 2], 3: [0, 1, 2]}
    assert ["of 3 scored" in line for line in lines(host)] == [False, True, False]


def test_the_best_round_is_one_that_scored_the_most_clients_and_that_is_said(
    tmp_path: Path,
) -> None:
    """Without the client that does worst, the mean of round 2 is the highest of all."""
    host = Host(tmp_path, TABLE)
    host.serve(absent_in(3), range(CLIENTS), minimum=0.5, seconds=8.0)
    assert scored(host) == {1: [0, 1, 2], 2: [0, 2], 3: [0, 1, 2]}
    with RunFolder.open(host.path) as folder:
        folder.store._db.execute(
            "UPDATE means SET accuracy = 0.999 WHERE round = 2 AND part = 'validation'"
        )
        assert folder.store.best_round() in (1, 3)
    said = "rounds scored 2 to 3 clients: the best by validation is chosen among those that scored"
    assert f"{said} 3" in load_run_unsealed(host).remarks


def load_run_unsealed(host: Host) -> Any:
    """The run as it stands, after a number of its record was changed by hand."""
    from fedblocks.runs.result import result_of

    with RunFolder.open(host.path) as folder:
        return result_of(folder)


@pytest.mark.parametrize(
    ("losses", "left_out"),
    [
        ({0: 2.0, 1: 1e30, 2: 3.0}, {1}),
        ({0: 2.0, 1: 1e5, 2: 3.0}, set()),  # bad, not absurd
        ({0: 1e8, 1: 2e8, 2: 1e12}, set()),  # large numbers are what is learned here
        ({0: 1e-9, 1: 10.0}, set()),
        ({}, set()),
    ],
)
def test_a_loss_beyond_all_measure_is_left_out(
    losses: dict[int, float], left_out: set[int]
) -> None:
    counts = {client: (1.0, 4.0, 4 * loss) for client, loss in losses.items()}
    assert find_absurd_losses(counts).keys() == left_out
