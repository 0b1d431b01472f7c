"""Data of one's own: a folder of images by class, or a table with a column for the user."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from fedblocks.core.errors import DataError, count_of, nearest
from fedblocks.core.losses import IGNORE
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.special_files import missing_file, refuse_special
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.arrays import as_inputs, as_rows
from fedblocks.data.options import checked
from fedblocks.data.pools import DataPool, DataSet
from fedblocks.data.sets.index_columns import without_index
from fedblocks.data.sets.pixels import Pixels, picture, resize_picture, stack_pictures
from fedblocks.data.spellings import (
    UNKNOWN,
    Ids,
    as_number,
    number_labels,
    refuse_nul,
    says_nothing,
    user_fields,
)
from fedblocks.data.target_columns import USER, Label, refuse_two_roles, target_columns

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
LARGEST = float(np.finfo(np.float32).max)


@checked
def image_folder(
    path: Annotated[
        str,
        Help("a folder with a subfolder of images per class, or one per user with one per class"),
    ],
    side: Annotated[
        int | None,
        AtLeast(1),
        Help("resize to side x side pixels; default: all images must have one size"),
    ] = None,
) -> DataPool:
    """Colour images [rows, 3, height, width] in 0..1 from CLASS/ or USER/CLASS/;
    classes in order of their names.
    """
    files = image_files(Path(path))
    by_user = {len(file.relative_to(path).parts) == 3 for file in files}  # USER, CLASS, file
    if not files or len(by_user) > 1:
        fix = (
            "give a folder with one subfolder of images (png, jpg, ...) per class, or one per "
            "user with one per class"
        )
        wrong = "images both by class and by user" if files else "no images by class"
        raise DataError(f"there are {wrong} in {path}", fix)
    images = [image(file, side) for file in files]
    if other := next((file for file, x in zip(files, images) if x.shape != images[0].shape), None):
        raise DataError(
            f"{other} has another size than {files[0]}", "set side, so that all images are resized"
        )
    x = as_inputs(stack_pictures(images))
    names = class_folders(Path(path), by_user == {True})
    y = torch.tensor([names.index(file.parent.name) for file in files])
    users = np.array([file.parent.parent.name for file in files]) if by_user == {True} else None
    return DataPool(
        x, y, len(names), users, about={"name": "image_folder", "path": path, "class_names": names}
    )


def image_files(folder: Path) -> list[Path]:
    """The images in CLASS/ and USER/CLASS/, in order of class (and user) and name."""
    files = [
        file
        for pattern in ("*/*", "*/*/*")
        for file in folder.glob(pattern)
        if file.suffix.lower() in ENDINGS
    ]
    return sorted((file for file in files if file.is_file()), key=lambda file: (file.parent, file))


def class_folders(folder: Path, by_user: bool) -> list[str]:
    """The names of the classes in their order; one without images counts, too."""
    return sorted({sub.name for sub in folder.glob("*/*" if by_user else "*") if sub.is_dir()})


def image(file: Path, side: int | None) -> Pixels:
    """An image as [height, width, 3], resized if a side is given."""
    refuse_special(file)
    pixels = picture(file.read_bytes(), str(file))
    return pixels if side is None else resize_picture(pixels, side)


@checked
def csv_table(
    path: Annotated[str, Help("a file with a line of column names")],
    label: Annotated[Label, Help("the column of labels, or a list of columns")] = "label",
    user: Annotated[str, Help("the column of user ids, if there is one")] = "user",
    columns: Annotated[tuple[str, ...], Help("the columns of features; default: all others")] = (),
    task: Task = CLASSIFICATION,
    ids: Annotated[
        Ids,
        Help("user ids that are all whole numbers are sorted by size, or as words by the alphabet"),
    ] = "numbers",
) -> DataPool:
    """Features [rows, columns] of a CSV file; words as labels are numbered in order of
    the alphabet. Numbers and several labels stand in columns of their own: a list of names, or
    one text with commas between them.
    """
    names, lines = read_table(path)
    refuse_missing_user(path, user, names)
    targets = target_columns(label, task, names)
    others = tuple(name for name in names if name not in (*targets, user))
    chosen = columns or without_index(path, others)
    for name in (*targets, *chosen):
        if name not in names:
            raise DataError(f'{path} has no column "{name}"', nearest(name, names))
    refuse_two_roles(targets, user, chosen)
    at = {name: place for place, name in enumerate(names)}
    x = np.array(
        [
            [number(line[at[name]], name, path, row) for name in chosen]
            for row, line in enumerate(lines, 2)
        ]
    )
    for column in (*(targets if task.of_classes else ()), *([user] if user in names else [])):
        empty = next(
            (row for row, line in enumerate(lines, 2) if says_nothing(line[at[column]])), None
        )
        if empty is not None:
            message = f'there is no value in column "{column}", line {empty} of {path}'
            unknown = f"; a class that is not known is {IGNORE}" if column in targets else ""
            raise DataError(message, f"fill it, or remove the line{unknown}")
    users = user_fields([line[at[user]] for line in lines], ids) if user in names else None
    if task.of_classes:
        labels, classes = number_labels([line[at[targets[0]]] for line in lines])
        y, count = torch.from_numpy(labels), len(classes) or int(labels.max()) + 1
    else:
        places = [(name, at[name]) for name in targets]
        y, count, classes = number_targets(places, lines, path), len(targets), targets
    about = {"name": "csv", "path": path, "columns": list(chosen), "class_names": classes}
    inputs, _ = as_rows(x.reshape(len(lines), -1), len(lines), chosen)
    return DataPool(inputs, y, count, users=users, about=about, task=task)


def refuse_missing_user(path: str, user: str, names: Sequence[str]) -> None:
    """Refuse a column of users that was named and is not there: with a partition nobody would
    notice that the ids are a feature.
    """
    refuse_other_letters(path, user, names)
    if user and user != USER and user not in names:
        fix = f"{nearest(user, names)}; or write user=None if there is none"
        raise DataError(f'{path} has no column "{user}"', fix)


def refuse_other_letters(path: str, user: str, names: Sequence[str]) -> None:
    """Refuse a column of users that is there in other letters: as a feature it would mislead."""
    other = next((name for name in names if name.strip().lower() == user.lower()), None)
    if other is not None and user not in names:
        message = f'{path} has no column "{user}", but one that is called "{other}"'
        raise DataError(message, f'write user="{other}", or user=None if it is a feature')


def number_targets(
    places: Sequence[tuple[str, int]], lines: Sequence[Sequence[str]], path: str
) -> torch.Tensor:
    """Columns of targets as numbers, NaN where a field is empty: [rows, columns]."""
    numbers = [
        [
            math.nan
            if line[place].strip().lower() in UNKNOWN
            else number(line[place], name, path, row)
            for name, place in places
        ]
        for row, line in enumerate(lines, 2)
    ]
    return torch.tensor(numbers, dtype=torch.float32)


def read_table(path: str) -> tuple[list[str], list[list[str]]]:
    """Column names and rows of a CSV file, which must all have the same number of fields."""
    refuse_special(path)
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first, *lines = [line for line in csv.reader(file) if line] or [[]]
    except FileNotFoundError as error:
        raise missing_file(path) from error
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read as CSV: {error}", "give a text file with a line of names"
        ) from error
    names = [name.strip() for name in first]
    check_header(path, names)
    if not lines:
        raise DataError(f"{path} has no rows", "give a line of column names and at least one row")
    for row, line in enumerate(lines, 2):
        refuse_nul(line, f"line {row} of {path}: the field")
        if len(line) != len(names):
            counts = f"{count_of(len(line), 'field')}, and there are {len(names)} column names"
            raise DataError(
                f"line {row} of {path} has {counts}", "give every row one field per column"
            )
    return names, lines


def check_header(path: str, names: Sequence[str]) -> None:
    """Refuse names of columns that are none, stand twice or are not separated by commas."""
    if not names:
        raise DataError(f"{path} is empty", "give a line of column names and at least one row")
    other = next((mark for mark in (";", "\t", "|") if mark in names[0]), None)
    if len(names) == 1 and other is not None:
        mark = "tabs" if other == "\t" else f'"{other}"'
        raise DataError(
            f"the columns of {path} seem to be separated by {mark}", "separate them by commas"
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f'{path} has two columns "{twice}"', "give every column its own name")


def number(field: str, column: str, path: str, row: int) -> float:
    """A field as a number."""
    if field.strip().lower() in UNKNOWN:
        message = f'there is no value in column "{column}", line {row} of {path}'
        raise DataError(message, "fill it, remove the line, or leave the column out with `columns`")
    try:
        value = as_number(field)
    except ValueError as error:
        message = f'"{field}" in column "{column}", line {row} of {path}, is not a number'
        raise DataError(
            message, "name the columns of features with `columns`, or change the file"
        ) from error
    if not abs(value) <= LARGEST:
        message = f'"{field}" in column "{column}", line {row} of {path}, is too large'
        raise DataError(message, f"features are below {LARGEST:.1e}: scale the column")
    return value


SETS = {
    "image_folder": DataSet(
        "image_folder", image_folder, None, "images", "your own folder of images by class"
    ),
    "csv": DataSet(
        "csv",
        csv_table,
        None,
        "features",
        "your own table, with a column for the user if there is one",
    ),
}
