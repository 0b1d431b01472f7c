"""Which examples are in which step of a stack of clients."""

from __future__ import annotations

import numpy as np
import torch

from fedblocks.engines.batching import steps_of_stack


def _orders(*lengths: tuple[int, ...]) -> list[list[np.ndarray]]:
    """Batches of these lengths for each client, numbers that say client, batch and place."""
    return [
        [100 * c + 10 * s + np.arange(n) for s, n in enumerate(own)]
        for c, own in enumerate(lengths)
    ]


def test_batches_of_one_length_are_laid_side_by_side():
    steps = steps_of_stack(_orders((3, 3), (3, 3)), torch.device("cpu"))
    assert [step.index.tolist() for step in steps] == [
        [[0, 1, 2], [100, 101, 102]],
        [[10, 11, 12], [110, 111, 112]],
    ]
    assert all(step.full and step.active == 2 for step in steps)


def test_what_is_missing_in_a_batch_is_marked_and_who_has_none_left_is_left_out():
    steps = steps_of_stack(_orders((3, 2), (3,)), torch.device("cpu"))
    assert [step.index.tolist() for step in steps] == [[[0, 1, 2], [100, 101, 102]], [[10, 11, -1]]]
    assert [(step.full, step.active) for step in steps] == [(True, 2), (False, 1)]
