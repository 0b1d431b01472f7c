"""Predictions of an exported model for inputs from a file."""

from __future__ import annotations

import csv
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import DataError, UserError
from fedblocks.core.method import Method
from fedblocks.core.task import KINDS, Task
from fedblocks.data.storage import read_arrays
from fedblocks.export.card import Card
from fedblocks.export.formats import Model, read

BATCH = 1024  # inputs in one pass
Lines = list[tuple[int, list[str]]]  # number and fields of each line


class Predictions(NamedTuple):
    """What a model says of some inputs."""

    card: Card
    # [inputs, ...] classes; [inputs, outputs] labels that are there (1) or not, or numbers
    labels: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    # [inputs, ..., classes] or [inputs, outputs]; of numbers there are none: [inputs, 0]
    probabilities: npt.NDArray[np.float32]

    def class_labels(self) -> list[int | str]:
        """The labels of single-label inputs by their names, where the classes have names."""
        names = self.card.class_names if self.labels.ndim == 1 else []
        return [names[label] if names else label for label in self.labels.tolist()]


def predict(
    model: str | Path, inputs: str | Path, method: Method | None = None, *, trust: bool = False
) -> Predictions:
    """The most probable label of every input in an npz or csv file, and the probabilities of all
    labels; or which labels are there; or numbers.

    Tensors (.safetensors) of a net that was made in Python need the method that it was trained
    with. A .pt2 file can run code and is read only with `trust`.
    """
    loaded = read(Path(model), method, trust=trust)
    outputs = _logits(loaded, read_inputs(Path(inputs), loaded.card))
    labels = Task(loaded.card.task).predict(outputs)
    return Predictions(loaded.card, labels.numpy(), _probabilities(loaded.card, outputs).numpy())


def _probabilities(card: Card, outputs: Tensor) -> Tensor:
    if KINDS[card.task].of_classes:
        return torch.softmax(outputs.double(), -1).float()
    return outputs[:, :0] if card.task == "regression" else torch.sigmoid(outputs.double()).float()


def write_predictions(predictions: Predictions, path: Path) -> None:
    """Write labels and probabilities to an npz or csv file."""
    try:
        if path.suffix == ".npz":
            np.savez(path, label=predictions.labels, probability=predictions.probabilities)
        elif path.suffix == ".csv" and (
            predictions.labels.ndim == 1 or not KINDS[predictions.card.task].of_classes
        ):
            _write_csv(predictions, path)
        else:
            endings = ".npz" if path.suffix == ".csv" else ".npz or .csv"
            fix = f"name a file that ends in {endings}"
            raise UserError(f"predictions cannot go to {path}", fix)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}", "choose another file"
        ) from error


def read_inputs(path: Path, card: Card) -> Tensor:
    """Inputs of the shape and type that the model takes: [inputs, ...]."""
    if not path.is_file():
        raise DataError(f"{path} does not exist", "name an .npz or .csv file")
    if path.suffix not in (".npz", ".csv"):
        raise DataError(
            f"{path}: inputs come as .npz or .csv", "save them with numpy.savez(path, x=...)"
        )
    values = _from_npz(path) if path.suffix == ".npz" else _from_csv(path, card.columns)
    shape = tuple(card.input_shape)
    if values.shape[1:] != shape and prod(values.shape[1:]) == prod(shape):
        values = values.reshape(len(values), *shape)  # a line of a table for a picture
    if values.ndim == 0 or values.shape[1:] != shape or len(values) == 0:
        size = " x ".join(map(str, values.shape)) or "one number"
        wanted = ", ".join(map(str, shape))
        raise DataError(f"{path} holds {size}; the model takes [inputs, {wanted}]", "reshape it")
    if not np.isfinite(values).all():
        raise DataError(
            f"{path} holds values that are not finite (NaN or infinite)", "remove those inputs"
        )
    return torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, card.input_type))


def _logits(model: Model, x: Tensor) -> Tensor:
    return torch.cat([model.logits(part) for part in torch.split(x, BATCH)])


def _from_npz(path: Path) -> npt.NDArray[np.float64]:
    arrays = read_arrays(str(path))
    name = "arr_0" if list(arrays) == ["arr_0"] else "x"  # numpy's own, if nobody named the array
    if name not in arrays:
        raise DataError(
            f'{path} has no array "x" but {", ".join(sorted(arrays)) or "nothing"}', "save it as x"
        )
    values = arrays[name]
    if values.dtype.kind not in "fiub":
        raise DataError(f"{path} holds {values.dtype}, not numbers", "save numbers")
    return values


def _from_csv(path: Path, columns: list[str]) -> npt.NDArray[np.float64]:
    """Lines of numbers below a line of names, if there is one: then the columns that
    the model was trained on.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read {path}: {error}", "save it as comma-separated UTF-8 text"
        ) from error
    if lines and not _is_number(lines[0][1][0]):
        names = lines.pop(0)[1]
        if columns and set(columns) <= set(names):
            lines = _choose_columns(lines, names, columns)
    widths = {len(line) for _, line in lines}
    if len(widths) > 1:
        first = len(lines[0][1])
        odd = next((number, len(line)) for number, line in lines if len(line) != first)
        raise DataError(
            f"{path} line {odd[0]} has {odd[1]} values, earlier ones have {first}",
            "correct the file",
        )
    for number, line in lines:
        wrong = [cell for cell in line if not _is_number(cell)]
        if wrong:
            raise DataError(
                f'{path} line {number}: "{wrong[0][:40]}" is not a number', "correct the file"
            )
    return np.array([[float(cell) for cell in line] for _, line in lines])


def _choose_columns(lines: Lines, names: list[str], columns: list[str]) -> Lines:
    """The named columns of lines that have them all; others are told as they are."""
    places = [names.index(name) for name in columns]
    return [
        (n, [line[p] for p in places] if len(line) == len(names) else line) for n, line in lines
    ]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _write_csv(predictions: Predictions, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        classes = predictions.card.class_names or range(predictions.card.classes)
        labels: list[list[Any]]
        if predictions.labels.ndim == 1:
            heads, labels = ["label"], [[label] for label in predictions.class_labels()]
        else:
            heads, labels = [str(c) for c in classes], predictions.labels.tolist()
        likely = [f"probability of {c}" for c in classes if predictions.probabilities.size]
        writer.writerow([*heads, *likely])
        for own, row in zip(labels, predictions.probabilities.tolist(), strict=True):
            writer.writerow([*own, *(f"{p:.6f}" for p in row)])
