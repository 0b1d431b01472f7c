"""A record never loses rounds without a word, whatever becomes of the files beside it."""

import json
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import main
from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.seals import SEALED
from fedblocks.watch.terminal import view_of
from tests.warm import run_warm

Table = dict[str, Any]
KILLED = """
import json, os, sqlite3, sys
from fedblocks.cli import main
from fedblocks.config.model import Config
from fedblocks.runs.run import run
reader = None
def on_round(done):
    global reader
    if str(done.round) == sys.argv[3]:  # from now on, somebody reads
        reader = sqlite3.connect(sys.argv[2] + "/run.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rounds").fetchall()
    if done.round == 5:
        os._exit(9)  # without closing the record
run(Config.of(json.loads(sys.argv[1])), sys.argv[2], on_round=on_round)
"""
SEVEN = {"rounds": 7, "checkpoint": {"keep": 2}}


def killed(small: Table, folder: Path, changes: Table, read_from: int = 0) -> Path:
    """A run that was killed after its fifth round; a reader kept what came after a round from
    being moved to the record itself, if there is such a round.
    """
    table = json.dumps(small | changes)
    done = run_warm(["-c", KILLED, table, str(folder), str(read_from)])
    assert done.returncode == 9, done.stderr
    return folder


def rows(folder: Path) -> list[Any]:
    """All that can be read of a run that says it is whole."""
    load_run(folder)
    with RunFolder.open(folder) as opened:
        return [opened.store.rows(f"SELECT * FROM {table}") for table in (*SEALED, "meta")]


def test_what_a_killed_run_had_recorded_stands_in_the_record_itself(
    small: Table, tmp_path: Path
) -> None:
    folder = killed(small, tmp_path / "run", SEVEN)
    shutil.copytree(folder, tmp_path / "copy")
    for side in ("run.sqlite-wal", "run.sqlite-shm"):
        (folder / side).unlink()
    assert rows(folder) == rows(tmp_path / "copy") and load_run(folder).rounds == 5


def flips(folder: Path, seed: int, pages: int) -> Iterator[tuple[int, int]]:
    """Places and bits of a side file: a bit of every byte of its header and of the headers of its
    frames, and a few of each page.
    """
    rng = random.Random(seed)
    size = (folder / "run.sqlite-wal").stat().st_size
    places = [*range(32)]
    for start in range(32, size, 24 + 4096):
        places += [*range(start, start + 24)]
        places += [start + 24 + rng.randrange(4096) for _ in range(pages)]
    return ((place, 1 << rng.randrange(8)) for place in places)


def outcome(folder: Path, expected: list[Any], read: Callable[[Path], object]) -> str:
    """What a reader makes of a damaged run; it may not be another run without a word."""
    try:
        read(folder)
        now = rows(folder)
    except (RunFolderError, CheckpointError) as error:
        assert error.fix and str(folder) in error.message
        return "noticed"
    return "harmless" if now == expected else "silent"


def test_a_flipped_bit_beside_the_record_is_noticed_or_changes_nothing(
    small: Table, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    folder = killed(small, tmp_path / "run", SEVEN, read_from=2)
    shutil.copytree(folder, tmp_path / "copy")
    expected = rows(tmp_path / "copy")
    assert len(expected[0]) == 5
    outcomes: Counter[str] = Counter()
    for place, bit in flips(folder, seed=1, pages=1):
        shutil.rmtree(tmp_path / "copy")
        shutil.copytree(folder, tmp_path / "copy")
        with (tmp_path / "copy" / "run.sqlite-wal").open("r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ bit]))
        outcomes[outcome(tmp_path / "copy", expected, lambda path: None)] += 1
    tried, sound = outcomes.total(), outcomes.total() - outcomes["silent"]
    record_property("figure", f"{sound} of {tried} flipped bits are noticed or harmless")
    assert outcomes["silent"] == 0 and outcomes["noticed"] >= 100


@pytest.mark.parametrize("harm", ["run.sqlite-wal", "half", "frame", "run.sqlite-shm"])
def test_a_run_with_lost_rounds_is_read_by_nobody_and_goes_on_without_a_gap(
    small: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    whole = run(Config.of(small | SEVEN), tmp_path / "whole")
    folder = killed(small, tmp_path / "run", SEVEN, read_from=4)
    wal = folder / "run.sqlite-wal"
    if harm == "half":
        wal.write_bytes(wal.read_bytes()[: wal.stat().st_size // 2])
    elif harm == "frame":
        wal.write_bytes(wal.read_bytes()[:5000] + b"x" + wal.read_bytes()[5001:])
    else:
        (folder / harm).unlink()
    if harm != "run.sqlite-shm":
        for read in (load_run, view_of):
            with pytest.raises(RunFolderError, match=r"ends with round 4, .* round 5") as caught:
                read(folder)
            assert "restore run.sqlite from a copy, with run.sqlite-wal" in caught.value.fix
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(folder)])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and load_run(folder).accuracies() == whole.accuracies()
    assert ("warning: going on from round 4" in said) == (harm != "run.sqlite-shm")


def test_rounds_that_no_checkpoint_has_are_missed_too(small: Table, tmp_path: Path) -> None:
    folder = killed(small, tmp_path / "run", {"rounds": 7, "checkpoint": {"every": 7}}, read_from=3)
    shutil.copytree(folder, tmp_path / "copy")
    (folder / "run.sqlite-wal").unlink()
    with pytest.raises(RunFolderError, match=r"ends with round 3, and run.lock says .* round 5"):
        load_run(folder)
    assert load_run(tmp_path / "copy").rounds == 5 and resume(folder).rounds == 7


def test_a_record_that_lost_more_rounds_than_there_are_checkpoints_does_not_go_on(
    small: Table, tmp_path: Path
) -> None:
    folder = killed(small, tmp_path / "run", SEVEN, read_from=1)
    (folder / "run.sqlite-wal").unlink()
    with pytest.raises(CheckpointError, match="record of the run ends with round 1") as caught:
        resume(folder)
    assert "restore run.sqlite and run.sqlite-wal together" in caught.value.fix


def test_later_checkpoints_are_gone_before_their_rounds_are_played_again(
    small: Table, tmp_path: Path
) -> None:
    """Or a reader would take the run that goes on for one that has lost rounds."""
    every = {"rounds": 7, "checkpoint": {"every": 2, "keep": 3}}
    folder = killed(small, tmp_path / "run", every)
    damaged = folder / "checkpoints" / "round-000004" / "shared.json"
    damaged.write_text("[]")
    read: list[int] = []
    resume(folder, on_round=lambda done: read.append(load_run(folder).rounds))
    assert read == [3, 4, 5, 6, 7]


def test_a_run_without_its_checkpoints_says_that_it_starts_anew(
    small: Table, tmp_path: Path
) -> None:
    folder = killed(small, tmp_path / "run", SEVEN)
    shutil.rmtree(folder / "checkpoints")
    notes: list[str] = []
    assert resume(folder, on_note=lambda note: notes.append(note.text)).rounds == 7
    expected = "there is no checkpoint: going on from the start, and rounds 1 to 5 are played again"
    assert expected in notes


def test_checkpoints_that_are_no_folder_cost_the_record_nothing(
    small: Table, tmp_path: Path
) -> None:
    folder = killed(small, tmp_path / "run", SEVEN)
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").write_text("")
    for read in (resume, load_run):
        with pytest.raises(RunFolderError, match="checkpoints is not a folder"):
            read(folder)
    (folder / "checkpoints").unlink()
    assert load_run(folder).rounds == 5


def test_a_reader_does_not_hold_up_who_writes(small: Table, tmp_path: Path) -> None:
    run(Config.of(small | {"rounds": 1}), tmp_path / "run")
    with RunFolder.open(tmp_path / "run") as folder:
        with closing(sqlite3.connect(folder.store.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT COUNT(*) FROM notes").fetchone()
            folder.store.note("first")
            side = folder.store.path.with_name("run.sqlite-wal")
            assert side.stat().st_size > 0
        folder.store.note("second")
        assert side.stat().st_size == 0
