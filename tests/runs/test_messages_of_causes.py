"""Messages name the cause that is there: the column's letters, the client, the size of inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.admission import Refusal
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.runs.refusals import NOT_FINITE, notes_of_refusals


def net() -> fb.Net:
    return fb.Net.of(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def test_a_column_of_users_in_other_letters_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b,User,label\n1,2,7,0\n3,4,8,1\n")
    with pytest.raises(fb.UserError, match='has no column "user", but one that is called "User"'):
        fb.Federation.from_csv(path)
    assert fb.Federation.from_csv(path, user="User").clients == 2


def test_clients_of_one_row_are_not_told_to_split_it() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
    (said,) = [
        text
        for text in fb.Federation.from_users(x, np.arange(6) % 2, np.arange(6)).warnings()
        if "test rows" in text
    ]
    assert "split=" not in said and "a client needs 2 rows or more" in said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_metric_that_fails_names_the_client(engine: str, tmp_path: Path) -> None:
    """Client 2 alone has test rows of class 1 only."""

    def share_of_zeros(outputs: Tensor, y: Tensor) -> float:
        return 1 / int((y == 0).sum())

    x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    users = np.repeat(np.arange(3), 20)
    y = np.where(users == 2, 1, 0)
    task = fb.Task("classification", metrics=[fb.Metric("mine", share_of_zeros)])
    data = fb.Federation.from_users(x, y, users, task=task)
    with pytest.raises(fb.UserError, match=r'"mine" failed: ZeroDivision.*, for client 2'):
        fb.run(fb.FedAvg(net(), batch_size=8), data, 1, tmp_path / "run", engine=engine)


def test_numbers_that_are_not_finite_are_first_looked_for_in_the_data() -> None:
    refusal = Refusal(0, NOT_FINITE, "inf")
    (note,) = notes_of_refusals(Report([0], {}, {}, [refusal], {}), State(1, {}, {}, {}))
    assert "very large inputs or targets, or try a lower learning rate" in note.text
