"""What a run says of a round, and what it keeps of a state."""

from __future__ import annotations

import pytest
import torch

from fedblocks.core.state import State
from fedblocks.runs.grids.grid import read_grid
from fedblocks.runs.grids.space import OneOf, parse_space
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import ClientMetric, RefusalRow, RoundRecord, Traffic
from fedblocks.runs.storage.states import settle

RECORD = RoundRecord(
    3,
    1.234,
    5,
    metrics=[
        ClientMetric("test", "personal", 0, 1.0, 1.0),  # one example is enough to count
        ClientMetric("test", "personal", 1, 1.0, 4.0),
        ClientMetric("test", "personal", 2, 0.0, 0.0),  # none is not
        ClientMetric("test", "shared", 0, 0.0, 1.0),
        ClientMetric("validation", "personal", 0, 3.0, 10.0),
    ],
    traffic=[
        Traffic(0, "head", "down", 1_000_000),
        Traffic(0, "body", "up", 250_000),
        Traffic(1, "head", "down", 500_000),
    ],
    refusals=[RefusalRow(1, "not finite"), RefusalRow(1, "too large"), RefusalRow(4, "late")],
)


def test_the_gist_of_a_round_is_that_of_its_record() -> None:
    done = RoundDone.of(RECORD, 7, MainMetric())
    assert done == RoundDone(
        round=3,
        rounds=7,
        clients=5,
        seconds=1.234,
        bytes_down=1_500_000,
        bytes_up=250_000,
        refused=2,
        scores={"test": (1 + 0.25) / 2, "validation": 0.3},
        counted={"test": 2, "validation": 1},
        scored=1,  # on validation data, fewer than on test data
    )
    assert done.line() == (
        "round 3/7  5 clients  test 62.5%  validation 30.0%  1.75 MB  1.23 s  2 refused"
    )


def test_nothing_is_said_of_what_there_was_none_of() -> None:
    done = RoundDone.of(RoundRecord(1, 0.5, 2), 4, MainMetric())
    assert done.line() == "round 1/4  2 clients  0.00 MB  0.50 s"


def test_a_settled_state_lies_in_memory_as_a_checkpoint_would_bring_it_back() -> None:
    table = torch.arange(12.0).view(3, 4)
    odd = {"turned": table.T, "row": table[1], "whole": table}
    state = settle(State(1, {"block": odd}, {"method": {"block": odd}}, {}))
    for tensors in (state.server["block"], state.memory["method"]["block"]):
        for name, tensor in tensors.items():
            assert torch.equal(tensor, odd[name])
            assert tensor.is_contiguous() and tensor.storage_offset() == 0


@pytest.mark.parametrize("text", ["method.name=a|b", " method.name = a | b "])
def test_choices_may_have_blanks_around_them(text: str) -> None:
    assert parse_space([text]) == ({"method.name": OneOf(("a", "b"))}, [])


def test_a_change_of_all_methods_is_one_of_their_training_and_no_other() -> None:
    rates = lambda *changes: {
        name: table["lr"]
        for name, table in read_grid("digits-pfedmb", ["ditto"], 2, changes).methods.items()
    }
    names = ["local", "fedavg", "fedavg_ft", "ditto"]
    own = rates()
    assert list(own) == names and rates("method=fedper", "rounds=3") == own
    assert rates("method.lr=0.5", "data.clients=9") == dict.fromkeys(names, 0.5)
    assert rates("ditto.lr=0.25") == {**own, "ditto": 0.25}
