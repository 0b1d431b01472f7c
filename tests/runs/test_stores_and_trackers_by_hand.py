"""Blocks that stand still, messages between ranks, trackers and records: piece by piece."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.blocks import Private, Shared
from fedblocks.core.errors import CheckpointError
from fedblocks.runs import engine_choice, experiment, idle_blocks, result, shelf, trackers
from fedblocks.runs.ranks import build
from fedblocks.runs.ranks.ranks import (
    BRIEF,
    _brief,
    _bytes,
    _content,
    _from_bytes,
    _length,
    _to_bytes,
)
from fedblocks.runs.refusals import GIVES_NAN, read_refusals
from fedblocks.runs.shelf import Shelf
from fedblocks.runs.storage import checkpoint, frozen, store
from fedblocks.runs.storage.record import Note, RefusalRow, RoundRecord
from fedblocks.runs.storage.store import RunStore

PART: Any = None  # of a net: what a block has, which nobody asks here


@pytest.mark.parametrize("length", [0, 3, BRIEF])
def test_a_short_message_travels_with_its_length(length: int) -> None:
    content = b"x" * length
    brief = _brief(content)
    assert brief.shape == (BRIEF + 8,) and brief.dtype == torch.uint8
    assert _length(brief) == length and _content(brief) == content
    assert brief[8 + length :].sum() == 0


def test_of_a_long_message_the_length_travels_first() -> None:
    brief = _brief(b"x" * (BRIEF + 1))
    assert _length(brief) == BRIEF + 1 and brief[8:].sum() == 0 and len(brief) == BRIEF + 8
    assert _bytes(b"").shape == (0,) and _bytes(b"\x07\x01").tolist() == [7, 1]


def test_a_tree_becomes_bytes_and_a_tree_again() -> None:
    tree = {"a": {"w": torch.arange(3)}, "n": 4, "s": "text"}
    again = _from_bytes(_to_bytes(tree))
    assert again["a"]["w"].tolist() == [0, 1, 2] and (again["n"], again["s"]) == (4, "text")
    assert int.from_bytes(_to_bytes(tree)[:8], "little") < len(_to_bytes(tree))


def test_ranks_compare_configurations_code_and_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    ranks: Any = SimpleNamespace(
        together=lambda work: work(), share=lambda own: seen.append(own) or [own, own]
    )
    config: Any = SimpleNamespace(resolved=lambda: {"out": Path("a"), "hidden": (3, 4)})
    monkeypatch.setattr(build, "_code", lambda: {"torch": "2"})
    monkeypatch.setattr(build, "_own_code", lambda own: ["mine"])
    monkeypatch.setattr(build, "_refuse_others", lambda said: seen.append(len(said)))
    build.check_alike(ranks, config)
    table = {"out": "a", "hidden": [3, 4]}
    assert seen == [{"config": table, "code": {"torch": "2"}, "own code": ["mine"]}, 2]


def job_of(steps: int, lr: float = 0.1, kept: float | None = None) -> Any:
    """Two clients, who train the block "w" for so many steps; only the second is known."""
    update = SimpleNamespace(train=("w",), lr=lr)
    return SimpleNamespace(
        ids=[3, 5], batches=[[[0] * steps], [[0]]], cohort=SimpleNamespace(round=1),
        phases=[SimpleNamespace(updates=[update])],
        sent=SimpleNamespace(blocks={"w": {"k": torch.tensor([[1.0], [2.0]])}}),
    )  # fmt: skip


@pytest.mark.parametrize(("own", "is_idle"), [(2.0, True), (3.0, False), (None, False)])
@pytest.mark.parametrize(("steps", "everybody", "looked"), [(2, False, True), (1, False, False),
                                                            (1, True, True)])  # fmt: skip
def test_private_blocks_stand_still_if_all_known_clients_have_what_they_began_with(
    own: float | None, is_idle: bool, steps: int, everybody: bool, looked: bool
) -> None:
    private = {} if own is None else {5: {"w": {"k": torch.tensor([own])}}}
    after: Any = SimpleNamespace(server={}, private=private)
    method: Any = SimpleNamespace(blocks=lambda: {"w": Private(PART)})
    found = idle_blocks._idle_blocks(
        method, job_of(steps), SimpleNamespace(server={}), after, everybody
    )  # type: ignore[arg-type]
    assert [*found] == (["w"] if is_idle and looked else [])


@pytest.mark.parametrize("moved", [0.0, 1.0])
@pytest.mark.parametrize(("lr", "own_code"), [(0.1, False), (0.0, True), (0.0, False)])
def test_blocks_that_nobody_trains_count_in_own_methods_alone(
    moved: float, lr: float, own_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_blocks, "is_own", lambda method: own_code)
    kept = {"k": torch.tensor([2.0])}
    state: Any = lambda add: SimpleNamespace(
        server={name: {"k": torch.ones(1) + add} for name in ("w", "x")}, private={5: {"p": kept}}
    )
    layout = {"w": Shared(PART), "p": Private(PART), "x": Shared(PART, of="w")}
    method: Any = SimpleNamespace(blocks=lambda: layout)
    job = job_of(2, lr)
    job.sent.blocks["p"] = job.sent.blocks["w"]  # nobody trains it, and 5 has what it was sent
    found = [*idle_blocks._idle_blocks(method, job, state(0), state(moved), True)]
    idle = ["w"] if not moved and (lr or own_code) else []
    assert found == idle + (["p"] if own_code else [])


@pytest.mark.parametrize(("worth", "short"), [(4320.0, False), (4320.1, True)])
def test_a_run_is_short_by_the_operations_of_its_largest_net(
    worth: float, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6 * 3 rounds * 2 clients * (1 + 2) epochs * 5 rows * 8 parameters."""
    monkeypatch.setattr(engine_choice.Net, "size", lambda net: net)
    phases = [SimpleNamespace(epochs=1), SimpleNamespace(epochs=2)]
    methods = {n: SimpleNamespace(net=n, phases=lambda n=n: phases[: n - 6]) for n in (7, 8, 3)}
    sizes = torch.tensor([4.0, 6.0])
    own: Any = SimpleNamespace(
        methods=methods, data=SimpleNamespace(train=SimpleNamespace(sizes=sizes))
    )
    config: Any = SimpleNamespace(rounds=3)
    assert engine_choice._is_short(config, own, 2, worth) is short


class Noting:
    """A package of a tracker: every call of it is noted."""

    def __init__(self, done: list[Any], name: str = "") -> None:
        self.done, self.name = done, name

    def __getattr__(self, name: str) -> Any:
        return Noting(self.done, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.done.append((self.name, *args, kwargs) if kwargs else (self.name, *args))
        return self


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("name", [*trackers.TRACKERS])
def test_trackers_are_opened_told_and_closed(
    name: str, server: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(trackers, "import_module", lambda package: Noting(done))
    for variable, value in (("WANDB_MODE", "online"), ("MLFLOW_TRACKING_URI", "there")):
        monkeypatch.delenv(variable, raising=False)
        if server:
            monkeypatch.setenv(variable, value)
    config: Any = SimpleNamespace(resolved=lambda: {"a": {"b": "x" * 501}, "c": 2})
    tracker = trackers.TRACKERS[name](tmp_path, config)
    tracker.log(3, {"loss": 0.5, "accuracy": 0.25})
    tracker.close()
    about = {"project": "fedblocks", "name": tmp_path.name, "config": config.resolved()}
    numbers = {"loss": 0.5, "accuracy": 0.25}
    database = f"sqlite:///{tmp_path.resolve()}/mlflow.db"
    wanted: dict[str, list[Any]] = {
        "tensorboard": [
            ("SummaryWriter", str(tmp_path / "tensorboard")), ("add_scalar", "loss", 0.5, 3),
            ("add_scalar", "accuracy", 0.25, 3), ("flush",), ("close",),
        ],
        "wandb": [
            ("init", {**about, "dir": str(tmp_path), "mode": "online" if server else "offline"}),
            ("log", numbers, {"step": 3}), ("finish",),
        ],
        "trackio": [("init", about), ("log", numbers, {"step": 3}), ("finish",)],
        "mlflow": [
            *([] if server else [("set_tracking_uri", database)]), ("set_experiment", "fedblocks"),
            ("start_run", {"run_name": tmp_path.name}),
            ("log_params", {"a.b": "x" * 500, "c": "2"}), ("log_metrics", numbers, {"step": 3}),
            ("end_run",),
        ],
    }  # fmt: skip
    assert done == wanted[name]


def test_files_that_cannot_be_shared_are_written_instead(tmp_path: Path) -> None:
    draft, older = tmp_path / "draft", tmp_path / "older"
    for folder in (draft, older):
        folder.mkdir()
    (older / "a").write_text("a")
    entries: Any = {"a": {}, "b": {}}
    assert checkpoint._link(draft, older, entries) == {} and not os.listdir(draft)
    (older / "b").write_text("b")
    assert checkpoint._link(draft, older, entries) is entries
    assert sorted(os.listdir(draft)) == ["a", "b"] and (older / "a").stat().st_nlink == 2


def test_of_several_other_frozen_blocks_the_first_by_name_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frozen, "_check_adapters", lambda before, now: None)
    names = "qwertyuiopasdfgh"
    folder: Any = SimpleNamespace(
        store=SimpleNamespace(meta=lambda key: str(dict.fromkeys(names, "1")).replace("'", '"')),
        path=Path("f"),
    )
    own: Any = SimpleNamespace(frozen=SimpleNamespace(hashes=dict.fromkeys(names, "2")))
    with pytest.raises(CheckpointError, match='the frozen block "a" is not the one'):
        frozen.check_frozen(folder, own)


def test_the_cause_of_nan_is_that_of_the_notes(tmp_path: Path) -> None:
    record = RunStore.create(tmp_path / "run.sqlite")
    cause = f"conclude {GIVES_NAN}, in round 1"
    refusals = [RefusalRow(0, "not-finite", "NaN")]
    record.record_round(RoundRecord(1, 1.0, 2, refusals=refusals, notes=[Note("a"), Note(cause)]))
    found = read_refusals(record)
    assert found.cause == cause == found.advice
    record.close()


def test_a_run_whose_rounds_were_lost_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Any) -> None:
        raise KeyError(folder)

    monkeypatch.setattr(result, "refuse_lost_rounds", refuse)
    with pytest.raises(KeyError, match="a folder"):
        result.result_of("a folder")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "damaged", "odd", "said"),
    [
        (store.VERSION, None, None, ""), (store.VERSION, "seals", "odd", "seals"),
        (store.VERSION, None, "odd", "odd"), (store.WITHOUT_SEALS, "seals", None, ""),
        (store.WITHOUT_SEALS, "seals", "odd", "odd"),
    ],
)  # fmt: skip
def test_a_record_of_before_has_no_seals_to_be_looked_at(
    version: int, damaged: str | None, odd: str | None, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    record = RunStore.create(tmp_path / "run.sqlite")
    record._version = version
    monkeypatch.setattr(store.seals, "damage", lambda db: damaged)
    monkeypatch.setattr(store, "find_nonsense", lambda db: odd)
    refused = pytest.raises(store.RunFolderError, match=f"is damaged: {said}\n")
    with refused if said else nullcontext():
        record.verify()
    assert not record._db.in_transaction
    record.close()


@dataclass
class Section:
    """The data of a configuration, with options in an order of their own."""

    options: dict[str, int]
    name: str = "d"

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"name": self.name, "options": self.options}


def test_options_in_another_order_are_the_same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(shelf, "federation_of", lambda config, pool: made.append("one") or "read")
    monkeypatch.setattr(Shelf, "_place", lambda self, fresh, device: f"{fresh} on {device}")
    own = Shelf()
    for options in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        config: Any = SimpleNamespace(data=Section(options), task=None)
        assert own.federation(config, torch.device("cpu")) == ("read", "read on cpu")
    assert made == ["one"] and len(own.federations) == 1
    own.federation(config, torch.device("meta"))
    assert len(made) == 2


@pytest.mark.parametrize("group", [experiment.ALL, "a"])
def test_what_is_wrong_with_a_net_or_a_method_is_told_of_its_group(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[Any] = []
    asked: list[Any] = []
    monkeypatch.setattr(experiment, "placed", lambda _, p: places.append(p) or nullcontext())
    monkeypatch.setattr(experiment, "_method_of_objects", lambda *_: method)
    for name in ("check_structure", "_check_degenerate", "_check_tags"):
        monkeypatch.setattr(
            experiment, name, lambda *given, name=name: asked.append((name, *given))
        )
    method: Any = SimpleNamespace(net="net", over=lambda rounds: f"over {rounds}")
    config: Any = SimpleNamespace(horizon=7, allow_degenerate=False)
    choice: Any = SimpleNamespace(name="m")
    assert experiment._method(config, group, choice, choice, "data") == "over 7"  # type: ignore[arg-type, comparison-overlap]
    above = () if group == experiment.ALL else ("groups", "a")
    assert places == [(*above, "net"), (*above, "method")]
    assert asked == [
        ("check_structure", method), ("_check_degenerate", "over 7", False),
        ("_check_tags", "m", "over 7", "data"),
    ]  # fmt: skip
