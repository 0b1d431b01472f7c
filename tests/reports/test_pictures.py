"""Pictures of who shares which block: what is drawn follows from the home of each block."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

import fedblocks as fb
from fedblocks.config.model import ALL
from fedblocks.core.blocks import Block, Fresh, PerClient, Pool, Private, ServerOnly, Shared
from fedblocks.core.plan import plan
from fedblocks.reports.html.sharing import Picture, picture_of
from fedblocks.testing import EXAMPLES

ROW, LEFT, STEP = 84, 190, 64  # pixels of a row, of its words, and between shapes
CLIENTS = 4
WHOLE = 520  # pixels of a card on a page of 1,200: a wider picture would be cut


def slots_of(home: Block) -> int:
    """How many slots four clients use of one block; of a pool at most eight are drawn."""
    match home:
        case Pool():
            return min(home.size, 8)
        case PerClient():
            return CLIENTS
        case Shared() | ServerOnly():
            return 1
        case _:
            return 0


def sent_to_each(home: Block) -> int:
    """How many slots one client gets."""
    return {PerClient: 1, ServerOnly: 0}.get(type(home), slots_of(home))


@pytest.fixture(scope="module", params=sorted(EXAMPLES))
def drawn(request: pytest.FixtureRequest) -> tuple[dict[str, Block], Picture]:
    method = EXAMPLES[request.param]().experiment().methods["all"]
    picture = picture_of("its name", {ALL: method})
    assert picture.rows == plan(method).rows and picture.method == "its name"
    return {row["block"]: method.blocks()[row["block"]] for row in picture.rows}, picture


def test_every_block_has_its_slots_circles_and_lines(
    drawn: tuple[dict[str, Block], Picture],
) -> None:
    homes, picture = drawn
    for place, home in enumerate(homes.values()):
        top = 30 + ROW * place
        slots = [x for x, y in picture.slots if y == top + 16]
        circles = [(x, kind) for x, y, kind in picture.circles if y == top + 58]
        lines = [(a, b) for a, y, b, _ in picture.lines if y == top + 24]
        assert len(slots) == len(set(slots)) == slots_of(home)
        assert [x for x, _ in circles] == (
            [] if isinstance(home, ServerOnly) else [LEFT + STEP * i for i in range(CLIENTS)]
        )
        kind = (
            "own" if isinstance(home, Private) else "fresh" if isinstance(home, Fresh) else "sent"
        )
        assert {kind for _, kind in circles} <= {kind}
        assert len(lines) == len(set(lines)) == CLIENTS * sent_to_each(home)
        assert {a for a, _ in lines} <= set(slots)


def test_a_line_leads_from_the_edge_of_a_slot_to_the_edge_of_a_circle(
    drawn: tuple[dict[str, Block], Picture],
) -> None:
    _, picture = drawn
    slots = {(x, y + 8) for x, y in picture.slots}
    circles = {(x, y - 8) for x, y, _ in picture.circles}
    for a, b, c, d in picture.lines:
        assert (a, b) in slots and (c, d) in circles


def test_slots_stand_in_the_middle_and_everything_lies_within_the_picture(
    drawn: tuple[dict[str, Block], Picture],
) -> None:
    homes, picture = drawn
    assert picture.height == 30 + ROW * len(homes)
    assert LEFT + STEP * CLIENTS <= picture.width <= WHOLE
    assert all(x + 8 <= picture.width for x, _ in picture.slots)  # a slot has 16 pixels
    for y in {y for _, y in picture.slots}:
        xs = sorted(x for x, z in picture.slots if z == y)
        step = min(STEP, 5 * STEP // len(xs))  # 8 slots have the room of 5 clients
        assert {b - a for a, b in pairwise(xs)} <= {step} and step > 2 * 16
        if len(xs) <= CLIENTS:  # as far from the first client as from the last
            assert xs[0] - LEFT == LEFT + STEP * (CLIENTS - 1) - xs[-1]
        else:
            assert xs[0] == LEFT


def test_words_name_the_clients_the_blocks_and_their_homes(
    drawn: tuple[dict[str, Block], Picture],
) -> None:
    homes, picture = drawn
    words = [(LEFT + STEP * i, 16, f"client {i + 1}", "client") for i in range(CLIENTS)]
    for place, block in enumerate(homes):
        row = next(row for row in picture.rows if row["block"] == block)
        top = 30 + ROW * place
        words += [(8, top + 26, block[:24], "block"), (8, top + 46, row["home"][:28], "home")]
    assert Counter(picture.texts) == Counter(words)


def test_a_pool_of_more_slots_than_are_drawn_says_so() -> None:
    small, large = (
        picture_of("name", {ALL: fb.IFCA(fb.small_net(), clusters=size)}) for size in (8, 9)
    )
    assert "8 of them drawn" not in {text for _, _, text, _ in small.texts}
    assert "8 of them drawn" in {text for _, _, text, _ in large.texts}
    assert len(small.slots) == len(large.slots) == 8


def test_groups_of_clients_share_a_picture_and_a_block_is_drawn_for_those_that_have_it() -> None:
    methods = {
        name: EXAMPLES[method]().experiment().methods["all"]
        for name, method in (("a group with a long name", "fedavg"), ("others", "local"))
    }
    picture = picture_of("both", methods)
    assert picture.clients == ["a group with a long name", "others"]
    assert [text for _, _, text, kind in picture.texts if kind == "client"] == [
        "a group wi",
        "others",
    ]
    sent = [(x, kind) for x, _, kind in picture.circles]
    assert sorted(sent) == [(LEFT, "sent"), (LEFT + STEP, "own")]
    assert len(picture.slots) == len(picture.lines) == 1
