"""What reads messages from the network: headers, arrays, run specifications."""

from __future__ import annotations

import io

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import ValidationError

from fedblocks.flower.wire.messages import (
    Malformed,
    RequestHeader,
    Schema,
    UploadHeader,
    header_of,
    tensors_of,
    wire,
)
from fedblocks.flower.wire.records import HEADERS, from_content
from fedblocks.flower.wire.run_spec import RunSpec

from .decoders import Decoder

# what the node that reads them expects, and answers the other side with
EXPECTED = (Malformed, ValidationError)
SHAPES: Schema = {"blocks/body/w": (torch.float32, (3, 4))}
LIMIT = 1_000  # bytes that the client may send


def decoders_of_messages() -> dict[str, Decoder]:
    envelope = {"run": "r", "round": 3, "client": 1, "nonce": "n", "plan": "p"}
    upload = UploadHeader(**envelope, decided=("body",), counts={"test/personal": (3.0, 4.0, 1.25)})
    request = RequestHeader(**envelope, train={"pool": (0, 2)}, evaluate={})
    headers = tuple(wire(header).header.encode() for header in (upload, request))
    return {
        "header": Decoder(headers, read_header, 30_000),
        "arrays": Decoder((npy(np.ones((3, 4), np.float32)),), read_arrays, 5_000),
        "run specification": Decoder((spec().model_dump_json().encode(),), read_spec, 30_000),
    }


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def read_header(content: bytes) -> object:
    return header_of(from_wire(content.decode("utf-8", "replace"), b""))


def read_arrays(content: bytes) -> object:
    return tensors_of(from_wire("{}", content).arrays, SHAPES)


def from_wire(header: str, array: bytes):  # type: ignore[no-untyped-def]
    """A message as it comes out of what Flower carries."""
    record = ArrayRecord({"blocks/body/w": Array("float32", (3, 4), "numpy.ndarray", array)})
    arrays = record if array else ArrayRecord({})
    content = RecordDict({HEADERS: ConfigRecord({"1": header}), "1": arrays})
    message = from_content(content, {1: LIMIT})[1]
    if isinstance(message, Malformed):
        raise message
    return message


def spec() -> RunSpec:
    return RunSpec(
        version="0.1.0",
        federation="f",
        run="r",
        population=3,
        rounds=2,
        seed=0,
        input_shape=(1, 8, 8),
        classes=10,
        net={"name": "mlp", "hidden": [8]},
        method={"name": "pfedmb", "branches": 3, "lr": 0.1},
    )


def read_spec(content: bytes) -> object:
    read = RunSpec.model_validate_json(content)
    return read.excess() or read.group(0, {})
