"""What an operator yields, and how the new text of a node comes about."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

Changes = Iterator[tuple[ast.AST, str]]  # the node to replace, and its new text


def changed(node: ast.AST, **fields: Any) -> str:
    """The text of a node with other fields."""
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return ast.unparse(twin)


def replaced(items: list[Any], position: int, *new: Any) -> list[Any]:
    return [*items[:position], *new, *items[position + 1 :]]
