"""Jobs, claims, scores and rows of reports on the server, at the edges of what counts."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.server import jobs, watching
from fedblocks.flower.server.enrolment import CEILING, Enrolment
from fedblocks.flower.server.score_bounds import find_absurd_losses, find_excesses
from fedblocks.flower.server.sending import requested_slots
from fedblocks.flower.server.side import ServerSide
from fedblocks.flower.wire.admission import Member
from fedblocks.flower.wire.messages import Malformed

from .stored_jobs import job_of, stored


@pytest.mark.parametrize("status", ["submitted", "running", "finished", "failed", "stopped"])
def test_a_job_has_an_end_while_it_is_over_and_keeps_its_first(status: str, tmp_path: Path) -> None:
    is_over = status in ("finished", "failed", "stopped")
    record = stored(tmp_path, status=status)
    assert record.is_over is is_over and (record.ended is not None) is is_over
    assert record.began is not None and record == jobs.load_job(tmp_path, record.name)
    again = jobs.update_job(tmp_path, record.name, reason="odd")
    assert again.ended == record.ended and again.reason == "odd"
    assert jobs.update_job(tmp_path, record.name, status="running").ended is None
    assert len(record.name) == len("train-") + 8 and record.name.startswith("train-")
    assert [one.name for one in jobs.unfinished_jobs(tmp_path)] == [record.name]


@pytest.mark.parametrize(
    ("error", "stop", "status", "reason", "fix", "code"),
    [
        (None, False, "finished", "", "", 2),
        (RunFolderError("m" * 1001, "f" * 1001), False, "failed", "m" * 1000, "f" * 1000,
         RunFolderError.exit_code),
        (ValueError("odd"), False, "failed", "odd", "", 2),
        (ValueError("odd"), True, "stopped", "", "", 2),
        (KeyboardInterrupt(), False, "running", "", "", 2),
    ],
)  # fmt: skip
def test_how_a_job_ended_is_noted_in_its_record(
    error: Any, stop: bool, status: str, reason: str, fix: str, code: int, tmp_path: Path
) -> None:
    name = stored(tmp_path).name

    def work() -> None:
        with jobs.working_on(tmp_path, name) as job:
            assert job == job_of() and jobs.load_job(tmp_path, name).status == "running"
            assert jobs.is_worked_on(tmp_path, name)
            if stop:
                jobs.update_job(tmp_path, name, status="stopped")
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    own = jobs.load_job(tmp_path, name)
    assert (own.status, own.reason, own.fix, own.exit_code) == (status, reason, fix, code)
    assert not jobs.is_worked_on(tmp_path, name)
    HOST.write(tmp_path)
    if status != "running":
        with pytest.raises(UserError, match=f"job {name} is over: {status}"):
            work()


HOST = ServerHost(federation="f", address="127.0.0.1", bind="127.0.0.1", insecure=True)


def test_a_full_disk_is_the_cause_of_a_job_by_its_file(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/run/a")
    cause = jobs._cause(full)
    assert cause["exit_code"] == RunFolderError.exit_code and "/run/a" in cause["reason"]
    other = jobs._cause(OSError(errno.EACCES, "no"))
    assert other == {"reason": "[Errno 13] no", "fix": "", "exit_code": 2}


@pytest.mark.parametrize(("insecure", "kind"), [(True, "simulate"), (False, "local")])
def test_a_run_is_continued_by_the_command_that_fits_its_server(
    insecure: bool, kind: str, tmp_path: Path
) -> None:
    own = tmp_path / "run" / "federation" / "server"
    HOST.model_copy(update={"insecure": insecure}).write(own)
    run = tmp_path / "run"
    assert jobs.command_for(own, run) == f"fedblocks federation {kind} {run}"
    there = f"fedblocks federation run {run} --server /far"
    assert jobs.command_for(Path("/far"), run) == there


@pytest.mark.parametrize(
    ("agreed", "largest", "claims", "wrong"),
    [
        ({(0, 1): 6}, None, {0: 3, 1: 3}, {}), ({(0, 1): 6}, None, {0: 4, 1: 3}, {0, 1}),
        ({(0, 1): 6}, None, {0: 7}, {0}), ({}, 5, {0: 5, 1: 6}, {1}),
        ({}, None, {0: CEILING}, {}), ({}, None, {0: CEILING + 1}, {0}),
        # five times the lower median of 1, 2 and 10
        ({}, None, {0: 1, 1: 2, 2: 10}, {}), ({}, None, {0: 1, 1: 2, 2: 11}, {2}),
        ({}, None, {0: 0, 1: 0, 2: 9}, {}), ({}, None, {0: 1, 1: 6}, {1}),
        # an agreed number of 8 for two is 4 for each: 20 and, with another 3, 15 are the bounds
        ({(0, 1): 8}, None, {0: 8, 2: 3, 3: 15}, {}),
        ({(0, 1): 8}, None, {0: 8, 2: 3, 3: 3, 4: 16}, {4}),
    ],
)  # fmt: skip
def test_claims_are_bounded_by_what_was_agreed_else_by_others(
    agreed: Any, largest: int | None, claims: dict[int, int], wrong: Any
) -> None:
    nodes = {client: 100 + client for client in claims}
    assert {*Enrolment(None, agreed, largest).excesses(claims, nodes)} == {*wrong}


def test_a_node_has_one_voice_and_keys_know_their_clients() -> None:
    own = Enrolment({b"a": (0, 1)}, {(5,): 0, (6, 7): 9, (8,): 4})
    claims = {0: 2, 1: 4, 2: 9, 3: 0, 5: 1, 6: 1}
    # nine for two is four for each; 5 has none agreed and counts as one; 8 is not there
    assert own._voices(claims, {0: 7, 1: 7}) == [1, 4, 2, 9]
    assert [own.knows(b"a", 1), own.knows(b"a", 2), own.knows(b"b", 0)] == [True, False, False]
    assert Enrolment().knows(b"", 9)


@pytest.mark.parametrize(("scored", "is_much"), [(10.0, False), (11.0, True)])
def test_scores_on_many_labels_are_compared_by_size(scored: float, is_much: bool) -> None:
    """Two labels for each example are usual: five times that for client 2, of one example."""
    counts = {0: (0.0, 2.0, 0.0), 1: (0.0, 2.0, 0.0), 2: (0.0, scored, 0.0), 3: (0.0, 0.0, 0.0)}
    sizes = dict.fromkeys(counts, 1)
    said = "it claims 11 labels, more than 10: 5 times the median for its size"
    assert find_excesses(counts, sizes) == ({2: said} if is_much else {})
    assert find_excesses({}, {}) == {} and find_excesses({0: (0.0, 0.0, 0.0)}, {0: 0}) == {}


@pytest.mark.parametrize(
    ("loss", "median", "is_much"),
    [(1e6, 0.5, False), (1.1e6, 0.5, True), (-1.1e6, 0.5, True), (2e6, 2.0, False),
     (2.1e6, 2.0, True), (float("nan"), 0.5, True)],
)  # fmt: skip
def test_a_loss_beyond_all_measure_is_named(loss: float, median: float, is_much: bool) -> None:
    counts = {0: (0.0, 2.0, 2 * median), 1: (0.0, 2.0, 2 * median), 2: (0.0, 1.0, loss),
              3: (0.0, 0.0, 9e9)}  # fmt: skip
    assert {*find_absurd_losses(counts)} == ({2} if is_much else set())


def test_slots_that_were_asked_for_to_train_with_are_ones() -> None:
    pool = SimpleNamespace(size=4, on_request=True)
    expected: Any = SimpleNamespace(federated={"p": pool, "s": SimpleNamespace(size=1)})
    request: Any = SimpleNamespace(train={"p": (1, 3)}, evaluate={"p": (0,)})
    assert requested_slots(expected, request)["p"].tolist() == [0, 1, 0, 1]
    with pytest.raises(Malformed, match="it never asked for its slots"):
        requested_slots(expected, None)
    pool.on_request = False
    assert requested_slots(expected, None) == {}


def test_a_cohort_has_the_tags_that_all_its_members_say() -> None:
    members = {4: Member(4, 10, 1.0, {"z": 1, "a": 2, "m": 3}),
               2: Member(2, 20, 1.0, {"z": 5, "a": 6, "x": 7})}  # fmt: skip
    side = ServerSide(methods={}, members=members, population=9, seed=0, run="r", unseen=(7, 8))
    cohort = side.cohort([4, 2], 3)
    assert cohort.ids.tolist() == [4, 2] and cohort.ids.dtype == torch.long
    assert cohort.sizes.tolist() == [10, 20] and cohort.sizes.dtype == torch.double
    assert {name: tag.tolist() for name, tag in cohort.tags.items()} == {"a": [2, 6], "z": [1, 5]}
    assert [*cohort.tags] == ["a", "z"] and cohort.population == 7 and cohort.round == 3
    assert cohort.unseen.tolist() == [7, 8] and cohort.unseen.dtype == torch.long
    empty = ServerSide(methods={}, members=members, population=9, seed=0, run="r").cohort([2], 0)
    assert empty.unseen.dtype == torch.long and empty.population == 9


class Store:
    """A record of three rounds and some notes."""

    def __init__(self, notes: Any = ()) -> None:
        self.notes, self.asked = [*notes], list[Any]()

    def last_round(self) -> int:
        return 3

    def rows(self, query: str, *what: Any) -> list[dict[str, Any]]:
        self.asked.append(what)
        if "MAX" in query:
            return [{"last": "then"}]
        if "FROM notes" in query:
            some = [{"rowid": n, "level": level, "text": text} for n, level, text in self.notes]
            return [row for row in some if not what or row["rowid"] > what[0]]
        return [{"round": n} for n in (1, 2, 3) if n > what[0]]


@pytest.mark.parametrize(("over", "told"), [(False, [1, 2]), (True, [1, 2, 3])])
def test_the_newest_round_is_told_when_it_is_whole(
    over: bool, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_done", lambda store, row, rounds: (row["round"], rounds))
    own, rounds, notes = watching._Reported(9), list[Any](), list[Any]()
    store: Any = Store([(1, "info", "a"), (2, "info", "stopped: b"), (3, "warning", "c"),
                        (4, "warning", "stopped: d")])  # fmt: skip
    monkeypatch.setattr(watching, "_has_scores", lambda store, round: False)
    for _ in range(2):
        own.tell(store, rounds.append, notes.append, over)
    assert rounds == [(n, 9) for n in told] and own.stopped == "d" and own.notes == 4
    assert [note.text for note in notes] == ["a", "stopped: b", "c"]


@pytest.mark.parametrize("after", [0, 2])
def test_what_was_told_before_is_skipped(after: int) -> None:
    own, notes = watching._Reported(9), list[Any]()
    own.skip(Store([(1, "info", "a"), (5, "info", "b")]), after, notes.append)  # type: ignore[arg-type]
    assert (own.done, own.before, own.notes) == (after, "then", 5)
    assert [n.text for n in notes] == ([f"going on after round {after}"] if after else [])


def test_all_that_is_known_of_a_round_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    means = [{"part": "test", "accuracy": 0.5, "clients": 4},
             {"part": "validation", "accuracy": 0.25, "clients": 3}]  # fmt: skip
    rows = lambda query, round: [{"n": 2}] if "refusals" in query else means
    store: Any = SimpleNamespace(rows=rows, metric=lambda: "a metric")
    monkeypatch.setattr(watching, "read_scored", lambda store, round: (5, 6))
    row = {"round": 3, "clients": 7, "seconds": 1.5, "bytes_down": 10, "bytes_up": 20}
    told = vars(watching._done(store, row, 9))
    assert {name: told[name] for name in (*row, "rounds", "refused", "scores", "metric", "counted",
                                          "scored", "population")} == {
        **row, "rounds": 9, "refused": 2, "scores": {"test": 0.5, "validation": 0.25},
        "metric": "a metric", "counted": {"test": 4, "validation": 3}, "scored": 5,
        "population": 6,
    }  # fmt: skip


@pytest.mark.parametrize("full", [[True, True, False, True], [False]])
def test_a_full_disk_is_told_each_time_that_it_fills(
    full: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(full)
    monkeypatch.setattr(watching, "is_full", lambda path: next(looks))
    monkeypatch.setattr(watching, "free_on", lambda path: "0 left")
    own, notes = watching._Reported(9), list[Any]()
    for _ in full:
        own.tell_of_full_disk(Path("/run"), notes.append)
    # when it is full for the first time, and again after there was room
    assert [note.level for note in notes] == ["warning"] * (2 if any(full) else 0)
    assert all(note.text.startswith("the disk of /run is full (0 left); make") for note in notes)


def test_a_failure_is_noted_with_its_code_and_what_to_do() -> None:
    done: list[Any] = []
    store: Any = SimpleNamespace(note=lambda *what: done.append(what), write_facts=done.append)
    watching.note_failure(store, RunFolderError("odd", "mend it"))
    watching.note_failure(store, ValueError("odd"))
    code = str(RunFolderError.exit_code)
    note = ("stopped: odd", "warning")
    assert done == [note, {"exit-code": code, "exit-fix": "mend it"},
                    note, {"exit-code": "2", "exit-fix": ""}]  # fmt: skip
