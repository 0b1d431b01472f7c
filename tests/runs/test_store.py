"""The record of a run: whole rounds only, the same after a resume, and numbers with a
fixed meaning.
"""

import math
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.runs.storage.record import (
    ClientMetric,
    Note,
    RefusalRow,
    RoundRecord,
    Snapshot,
    Traffic,
)
from fedblocks.runs.storage.store import RunStore
from fedblocks.runs.storage.summary import summarise

TIMELESS = {
    "rounds": "round, clients, bytes_down, bytes_up",
    "client_metrics": "*",
    "means": "*",
    "traffic": "*",
    "refusals": "*",
    "snapshots": "*",
    "notes": "round, level, text",
}


@pytest.fixture
def store(tmp_path):
    store = RunStore.create(tmp_path / "run.sqlite")
    yield store
    store.close()


def record(round, shift=0):
    """A round of three clients, of which the second was refused."""
    metrics = [
        ClientMetric(
            part,
            "personal",
            client,
            (round + client + shift) % 11,
            10,
            0.1 * round,
            {"top5": client},
        )
        for part in ("validation", "test")
        for client in range(3)
    ]
    traffic = [
        Traffic(c, b, d, 100 + c)
        for c in range(3)
        for b in ("body", "head")
        for d in ("down", "up")
    ]
    return RoundRecord(
        round,
        1.5,
        3,
        metrics,
        traffic,
        [RefusalRow(1, "non-finite", "body: NaN")],
        [Snapshot("alpha", c, [0.1, 0.9]) for c in range(3)],
        [Note("vectorised: 3 equal clients")],
    )


def content(store):
    return {
        table: store.rows(f"SELECT {columns} FROM {table}") for table, columns in TIMELESS.items()
    }


def test_a_round_comes_back(store):
    store.record_round(record(4))
    rows = store.metrics("test", "personal")
    assert rows[1] == {
        "round": 4,
        "client": 1,
        "correct": 5.0,
        "examples": 10.0,
        "loss": 0.4,
        "extra": {"top5": 1},
    }
    assert [row["client"] for row in rows] == [0, 1, 2]
    whole = store.rows("SELECT round, seconds, clients, bytes_down, bytes_up FROM rounds")[0]
    # two blocks of 100 + 101 + 102 bytes
    assert list(whole.values()) == [4, 1.5, 3, 2 * 303, 2 * 303]
    assert store.rows("SELECT client, reason, detail FROM refusals")[0]["reason"] == "non-finite"
    assert store.rows("SELECT numbers FROM snapshots WHERE client = 2") == [
        {"numbers": "[0.1, 0.9]"}
    ]
    assert (
        store.metrics("test", "shared") == [] and store.metrics("test", "personal", round=3) == []
    )


def test_a_killed_and_resumed_run_has_the_record_of_an_uninterrupted_one(tmp_path):
    straight, resumed = (RunStore.create(tmp_path / name) for name in ("a.sqlite", "b.sqlite"))
    for round in (1, 2, 3, 4):
        straight.record_round(record(round))
    for round in (1, 2, 3):
        resumed.record_round(record(round, shift=5 if round > 1 else 0))
    resumed.record_round(record(2))  # the newest whole checkpoint was that of round 1
    assert resumed.last_round() == 2
    for round in (3, 4):
        resumed.record_round(record(round))
    assert content(straight) == content(resumed) and len(content(straight)["client_metrics"]) == 24


def test_notes_about_the_run_stay_when_rounds_are_redone(store):
    store.note("resumed after round 0: round-000001 is damaged", "warning")
    for _ in range(2):
        store.record_round(record(1))
    texts = [row["text"] for row in store.rows("SELECT text FROM notes")]
    assert texts == [
        "resumed after round 0: round-000001 is damaged",
        "vectorised: 3 equal clients",
    ]


def test_a_round_that_fails_half_way_leaves_no_trace(store):
    store.record_round(record(1))
    before = content(store)
    twice = [ClientMetric("test", "personal", 0, 1, 1)] * 2
    with pytest.raises(sqlite3.IntegrityError):
        store.record_round(RoundRecord(1, 1.0, 1, twice))
    with pytest.raises(sqlite3.IntegrityError):
        store.record_round(RoundRecord(1, 1.0, 1, [ClientMetric("tset", "personal", 0, 1, 1)]))
    assert content(store) == before


def test_numpy_numbers_are_stored_as_numbers(store):
    metric = ClientMetric(
        "test", "personal", np.int64(7), np.float32(3), np.int64(4), np.float32(0.5)
    )
    snapshot = Snapshot("gates", np.int64(7), np.array([0.25, 0.75], dtype=np.float32))
    store.record_round(
        RoundRecord(
            1,
            1.0,
            np.int64(1),
            [metric],
            [Traffic(np.int64(7), "body", "up", np.int64(12))],
            snapshots=[snapshot],
        )
    )
    assert store.scores(1, "test", "personal") == {7: 0.75}
    kinds = "SELECT typeof(client) AS a, typeof(bytes) AS b FROM traffic"
    assert store.rows(kinds) == [{"a": "integer", "b": "integer"}]
    assert store.rows("SELECT client, numbers FROM snapshots") == [
        {"client": 7, "numbers": "[0.25, 0.75]"}
    ]


def test_a_loss_that_is_not_a_number_is_endless_where_there_are_labels(store):
    losses = [math.nan, math.nan, math.inf, 0.1, 1e-320]
    rows = [
        ClientMetric("test", "shared", client, 0, client and 1, loss)
        for client, loss in enumerate(losses)
    ]
    store.record_round(RoundRecord(1, 1.0, 5, rows))
    assert str([row["loss"] for row in store.metrics("test", "shared")]) == str(
        [math.nan, math.inf, *losses[2:]]
    )


def test_a_summary_by_hand(store):
    # accuracies 0.5, 0.9, 0.6, 0.6; client 9 has no test data and does not count
    counts = {0: (5, 10), 1: (27, 30), 2: (6, 10), 3: (30, 50), 9: (0, 0)}
    rows = [
        ClientMetric("test", "personal", c, right, n, loss=c) for c, (right, n) in counts.items()
    ]
    store.record_round(RoundRecord(2, 1.0, 5, rows))
    summary = store.summary(
        2, "test", "personal", reference={0: 0.6, 1: 0.9, 2: 0.5, 3: 0.7, 9: 0.0}
    )
    assert summary == pytest.approx(
        {
            "clients": 4,
            "examples": 100,
            "mean": 0.65,
            "weighted": 0.68,
            "bottom_decile": 0.5,
            "worst": 0.5,
            "std": math.sqrt((0.15**2 + 0.25**2 + 0.05**2 + 0.05**2) / 4),
            "loss": (30 + 20 + 150) / 100,
            "share_below_reference": 2 / 4,  # clients 0 and 3; client 1 is equal, client 2 above
        }
    )
    assert store.summary(2, "test", "personal")["share_below_reference"] is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(50, 60)), min_size=1, max_size=45),
    st.randoms(),
)
def test_a_summary_agrees_with_numpy_and_ignores_the_order(counts, random):
    rows = [
        {"client": c, "correct": float(a), "examples": float(n), "loss": 1.0}
        for c, (a, n) in enumerate(counts)
    ]
    accuracy = np.array([a / n for a, n in counts])
    summary = summarise(rows, None)
    assert summary["mean"] == pytest.approx(accuracy.mean()) and summary["worst"] == accuracy.min()
    assert summary["std"] == pytest.approx(accuracy.std(), abs=1e-12)
    assert summary["weighted"] == pytest.approx(
        sum(a for a, _ in counts) / sum(n for _, n in counts)
    )
    decile = summary["bottom_decile"]
    assert np.sum(accuracy < decile) <= len(counts) // 10 < np.sum(accuracy <= decile)
    random.shuffle(rows)
    assert summarise(rows, None) == summary


def test_a_reference_that_lacks_clients_is_refused(store):
    store.record_round(record(1))
    with pytest.raises(UserError, match="lacks 2 of 3 clients, such as client 1"):
        store.summary(1, "test", "personal", reference={0: 0.5})


def test_a_round_without_that_evaluation_is_an_error(store):
    store.record_round(record(1))
    with pytest.raises(UserError, match="round 2 has no test evaluation of the personal model"):
        store.summary(2, "test", "personal")


def test_the_best_round_is_the_first_with_the_highest_mean_on_validation(store):
    assert store.best_round() is None and store.last_round() is None
    for round, correct in enumerate([3, 8, 5, 8]):
        # the worst on validation is best here
        on_test = ClientMetric("test", "personal", 0, 10 - correct, 10)
        rows = [ClientMetric("validation", "personal", 0, correct, 10), on_test]
        store.record_round(RoundRecord(round, 1.0, 1, rows))
    assert store.best_round() == 1 and store.last_round() == 3


@pytest.mark.parametrize("part", ["test", "unseen"])
def test_the_best_round_is_never_chosen_on_test_data(store, part):
    with pytest.raises(UserError, match=f"never chosen on {part} data"):
        store.best_round(part)


def test_meta_values_are_replaced(store):
    store.set_meta("status", "running")
    store.set_meta("status", "finished")
    assert store.meta("status") == "finished" and store.meta("nothing") is None


READER = """
import sys, time
from pathlib import Path
from fedblocks.runs.storage.store import RunStore
store = RunStore(Path(sys.argv[1]))
print("ready", flush=True)
checked = 0
while (store.last_round() or 0) < 40:
    rows = store.rows("SELECT round, COUNT(*) AS n FROM client_metrics GROUP BY round")
    assert all(row["n"] == 6 for row in rows), rows
    checked += bool(rows)
print(checked)
"""


def test_another_process_reads_whole_rounds_while_one_writes(store):
    command = [sys.executable, "-c", READER, str(store.path)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reader.stdout.readline() == "ready\n"
    for round in range(1, 41):
        store.record_round(record(round))
        time.sleep(0.002)
    out, errors = reader.communicate(timeout=60)
    assert reader.returncode == 0 and int(out) > 0, errors


def test_a_hundred_thousand_rows_take_seconds(store):
    rows = [
        ClientMetric("test", "personal", client, client % 10, 10, 0.5) for client in range(100_000)
    ]
    start = time.process_time()
    store.record_round(RoundRecord(1, 1.0, 100_000, rows))
    summary = store.summary(1, "test", "personal")
    assert time.process_time() - start < 10  # about 1 s on one core
    # a tenth of the clients has 0
    assert summary["mean"] == pytest.approx(0.45) and summary["bottom_decile"] == 0.1


def test_a_full_disk_is_an_error_and_the_rounds_before_stay(store):
    store.record_round(record(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # a write beyond it fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(RunFolderError, match=r"cannot use the record .*run\.sqlite"):
            store.record_round(
                RoundRecord(
                    2, 1.0, 1, [ClientMetric("test", "local", c, 1, 1) for c in range(20_000)]
                )
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.last_round() == 1
    store.record_round(record(2))
    assert store.last_round() == 2


def test_a_file_that_is_no_record_is_refused(tmp_path):
    text, empty, newer = (tmp_path / name for name in ("text", "empty", "newer"))
    text.write_text("some other file " * 100)
    empty.touch()
    RunStore.create(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    for path, message in (
        (text, "not a database"),
        (empty, "not the record of a run"),
        (newer, "newer fedblocks"),
    ):
        with pytest.raises(RunFolderError, match=message):
            RunStore(path)
    with pytest.raises(RunFolderError, match="unable to open"):
        RunStore(tmp_path / "absent")


@pytest.mark.parametrize("damage", ["first bytes", "tables", "end", "everything"])
def test_a_damaged_record_is_named_as_such_with_what_to_do(tmp_path, damage):
    path = tmp_path / "run.sqlite"
    with closing(RunStore.create(path)) as store:
        for number in range(1, 40):  # several pages
            store.record_round(RoundRecord(number, 1.0, 3, notes=[Note("a" * 500)]))
    content = bytearray(path.read_bytes())
    size = len(content)
    match damage:
        case "first bytes":
            content[:16] = b"no SQLite at all"
        case "tables":
            content[4096:] = b"\xff" * (size - 4096)
        case "end":
            content = content[: size // 2]
        case "everything":
            content = bytearray()
    path.write_bytes(content)
    with (
        pytest.raises(RunFolderError, match=r"run\.sqlite is damaged") as caught,
        closing(RunStore(path)) as store,
    ):
        store.rows("SELECT * FROM notes")
    assert "restore the file from a copy, or start the run again" in caught.value.fix


def test_clients_that_the_reference_refused_are_not_compared() -> None:
    rows = [
        {"client": c, "correct": right, "examples": 10.0, "loss": 1.0}
        for c, right in enumerate([1.0, 5.0, 9.0])
    ]
    summary = summarise(rows, {0: 0.5, 1: math.nan, 2: 0.5})
    assert summary["share_below_reference"] == 1 / 2  # client 0, of 0 and 2
    assert math.isnan(summarise(rows, dict.fromkeys(range(3), math.nan))["share_below_reference"])
