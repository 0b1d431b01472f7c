"""How a run is begun and gone on with, call by call."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.core.state import State
from fedblocks.runs import run as module
from fedblocks.runs.storage.record import Note


class Folder:
    """A folder of a run that notes what is done with it."""

    path, checkpoints = Path("here"), "checkpoints"

    def __init__(
        self, done: list[Any], status: str = "stopped", engine: str = "vectorised"
    ) -> None:
        self.done, self.status = done, status
        meta = {"engine": engine}.get
        self.store = SimpleNamespace(meta=meta, last_round=lambda: 7)
        self.claim = lambda: done.append("claim")
        self.set_status = lambda status: done.append(("status", status))

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("left")


class OwnLane(SimpleNamespace):
    """What a run is carried out with."""

    def __init__(self, folder: Any, prepared: Any, state: Any, notes: Any) -> None:
        super().__init__(folder=folder, prepared=prepared, state=state, notes=notes)


CONFIG = SimpleNamespace(
    engine="auto", method=SimpleNamespace(name="m"), data=SimpleNamespace(name="d"),
    model_copy=lambda update: ("copy", update), resolved=lambda: {"a": 1},
)  # fmt: skip
PREPARED = SimpleNamespace(
    config="prepared", notes=["own"], engine=SimpleNamespace(name="quick"),
    experiment=SimpleNamespace(start=lambda: "start"),
)  # fmt: skip


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is done, with a stand-in for everything that a run needs."""
    done: list[Any] = []

    @contextmanager
    def hardware(config: Any) -> Any:
        done.append(("hardware", config))
        yield

    def carry_out(lanes: Any, engine: Any, *listeners: Any) -> None:
        (lane,) = lanes
        assert isinstance(lane.folder, Folder) and lane.prepared is PREPARED
        done.append((lane.state, lane.notes, lane.on_evaluation, engine, *listeners))

    note = lambda name: lambda *given: done.append((name, *given[1:]))
    stand_ins = {
        "current_ranks": lambda: None, "hardware": hardware, "Lane": OwnLane,
        "carry_out": carry_out, "load_run": lambda path: ("loaded", path),
        "check_untouched": note("untouched"), "is_stopped_early": lambda folder: False,
        "extend": note("extend"), "config_of": lambda folder, ingredients: CONFIG,
        "refuse_real": note("real"), "check_same_run": note("same"),
        "last_state": lambda folder, prepared: (prepared is PREPARED and "state", ["skipped"]),
        "write_extension": note("extended"), "changes_since": lambda folder: ["moved"],
        "prepare": lambda config: done.append(("prepare", config)) or PREPARED,
        "environment": lambda: {"python": "3", "engine": "?"},
    }  # fmt: skip
    for name, own in stand_ins.items():
        monkeypatch.setattr(module, name, own)
    return done


@pytest.mark.parametrize("out", ["there", None])
def test_a_run_is_carried_out_in_a_folder_of_its_own(
    out: str | None, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = lambda *given: done.append(given) or Folder(done)
    monkeypatch.setattr(module, "RunFolder", SimpleNamespace(create=create))
    monkeypatch.setattr(module, "free_folder", lambda stem: Path("free") / stem)
    found: Any = module.run(CONFIG, out, "round", "note", "evaluation")  # type: ignore[arg-type]
    path = Path(out or "free/m-d")
    assert found == ("loaded", path)
    about = {"python": "3", "engine": "quick", "ranks": 1}
    end = ("start", ["own"], "evaluation", PREPARED.engine, "round", "note")
    assert done == [
        ("prepare", CONFIG), ("hardware", CONFIG), (path, {"a": 1}, about), end, "left",
    ]  # fmt: skip


def resumed(folder: Folder, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    monkeypatch.setattr(module, "RunFolder", SimpleNamespace(open=lambda path: folder))
    return module.resume("here", "round", "note", None, "evaluation", **more)  # type: ignore[arg-type]


BEGUN = ["claim", ("untouched",)]


@pytest.mark.parametrize("rounds", [None, "+3"])
@pytest.mark.parametrize("status", ["stopped", "finished"])
def test_a_run_goes_on_if_it_has_not_ended_or_gets_more_rounds(
    rounds: str | None, status: str, done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resumed(Folder(done, status), monkeypatch, rounds=rounds) == ("loaded", "here")
    if status == "finished" and rounds is None:
        assert done == [*BEGUN, "left"]
        return
    same = ("copy", {"engine": "vectorised"})
    notes = ["own", "moved", "skipped"]
    more = rounds is not None
    assert done == [
        *BEGUN, *([("extend", "+3")] * more), ("real",), ("prepare", same), ("same", PREPARED),
        *([("extended",)] * more), ("status", "running"), ("hardware", "prepared"),
        ("state", notes, "evaluation", PREPARED.engine, "round", "note"), "left",
    ]  # fmt: skip


def test_a_run_that_has_ended_is_looked_at_with_its_objects_and_not_gone_on_with(
    done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "config_of", lambda *given: done.append(given[1:]) or CONFIG)
    monkeypatch.setattr(
        module, "RunFolder", SimpleNamespace(open=lambda path: Folder(done, "finished"))
    )
    module.resume("here", ingredients="objects")  # type: ignore[arg-type]
    assert done == [*BEGUN, ("objects",), "left"]


def test_one_of_several_ranks_plays_its_part(
    done: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = lambda *given, **more: done.append((*given[:3], *given[3:], more)) or tmp_path
    for name in ("run_part", "resume_part"):
        monkeypatch.setattr(module, name, part)
    monkeypatch.setattr(module, "current_ranks", lambda: "ranks")
    listeners = ("round", "note", "evaluation")
    assert module.run(CONFIG, "out", *listeners) == ("loaded", tmp_path)  # type: ignore[arg-type, comparison-overlap]
    assert done.pop() == ("ranks", CONFIG, Path("out"), *listeners, {})
    more: Any = ("here", "round", "note", "objects", "evaluation")
    assert module.resume(*more, rounds=9) == ("loaded", tmp_path)  # type: ignore[comparison-overlap]
    ranks, path, find, *others = done.pop()
    assert (ranks, path, find(0)) == ("ranks", Path("here"), "objects")
    assert others == [*listeners, {"rounds": 9}]
    with pytest.raises(RunFolderError, match="this machine does not see its folder"):
        module.result_seen(tmp_path / "elsewhere")


def test_a_run_is_untouched_if_its_record_and_configuration_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    store = SimpleNamespace(verify=lambda: done.append("verified"), meta=lambda key: None)
    folder: Any = SimpleNamespace(store=store, config="config", path=Path("p"))
    for name in ("refuse_edited", "remember_config"):
        monkeypatch.setattr(module, name, lambda *given, name=name: done.append((name, *given)))
    module.check_untouched(folder)
    own = (store, "config")
    assert done == ["verified", ("refuse_edited", *own), ("remember_config", *own)]
    module.refuse_real(folder)
    store.meta = lambda key: "1" if key == module.REAL else None
    with pytest.raises(RunFolderError, match="p is a run of a real federation, whose clients"):
        module.refuse_real(folder)


def test_a_run_that_was_stopped_early_goes_on(
    done: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_stopped_early", lambda folder: True)
    resumed(Folder(done, "finished"), monkeypatch)
    assert ("status", "running") in done


@pytest.mark.parametrize(
    ("asked", "before", "kept"),
    [("auto", "quick", False), ("auto", None, True), ("sequential", "quick", True)],
)
def test_the_engine_that_was_chosen_stays(asked: str, before: str | None, kept: bool) -> None:
    config: Any = SimpleNamespace(engine=asked, model_copy=lambda update: update)
    folder: Any = SimpleNamespace(store=SimpleNamespace(meta={"engine": before}.get))
    found: Any = module.with_the_same_engine(config, folder)
    assert (found is config) is kept and (kept or found == {"engine": "quick"})


@pytest.mark.parametrize("last", [9, None])
def test_the_newest_whole_checkpoint_is_where_a_run_goes_on(
    last: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    state = SimpleNamespace(server={})
    loaded = SimpleNamespace(round=6, skipped=["7"])
    storage = SimpleNamespace(
        has_checkpoints=lambda path: path == "checkpoints",
        load=lambda *given: done.append(given) or loaded,
        drop_later=lambda *given: done.append(("dropped", *given)),
    )
    monkeypatch.setattr(module, "checkpoint", storage)
    monkeypatch.setattr(
        module, "state_of", lambda own, device: (own, device) == (loaded, 3) and state
    )
    monkeypatch.setattr(module, "notes_on_skipped", lambda *given: [given])
    monkeypatch.setattr(module, "notes_on_starting_anew", lambda folder: ["anew"])
    monkeypatch.setattr(module, "refuse_other_blocks", lambda *given: done.append(given))
    experiment = SimpleNamespace(data=SimpleNamespace(device=3), start=lambda: "start")
    prepared: Any = SimpleNamespace(experiment=experiment)
    folder = SimpleNamespace(
        checkpoints="checkpoints", store=SimpleNamespace(last_round=lambda: last)
    )
    assert module.last_state(folder, prepared) == (state, [(6, ["7"])])  # type: ignore[arg-type]
    assert done == [("checkpoints", last or 0), (state, "start"), ("dropped", "checkpoints", 6)]
    folder.checkpoints = "none"
    assert module.last_state(folder, prepared) == ("start", ["anew"])  # type: ignore[arg-type, comparison-overlap]


def test_a_state_of_other_blocks_is_refused() -> None:
    state = lambda **blocks: State(4, {"model": blocks}, {}, {})
    own = state(w=torch.zeros(2))
    module.refuse_other_blocks(own, state(w=torch.ones(2)))
    for other in (state(w=torch.zeros(3)), state(v=torch.zeros(2)), state(w=torch.zeros(2).half())):
        with pytest.raises(CheckpointError, match="the checkpoint of round 4 holds other blocks"):
            module.refuse_other_blocks(own, other)


def test_what_may_change_last_bits_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"cpu": "c", "devices": [], "versions": {"torch": "2"}, "python": "3"}
    monkeypatch.setattr(module, "environment", lambda: {**same, "threads": 2})
    changes = lambda *ranks, **before: [
        note.text.rpartition(": ")[2]
        for note in module.changes_since(SimpleNamespace(environment=before), *ranks)  # type: ignore[arg-type]
    ]
    assert changes(**same, threads=2) == changes(**same | {"python": "4"}, threads=2) == []
    assert changes(**same, threads=3) == ["threads 3 -> 2"]
    assert changes(4, **same, threads=2) == ["ranks 1 -> 4"]
    assert changes(4, **same, threads=2, ranks=4) == []
    folder: Any = SimpleNamespace(environment={**same, "threads": 2, "cpu": "d"})
    text = "not where it was started, last bits may differ: cpu d -> c"
    assert module.changes_since(folder) == [Note(text, "warning")]
