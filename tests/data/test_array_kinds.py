"""Arrays and labels that a federation refuses, with what to write instead, and clients without a
known target.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks import Federation
from fedblocks.core.errors import DataError

ROWS = 12
USERS = np.arange(ROWS) % 3
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = np.arange(ROWS) % 2
RAGGED = [list(range(1 + row % 3)) for row in range(ROWS)]
OBJECTS = np.array([np.array(row) for row in RAGGED], dtype=object)
WIDE = np.full((ROWS, 3), 2**63 + 5, dtype=np.uint64)


class ScipyLike:
    """A matrix as SciPy has them: without a length, and with `toarray`."""

    nnz = 3

    def toarray(self) -> None: ...


@pytest.mark.parametrize(
    ("x", "said", "fix"),
    [
        (RAGGED, "rows of x have unequal lengths: row 0 has 1, row 1 has 2", "pad them"),
        ([torch.tensor(row) for row in RAGGED], "rows of x have unequal lengths", "pad them"),
        ({"text": RAGGED}, "rows of text have unequal lengths", "pad them"),
        (OBJECTS, "x is an array of objects that are sequences: row 0 has 1", "pad them"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested", "pad them"),
        (torch.from_numpy(X).to_sparse(), "x is a sparse tensor", "x.to_dense()"),
        (ScipyLike(), "x is a sparse matrix", "x.toarray()"),
        (torch.empty(ROWS, 2, device="meta"), "holds no numbers", "give its numbers"),
        (WIDE, "row 0 of x has 9223372036854775813, too large for int64", "number tokens"),
        (torch.from_numpy(WIDE), "row 0 of x has 9223372036854775813", "number tokens"),
        ({"a": X, "b": WIDE}, "row 0 of b has 9223372036854775813", "number tokens"),
    ],
)
def test_inputs_that_are_no_plain_array_are_refused(x: Any, said: str, fix: str) -> None:
    with pytest.raises(DataError) as refusal:
        Federation.from_users(x, Y, USERS)
    assert said in str(refusal.value) and fix in refusal.value.fix


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (RAGGED, "the rows of y have unequal lengths"),
        (torch.from_numpy(Y).to_sparse(), "y is a sparse tensor"),
        (WIDE[:, 0], "row 0 of y has 9223372036854775813"),
        (np.where(Y, b"yes", b"no"), "labels are bytes, such as b'no'"),
        ([b"yes"] * ROWS, "labels are bytes, such as b'yes'"),
        (np.array(["a", 1] * 6, dtype=object), "of several types, such as 1 (int) and 'a' (str)"),
        (["a", 1] * 6, "of several types, such as 1 (int) and 'a' (str)"),
        (np.array(["a", np.nan] * 6, dtype=object), "such as nan (float) and 'a' (str)"),
    ],
)
def test_labels_of_odd_types_are_refused(y: Any, said: str) -> None:
    with pytest.raises(DataError) as refusal:
        Federation.from_users(X, y, USERS)
    assert said in str(refusal.value)


def test_tokens_of_uint64_and_words_of_any_text_type_are_taken() -> None:
    tokens = np.full((ROWS, 3), 2**62, dtype=np.uint64)
    assert int(Federation.from_users(tokens, Y, USERS).x[0, 0]) == 2**62
    words = [np.str_("b"), "a"] * 6
    assert Federation.from_users(X, words, USERS).about["class_names"] == ["a", "b"]


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_client_without_a_known_target_is_mentioned(tmp_path: Path, task: str) -> None:
    # user 1 has 4 rows, and no target of them is known
    numbers = task == "regression"
    y = np.where(USERS == 1, np.nan if numbers else -100, X[:, 0] if numbers else Y)
    data = Federation.from_users(X, y, USERS, task=task, split=(0.5, 0.0, 0.5))
    remark = '1 client has no known training target: "1"'
    assert remark in data.warnings()
    net = fb.Net.of(lambda: nn.Linear(4, 1 if numbers else 2))
    with pytest.warns(UserWarning, match=remark):
        result = fb.run(fb.FedAvg(net, lr=0.1), data, rounds=1, out=tmp_path / "run")
    said = "1 of 3 clients with test rows has no known target in them, and has no score"
    assert said in str(result.summary())
    assert result.summary()["clients"] == 2


def test_where_all_targets_are_known_nothing_is_said(tmp_path: Path) -> None:
    data = Federation.from_users(X, Y, USERS, split=(0.5, 0.0, 0.5))
    result = fb.run(fb.FedAvg(fb.Net.of(lambda: nn.Linear(4, 2))), data, 1, out=tmp_path / "run")
    assert "known" not in str(result.summary()) and "known" not in str(data.warnings())
