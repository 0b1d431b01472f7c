"""Which weights and copies of clients are taken, one check after the other."""

from __future__ import annotations

import pytest
import torch

from fedblocks.core.admission import cap_groups, cap_weights, finite_check, weight_checks
from fedblocks.core.rules import Average
from fedblocks.core.uploads import Upload

NAN, INF = float("nan"), float("inf")


def test_weights_are_finite_not_negative_and_at_most_what_a_client_may_ask_for() -> None:
    weights = torch.tensor(
        [[1.0, 2.0], [0.0, 0.0], [1.0, -1.0], [NAN, 1.0], [INF, 0.0], [3.0, 1.0], [2.0, 2.0]]
    )
    limits = torch.full((7,), 2.0)
    sound, modest = weight_checks("model", weights, limits)
    assert sound.passed.tolist() == [True, True, False, False, False, True, True]
    # each slot counts, and the limit itself is allowed
    assert modest.passed.tolist() == [True, True, True, False, False, False, True]
    assert [check.reason for check in (sound, modest)] == ["bad-weight"] * 2
    assert "more weight than the client has labels" in modest.detail
    (only,) = weight_checks("model", weights, None)
    assert only.passed.tolist() == sound.passed.tolist()


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_copies_with_a_number_that_is_not_finite_do_not_pass(odd: float) -> None:
    copies = {"w": torch.zeros(3, 2, 2), "n": torch.zeros(3, dtype=torch.double)}
    copies["w"][1, 0, 1] = odd
    check = finite_check("block", copies)
    assert check.passed.tolist() == [True, False, True] and check.reason == "not-finite"
    copies["n"][2] = odd
    assert finite_check("block", copies).passed.tolist() == [True, False, False]


def upload(name: str, *weights: float, own: bool = False) -> Upload:
    column = torch.tensor(weights, dtype=torch.double)[:, None]
    ids = torch.arange(len(weights))
    return Upload(name, ids, {"w": torch.zeros(len(weights), 1)}, column, False, Average(), own)


def test_groups_that_write_the_same_slot_are_capped_together() -> None:
    groups = {
        "a": {"model": upload("shared", 8.0, 1.0), "mine": upload("own", 9.0, 1.0, own=True)},
        "b": {"other": upload("shared", 3.0), "model": upload("alone", 9.0, 1.0, 2.0)},
    }
    capped = cap_groups(groups, 0.5)
    # 4 is half of 4 + 1 + 3, and 3 half of 3 + 1 + 2
    assert capped["a"]["model"].weights.flatten().tolist() == [4.0, 1.0]
    assert capped["b"]["other"].weights.flatten().tolist() == [3.0]
    assert capped["b"]["model"].weights.flatten().tolist() == [3.0, 1.0, 2.0]
    assert capped["a"]["mine"].weights.flatten().tolist() == [9.0, 1.0]  # everybody's own slot
    assert cap_groups(groups, 1.0) == groups


@pytest.mark.parametrize(
    ("weights", "share", "capped"),
    [
        ([8.0, 1.0, 3.0], 0.5, [4.0, 1.0, 3.0]),
        ([4.0, 1.0, 3.0], 0.5, [4.0, 1.0, 3.0]),  # just allowed
        ([9.0, 9.0, 1.0, 1.0], 0.4, [4.0, 4.0, 1.0, 1.0]),  # 4 is 0.4 of 10
        ([5.0, 1.0], 0.4, [1.0, 1.0]),  # two clients cannot have 0.4 at most: all alike
        ([5.0, 0.0], 0.4, [5.0, 0.0]),
        ([0.0, 0.0], 0.4, [0.0, 0.0]),
    ],
)
def test_the_largest_weights_are_cut_to_the_share_that_is_allowed(
    weights: list[float], share: float, capped: list[float]
) -> None:
    found = cap_weights(torch.tensor(weights, dtype=torch.double)[:, None], share)
    assert found.flatten().tolist() == pytest.approx(capped)
