"""Whatever a tensor is (it needs gradients, is a view, lies in another order, shares memory), what
is stored, sent or hashed of it are its numbers; and what comes back shares memory with nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.config.code.ingredients import as_plain
from fedblocks.core.task import Task
from fedblocks.data.arrays import as_inputs, as_targets, from_numpy
from fedblocks.data.partition import as_labels
from fedblocks.flower.wire.messages import as_array, tensors_of
from fedblocks.flower.wire.plans import _hash as hash_of_constant
from fedblocks.runs.ranks.uploads import _as_bytes
from fedblocks.runs.storage import constants, frozen
from fedblocks.runs.storage.states import settle
from fedblocks.runs.storage.trees import pack, unpack

NUMBERS = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
KINDS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.tensor(NUMBERS),
    "needs gradients": lambda: torch.tensor(NUMBERS).requires_grad_(),
    "of a graph": lambda: torch.tensor(NUMBERS).requires_grad_() * 1,
    "lies by columns": lambda: torch.tensor(NUMBERS).t().contiguous().t(),
    "part of another": lambda: torch.tensor([[9.0, 9.0, 9.0], *NUMBERS])[1:],
    "every second": lambda: torch.tensor(NUMBERS).repeat_interleave(2, 1)[:, ::2],
}


def through_a_checkpoint(value: Tensor) -> Tensor:
    back: Tensor = unpack(*pack({"a": {"b": value}}))["a"]["b"]
    return back


def through_the_wire(value: Tensor) -> Tensor:
    arrays = {"a": as_array(value)}
    return tensors_of(arrays, {"a": (torch.float32, (2, 3))})["a"]


def through_bytes(value: Tensor) -> Tensor:
    return _as_bytes(value).view(torch.float32).view(2, 3)


def through_a_settled_state(value: Tensor) -> Tensor:
    from fedblocks.core.state import State

    state = State(0, {"block": {"w": value}}, {}, {})
    return settle(state).server["block"]["w"]


WAYS = [through_a_checkpoint, through_the_wire, through_bytes, through_a_settled_state]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_numbers_of_any_tensor_arrive(way: Callable[[Tensor], Tensor], kind: str) -> None:
    arrived = way(KINDS[kind]())
    assert arrived.tolist() == NUMBERS and arrived.is_contiguous()
    if way is not through_a_settled_state:
        assert not arrived.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_any_tensor_has_the_hash_of_its_numbers(kind: str) -> None:
    plain, other = KINDS["plain"](), KINDS[kind]()
    assert hash_of_constant(other) == hash_of_constant(plain)
    assert as_plain(other) == as_plain(plain) == as_plain(np.array(NUMBERS, np.float32))
    assert as_plain(other)["shape"] == [2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_any_tensor_can_be_inputs_targets_or_labels(kind: str) -> None:
    value = KINDS[kind]()
    assert as_inputs(value).tolist() == NUMBERS and not as_inputs(value).requires_grad
    numbers = as_targets(value, Task("regression"))
    assert numbers.tolist() == NUMBERS and not numbers.requires_grad
    assert as_labels(value).tolist() == NUMBERS


@pytest.mark.parametrize("kind", KINDS)
def test_any_frozen_block_and_constant_is_stored_as_its_numbers(tmp_path: Path, kind: str) -> None:
    value = KINDS[kind]()
    path = tmp_path / "frozen" / "x.safetensors"
    frozen._write(path, {"w": value})
    stored = frozen.safetensors.torch.load_file(path)
    assert stored["w"].tolist() == NUMBERS and [p.name for p in path.parent.iterdir()] == [
        path.name
    ]
    back = through_stored_constants(tmp_path, value.detach())
    assert back["c"].tolist() == NUMBERS and list(back) == ["c"]


def through_stored_constants(folder: Path, value: Tensor) -> dict[str, Tensor]:
    back: dict[str, Tensor] = {}
    net = SimpleNamespace(constants={"c": value}, set_constants=back.update)
    methods: Any = {"one": SimpleNamespace(net=net), "other": SimpleNamespace(net=net)}
    constants.store_constants(folder, methods)
    constants.restore_constants(folder, methods)
    assert not list(folder.glob(".*"))
    return back


def test_groups_with_one_net_can_store_its_constants(tmp_path: Path) -> None:
    value = torch.arange(3.0)
    back = through_stored_constants(tmp_path, value)["c"]
    assert torch.equal(back, value) and back.data_ptr() != value.data_ptr()


def test_tied_tensors_come_back_apart_and_a_view_takes_its_own_part_only() -> None:
    whole = torch.arange(1000.0)
    tensors, structure = pack({"a": whole, "b": whole, "part": whole[:2]})
    back = unpack(tensors, structure)
    assert back["a"].data_ptr() != back["b"].data_ptr() and torch.equal(back["a"], back["b"])
    assert len(tensors) < 2 * 4000 + 1000


def test_what_arrives_can_be_written_to_and_leaves_the_message_alone() -> None:
    sent = np.array(NUMBERS, np.float32)
    sent.setflags(write=False)
    arrived = tensors_of({"a": sent}, {"a": (torch.float32, (2, 3))})["a"]
    arrived.zero_()
    assert sent.tolist() == NUMBERS


def test_a_settled_state_keeps_nothing_of_the_tensor_that_it_was_a_part_of() -> None:
    part = torch.zeros(1000, 2)[7]
    assert through_a_settled_state(part).untyped_storage().nbytes() == 8


def test_an_array_that_cannot_be_written_to_is_copied_and_others_are_shared() -> None:
    mine = np.zeros(3, np.float32)
    from_numpy(mine)[0] = 1
    assert mine[0] == 1
    fixed = np.zeros(3, np.float32)
    fixed.setflags(write=False)
    from_numpy(fixed)[0] = 1
    assert fixed[0] == 0


@pytest.mark.parametrize("kind", ["u2", "u4", "u8", ">f4", ">i8", "?", "u1", "i1"])
def test_arrays_of_every_kind_of_number_keep_their_numbers(kind: str) -> None:
    array = np.array([0, 1, 1, 0], kind)
    assert from_numpy(array).tolist() == array.tolist()
    assert from_numpy(array[::2]).tolist() == [0, 1]
