"""What travels between server and client: a header in JSON, and named arrays; exactly
the blocks of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from fedblocks.core.parts import Blocks
from fedblocks.runs.rounds import SMALL

Arrays = dict[str, npt.NDArray[Any]]
Spec = tuple[torch.dtype, tuple[int, ...]]  # of one tensor: its dtype and its shape
Schema = Mapping[str, Spec]  # by the name under which it travels
# right labels, scored labels, sum of losses, and metrics, NaN where one is not defined
Counts = tuple[float, ...]
Part = Literal["train", "validation", "test"]
Slots = dict[str, tuple[int, ...]]  # pool -> some of its slots, in order

LARGEST = 2**63  # whole numbers of tensors are smaller
HEADER_LIMIT = 2**20  # characters; a header that is longer is refused unread
BLOCKS, WEIGHTS = "blocks", "weights"  # the two kinds of arrays


class TooLargeError(Exception):
    """The other side sends more bytes than it may."""


class Malformed(Exception):
    """A message that cannot be used; the reason is one word for records, the detail a
    sentence for people.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, eq=False)
class Wire:
    """A message as it travels."""

    header: str  # JSON
    arrays: Arrays

    def payload(self) -> int:
        """Count the bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())


Name = Annotated[str, Field(max_length=80)]
Picture = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=False)], ...], Field(max_length=SMALL)
]


class Envelope(BaseModel):
    """What every message says: which run, round and client it belongs to, and the plan
    that both sides must share.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants"
    )

    run: str
    round: int = Field(ge=0, lt=LARGEST)  # rounds done before this one
    client: int = Field(ge=0, lt=LARGEST)
    nonce: str  # of this client in this attempt at the round; answers repeat it
    plan: str  # hash of the method, its options and its tensors


class DownloadHeader(Envelope):
    """To a client, at the start of a round: its blocks, but for the pools that wait for
    a request.
    """

    kind: Literal["download"] = "download"
    copies: dict[str, int]  # block -> copies side by side; 0: a single copy
    # what the client kept is as it was after this many rounds; 0: it never took part
    kept: int = Field(ge=0)
    train: bool = True
    score: Part | None = None  # try the trained models on this part, before aggregation
    evaluate: tuple[Part, ...] = ()  # try the models as they were sent on these parts
    # the client never took part: it gets its model as the method says, and keeps it
    joining: bool = False
    refused: str = ""  # why the client's last answer was not used
    # block that is never sent -> content hash of the one that the client must have
    frozen: dict[str, str] = {}


class RequestHeader(Envelope):
    """From a client: the slots of pools that it needs, to train and to be evaluated."""

    kind: Literal["request"] = "request"
    train: Slots
    evaluate: Slots


class MoreHeader(Envelope):
    """To a client: the slots that it asked for, in their order."""

    kind: Literal["more"] = "more"
    slots: Slots


class UploadHeader(Envelope):
    """From a client, at the end of a round: what it learnt, and with what weight each
    slot is written.
    """

    kind: Literal["upload"] = "upload"
    # blocks whose weights the method decided; other weights are the number of examples
    decided: tuple[str, ...] = ()
    counts: dict[str, Counts] = {}  # "local", or "part/view" -> how the models did
    # of an evaluated model, if its owner shows them
    pictures: dict[Name, Picture] = Field(default={}, max_length=16)


class ApologyHeader(Envelope):
    """From a client that has nothing to send, and why."""

    kind: Literal["apology"] = "apology"
    reason: str
    detail: str


Header = DownloadHeader | RequestHeader | MoreHeader | UploadHeader | ApologyHeader
Kind = TypeVar("Kind", bound=Envelope)
# by their kind: what is wrong is said of the header that it is meant to be
_HEADERS: TypeAdapter[Header] = TypeAdapter(Annotated[Header, Field(discriminator="kind")])


def wire(header: Envelope, arrays: Arrays | None = None) -> Wire:
    return Wire(header.model_dump_json(), arrays or {})


def header_of(message: Wire) -> Header:
    """Read and check the header of a message."""
    if len(message.header) > HEADER_LIMIT:
        raise Malformed(
            "envelope", f"the header has {len(message.header)} characters, more than {HEADER_LIMIT}"
        )
    try:
        return _HEADERS.validate_json(message.header)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "header"
        raise Malformed("envelope", f"{place}: {first['msg']}") from error


def reply(to: Envelope) -> dict[str, Any]:
    """Return the fields by which an answer names what it answers."""
    return {name: getattr(to, name) for name in Envelope.model_fields}


def array_name(kind: str, *path: str) -> str:
    """Return the name of an array; slashes in names are escaped as in JSON pointers, so
    no two are equal.
    """
    return "/".join((kind, *(part.replace("~", "~0").replace("/", "~1") for part in path)))


def arrays_of(blocks: Blocks) -> Arrays:
    """Return blocks of one client as named arrays."""
    return {
        array_name(BLOCKS, b, k): as_array(v)
        for b, block in blocks.items()
        for k, v in block.items()
    }


def as_array(value: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; numpy has no bfloat16, so its bits travel as integers."""
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        value = value.view(torch.int16)
    array: npt.NDArray[Any] = value.numpy()
    return array


def tensors_of(
    arrays: Arrays, expected: Schema, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Copy arrays to tensors in the order of the schema; refuse any that are missing,
    extra or of another shape.
    """
    missing = sorted(expected.keys() - arrays.keys())
    extra = sorted(arrays.keys() - expected.keys())
    if missing or extra:
        if missing:
            problem = f'"{missing[0]}" is missing'
        else:
            problem = f'"{extra[0][:80]}" is not part of the plan'
        raise Malformed("names", f"{problem} ({len(missing)} missing, {len(extra)} too many)")
    return {name: _tensor(name, arrays[name], *spec).to(device) for name, spec in expected.items()}


def _tensor(
    name: str, array: npt.NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    travels = torch.int16 if dtype == torch.bfloat16 else dtype
    wanted = torch.empty(0, dtype=travels).numpy().dtype
    if array.dtype != wanted:
        raise Malformed("dtype", f'"{name}" is {array.dtype}, not {wanted}')
    if array.shape != shape:  # exactly: one that numpy would stretch to fit is wrong too
        raise Malformed("shape", f'"{name}" has shape {list(array.shape)}, not {list(shape)}')
    return torch.from_numpy(array.copy()).view(dtype)


def blocks_schema(blocks: Mapping[str, Mapping[str, Spec]]) -> dict[str, Spec]:
    """Return the specs of blocks under the names that travel."""
    return {
        array_name(BLOCKS, b, k): spec for b, block in blocks.items() for k, spec in block.items()
    }


def blocks_from(tensors: Mapping[str, Tensor], blocks: Mapping[str, Mapping[str, Spec]]) -> Blocks:
    """The inverse of `arrays_of`."""
    return {b: {k: tensors[array_name(BLOCKS, b, k)] for k in block} for b, block in blocks.items()}
