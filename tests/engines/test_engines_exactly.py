"""Counts, verdicts and copies of engines, where a small slip would change a number."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.engines.auto import trial as auto_trial
from fedblocks.engines.net_check.plain_loop import TorchLoop
from fedblocks.engines.net_check.properties import _compare, _evaluates
from fedblocks.engines.processes.shared_memory import _ALIGNED, Room, _fill, _place, _views
from fedblocks.engines.scoring import chunks_of, score_outputs
from fedblocks.engines.sequential import _put


def test_losses_of_many_examples_are_added_up_in_double_precision() -> None:
    """Squares of 4096 and of 1: in single precision 2^24 + 1 would be 2^24."""
    outputs = torch.tensor([[4096.0], [1.0], [1.0]])
    right, labels, losses, *_ = score_outputs(Task("regression"), outputs, 0 * outputs)
    assert (right, labels, losses) == (0.0, 3.0, 2.0**24 + 2)


def test_padding_of_a_chunk_is_known_by_sizes() -> None:
    ((rows, real),) = chunks_of(torch.tensor([[3, 4, 4], [5, 6, 7]]), torch.tensor([1, 3]), 3)
    assert rows.tolist() == [[3, 4, 4], [5, 6, 7]] and real.dtype == torch.double
    assert real.tolist() == [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize(("ours", "differs"), [(9.0, False), (9.5, False), (10.1, True)])
def test_losses_differ_by_more_than_a_share_of_them_and_of_one(ours: float, differs: bool) -> None:
    """Of 9: 0.5 is 0.05 of 1 + 9, and 1.1 is 0.11 of it."""
    stand_in: Any = SimpleNamespace(
        losses=lambda engine: [ours], wanted_losses=lambda: [9.0], tolerance=0.1
    )
    assert bool(_evaluates(stand_in, "sequential")) == differs


def test_the_tensor_that_differs_most_is_named_with_its_client() -> None:
    stand_in: Any = SimpleNamespace(tolerance=0.1)
    theirs = [{"a": torch.zeros(2), "b": torch.zeros(0)}, {"a": torch.zeros(2)}]
    ours = [{"a": torch.tensor([0.2, 0.0]), "b": torch.zeros(0)}, {"a": torch.tensor([0.0, -0.4])}]
    assert _compare(stand_in, ours, theirs) == '"a" of client 1 differs by 4.0e-01'
    mirrored = [{"a": -5 * ours[1]["a"], "b": torch.zeros(0)}, ours[1]]
    assert _compare(stand_in, mirrored, theirs) == '"a" of client 0 differs by 2.0e+00'
    assert _compare(stand_in, theirs, theirs) == ""


def test_the_plain_loop_gives_tensors_that_need_no_gradient() -> None:
    net = Net.of(lambda: nn.Linear(2, 2))
    loop = TorchLoop(net, net.init(0), 0.5)
    trained = loop.train(torch.zeros(1, 2), torch.tensor([0]), [torch.tensor([0])], 0, 0)
    assert not any(tensor.requires_grad for tensor in trained.values())


@pytest.mark.parametrize("count", [1, 2])
def test_a_clients_blocks_are_put_beside_the_others_and_need_no_gradient(count: int) -> None:
    stack: dict[str, dict[str, torch.Tensor]] = {}
    values = [torch.tensor([1.0, 2.0]).requires_grad_(), torch.tensor([3.0, 4.0]) * 1]
    for member in range(count):
        _put(stack, {"own": {"w": values[member]}}, member, count)
    assert stack["own"]["w"].tolist() == [[1.0, 2.0], [3.0, 4.0]][:count]
    assert not stack["own"]["w"].requires_grad


def test_the_digest_of_the_engines_does_not_depend_on_the_order_of_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = auto_trial.source_digest.__wrapped__()
    listed = auto_trial.Path.rglob
    backwards = lambda path, pattern: sorted(listed(path, pattern), reverse=True)
    monkeypatch.setattr(auto_trial.Path, "rglob", backwards)
    assert auto_trial.source_digest.__wrapped__() == expected


def test_a_room_is_kept_for_the_same_shapes_and_closed_for_others() -> None:
    room = Room()
    opened = len(os.listdir("/proc/self/fd"))
    room.of({"w": ["float32", [2, 3]]})
    first = room.descriptor
    assert [room.key(1), room.key(1), room.key(2)] == [first, None, first]
    room.forget(1)
    assert room.key(1) == first
    gc.collect()  # nobody looks at the first tree any more
    room.of({"w": ["float32", [2, 3]]})
    assert room.descriptor == first and room.key(2) is None
    tree = room.of({"w": ["float32", [4]]})
    assert tree["w"].shape == (4,) and room.key(2) == room.descriptor
    room.close()
    room.close()
    del tree
    gc.collect()
    assert room.descriptor is None and len(os.listdir("/proc/self/fd")) == opened


def test_trees_lie_side_by_side_and_what_repeats_lies_once() -> None:
    tree = {
        "a": torch.arange(3),
        "b": {"c": torch.tensor([[1.5, 2.5]]).expand(4, 2), "d": torch.tensor(7.0)},
    }
    places, size = _place(tree, 0)
    assert places["b"]["c"][3] is True and places["a"][3] is False
    starts = [places["a"][2], places["b"]["c"][2], places["b"]["d"][2]]
    assert starts == [0, _ALIGNED, 2 * _ALIGNED] and size == 3 * _ALIGNED
    memory = torch.zeros(size, dtype=torch.uint8)
    views = _views(places, memory)
    _fill(views, tree)
    assert views["a"].tolist() == [0, 1, 2] and views["b"]["d"].item() == 7.0
    assert views["b"]["c"].tolist() == [[1.5, 2.5]] * 4
