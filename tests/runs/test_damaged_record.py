"""Damage to a run's record, or to its folder, is never silent."""

import os
import random
import shutil
import sqlite3
import tomllib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, Interrupted, RunFolderError
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import (
    ClientMetric,
    Note,
    RefusalRow,
    RoundRecord,
    Snapshot,
    Traffic,
)
from fedblocks.runs.storage.seals import SEALED
from fedblocks.runs.storage.store import VERSION, RunStore

Table = dict[str, Any]


def recorded(path: Path) -> bytes:
    """The file of a record with something in every table."""
    with closing(RunStore.create(path)) as store:
        store.set_meta("status", "finished")
        store.note("about the run")
        for round in range(1, 41):
            store.record_round(
                RoundRecord(
                    round,
                    1.5,
                    3,
                    [ClientMetric("test", "personal", c, round + c, 20, 0.5) for c in range(3)],
                    [Traffic(c, "body", "up", 100 + c) for c in range(3)],
                    [RefusalRow(1, "non-finite", "body: NaN")],
                    [Snapshot("alpha", c, [0.1, 0.9]) for c in range(3)],
                    [Note("a note")],
                )
            )
    return path.read_bytes()


def everything(path: Path) -> list[Any]:
    """All that can be read of a record that says it is whole."""
    with closing(RunStore(path)) as store:
        store.verify()
        return [store.rows(f"SELECT * FROM {table}") for table in (*SEALED, "meta")]


def flip(folder: Path, flips: int, seed: int) -> dict[str, int]:
    """How many of so many single bit flips were noticed, and how many changed nothing."""
    whole = recorded(folder / "whole.sqlite")
    expected = everything(folder / "whole.sqlite")
    rng = random.Random(seed)
    outcomes = {"noticed": 0, "harmless": 0, "silent": 0}
    for number in range(flips):
        content = bytearray(whole)
        content[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path = folder / f"{number}.sqlite"
        path.write_bytes(content)
        try:
            outcomes["harmless" if everything(path) == expected else "silent"] += 1
        except RunFolderError as error:
            assert error.fix
            outcomes["noticed"] += 1
        path.unlink()
    return outcomes


def test_a_flipped_bit_in_a_record_is_noticed_or_changes_nothing_that_is_read(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    outcomes = flip(tmp_path, 60, seed=1)
    record_property(
        "figure", f"{60 - outcomes['silent']} of 60 flipped bits are noticed or harmless"
    )
    assert outcomes["silent"] == 0 and outcomes["noticed"] >= 10  # the rest hits unused bytes


@pytest.mark.soak
def test_thousands_of_flipped_bits_are_noticed_or_change_nothing(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    outcomes = flip(tmp_path, 6000, seed=2)
    sound = 6000 - outcomes["silent"]
    record_property("figure", f"{sound} of 6000 flipped bits are noticed or harmless")
    assert outcomes["silent"] == 0 and outcomes["noticed"] >= 1000


def change(folder: Path, command: str) -> None:
    """Change a record as no part of the program would."""
    with closing(sqlite3.connect(folder / "run.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(command)


CHANGES = {
    "round 3 differs": "UPDATE client_metrics SET correct = correct + 1 WHERE round = 3",
    "round 2 differs": "DELETE FROM refusals WHERE round = 2",
    "round 5 differs": "INSERT INTO notes VALUES (5, 'now', 'info', 'made up')",
    "round 4 is missing": "DELETE FROM rounds WHERE round = 4",
    "facts and notes": "UPDATE meta SET value = 'running' WHERE key = 'status'",
    "its tables": "CREATE TABLE more (a)",
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_change_of_any_row_is_named(tmp_path: Path, message: str) -> None:
    recorded(tmp_path / "run.sqlite")
    change(tmp_path, CHANGES[message])
    with pytest.raises(RunFolderError, match=f"run.sqlite is damaged: .*{message}"):
        everything(tmp_path / "run.sqlite")


@pytest.fixture
def stopped(small: Table, tmp_path: Path) -> Path:
    """A run of eight rounds that was stopped after the fourth."""

    def stop(done: RoundDone) -> None:
        if done.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(Config.of(small | {"rounds": 8}), tmp_path / "run", on_round=stop)
    return tmp_path / "run"


@pytest.mark.parametrize("reader", [load_run, resume])
def test_a_run_with_a_changed_record_is_neither_read_nor_resumed(
    stopped: Path, reader: Callable[[Path], Any]
) -> None:
    change(stopped, "UPDATE means SET accuracy = 1 WHERE round = 2")
    with pytest.raises(RunFolderError, match="round 2 differs from its checksum"):
        reader(stopped)


def test_a_record_without_checksums_is_read_and_gets_them_when_its_run_goes_on(
    stopped: Path,
) -> None:
    change(stopped, "DROP TABLE seals")
    change(stopped, "DELETE FROM meta WHERE key IN ('seal', 'config')")
    change(stopped, "PRAGMA user_version = 1")
    assert load_run(stopped).rounds == 4
    assert resume(stopped).rounds == 8
    with RunFolder.open(stopped) as folder:
        folder.store.verify()
        assert folder.store.rows("PRAGMA user_version") == [{"user_version": VERSION}]
        assert len(folder.store.rows("SELECT * FROM seals")) == 8


def edit(folder: Path, section: str | None, key: str, value: Any) -> None:
    table = tomllib.loads((folder / "config.toml").read_text())
    (table if section is None else table[section])[key] = value
    (folder / "config.toml").write_text(tomli_w.dumps(table))


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("method", "batch_size", 16, r"method.batch_size was 8, now 16"),
        ("net", "hidden", [7], r"net.hidden was \[6\], now \[7\]"),
        (None, "rounds", 2, "rounds was 8, now 2"),
        (None, "rounds", "many", 'rounds was 8, now "many"'),
        (None, "seed", 4, "seed was 3, now 4"),
    ],
)
def test_a_run_does_not_go_on_with_an_edited_configuration(
    stopped: Path, section: str | None, key: str, value: Any, message: str
) -> None:
    edit(stopped, section, key, value)
    for read in (resume, load_run):  # nor are its numbers shown as those of another one
        with pytest.raises(RunFolderError, match=message):
            read(stopped)


def test_an_unfinished_run_may_be_given_more_rounds(stopped: Path) -> None:
    edit(stopped, None, "rounds", 10)
    assert resume(stopped).rounds == 10
    edit(stopped, None, "rounds", 8)
    with pytest.raises(RunFolderError, match="rounds was 10, now 8"):
        resume(stopped)


def test_a_run_without_its_record_is_told_from_a_folder_that_is_no_run(stopped: Path) -> None:
    (stopped / "run.sqlite").unlink()
    with pytest.raises(RunFolderError, match=r"has lost its record, run\.sqlite") as caught:
        resume(stopped)
    assert "restore run.sqlite from a copy" in caught.value.fix


def move(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replace(folder: Path) -> None:
    move(folder)
    shutil.copytree(folder.with_name("elsewhere"), folder)


def lose_record(folder: Path) -> None:
    os.unlink(folder / "run.sqlite")


@pytest.mark.parametrize("harm", [move, replace, shutil.rmtree, lose_record])
def test_a_folder_that_is_moved_or_deleted_ends_its_run_in_the_next_round(
    small: Table, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    rounds: list[int] = []

    def on_round(done: RoundDone) -> None:
        rounds.append(done.round)
        if done.round == 2:
            harm(tmp_path / "run")

    config = Config.of(small | {"rounds": 9, "checkpoint": {"every": 5}})
    with pytest.raises(RunFolderError, match=f"{tmp_path / 'run'} was moved, deleted or replaced"):
        run(config, tmp_path / "run", on_round=on_round)
    assert rounds == [1, 2]


def test_a_sealed_checkpoint_of_another_net_is_not_gone_on_from(
    small: Table, tmp_path: Path
) -> None:
    """Whoever can write to the folder can seal anything; numbers of other shapes are noticed."""

    def fail(done: RoundDone) -> None:
        if done.round == 2:
            raise RuntimeError("power cut")

    path = tmp_path / "run"
    with pytest.raises(RuntimeError, match="power cut"):
        run(Config.of(small | {"rounds": 3}), path, on_round=fail)
    loaded = checkpoint.load(path / "checkpoints")
    server = {
        block: {name: torch.cat([value, value], -1) for name, value in params.items()}
        for block, params in loaded.shared["server"].items()
    }
    checkpoint.save(
        path / "checkpoints",
        loaded.round,
        {**loaded.shared, "server": server},
        loaded.clients,
        None,
    )
    with pytest.raises(CheckpointError, match="holds other blocks than the method has"):
        resume(path)
