"""Adapters on one layer of two inputs and three outputs: products, ranks and turns, worked out by
hand.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.random import fold, uniform
from fedblocks.core.server import Cohort
from fedblocks.methods.lora.adapted import DOWN, RATIO, UP
from fedblocks.methods.lora.fedavg_lora import _SMALL, FedAvgLoRA
from fedblocks.methods.lora.ffa_lora import FFALoRA
from fedblocks.methods.lora.product_lora import DELTA, Changes, ProductLoRA, _with_signs

# rank 2 and alpha 6: products count three times
NET = fb.lora(
    fb.Net.of(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), dtype=torch.float64), 2, 6.0, targets="0"
)
A, B = "0.lora_A", "0.lora_B"


def double(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.double)


def uploads(weights: list[float]) -> Any:
    """Two clients: B A is 2 at [0, 1] for the first, and 5 at [2, 0] for the second."""
    down, up = torch.zeros(2, 2, 2).double(), torch.zeros(2, 3, 2).double()
    down[0, 0, 1], up[0, 0, 0] = 1.0, 2.0
    down[1, 1, 0], up[1, 2, 1] = 5.0, 1.0
    share = torch.tensor(weights).double()[:, None]
    return {
        DOWN: SimpleNamespace(copies={A: down}, weights=share),
        UP: SimpleNamespace(copies={B: up}, weights=share),
    }


def entries(matrix: Tensor) -> dict[tuple[int, ...], float]:
    """The numbers of a matrix that are not 0, by place."""
    return {tuple(at): round(matrix[tuple(at)].item(), 9) for at in matrix.nonzero().tolist()}


def test_the_mean_of_products_is_by_weights_and_in_the_scale_of_the_net() -> None:
    """Shares of 1/4 and 3/4, and three times the products."""
    mean = ProductLoRA(NET).mean_of_products(uploads([1.0, 3.0]))["0"]
    assert entries(mean) == {(0, 1): 0.25 * 3 * 2, (2, 0): 0.75 * 3 * 5}
    assert mean.dtype == torch.double


def test_the_best_factors_share_their_length_evenly() -> None:
    """3 x 4 and 3 x 9 on two places: factors of 3 and 2, the larger first, none negative."""
    mean = torch.zeros(3, 2).double()
    mean[0, 1], mean[2, 0] = 12.0, 27.0
    best = ProductLoRA(NET).best_factors({"0": mean})
    assert entries(best[DOWN][A][0]) == {(0, 0): 3.0, (1, 1): 2.0}
    assert entries(best[UP][B][0]) == {(2, 0): 3.0, (0, 1): 2.0}
    again = NET.changes({A: best[DOWN][A][0], B: best[UP][B][0]})["0"]
    assert torch.allclose(again, mean)
    u, v = _with_signs(double([0.6, 0.8], [-0.8, 0.6]), double([1.0, 2.0], [3.0, 4.0]))
    assert u.tolist() == [[-0.6, 0.8], [0.8, 0.6]] and v.tolist() == [[-1.0, -2.0], [3.0, 4.0]]


@pytest.mark.parametrize("keep", ["svd", "stack", "residual"])
def test_what_becomes_of_the_mean_of_products(keep: Any) -> None:
    method = ProductLoRA(NET, keep=keep)
    sent = uploads([1.0, 3.0])
    factors = {DOWN: {A: double([[0.0, 1.0], [0.0, 0.0]])}, UP: {B: torch.zeros(1, 3, 2).double()}}
    factors[UP][B][0, 0, 0] = 1.0  # their product is 3 at [0, 1]
    before = {**factors, DELTA: {"0": torch.ones(1, 3, 2).double()}}
    cohort: Any = None
    after = method.conclude(factors, before, sent, cohort)
    if keep == "svd":
        best = method.best_factors(method.mean_of_products(sent))
        assert torch.equal(after[DOWN][A], best[DOWN][A]) and DELTA not in after
    else:
        missed = 3.0 if keep == "residual" else 0.0
        expected = torch.ones(3, 2).double()
        expected[0, 1] += 1.5 - missed
        expected[2, 0] += 11.25
        assert torch.allclose(after[DELTA]["0"][0], expected) and after[UP] is factors[UP]
    assert method.conclude(factors, before, uploads([0.0, 0.0]), cohort) is factors


def test_a_change_of_the_base_stands_beside_the_factors() -> None:
    method = ProductLoRA(NET, keep="stack")
    down, up = {A: torch.ones(2, 2).double()}, {B: torch.ones(3, 2).double()}
    delta = {"0": double([3.0, 0.0], [0.0, 6.0], [0.0, 0.0])}
    wide_down, wide_up = method.beside_delta(down, up, delta)
    assert wide_down[A].shape == (4, 2) and wide_up[B].shape == (3, 4)
    product = 3 * wide_up[B] @ wide_down[A]
    assert product.tolist() == [[9.0, 6.0], [6.0, 12.0], [6.0, 6.0]]
    assert Changes(NET).init(0)["0"].tolist() == [[0.0, 0.0]] * 3
    own: Any = SimpleNamespace(size=torch.tensor(4.0).double())
    assert method.writes({}, own)[DELTA].tolist() == [0.0]
    assert ProductLoRA(NET).writes({}, own) == {}
    whole = Cohort(torch.arange(1), torch.ones(1), {}, 1, 0, 0)
    assert [*method.reads({}, whole)] == [DOWN, UP] and ProductLoRA(NET).reads({}, whole) == {}


def test_new_adapters_are_drawn_from_the_key_of_their_client() -> None:
    key = torch.tensor(77)
    made = ProductLoRA(NET, keep="stack").new_adapters(SimpleNamespace(key=key))  # type: ignore[arg-type]
    expected = (2 * uniform(fold(key, 0), (2, 2)).double() - 1) / 2**0.5
    assert torch.allclose(made[DOWN][A], expected) and made[DOWN][A].dtype == torch.double
    assert made[UP][B].tolist() == [[0.0, 0.0]] * 3 and made[UP][B].dtype == torch.double


@pytest.mark.parametrize(("client", "rank"), [(0, 1), (1, 2), (2, 1), (5, 2)])
def test_a_client_reads_the_first_rows_of_its_rank_and_writes_in_units_of_the_net(
    client: int, rank: int
) -> None:
    method = ProductLoRA(NET, ranks=(1, 2))
    blocks = {DOWN: {A: torch.ones(2, 2).double()}, UP: {B: torch.full((3, 2), 4.0).double()}}
    own: Any = SimpleNamespace(id=torch.tensor(client))
    start = method.prepare(blocks, own)
    ratio = 2 / rank
    assert start[RATIO]["value"].item() == ratio
    assert start[DOWN][A].tolist() == [[1.0, 1.0], [float(rank > 1)] * 2]
    assert start[UP][B].tolist() == [[4 / ratio, 4.0 * (rank > 1)]] * 3
    assert method.scaled(start)[B].tolist() == [[4.0, 4.0 * (rank > 1)]] * 3
    end = method.finish(start, start, own)
    assert end[UP][B].tolist() == [[4.0, 4.0 * (rank > 1)]] * 3 and end[RATIO]["value"].item() == 1
    alike = replace(method, ranks=None)
    assert alike.prepare(blocks, own) is blocks and alike.finish(blocks, blocks, own) is blocks
    assert alike.scaled(blocks) is blocks[UP]
    assert alike.ratio_block() == {} and [*method.ratio_block()] == [RATIO]


def test_ranks_are_within_that_of_the_net() -> None:
    for ranks in ((1,), (2,), (1, 2)):
        assert ProductLoRA(NET, ranks=ranks).conflicts() == []
    for ranks in ((0,), (3,), (1, 3)):
        with pytest.raises(fb.UserError, match="a client's rank is 1 to 2"):
            ProductLoRA(NET, ranks=ranks)


@pytest.mark.parametrize(("round", "turn"), [(0, True), (1, False), (2, True), (3, False)])
def test_factors_take_turns_and_the_other_rests(round: int, turn: bool) -> None:
    method = FFALoRA(NET, turns="alternate")
    own: Any = SimpleNamespace(round=round, size=torch.tensor(6.0).double())
    resting = {name: bool(rests) for name, rests in method.resting({}, own).items()}
    assert resting == {DOWN: turn, UP: not turn}
    writes = method.writes({}, own)
    assert (writes[UP].item(), writes[DOWN].item()) == ((6.0, 0.0) if turn else (0.0, 6.0))
    assert FFALoRA(NET).writes({}, own) == {}


@pytest.mark.parametrize(("size", "share"), [(0.0, 0.0), (1.0, 1.0), (7.0, 1.0)])
def test_a_weight_by_norm_is_that_of_the_product_and_of_nobody_without_examples(
    size: float, share: float
) -> None:
    """B A is 2 at one place, and counts three times: a norm of 6, however many examples."""
    down, up = torch.zeros(2, 2).double(), torch.zeros(3, 2).double()
    down[0, 1], up[0, 0] = 1.0, 2.0
    own: Any = SimpleNamespace(size=torch.tensor(size).double())
    writes = FedAvgLoRA(NET, weight="norm").writes({DOWN: {A: down}, UP: {B: up}}, own)
    assert writes[DOWN].tolist() == writes[UP].tolist() == pytest.approx([6.0 * _SMALL * share])
