"""Errors in a forward pass keep their type on their way through the engines, with a note of which
net it was, what it was given and where it failed; whoever started the work is told that note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from fedblocks.core.errors import Explained, UserError
from fedblocks.core.fields import Fields
from fedblocks.core.own_code import line_of

_KEY = "forward_note"  # among the attributes of an error
# how torch (embeddings, places of a tensor, one-hot vectors), numpy and ONNX say it
_OUT_OF_RANGE = re.compile(
    "index out of range in self|out of (data )?bounds|Class values must|not in the valid range"
)
NOT_OF_THE_NET = (Explained, torch.OutOfMemoryError, MemoryError)


IN_RANGE = "number tokens and categories from 0 on, below the size of the embedding that reads them"


class ForwardNote(NamedTuple):
    """What a UserError says of an error in a forward pass."""

    message: str
    fix: str


def take_note(error: Exception, net: str, x: Tensor, fields: Fields | None = None) -> None:
    """Leave a note with an error that a net's forward pass raised for inputs [batch, ...]."""
    if isinstance(error, NOT_OF_THE_NET) or note_of(error) is not None:
        return
    reason = (str(error).splitlines() or [""])[0]
    what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    seen = range_seen(error, x, fields)
    shape = f"inputs of shape {list(x.shape)} ({str(x.dtype).removeprefix('torch.')})"
    fix = "correct its forward pass, or the inputs"
    message = f"{net} failed: {what}{line_of(error)}; it was given {seen or shape}"
    put_note(error, ForwardNote(message, IN_RANGE if seen else fix))


def range_seen(error: Exception, x: Tensor, fields: Fields | None = None) -> str:
    """Such as `whole numbers from -3 to 99`, where an error may say that one is out of range."""
    return ranges_of(x, fields) if _OUT_OF_RANGE.search(str(error)) else ""


def ranges_of(x: Tensor, fields: Fields | None = None) -> str:
    """The whole numbers among inputs [batch, ...], such as `whole numbers from -3 to 99`."""
    if not x.numel():
        return ""
    pieces = {"": x} if fields is None else dict(zip(fields.labels, fields.unpack(x), strict=True))
    whole = {name: piece for name, piece in pieces.items() if not piece.is_floating_point()}
    try:
        ends = {name: (int(own.min()), int(own.max())) for name, own in whole.items()}
    except Exception:  # inside vmap or an exporter, tensors have no numbers; on a GPU none are left
        return ""
    texts = [f"{name} from {low} to {high}".strip() for name, (low, high) in ends.items()]
    return f"whole numbers {', '.join(texts)}" if texts else ""


def put_note(error: Exception, note: ForwardNote) -> None:
    vars(error)[_KEY] = note


def note_of(error: BaseException) -> ForwardNote | None:
    """The note that a forward pass left with an error, if it comes from one."""
    note: ForwardNote | None = vars(error).get(_KEY)
    return note


@contextmanager
def tell_forward_errors() -> Iterator[None]:
    """Inside, errors of forward passes end as UserErrors that say their notes."""
    try:
        yield
    except Exception as error:
        note = note_of(error)
        if note is None:
            raise
        raise UserError(*note) from error
