"""A run that was stopped, killed or damaged ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, DataError, Interrupted, RunFolderError
from fedblocks.core.state import State
from fedblocks.data import Federation
from fedblocks.runs.federations import federation_of
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.storage.folder import RunFolder

Table = dict[str, Any]
# runs of each engine that are killed, here and in soak; rounds from one checkpoint to the next
KILLS, MANY, CHECKPOINT = 5, 25, 2


def tensors(node: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of nested dicts, by path."""
    for key, value in node.items():
        if isinstance(value, torch.Tensor):
            yield f"{path}/{key}", value
        else:
            yield from tensors(value, f"{path}/{key}")


def content(state: State) -> dict[str, torch.Tensor]:
    return dict(tensors({"server": state.server, "memory": state.memory, "private": state.private}))


def assert_same(found: RunResult, expected: RunResult) -> None:
    """The same state bit for bit, and the same record but for times."""
    ours, theirs = found.state(), expected.state()
    assert ours.round == theirs.round
    a, b = content(ours), content(theirs)
    assert a.keys() == b.keys() and len(a) > 0
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
    for table in ("client_metrics", "traffic", "snapshots", "means"):
        assert record(found, table) == record(expected, table), table
    assert (found.status, found.rounds) == (expected.status, expected.rounds)


def record(result: RunResult, table: str) -> list[dict[str, Any]]:
    with RunFolder.open(result.folder) as folder:
        return folder.store.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4")


class StopAt:
    """Ctrl-C during a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def __call__(self, done: RoundDone) -> None:
        if done.round == self.round:
            os.kill(os.getpid(), signal.SIGINT)


def stopped(config: Config, out: Path, round: int) -> None:
    with pytest.raises(Interrupted, match=f"fedblocks resume {out}"):
        run(config, out, on_round=StopAt(round))


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        (
            "sequential",
            {
                "name": "fedavg",
                "optimizer": {"name": "sgd", "momentum": 0.9},
                "keep_optimizer": True,
            },
        ),
        ("sequential", {"name": "fedem", "components": 2}),
        ("vectorised", {"name": "ditto"}),
        ("vectorised", {"name": "ifca", "clusters": 2}),
        ("vectorised", {"name": "pfedmb", "branches": 2}),
    ],
)
def test_a_stopped_and_resumed_run_ends_as_an_uninterrupted_one(
    small: Table, tmp_path: Path, engine: str, method: Table
) -> None:
    small |= {"rounds": 5, "engine": engine, "cohort": {"size": 0.5}, "evaluation": {"every": 2}}
    small["method"] = {"batch_size": 8, **method}
    config = Config.of(small)
    whole = run(config, tmp_path / "whole")
    stopped(config, tmp_path / "stopped", round=2)
    half = load_run(tmp_path / "stopped")
    # told in round 2's report, it ends after the next
    assert (half.status, half.rounds) == ("interrupted", 3)
    assert_same(resume(tmp_path / "stopped"), whole)


def test_rounds_after_the_last_checkpoint_are_done_again(small: Table, tmp_path: Path) -> None:
    config = Config.of(small | {"rounds": 7, "checkpoint": {"every": 3}})
    whole = run(config, tmp_path / "whole")

    def fail(done: RoundDone) -> None:
        if done.round == 5:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run(config, tmp_path / "cut", on_round=fail)
    assert (load_run(tmp_path / "cut").status, load_run(tmp_path / "cut").rounds) == ("failed", 5)
    seen: list[int] = []
    assert_same(resume(tmp_path / "cut", on_round=lambda done: seen.append(done.round)), whole)
    assert seen == [4, 5, 6, 7]


def test_a_second_stop_ends_the_round_at_once(small: Table, tmp_path: Path) -> None:
    def impatient(done: RoundDone) -> None:
        if done.round == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="round 2 is stored"):
        run(Config.of(small), tmp_path / "run", on_round=impatient)
    assert signal.getsignal(signal.SIGINT) is before
    assert resume(tmp_path / "run").status == "finished"


def damage(path: Path) -> None:
    """One byte in the middle of a file differs."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_and_said(small: Table, tmp_path: Path) -> None:
    config = Config.of(small | {"rounds": 6})
    whole = run(config, tmp_path / "whole")
    stopped(config, tmp_path / "run", round=3)
    damage(tmp_path / "run" / "checkpoints" / "round-000004" / "shared.safetensors")
    message: list[str] = []
    result = resume(tmp_path / "run", on_note=lambda note: message.append(note.text))
    assert_same(result, whole)
    assert any("round-000004" in text and "damaged" in text for text in message)
    assert "going on from round 3" in message
    assert any(
        "round-000004" in note["text"] and note["level"] == "warning" for note in result.notes
    )


def test_a_run_without_any_whole_checkpoint_is_an_error(small: Table, tmp_path: Path) -> None:
    stopped(Config.of(small | {"rounds": 6}), tmp_path / "run", round=3)
    for path in (tmp_path / "run" / "checkpoints").glob("round-*/manifest.json"):
        damage(path)
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        resume(tmp_path / "run")


def test_a_finished_run_is_left_as_it_is(small: Table, tmp_path: Path) -> None:
    done = run(Config.of(small), tmp_path / "run")
    seen: list[int] = []
    again = resume(tmp_path / "run", on_round=lambda one: seen.append(one.round))
    assert seen == []
    assert_same(again, done)


def test_a_run_does_not_go_on_with_other_data(small: Table, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    federation = federation_of(Config.of(small))
    federation.save(path)
    small["data"] = {"name": "saved", "options": {"path": str(path)}}
    stopped(Config.of(small), tmp_path / "run", round=1)
    x = federation.x.clone()
    x[0, 0] += 1
    Federation(x, federation.y, *federation.parts.values(), federation.classes).save(path)
    with pytest.raises(DataError, match="differ from those that the run was started with"):
        resume(tmp_path / "run")


def test_another_number_of_threads_is_said(small: Table, tmp_path: Path) -> None:
    stopped(Config.of(small), tmp_path / "run", round=1)
    path = tmp_path / "run" / "env.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 99}))
    message: list[str] = []
    resume(tmp_path / "run", on_note=lambda note: message.append(note.text))
    assert any("threads 99 -> " in text for text in message)


def test_a_folder_that_holds_a_run_is_not_overwritten(small: Table, tmp_path: Path) -> None:
    run(Config.of(small), tmp_path / "run")
    with pytest.raises(RunFolderError, match="already holds a run"):
        run(Config.of(small), tmp_path / "run")


def test_a_run_killed_while_its_record_was_made_is_started_again(
    small: Table, tmp_path: Path
) -> None:
    for name in ("env.json", "run.lock", "run.sqlite", "run.sqlite-journal"):
        (tmp_path / name).write_bytes(b"")
    assert run(Config.of(small), tmp_path).status == "finished"


Outcome = dict[str, Any]
ENGINES = ("vectorised", "sequential", "processes")


def kill_and_resume(root: Path, kills: int) -> Outcome:
    """Let runs of pFedMB be killed at random instants and resumed, with each engine."""
    options = {"rows": 160, "classes": 3, "features": 5}
    table = {
        "rounds": 8,
        "device": "cpu",
        "data": {"name": "gaussian", "clients": 6, "options": options, "split": [0.6, 0.2, 0.2]},
        "net": {"name": "mlp", "hidden": [6]},
        "method": {"name": "pfedmb", "batch_size": 8, "branches": 2},
        "cohort": {"size": 3},
        "evaluation": {"every": 3},
        "checkpoint": {"every": CHECKPOINT},
    }
    configs = [root / f"{engine}.toml" for engine in ENGINES]
    for config in configs:
        more = {"engine": config.stem} | ({"processes": 2} if config.stem == "processes" else {})
        config.write_text(tomli_w.dumps(table | more))
    server = [sys.executable, str(Path(__file__).with_name("kill_server.py")), str(root)]
    done = subprocess.run(
        [*server, str(kills), str(CHECKPOINT), *map(str, configs)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    outcome: Outcome = json.loads(done.stdout)
    return outcome


def assert_resumed(root: Path, outcome: Outcome) -> None:
    """All runs ended as the one that was not killed."""
    whole = load_run(root / "whole")
    assert outcome["whole"] == 0 and whole.status == "finished"
    for number, one in enumerate(outcome["killed"]):
        assert one["resumed"] == 0, (root / f"killed-{number}.log").read_text()
        assert_same(load_run(root / f"killed-{number}"), whole)
    reached = {one["rounds"] for one in outcome["killed"]}
    assert min(reached) == 0 and max(reached) >= 4  # from the start to the last rounds


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    root = tmp_path_factory.mktemp("kills")
    return root, kill_and_resume(root, KILLS)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_killed_at_any_instant_is_resumed_to_the_same_bits(
    killed: tuple[Path, Outcome], engine: str, record_property: Callable[[str, str], None]
) -> None:
    root, outcome = killed
    assert_resumed(root / engine, outcome["engines"][engine])
    record_property("figure", f"{engine}: {KILLS} of {KILLS} kills")


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_run_killed_often_is_resumed_to_the_same_bits(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    outcome = kill_and_resume(tmp_path, MANY)
    for engine in ENGINES:
        assert_resumed(tmp_path / engine, outcome["engines"][engine])
        record_property("figure", f"{engine}: {MANY} of {MANY} kills")


def test_ctrl_c_ends_with_code_130_and_the_command_to_go_on(killed: tuple[Path, Outcome]) -> None:
    root, outcome = killed
    assert outcome["asked"] == 130
    assert f"fedblocks resume {root / 'asked'}" in (root / "asked.log").read_text()
    assert outcome["asked_resumed"] == 0
    assert_same(load_run(root / "asked"), load_run(root / ENGINES[0] / "whole"))
