"""Small parts of ranks, each against what is worked out by hand; no other process is started."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import Evaluation
from fedblocks.runs.ranks import build, joining
from fedblocks.runs.ranks import ranks as exchange
from fedblocks.runs.ranks.errors import RankError, RankLost, error_of, is_silent, text_of
from fedblocks.runs.ranks.ranks import BRIEF, Peer, Ranks
from fedblocks.runs.ranks.reports import gather_evaluation, gather_report, gather_small
from fedblocks.runs.storage.environment import start_time

from .in_threads import play_in_threads

HERE = Peer("here", os.getpid(), start_time(os.getpid()))
NOBODY = Peer("here", 2**22 + 5, "1")  # above the largest number of a process


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that nothing was said to."""
    for name in (*joining.NEEDED, "LOCAL_RANK", "LOCAL_WORLD_SIZE", joining.PATIENCE):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "is_one"),
    [
        ({}, False), ({"RANK": "0"}, False), ({"WORLD_SIZE": "2"}, False),
        ({"RANK": "0", "WORLD_SIZE": " 1 "}, False), ({"RANK": "0", "WORLD_SIZE": "2"}, True),
    ],
)  # fmt: skip
def test_a_process_is_a_rank_if_it_has_a_number_among_several(
    variables: dict[str, str], is_one: bool, alone: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        alone.setenv(name, value)
    assert joining.is_rank() == is_one and joining.is_first()


@pytest.mark.parametrize(("number", "count", "fits"), [(0, 1, 1), (1, 2, 1), (2, 2, 0), (-1, 2, 0)])
def test_a_rank_has_a_number_below_their_count(
    number: int, count: int, fits: int, alone: pytest.MonkeyPatch
) -> None:
    for name, value in zip(joining.NEEDED, (str(number), str(count), "localhost", "1")):
        alone.setenv(name, value)
    if fits:
        joining._check_variables()
    else:
        with pytest.raises(UserError, match=f"RANK is {number} of {count} ranks"):
            joining._check_variables()
    alone.delenv("MASTER_PORT")
    with pytest.raises(UserError, match="MASTER_PORT is not set"):
        joining._check_variables()


@pytest.mark.parametrize(
    ("ranks", "gpus", "there", "backend"),
    [
        ("1", 1, True, "cpu:gloo,cuda:nccl"), ("2", 4, True, "cpu:gloo,cuda:nccl"),
        ("2", 1, True, "gloo"), ("1", 1, False, "gloo"), ("1", 0, True, "gloo"),
    ],
)  # fmt: skip
def test_gpus_speak_to_each_other_where_every_rank_has_its_own(
    ranks: str, gpus: int, there: bool, backend: str, alone: pytest.MonkeyPatch
) -> None:
    alone.setenv("LOCAL_WORLD_SIZE", ranks)
    alone.setattr(torch.cuda, "is_available", lambda: there)
    alone.setattr(torch.cuda, "device_count", lambda: gpus)
    assert joining._backend() == backend


def test_numbers_of_this_machine_are_those_of_all_unless_somebody_says(
    alone: pytest.MonkeyPatch,
) -> None:
    assert (joining.local_ranks(), joining.local_number()) == (1, 0)
    alone.setenv("WORLD_SIZE", "4")
    alone.setenv("RANK", "3")
    assert (joining.local_ranks(), joining.local_number()) == (4, 3)
    alone.setenv("LOCAL_WORLD_SIZE", "2")
    alone.setenv("LOCAL_RANK", "1")
    assert (joining.local_ranks(), joining.local_number()) == (2, 1)
    assert joining._patience().total_seconds() == joining.DEFAULT_PATIENCE
    for wrong in ("0", "1e6", "soon"):
        alone.setenv(joining.PATIENCE, wrong)
        with pytest.raises(UserError, match=joining.PATIENCE):
            joining._patience()


def test_a_process_joins_once_and_says_when_the_ranks_have_parted(
    alone: pytest.MonkeyPatch,
) -> None:
    joined: list[Any] = []
    alone.setattr(joining, "_JOINED", joined)
    assert joining.current_ranks() is None
    alone.setenv("RANK", "0")
    alone.setenv("WORLD_SIZE", "2")
    ranks = Ranks(0, 2, 1.0)
    alone.setattr(joining, "_join", lambda: ranks)
    alone.setattr(joining.atexit, "register", lambda leave: None)
    assert joining.current_ranks() is ranks and joining.current_ranks() is ranks
    assert joined == [ranks]
    ranks.broken.append("rank 1 has ended")
    with pytest.raises(RankLost, match="no longer together: rank 1 has ended"):
        joining.current_ranks()


def test_an_error_is_told_to_others_and_shown_by_the_first() -> None:
    assert text_of(None) is None
    assert text_of(ValueError(" odd \n"))["message"] == "odd"  # type: ignore[index]
    assert text_of(ValueError())["message"] == "ValueError"  # type: ignore[index]
    wrong = text_of(UserError("it is wrong", "mend it"))
    assert wrong is not None
    told = {
        (of, here): error_of(wrong, of, here, None) for of, here in ((0, 0), (0, 1), (1, 0), (1, 1))
    }
    assert [str(e).splitlines()[0] for e in told.values()] == [
        "it is wrong", "it is wrong", "rank 1: it is wrong", "rank 1: it is wrong",
    ]  # fmt: skip
    assert [is_silent(error) for error in told.values()] == [False, True, False, True]
    assert all(isinstance(error, RankError) for error in told.values())
    own = ValueError("mine")
    assert error_of(wrong, 1, 1, own) is own and error_of(wrong, 0, 1, own) is not own
    memory = text_of(torch.OutOfMemoryError("full"))
    assert isinstance(error_of(memory or {}, 1, 0, None), torch.OutOfMemoryError)
    stopped = text_of(KeyboardInterrupt())
    assert isinstance(error_of(stopped or {}, 1, 0, None), KeyboardInterrupt)


def test_a_process_is_gone_when_its_number_is_free_or_anothers() -> None:
    assert not HERE.is_gone() and NOBODY.is_gone()
    assert HERE._replace(started="long ago").is_gone()


def test_the_rank_that_has_ended_is_named_if_it_was_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "GRACE", 0.2)
    ranks = Ranks(0, 2, 5.0, peers=(HERE, NOBODY))
    with pytest.raises(RankLost, match=f"rank 1 .process {NOBODY.pid}. has ended; this was rank 0"):
        ranks.end_lost()
    assert ranks.broken == [f"rank 1 (process {NOBODY.pid}) has ended"]
    monkeypatch.setattr(exchange, "GRACE", 0.0)
    far = Ranks(0, 2, 5.0, peers=(HERE, NOBODY._replace(host="there")))
    with pytest.raises(RankLost, match="another rank did not answer within 5 s"):
        far.end_lost()


def test_messages_of_any_length_arrive_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around the length that travels at once, and where only one rank has much to say."""
    lengths = [0, 1, BRIEF - 1, BRIEF, BRIEF + 1, 3 * BRIEF]

    def work(ranks: Ranks) -> list[list[int]]:
        said = [ranks.share_bytes(b"x" * size) for size in lengths]
        said += [ranks.share_bytes(b"y" * (size * ranks.number)) for size in lengths]
        return [[len(own) for own in one] for one in said]

    expected = [[size, size] for size in lengths] + [[0, size] for size in lengths]
    assert play_in_threads(2, work, monkeypatch) == [expected] * 2


def test_reports_of_ranks_are_put_together_in_the_order_of_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first rank has the clients 4 and 1, the second 3 and 0."""

    def work(ranks: Ranks) -> Any:
        own = [4, 1] if ranks.first else [3, 0]
        bytes_of = {"model": {client: 10 * client for client in own}}
        counts = {"personal": {client: (1.0, 2.0, float(client)) for client in own}}
        refused = [Refusal(own[0], "late", "")]
        report = gather_report(ranks, Report(own, bytes_of, bytes_of, refused, counts))
        seen = Evaluation(
            {"test": counts}, {"gates": {client: [float(client)] for client in own}}, refused
        )
        seen = gather_evaluation(ranks, seen)
        small = gather_small(ranks, {client: {"a": {"v": torch.ones(2)}} for client in own})
        lists = [list(report.bytes_down["model"]), list(report.counts["personal"])]
        portraits = list(seen.portraits["gates"]), list(seen.scores["test"]["personal"])
        late = [one.client for one in report.refusals], [one.client for one in seen.failures]
        return report.clients, lists, portraits, late, list(small)

    first, second = play_in_threads(2, work, monkeypatch)
    every = [0, 1, 3, 4]
    assert first == (every, [every, every], (every, every), ([3, 4], [3, 4]), every)
    own = [3, 0]
    assert second == (own, [own, own], (own, own), ([3], [3]), [])


def test_the_code_of_ranks_is_the_same_in_whatever_order_a_folder_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = build._code.__wrapped__()
    listed = build.Path.rglob
    backwards = lambda path, pattern: sorted(listed(path, pattern), reverse=True)
    monkeypatch.setattr(build.Path, "rglob", backwards)
    assert build._code.__wrapped__() == expected
