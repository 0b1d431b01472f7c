"""Which columns of a table are its targets."""

from __future__ import annotations

from collections.abc import Sequence

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task

USER = "user"  # what user ids are called where nobody says it; they need not be there
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


def refuse_two_roles(targets: Sequence[str], user: str, inputs: Sequence[str]) -> None:
    """Refuse a column that is the label and something else: a net would read off what it is to
    learn, or every client would have one class.
    """
    for name in targets:
        if name == user:
            raise DataError(f'"{name}" is both the label and the user', "name two columns")
        if name in inputs:
            message = f'the label "{name}" is among `columns`, from which it is to be learned'
            raise DataError(message, "leave it out of `columns`")
