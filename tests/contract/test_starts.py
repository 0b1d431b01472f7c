"""Methods that begin with clusters of the first updates keep the contract, too."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from fedblocks.engines.sequential import Sequential
from fedblocks.testing import CHECKS, Example, Invariant, run_check
from fedblocks.testing.rounds import run
from fedblocks.testing.starts import STARTS
from tests.representatives import case_of


@lru_cache(maxsize=1)  # its checks come one after another, and have some runs in common
def example_of(name: str) -> Example:
    return STARTS[name]()


@pytest.mark.parametrize(
    "invariant", CHECKS, ids=lambda invariant: f"{invariant.number:02d}-{invariant.name}"
)
@pytest.mark.parametrize("name", [case_of(n, always=n == "ifca_updates") for n in STARTS])
def test_the_method_keeps_the_invariant(name: str, invariant: Invariant) -> None:
    """One of three; the others in `make test-rest`."""
    check = run_check(invariant, example_of(name))
    assert check.passed, check.detail


@pytest.mark.parametrize("name", ["clustered_updates", "modfl_updates"])
def test_the_two_kinds_of_clients_are_found_in_the_first_round(name: str) -> None:
    """In the small federation every second client is of the second kind."""
    example = STARTS[name]()
    state = run(example.experiment(), Sequential(), [example.everybody]).last
    home = state.server["membership"]["value"].flatten()
    assert torch.equal(home, torch.tensor([1.0, 0.0] * 4, dtype=home.dtype))


def test_ifca_sends_one_model_in_the_first_round_and_then_those_that_have_members() -> None:
    example = STARTS["ifca_updates"]()
    done = run(example.experiment(), Sequential(), [[0, 1, 2, 3, 4, 5], [0, 1, 6, 7]])
    one = example.experiment().methods["all"].net.size() * 8
    sent = [report.bytes_down["clusters"] for report in done.reports]
    assert sent == [dict.fromkeys(range(6), one), dict.fromkeys((0, 1, 6, 7), 2 * one)]
    assert done.last.server["begun"]["value"].tolist() == [2.0]
