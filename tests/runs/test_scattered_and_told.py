"""What ranks are sent of a checkpoint, what listeners are told, and what is waited for."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import CheckpointError, RunFolderError, UserError
from fedblocks.engines.failures import FAILED, ClientFailures
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.experiment import _as_many_outputs
from fedblocks.runs.listeners import check_listeners
from fedblocks.runs.progress import RoundDone, tell_once
from fedblocks.runs.ranks import training
from fedblocks.runs.ranks.checkpoints import Scattering
from fedblocks.runs.ranks.training import RankRounds
from fedblocks.runs.refusals import Refused, read_refusals
from fedblocks.runs.stopping import EarlyStopping, StopRun
from fedblocks.runs.storage import checkpoint, code_record, frozen, lock
from fedblocks.runs.storage.links import _refuse_strange, refuse_links
from fedblocks.runs.storage.record import Note, RefusalRow, RoundRecord
from fedblocks.runs.storage.store import RunStore


def numbers(tree: Any) -> dict[int, float]:
    """By client, the number that it keeps."""
    return {int(client): float(blocks["kept"]["w"]) for client, blocks in tree.items()}


def test_every_rank_is_sent_the_server_and_its_own_clients(tmp_path: Path) -> None:
    """Clients of shards 0, 1, 2 and 10, of which the last is behind them; a shard is of 64."""
    clients = {n: {"kept": {"w": torch.tensor(float(n))}} for n in (0, 1, 64, 130, 640)}
    shared = {"slots": {"model": {"w": torch.ones(1)}}}
    root = tmp_path / "deep" / "checkpoints"
    checkpoint.save(root, 3, shared, clients, None)
    sent: list[Any] = []
    ranks: Any = SimpleNamespace(
        count=3, number=0, tell=lambda said: sent.append(said),
        send=lambda tree, rank: sent.append((rank, tree)),
    )  # fmt: skip
    owners = np.zeros(641, dtype=int)
    owners[[1, 640]], owners[64] = 1, 2
    loaded = Scattering(ranks, owners).load(root, 3)
    assert loaded.round == 3 and loaded.skipped == []
    assert loaded.shared["slots"]["model"]["w"].tolist() == [1.0]
    assert [*numbers(loaded.clients).items()] == [(0, 0.0), (130, 130.0)]
    said, trees = sent[::2], sent[1::2]
    whole = {"what": "server", "clients": 0}
    part = {"what": "clients", "clients": 5}
    assert [{**one, "what": str(one["what"])} for one in said] == [
        {"to": 1, **whole}, {"to": 2, **whole}, {"to": 1, **part}, {"to": 2, **part},
        {"to": 1, **part},
    ]  # fmt: skip
    assert [rank for rank, _ in trees] == [1, 2, 1, 2, 1]
    assert [numbers(tree) for _, tree in trees[2:]] == [{1: 1.0}, {64: 64.0}, {640: 640.0}]
    assert all([*tree] == ["slots"] for _, tree in trees[:2])


class Group:
    """Six clients, of which the even ones are of this rank."""

    def members(self, clients: Any) -> dict[str, list[int]]:
        return {"all": [*clients]}

    def own(self, clients: Any) -> list[int]:
        return [client for client in clients if client % 2 == 0]


def rank_of(engine: Any) -> RankRounds:
    ranks: Any = SimpleNamespace(
        agree=lambda error, own: [own, [[3, "elsewhere"]]] if own else [own]
    )
    return RankRounds(ranks, Group(), engine)  # type: ignore[arg-type]


def test_clients_whose_own_work_fails_are_left_out_by_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def evaluate(job: Any, parts: Any) -> Any:
        asked.append((job.ids, parts))
        if 2 in job.ids:
            raise ClientFailures({1: KeyError("odd")})
        return f"evaluated {job.ids}"

    def job_of(experiment: Any, group: str, left: Any, state: Any, joining: bool) -> Any:
        asked.append((group, left, state, joining))
        return SimpleNamespace(ids=experiment.own(left))

    added: list[Any] = []
    evaluation = SimpleNamespace(add=lambda *given: added.append(given), failures=[])
    monkeypatch.setattr(training, "Evaluation", lambda: evaluation)
    monkeypatch.setattr(training, "evaluation_job", job_of)
    own = rank_of(SimpleNamespace(evaluate=evaluate))
    assert own.evaluate_parts("state", [0, 2, 3, 4], ("test",), True) is evaluation  # type: ignore[arg-type, comparison-overlap]
    assert asked == [
        ("all", [0, 2, 3, 4], "state", True), ([0, 2, 4], ("test",)),
        ("all", [0, 4], "state", True), ([0, 4], ("test",)),
    ]  # fmt: skip
    assert added == [("evaluated [0, 4]", [0, 4])] and own.failures == []
    assert evaluation.failures == [Refusal(2, FAILED, "KeyError: 'odd'")]


@pytest.mark.parametrize(
    ("engine", "error", "counts"),
    [
        (Sequential(), ValueError("odd"), True), (Vectorised(), ValueError("odd"), False),
        (Sequential(), UserError("odd", "fix"), False),
        (Sequential(), torch.OutOfMemoryError("odd"), False),
    ],
)  # fmt: skip
def test_an_error_is_of_clients_where_each_works_for_itself(
    engine: Any, error: Exception, counts: bool
) -> None:
    def fail(job: Any) -> Any:
        raise error

    own = rank_of(engine)
    failed = [Refusal(client, FAILED, "ValueError: odd") for client in (2, 4)] if counts else []
    assert own._attempt(lambda ids: SimpleNamespace(ids=ids), [1, 2, 4], fail) == (
        [],
        failed,
        error,
    )
    assert own._attempt(lambda ids: None, [1, 3], fail) == ([], [], None)  # type: ignore[arg-type, return-value]
    done = own._attempt(lambda ids: ids, [1, 2], lambda job: "end")  # type: ignore[arg-type, return-value]
    assert done == ([([1, 2], "end")], [], None)


def test_listeners_take_one_argument() -> None:
    check_listeners(on_round=None, on_note=print, on_evaluation=lambda one: one)
    wrong: dict[str, Any] = {
        "on_round": lambda: None,
        "on_note": lambda a, b: a,
        "on_evaluation": 3,
    }
    for role, listener in wrong.items():
        with pytest.raises(UserError, match=f"^{role}: .* is no function of one argument") as told:
            check_listeners(**{role: listener})
        assert f"listener({'note' if role == 'on_note' else 'done'}): ..." in str(told.value)


def test_a_text_is_told_once_to_each_listener() -> None:
    heard: list[Note] = []
    tell = tell_once(heard.append)
    for note in (Note("a"), Note("b"), Note("a", "warning"), Note("a")):
        tell(note)
    assert heard == [Note("a"), Note("b")]


def end_of(round: int, score: float | None, counted: int = 4) -> RoundDone:
    scores = {} if score is None else {"validation": score}
    losses = {"validation": 1.0}
    return RoundDone(round, 9, 4, 0, 0, 0, 0, scores, losses, counted={"validation": counted})


def test_rounds_that_cannot_be_compared_are_told_once_and_do_not_count() -> None:
    heard: list[Note] = []
    stopping = EarlyStopping(2)
    stopping.tell = heard.append
    for done in (end_of(1, 0.5), end_of(2, None), end_of(3, None), end_of(4, 0.9, 3)):
        stopping(done)
    stopping(end_of(5, 0.9, 3))
    assert (stopping.waited, stopping.best, stopping.counted) == (0, 0.5, 4)
    end = "such rounds do not count for early stopping"
    assert heard == [
        Note(
            f"validation accuracy is undefined (NaN) for every client after round 2: {end}",
            "warning",
        ),
        Note(
            f"3 of 4 clients that were scored before have a score after round 4: {end}", "warning"
        ),
    ]
    stopping(end_of(6, 0.4, 5))  # more clients: a new measure
    assert (stopping.waited, stopping.best, stopping.counted) == (0, 0.4, 5)
    stopping(end_of(7, 0.4, 5))
    with pytest.raises(StopRun, match="validation accuracy did not get better in 2 evaluations"):
        stopping(end_of(8, 0.4, 5))


def test_refusals_of_all_rounds_and_of_the_last_are_counted(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.sqlite")
    assert read_refusals(store) == Refused(0, 0, 0, 0, "")
    odd, other = RefusalRow(3, "odd", "NaN"), RefusalRow(1, "late", "slow")
    lost = RefusalRow(7, "not-scored", "KeyError")
    store.record_round(RoundRecord(1, 1.0, 5, refusals=[odd, RefusalRow(2, "x")]))
    store.record_round(RoundRecord(2, 1.0, 4, refusals=[other, odd, lost, RefusalRow(1, "again")]))
    assert read_refusals(store) == Refused(
        updates=4, of=9, in_last_round=2, of_last_round=4, reason="late: slow",
        clients=(1, 2, 3), unscored=(7,), unscored_reason="KeyError", clients_of_last=(1, 3),
    )  # fmt: skip
    store.close()


@pytest.mark.parametrize(
    ("kind", "steps", "shape", "many", "said"),
    [
        ("regression", None, (3, 2), 2, "2 outputs, one for each number of an example"),
        ("multilabel", None, (3, 1), 1, "1 output, one for each label of an example"),
        ("classes", None, (3,), 2, "2 outputs, one for each class"),
        ("classes", None, (3, 4), 5, "5 outputs for every label of an example"),
        ("classes", 4, (3, 4), 2, "2 outputs for every label of an example"),
    ],
)
def test_what_outputs_a_net_should_have_is_said(
    kind: str, steps: int | None, shape: tuple[int, ...], many: int, said: str
) -> None:
    task = SimpleNamespace(
        kind=kind, of_classes=kind == "classes", facts=SimpleNamespace(steps=steps)
    )
    federation: Any = SimpleNamespace(classes=many, task=task, y=torch.zeros(shape))
    assert _as_many_outputs(federation) == f"give the net {said}"
    if kind == "classes" and len(shape) == 2 and steps is None:
        federation.classes = 2
        more = "give the net 2 outputs for every label of an example; "
        assert _as_many_outputs(federation).startswith(more)


def test_frozen_blocks_are_compared_by_name_with_those_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frozen, "_check_adapters", lambda before, now: None)
    monkeypatch.setattr(frozen, "_path", lambda folder, digest: Path(f"frozen-{digest}"))
    before = '{"z": "1", "b": "2", "a": "3"}'
    folder: Any = SimpleNamespace(store=SimpleNamespace(meta=lambda key: before))
    experiment: Any = SimpleNamespace(frozen=SimpleNamespace(hashes={"z": "1", "b": "2", "a": "3"}))
    frozen.check_frozen(folder, experiment)
    experiment.frozen.hashes = {"z": "9", "b": "2", "a": "4"}
    with pytest.raises(CheckpointError, match='the frozen block "a" is not the one') as told:
        frozen.check_frozen(folder, experiment)
    assert "frozen-3" in str(told.value)
    folder.store.meta = lambda key: None
    frozen.check_frozen(folder, experiment)


def test_code_is_described_by_kind_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        code_record, "_known", lambda kind: {"mine", "ours"} if kind == "net" else {}
    )
    entry = lambda kind, name: {"defines": f"{kind} {name}"} if name == "mine" else None
    monkeypatch.setattr(code_record, "_entry", entry)
    table = {"net": {"name": "mine"}, "method": {"name": "mine"}, "data": {"name": "d"}}
    assert code_record.entries_of(table) == [{"defines": "net mine"}]
    assert code_record.entries_of({"net": {"name": "ours"}}) == []
    monkeypatch.setattr(code_record, "_program", lambda: {"defines": "program"})
    assert code_record.entries_of({"data": {"name": code_record.PYTHON}}) == [
        {"defines": "program"}
    ]


@pytest.mark.parametrize(("writer", "waits"), [(7, 0), (None, 2)])
def test_a_lock_is_waited_for_if_nobody_writes(
    writer: int | None, waits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over in the moment it is reached."""
    held = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    fcntl.flock(held[0], fcntl.LOCK_EX)
    ticks = iter([10.0, 10.1, 10.2, 10.0 + lock.ORPHANS, 99.0])
    slept: list[float] = []
    monkeypatch.setattr(lock, "writer_of", lambda path: writer)
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(time, "sleep", slept.append)
    assert lock._locked(held[1], tmp_path) is False and len(slept) == waits
    fcntl.flock(held[0], fcntl.LOCK_UN)
    ticks = iter([10.0])
    assert lock._locked(held[1], tmp_path) is True
    for one in held:
        os.close(one)


def test_the_first_link_by_name_is_refused_however_deep(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    refuse_links(tmp_path), refuse_links(tmp_path, {"b"})
    (tmp_path / "b" / "deep" / "link").symlink_to(tmp_path)
    refuse_links(tmp_path), refuse_links(tmp_path, {"a"})
    with pytest.raises(RunFolderError, match="deep/link is a link") as told:
        refuse_links(tmp_path, {"b"})
    assert f"cp -RL {tmp_path} NEW" in str(told.value)
    for name in ("z", "y", "x"):
        (tmp_path / name).symlink_to(tmp_path)
    with pytest.raises(RunFolderError, match="/x is a link"):
        refuse_links(tmp_path)
    (pipe,) = [one for one in os.scandir(tmp_path) if one.name == "x"]
    with pytest.raises(RunFolderError, match="/x is a link"):
        _refuse_strange(pipe, tmp_path)
