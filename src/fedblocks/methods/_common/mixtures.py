"""How the slots start whose parameters a client mixes: the option of every such method."""

from __future__ import annotations

from typing import Annotated, Literal

from fedblocks.core.options import Help
from fedblocks.core.starts import Common, Independent, Start

MixtureStart = Annotated[
    Literal["common", "independent"],
    Help(
        'branches around one "common" initialisation, which an even mixture of them is, or '
        '"independent" ones, of which it has 1 / sqrt(B) of the spread'
    ),
]
STARTS: dict[str, Start] = {"common": Common(), "independent": Independent()}
