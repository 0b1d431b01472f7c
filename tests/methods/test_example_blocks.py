"""The blocks of every method on a net with BatchNorm, in words: where each lives, under which rule,
and what it starts with. Noted in example_blocks.txt, to be read.

After a change on purpose, delete that file, run this twice, and read what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fedblocks.core.blocks import Block
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.parts import Sized
from fedblocks.core.server import Cohort
from fedblocks.testing import EXAMPLES
from fedblocks.testing.adapters import ADAPTERS
from fedblocks.testing.extras import normed_net

NOTED = Path(__file__).parent / "example_blocks.txt"
EVERY = {**EXAMPLES, **ADAPTERS}


def method_of(name: str) -> Method:
    """On a net with statistics, if the method takes it."""
    example = EVERY[name]()
    try:
        methods = example.methods(net=normed_net())
    except UserError:
        methods = example.methods()
    return next(iter(methods.values()))


def of_part(part: Any) -> str:
    """Names, shapes and sums of what a part starts with; one of a federation's size for 9 clients.

    Sums have three digits: they tell zeros, ones and random numbers apart on any processor.
    """
    made = part.make(9) if isinstance(part, Sized) else part
    if made is None:
        return "nothing"
    start = made.init(3)
    return ", ".join(
        f"{key} {list(value.shape)} {value.double().sum().item():.3f}".replace("-0.000", "0.000")
        for key, value in start.items()
    )


def of_block(name: str, block: Block) -> str:
    own = {f.name: getattr(block, f.name) for f in fields(block) if f.name != "part"}
    words = ", ".join(f"{key}={value}" for key, value in own.items() if value is not None)
    return f"  {name}: {type(block).__name__}({words}) of {of_part(block.part)}"


def lines_of(name: str) -> Iterator[str]:
    method = method_of(name)
    stays = f"own state {method.has_personal_state}, personal by {method.personal_by}"
    weights = f"weights {method.weight_label}"
    yield f"{name}: {stays}, {weights}, later options {dict(method.later_options)}"
    yield from (of_block(block, own) for block, own in method.blocks().items())


@cache
def noted() -> dict[str, list[str]]:
    """By method."""
    every: dict[str, list[str]] = {}
    name = ""
    for line in NOTED.read_text().splitlines():
        name = name if line.startswith(" ") else line.partition(":")[0]
        every.setdefault(name, []).append(line)
    return every


@pytest.mark.parametrize("name", EVERY)
def test_the_blocks_of_a_method_are_as_noted(name: str) -> None:
    if not NOTED.exists():
        NOTED.write_text("".join(f"{line}\n" for one in EVERY for line in lines_of(one)))
        pytest.fail("example_blocks.txt was written: read what has changed")
    assert list(lines_of(name)) == noted()[name]


def test_single_uploads_are_asked_for_by_methods_that_look_at_them() -> None:
    """In the first round; a method without a `conclude` of its own looks at none."""
    cohort = Cohort(torch.arange(2), torch.ones(2).double(), {}, 6, 0, 0)
    asked = {}
    for name in ("fedavg", "scaffold", "pfedhn", "product_lora"):
        method = method_of(name)
        asked[name] = sorted(method.single_uploads({}, cohort))
    assert asked == {
        "fedavg": [], "scaffold": [], "pfedhn": ["model"],
        "product_lora": sorted(method_of("product_lora").blocks()),
    }  # fmt: skip
