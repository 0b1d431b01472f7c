"""How a run on the server begins, goes on and ends, and how newcomers get their models."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.flower.server import service as module
from fedblocks.flower.server.app import RoundRules
from fedblocks.flower.server.service import _ending, serve
from fedblocks.flower.server.side import Ask

from .test_service_exactly import at, closed, service


class Folder:
    """Stands in for a run's folder."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.store = "store"

    def set_status(self, status: str) -> None:
        self.done.append(status)

    def claim(self) -> None:
        self.done.append("claimed")


@pytest.mark.parametrize(
    ("error", "stopped", "ends"),
    [
        (None, False, ["running", "finished"]),
        (UserError("odd"), False, ["running", ("store", "odd"), "failed"]),
        (UserError("odd"), True, ["running", "interrupted"]),
        (KeyboardInterrupt(), False, ["running"]),
    ],
)
def test_how_a_run_ended_is_written_to_its_folder(
    error: BaseException | None, stopped: bool, ends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Any = Folder()
    note = lambda store, why: folder.done.append((store, why.message))
    monkeypatch.setattr(module, "note_failure", note)
    raised = pytest.raises(type(error)) if error else nullcontext()
    with raised, _ending(folder, lambda: stopped):
        if error:
            raise error
    assert folder.done == ends


def test_a_full_disk_does_not_hide_the_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RunFolderError("the disk is full", "make room")

    monkeypatch.setattr(module, "note_failure", full)
    folder: Any = Folder()
    with pytest.raises(ValueError, match="first"), _ending(folder, lambda: False):
        raise ValueError("first")
    assert folder.done == ["running"]


@pytest.mark.parametrize("kind", ["train", "adapt"])
def test_a_job_trains_in_a_folder_of_its_own_or_gives_models_beside_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder()
    job = SimpleNamespace(kind=kind, folder="there")
    asked: list[Any] = []
    own = SimpleNamespace(
        adapt=lambda: folder.done.append("adapted"), train=lambda: folder.done.append("trained")
    )
    monkeypatch.setattr(module, "working_on", lambda *what: asked.append(what) or nullcontext(job))
    monkeypatch.setattr(
        module.RunFolder, "open", lambda path: asked.append(path) or nullcontext(folder)
    )
    monkeypatch.setattr(module, "config_of", lambda folder: SimpleNamespace(threads=3))
    monkeypatch.setattr(module, "threads", lambda count: asked.append(count) or nullcontext())
    monkeypatch.setattr(module.Service, "of", lambda *what: asked.append(what[:3]) or own)
    monkeypatch.setattr(module, "check_untouched", lambda its: folder.done.append("checked"))
    monkeypatch.setattr(module, "load_job", lambda *_: SimpleNamespace(status="running"))
    serve("grid", Path("server"), "train-1")  # type: ignore[arg-type]
    server = Path("server")
    assert asked == [(server, "train-1"), Path("there"), 3, ("grid", server, job)]
    trained = ["claimed", "checked", "running", "trained", "finished"]
    assert folder.done == (trained if kind == "train" else ["adapted"])


@pytest.mark.parametrize(("more", "goal"), [(1.0, None), (1.5, 2)])
def test_a_run_waits_for_its_clients_plays_its_rounds_and_evaluates(
    more: float, goal: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, done = service(more=more, attempts=4)
    monkeypatch.setattr(own, "_go_on", lambda: "progress")
    monkeypatch.setattr(own, "_restart_clock", lambda: done.append("clock"))
    monkeypatch.setattr(own, "_evaluate", lambda last: done.append(last))
    monkeypatch.setattr(module, "run_rounds", lambda *what: done.append(what) or "last")
    own.train()
    rules = RoundRules(rounds=6, minimum=2, seconds=9.0, goal=goal, attempts=4, patience=5.0)
    played = (own.registry, own.side, rules, own._choose, "progress", own._closed)
    assert done == [([0, 1, 2, 3], 2, 5.0), "clock", played, "last"]
    assert own.folder.store.done == [(module.POPULATION, "4")]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("round", "notes", "noted"),
    [
        (4, ["passed over"], [({}, ["4 passed over"])]),
        (4, [], []),
        (0, [], [({}, ["anew"])]),
    ],
)
def test_a_run_goes_on_from_what_can_be_read_and_what_is_later_goes(
    round: int, notes: list[str], noted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = service()
    asked: list[Any] = []
    before = at(round)
    monkeypatch.setattr(
        module.progresses, "load", lambda *what: asked.append(what) or (before, notes)
    )
    monkeypatch.setattr(module, "notes_on_skipped", lambda n, some: [f"{n} {one}" for one in some])
    monkeypatch.setattr(module, "notes_on_starting_anew", lambda folder: ["anew"])
    monkeypatch.setattr(module.checkpoint, "drop_later", lambda *what: asked.append(what))
    assert own._go_on() is before
    assert asked == [("checkpoints", own.side, 0), ("checkpoints", round)]
    assert own.folder.store.done == noted  # type: ignore[attr-defined]


def test_a_message_of_its_own_is_played_with_whatever_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, _ = service()
    monkeypatch.setattr(module, "OpenRound", lambda *what: what)
    monkeypatch.setattr(module.Link, "of", lambda registry: registry)
    monkeypatch.setattr(module, "play_round", lambda *what: what)
    asked = (own.side, "progress", [1], "ask")
    played: Any = own._ask("progress", [1], "ask")  # type: ignore[arg-type]
    assert played == (own.registry, asked, 0, 9.0)


def test_newcomers_get_their_models_and_each_is_told_how_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, done = service(clients=(0, 1))
    own.job.clients = (7, 8)  # type: ignore[misc]
    loaded: list[Any] = []
    monkeypatch.setattr(
        module.progresses, "load", lambda *what: loaded.append(what) or ("progress", ["odd"])
    )
    counts = {"validation/personal": {7: (0.0, 0.0, 0.0)}, "test/personal": {7: (3.0, 4.0, 2.0)}}
    report = SimpleNamespace(refusals=[Refusal(8, "shape", "odd")])
    over = closed(evaluated=SimpleNamespace(counts=counts), report=report)
    monkeypatch.setattr(own, "_ask", lambda *what: done.append(what) or over)
    own.adapt()
    join = Ask(train=False, evaluate=("validation", "test"), joining=True)
    assert done == [([7, 8], 2, 5.0), ("progress", [7, 8], join)]
    assert loaded == [("checkpoints", own.side)]
    # three of four labels are right
    assert own.folder.store.done == [  # type: ignore[attr-defined]
        ("passed over a checkpoint: odd", "warning"),
        ("client 8 got no model: shape, odd", "warning"),
        ("client 7 has its model: validation/personal no examples",),
        ("client 7 has its model: test/personal 75.0%",),
    ]
