"""Labels that are easily taken for others: counted from 1, with gaps, or numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.nets import mlp


def labelled(*labels: int) -> fb.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 4)).astype("float32"), np.resize(np.array(labels), 80)
    return fb.Federation.from_users(x, y, np.repeat(np.arange(4), 20))


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ((1, 2), "no row has label 0 (labels present: 1, 2)"),
        ((0, 2, 3), "no row has label 1 (labels present: 0, 2, 3)"),
        ((100, 200), "no row has label 0, 1, 2, 3, 4, ... (labels present: 100, 200)"),
    ],
)
def test_classes_without_rows_are_named(labels: tuple[int, ...], text: str) -> None:
    assert any(text in warning for warning in labelled(*labels).warnings())


def test_every_class_with_rows_is_nothing_to_say() -> None:
    assert not any("label" in warning for warning in labelled(0, 1, 2).warnings())


def test_a_net_with_an_output_for_each_label_that_is_there_is_told_what_is_missing(
    tmp_path: Path,
) -> None:
    method = fb.FedAvg(mlp((4,), 2), lr=0.1)
    with pytest.raises(fb.UserError, match=r"no row has label 0 \(labels present: 1, 2\)") as error:
        fb.run(method, labelled(1, 2), 1, tmp_path / "run")
    assert error.value.fix.startswith("number the labels from 0 on")


def test_a_table_whose_labels_are_fractions_is_refused_with_the_task_for_numbers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,user,label\n1,u,1.5\n2,u,2.0\n3,v,2.25\n")
    with pytest.raises(fb.DataError, match=r'"1\.5" is a number with a fraction') as error:
        fb.Federation.from_csv(path)
    assert 'Task("regression")' in error.value.fix
    task = fb.Task("regression")
    assert fb.Federation.from_csv(path, split=(1, 0, 0), task=task).y.tolist()[0] == [1.5]
