"""Labels and user ids of a table: one number is one, however it is written, or it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import fedblocks as fb
from fedblocks.core.errors import DataError
from fedblocks.data.spellings import number_labels, user_fields
from fedblocks.runs.storage.config_record import as_it_was_read, remember_config
from fedblocks.runs.storage.folder import CONFIG, RunFolder


def table(path: Path, users: Sequence[str], labels: Sequence[str], rows: int = 60) -> Path:
    lines = [f"{n},{users[n % len(users)]},{labels[n % len(labels)]}" for n in range(rows)]
    path.write_text("x,user,label\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("other", ["1.0", "01", "+1", "1e0", "1.", " 1.0", "10e-1"])
@pytest.mark.parametrize("what", ["label", "user id"])
def test_one_number_written_in_two_ways_is_refused(what: str, other: str, tmp_path: Path) -> None:
    both = ["0", "1", "2", other]
    users, labels = (both, ["a", "b", "c"]) if what == "user id" else (["a", "b", "c"], both)
    with pytest.raises(DataError, match=f'the {what}s "1" and .* are one number, written in two'):
        fb.Federation.from_csv(table(tmp_path / "t.csv", users, labels))


def test_minus_zero_is_zero() -> None:
    with pytest.raises(DataError, match='"0" and "-0" are one number'):
        number_labels(["0", "1", "-0"])


def test_labels_of_arrays_that_are_words_are_held_to_the_same() -> None:
    x, users = np.zeros((12, 2), np.float32), np.arange(12) % 2
    with pytest.raises(DataError, match=r'"1" and "1\.0" are one number'):
        fb.Federation.from_users(x, np.array(["1", "1.0", "2"] * 4), users)


def test_numbers_of_many_digits_that_differ_are_two() -> None:
    fields = ["12345678901234567890", "12345678901234567891"]  # one float
    assert user_fields(fields).tolist() == fields
    fields = ["1234567890123456", "1234567890123457"]
    assert user_fields(fields).tolist() == [1234567890123456, 1234567890123457]


def test_among_words_a_number_is_a_word() -> None:
    labels, words = number_labels(["1e2", "100", "af"])
    assert words == ["100", "1e2", "af"] and labels.tolist() == [1, 0, 2]
    labels, words = number_labels(["0.0", "10.0", "9.0"])  # all written in one way
    assert words == [] and labels.tolist() == [0, 10, 9]


def test_blanks_around_labels_and_users_are_no_part_of_them(tmp_path: Path) -> None:
    data = fb.Federation.from_csv(
        table(tmp_path / "t.csv", ["a", " a", "b"], ["yes", "no", " yes"])
    )
    assert [*data.names] == ["a", "b"] and data.about["class_names"] == ["no", "yes"]


@pytest.mark.parametrize("field", ["1_000", "1_0.5"])
def test_a_number_with_underscores_is_none(field: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"x,user,label\n1,a,0\n{field},a,1\n")
    with pytest.raises(DataError, match=f'"{field}" in column "x", line 3'):
        fb.Federation.from_csv(tmp_path / "t.csv")


def test_whole_numbers_as_user_ids_are_sorted_by_size_in_every_format(tmp_path: Path) -> None:
    ids = np.array([10, 9, 2, 1, -3] * 12)
    path = table(tmp_path / "t.csv", [str(one) for one in ids[:5]], ["0", "1"])
    arrays = fb.Federation.from_users(np.arange(60.0)[:, None], np.arange(60) % 2, ids)
    read = fb.Federation.from_csv(path)
    assert [*read.names] == [*arrays.names] == ["-3", "1", "2", "9", "10"]
    assert read.hash() == arrays.hash()
    words = fb.Federation.from_csv(path, ids="words")
    assert [*words.names] == ["-3", "1", "10", "2", "9"]
    path = table(path, ["010", "009", "002"], ["0", "1"])  # as they are written
    assert [*fb.Federation.from_csv(path).names] == ["002", "009", "010"]


def old_run(folder: Path, path: Path) -> fb.RunResult:
    """A run of a table as it was stored when user ids of tables were words."""
    options = {"path": str(path), "ids": "words"}
    data = {"name": "csv", "options": options, "partition": {"name": "by_user"}}
    method = {"name": "fedavg", "lr": 0.001, "batch_size": 8}
    config = fb.Config.of({"rounds": 2, "data": data, "net": {"name": "mlp"}, "method": method})
    result = fb.run(config, folder)
    stored = config.resolved()
    del stored["data"]["options"]["ids"]
    with RunFolder.open(folder) as opened:
        remember_config(opened.store, stored)
    (folder / CONFIG).write_text(tomli_w.dumps(stored))
    return result


def test_a_run_of_before_goes_on_with_the_order_that_its_clients_had(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", ["10", "9", "2", "1"], ["0", "1"], rows=200)
    old_run(tmp_path / "old", path)
    result = fb.resume(tmp_path / "old", rounds="+1")
    assert result.rounds == 3
    assert [row["name"] for row in result.clients()] == ["1", "10", "2", "9"]
    method = fb.Local(fb.Net.of(lambda: fb.NETS["mlp"]((1,), 2).make()), lr=0.001)
    fb.run(method, fb.Federation.from_csv(path, ids="words"), 1, tmp_path / "objects")
    with pytest.raises(DataError) as error:
        fb.resume(tmp_path / "objects", method, fb.Federation.from_csv(path), rounds="+1")
    assert 'from_csv(..., ids="words")' in error.value.fix


def test_only_stored_tables_are_read_as_of_old() -> None:
    for config in ({"data": {"name": "npz", "options": {}}}, {"rounds": 3}):
        assert as_it_was_read(config) == config
    kept = {"data": {"name": "csv", "options": {"ids": "numbers"}}}
    assert as_it_was_read(kept) == kept
