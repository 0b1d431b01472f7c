"""The checks of a client's answer: envelope, size, names, dtypes, shapes, weights; then
the library's own gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedblocks.core.admission import Examination, admit, weight_checks
from fedblocks.core.blocks import Federated, Pool, Read, Selection
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads, uploads_of
from fedblocks.flower.wire.messages import (
    LARGEST,
    WEIGHTS,
    Counts,
    Envelope,
    Malformed,
    RequestHeader,
    Schema,
    UploadHeader,
    Wire,
    array_name,
    blocks_from,
    blocks_schema,
    tensors_of,
)
from fedblocks.flower.wire.plans import Specs, several
from fedblocks.flower.wire.uploads import copies_to_send, fill_copies, slots_side_by_side

DOUBLE = 8  # bytes of a weight
MOST_LABELS = 1e12  # that nobody has scored
MOST_LOSS = 1e100  # of all labels of a client; sums over clients stay finite
SLACK = 1.05  # larger answers are refused unread; others with an exact reason


@dataclass(frozen=True)
class Member:
    """What the server knows of an enrolled client; it never sees more of its data than this."""

    client: int
    size: int  # training examples
    limit: float  # the largest weight that it may ask for
    tags: Mapping[str, int]
    group: str = "all"

    def __post_init__(self) -> None:
        if self.client < 0 or self.size < 0 or not 0 <= self.limit < float("inf"):
            raise ValueError(
                f"client {self.client}: number and size start at 0, and the limit is finite"
            )
        numbers = (self.client, self.size, *self.tags.values())
        if any(not -LARGEST <= number < LARGEST for number in numbers):
            raise ValueError("numbers of 64 bits are the largest")


@dataclass(frozen=True, eq=False)
class Expected:
    """What one client may answer in a round."""

    member: Member
    envelope: Envelope
    method: Method
    specs: Mapping[str, Specs]  # block -> tensors of one copy
    reads: Mapping[str, Read]  # of this client alone
    copies: Mapping[str, int]  # block -> copies that it was sent side by side
    sent: Blocks  # of this client
    cohort: Cohort  # of this client alone
    train: bool

    @property
    def federated(self) -> dict[str, Federated]:
        return {
            name: block
            for name, block in self.method.blocks().items()
            if isinstance(block, Federated)
        }

    @property
    def limits(self) -> Tensor:
        """[1]: the largest weight that the client may ask for."""
        return torch.tensor([self.member.limit], dtype=torch.double)

    @property
    def arrays(self) -> int:
        """Number of arrays that an answer can have at most."""
        return sum(len(specs) + 1 for specs in self.specs.values())

    def limit(self) -> int:
        """Return the most bytes that the arrays of an answer can have."""
        total = 0
        for name, block in self.federated.items():
            copies = block.size if slots_side_by_side(block, self.copies.get(name, 0)) else 1
            one = sum(
                torch.Size(shape).numel() * dtype.itemsize
                for dtype, shape in self.specs[name].values()
            )
            total += copies * one + block.size * DOUBLE
        return total if self.train else 0


def check_envelope(envelope: Envelope, wanted: Envelope) -> None:
    """Refuse what belongs to another run, round, client, plan or attempt."""
    reasons = {"run": "wrong-run", "client": "wrong-client", "plan": "plan-mismatch"}
    for name, reason in reasons.items():
        if getattr(envelope, name) != getattr(wanted, name):
            raise Malformed(reason, f"it says another {name} than it was asked in")
    if envelope.round != wanted.round:
        raise Malformed(
            "stale", f"it is of round {envelope.round}, and this is round {wanted.round}"
        )
    if envelope.nonce != wanted.nonce:
        raise Malformed("replayed", "it answers another attempt at this round")


def check_counts(name: str, counts: Counts, measured: int) -> None:
    """Refuse scores that nobody can have: they would spoil the averages, and what is
    written of the round. `measured` is how many metrics the task has besides.
    """
    if len(counts) != 3 + measured:
        raise Malformed("envelope", f'"{name[:80]}": {len(counts)} scores, not {3 + measured}')
    correct, scored, loss, *metrics = counts
    if any(abs(value) > MOST_LOSS for value in metrics):
        raise Malformed("envelope", f'"{name[:80]}": a metric is out of all proportion')
    if not 0 <= correct <= scored <= MOST_LABELS:
        raise Malformed("envelope", f'"{name[:80]}": {correct:g} of {scored:g} labels are right')
    if not abs(loss) <= MOST_LOSS:
        raise Malformed("envelope", f'"{name[:80]}": the loss is {loss:g}')


def admit_request(header: RequestHeader, expected: Expected) -> None:
    """Refuse slots that do not exist."""
    pools = {
        n: b for n, b in expected.method.blocks().items() if isinstance(b, Pool) and b.on_request
    }
    for slots, needed in ((header.train, expected.train), (header.evaluate, False)):
        if (slots or needed) and slots.keys() != pools.keys():
            raise Malformed("names", "the pools asked for are not those on request")
        for name, chosen in slots.items():
            if sorted({*chosen}) != [*chosen] or any(not 0 <= s < pools[name].size for s in chosen):
                raise Malformed(
                    "shape",
                    f'"{name}" has slots 0 to {pools[name].size - 1}, each once and in order',
                )


def admit_upload(
    header: UploadHeader, message: Wire, expected: Expected, wanted: Mapping[str, Tensor]
) -> Uploads:
    """Return one client's upload [1, ...] if it is as the plan says; `wanted` are the
    slots that it asked for.
    """
    if message.payload() > SLACK * expected.limit():
        raise Malformed(
            "too-large", f"{message.payload()} bytes, and the plan has at most {expected.limit()}"
        )
    rows = _rows(header, message, expected)
    for name, block in expected.federated.items():
        _check_weights(name, block, rows[name], name in header.decided, expected, wanted.get(name))
    blocks = _copies(header, message, expected, rows, wanted)
    device = expected.cohort.ids.device
    weights = {name: rows[name][None].to(device) for name in header.decided}
    asked = {name: mask[None].to(device) for name, mask in wanted.items()}
    uploads = uploads_of(expected.method, blocks, weights, expected.reads, asked, expected.cohort)
    _, refusals = admit(uploads, {}, expected.cohort.ids, expected.limits.to(device))
    if refusals:
        raise Malformed(refusals[0].reason, refusals[0].detail)
    return uploads


def _rows(header: UploadHeader, message: Wire, expected: Expected) -> dict[str, Tensor]:
    """Return the weights [slots] of every block."""
    decided = {
        name for name in expected.federated if type(expected.method).writes is not Method.writes
    }
    if unknown := {*header.decided} - decided:
        raise Malformed("names", f'the method does not decide the weights of "{min(unknown)[:80]}"')
    schema: Schema = {
        array_name(WEIGHTS, n): (torch.double, (b.size,)) for n, b in expected.federated.items()
    }
    weights = {name: array for name, array in message.arrays.items() if name in schema}
    tensors = tensors_of(weights, schema)
    return {name: tensors[array_name(WEIGHTS, name)] for name in expected.federated}


def _check_weights(
    name: str,
    block: Federated,
    row: Tensor,
    is_decided: bool,
    expected: Expected,
    wanted: Tensor | None,
) -> None:
    """Refuse weights other than the client's examples, or those that the method decided
    beyond limit and slots.
    """
    size = expected.member.size
    checks = weight_checks(name, row[None], expected.limits)
    _, refusals = Examination.of(checks, expected.limits.long()).judge()
    if refusals:
        raise Malformed(refusals[0].reason, refusals[0].detail)
    if not is_decided and not bool((row == size).all()):
        raise Malformed(
            "bad-weight",
            f'"{name}" is to be written with {size} examples, not {row.max().item():g}',
        )
    read = expected.reads.get(name)
    reached = torch.ones_like(row)
    if isinstance(block, Pool) and wanted is not None:
        reached = (wanted != 0).to(row.dtype)
    elif isinstance(block, Pool) and isinstance(read, Selection):
        reached = torch.zeros_like(row).index_fill(0, read.slots[0].view(-1).cpu(), 1.0)
    if is_decided and bool(((row != 0) & (reached == 0)).any()):
        raise Malformed("bad-weight", f'block "{name}" writes slots that the client was not sent')


def _copies(
    header: UploadHeader,
    message: Wire,
    expected: Expected,
    rows: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
) -> Blocks:
    """Return the copies that came, [1, ...], with the names and shapes that they have
    after training.
    """
    which: dict[str, Tensor] = {}
    for name, block in expected.federated.items():
        copies = expected.copies.get(name, 0)
        is_decided = name in header.decided
        which[name] = copies_to_send(block, rows[name], is_decided, copies, wanted.get(name))
    schema = {
        name: several(expected.specs[name], int(sent.sum()) if sent.dim() else 0)
        for name, sent in which.items()
        if bool(sent.any())
    }
    arrays = {
        name: array for name, array in message.arrays.items() if not name.startswith(f"{WEIGHTS}/")
    }
    if len(message.arrays) - len(arrays) != len(rows):
        raise Malformed("names", "there are weights of blocks that the plan does not have")
    device = expected.cohort.ids.device
    came = blocks_from(tensors_of(arrays, blocks_schema(schema), device), schema)
    blocks: Blocks = {}
    for name, block in expected.federated.items():
        background = _background(name, block, expected, which[name])
        whole = fill_copies(background, came.get(name, {}), which[name].to(device))
        if name in came or (block.of or name) not in blocks:
            blocks[block.of or name] = {k: v[None] for k, v in whole.items()}
    return blocks


def _background(name: str, block: Federated, expected: Expected, which: Tensor) -> Params:
    """Return values for slots where nothing came, which have no weight: what the client
    was sent, else zero.
    """
    wanted = several(expected.specs[name], len(which) if which.dim() else 0)
    sent = expected.sent.get(name, {})
    device = expected.cohort.ids.device
    background: Params = {}
    for key, (dtype, shape) in wanted.items():
        value = sent.get(key)
        if value is not None and value.dim() and tuple(value.shape[1:]) == shape:
            value = value[0]  # one of several copies, where only one is sent back
        if value is None or tuple(value.shape) != shape:
            value = torch.zeros(shape, dtype=dtype, device=device)
        background[key] = value
    return background
