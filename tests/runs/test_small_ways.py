"""Small ways in and out of runs, each with stand-ins for what lies beyond it."""

from __future__ import annotations

import signal
import sqlite3
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import CheckpointError, RunFolderError, UserError
from fedblocks.runs import newest, python, rounds, run
from fedblocks.runs.grids.lanes import is_mapped
from fedblocks.runs.grids.method_grid import data_of, recipes_of
from fedblocks.runs.progress import RoundDone, RunWarning, print_too, warn_of
from fedblocks.runs.stopping import Stop
from fedblocks.runs.storage import database, lock
from fedblocks.runs.storage.config_record import refuse_edited
from fedblocks.runs.storage.manifest import refuse_nonsense
from fedblocks.runs.storage.record import Note

pytestmark = pytest.mark.filterwarnings("ignore:.*training rows")
DONE = RoundDone(2, 5, 1, 0.25, 1_000_000, 500_000, 1, {"test": 0.5})


def test_a_line_a_round_is_printed_and_the_listener_hears_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard: list[RoundDone] = []
    print_too(heard.append)(DONE)
    print_too(None)(DONE)
    said = capsys.readouterr()
    assert heard == [DONE] and said.out == ""
    line = "round 2/5  1 client  test 50.0%  1.50 MB  0.25 s  1 refused"
    assert said.err.splitlines() == [line, line]


class Mirror:
    """In the place of the mirrors of a run."""

    def __init__(self, *given: Any) -> None:
        self.given, self.heard, self.closed = given, [], False  # type: ignore[var-annotated]
        MADE.append(self)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def on_round(self, done: RoundDone) -> None:
        self.heard.append(done.round)


MADE: list[Mirror] = []


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> list[Mirror]:
    MADE.clear()
    monkeypatch.setattr(python, "Mirrors", Mirror)
    return MADE


def test_mirrors_hear_of_a_run_that_goes_on_and_so_does_the_listener(
    tmp_path: Path, mirrors: list[Mirror]
) -> None:
    heard: list[int] = []
    notes: list[Note] = []
    listen = lambda done: heard.append(done.round)
    method, data = fb.FedAvg(fb.small_net()), fb.small_federation()
    fb.run(method, data, 1, tmp_path / "run", track=["tensorboard"], on_round=listen)
    assert (heard, mirrors[0].heard, mirrors[0].closed) == ([1], [1], True)
    more = {"rounds": "+2", "on_round": listen, "on_note": notes.append}
    result = fb.resume(tmp_path / "run", method, data, track=["tensorboard"], **more)
    track, folder, config, tell = mirrors[1].given
    assert (track, folder, config.rounds) == (["tensorboard"], tmp_path / "run", 1)
    assert tell == notes.append
    assert (heard, mirrors[1].heard, result.rounds) == ([1, 2, 3], [2, 3], 3)
    fb.resume(tmp_path / "run", method, data, rounds="+1", track=["tensorboard"])
    assert mirrors[2].heard == [4]  # nobody listens beside it
    fb.resume(tmp_path / "run", method, data, rounds="+1", on_round=listen)
    assert heard == [1, 2, 3, 5] and len(mirrors) == 3


def test_checkpoints_that_were_passed_over_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = SimpleNamespace(round=3, skipped=["round-000004 is damaged"])
    monkeypatch.setattr(newest.checkpoint, "load", lambda path: loaded)
    monkeypatch.setattr(newest, "state_of", lambda *given: given)
    with pytest.warns(RunWarning, match="round-000004 is damaged; these are the models of round 3"):
        assert newest.newest_state(tmp_path) == (loaded, "cpu")


def test_a_comparison_hands_over_what_each_of_its_runs_uses() -> None:
    one, other = fb.small_federation(), fb.small_federation(sizes=(4, 4))
    by_seed = lambda seed: other if seed else one
    assert data_of(one, 3) is one and data_of(by_seed, 3) is other and data_of(by_seed, 0) is one
    methods = [fb.FedAvg(fb.small_net()), fb.Local(fb.small_net())]
    sampler = fb.SizeSampler()
    first, second = recipes_of(methods, by_seed, sampler)
    used = first(0), second(1)
    assert [list(use.methods.values()) for use in used] == [[methods[0]], [methods[1]]]
    assert [use.data for use in used] == [one, other]
    assert [use.sampler for use in used] == [sampler, sampler]


@pytest.mark.parametrize(
    ("device", "engine", "expected"),
    [
        ("cpu", fb.Sequential(), True), ("cpu", fb.Vectorised(), True),
        ("cuda", fb.Sequential(), False), ("cuda", fb.Vectorised(), True),
    ],
)  # fmt: skip
def test_a_run_is_done_client_by_client_on_a_gpu_alone(
    device: str, engine: Any, expected: bool
) -> None:
    data = SimpleNamespace(device=torch.device(device))
    prepared: Any = SimpleNamespace(experiment=SimpleNamespace(data=data), engine=engine)
    assert is_mapped(prepared) is expected


def test_the_first_ctrl_c_asks_and_the_second_stops_at_once() -> None:
    notes: list[Note] = []
    before = signal.getsignal(signal.SIGINT)
    with Stop(notes.append) as stop:
        assert not stop.asked
        signal.raise_signal(signal.SIGINT)
        assert stop.asked and [note.level for note in notes] == ["warning"]
        assert notes[0].text.startswith("stopping after this round")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_result_that_this_machine_does_not_see_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "load_run", lambda path: f"run in {path}")
    assert run.result_seen(tmp_path) == f"run in {tmp_path}"
    with pytest.raises(RunFolderError, match="does not see its folder"):
        run.result_seen(tmp_path / "elsewhere")


def test_ranks_hand_listeners_on_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = object()
    given: list[Any] = []
    listeners = [lambda done, turn=turn: turn for turn in range(3)]
    monkeypatch.setattr(run, "current_ranks", lambda: ranks)
    monkeypatch.setattr(run, "result_seen", lambda path: path)

    def part(*values: Any, **named: Any) -> Any:
        given.append((values, named))
        return tmp_path

    monkeypatch.setattr(run, "run_part", part)
    monkeypatch.setattr(run, "resume_part", part)
    config: Any = SimpleNamespace(method=SimpleNamespace(name="m"), data=SimpleNamespace(name="d"))
    assert run.run(config, tmp_path, *listeners) == tmp_path
    assert given[0] == ((ranks, config, tmp_path, *listeners), {})
    on_round, on_note, on_evaluation = listeners
    run.resume(tmp_path, on_round, on_note, None, on_evaluation, rounds="+1")
    values, named = given[1]
    assert values[:2] == (ranks, tmp_path) and list(values[3:]) == listeners
    assert named == {"rounds": "+1"} and values[2](config) is None


def test_lanes_that_decide_by_their_numbers_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The note comes with the round after which they are apart, and not again."""
    lanes: Any = SimpleNamespace(apart=["earlier"])
    record = rounds.RoundRecord(1, 0.0, 1, [], [], [], [], [Note("before")])

    def part(*given: Any) -> Any:
        lanes.apart.append("Own.loss")
        return [("state", record)]

    monkeypatch.setattr(rounds, "_play", part)
    prepared: Any = [SimpleNamespace(cohort=2)]
    _, [(_, own)] = rounds.play(lanes, prepared, [], fb.Sequential())  # type: ignore[list-item]
    assert [note.text for note in own.notes] == [
        "before", "Own.loss decides by numbers in which these lanes differ: one after another",
    ]  # fmt: skip
    monkeypatch.setattr(rounds, "_play", lambda *given: [("state", record)])
    _, [(_, own)] = rounds.play(lanes, prepared, [], fb.Sequential())  # type: ignore[list-item]
    assert own is record


class Facts(dict[str, str]):
    meta = dict.get


def test_a_configuration_may_have_more_rounds_and_nothing_else() -> None:
    store: Any = Facts(config='{"lr": 0.1, "rounds": 3}')
    for after in ({"lr": 0.1, "rounds": 3}, {"lr": 0.1, "rounds": 4}):
        refuse_edited(store, after)
    refuse_edited(store, {"lr": 0.1, "rounds": 5, "schedule_rounds": 3})
    refuse_edited(Facts(), {"any": 1})  # type: ignore[arg-type]
    refuse_edited(Facts({**store, "config-extended": '{"rounds": 1}'}), {"rounds": 1})  # type: ignore[arg-type]
    for after, said in (
        ({"lr": 0.1, "rounds": 2}, "rounds was 3, now 2"),
        ({"lr": 0.2, "rounds": 3}, "lr was 0.1, now 0.2"),
        ({"lr": 0.1, "rounds": 5, "schedule_rounds": 4}, "schedule_rounds was absent, now 4"),
        ({"rounds": 3}, "lr was 0.1, now absent"),
    ):
        with pytest.raises(RunFolderError, match=said):
            refuse_edited(store, after)
    many = {"rounds": 3, "lr": 0.1, **dict.fromkeys("abcdefg", 1)}
    with pytest.raises(RunFolderError, match="e was absent, now 1 and 2 more"):
        refuse_edited(store, many)


@pytest.mark.parametrize(
    ("writable", "side", "mode"),
    [(True, False, "rw"), (False, True, "ro"), (False, False, "ro&immutable=1")],
)
def test_a_record_is_opened_to_read_where_it_cannot_be_written(
    writable: bool, side: bool, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    file = tmp_path / "record.sqlite"
    if side:
        (tmp_path / "record.sqlite-wal").touch()
    monkeypatch.setattr(database.os, "access", lambda path, how: writable)
    connection = SimpleNamespace(execute=lambda text: opened.append(text))
    monkeypatch.setattr(
        sqlite3,
        "connect",
        lambda name, **how: opened.append(name) or connection,  # type: ignore[func-returns-value]
    )
    assert database.connect(file) is connection
    assert opened[0].endswith(f"/record.sqlite?mode={mode}")
    assert opened[1:] == ["PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("12 34 5\n", (12, "34", 5)), ("12 34\n", (12, "34", 0)), ("12 - 5\nmore 7", (12, "", 5)),
        ("12\n", (0, "", 0)), ("", (0, "", 0)), ("x 34 5", (0, "", 0)), (None, (0, "", 0)),
        ("12 34 x\n", (0, "", 0)),
    ],
)  # fmt: skip
def test_a_lock_says_process_start_and_round(
    text: str | None, read: tuple[int, str, int], tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / lock.LOCK).write_text(text)
    assert lock._read(tmp_path) == read and lock.noted_round(tmp_path) == read[2]


def test_nonsense_in_a_checkpoint_is_told_in_one_short_line() -> None:
    with pytest.raises(CheckpointError) as refused, refuse_nonsense("round-1"):
        raise KeyError("a" * 300)
    said = refused.value.message
    assert said.startswith("round-1: it holds no state of a run (KeyError: 'aaa")
    assert len(said) == len("round-1: it holds no state of a run ()") + 200
    with pytest.raises(CheckpointError, match=r"\(ValueError: one\)$"), refuse_nonsense("round-1"):
        raise ValueError("one\ntwo")
    with pytest.raises(UserError, match="as it is"), refuse_nonsense("round-1"):
        raise UserError("as it is")


def test_a_warning_is_shown_where_a_program_called_us() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of(Note("look", "warning"))
        warn_of(Note("only a note"))
    (shown,) = caught
    assert (str(shown.message), shown.filename) == ("look", __file__)
