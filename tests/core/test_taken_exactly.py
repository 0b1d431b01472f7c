"""What the server takes, makes of it and counts, at its edges and by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedblocks as fb
from fedblocks.core.admission import Examination, UploadCheck, admit, cap_weights, misfit
from fedblocks.core.aggregate import merge_groups
from fedblocks.core.blocks import Selection
from fedblocks.core.plan import _reads
from fedblocks.core.reduction import reduce_slots, sum_part
from fedblocks.core.rules import Average
from fedblocks.core.server import Cohort
from fedblocks.core.state import count_bytes, initial_state
from fedblocks.core.uploads import Upload, _scatter

NAN = math.nan


def upload(weights: list[list[float]], copies: Tensor, ids: Any = None, **more: Any) -> Upload:
    ids = torch.arange(len(weights)) if ids is None else torch.tensor(ids)
    rows = torch.tensor(weights).double()
    return Upload("m", ids, {"w": copies}, rows, more.pop("per_slot", False), Average(), **more)


# what comes in


def test_who_passes_nothing_that_is_checked_has_passed() -> None:
    ids = torch.tensor([4, 7])
    nothing = Examination.of([], ids)
    assert nothing.passed.tolist() == [[True, True]] and nothing.passed.dtype == torch.bool
    assert nothing.is_clean() and nothing.judge()[1] == []


def test_the_first_reason_is_told_and_a_whole_that_is_clean_has_clean_parts() -> None:
    first = UploadCheck("one", "first", torch.tensor([True, False, False]))
    second = UploadCheck("two", "second", torch.tensor([False, False, True]))
    found = Examination.of([first, second], torch.tensor([4, 7, 9]))
    admitted, refusals = found.judge()
    assert admitted.tolist() == [False] * 3 and not found.is_clean()
    assert [(r.client, r.reason, r.detail) for r in refusals] == [
        (4, "two", "second"), (7, "one", "first"), (9, "one", "first"),
    ]  # fmt: skip
    clean = Examination.of([], torch.tensor([4]))
    assert Examination([], found.ids, found.passed, clean).is_clean()
    assert not Examination([], found.ids, found.passed, found).is_clean()
    assert Examination([], clean.ids, clean.passed, found).is_clean()


def test_copies_are_as_the_slots_that_they_replace() -> None:
    slots = {"w": torch.zeros(2, 3)}
    fits = upload([[1.0, 1.0]], torch.zeros(1, 3))
    assert misfit("b", fits, slots) is None
    side = upload([[1.0, 1.0]], torch.zeros(1, 2, 3), per_slot=True)
    assert misfit("b", side, slots) is None
    assert misfit("b", upload([[1.0, 1.0]], torch.zeros(1, 2)), slots) == (
        "shape", '"w" of block "b" has shape [2], not [3]',
    )  # fmt: skip
    assert misfit("b", upload([[1.0]], torch.zeros(1, 3)), slots) == (
        "shape", 'block "b" has other slots than [1] weights',
    )  # fmt: skip
    assert misfit("b", upload([[1.0]], torch.zeros(1, 3), own=True), slots) is None
    short = upload([[1.0, 1.0]] * 2, torch.zeros(1, 3))
    assert (misfit("b", short, slots) or ("",))[0] == "shape"
    kind = misfit("b", upload([[1.0, 1.0]], torch.zeros(1, 3).double()), slots)
    assert kind == ("dtype", '"w" of block "b" is torch.float64, not torch.float32')


def test_private_blocks_are_looked_at_and_empty_ones_are_not() -> None:
    ids = torch.tensor([1, 2])
    private = {"own": {"v": torch.tensor([[1.0], [NAN]])}, "none": {}}
    admitted, (refusal,) = admit({}, private, ids)
    assert admitted.tolist() == [True, False]
    assert refusal.client == 2 and refusal.detail.startswith('private block "own" holds a NaN')


def test_a_cap_is_exact_to_the_last_digit() -> None:
    weights = torch.tensor([[9.0, 3.0], [1.0, 3.0], [1.0, 3.0], [1.0, 0.0]]).double()
    capped = cap_weights(weights, 0.3)
    # 9 is cut to 0.3 x (level + 3): level = 0.9 / 0.7; each of 3 is 1/3 > 0.3, and no level will do
    assert capped[:, 0].tolist() == pytest.approx([0.9 / 0.7, 1, 1, 1], rel=1e-14)
    assert capped[:, 1].tolist() == [3.0, 3.0, 3.0, 0.0]
    assert cap_weights(weights, 0.75).equal(weights)  # 9 of 12 is just the share


# what is made of it


def test_slots_that_nobody_wrote_stay_and_the_others_are_means() -> None:
    copies = torch.tensor([[1.0], [5.0]])
    old = {"w": torch.tensor([[7.0], [8.0]]), "other": torch.tensor([[0.0], [1.0]])}
    sent = upload([[1.0, 0.0], [3.0, 0.0]], copies)
    new, written = reduce_slots(old, sent)
    assert new["w"].tolist() == [[4.0], [8.0]] and written.tolist() == [True, False]
    assert new["other"] is old["other"]
    part = sum_part(sent, torch.tensor([8.0, 0.0]).double())["w"]
    assert part.tolist() == [[2.0], [0.0]] and part.dtype == torch.double


def test_uploads_of_two_groups_keep_their_lanes_together() -> None:
    one = upload([[1.0], [2.0]], torch.tensor([[1.0], [2.0]]), [5, 1], lanes=(1, 1))
    two = upload([[3.0]], torch.tensor([[3.0]]), [3], lanes=(1, 0))
    (both,) = merge_groups({"a": {"x": one}, "b": {"y": two}})
    assert both.ids.tolist() == [1, 3, 5] and both.lanes == (2, 1)
    assert both.weights.tolist() == [[2.0], [3.0], [1.0]]
    assert both.copies["w"].tolist() == [[2.0], [3.0], [1.0]]
    assert merge_groups({"a": {"x": one}}) == [one]


def test_copies_lie_where_they_were_read() -> None:
    copies = {"w": torch.tensor([[[1.0], [2.0]]])}
    spread = _scatter(copies, torch.tensor([[2, 0]]), 3)["w"]
    assert spread.tolist() == [[[2.0], [0.0], [1.0]]]
    assert _scatter(copies, torch.arange(2).expand(1, -1), 2) is not copies  # one row: stride 2
    all_alike = torch.arange(2).expand(4, -1)
    assert _scatter(copies, all_alike, 2) is copies
    assert _scatter({"w": torch.ones(4, 2, 1)}, all_alike, 3)["w"].sum(0).flatten().tolist() == [
        4,
        4,
        0,
    ]


def test_bytes_are_those_of_a_row() -> None:
    params = {"w": torch.zeros(3, 2), "n": torch.zeros(3).double()}
    assert [count_bytes(params), count_bytes(params, rows=3), count_bytes({}, rows=0)] == [
        48,
        16,
        0,
    ]
    sent = upload([[1.0, 0.0], [2.0, 1.0], [0.0, 0.0]], torch.zeros(3, 5))
    # a copy of 5 numbers where there is a weight, and 2 weights
    assert sent.bytes_up().tolist() == [36, 36, 16]
    side = replace(sent, per_slot=True, copies={"w": torch.zeros(3, 2, 5)})
    assert side.bytes_up().tolist() == [36, 56, 16]
    own = sent.keep(torch.tensor([False, True, False]))
    assert (
        own.ids.tolist() == [1]
        and own.weights.tolist() == [[2.0, 1.0]]
        and len(own.copies["w"]) == 1
    )


def test_a_plan_asks_what_four_clients_of_equal_size_are_sent_at_the_start() -> None:
    asked: list[tuple[Any, Cohort]] = []

    class Asking(fb.FedAvg):
        tags = ("kind",)

        def reads(self, server: Any, cohort: Cohort) -> dict[str, Any]:
            asked.append((server, cohort))
            return {}

    method = Asking(fb.small_net())
    read = _reads(method)["model"]
    ((server, cohort),) = asked
    assert isinstance(read, Selection) and read.slots.tolist() == [0, 0, 0, 0]
    assert cohort.ids.tolist() == [0, 1, 2, 3] and cohort.sizes.tolist() == [1.0] * 4
    assert cohort.sizes.dtype == torch.double and cohort.tags["kind"].tolist() == [0] * 4
    assert cohort.tags["kind"].dtype == torch.long
    assert (cohort.population, cohort.round, cohort.seed) == (4, 0, 0)
    start = initial_state({"all": method}, 4, 0).server["model"]
    assert all(value.equal(start[name]) for name, value in server["model"].items())
