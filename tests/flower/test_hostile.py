"""A client that sends something wrong is refused with a reason, and the round is one
without it; nothing raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedblocks.engines.sequential import Sequential
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Closed, ServerSide
from fedblocks.flower.wire.messages import HEADER_LIMIT, Wire
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import Leaves, differences, state_leaves
from fedblocks.testing.rounds import run

from .federations import everybody, leaves

BAD = 2  # the client that misbehaves
COHORT = [0, 1, 2, 3]
Change = Callable[[dict[str, Any], dict[str, Any]], None]  # of a header and of arrays, in place


def with_header(**values: Any) -> Change:
    return lambda header, arrays: header.update(values)


def with_array(name: str, change: Callable[[Any], Any]) -> Change:
    def changed(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays[name] = change(arrays[name].copy())

    return changed


def put(name: str, value: Any) -> Change:
    return lambda header, arrays: arrays.update({name: np.asarray(value)})


def poisoned(value: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array.flat[0] = value
        return array

    return change


# of the perceptron 6-5-4, in double precision
WEIGHT, BIAS = "blocks/model/0.weight", "blocks/model/0.bias"
HOSTILE: dict[str, tuple[Change, str]] = {
    "a NaN": (with_array(WEIGHT, poisoned(np.nan)), "not-finite"),
    "an infinity": (with_array(BIAS, poisoned(np.inf)), "not-finite"),
    "an array too many": (put("blocks/model/more", 1.0), "names"),
    "an array of another kind": (put("more", 1.0), "names"),
    "weights of no block": (put("weights/more", [1.0]), "names"),
    "an array too few": (lambda header, arrays: arrays.pop(BIAS), "names"),
    "no weights": (lambda header, arrays: arrays.pop("weights/model"), "names"),
    "nothing": (lambda header, arrays: arrays.clear(), "names"),
    "a transposed matrix": (with_array(WEIGHT, np.transpose), "shape"),
    "a row that would be stretched": (with_array(WEIGHT, lambda a: a[:1]), "shape"),
    "one number that would be stretched": (with_array(BIAS, lambda a: a[0]), "shape"),
    "a dimension too many": (with_array(BIAS, lambda a: a[None]), "shape"),
    "single precision": (with_array(WEIGHT, lambda a: a.astype(np.float32)), "dtype"),
    "whole numbers": (with_array(WEIGHT, lambda a: a.astype(np.int64)), "dtype"),
    "another byte order": (with_array(WEIGHT, lambda a: a.astype(">f8")), "dtype"),
    "text": (with_array(BIAS, lambda a: a.astype("U1")), "dtype"),
    "far too many bytes": (put(WEIGHT, np.zeros((500, 600))), "too-large"),
    "a negative weight": (put("weights/model", [-3.0]), "bad-weight"),
    "a weight of nothing": (put("weights/model", [0.0]), "bad-weight"),
    "a weight that is no number": (put("weights/model", [np.nan]), "bad-weight"),
    "an endless weight": (put("weights/model", [np.inf]), "bad-weight"),
    "an absurd weight": (put("weights/model", [1e18]), "bad-weight"),
    "one example more than enrolled": (put("weights/model", [4.0]), "bad-weight"),
    "two weights": (put("weights/model", [3.0, 3.0]), "shape"),
    "a whole weight": (put("weights/model", [3]), "dtype"),
    "weights that it may not choose": (with_header(decided=["model"]), "names"),
    "another run": (with_header(run="run-2"), "wrong-run"),
    "another client": (with_header(client=0), "wrong-client"),
    "another plan": (with_header(plan="0" * 64), "plan-mismatch"),
    "a field too many": (with_header(more=1), "envelope"),
    "a round that is no number": (with_header(round="0"), "envelope"),
    "a kind that does not exist": (with_header(kind="gift"), "envelope"),
    "a kind that servers send": (
        lambda header, arrays: header.update(kind="more", slots={}),
        "envelope",
    ),
    "a score nobody asked for": (with_header(counts={"test/personal": [1, 2, 3]}), "envelope"),
    "a picture nobody asked for": (with_header(pictures={"alpha": [1.0]}), "envelope"),
    "a picture that is too large": (with_header(pictures={"alpha": [1.0] * 257}), "envelope"),
    "a picture that is no number": (with_header(pictures={"alpha": [float("nan")]}), "envelope"),
    "too many pictures": (with_header(pictures={str(n): [] for n in range(17)}), "envelope"),
    "a long header": (with_header(run="x" * HEADER_LIMIT), "envelope"),
}


def changed(message: Wire, change: Change) -> Wire:
    header, arrays = json.loads(message.header), dict(message.arrays)
    change(header, arrays)
    return Wire(json.dumps(header), arrays)


def meddled(
    name: str, folder: Path, change: Change, clients: list[int] = COHORT
) -> tuple[Closed, dict[int, Any]]:
    """A round in which one client's upload is changed on its way."""
    server, sides = everybody(EXAMPLES[name]().experiment(), folder)
    asked = OpenRound(server, server.start(), clients)
    for client, message in asked.downloads.items():
        sent: Wire | None = message
        while sent is not None:
            answer = sides[client].answer(sent)
            last = json.loads(answer.header)["kind"] == "upload"
            sent = asked.receive(
                client, changed(answer, change) if client == BAD and last else answer
            )
    return asked.close(), sides


@cache
def without_it() -> Leaves:
    """What a simulated round of the others ends with."""
    return state_leaves(
        run(EXAMPLES["fedavg"]().experiment(), Sequential(), [[c for c in COHORT if c != BAD]]).last
    )


@pytest.mark.parametrize("what", HOSTILE)
def test_a_client_that_sends(what: str, tmp_path: Path) -> None:
    change, reason = HOSTILE[what]
    closed, _ = meddled("fedavg", tmp_path, change)
    assert [(r.client, r.reason) for r in closed.report.refusals] == [(BAD, reason)]
    assert closed.abandoned == "" and BAD not in closed.progress.kept
    assert differences(state_leaves(closed.progress.state), without_it(), 1e-12) == []


def test_an_honest_client_is_not_refused(tmp_path: Path) -> None:
    closed, _ = meddled("fedavg", tmp_path, lambda header, arrays: None)
    assert closed.report.refusals == closed.ignored == [] and set(closed.progress.kept) == set(
        COHORT
    )


@pytest.mark.parametrize(
    ("name", "array", "weights"),
    [
        ("pfedmb", "weights/layers.0", [1e6, 1.0]),  # more than the three labels that it has
        ("pfedmb", "weights/layers.0", [-0.1, 3.1]),
        ("ifca", "weights/clusters", [3.0, 1e18]),
        ("modfl", "weights/operation", [3.0, 3.0]),  # both cohorts, and it was sent one
        ("scaffold", "weights/control", [100.0]),
    ],
)
def test_weights_that_a_method_decides_are_bounded(
    name: str, array: str, weights: list[float], tmp_path: Path
) -> None:
    closed, _ = meddled(name, tmp_path, put(array, weights))
    assert [(r.client, r.reason) for r in closed.report.refusals] == [(BAD, "bad-weight")]


def test_a_late_and_a_doubled_upload_change_nothing(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedper"]().experiment(), tmp_path)
    first = OpenRound(server, server.start(), COHORT)
    old = {c: sides[c].answer(m) for c, m in first.downloads.items()}
    assert [first.receive(c, m) for c, m in old.items() for _ in range(3)] == [None] * 12
    after = first.close()
    assert [(r.client, r.reason) for r in after.ignored] == [
        (c, "duplicate") for c in COHORT for _ in range(2)
    ]
    second = OpenRound(server, after.progress, COHORT)
    for client, message in second.downloads.items():
        second.receive(client, old[client])  # recorded in the round before
        second.receive(client, sides[client].answer(message))
    closed = second.close()
    assert [(r.client, r.reason) for r in closed.ignored] == [(c, "stale") for c in COHORT]
    assert closed.report.refusals == []
    simulated = run(EXAMPLES["fedper"]().experiment(), Sequential(), [COHORT, COHORT]).last
    assert differences(leaves(sides, closed.progress), state_leaves(simulated), 1e-6) == []


def test_an_upload_of_an_abandoned_attempt_is_not_used_in_the_next(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedavg"]().experiment(), tmp_path)
    first = OpenRound(server, server.start(), COHORT)
    recorded = sides[0].answer(first.downloads[0])
    again = OpenRound(server, first.close().progress, COHORT)
    assert again.receive(0, recorded) is None
    assert [(r.client, r.reason) for r in again.ignored] == [(0, "replayed")] and 0 in again.waiting


def test_a_client_that_was_not_asked_is_ignored(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedavg"]().experiment(), tmp_path)
    asked = OpenRound(server, server.start(), [0, 1])
    answer = sides[0].answer(asked.downloads[0])
    assert asked.receive(5, answer) is None
    assert [(r.client, r.reason) for r in asked.ignored] == [(5, "unknown-client")]


@pytest.mark.parametrize(
    ("slots", "reason"),
    [
        ([9], "shape"),
        ([-1], "shape"),
        ([0, 0], "shape"),
        ([1, 0], "shape"),
        (["0"], "envelope"),
        ({"router": [0]}, "names"),
        ({}, "names"),
    ],
)
def test_a_request_for_slots_that_do_not_exist_is_refused(
    slots: Any, reason: str, tmp_path: Path
) -> None:
    server, sides = everybody(EXAMPLES["fedmn"]().experiment(), tmp_path)
    asked = OpenRound(server, server.start(), COHORT)
    request = sides[BAD].answer(asked.downloads[BAD])
    header = json.loads(request.header)
    train = slots if isinstance(slots, dict) else dict.fromkeys(header["train"], slots)
    assert asked.receive(BAD, Wire(json.dumps({**header, "train": train}), {})) is None
    assert [(r.client, r.reason) for r in asked.report.refusals] == [(BAD, reason)]


def test_an_upload_without_a_request_is_refused_where_slots_are_on_request(tmp_path: Path) -> None:
    server, _ = everybody(EXAMPLES["fedmn"]().experiment(), tmp_path)
    asked = OpenRound(server, server.start(), COHORT)
    header = json.loads(asked.downloads[BAD].header)
    names = ("run", "round", "client", "nonce", "plan")
    assert (
        asked.receive(
            BAD, Wire(json.dumps({**{n: header[n] for n in names}, "kind": "upload"}), {})
        )
        is None
    )
    assert [(r.client, r.reason) for r in asked.report.refusals] == [(BAD, "envelope")]


def test_a_gap_in_the_checks_costs_one_client_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gap(*args: Any) -> None:
        raise RuntimeError("shapes do not fit")

    server, sides = everybody(EXAMPLES["fedavg"]().experiment(), tmp_path)
    asked = OpenRound(server, server.start(), COHORT)
    for client, message in asked.downloads.items():
        with monkeypatch.context() as patch:
            if client == BAD:
                patch.setattr("fedblocks.flower.server.rounds.admit_upload", gap)
            assert asked.receive(client, sides[client].answer(message)) is None
    assert [(r.client, r.reason) for r in asked.report.refusals] == [(BAD, "server-error")]
    assert asked.admitted == 3


def test_words_of_a_client_cannot_command_a_terminal(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedavg"]().experiment(), tmp_path)
    asked = OpenRound(server, server.start(), COHORT)
    apology = {
        "kind": "apology",
        "reason": "\x1b[31mred",
        "detail": "\x1b]0;title\x07" + "long " * 100,
    }
    header = {**json.loads(sides[BAD].answer(asked.downloads[BAD]).header), **apology}
    del header["decided"], header["counts"], header["pictures"]
    asked.receive(BAD, Wire(json.dumps(header), {}))
    (refusal,) = asked.report.refusals
    assert (
        refusal.reason == "client-error"
        and refusal.detail.isprintable()
        and len(refusal.detail) <= 300
    )


def test_a_round_below_the_minimum_changes_nothing(tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["fedper"]().experiment(), tmp_path)
    start = server.start()
    before = {place: value.clone() for place, value in state_leaves(start.state).items()}
    asked = OpenRound(server, start, COHORT)
    for client in (0, 1):
        asked.receive(client, sides[client].answer(asked.downloads[client]))
    closed = asked.close(minimum=3)
    assert closed.abandoned == "2 of at least 3 updates could be used"
    assert closed.progress is start and differences(state_leaves(start.state), before) == []
    assert {r.client: r.reason for r in closed.report.refusals} == {2: "no-answer", 3: "no-answer"}


@settings(max_examples=150)
@given(data=st.data())
def test_no_header_whatever_stops_a_round(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server, upload = recorded(tmp_path_factory.getbasetemp())
    text = list(upload.header)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(
            st.sampled_from(["", "0", "1e999", "null", '"', "{", "]", ",", "\x00", "é", "NaN", "-"])
        )
    asked = OpenRound(server, server.start(), COHORT)
    assert asked.receive(BAD, Wire("".join(text), upload.arrays)) is None
    assert len(asked.ignored) + len(asked.report.refusals) == 1


@cache
def recorded(folder: Path) -> tuple[ServerSide, Wire]:
    """A server, and an upload that was right in another attempt at its first round."""
    server, sides = everybody(EXAMPLES["fedavg"]().experiment(), folder)
    return server, sides[BAD].answer(OpenRound(server, server.start(), COHORT).downloads[BAD])


@pytest.mark.parametrize("tag", [-1, 10**6])
def test_a_tag_that_the_method_cannot_use_costs_its_client_alone(tag: int, tmp_path: Path) -> None:
    server, sides = everybody(EXAMPLES["modfl"]().experiment(), tmp_path)
    method = next(iter(server.methods.values()))
    (name,) = method.tags
    honest = server.members[BAD]
    server.members[BAD] = replace(honest, tags={**honest.tags, name: tag})  # type: ignore[index]
    asked = OpenRound(server, server.start(), COHORT)
    assert [(r.client, r.reason) for r in asked.report.refusals] == [(BAD, "bad-tag")]
    for client, message in asked.downloads.items():
        asked.receive(client, sides[client].answer(message))
    assert asked.close().abandoned == "" and asked.admitted == len(COHORT) - 1
