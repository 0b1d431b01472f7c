"""User ids and labels with NUL characters are refused: numpy drops those at the end of a word, and
two clients or classes would become one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data import Parts, dataset

X = np.zeros((6, 2), "float32")
NUMBERS = [0, 1] * 3
WORDS = ["u", "u\0", "v"] * 2


@pytest.mark.parametrize("words", [WORDS, tuple(WORDS), np.array(WORDS, object)])
def test_user_ids_and_labels_of_arrays_with_nul_are_refused(words: Any) -> None:
    with pytest.raises(DataError, match=r"the user id 'u\\x00' has a NUL character"):
        Federation.from_users(X, NUMBERS, words)
    with pytest.raises(DataError, match=r"the label 'u\\x00' has a NUL character"):
        Federation.from_users(X, words, NUMBERS)


def test_a_nul_inside_a_word_is_refused_in_an_array_of_words_too() -> None:
    with pytest.raises(DataError, match=r"'a\\x00b' has a NUL"):
        Federation.from_users(X, NUMBERS, np.array(["a\0b", "a"] * 3))


@pytest.mark.parametrize("line", ["1,0,u\0", "1,u\0,u"])
def test_a_table_with_nul_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"a,label,user\n1,u,u\n{line}\n")
    with pytest.raises(DataError, match=r"line 3 of .*t\.csv: the field 'u\\x00' has a NUL"):
        Federation.from_csv(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("text,user\nhello you,u\nhello me,u\0\n")
    with pytest.raises(DataError, match="line 3"):
        dataset("texts").load(str(tmp_path / "t.csv"))


@pytest.mark.parametrize("column", ["label", "user"])
def test_a_parquet_file_with_nul_is_refused(column: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet

    columns = {"a": [0.0] * 6, "label": NUMBERS, "user": NUMBERS, column: WORDS}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="has a NUL"):
        Federation.from_parquet(tmp_path / "t.parquet")


@pytest.mark.parametrize("column", ["label", "user"])
def test_items_of_a_torch_data_set_with_nul_are_refused(column: str) -> None:
    items = [{"a": torch.zeros(2), "label": 0, "user": 0, column: word} for word in WORDS]
    with pytest.raises(DataError, match="has a NUL"):
        Federation.from_torch(items)  # type: ignore[arg-type]


def test_labels_of_clients_with_nul_are_refused() -> None:
    with pytest.raises(DataError, match="has a NUL"):
        Federation.from_parts([Parts(train=(X, WORDS))])
