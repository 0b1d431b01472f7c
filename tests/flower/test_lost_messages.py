"""Messages that are lost wait for a while; claims are bounded by what others have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.flower.gateway.limits import Limits
from fedblocks.flower.server import app
from fedblocks.flower.server.app import Link
from fedblocks.flower.server.enrolment import CEILING, FACTOR, Enrolment
from fedblocks.flower.wire.admission import Expected, Member
from fedblocks.flower.wire.messages import Malformed, tensors_of


def test_a_lost_message_is_sent_again_after_a_pause_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(app.time, "monotonic", lambda: clock[0])
    link = Link(grid=None, nodes={0: 7, 1: 7, 2: 8})  # type: ignore[arg-type]
    first: Any = {0: "a", 1: "b"}
    link._lose(first)
    assert link.due_again() == {}
    clock[0] += app.RETRY / 2
    link._lose({2: "c"})  # type: ignore[dict-item]
    clock[0] += app.RETRY / 2
    assert link.due_again() == first
    assert link.due_again() == {}
    clock[0] += app.RETRY / 2
    assert link.due_again() == {2: "c"}
    link._lose(first)
    link.forget()
    clock[0] += app.RETRY
    assert link.due_again() == {} and link.waiting == {}


@pytest.mark.parametrize(
    ("claims", "agreed", "bound"),
    [
        ({0: 10, 1: 20, 2: 30}, {}, FACTOR * 20),
        ({0: 10, 1: 20, 2: 30, 3: 40}, {}, FACTOR * 20),  # the lower of the two in the middle
        ({0: 9}, {(1, 2): 60}, FACTOR * 9),  # a number of clients that are not there says nothing
        ({0: 99, 1: 5}, {(1, 2): 60}, FACTOR * 30),  # half of it for each of the two
        ({0: 99, 1: 5}, {(1, 2, 3): 2}, FACTOR * 1),
        ({0: 0, 1: 0}, {}, CEILING),
        ({0: CEILING}, {}, CEILING),
    ],
)
def test_a_claim_is_bounded_by_the_median_of_what_others_have(
    claims: dict[int, int], agreed: Any, bound: int
) -> None:
    nodes = {client: 100 + client for client in claims}
    most, why = Enrolment(None, agreed)._bound(claims, nodes)
    assert most == bound
    assert why.startswith(
        "nobody has" if not any(claims.values()) else f"{FACTOR} times the median"
    )


def test_clients_of_one_node_have_one_voice() -> None:
    claims = {0: 10, 1: 1000, 2: 1000, 3: 1000, 4: 20}
    nodes = {0: 5, 1: 6, 2: 6, 3: 6, 4: 7}
    assert Enrolment()._bound(claims, nodes)[0] == FACTOR * 20


def test_a_weight_limit_keeps_all_its_digits() -> None:
    expected: Any = Expected.__new__(Expected)
    object.__setattr__(expected, "member", Member(0, 1, 1 / 3, {}))
    limits = Expected.limits.fget(expected)  # type: ignore[attr-defined]
    assert limits.dtype is torch.double and limits.tolist() == [1 / 3]


def test_limits_are_those_of_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+)", page, re.MULTILINE)
    assert {name: float(value) for name, value in rows} == Limits().model_dump()


def test_a_refusal_names_the_first_array_that_is_missing_or_too_many() -> None:
    schema = dict.fromkeys("gabcdefh", (torch.float32, (2,)))
    arrays = {name: np.zeros(2, "float32") for name in "abcdefgh"}
    assert list(tensors_of(arrays, schema)) == list("gabcdefh")
    with pytest.raises(Malformed, match=r'"c" is missing \(5 missing, 1 too many\)'):
        tensors_of(dict.fromkeys("zabh", arrays["a"]), schema)
    with pytest.raises(Malformed, match=r'"m" is not part of the plan \(0 missing, 3 too many\)'):
        tensors_of({**arrays, **dict.fromkeys("zmx", arrays["a"])}, schema)
