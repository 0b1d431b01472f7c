"""What a client sees, who is drawn, and losses and metrics at their edges, by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core import mode
from fedblocks.core.arithmetic import each, pick
from fedblocks.core.blocks import Pool
from fedblocks.core.client import Client, ClientStack, RowSource
from fedblocks.core.losses import cross_entropy
from fedblocks.core.metrics import (
    auroc,
    average_precision,
    f1_macro,
    f1_micro,
    mean_loss,
    perplexity,
    r2,
)
from fedblocks.core.mode import Mode
from fedblocks.core.parts import Value
from fedblocks.core.samplers import Candidates, SizeSampler, TraceSampler
from fedblocks.core.task import Task
from fedblocks.core.uploads import Upload

NAN = math.nan


# clients


def client(size: float, rows: list[int]) -> Client:
    y = torch.tensor([[1.0], [2.0], [3.0]])
    source = RowSource(torch.tensor([[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]), y, Task("regression"))
    tensors: dict[str, Any] = {"rows": torch.tensor(rows), "size": torch.tensor(size)}
    tensors |= {"validation_rows": torch.tensor([2]), "validation_size": torch.tensor(1.0)}
    tensors |= dict.fromkeys(("id", "key", "steps"), torch.tensor(1)) | {"tags": {}}
    return ClientStack(source, tensors, 6, False, lambda f: f).client(tensors)


def test_a_client_sees_its_own_rows_alone() -> None:
    one = client(2.0, [1, 0, 2])
    assert one.x.tolist() == [[2.0, 2.5], [1.0, 1.5], [0.0, 0.0]] and one.mask.tolist() == [1, 1, 0]
    assert one.y.tolist() == [[2.0], [1.0], [3.0]] and (one.round, one.training) == (6, False)
    assert one.mean(torch.tensor([1.0, 2.0, 9.0])).item() == 1.5
    assert one.mean(torch.tensor([[1.0, 4.0], [2.0, 6.0], [9.0, 9.0]])).tolist() == [1.5, 5.0]
    assert client(0.0, [1]).mean(torch.tensor([5.0])).item() == 0.0
    assert one.validation.x.tolist() == [[3.0, 3.5]] and one.validation.mask.tolist() == [1]
    first = one.first(1)
    assert first.x.tolist() == [[2.0, 2.5]] and float(first.size) == 1.0
    assert float(one.first(3).size) == 2.0
    # squares of 2 - 0 and 1 - 0; the third row is padding
    assert float(one.total_loss(torch.zeros(3, 1))) == 5.0


def test_a_client_of_a_lane_has_a_round_of_its_own() -> None:
    local = client(1.0, [0]).local
    tensors = {**local.tensors, "round": torch.tensor(9)}
    assert int(local.client(tensors).round) == 9 and local.client(tensors).local is not local
    assert local.client(local.tensors).local is local


# draws and modes


def test_modes_are_compared_by_what_they_say_and_not_by_what_was_drawn() -> None:
    assert Mode(key=None, draws=3) == Mode() != Mode(training=True)
    now = Mode(key=torch.tensor(5))
    now.next_key()
    assert now.draws == 1
    with pytest.raises(RuntimeError, match="asked for noise outside a training step"):
        Mode().next_key()
    with mode.mode(training=True, mapped=True):
        assert mode.current() == Mode(training=True, mapped=True)
    assert mode.current() == Mode()


def test_every_copy_of_a_stack_sees_the_same_noise() -> None:
    stack = {"w": torch.tensor([1.0, 2.0])}
    with mode.mode(training=True, mapped=False, key=torch.tensor(5)):
        mode.current().next_key()
        noisy = each(lambda p, x: p["w"] * x + mode.current().next_key() % 7, stack, torch.ones(1))
        assert mode.current().draws == 2
    assert (noisy[1] - noisy[0]).tolist() == [1.0]
    assert pick({"w": torch.tensor([[1.0], [2.0]])}, torch.tensor(1))["w"].tolist() == [2.0]


def candidates(ids: list[int], sizes: list[int], count: int, round: int = 1) -> Candidates:
    names = [f"c{i}" for i in range(len(sizes))]
    return Candidates(ids, np.array(sizes), names, count, round, np.random.default_rng(0))


def test_nobody_is_drawn_where_nobody_is_there() -> None:
    assert SizeSampler()(candidates([], [3, 4], 0)) == []
    assert SizeSampler()(candidates([0, 1], [0, 0], 2)) == []
    assert sorted(SizeSampler()(candidates([0, 1, 2], [1, 0, 1], 3))) == [0, 2]
    trace = TraceSampler(rounds=((0, "c1"), (2,)))
    assert trace(candidates([0, 1, 2], [1, 1, 1], 3, round=2)) == [2]
    assert sorted(trace(candidates([0, 1, 2], [1, 1, 1], 3, round=3))) == [0, 1]


def test_a_quoted_name_in_a_trace_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b'round,client\r\n2,"a\r\nb"\r\n')
    assert TraceSampler(path=str(path)).by_round == [set(), {"a\r\nb"}]


# losses and metrics


def test_class_weights_have_all_digits_of_the_outputs() -> None:
    logits, y = torch.zeros(1, 2).double(), torch.tensor([1])
    weighed = cross_entropy(logits, y, (0.1, 0.3), 0.0)
    assert weighed.tolist() == pytest.approx([0.3 * math.log(2)], rel=1e-14)


def test_metrics_at_their_edges() -> None:
    assert perplexity(torch.tensor([700.5]).double(), torch.zeros(1)) == math.exp(700.0)
    assert math.isnan(perplexity(torch.zeros(0), torch.zeros(0)))
    assert [mean_loss(6.0, 3.0), mean_loss(NAN, 2.0)] == [2.0, math.inf]
    assert math.isnan(mean_loss(1.0, 0.0))
    y = torch.tensor([[1.0, NAN], [3.0, 2.0]]).double()
    assert r2(torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double(), y) == 1.0  # one known is too few
    constant = torch.tensor([[2.0], [2.0]]).double()
    assert [r2(constant, constant), r2(constant + 1, constant)] == [1.0, 0.0]
    assert math.isnan(r2(constant[:1], constant[:1]))


def test_decisions_of_classes_and_labels() -> None:
    y, chosen = torch.tensor([0, 0, 3]), torch.tensor([0.0, 3.0, 3.0])
    assert f1_micro(chosen, y) == pytest.approx(2 / 3)
    assert f1_macro(chosen, y) == pytest.approx(2 / 3)  # both 2/3; classes 1 and 2 are not there
    labels = torch.tensor([[1.0, 0.0], [0.0, NAN]]).double()
    said = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).double()
    assert f1_macro(said, labels) == pytest.approx((2 / 3 + 0) / 2)
    assert f1_micro(said, labels) == pytest.approx(2 / 3)


def test_areas_of_two_classes_are_those_of_the_second() -> None:
    scores = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 0.5], [0.0, 2.0]]).double()
    y = torch.tensor([0, 1, 0, 0])
    # of 1: above 1 and 0.5, a tie with 2: 2.5 of 3 pairs; precision at its score 1/2
    assert auroc(scores, y) == pytest.approx(2.5 / 3)
    assert average_precision(scores, y) == pytest.approx(0.5)
    assert math.isnan(auroc(scores, torch.zeros(4).long()))


def test_a_pool_shows_its_slots_by_default() -> None:
    assert [Pool(Value(torch.zeros(1)), 2).on_request, Upload.own] == [False, False]
