"""`--code`: the user's own nets, methods and data sets for a command; and the program
behind a run made in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedblocks.cli.output import clean, console

if TYPE_CHECKING:
    from fedblocks.config.code.ingredients import Ingredients
    from fedblocks.config.code.loading import Code
    from fedblocks.config.model import Config
    from fedblocks.core.method import Method

CodeFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--code",
        metavar="FILE",
        help="Python file or module that defines your nets, methods or data sets, or that started "
        "the run; may be repeated.",
    ),
]


def read_code(sources: Sequence[str] | None) -> Code:
    """Read what the user named; a call of `fedblocks.run` in it starts nothing."""
    from fedblocks.config.code.loading import Code

    return Code.read(sources or [])


def share_code(sources: Sequence[str] | None) -> None:
    """Read it here, and in every process that is started from here."""
    from fedblocks.config.code.loading import tell_children

    read_code(sources)
    tell_children(sources or [])


def ingredients_of(folder: Path, code: Code) -> Ingredients | None:
    """Method and data of a run that was made in Python, from the program that made it;
    None: it has names only.
    """
    from fedblocks.runs.begun import read_begun
    from fedblocks.runs.storage.code_record import warnings

    for text in warnings(folder, code):
        console(sys.stderr).print(f"warning: {clean(text)}", soft_wrap=True)
    return code.ingredients_for(read_begun(folder).config)


def with_ingredients(config: Config, code: Code) -> Config:
    """A configuration that a Python program wrote, with the program's own objects; any
    other as it is.
    """
    ingredients = code.ingredients_for(config)
    return config if ingredients is None else config.of_objects(ingredients)


def method_of(model: Path, code: Code) -> Method | None:
    """The method behind a file of tensors whose net was made in Python."""
    from fedblocks.export.formats import read_card

    card = read_card(model) if code.sources else None
    return None if card is None else code.method_for(card.method, card.net, card.seed)
