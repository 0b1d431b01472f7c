"""What `fedblocks predict` writes and prints, number by number."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks import export_model, personal
from fedblocks.cli import main
from fedblocks.core.errors import UserError
from fedblocks.export.predict import Predictions, write_predictions

from .conftest import Start


def predictions(labels: Any, probabilities: Any, names: list[str]) -> Predictions:
    card: Any = SimpleNamespace(
        task="classification", class_names=names, classes=np.shape(probabilities)[-1]
    )
    return Predictions(card, np.array(labels), np.array(probabilities, "float32"))


ROWS = [[0.25, 0.75], [0.5, 0.5]]


def test_a_table_has_the_label_and_all_probabilities_of_each_input(tmp_path: Path) -> None:
    write_predictions(predictions([1, 0], ROWS, ["cat", "dog"]), tmp_path / "o.csv")
    lines = (tmp_path / "o.csv").read_text().splitlines()
    assert lines == [
        "label,probability of cat,probability of dog",
        "dog,0.250000,0.750000",
        "cat,0.500000,0.500000",
    ]
    write_predictions(predictions([1, 0], ROWS, []), tmp_path / "o.csv")
    assert (tmp_path / "o.csv").read_text().splitlines()[:2] == [
        "label,probability of 0,probability of 1",
        "1,0.250000,0.750000",
    ]


def test_labels_of_sequences_need_an_archive(tmp_path: Path) -> None:
    tokens = predictions([[1, 0]], [ROWS], ["cat", "dog"])
    with pytest.raises(UserError, match=r"there is no folder .*nowhere"):
        write_predictions(tokens, tmp_path / "nowhere" / "o.npz")
    with pytest.raises(UserError, match=r"cannot go to .*o\.csv: .* each of its steps") as caught:
        write_predictions(tokens, tmp_path / "o.csv")
    assert caught.value.fix == "name a file that ends in .npz"
    with pytest.raises(UserError) as caught:
        write_predictions(predictions([1, 0], ROWS, []), tmp_path / "o.txt")
    assert caught.value.fix == "name a file that ends in .npz or .csv"
    assert not list(tmp_path.iterdir())
    write_predictions(tokens, tmp_path / "o.npz")
    with np.load(tmp_path / "o.npz") as written:
        assert written["label"].tolist() == [[1, 0]]
        assert written["probability"].tolist() == [ROWS]
    assert tokens.class_labels() == [[1, 0]]


def call(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_command_prints_the_first_labels_with_their_own_probabilities(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    actual = personal(start("fedavg"), 1)
    x = actual.examples(9).x.repeat(3, 1)[:23]
    model = export_model(start("fedavg").folder, 1, "safetensors", tmp_path / "m.safetensors")
    np.savez(tmp_path / "x.npz", x=x.numpy())
    chances = actual.predict(x).softmax(-1)
    labels, highest = chances.argmax(-1).tolist(), chances.amax(-1).tolist()
    words = ("predict", str(model), "--input", str(tmp_path / "x.npz"))
    table = json.loads(call(capsys, *words, "--json"))
    assert table["model"] == str(model) and table["inputs"] == 23
    assert table["labels"] == labels
    assert table["probabilities"] == pytest.approx(highest, abs=1e-5)
    lines = [line.split() for line in call(capsys, *words).splitlines() if line.strip()]
    assert lines[0] == ["input", "label", "probability"]
    rows = [line for line in lines[1:] if line and line[0].isdigit()]
    assert len(rows) == 20
    for number, row in enumerate(rows):
        assert row[:2] == [str(number), str(labels[number])]
        assert float(row[2]) == pytest.approx(highest[number], abs=1e-3)
    assert " ".join(lines[-1]) == "and 3 more; --output FILE writes all"
    written = call(capsys, *words, "--output", str(tmp_path / "o.csv"))
    assert written.splitlines()[-1] == "and 3 more"
    assert len((tmp_path / "o.csv").read_text().splitlines()) == 24


@pytest.mark.parametrize(
    ("task", "labels", "names", "texts"),
    [
        ("regression", [[1.23456, -2.0]], [], ["1.235, -2"]),
        ("multi-label", [[1, 0], [0, 0]], ["flu", "cold"], ["flu", "none"]),
        ("multi-label", [[1, 1]], [], ["0, 1"]),
        ("sequence-labelling", [[1, 0]], ["noun", "verb"], ["verb noun"]),
        ("classification", [1], ["cat", "dog"], ["dog"]),
    ],
)
def test_predictions_are_shown_in_the_words_of_their_task(
    task: str, labels: Any, names: list[str], texts: list[str]
) -> None:
    card: Any = SimpleNamespace(task=task, class_names=names, classes=2)
    assert Predictions(card, np.array(labels), np.array(ROWS, "float32")).texts(5) == texts
