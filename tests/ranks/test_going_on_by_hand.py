"""How ranks find the configuration and the state of a run that goes on, with stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.runs.ranks import run as starting
from fedblocks.runs.ranks.ranks import Ranks

from .in_threads import play_in_threads


class Folder:
    """A run folder that notes what is done with it."""

    def __init__(self, status: str) -> None:
        self.status, self.done = status, []  # type: ignore[var-annotated]

    def claim(self) -> None:
        self.done.append("claim")


def claimed(
    monkeypatch: pytest.MonkeyPatch, status: str, rounds: Any, **how: Any
) -> tuple[Any, list[str]]:
    """What becomes of a run with some status, and what was done in which order."""
    folder: Any = Folder(status)
    engine = how.get("engine", "sequential")
    config = SimpleNamespace(engine=engine)
    config.model_copy = lambda update: SimpleNamespace(**update)
    note = lambda text, value=None: lambda *given: folder.done.append(text) or value
    early = how.get("early", False)
    for module, names in {
        "extension": {"extend": note("extend"), "is_stopped_early": lambda folder: early},
        "result": {"config_of": note("config", config), "stored_config": lambda folder: "stored"},
        "run": {
            "check_untouched": note("look"), "refuse_real": note("real"),
            "with_the_same_engine": lambda config, folder: config,
        },
    }.items():  # fmt: skip
        for name, function in names.items():
            monkeypatch.setattr(f"fedblocks.runs.{module}.{name}", function)
    ingredients = how.get("ingredients")
    found = starting._claimed_config(folder, lambda stored: ingredients, rounds)
    return found, folder.done


def test_a_run_goes_on_unless_it_is_finished_and_nobody_asks_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, whole = ["claim", "look"], ["config", "real"]
    found, done = claimed(monkeypatch, "interrupted", None)
    assert found is not None and done == [*look, *whole]
    assert claimed(monkeypatch, "finished", None) == (None, look)
    found, done = claimed(monkeypatch, "finished", None, early=True)
    assert found is not None and done == [*look, *whole]
    found, done = claimed(monkeypatch, "finished", "+2")
    assert found is not None and done == [*look, "extend", *whole]
    # what was handed over is compared with the record of a finished run, too
    assert claimed(monkeypatch, "finished", None, ingredients="objects") == (
        None,
        [*look, "config"],
    )


@pytest.mark.parametrize(
    ("engine", "used"),
    [("processes", "sequential"), ("sequential", "sequential"), ("vectorised", "vectorised")],
)
def test_ranks_take_the_place_of_processes(
    engine: str, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = claimed(monkeypatch, "interrupted", None, engine=engine)
    assert found.engine == used


def test_only_the_first_rank_does_what_is_asked_and_all_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []

    def work(ranks: Ranks) -> Any:
        return starting._at_first(ranks, lambda: done.append(ranks.number) or "made")  # type: ignore[func-returns-value]

    assert play_in_threads(3, work, monkeypatch) == ["made", None, None] and done == [0]


def constants(value: float) -> Any:
    """A net with a constant, in two groups."""
    kept = {"scale": torch.tensor([value])}

    def set_constants(values: Any) -> None:
        kept["scale"] = values["scale"]

    net = SimpleNamespace(constants=kept, set_constants=set_constants)
    bare = SimpleNamespace(constants={}, set_constants=None)
    methods = {"all": SimpleNamespace(net=net), "others": SimpleNamespace(net=bare)}
    return SimpleNamespace(experiment=SimpleNamespace(methods=methods))


def test_nets_of_all_ranks_have_the_constants_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(ranks: Ranks) -> float:
        run = constants(float(ranks.number + 5))
        starting._same_constants(ranks, run)
        return run.experiment.methods["all"].net.constants["scale"].item()

    assert play_in_threads(3, work, monkeypatch) == [5.0, 5.0, 5.0]


@pytest.mark.parametrize("extended", [False, True])
def test_the_first_rank_checks_the_run_before_it_looks_for_a_checkpoint(
    extended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    note = lambda text: lambda *given: done.append(text)
    for module, names in {
        "extension": {"write_extension": note("extend")},
        "sameness": {"check_same_data": note("data")},
        "storage.behaviour": {"check_behaviour": note("behaviour")},
        "storage.constants": {"restore_constants": note("constants")},
        "storage.frozen": {"check_frozen": note("frozen")},
    }.items():
        for name, function in names.items():
            monkeypatch.setattr(f"fedblocks.runs.{module}.{name}", function)
    monkeypatch.setattr(starting.checkpoint, "has_checkpoints", lambda path: f"in {path}")
    folder: Any = SimpleNamespace(path="p", checkpoints="c", set_status=done.append)
    run: Any = SimpleNamespace(prepared=None, experiment=SimpleNamespace(methods=None))
    assert starting._look_for_checkpoint(folder, run, extended) == "in c"
    more = ["extend"] if extended else []
    assert done == ["data", "constants", "frozen", "behaviour", *more, "running"]


def test_a_rank_that_does_not_see_the_folder_is_told_the_configuration() -> None:
    config = fb.read_config("digits-fedavg", ["rounds=3"])
    said = {"table": config.resolved(), "source": ["there", ""], "engine": "vectorised"}
    told = starting._told_config(said, lambda stored: None)
    assert (told.rounds, told.engine, told.source.name) == (3, "vectorised", "there")


def test_objects_are_compared_with_those_of_the_run_at_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Any] = []
    copy = lambda update: ("copied", update)
    whole = SimpleNamespace(model_copy=copy)
    stored = SimpleNamespace(is_of_objects=True, of_objects=lambda objects: whole)
    monkeypatch.setattr(starting, "check_same", lambda *given: compared.append(given))
    monkeypatch.setattr(starting.Config, "stored", lambda table, source: stored)
    said = {"table": {}, "source": ["there", ""], "engine": "sequential"}
    told: Any = starting._told_config(said, lambda config: "objects")  # type: ignore[arg-type,return-value]
    assert compared == [(stored, "objects")] and told == ("copied", {"engine": "sequential"})


def test_how_a_run_is_spread_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = SimpleNamespace(get_backend=lambda group: f"by {group}")
    monkeypatch.setattr(starting, "dist", backend)
    prepared = SimpleNamespace(engine=fb.Sequential())
    run: Any = SimpleNamespace(prepared=prepared, ranks=Ranks(1, 4, 1.0, group="g"))
    assert starting.setting_of(run) == {"engine": "sequential", "ranks": 4, "backend": "by g"}


@pytest.mark.parametrize("there", [True, False])
def test_ranks_go_on_from_a_checkpoint_or_from_the_start(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    note = lambda text, value=None: lambda *given: done.append(text) or value
    monkeypatch.setattr(starting, "_look_for_checkpoint", note("look", there))
    monkeypatch.setattr(starting, "_same_constants", note("constants"))
    monkeypatch.setattr(starting, "notes_on_starting_anew", lambda folder: ["anew"])
    monkeypatch.setattr(starting, "notes_on_skipped", lambda round, skipped: [round, *skipped])
    monkeypatch.setattr(
        starting, "scattered_state", lambda ranks, owners, place: (place, ["one is damaged"])
    )
    found = SimpleNamespace(round=6)
    monkeypatch.setattr(starting, "state_of", lambda loaded, device: done.append(loaded) or found)
    monkeypatch.setattr(starting.checkpoint, "drop_later", lambda *given: done.append(given))
    monkeypatch.setattr("fedblocks.runs.run.changes_since", lambda folder, ranks: [f"of {ranks}"])
    monkeypatch.setattr("fedblocks.runs.run.refuse_other_blocks", note("blocks"))
    ranks: Any = SimpleNamespace(
        count=3, tell=lambda value: value, together=lambda work: work(),
        lead=lambda work, serve: work(),
    )  # fmt: skip
    experiment = SimpleNamespace(
        start=lambda: "start", owners=None, data=SimpleNamespace(device="cpu")
    )
    run: Any = SimpleNamespace(experiment=experiment, prepared=SimpleNamespace(notes=["known"]))
    folder: Any = SimpleNamespace(checkpoints="c", store=SimpleNamespace(last_round=lambda: 7))
    state, notes = starting._last_state(ranks, folder, run, False)
    if there:
        assert state is found and notes == ["known", "of 3", 6, "one is damaged"]
        assert done == ["look", "constants", ("c", 7), "blocks", ("c", 6)]
    else:
        assert state == "start" and notes == ["known", "of 3", "anew"]
        assert done == ["look", "constants"]
