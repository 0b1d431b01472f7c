"""Which step each tensor takes, on a few whose counts can be followed by hand."""

from __future__ import annotations

from typing import Any

import torch

from fedblocks.core.kept_memory import memory_of
from fedblocks.core.optimizers import MISSED, Adam
from fedblocks.core.phases import Update
from fedblocks.core.step_counts import lacked_in, turns
from fedblocks.methods.flow.instance_routes import Paced
from tests.core.test_steps_exactly import loss, one, two


def test_a_tensor_that_missed_steps_counts_its_own_and_steps_with_those_that_missed_as_many() -> (
    None
):
    trained = [("a", name, torch.zeros(1)) for name in "uvwx"]
    plain = Update(("a",), loss, 0.5, Adam())
    memory, lacked = memory_of(plain, trained, 0, None, one()), set[int]()

    def after(count: int, live: str) -> list[Any]:
        grads = [torch.ones(1) if name in live else None for _, name, _ in trained]
        return list(turns(plain, trained, grads, memory, lacked, count))

    assert after(1, "uvwx") == [([0, 1, 2, 3], 1)] and lacked == set()
    assert after(2, "uv") == [([0, 1], 2)] and lacked == {2, 3}
    assert after(3, "uv") == [([0, 1], 3)]
    assert after(4, "uwx") == [([0], 4), ([2, 3], 2)]  # theirs of the first step, and this one
    assert after(5, "uvwx") == [([0], 5), ([1], 4), ([2, 3], 3)] and lacked == {1, 2, 3}
    assert memory[MISSED][0].tolist() == [0, 1, 2, 2]


def test_clients_of_a_stack_may_have_missed_other_numbers_of_steps() -> None:
    trained = [("a", name, torch.zeros(2, 1)) for name in "uv"]
    plain, local = Update(("a",), loss, 0.5, Adam()), two(keep_optimizer=True)
    kept = {f"{moment}/{i}": torch.zeros(2, 1) for moment in ("mean", "square") for i in (0, 1)}
    kept |= {
        "count/0": torch.tensor([5.0, 9.0]),
        "missed/0": torch.tensor([[0.0, 2.0], [0.0, 4.0]]),
    }
    memory = memory_of(plain, trained, 0, kept, local)
    lacked = lacked_in(memory, plain, trained)
    assert lacked == {1}
    own = list(turns(plain, trained, [torch.ones(2, 1)] * 2, memory, lacked, 1))
    assert [(places, count.tolist()) for places, count in own] == [  # type: ignore[union-attr]
        ([0], [6.0, 10.0]),
        ([1], [4.0, 6.0]),
    ]
    old = memory_of(plain, trained, 0, {k: v for k, v in kept.items() if k != "missed/0"}, local)
    assert old[MISSED][0].tolist() == [[0.0, 0.0]] * 2 and lacked_in(old, plain, trained) == set()


def test_a_paced_optimizer_knows_its_first_tensors_among_some() -> None:
    """Of five, the first two have the other rate."""
    paced = Paced(Adam(), first=2, pace=3.0)
    counts = [paced.at(places).first for places in ([0, 1, 4], [1, 3], [2, 3, 4], [0, 1, 2, 3, 4])]
    assert counts == [2, 1, 0, 2] and paced.at([1]).pace == 3.0 and paced.at([1]).base == Adam()
