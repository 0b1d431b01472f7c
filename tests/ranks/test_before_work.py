"""What ranks do before and around their work, with stand-ins for other processes and GPUs."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import UserError
from fedblocks.engines.close_round import Report
from fedblocks.engines.failures import FAILED, ClientFailures
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.ranks import build, joining
from fedblocks.runs.ranks.closing import _copies, _zero_missing
from fedblocks.runs.ranks.errors import RankLost
from fedblocks.runs.ranks.ranks import Peer, Ranks
from fedblocks.runs.ranks.reports import gather_report
from fedblocks.runs.ranks.training import RankRounds

SAME: dict[str, Any] = {
    "code": {"torch": "2", "numpy": "1"},
    "config": {"rounds": 3, "data": {"name": "digits"}},
    "own code": [{"defines": "net", "hash": 1}, {"defines": "loss", "hash": 2}],
}
OTHERS = [
    ({"code": {"torch": "2", "numpy": "9"}}, "rank 1 has another numpy than rank 0: 9, not 1"),
    ({"config": {"rounds": 3, "data": {"name": "own"}}}, "data.name is 'own', not 'digits'"),
    ({"config": {"rounds": 3}}, "data is None, not {'name': 'digits'}"),
    ({"config": {**SAME["config"], "seed": 4}}, "seed is 4, not None"),
    (
        {"own code": [SAME["own code"][0], {"defines": "loss", "hash": 3}]},
        "rank 1 has other code of yours than rank 0: loss",
    ),
    ({"own code": SAME["own code"][:1]}, "than rank 0: its files"),
]


@pytest.mark.parametrize(("changes", "message"), OTHERS, ids=range(len(OTHERS)))
def test_a_rank_that_was_given_something_else_is_named(
    changes: dict[str, Any], message: str
) -> None:
    build._refuse_others([SAME, SAME])
    with pytest.raises(UserError) as refused:
        build._refuse_others([SAME, {**SAME, **changes}])
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("number", "ranks", "gpus", "place", "said"),
    [
        (0, 2, 2, "cuda:0", "why"),
        (1, 2, 2, "cuda:1", "why"),
        (3, 4, 2, "cuda:1", "why; 4 ranks share 2"),
        (2, 3, 2, "cuda:0", "why; 3 ranks share 2"),
    ],
)
def test_each_rank_has_the_gpu_with_its_number(
    number: int, ranks: int, gpus: int, place: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(build, "device_of", lambda config: (torch.device("cuda"), "why"))
    monkeypatch.setattr(build, "local_number", lambda: number)
    monkeypatch.setattr(build, "local_ranks", lambda: ranks)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    config = fb.read_config("digits-fedavg")
    assert build._device(config) == (torch.device(place), said)
    assert chosen == [torch.device(place)]


def test_ranks_are_on_the_cpu_or_on_gpus_but_not_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config = fb.read_config("digits-fedavg")
    monkeypatch.setattr(build, "device_of", lambda config: (torch.device("cpu"), "none"))
    assert build._device(config) == (torch.device("cpu"), "none")
    monkeypatch.setattr(build, "device_of", lambda config: (torch.device("cuda:1"), "so"))
    with pytest.raises(UserError, match="cuda:1 is one GPU, and this is one of several ranks"):
        build._device(config)


class Distributed:
    """`torch.distributed` as one of three ranks sees it; it notes what is asked of it."""

    def __init__(self, begun: bool, fails: str = "") -> None:
        self.begun, self.fails, self.asked = begun, fails, []  # type: ignore[var-annotated]

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.begun

    def init_process_group(self, backend: str, timeout: timedelta) -> None:
        self.asked.append(("init", backend, timeout.total_seconds()))
        if self.fails:
            raise RuntimeError(self.fails)

    def new_group(self, backend: str, timeout: timedelta) -> str:
        self.asked.append(("group", backend, timeout.total_seconds()))
        return "the group"

    def get_rank(self) -> int:
        return 1

    def get_world_size(self) -> int:
        return 3

    def destroy_process_group(self) -> None:
        self.asked.append("left")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in zip(joining.NEEDED, ("1", "3", "host", "123"), strict=True):
        monkeypatch.setenv(name, value)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(joining.PATIENCE, "7")
    monkeypatch.setattr(Ranks, "share", lambda ranks, own: [["host", 5, "then"], own])
    return monkeypatch


@pytest.mark.parametrize("begun", [False, True])
def test_a_process_joins_with_patience_of_its_own_and_knows_its_peers(
    begun: bool, variables: pytest.MonkeyPatch
) -> None:
    """The group of all has five minutes to come together; a program may have begun it itself."""
    dist = Distributed(begun)
    variables.setattr(joining, "dist", dist)
    ranks = joining._join()
    group = ("group", "gloo", 7.0)
    assert dist.asked == ([group] if begun else [("init", "gloo", 300.0), group])
    assert (ranks.number, ranks.count, ranks.patience, ranks.group) == (1, 3, 7.0, "the group")
    assert ranks.peers[0] == Peer("host", 5, "then") and ranks.peers[1].pid == os.getpid()
    joining._leave()
    assert dist.asked[-1] == "left"


def test_ranks_that_do_not_meet_say_where_and_why(variables: pytest.MonkeyPatch) -> None:
    variables.setattr(joining, "dist", Distributed(False, "timed out\nand more"))
    with pytest.raises(UserError) as refused:
        joining._join()
    assert refused.value.message == "the ranks did not find each other at host:123: timed out"
    variables.setattr(joining.dist, "is_available", lambda: False)
    with pytest.raises(UserError, match="built without"):
        joining._join()
    variables.setattr(joining, "dist", Distributed(True))
    variables.delenv("MASTER_PORT")  # which a program of one's own need not have set
    assert joining._join().count == 3


def test_work_for_one_process_is_refused_by_ranks_and_told_by_the_first(
    variables: pytest.MonkeyPatch,
) -> None:
    variables.setattr(joining, "dist", Distributed(True))
    assert joining.is_rank() and not joining.is_first()
    with pytest.raises(UserError, match="a search is work for one process") as refused:
        joining.refuse_ranks("a search")
    assert vars(refused.value)["silent"] is True
    variables.setattr(Distributed, "get_rank", lambda self: 0)
    with pytest.raises(UserError) as refused:
        joining.refuse_ranks("a search")
    assert vars(refused.value)["silent"] is False
    variables.setattr(Distributed, "get_world_size", lambda self: 1)
    assert not joining.is_rank()
    joining.refuse_ranks("a search")


@pytest.mark.parametrize(
    ("text", "taken"),
    [("0", 0), ("1e-3", 1), ("1", 1), ("999999", 1), ("1e6", 0), ("nan", 0), ("-1", 0), ("", 0)],
)
def test_patience_is_above_0_and_below_a_million_seconds(
    text: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(joining.PATIENCE, text)
    if taken:
        assert joining._patience().total_seconds() == pytest.approx(float(text))
    else:
        with pytest.raises(UserError, match=joining.PATIENCE):
            joining._patience()


def test_reports_of_nobody_are_put_together_as_whole_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(Ranks, "collect_tree", lambda ranks, own: said.append(own) or [own, own])  # type: ignore[func-returns-value]
    nobody = Report([], {"model": {}}, {"model": {}}, [], {"personal": {}})
    gathered = gather_report(Ranks(0, 2, 1.0), nobody)
    assert vars(gathered) == vars(nobody) and said[0]["clients"].dtype == torch.long
    assert said[0]["down"]["model"]["values"].dtype == torch.long
    assert said[0]["counts"]["personal"]["values"].dtype == torch.double


def attempt(engine: Any, error: Exception | None, own: list[int]) -> Any:
    """What one rank makes of clients 4, 6 and 8, of which it has some."""

    def work(job: Any) -> str:
        if error is not None:
            raise error
        return f"done {job}"

    rounds = object.__new__(RankRounds)
    fields = {"experiment": SimpleNamespace(own=lambda clients: own), "engine": engine}
    for name, value in fields.items():
        object.__setattr__(rounds, name, value)
    return rounds._attempt(lambda clients: f"job {clients}", [4, 6, 8], work)  # type: ignore[arg-type,return-value]


def test_a_rank_says_whose_work_failed_and_what_else_went_wrong() -> None:
    assert attempt(Sequential(), None, []) == ([], [], None)
    job = "job [4, 6, 8]"
    assert attempt(Sequential(), None, [6, 8]) == ([(job, f"done {job}")], [], None)
    members = ClientFailures({1: ValueError("odd")})
    done, failed, error = attempt(Vectorised(), members, [6, 8])
    assert (done, error) == ([], None)
    assert [(one.client, one.reason) for one in failed] == [(8, FAILED)]
    assert "ValueError: odd" in failed[0].detail
    wrong = ValueError("odd")
    done, failed, error = attempt(Sequential(), wrong, [6, 8])
    assert done == [] and error is wrong and [one.client for one in failed] == [6, 8]
    for engine, other in (
        (Vectorised(), wrong),
        (Sequential(), UserError("mend it")),
        (Sequential(), torch.OutOfMemoryError("full")),
    ):
        assert attempt(engine, other, [6, 8]) == ([], [], other)


def test_sums_that_no_rank_has_are_doubles_of_0() -> None:
    sums: dict[str, dict[str, Any]] = {"model": {"w": None, "b": torch.ones(2)}}
    slots = {("model", "w"): torch.ones(2, 3), ("model", "b"): torch.ones(2)}
    _zero_missing(sums, slots)
    assert sums["model"]["w"].tolist() == [[0.0] * 3] * 2
    assert sums["model"]["w"].dtype == torch.double and sums["model"]["b"].tolist() == [1.0, 1.0]


@dataclass
class Group:
    """Uploads of a group, of which one rank or none has some."""

    counts: list[int]
    device = torch.device("cpu")

    def copies(self, name: str, everywhere: bool) -> Any:
        return {"w": (name, everywhere)}

    def outline(self, name: str) -> dict[str, Any]:
        return {"w": ("float64", (2, 3))}


def test_copies_of_nobody_have_no_rows_and_their_own_kind() -> None:
    assert _copies(Group([0, 2]), "model") == {"w": ("model", False)}  # type: ignore[arg-type]
    nobody = _copies(Group([0, 0]), "model")["w"]  # type: ignore[arg-type]
    assert nobody.shape == (0, 2, 3) and nobody.dtype == torch.float64


def lost(ranks: Any) -> None:
    raise RankLost("gone", "again")


def test_a_signal_to_end_is_a_lost_rank_while_ranks_work(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ranks = Ranks(0, 2, 1.0)
    monkeypatch.setattr(Ranks, "end_lost", lost)
    with pytest.raises(RankLost), ranks.watched():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@contextmanager
def told(ranks: Any, said: list[Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ranks, "tell", lambda self, message=None: said.append(message))
        yield


def test_the_first_tells_the_others_of_its_error_but_not_of_a_lost_rank() -> None:
    def fail(error: BaseException) -> Any:
        raise error

    ranks, said = Ranks(0, 2, 1.0), []  # type: ignore[var-annotated]
    with told(ranks, said):
        assert ranks.lead(lambda: 5, print) == 5
        for error in (ValueError("odd"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                ranks.lead(lambda error=error: fail(error), print)  # type: ignore[misc]
        with pytest.raises(RankLost):
            ranks.lead(lambda: fail(RankLost("gone", "")), print)
    assert said[0] == {"end": 5} and len(said) == 3
    assert said[1]["error"]["message"] == "odd" and "error" in said[2]
