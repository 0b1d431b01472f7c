"""Trees of tensors and single clients: what is copied, cut, padded and left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.client import Client, RowSource
from fedblocks.core.errors import nearest
from fedblocks.core.trees import copy, is_repeated, unbind
from fedblocks.runs.storage.trees import pack, unpack


def test_a_copy_has_memory_of_its_own_and_repeated_rows_stay_one() -> None:
    tree = {"a": torch.arange(6.0).view(2, 3), "b": {"c": torch.ones(1, 3).expand(4, 3)}}
    copied = copy(tree)
    assert is_repeated(copied["b"]["c"]) and not is_repeated(copied["a"])
    tree["a"].zero_()
    tree["b"]["c"][0].fill_(9)
    assert copied["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert copied["b"]["c"].tolist() == [[1, 1, 1]] * 4
    pieces = unbind({"a": copied["a"]}, 2)
    assert [piece["a"].tolist() for piece in pieces] == [[0, 1, 2], [3, 4, 5]]


def test_what_was_stored_comes_back_in_aligned_memory() -> None:
    tree = {f"{i}": torch.arange(float(i + 1)) for i in range(9)}
    again = unpack(*pack(tree))
    for name, tensor in tree.items():
        assert torch.equal(again[name], tensor) and again[name].data_ptr() % 64 == 0


def client(**more: Any) -> Client:
    source = RowSource(torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 1, 1, 0]))
    rows: dict[str, Any] = {
        "rows": torch.tensor([4, 2, 1, 1]),
        "size": torch.tensor(3.0),
        "validation_rows": torch.tensor([5, 0]),
        "validation_size": torch.tensor(1.0),
    }
    zero = torch.tensor(0)
    others = {"id": zero, "key": zero, "steps": zero, "tags": {}}
    local: Any = SimpleNamespace(round=0, training=True)
    return Client(source=source, local=local, **others, **{**rows, **more})


def test_a_clients_padding_is_zero_and_counts_nowhere() -> None:
    own = client()
    assert own.x.tolist() == [[8, 9], [4, 5], [2, 3], [0, 0]]
    assert own.y.tolist() == [1, 0, 1, 1] and own.mask.tolist() == [1, 1, 1, 0]
    assert own.mean(own.x + 1).tolist() == pytest.approx([(9 + 5 + 3) / 3, (10 + 6 + 4) / 3])
    nobody = client(size=torch.tensor(0.0))
    assert nobody.mean(nobody.x + 1).tolist() == [0, 0]
    logits = torch.tensor([[0.0, 1.0]] * 4)
    losses = torch.nn.functional.cross_entropy(logits, own.y, reduction="none")
    torch.testing.assert_close(own.total_loss(logits), losses[:3].sum())


def test_a_client_can_be_cut_or_stand_on_its_validation_part() -> None:
    for count, size in ((2, 2.0), (3, 3.0), (4, 3.0)):
        first = client().first(count)
        assert first.rows.tolist() == [4, 2, 1, 1][:count] and first.size.item() == size
        assert first.mask.tolist() == [1, 1, 1, 0][:count]
    held = client().validation
    assert held.x.tolist() == [[10, 11], [0, 0]] and held.mask.tolist() == [1, 0]


def test_a_name_that_does_not_exist_brings_the_nearest() -> None:
    known = ["fedavg", "fedper", "Local", "apfl"]
    everything = "hoose one of Local, apfl, fedavg, fedper"
    assert nearest(" LOCAL ", known) == f'did you mean "Local"? Or c{everything}'
    assert nearest("fedav", known).startswith('did you mean "fedavg"? Or choose one of ')
    assert nearest("zzzz", known) == f"c{everything}"
