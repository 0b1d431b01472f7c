"""Tables as people write them: blanks around words do not matter, and every complaint names its
line.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedblocks import data
from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data.sets.columns import Roles
from fedblocks.data.sets.own import csv_table
from fedblocks.data.sets.realworld import numbers
from fedblocks.data.sets.tff import COUNTS, vocabulary_for
from fedblocks.data.sets.wisdm import ACTIVITIES, parse_record
from fedblocks.data.spellings import number_labels

NUMBERS = Task("regression")


def table(folder: Path, text: str) -> str:
    path = folder / "t.csv"
    path.write_text(text)
    return str(path)


def test_blanks_around_column_names_and_labels_do_not_matter(tmp_path: Path) -> None:
    pool = csv_table(table(tmp_path, " height ,label , user\n1.5, 2 ,ann\n 2 ,0,bob\n"))
    assert pool.x.tolist() == [[1.5], [2.0]] and pool.y.tolist() == [2, 0]
    assert pool.about["columns"] == ["height"] and pool.users is not None


def test_blanks_between_the_names_of_targets_do_not_matter(tmp_path: Path) -> None:
    path = table(tmp_path, "a,b,c\n1,2,3\n4, ? ,6\n")
    y = csv_table(path, label="b , c", task=NUMBERS).y
    assert torch.equal(y.nan_to_num(-1), torch.tensor([[2.0, 3.0], [-1.0, 6.0]]))
    assert Roles("b , c", "user", task=NUMBERS).targets(["a", "b", "c"]) == ["b", "c"]


def test_only_the_digits_of_a_label_count() -> None:
    assert number_labels(["        7", "0000000012 "])[0].tolist() == [7, 12]
    assert number_labels(["999999"])[0].tolist() == [999999]
    with pytest.raises(DataError, match='"1000000" is too large'):
        number_labels(["              1", "1000000"])


@pytest.mark.parametrize("missing", ["", " ", " NA ", "n/a", "NaN ", "null", " None", "?"])
def test_a_feature_that_is_missing_is_told_with_its_line(tmp_path: Path, missing: str) -> None:
    path = table(tmp_path, f"x,label\n1,0\n{missing},1\n")
    with pytest.raises(DataError, match=f'no value in column "x", line 3 of {re.escape(path)}'):
        csv_table(path)


@pytest.mark.parametrize("column", ["label", "user"])
@pytest.mark.parametrize("missing", ["", "  ", " NaN "])
def test_a_label_or_user_that_is_missing_is_told_with_its_line(
    tmp_path: Path, column: str, missing: str
) -> None:
    last = {"label": "a", "user": "ann", column: missing}
    path = table(tmp_path, f"x,label,user\n1,a,ann\n2,b,ann\n3,{last['label']},{last['user']}\n")
    with pytest.raises(DataError, match=f'no value in column "{column}", line 4'):
        csv_table(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,label\n1,0\n2,0,9\n", "line 3 .* has 3 fields, and there are 2 column names"),
        ("x,label\n1,0\ntall,0\n", '"tall" in column "x", line 3'),
        ("x,label\n1,0\n1e39,0\n", '"1e39" in column "x", line 3 .* too large'),
        ("x,label\n1,0\n-1e39,0\n", '"-1e39" in column "x", line 3 .* too large'),
        ("x;label\n1;0\n", 'separated by ";"'),
        ("x\tlabel\n1\t0\n", "separated by tabs"),
        ("x,label,x\n1,0,2\n", 'two columns "x"'),
        ("x,label\n1,0.5\n2,1\n", 'label "0.5" is a number with a fraction'),
    ],
)
def test_what_is_wrong_with_a_table_is_told_in_words(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        csv_table(table(tmp_path, text))


def test_a_target_that_is_no_number_is_told_with_its_line(tmp_path: Path) -> None:
    path = table(tmp_path, "x,y\n1,1\n2,far\n")
    with pytest.raises(DataError, match='"far" in column "y", line 3'):
        csv_table(path, label="y", task=NUMBERS)


def test_the_largest_number_that_float32_holds_is_a_feature(tmp_path: Path) -> None:
    largest = torch.finfo(torch.float32).max
    path = table(tmp_path, f"x,label\n{largest!r},0\n{-largest!r},0\n")
    assert csv_table(path).x.flatten().tolist() == [largest, -largest]


def test_an_activity_may_have_blanks_around_its_name_and_a_time_of_0_is_none() -> None:
    fields = ["33", " Walking ", "5", "1", "2", "3"]
    assert parse_record(fields) == (33, ACTIVITIES.index("walking"), 5, 1.0, 2.0, 3.0)
    for place, wrong in ((2, "0"), (2, "-1"), (3, "nan"), (4, "inf"), (1, "flying"), (0, "x")):
        assert parse_record([*fields[:place], wrong, *fields[place + 1 :]]) is None
    assert parse_record(fields[:5]) is None


def test_empty_lines_in_a_list_of_words_are_no_words(tmp_path: Path) -> None:
    path = tmp_path / COUNTS.name
    path.write_text("the 9\n \nof 5\nand 3\n")
    local = SimpleNamespace(paths=(tmp_path / "other", path))
    assert vocabulary_for(local, None, 3, 1).words == ("the", "of")  # type: ignore[arg-type]


def test_a_table_of_a_sensor_may_have_quotes_and_other_line_ends_and_is_put_in_order() -> None:
    lines = ["id,attr_time,attr_x,attr_y,attr_z", "1,20,4,5,6", "2,10,1,2,3"]
    plain = "\n".join(lines).encode()
    quoted = "\r\n".join([",".join(f'"{w}"' for w in lines[0].split(",")), *lines[1:]]).encode()
    for content in (plain, quoted, b" " + plain):
        assert numbers("t.csv", content).tolist() == [[10, 1, 2, 3], [20, 4, 5, 6]]
    with pytest.raises(DataError, match=r"t\.csv cannot be read"):
        numbers("t.csv", plain.replace(b"attr_z", b"z"))


def test_a_function_can_be_a_data_set_and_its_text_says_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own() -> None:
        """
        Points of my own.
        """

    monkeypatch.setitem(data.DATASETS, "own", own)  # type: ignore[arg-type]
    entry = data.dataset("own")
    assert (entry.name, entry.about, entry.classes) == ("own", "Points of my own.", None)
    assert entry.load is own
