"""What one client of a cohort is sent of the server's blocks, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Mapping

from fedblocks.core.blocks import Federated, Generated, Mixture, Read, Selection, server_name
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.server import Download
from fedblocks.core.state import State
from fedblocks.flower.wire.messages import BLOCKS, WEIGHTS, Slots, Wire, array_name
from fedblocks.flower.wire.plans import Specs


def slots_of(method: Method, state: State) -> Blocks:
    """Return the slots of every block that travels, under the method's own names."""
    return {
        n: state.server[server_name(n, b)]
        for n, b in method.blocks().items()
        if isinstance(b, Federated)
    }


def sent_to_one(
    specs: Mapping[str, Specs], sent: Download, member: int
) -> tuple[Blocks, dict[str, int]]:
    """Return what one client of a cohort is sent first, and how many copies side by
    side (0: a single one).
    """
    blocks: Blocks = {}
    copies: dict[str, int] = {}
    for name in sent.bytes_down:
        read = sent.reads[name]
        if not (isinstance(read, Generated) and not read.values):
            blocks[name] = {k: sent.blocks[name][k][member] for k in specs[name]}
            copies[name] = 0
            if isinstance(read, Selection) and read.slots.dim() == 2:
                copies[name] = read.slots.shape[1]
    return blocks, copies


def read_of_one(read: Read, member: int) -> Read:
    """Return how one client of a cohort reads a block."""
    one = slice(member, member + 1)
    match read:
        case Generated():
            return Generated({k: v[one] for k, v in read.values.items()})
        case Mixture():
            return Mixture(read.weights[one])
        case Selection():
            return Selection(read.slots[one])


def union(*asked: Slots) -> Slots:
    """Return all slots that were asked for, in order."""
    names = sorted({name for slots in asked for name in slots})
    return {n: tuple(sorted({s for slots in asked for s in slots.get(n, ())})) for n in names}


def payload_of(message: Wire, block: str) -> int:
    """Count the bytes of one block in a message, its weights included."""
    weights = array_name(WEIGHTS, block)
    copies = array_name(BLOCKS, block) + "/"
    return sum(
        array.nbytes
        for name, array in message.arrays.items()
        if name == weights or name.startswith(copies)
    )
