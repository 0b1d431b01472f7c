"""A run folder from a stranger keeps nobody waiting and fills no memory, whatever is in it."""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.sources import read_toml
from fedblocks.config.texts import MOST_BYTES
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import ClientMetric, RoundRecord, Snapshot
from fedblocks.runs.storage.seals import seal_rounds, seal_whole
from fedblocks.runs.storage.store import WITHOUT_SEALS

# rows without end: whoever reads them all never comes back
ENDLESS = """ALTER TABLE meta RENAME TO old;
CREATE VIEW meta AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
    SELECT 'key' || i AS key, 'value' AS value FROM n;"""
TRIGGER = "CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM rounds; END;"
READ = ["config.toml", "env.json", "code.json", "constants.safetensors"]
NESTED = ["checkpoints/round-000001/shared.json", "frozen/block.safetensors"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunFolder.create(tmp_path / "run", {"seed": 3}, {}).close()
    checkpoint.save(tmp_path / "run" / "checkpoints", 1, {"x": 1.0}, {}, changed=None)
    return tmp_path / "run"


def change_record(run: Path, script: str) -> None:
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        db.executescript(script)


@pytest.mark.parametrize("name", [*READ, *NESTED, "checkpoints", "checkpoints/round-000001"])
def test_nothing_is_read_through_a_link(run: Path, tmp_path: Path, name: str) -> None:
    elsewhere, place = tmp_path / "elsewhere", run / name
    place.parent.mkdir(exist_ok=True)
    place.rename(elsewhere) if place.exists() else elsewhere.touch()
    place.symlink_to(elsewhere)
    with pytest.raises(RunFolderError, match=f"{place.name} is a link") as caught:
        RunFolder.open(run)
    assert f"cp -RL {run} NEW_FOLDER" in caught.value.fix


@pytest.mark.parametrize("name", [*READ, *NESTED])
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(run: Path, name: str) -> None:
    place = run / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    with pytest.raises(RunFolderError, match=f"{place.name} is not a file") as caught:
        RunFolder.open(run)
    assert "bring the file back from a copy" in caught.value.fix  # without it there is no run


def test_links_that_trackers_make_are_left_alone(run: Path) -> None:
    (run / "wandb").mkdir()
    (run / "wandb" / "latest-run").symlink_to("offline-run")
    with RunFolder.open(run) as folder:
        folder.claim()


@pytest.mark.parametrize("version", [WITHOUT_SEALS, 2])
@pytest.mark.parametrize("script", [ENDLESS, TRIGGER], ids=["endless", "trigger"])
def test_a_record_with_other_tables_is_not_asked_anything(
    run: Path, script: str, version: int
) -> None:
    change_record(run, f"{script} PRAGMA user_version = {version};")
    if version == WITHOUT_SEALS:
        change_record(run, "DROP TABLE seals;")
    with pytest.raises(RunFolderError, match="its tables are not those of a record"):
        RunFolder.open(run)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE rounds SET seconds = 9e999", "column seconds of rounds"),
        ("UPDATE rounds SET bytes_up = -1", "column bytes_up of rounds"),
        ("UPDATE rounds SET started_at = x'00'", "column started_at of rounds"),
        ("UPDATE client_metrics SET examples = 'many'", "column examples of client_metrics"),
        ("UPDATE client_metrics SET extra = '[1]'", "column extra of client_metrics"),
        ("UPDATE snapshots SET numbers = '[\"a\"]'", "column numbers of snapshots"),
        ("INSERT INTO meta VALUES ('metrics', '{}')", 'the fact "metrics"'),
        (
            "INSERT INTO meta VALUES ('clients', '{\"rows\": 1}')",
            'the fact "clients"',
        ),
        (
            'INSERT INTO meta VALUES (\'clients\', \'{"names": ["a"], "rows": {"test": [1]}}\')',
            'the fact "clients"',
        ),
        (
            'INSERT INTO meta VALUES (\'clients\', \'{"names": ["a"], "rows": {"train": [-1]}}\')',
            'the fact "clients"',
        ),
        ("INSERT OR REPLACE INTO meta VALUES ('config', 'none')", 'the fact "config"'),
        ("INSERT INTO meta VALUES ('frozen', '[1]')", 'the fact "frozen"'),
        ("INSERT INTO meta VALUES ('claims', '{\"a\": 1}')", 'the fact "claims"'),
        ("INSERT INTO meta VALUES ('exit-code', '1e9')", 'the fact "exit-code"'),
        ("INSERT INTO meta VALUES ('patience-since', 'x')", 'the fact "patience-since"'),
        ("INSERT INTO means VALUES (2, 'test', 'personal', 1, 0.5)", "rounds that are not there"),
    ],
)
def test_rows_that_no_run_writes_are_refused_though_their_checksum_is_right(
    run: Path, change: str, what: str
) -> None:
    with RunFolder.open(run) as folder:
        metrics = [ClientMetric("test", "personal", 0, 1, 2, float("inf"), {"mse": 0.5})]
        snapshots = [Snapshot("alpha", 0, [0.25])]
        folder.store.record_round(RoundRecord(1, 0.5, 1, metrics, snapshots=snapshots))
        folder.store.verify()
    with closing(sqlite3.connect(run / "run.sqlite")) as db, db:
        db.execute(change)
        db.execute("INSERT OR IGNORE INTO seals SELECT round, '' FROM means")
        seal_rounds(db, 0)
        seal_whole(db)
    with RunFolder.open(run) as folder, pytest.raises(RunFolderError, match=what):
        folder.store.verify()


def environment(run: Path) -> Any:
    with RunFolder.open(run) as folder:
        return folder.environment


@pytest.mark.parametrize(
    ("name", "padding", "read"),
    [
        ("config.toml", "# {}\n", RunFolder.open),
        ("config.toml", "# {}\n", lambda run: read_toml(run / "config.toml")),
        ("env.json", '{{"command": [], "more": "{}"}}', environment),
    ],
)
def test_a_text_is_read_up_to_a_size_and_not_beyond(
    run: Path, name: str, padding: str, read: Callable[[Path], Any]
) -> None:
    room = MOST_BYTES - len(padding.format(""))
    (run / name).write_text(padding.format("x" * room))
    read(run)
    (run / name).write_text(padding.format("x" * (room + 1)))
    with pytest.raises(UserError, match="it has more than 2 MiB"):
        read(run)


def test_a_run_whose_configuration_could_not_be_read_again_is_not_begun(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="more than 2 MiB"):
        RunFolder.create(tmp_path / "run", {"name": "x" * MOST_BYTES}, {})
    assert not (tmp_path / "run").exists()


def test_code_of_a_record_that_is_too_large_is_none(run: Path) -> None:
    from fedblocks.runs.storage.code_record import read_entries

    entry = {"defines": "a", "package": "b"}
    (run / "code.json").write_text(json.dumps([entry]))
    assert read_entries(run) == [entry]
    (run / "code.json").write_text(json.dumps([{**entry, "package": "b" * MOST_BYTES}]))
    assert read_entries(run) == []
