"""What messages, tables and cards say of tasks other than one class for each example."""

from pathlib import Path
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.core.option_types import show
from fedblocks.runs.build import prepare

from .conftest import labels, net, numbers

pytestmark = pytest.mark.filterwarnings("ignore:.*(missing|training rows)")


def refusal(data: fb.Federation, outputs: int) -> str:
    with pytest.raises(fb.UserError) as error:
        fb.run(fb.FedAvg(net(outputs), lr=0.1), data, 1, "run")
    assert not Path("run").exists()
    return str(error.value)


def test_a_net_with_other_outputs_is_told_in_the_words_of_the_task() -> None:
    several = refusal(labels(), 5)
    assert "3 labels need [2, 3]" in several
    assert "give the net 3 outputs, one for each label of an example" in several
    two = refusal(numbers(), 5)
    assert "2 numbers need [2, 2]" in two and "one for each number of an example" in two
    first = numbers()
    y = first.y[:, :1].nan_to_num(0)
    parts = [first.train, first.validation, first.test]
    one = fb.Federation(first.x, y, *parts, 1, first.names, task=fb.Task("regression"))
    assert "1 number needs [2, 1]" in refusal(one, 5)
    assert "classes" not in several + two


def test_columns_of_labels_without_a_task_are_told_of_several_labels() -> None:
    data = labels()
    y = data.y.nan_to_num(0).long()
    plain = fb.Federation(data.x, y, data.train, data.validation, data.test, 2, data.names)
    assert 'say task="multi-label"' in refusal(plain, 3)


def test_counts_of_one_are_singular() -> None:
    x, y = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
    rows = fb.data.rows.Rows.of([[0]])
    none = fb.data.rows.Rows.of([[]])
    one = fb.Federation(x, y, rows, none, none, 1)
    assert repr(one) == "Federation(1 client, 1 row of 2, 1 class)"


def test_names_are_shown_as_they_are_written() -> None:
    assert show([["Zürich"]]) == '[["Zürich"]]'
    names = ['Zürich "süd"', "b"]
    x, y = torch.zeros(40, 2), torch.arange(40) % 2
    data = fb.Federation.from_users(x.numpy(), y.numpy(), [names[i // 2 % 2] for i in range(40)])
    with pytest.raises(fb.DataError) as error:
        data.subset(["Zürich"])
    assert 'there is no client "Zürich" among 2' in error.value.message


@pytest.mark.parametrize(
    ("task", "shown", "accuracy"),
    [
        (fb.Task("multi-label"), ("f1_micro, the main metric", "f1_macro"), False),
        (fb.Task("multi-label", metrics=["accuracy", "auroc"]), ("accuracy, the main",), True),
        (fb.Task("multi-label", metrics=["auroc"]), ("| auroc |",), False),
    ],
)
def test_the_card_of_a_model_has_the_metrics_of_its_task(
    task: fb.Task, shown: tuple[str, ...], accuracy: bool
) -> None:
    data, method = labels(task), fb.FedPer(net(3), lr=0.1)
    run = fb.run(method, data, 1, "run")
    file = fb.export_model(run.folder, 0, out="m.safetensors", method=method, data=data)
    card = Path(f"{file}.md").read_text()
    assert all(text in card for text in shown)
    assert ("accuracy" in card) == accuracy
    assert len(fb.predict(file, _inputs(data), method).labels) == len(data.x)


def _inputs(data: fb.Federation) -> str:
    import numpy as np

    np.savez("x.npz", x=data.x.numpy())
    return "x.npz"


def test_a_printed_comparison_has_the_columns_of_the_page() -> None:
    data = numbers()
    methods = [fb.Local(net(2), lr=0.05), fb.FedAvg(net(2), lr=0.05), fb.FedPer(net(2), lr=0.05)]
    found = fb.compare(methods, data, rounds=1, seeds=2, out="all")
    head, *rows = str(found).splitlines()[1:5]
    assert head.split() == [
        *("name", "seeds", "mean", "bottom_decile", "worst", "below_local", "to_local"),
        *("to_fedavg", "megabytes", "seconds"),
    ]
    row = next(row for row in found.rows if row["name"] == "fedper")
    line = next(line for line in rows if line.lstrip().startswith("fedper"))
    interval = row["to_local"]
    assert f"{interval['mean']:+.3f} [{interval['low']:+.3f}, {interval['high']:+.3f}]" in line
    assert f"{row['below_local']:.3f}" in line
    alone = fb.compare(methods[1:2] + methods[2:], data, rounds=1, seeds=1, out="without")
    assert "local" not in str(alone).splitlines()[1] and "to_fedavg" in str(alone)


def test_modfl_without_a_tag_says_what_to_do() -> None:
    changes: list[Any] = ["method=modfl", "rounds=1"]
    with pytest.raises(fb.DataError) as error:
        prepare(fb.read_config("truck_ranges-fedper", [*changes, 'method.cohorts="given"']))
    assert 'use cohorts = "found", which needs no tag' in error.value.fix
    prepare(fb.read_config("truck_ranges-fedper", [*changes, 'method.cohorts="found"']))
