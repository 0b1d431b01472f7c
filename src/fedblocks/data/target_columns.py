"""Which columns of a table are its targets."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task

Label = str | tuple[str, ...]  # the name of a column, or of several


def as_label(label: str | Sequence[str]) -> Label:
    """What was given for labels, as options hold it."""
    return label if isinstance(label, str) else tuple(label)


def target_columns(label: Label, task: Task, names: Sequence[str]) -> list[str]:
    """The columns that a label names in a table with columns of these names: the one that is called
    so, commas and all, or else several with commas between them; a list is taken as it is.
    """
    if not isinstance(label, str):
        columns = [str(name) for name in label]
    elif label in names or task.of_classes:
        columns = [label]
    else:
        columns = [part.strip() for part in label.split(",")]
    if len(columns) != 1 and (task.of_classes or not columns):
        message = f"label: {len(columns)} columns, but {task.kind} has one label"
        raise DataError(message, 'name one column, or say task=Task("multi-label")')
    if len({*columns}) < len(columns):
        raise DataError(f"label: {', '.join(columns)} has a column twice", "name each once")
    return columns
