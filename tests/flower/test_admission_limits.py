"""What a client may answer, on both sides of each limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.blocks import Pool, Shared
from fedblocks.flower.wire.admission import (
    LARGEST,
    MOST_LABELS,
    MOST_LOSS,
    Expected,
    Member,
    _check_weights,
    admit_request,
    check_counts,
    check_envelope,
)
from fedblocks.flower.wire.messages import (
    HEADER_LIMIT,
    Envelope,
    Malformed,
    RequestHeader,
    Wire,
    header_of,
    reply,
    tensors_of,
)

ENVELOPE: dict[str, Any] = {"run": "r", "round": 3, "client": 1, "nonce": "n", "plan": "p"}
MEMBER = Member(1, 5, 8.0, {})


def expected(**changes: Any) -> Any:
    """An `Expected` with as little in it as a check reads."""
    pool = Pool(part=None, size=3, on_request=True)  # type: ignore[arg-type]
    method = SimpleNamespace(blocks=lambda: {"pool": pool, "body": Shared(part=None)})  # type: ignore[arg-type]
    whole: dict[str, Any] = {"specs": {}, "copies": {}, "sent": {}}
    whole |= {"member": MEMBER, "envelope": Envelope(**ENVELOPE), "method": method, "reads": {}}
    return Expected(**{**whole, "cohort": None, "train": True, **changes})


def request(train: Any, evaluate: Any = None) -> RequestHeader:
    return RequestHeader(**ENVELOPE, train={"pool": train}, evaluate=evaluate or {})


def weights(*row: float, is_decided: bool = True, wanted: Any = None) -> Callable[[], None]:
    pool = expected().method.blocks()["pool"]
    tensor = torch.tensor(row, dtype=torch.double)
    return lambda: _check_weights("pool", pool, tensor, is_decided, expected(), wanted)


TWO = torch.tensor([True, True, False])
LIMITS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {  # allowed, refused, reason
    "all labels right": (
        lambda: check_counts("t", (5, 5, 0.0), 0), lambda: check_counts("t", (6, 5, 0.0), 0),
        "envelope"),
    "no label right": (
        lambda: check_counts("t", (0, 5, 0.0), 0), lambda: check_counts("t", (-1, 5, 0.0), 0),
        "envelope"),
    "the most labels": (
        lambda: check_counts("t", (0, MOST_LABELS, 0.0), 0),
        lambda: check_counts("t", (0, 2 * MOST_LABELS, 0.0), 0), "envelope"),
    "the largest loss": (
        lambda: check_counts("t", (0, 5, MOST_LOSS), 0),
        lambda: check_counts("t", (0, 5, -1.1 * MOST_LOSS), 0), "envelope"),
    "a loss that is a number": (
        lambda: check_counts("t", (0, 5, 0.0), 0),
        lambda: check_counts("t", (0, 5, float("nan")), 0), "envelope"),
    "the largest metric": (
        lambda: check_counts("t", (0, 5, 0.0, MOST_LOSS, float("nan")), 2),
        lambda: check_counts("t", (0, 5, 0.0, 0.0, -1.1 * MOST_LOSS), 2), "envelope"),
    "all metrics": (
        lambda: check_counts("t", (0, 5, 0.0, 1.0), 1), lambda: check_counts("t", (0, 5, 0.0), 1),
        "envelope"),
    "the last slot": (
        lambda: admit_request(request((0, 2)), expected()),
        lambda: admit_request(request((0, 3)), expected()), "shape"),
    "the first slot": (
        lambda: admit_request(request((0,)), expected()),
        lambda: admit_request(request((-1,)), expected()), "shape"),
    "slots in order": (
        lambda: admit_request(request((0, 1)), expected()),
        lambda: admit_request(request((1, 0)), expected()), "shape"),
    "a slot once": (
        lambda: admit_request(request((1,)), expected()),
        lambda: admit_request(request((1, 1)), expected()), "shape"),
    "pools that are needed": (
        lambda: admit_request(
            RequestHeader(**ENVELOPE, train={}, evaluate={}), expected(train=False)),
        lambda: admit_request(RequestHeader(**ENVELOPE, train={}, evaluate={}), expected()),
        "names"),
    "the weight that it may ask for": (
        weights(8.0, 8.0, 0.0, wanted=TWO), weights(8.1, 0.0, 0.0, wanted=TWO), "bad-weight"),
    "no weight": (
        weights(0.0, 0.0, 0.0, wanted=TWO), weights(-0.1, 0.0, 0.0, wanted=TWO), "bad-weight"),
    "slots that it was sent": (
        weights(1.0, 0.0, 0.0, wanted=TWO), weights(1.0, 0.0, 1.0, wanted=TWO), "bad-weight"),
    "its examples": (
        weights(5.0, 5.0, 5.0, is_decided=False), weights(5.0, 5.0, 4.0, is_decided=False),
        "bad-weight"),
    "a header as long as may be": (
        lambda: header_of(Wire(request((0,)).model_dump_json().ljust(HEADER_LIMIT), {})),
        lambda: header_of(Wire(request((0,)).model_dump_json().ljust(HEADER_LIMIT + 1), {})),
        "envelope"),
    "the shape of a tensor": (
        lambda: tensors_of({"a": torch.zeros(2, 1).numpy()}, {"a": (torch.float32, (2, 1))}),
        lambda: tensors_of({"a": torch.zeros(2).numpy()}, {"a": (torch.float32, (2, 1))}),
        "shape"),
    "the type of a tensor": (
        lambda: tensors_of({"a": torch.zeros(2).numpy()}, {"a": (torch.float32, (2,))}),
        lambda: tensors_of({"a": torch.zeros(2).double().numpy()}, {"a": (torch.float32, (2,))}),
        "dtype"),
    "the tensors of the plan": (
        lambda: tensors_of({"a": torch.zeros(2).numpy()}, {"a": (torch.float32, (2,))}),
        lambda: tensors_of({}, {"a": (torch.float32, (2,))}), "names"),
    "no tensor besides": (
        lambda: tensors_of({}, {}), lambda: tensors_of({"a": torch.zeros(2).numpy()}, {}), "names"),
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_itself_is_admitted_and_what_is_beyond_it_is_refused(limit: str) -> None:
    allowed, refused, reason = LIMITS[limit]
    allowed()
    with pytest.raises(Malformed) as caught:
        refused()
    assert caught.value.reason == reason and caught.value.detail


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"run": "s"}, "wrong-run"), ({"client": 2}, "wrong-client"), ({"plan": "q"}, "plan-mismatch"),
     ({"round": 2}, "stale"), ({"round": 4}, "stale"), ({"nonce": "m"}, "replayed")],
)  # fmt: skip
def test_an_answer_to_something_else_is_refused(changes: dict[str, Any], reason: str) -> None:
    wanted = Envelope(**ENVELOPE)
    check_envelope(Envelope(**reply(wanted)), wanted)
    with pytest.raises(Malformed) as caught:
        check_envelope(Envelope(**{**ENVELOPE, **changes}), wanted)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "changes",
    [{"client": -1}, {"size": -1}, {"limit": -0.1}, {"limit": float("inf")},
     {"limit": float("nan")}, {"tags": {"t": LARGEST}}, {"tags": {"t": -LARGEST - 1}},
     {"size": LARGEST}],
)  # fmt: skip
def test_a_member_that_nobody_can_be_is_refused(changes: dict[str, Any]) -> None:
    replace(MEMBER, client=0, size=0, limit=0.0, tags={"t": -LARGEST, "u": LARGEST - 1})
    with pytest.raises(ValueError, match=r"start at 0|64 bits"):
        replace(MEMBER, **changes)
