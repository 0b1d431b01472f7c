"""A picture of who shares which block with whom, drawn from the plan of a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedblocks.config.model import ALL
from fedblocks.core.blocks import Block, Fresh, Frozen, PerClient, Pool, Private, ServerOnly, Shared
from fedblocks.core.method import Method
from fedblocks.core.plan import plan

HEIGHT = 84  # pixels of a row
LEFT = 190  # pixels of its text
STEP = 64  # pixels between shapes
ROOM = 5  # clients beside each other that a card shows whole; more slots stand closer together
MOST = 8  # slots that are drawn
Line = tuple[int, int, int, int]


@dataclass
class Picture:
    """One method: a row for each block, the server's slots above the clients that use them."""

    method: str
    rows: list[dict[str, str]]  # the plan
    clients: list[str]
    texts: list[tuple[int, int, str, str]] = field(default_factory=list)  # x, y, text, class
    slots: list[tuple[int, int]] = field(default_factory=list)
    circles: list[tuple[int, int, str]] = field(default_factory=list)  # x, y, class
    lines: list[Line] = field(default_factory=list)

    @property
    def width(self) -> int:
        return max([LEFT + STEP * len(self.clients), *(x + STEP // 2 for x, _ in self.slots)])

    @property
    def height(self) -> int:
        return 30 + HEIGHT * len({row["block"] for row in self.rows})


def picture_of(name: str, methods: Mapping[str, Method]) -> Picture:
    """The picture of a method, with four clients, or with its groups of clients."""
    groups = [ALL] * 4 if list(methods) == [ALL] else list(methods)
    rows = [row for method in methods.values() for row in plan(method).rows]
    rows = list({tuple(row.items()): row for row in rows}.values())
    clients = [f"client {i}" if group == ALL else group for i, group in enumerate(groups, 1)]
    picture = Picture(name, rows, clients)
    layouts = [methods[group].blocks() for group in groups]
    for i, client in enumerate(clients):
        picture.texts.append((LEFT + STEP * i, 16, client[:10], "client"))
    for number, block in enumerate(dict.fromkeys(row["block"] for row in rows)):
        _draw(picture, 30 + HEIGHT * number, block, [layout.get(block) for layout in layouts])
    return picture


def _draw(picture: Picture, top: int, name: str, homes: list[Block | None]) -> None:
    """One block: slots above, clients below, a line wherever something is sent."""
    row = next(row for row in picture.rows if row["block"] == name)
    texts = [(26, name[:24], "block"), (46, row["home"][:28], "home")]
    if any(isinstance(home, Pool) and home.size > MOST for home in homes):
        texts.append((64, f"{MOST} of them drawn", "home"))
    picture.texts += [(8, top + y, text, kind) for y, text, kind in texts]
    used = [
        _slots_of(home, name, place) if home is not None else [] for place, home in enumerate(homes)
    ]
    slots = list(dict.fromkeys(slot for some in used for slot in some))
    step = min(STEP, STEP * max(ROOM, len(homes)) // max(1, len(slots)))
    start = LEFT + max(0, (STEP * len(homes) - step * len(slots)) // 2)  # in the middle above them
    at = {slot: start + step * place for place, slot in enumerate(slots)}
    picture.slots += [(x, top + 16) for x in at.values()]
    for place, (home, some) in enumerate(zip(homes, used)):
        if home is not None and not isinstance(home, ServerOnly):
            x = LEFT + STEP * place
            picture.circles.append((x, top + 58, _kind(home)))
            picture.lines += [(at[slot], top + 24, x, top + 50) for slot in some]


def _slots_of(home: Block, name: str, place: int) -> list[tuple[str, int]]:
    match home:
        case Pool():
            return [(home.name or name, slot) for slot in range(min(home.size, MOST))]
        case PerClient():
            return [(name, place)]
        case Shared():
            return [(home.name or name, 0)]
        case ServerOnly():
            return [(name, 0)]
        case _:
            return []


def _kind(home: Block) -> str:
    match home:
        case Private():
            return "own"
        case Fresh() | Frozen():
            return "fresh"
        case _:
            return "sent"
