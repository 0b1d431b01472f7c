"""What people bring: arrays, tables, folders and modules; what is wrong with them is
told by row, column and name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.errors import DataError, UserError

DATA = fb.Federation.from_users(
    np.random.default_rng(0).normal(size=(160, 6)).astype("float32"),
    np.random.default_rng(1).integers(0, 3, 160),
    np.repeat(np.arange(4), 40),
)
X, Y, USERS = torch.randn(20, 3), torch.arange(20) % 2, np.arange(20) // 5
NAN = X.clone()
NAN[7, 2] = torch.nan
BAD_DATA: list[tuple[Any, str]] = [
    (lambda: fb.Federation.from_users(X, Y[:18], USERS), "x has 20 rows and y has 18"),
    (lambda: fb.Federation.from_users(X, Y, USERS[:19]), "x has 20 rows and users has 19"),
    (lambda: fb.Federation.from_users(NAN, Y, USERS), "row 7, column 2 is nan"),
    (lambda: fb.Federation.from_users(X, Y + 5, USERS, classes=3), "row 0 has label 5"),
    (lambda: fb.Federation.from_arrays(X, Y, 5), "the partition is a int"),  # type: ignore[arg-type]
    (
        lambda: fb.Federation.from_arrays(X, Y, [[0, 1], [0.5]]),
        "client 1 of the partition is not a list of row",
    ),
    (
        lambda: fb.Federation.from_arrays(X, Y, [[0, 1], [-1]]),
        "client 1 of the partition has row -1",
    ),
    (lambda: fb.Federation.from_arrays(X, Y, [[0, 1], [99]]), "names row 99, the pool has 20 rows"),
]


@pytest.mark.parametrize(("make", "words"), BAD_DATA, ids=[words for _, words in BAD_DATA])
def test_wrong_data_are_told_by_row_and_column(make: Any, words: str) -> None:
    with pytest.raises(DataError) as error:
        make()
    assert words in error.value.message


def test_a_partition_may_be_a_list_of_row_numbers_or_a_mapping_by_name() -> None:
    rows = [list(range(10)), np.arange(10, 20)]
    listed = fb.Federation.from_arrays(X, Y, rows)
    called = fb.Federation.from_arrays(X, Y, {"a": rows[0], "b": rows[1]})
    assert (
        listed.clients == 2 and listed.hash() == called.hash() and list(called.names) == ["a", "b"]
    )


def test_a_table_with_words_as_labels_becomes_a_federation_and_predictions_are_words(
    tmp_path: Path,
) -> None:
    lines = [f"{n % 7 / 7},{n % 3},{'ab'[n % 2]},{'fall' if n % 2 else 'walk'}" for n in range(80)]
    table = tmp_path / "t.csv"
    table.write_text("speed,height,device,activity\n" + "\n".join(lines) + "\n")
    data = fb.Federation.from_csv(table, label="activity", user="device")
    assert (
        data.clients == 2
        and data.x.shape == (80, 2)
        and data.about["class_names"] == ["fall", "walk"]
    )
    net = fb.Net.of(lambda: nn.Linear(2, 2))
    method = fb.Local(net, lr=0.5, batch_size=8)
    fb.run(method, data, rounds=3, out=tmp_path / "r")
    model = fb.export_model(
        tmp_path / "r", 0, "safetensors", tmp_path / "m.safetensors", method, data
    )
    found = fb.predict(model, table, method)  # the very table, with its words
    assert set(found.class_labels()) <= {"fall", "walk"} and len(found.class_labels()) == 80


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,user,label\n1,x,0\n,x,1\n", 'there is no value in column "a", line 3'),
        ("a,user,label\n1,x,0\n2,x,\n", 'there is no value in column "label", line 3'),
        ("a,user,label\n1,x,0\ntwo,x,1\n", '"two" in column "a", line 3'),
        ("a,who,label\n1,1,0\n2,1,1\n", 'there is no column "user"'),
        ("a,user,y\n1,x,0\n", 'has no column "label"'),
    ],
)
def test_a_wrong_table_is_told_by_line_and_column(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError) as error:
        fb.Federation.from_csv(tmp_path / "t.csv")
    assert words in error.value.message


def test_folders_of_images_become_clients_by_user_or_by_partition(tmp_path: Path) -> None:
    image = pytest.importorskip(
        "PIL.Image", reason="images need Pillow: pip install 'fedblocks[images]'"
    )
    for number in range(24):
        for folder in (tmp_path / "u" / "ab"[number % 2], tmp_path / "c"):
            place = folder / ("cat" if number % 3 else "dog")
            place.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (4, 4), (number, 0, 0)).save(place / f"{number}.png")
    by_user = fb.Federation.from_folder(tmp_path / "u")
    assert list(by_user.names) == ["a", "b"] and by_user.about["class_names"] == ["cat", "dog"]
    divided = fb.Federation.from_folder(
        tmp_path / "c", partition=lambda y: fb.partitions.iid(y, clients=3)
    )
    assert divided.clients == 3 and divided.x.shape == (24, 3, 4, 4)
    with pytest.raises(DataError, match="nothing says whose each row is"):
        fb.Federation.from_folder(tmp_path / "c")


class Wrapped(nn.Module):
    """A net that returns its logits in something."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.fc, self.wrap = nn.Linear(6, 3), wrap

    def forward(self, x: torch.Tensor) -> Any:
        return self.wrap(self.fc(x))


class Answer:
    """As some libraries return logits."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    ("wrap", "output", "words"),
    [
        (lambda z: (z, None), 0, "returns a tuple of 2, not a tensor"),
        (lambda z: {"out": z}, "out", "returns a dictionary with the keys 'out'"),
        (Answer, "logits", "returns an Answer, not a tensor"),
        (lambda z: [[z]], lambda found: found[0][0], "returns a list of 1"),
    ],
)
def test_logits_in_something_are_taken_out_by_output(
    tmp_path: Path, wrap: Any, output: Any, words: str, same_bits: Any
) -> None:
    with pytest.raises(UserError) as error:
        fb.run(
            fb.FedAvg(fb.Net.of(lambda: Wrapped(wrap)), batch_size=8),
            DATA,
            rounds=1,
            out=tmp_path / "r",
        )
    assert words in error.value.message and "output=" in error.value.fix
    nets = {
        "plain": fb.Net.of(lambda: Wrapped(lambda z: z)),
        "out": fb.Net.of(lambda: Wrapped(wrap), output=output),
    }
    results = [
        fb.run(fb.FedAvg(n, batch_size=8), DATA, rounds=1, out=tmp_path / k)
        for k, n in nets.items()
    ]
    assert same_bits(results[0].state(), results[1].state())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(3)), 'the layer "0" is lazy'),
        (lambda: "no module", "the function makes a str, not a module"),
    ],
)
def test_what_cannot_be_a_net_is_told(make: Any, words: str) -> None:
    with pytest.raises(UserError) as error:
        fb.Net.of(make)
    assert words in error.value.message
