"""Personal blocks live on the client's disk: they survive restarts of both sides, and
follow what the server used.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fedblocks.core.errors import CheckpointError, UserError
from fedblocks.core.net import Net
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.client.side import ClientSide
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.local import answers_of, exchange
from fedblocks.flower.server import progress
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.wire.messages import Wire
from fedblocks.methods.fedper import FedPer
from fedblocks.testing import EXAMPLES, small_federation, small_net
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.rounds import run

from .federations import RUN, everybody, leaves, personal, played

COHORTS = [[0, 1, 2], [1, 2, 3], [0, 2, 3]]
STATEFUL = pytest.mark.parametrize("name", ["fedper", "pfedmb", "fedem", "scaffold"])


def kind(message: Wire) -> str:
    kind_of_message: str = json.loads(message.header)["kind"]
    return kind_of_message


@STATEFUL
def test_both_sides_go_on_after_restarts_with_every_bit_of_their_own(
    name: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]()
    server, sides = everybody(example.experiment(), tmp_path / "whole")
    expected, _ = played(server, sides, COHORTS)
    for clients in COHORTS:  # both sides are new in every round; only their disks are old
        anew, again = everybody(example.experiment(), tmp_path / "restarted")
        asked = OpenRound(anew, progress.load(tmp_path / "server", anew).progress, clients)
        exchange(asked, answers_of(again))
        last = asked.close(minimum=3).progress
        progress.save(tmp_path / "server", last)
    assert differences(leaves(again, last), leaves(sides, expected)) == []
    assert personal(again, last)


@STATEFUL
def test_a_round_that_the_server_repeats_starts_from_the_same_personal_blocks(
    name: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]()
    server, sides = everybody(example.experiment(), tmp_path)
    done, _ = played(server, sides, COHORTS[:1])
    # the server is killed before it stores this round
    forgotten = OpenRound(server, done, COHORTS[1])
    exchange(forgotten, answers_of(sides))
    first = leaves(sides, forgotten.close().progress)
    for _ in range(2):
        asked = OpenRound(server, done, COHORTS[1])
        exchange(asked, answers_of(sides))
        closed = asked.close()
        assert differences(leaves(sides, closed.progress), first) == []


def test_a_client_that_was_refused_again_and_again_goes_back_to_what_the_server_last_used(
    tmp_path: Path,
) -> None:
    example, everyone = EXAMPLES["fedper"](), [0, 1, 2]
    server, sides = everybody(example.experiment(), tmp_path)
    done, _ = played(server, sides, [everyone])
    for _ in range(3):
        asked = OpenRound(server, done, everyone)
        for client, message in asked.downloads.items():
            answer = sides[client].answer(message)  # client 1 has kept its new head by now
            asked.receive(client, replace(answer, arrays={}) if client == 1 else answer)
        done = asked.close().progress
    last = OpenRound(server, done, everyone)
    exchange(last, answers_of(sides))
    simulated = run(
        example.experiment(), Sequential(), [everyone, [0, 2], [0, 2], [0, 2], everyone]
    ).last
    assert differences(leaves(sides, last.close().progress), state_leaves(simulated), 1e-12) == []


def test_a_client_that_lost_its_disk_says_so_and_then_starts_anew(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedper"]().experiment(), tmp_path)
    done, _ = played(server, sides, [[0, 1]])
    shutil.rmtree(sides[1].store.root / "personal")
    asked = OpenRound(server, done, [0, 1])
    exchange(asked, answers_of(sides))
    closed = asked.close()
    assert [(r.client, r.reason) for r in closed.report.refusals] == [(1, "lost-state")]
    assert closed.progress.kept == {0: 2}
    again = OpenRound(server, closed.progress, [0, 1])
    exchange(again, answers_of(sides))
    assert again.close().progress.kept == {0: 3, 1: 3}


def test_a_client_that_is_restarted_between_two_downloads_goes_on(tmp_path: Path) -> None:
    example = EXAMPLES["fedmn"]()
    server, sides = everybody(example.experiment(), tmp_path)
    asked = OpenRound(server, server.start(), [0])
    more = asked.receive(0, sides[0].answer(asked.downloads[0]))
    assert more is not None and kind(more) == "more"
    _, anew = everybody(example.experiment(), tmp_path)
    assert asked.receive(0, anew[0].answer(more)) is None
    simulated = run(example.experiment(), Sequential(), [[0]])
    assert (
        differences(state_leaves(asked.close().progress.state), state_leaves(simulated.last), 1e-6)
        == []
    )


def test_slots_of_another_attempt_are_not_taken(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedmn"]().experiment(), tmp_path)
    first, second = (OpenRound(server, server.start(), [0]) for _ in range(2))
    more = first.receive(0, sides[0].answer(first.downloads[0]))
    sides[0].answer(second.downloads[0])
    assert more is not None
    answer = sides[0].answer(more)
    assert kind(answer) == "apology" and json.loads(answer.header)["reason"] == "lost-download"


def test_personal_blocks_that_went_wrong_are_not_kept(tmp_path: Path) -> None:
    broken = small_federation()
    broken.x[broken.train[1][0]] = float("nan")
    server, sides = everybody(EXAMPLES["fedper"]().experiment(broken), tmp_path)
    asked = OpenRound(server, server.start(), [0, 1])
    exchange(asked, answers_of(sides))
    closed = asked.close()
    assert [(r.client, r.reason) for r in closed.report.refusals] == [(1, "not-finite")]
    assert not (sides[1].store.root / "personal").exists() and closed.progress.kept == {0: 1}


WIDER = Net.of(
    lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)), dtype=torch.float64
)


@pytest.mark.parametrize(
    "changes", [{"lr": 0.3}, {"batch_size": 5}, {"epochs": 2}, {"net": WIDER}], ids=list
)
def test_a_client_with_another_plan_refuses_to_train(
    changes: dict[str, object], tmp_path: Path
) -> None:
    example = EXAMPLES["fedper"]()
    server, _ = everybody(example.experiment(), tmp_path / "a")
    _, others = everybody(example.experiment(**changes), tmp_path / "b")
    asked = OpenRound(server, server.start(), [0])
    asked.receive(0, others[0].answer(asked.downloads[0]))
    assert [(r.client, r.reason) for r in asked.report.refusals] == [(0, "plan-mismatch")]


def test_a_store_is_for_one_client_of_one_run_and_its_owner_alone(tmp_path: Path) -> None:
    store = PersonalStore.of(tmp_path, "hospitals", RUN, 3)
    assert store.root == tmp_path / "hospitals" / RUN / "client-000003"
    assert store.root.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ValueError, match="letters, digits"):
        PersonalStore.of(tmp_path, "..", RUN, 3)


def test_a_client_brings_the_data_of_one(tmp_path: Path) -> None:
    store = PersonalStore.of(tmp_path, "local", RUN, 0)
    with pytest.raises(UserError, match="its own data"):
        ClientSide.of(FedPer(small_net()), small_federation(), 0, 0, RUN, store)


def test_a_server_does_not_go_on_with_the_blocks_of_another_method(tmp_path: Path) -> None:
    server, _ = everybody(EXAMPLES["fedper"]().experiment(), tmp_path / "a")
    other, _ = everybody(EXAMPLES["fedavg"]().experiment(), tmp_path / "b")
    progress.save(tmp_path / "server", server.start())
    with pytest.raises(CheckpointError, match="other blocks"):
        progress.load(tmp_path / "server", other)


def test_a_client_that_cannot_write_its_blocks_sends_nothing(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedper"]().experiment(), tmp_path)
    (sides[1].store.root / "personal").write_text("in the way")
    asked = OpenRound(server, server.start(), [0, 1])
    exchange(asked, answers_of(sides))
    (refusal,) = asked.report.refusals
    assert (refusal.client, refusal.reason) == (
        1,
        "client-error",
    ) and "cannot write" in refusal.detail
