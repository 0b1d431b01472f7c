"""Predictions of an exported model for inputs from a file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.core.fields import Fields
from fedblocks.core.forward_errors import take_note, tell_forward_errors
from fedblocks.core.method import Method
from fedblocks.core.task import Task
from fedblocks.core.task_kinds import KINDS
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.export.card import Card
from fedblocks.export.formats import Model, read
from fedblocks.export.inputs import read_inputs
from fedblocks.runs.out_files import check_out_folder

BATCH = 1024  # inputs in one pass


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

    def texts(self, most: int) -> list[str]:
        """The first predictions for people: classes, the labels that are there, or numbers."""
        card, some = self.card, self.labels[:most].tolist()
        names = card.class_names or [str(number) for number in range(card.classes)]
        if card.task == "regression":
            return [", ".join(f"{number:.4g}" for number in row) for row in some]
        if card.task == "multi-label":
            rows = [[name for name, there in zip(names, row) if there] for row in some]
            return [", ".join(row) or "none" for row in rows]
        if self.labels.ndim == 1:
            return [names[label] for label in some]
        return [" ".join(names[label] for label in row) for row in some]


@in_own_modes
def predict(
    model: str | Path, inputs: str | Path, method: Method | None = None, *, trust: bool = False
) -> Predictions:
    """The most probable label of every input in an npz, csv or parquet file, a saved data set of
    Hugging Face or a folder of images, and the probabilities of all labels; or which labels are
    there; or numbers. Files that were trained on are taken as they are: only inputs are read.

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
    _check_place(predictions, path)
    try:
        if path.suffix == ".npz":
            np.savez(path, label=predictions.labels, probability=predictions.probabilities)
        else:
            _write_csv(predictions, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}", "choose another file"
        ) from error


def _check_place(predictions: Predictions, path: Path) -> None:
    """Refuse a file that these predictions cannot go to."""
    if path.suffix not in (".npz", ".csv"):
        fix = "name a file that ends in .npz or .csv"
        raise UserError(f"predictions cannot go to {path}", fix)
    of_steps = predictions.labels.ndim > 1 and KINDS[predictions.card.task].of_classes
    if path.suffix == ".csv" and of_steps:
        raise UserError(
            f"predictions cannot go to {path}: every input has a label for each of its steps, and "
            "a line of a table has one",
            "name a file that ends in .npz",
        )
    check_out_folder(path)


def _logits(model: Model, x: Tensor) -> Tensor:
    fields = Fields.from_table(model.card.fields) if model.card.fields else None
    with tell_forward_errors():
        try:
            return torch.cat([model.logits(part) for part in torch.split(x, BATCH)])
        except Exception as error:  # of a file, whatever its format's runtime raises
            take_note(error, f"the {model.card.format} model", x, fields)
            raise


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
