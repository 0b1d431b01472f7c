"""Mirrors of a run: they get its numbers, they never stop it, and they leave no trace
in its results.
"""

import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.config.presets import read_config, read_trackers
from fedblocks.core.errors import UserError
from fedblocks.runs import beside, trackers
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.run import run
from fedblocks.runs.storage.record import Note
from fedblocks.runs.trackers import PROJECT, Mirrors

Table = dict[str, Any]
ROUND = RoundDone(2, 5, 4, 0.5, 3_000_000, 1_000_000, 1, {"validation": 0.75})
NUMBERS = {
    "accuracy/validation": 0.75,
    "megabytes/down": 3.0,
    "megabytes/up": 1.0,
    "clients": 4,
    "refused": 1,
    "seconds": 0.5,
}


def pretend(monkeypatch: pytest.MonkeyPatch, package: str, module: Any) -> None:
    """Let a package be installed, with this module."""
    monkeypatch.setattr(trackers, "find_spec", lambda name: object() if name == package else None)
    monkeypatch.setattr(trackers, "import_module", lambda name: module)


def calls_of(*names: str) -> tuple[SimpleNamespace, list[tuple[str, Any, Any]]]:
    """A module with these functions, and the calls that they got."""
    calls: list[tuple[str, Any, Any]] = []
    module = SimpleNamespace()

    def record(function: str) -> Callable[..., Any]:
        return lambda *given, **named: calls.append((function, given, named)) or module

    for name in names:
        setattr(module, name, record(name))
    return module, calls


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """What stands in TensorBoard's event files: records of (length, checksum, event, checksum)."""
    from tensorboardX.proto.event_pb2 import Event

    actual = {}
    for file in folder.glob("events.*"):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            actual |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            data = data[12 + size + 4 :]
    return actual


def test_tensorboard_gets_every_number_of_every_round(small: Table, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs tensorboardX: pip install 'fedblocks[track]'")
    config, message = Config.of(small), list[RoundDone]()
    with Mirrors(["tensorboard"], tmp_path / "run", config) as mirrors:
        run(config, tmp_path / "run", lambda done: message.append(done) or mirrors.on_round(done))
    actual = scalars(tmp_path / "run" / "tensorboard")
    wanted = {(k, done.round): v for done in message for k, v in trackers.numbers_of(done).items()}
    assert len(message) == config.rounds and actual == pytest.approx(wanted)


def test_a_mirrored_run_has_the_same_record_as_one_that_is_not(
    small: Table, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboardX", reason="needs tensorboardX: pip install 'fedblocks[track]'")
    config = Config.of(small)
    plain = run(config, tmp_path / "plain")
    with Mirrors(["tensorboard"], tmp_path / "mirrored", config) as mirrors:
        mirrored = run(config, tmp_path / "mirrored", mirrors.on_round)
    first, second = (
        (tmp_path / name / "config.toml").read_bytes() for name in ("plain", "mirrored")
    )
    assert first == second and plain.last == mirrored.last


def test_a_file_may_name_trackers_and_its_configuration_stays_the_same(tmp_path: Path) -> None:
    text = 'rounds = 1\nmethod = "fedavg"\nnet = "mlp"\ndata = { name = "digits", clients = 3 }\n'
    for name, more in (("plain", ""), ("mirrored", '[track]\nto = ["tensorboard"]\n')):
        (tmp_path / f"{name}.toml").write_text(text + more)
    mirrored = str(tmp_path / "mirrored.toml")
    assert read_trackers(mirrored) == ["tensorboard"]
    assert read_trackers(mirrored, ['track.to=["mlflow"]']) == ["mlflow"]
    assert read_config(mirrored) == read_config(str(tmp_path / "plain.toml"))


@pytest.mark.parametrize(
    ("track", "said"),
    [
        (
            '[track]\nto = ["tensorbord"]',
            ['a.toml:2: track.to: there is no tracker "tensorbord"', '"tensorboard"'],
        ),
        ('[track]\nto = "tensorboard"', ["a.toml:2: track", 'to = ["tensorboard"]']),
        ("[track]\nwhere = 3", ["a.toml:1: track", 'to = ["tensorboard"]']),
    ],
)
def test_a_wrong_table_of_trackers_is_told_with_its_line(
    tmp_path: Path, track: str, said: list[str]
) -> None:
    (tmp_path / "a.toml").write_text(track)
    with pytest.raises(UserError) as caught:
        read_trackers(str(tmp_path / "a.toml"))
    assert all(words in str(caught.value) for words in said)


def test_a_tracker_that_is_not_installed_says_what_to_install_and_the_run_goes_on(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    notes: list[Note] = []
    mirrors = Mirrors(["tensorboard", "wandb"], tmp_path, Config.of(small), notes.append)
    mirrors.on_round(ROUND)
    mirrors.close()
    assert [note.level for note in notes] == ["warning", "warning"]
    assert 'tensorboardX; pip install "fedblocks[track]"' in notes[0].text
    assert "pip install wandb" in notes[1].text


@pytest.mark.parametrize("when", ["init", "log", "finish"])
def test_a_tracker_that_fails_is_switched_off_with_one_warning(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    module, calls = calls_of("init", "log", "finish")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    setattr(module, when, fail)
    pretend(monkeypatch, "wandb", module)
    notes: list[Note] = []
    with Mirrors(["wandb"], tmp_path, Config.of(small), notes.append) as mirrors:
        mirrors.on_round(ROUND)
        mirrors.on_round(ROUND)
    assert [note.text for note in notes] == [
        'tracker "wandb" failed and is off: OSError: no network'
    ]
    assert [name for name, *_ in calls] == {
        "init": [],
        "log": ["init"],
        "finish": ["init", "log", "log"],
    }[when]


def test_weights_and_biases_is_offline_unless_its_own_setting_says_otherwise(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    module, calls = calls_of("init", "log", "finish")
    pretend(monkeypatch, "wandb", module)
    config = Config.of(small)
    with Mirrors(["wandb"], tmp_path / "a", config) as mirrors:
        mirrors.on_round(ROUND)
    begin, log, finish = calls
    assert (
        begin[2]["mode"] == "offline"
        and begin[2]["name"] == "a"
        and begin[2]["config"] == config.resolved()
    )
    assert (begin[2]["project"], begin[2]["dir"]) == (PROJECT, str(tmp_path / "a"))
    assert log == ("log", (NUMBERS,), {"step": 2}) and finish[0] == "finish"


def test_trackio_gets_the_same_numbers(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, calls = calls_of("init", "log", "finish")
    pretend(monkeypatch, "trackio", module)
    with Mirrors(["trackio"], tmp_path / "a", Config.of(small)) as mirrors:
        mirrors.on_round(ROUND)
    assert [name for name, *_ in calls] == ["init", "log", "finish"]
    config = Config.of(small).resolved()
    assert calls[0] == ("init", (), {"project": PROJECT, "name": "a", "config": config})
    assert calls[1] == ("log", (NUMBERS,), {"step": 2})


def test_mlflow_gets_options_and_numbers_in_the_folder_of_the_run(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    module, calls = calls_of(
        "set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics", "end_run"
    )
    pretend(monkeypatch, "mlflow", module)
    with Mirrors(["mlflow"], tmp_path / "a", Config.of(small)) as mirrors:
        mirrors.on_round(ROUND)
    by_name = {name: (given, named) for name, given, named in calls}
    assert by_name["set_tracking_uri"][0] == (f"sqlite:///{tmp_path / 'a' / 'mlflow.db'}",)
    assert by_name["set_experiment"][0] == (PROJECT,)
    assert by_name["start_run"] == ((), {"run_name": "a"})
    assert by_name["log_params"][0][0]["method.batch_size"] == str(small["method"]["batch_size"])
    assert by_name["log_metrics"] == ((NUMBERS,), {"step": 2})
    assert calls[-1][0] == "end_run"


def test_a_tracker_that_exits_is_switched_off_and_the_run_goes_on(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: Any, **__: Any) -> None:
        raise SystemExit(3)

    pretend(monkeypatch, "trackio", SimpleNamespace(init=lambda **_: None, log=leave, finish=leave))
    config, notes = Config.of(small), list[Note]()
    with Mirrors(["trackio"], tmp_path / "run", config, notes.append) as mirrors:
        result = run(config, tmp_path / "run", mirrors.on_round)
    assert result.status == "finished" and result.rounds == config.rounds
    assert [note.text for note in notes] == ['tracker "trackio" failed and is off: SystemExit: 3']


def test_a_tracker_that_hangs_does_not_hold_up_the_run(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, entered = threading.Event(), threading.Event()

    def hang(*_: Any, **__: Any) -> None:
        entered.set()
        released.wait()

    pretend(monkeypatch, "trackio", SimpleNamespace(init=lambda **_: None, log=hang, finish=hang))
    monkeypatch.setattr(trackers, "PATIENCE", 0.1)
    notes: list[Note] = []
    with Mirrors(["trackio"], tmp_path / "run", Config.of(small), notes.append) as mirrors:
        for _ in range(3):  # each of them would wait for ever
            mirrors.on_round(ROUND)
        assert entered.wait(60)
    released.set()
    assert [note.text for note in notes] == [
        'tracker "trackio" was not done in time: its last rounds may be missing'
    ]


def test_a_tracker_that_is_far_behind_misses_rounds_and_says_so_once(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, entered = threading.Event(), threading.Event()
    logged: list[int] = []

    def log(numbers: Any, step: int) -> None:
        entered.set()
        released.wait()
        logged.append(step)

    nothing = lambda **_: None
    pretend(monkeypatch, "trackio", SimpleNamespace(init=nothing, log=log, finish=nothing))
    monkeypatch.setattr(beside, "WAITING", 2)
    notes: list[Note] = []
    with Mirrors(["trackio"], tmp_path / "run", Config.of(small), notes.append) as mirrors:
        mirrors.on_round(replace(ROUND, round=1))
        assert entered.wait(60)  # it works on round 1
        for round in range(2, 7):
            mirrors.on_round(replace(ROUND, round=round))
        released.set()
    assert logged == [1, 2, 3]
    assert [note.text for note in notes] == [
        'tracker "trackio" is 2 rounds behind: it misses some from 4 on'
    ]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_is_opened_with_the_project_the_run_and_its_configuration(
    name: str, small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    module, calls = calls_of("init", "log", "finish")
    pretend(monkeypatch, name, module)
    folder, config = tmp_path / "a", Config.of(small)
    with Mirrors([name], folder, config) as mirrors:
        mirrors.on_round(ROUND)
    usual = {"project": "fedblocks", "name": "a", "config": config.resolved()}
    more = {"dir": str(folder), "mode": "online"} if name == "wandb" else {}
    assert calls == [
        ("init", (), {**usual, **more}),
        ("log", (NUMBERS,), {"step": 2}),
        ("finish", (), {}),
    ]
