"""What the server sends: slots to clients, and what of it counts as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedblocks.core.blocks import (
    NOT_ON_THE_SERVER,
    Block,
    Fresh,
    Frozen,
    Generated,
    Mixture,
    PerClient,
    Pool,
    Private,
    Read,
    Selection,
    ServerOnly,
    server_name,
)
from fedblocks.core.frozen import initial_frozen
from fedblocks.core.hooks import noting
from fedblocks.core.method import Method
from fedblocks.core.parts import OPTIMIZER, Blocks, Params, is_statistic
from fedblocks.core.private_state import StackedState
from fedblocks.core.state import (
    State,
    count_bytes,
    initial_copy,
    initial_private,
    statistics_name,
    to_device,
)
from fedblocks.core.trees import is_repeated, map_leaves, stack, take


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round, in the order of their ids."""

    ids: Tensor  # [clients]
    sizes: Tensor  # [clients], training examples, in double precision
    tags: dict[str, Tensor]  # name -> [clients]
    population: int  # how many clients can ever take part in training
    round: int
    seed: int  # of the server's own choices in this round
    # clients that never train
    unseen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Tensor) -> Cohort:
        """Some of its clients: by a mask, or by their places in it."""
        tags = take(self.tags, rows)
        return replace(self, ids=self.ids[rows], sizes=self.sizes[rows], tags=tags)

    def mask_unseen(self, values: Tensor, fill: float) -> Tensor:
        """Fill the columns of clients that never train, [..., all clients]: nobody
        learned anything in their slots.
        """
        return values.index_fill(-1, self.unseen, fill) if len(self.unseen) else values

    def without_unseen(self, rows: Tensor) -> Tensor:
        """The rows of clients that can train, of [all clients, ...]."""
        if not len(self.unseen):
            return rows
        everybody = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        return rows[everybody.index_fill(0, self.unseen, False)]


@dataclass(frozen=True, eq=False)
class Download:
    """What a group of clients is given at the start of a round."""

    blocks: Blocks  # [clients, ...]
    reads: dict[str, Read]
    on_request: Blocks  # pools that wait for `wants`: [slots, ...]
    bytes_down: dict[str, Tensor]  # block -> [clients]
    # blocks that everybody has, once for all clients; never sent
    frozen: Blocks = field(default_factory=dict)


def request(slots: Params, wanted: Tensor) -> Params:
    """Make the second download: the slots that a client asked for, and zero for the others;
    [slots] or [clients, slots].
    """
    mask = wanted != 0
    return {
        k: torch.where(mask.view(*mask.shape, *[1] * (v.dim() - 1)), v, 0) for k, v in slots.items()
    }


@dataclass(frozen=True, eq=False)
class Beginnings:
    """What clients of a method start with, the same in every round."""

    private: Blocks  # of a client that never trained
    fresh: Blocks  # that start anew in every round
    frozen: Blocks  # that nobody writes, on the device where they are used

    @staticmethod
    def of(method: Method, seed: int, device: torch.device | str = "cpu") -> Beginnings:
        fresh: Blocks = {}
        for name, block in method.blocks().items():
            if isinstance(block, Fresh) and block.part is not None:
                fresh[name] = initial_copy(block.part, seed)
        frozen = {n: to_device(b, device) for n, b in initial_frozen(method, seed).items()}
        return Beginnings(initial_private(method, seed), fresh, frozen)


def gather(
    method: Method,
    state: State,
    cohort: Cohort,
    beginnings: Beginnings,
    places: Tensor | None = None,
) -> Download:
    """What each client of a cohort is sent, together with what it kept; `places`: only for those
    that stand there. What they are sent may depend on the whole cohort.
    """
    layout = method.blocks()
    with noting(method, "reads"):
        reads = dict(method.reads(own_server(layout, state.server), cohort))
    if places is not None:
        reads = {name: read_of_some(read, places) for name, read in reads.items()}
        cohort = cohort.take(places)
    kept = Kept.of(state.private, cohort.ids)
    blocks: Blocks = {}
    on_request: Blocks = {}
    down: dict[str, Tensor] = {}
    for name, block in layout.items():
        match block:
            case Private():
                blocks[name] = kept.side_by_side(name, beginnings.private[name])
            case Fresh():
                if block.part is not None:
                    one = to_device(beginnings.fresh[name], cohort.ids.device)
                    blocks[name] = _for_all(one, len(cohort))
            case Pool(on_request=True):
                on_request[name] = state.server[server_name(name, block)]
            case ServerOnly() | Frozen():
                pass
            case _:
                reads.setdefault(name, default_read(block, cohort))
                slots = state.server[server_name(name, block)]
                blocks[name] = sent_copies(slots, reads[name])
                down[name] = _bytes_down(method, slots, reads[name], cohort)
    blocks |= _kept_optimizers(kept)
    blocks = _with_own_statistics(blocks, beginnings.private, kept)
    return Download(blocks, reads, on_request, down, beginnings.frozen)


@dataclass(frozen=True, eq=False)
class Kept:
    """What the clients of a cohort kept, in its order."""

    clients: list[Blocks]  # of each; empty if they are a stack already
    stack: Blocks  # [clients, ...]
    device: torch.device

    @staticmethod
    def of(private: Mapping[int, Blocks], ids: Tensor) -> Kept:
        if not private:
            return Kept([{}] * len(ids), {}, ids.device)  # without asking a device who they are
        wanted = tuple(ids.tolist())
        if isinstance(private, StackedState) and private.pack.ids == wanted:
            return Kept([], private.pack.blocks, ids.device)
        return Kept([private.get(i, {}) for i in wanted], {}, ids.device)

    @property
    def names(self) -> dict[str, Params]:
        """What there is of any client, with an example of each tensor."""
        examples: dict[str, Params] = {}
        for own in (self.stack, *self.clients):
            for name, block in own.items():
                examples[name] = {**examples.get(name, {}), **block}
        return examples

    def side_by_side(self, name: str, otherwise: Params) -> Params:
        """[clients, ...], with something for those who have not kept it, or not all of it: other
        versions kept less.
        """
        if not self.clients:
            return to_device(self.stack[name], self.device)
        own = [to_device({**otherwise, **kept.get(name, {})}, self.device) for kept in self.clients]
        copies: Params = stack(own)
        return copies


def read_of_some(read: Read, places: Tensor) -> Read:
    """What some clients of a cohort are sent; rows that are one view stay so."""

    def rows(value: Tensor) -> Tensor:
        return value[: len(places)] if is_repeated(value) else value[places]

    match read:
        case Selection():
            return Selection(rows(read.slots))
        case Mixture():
            return Mixture(rows(read.weights))
        case Generated():
            return Generated(map_leaves(rows, read.values))


def default_read(block: Block, cohort: Cohort) -> Read:
    """The one slot of a shared block, all slots of a pool, a client's own slot."""
    if isinstance(block, PerClient):
        return Selection(cohort.ids)
    if isinstance(block, Pool):
        return Selection(torch.arange(block.size, device=cohort.ids.device).expand(len(cohort), -1))
    return Selection(torch.zeros_like(cohort.ids))


def sent_copies(slots: Params, read: Read) -> Params:
    """[slots, ...] -> what each client sees: [clients, ...], or [clients, how many,
    ...] side by side.
    """
    match read:
        case Generated():
            return read.values
        case Mixture():
            return {
                k: torch.einsum("cs,s...->c...", read.weights.to(v.dtype), v)
                for k, v in slots.items()
            }
        case Selection():
            return {k: _selected(v, read.slots) for k, v in slots.items()}


def _selected(value: Tensor, slots: Tensor) -> Tensor:
    """Views where every client gets the same, so that a cohort costs no copies."""
    count, clients = value.shape[0], slots.shape[0]
    if slots.dim() == 1 and count == 1:
        return value.expand(clients, *value.shape[1:])
    if slots.stride(0) == 0 and slots.shape[-1] == count:
        return value.expand(clients, *value.shape)
    return value[slots]


def own_server(layout: dict[str, Block], server: Blocks) -> Blocks:
    """The server's blocks under the names that the method gave them."""
    return {
        name: server[server_name(name, b)]
        for name, b in layout.items()
        if not isinstance(b, NOT_ON_THE_SERVER)
    }


def bytes_per_slot(method: Method, state: State) -> dict[str, int]:
    """The size of one slot of every pool that travels on request, with all of its statistics:
    `check_statistics` refuses that some of them stay on clients.
    """
    layout = method.blocks().items()
    asked = {name: b for name, b in layout if isinstance(b, Pool) and b.on_request}
    own = {name: state.server[server_name(name, block)] for name, block in asked.items()}
    return {name: count_bytes(slots, rows=_rows(slots)) for name, slots in own.items()}


def _bytes_down(method: Method, slots: Params, read: Read, cohort: Cohort) -> Tensor:
    copies = read.slots.shape[1] if isinstance(read, Selection) and read.slots.dim() == 2 else 1
    sent = read.values if isinstance(read, Generated) else slots
    one = count_bytes(sent, method.statistics == "local", _rows(sent))
    return torch.full((len(cohort),), copies * one, device=cohort.ids.device)


def _rows(slots: Params) -> int:
    return len(next(iter(slots.values()), ()))


def _for_all(params: Params, count: int) -> Params:
    return {k: v.expand(count, *v.shape) for k, v in params.items()}


def _with_own_statistics(blocks: Blocks, fresh: Blocks, kept: Kept) -> Blocks:
    """Put the statistics that clients kept in the place of those that were sent."""
    for name in list(blocks):
        where = statistics_name(name)
        if where in fresh:
            own = kept.side_by_side(where, fresh[where])
            blocks[name] = {k: own[k] if is_statistic(k) else v for k, v in blocks[name].items()}
    return blocks


def _kept_optimizers(kept: Kept) -> Blocks:
    """What local optimizers remember; nothing yet, as zeros, for clients that are new."""
    examples = {name: block for name, block in kept.names.items() if name.startswith(OPTIMIZER)}
    return {
        name: kept.side_by_side(name, map_leaves(torch.zeros_like, block))
        for name, block in examples.items()
    }
