"""Randomness of modules from outside: a function of a seed, and nobody else's is touched."""

import traceback

import pytest
import torch

from fedblocks.core.outside_modules import seeded


def test_a_seed_makes_the_numbers_of_torch_s_own_and_the_state_before_comes_back() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with seeded(3):
        assert torch.equal(torch.rand(4), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_stack_trace_is_written_for_devices_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch.manual_seed writes one for each of them, which takes twenty times as long as a seed."""
    written: list[int] = []
    monkeypatch.setattr(traceback, "format_stack", lambda: written.append(1))
    with seeded(3):
        torch.rand(1)
    assert torch.accelerator.is_available() or written == []
