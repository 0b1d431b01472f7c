"""Inputs for an exported model, from files as people have them; those that were trained on, too."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.fields import Fields
from fedblocks.core.special_files import refuse_special
from fedblocks.data.arrays import from_numpy
from fedblocks.data.sets.columns import Column, check_columns, inputs_of
from fedblocks.data.sets.hugging_face import load_saved, read_data_set
from fedblocks.data.sets.own import ENDINGS, check_header, image
from fedblocks.data.sets.parquet import column_names, read_parquet
from fedblocks.data.sets.pixels import stack_pictures
from fedblocks.data.storage import read_arrays
from fedblocks.export.card import Card
from fedblocks.export.conversion import InputForm, is_bytes, refuse_bytes

Lines = list[tuple[int, list[str]]]  # number and fields of each line
Numbers = npt.NDArray[Any]  # [inputs, ...]
SAVED = ("state.json", "dataset_dict.json")  # what a saved data set of Hugging Face has


def read_inputs(path: Path, card: Card) -> Tensor:
    """Inputs of the shape and type that the model takes: [inputs, ...]."""
    values = _read(path, card)
    shape = tuple(card.input_shape)
    if values.shape[1:] != shape and prod(values.shape[1:]) == prod(shape):
        values = values.reshape(len(values), *shape)  # a line of a table for a picture
    if values.ndim and len(values) == 0:
        raise DataError(f"{path} holds no inputs: it has 0 rows", "give at least one")
    if values.ndim == 0 or values.shape[1:] != shape:
        size = " x ".join(map(str, values.shape)) or "one number"
        wanted = ", ".join(map(str, shape))
        raise DataError(f"{path} holds {size}; the model takes [inputs, {wanted}]", "reshape it")
    if not np.isfinite(values).all():
        raise DataError(
            f"{path} holds values that are not finite (NaN or infinite)", "remove those inputs"
        )
    if is_bytes(values) and not card.takes_bytes:
        refuse_bytes(str(path), "inputs of training were not 0 to 1")
    return InputForm.of_card(card).convert(from_numpy(values), str(path))


def _read(path: Path, card: Card) -> Numbers:
    if path.is_dir():
        return _from_folder(path, card)
    if not path.is_file():
        raise DataError(f"{path} does not exist", "name an .npz, .csv or .parquet file")
    match path.suffix:
        case ".npz":
            return _from_npz(path, card)
        case ".csv":
            return _from_csv(path, card.columns)
        case ".parquet":
            chosen = _chosen(path, column_names(str(path)), card.columns)
            return _from_columns(path, read_parquet(str(path), chosen), card)
    raise DataError(
        f"{path}: inputs come as .npz, .csv or .parquet", "save them with numpy.savez(path, x=...)"
    )


def _chosen(path: Path, names: list[str], columns: list[str]) -> list[str]:
    """The columns that the model was trained on; all, where it does not say which."""
    check_columns(str(path), columns, names)
    return columns or names


def _from_columns(path: Path, columns: Mapping[str, Column], card: Card) -> Numbers:
    if card.fields:
        return _packed(columns, card)
    ordered = {name: columns[name] for name in card.columns or columns}
    held = next((name for name, column in ordered.items() if _holds_bytes(column)), None)
    if held is not None and not card.takes_bytes:
        refuse_bytes(f'column "{held}" of {path}', "inputs of training were not 0 to 1")
    return inputs_of(str(path), ordered)[0].numpy()


def _holds_bytes(column: Column) -> bool:
    """Whether each row is an array of bytes, of which training makes 0 to 1."""
    rows = column if column.dtype != object else column[0]
    is_whole = column.ndim > 1 or column.dtype == object
    return is_whole and is_bytes(np.asarray(rows))


def _packed(columns: Mapping[str, Any], card: Card) -> Numbers:
    """Several fields as one row of numbers, in the order of training."""
    labels = Fields.from_table(card.fields).labels
    arrays = {name: np.stack(list(columns[name])) for name in labels}
    return InputForm.of_card(card).pack(arrays).numpy()


def _from_folder(path: Path, card: Card) -> Numbers:
    """A saved data set of Hugging Face, or images in order of their folders and names."""
    if any((path / name).exists() for name in SAVED):
        data = load_saved(str(path), "train")
        names = [str(name) for name in data.column_names]
        chosen = _chosen(path, names, card.columns)
        return _from_columns(path, read_data_set(data, chosen), card)
    files = sorted(
        (file for file in path.rglob("*") if file.suffix.lower() in ENDINGS),
        key=lambda file: (file.parent, file),
    )
    if not files:
        raise DataError(f"there are no images in {path}", "name a folder of images, or a file")
    *_, height, width = (0, 0, *card.input_shape)
    side = height if height == width else None
    pictures = [image(file, side) for file in files]
    if len({picture.shape for picture in pictures}) > 1:
        raise DataError(f"the images in {path} have unlike sizes", "bring them to one size")
    stacked = stack_pictures(pictures)
    if not is_bytes(stacked) and not card.takes_bytes:
        fix = "give arrays (.npz), scaled as the training data were"
        message = f"the images in {path} become 0 to 1, and inputs of training were not 0 to 1"
        raise DataError(message, fix)
    return stacked


def _from_npz(path: Path, card: Card) -> Numbers:
    arrays = read_arrays(str(path))
    labels = Fields.from_table(card.fields).labels if card.fields else ()
    missing = [label for label in labels if label not in arrays]
    if labels and not missing:
        return _packed(arrays, card)
    name = "arr_0" if list(arrays) == ["arr_0"] else "x"  # numpy's own, if nobody named the array
    if len(card.columns) == 1 and card.columns[0] in arrays:
        name = card.columns[0]
    if name not in arrays:
        lacking = missing[0] if missing else "x"
        fix = f"save {', '.join(labels)}, each under its name" if labels else "save it as x"
        there = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f'{path} has no array "{lacking}" but {there}', fix)
    values = arrays[name]
    if values.dtype.kind not in "fiub":
        raise DataError(f"{path} holds {values.dtype}, not numbers", "save numbers")
    return values


def _from_csv(path: Path, columns: list[str]) -> Numbers:
    """Lines of numbers below a line of names, if there is one: then the columns that
    the model was trained on.
    """
    refuse_special(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), 1) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"cannot read {path}: {error}", "save it as comma-separated UTF-8 text"
        ) from error
    if lines and not _is_number(lines[0][1][0]):
        names = [name.strip() for name in lines.pop(0)[1]]
        check_header(str(path), names)
        if columns:
            check_columns(str(path), columns, names)
            lines = _choose_columns(lines, names, columns)
    if not lines:
        raise DataError(f"{path} has no rows", "write a line of numbers for each input")
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
