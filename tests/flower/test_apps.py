"""Flower's apps, driven in process by a grid that calls the ClientApp: the same
results, one message a round.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from fedblocks.core.errors import UserError
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.client.app import client_app
from fedblocks.flower.local import sides_of
from fedblocks.flower.server.app import RoundRules, server_app
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.registry import Registry
from fedblocks.flower.server.side import Ask, Closed, Progress, ServerSide
from fedblocks.flower.wire.records import HEADERS
from fedblocks.testing import EXAMPLES, Example
from fedblocks.testing.compare import differences, report_leaves, state_leaves
from fedblocks.testing.rounds import run
from tests.representatives import mark_others

from .federations import RUN, leaves
from .local_grid import LocalGrid, Meddle


class Federated:
    """An example as a federation on a LocalGrid."""

    def __init__(self, example: Example, folder: Path, meddle: Meddle | None = None) -> None:
        experiment, self.example = example.experiment(), example
        self.server, self.sides = sides_of(experiment, example.everybody, RUN, folder)
        groups = {c: m.group for c, m in self.server.members.items()}
        sides_at = lambda context: {
            (c := context.node_config["client"]): (self.sides[c], groups[c])
        }
        self.grid = LocalGrid(client_app(sides_at), example.everybody, meddle)
        self.rounds: list[Closed] = []

    def go(
        self, ask: Ask, enrolled: Callable[[], Enrolment] = Enrolment, **rules: object
    ) -> Progress:
        def begin(context: Context, registry: Registry) -> tuple[ServerSide, Progress]:
            assert registry.members == self.server.members
            return self.server, self.server.start()

        wanted = RoundRules(**{"rounds": self.example.rounds, "minimum": 1, "seconds": 20, **rules})
        choose = lambda progress, attempt: (self.example.cohorts()[progress.state.round], ask)
        everybody = self.example.everybody
        app = server_app(begin, wanted, choose, self.rounds.append, everybody, enrolled=enrolled)
        app(self.grid, Context(1, 0, {}, RecordDict(), {}))
        return self.rounds[-1].progress


@pytest.mark.parametrize("name", mark_others(EXAMPLES))
def test_flower_apps_give_what_the_sequential_engine_gives(name: str, tmp_path: Path) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    example = EXAMPLES[name]()
    simulated = run(example.experiment(), Sequential(), example.cohorts(), score="test")
    federation = Federated(example, tmp_path)
    progress = federation.go(Ask(score="test"))
    assert differences(leaves(federation.sides, progress), state_leaves(simulated.last), 1e-6) == []
    for closed, theirs in zip(federation.rounds, simulated.reports, strict=True):
        assert differences(report_leaves(closed.report), report_leaves(theirs)) == []
    train = [
        node
        for node, message in federation.grid.messages
        if message.metadata.message_type == "train"
    ]
    assert len(train) == example.rounds * example.cohort * (2 if name == "fedmn" else 1)


BAD = 3  # in every cohort of this example, at least once
ARRAY = "blocks/body/0.weight"


def lying(shape: tuple[int, ...]) -> Array:
    """An array whose header promises more than there is."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return Array("float64", (5, 6), "numpy.ndarray", stream.getvalue() + bytes(240))


def replaced(array: Array) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        content[str(BAD)] = ArrayRecord({**dict(content[str(BAD)]), ARRAY: array})

    return change


def extra(content: RecordDict) -> None:
    content["more"] = ConfigRecord({"a": 1})


def headless(content: RecordDict) -> None:
    del content[HEADERS]


TAMPERED: dict[str, tuple[Callable[[RecordDict], None], str]] = {
    "a record too many": (extra, "envelope"),
    "no header": (headless, "envelope"),
    "a header that is a number": (
        lambda c: c.update({HEADERS: ConfigRecord({str(BAD): 3})}),
        "envelope",
    ),
    "a header of another client": (
        lambda c: c.update({HEADERS: ConfigRecord({"1": "{}"})}),
        "envelope",
    ),
    "a header of nobody": (lambda c: c.update({HEADERS: ConfigRecord({"x": "{}"})}), "envelope"),
    "no arrays": (lambda c: c.pop(str(BAD)), "envelope"),
    "an array that promises gigabytes": (replaced(lying((10**5, 10**5))), "dtype"),
    "an array of another library": (
        replaced(Array("float64", (5, 6), "other", bytes(240))),
        "dtype",
    ),
    "an array that is noise": (
        replaced(Array("float64", (5, 6), "numpy.ndarray", bytes(240))),
        "dtype",
    ),
    "an array that is endless": (replaced(Array(np.zeros(10**6))), "too-large"),
    "an array that would be stretched": (replaced(Array(np.zeros((1, 6)))), "shape"),
    "a NaN": (replaced(Array(np.full((5, 6), np.nan))), "not-finite"),
}


def node_of(client: int) -> int:
    return 100 + client


def tampering(change: Callable[[RecordDict], None]) -> Meddle:
    def meddle(node: int, answer: Message) -> Message:
        if node == node_of(BAD) and answer.metadata.message_type == "train":
            change(answer.content)
        return answer

    return meddle


def without(client: int, example: Example) -> list[list[int]]:
    return [[c for c in clients if c != client] for clients in example.cohorts()]


@pytest.mark.parametrize("what", TAMPERED)
def test_a_run_goes_on_without_a_client_that_sends(what: str, tmp_path: Path) -> None:
    change, reason = TAMPERED[what]
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, tampering(change))
    progress = federation.go(Ask())
    refusals_of_run = [
        (r.client, r.reason) for closed in federation.rounds for r in closed.report.refusals
    ]
    assert (
        refusals_of_run == [(BAD, reason) for clients in example.cohorts() if BAD in clients]
        and refusals_of_run
    )
    simulated = run(example.experiment(), Sequential(), without(BAD, example)).last
    assert differences(leaves(federation.sides, progress), state_leaves(simulated), 1e-6) == []


def raising(example: Example, folder: Path) -> Federated:
    """A federation in which one client's app raises."""
    federation = Federated(example, folder)
    side_of = federation.grid.app._registered_funcs["train.default"]

    def train(message: Message, context: Context) -> Message:
        if context.node_config["client"] == BAD:
            raise RuntimeError("out of memory")
        return side_of(message, context)

    federation.grid.app._registered_funcs["train.default"] = train
    return federation


def test_a_client_that_fails_counts_as_absent(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = raising(example, tmp_path)
    progress = federation.go(Ask())
    refusals = [r for closed in federation.rounds for r in closed.report.refusals]
    assert {(r.client, r.reason) for r in refusals} == {
        (BAD, "client-error")
    } and "out of memory" in refusals[0].detail
    simulated = run(example.experiment(), Sequential(), without(BAD, example)).last
    assert differences(leaves(federation.sides, progress), state_leaves(simulated), 1e-6) == []


def test_a_node_that_was_away_is_asked_again_as_soon_as_it_is_back(tmp_path: Path) -> None:
    away = ["once"]

    def meddle(node: int, answer: Message) -> Message:
        if node != node_of(BAD) or not away:
            return answer
        away.clear()
        gone = Message(Error(5, "Node Unavailable"), reply_to=answer)
        gone.metadata.__dict__["_reply_to_message_id"] = answer.metadata.reply_to_message_id
        return gone

    federation = Federated(EXAMPLES["fedper"](), tmp_path, meddle)
    registry = Registry(federation.grid)
    registry.wait(federation.example.everybody, len(federation.example.everybody), 10.0)
    assert registry.nodes[BAD] == node_of(BAD) and registry.refused == {} and away == []


def silent(*clients: int) -> Meddle:
    nodes = [node_of(c) for c in clients]
    return lambda node, answer: (
        None if node in nodes and answer.metadata.message_type == "train" else answer
    )


def asked(example: Example) -> int:
    """The first round that asks the bad client, which is round 0 in this example."""
    return next(r for r, clients in enumerate(example.cohorts()) if BAD in clients)


def test_a_client_that_never_answers_costs_the_deadline_and_no_more(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, silent(BAD))
    began = time.monotonic()
    federation.go(Ask(), seconds=1.5, rounds=asked(example) + 1)
    assert 1.5 <= time.monotonic() - began < 60  # some of it is training
    assert [(r.client, r.reason) for r in federation.rounds[-1].report.refusals] == [
        (BAD, "no-answer")
    ]


def test_a_round_ends_when_enough_clients_have_answered(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, silent(BAD))
    began = time.monotonic()
    federation.go(Ask(), seconds=300, goal=3)
    assert time.monotonic() - began < 150 and len(federation.rounds) == example.rounds


def test_a_run_that_never_reaches_its_minimum_is_given_up_unchanged(tmp_path: Path) -> None:
    example = EXAMPLES["fedper"]()
    federation = Federated(example, tmp_path, silent(*example.everybody))
    with pytest.raises(UserError, match="abandoned 2 times: 0 of at least 2"):
        federation.go(Ask(), seconds=1, minimum=2, attempts=2)
    assert [closed.progress.state.round for closed in federation.rounds] == [0, 0]


def lying_about(lies: dict[int, dict[str, object]]) -> Meddle:
    """Nodes that say something else of themselves."""

    def meddle(node: int, answer: Message) -> Message:
        introduction = json.loads(answer.content["hello"]["json"])
        introduction["members"][0] |= lies.get(node - 100, {})
        answer.content["hello"] = ConfigRecord({"json": json.dumps(introduction)})
        return answer

    return meddle


def heard(federation: Federated, **options: object) -> Registry:
    registry = Registry(federation.grid, **options)
    for _ in range(2):
        registry.look()
    return registry


def test_nodes_that_say_nothing_sensible_are_not_enrolled(tmp_path: Path) -> None:
    # 0 was there before 1 spoke
    lies = {0: {"client": 1}, 2: {"size": -4}, 3: {"size": 10**9}, 4: {"tags": None}}
    federation = Federated(EXAMPLES["fedper"](), tmp_path, lying_about(lies))
    registry = heard(federation)
    assert set(registry.members) == set(registry.nodes) == {1, 5} and len(registry.refused) == 4
    assert registry.refused[101] == "duplicate: client 1 is there already"


def test_a_node_speaks_for_the_clients_of_its_own_key_only(tmp_path: Path) -> None:
    federation = Federated(
        EXAMPLES["fedper"](), tmp_path, lying_about({3: {"client": 4}, 4: {"client": 3}})
    )
    keys = {f"key {100 + c}".encode(): [c] for c in range(5)}
    registry = heard(federation, enrolled=lambda: Enrolment(keys))
    assert set(registry.members) == {0, 1, 2}
    assert registry.refused[103] == "wrong-key: its key is not that of client 4"
    assert registry.refused[105].startswith(
        "not-enrolled: the key of client 5 is not in server.toml"
    )


def test_nodes_come_and_go(tmp_path: Path) -> None:
    federation = Federated(EXAMPLES["fedper"](), tmp_path)
    gone = federation.grid.contexts.pop(102)
    registry = heard(federation)
    assert set(registry.nodes) == {0, 1, 3, 4, 5}
    federation.grid.contexts[102] = gone
    del federation.grid.contexts[103]
    registry._looked = float("-inf")  # as if a second had passed
    registry.look()
    assert set(registry.nodes) == {0, 1, 2, 4, 5}


def test_a_node_holds_several_clients_and_is_sent_one_message(tmp_path: Path) -> None:
    example = EXAMPLES["fedmn"]()
    federation = Federated(example, tmp_path)
    groups = {c: m.group for c, m in federation.server.members.items()}
    held = {100: [0, 2, 4], 101: [1, 3, 5]}
    sides_of = lambda context: {c: (federation.sides[c], groups[c]) for c in held[context.node_id]}
    federation.grid = LocalGrid(client_app(sides_of), [0, 1])
    progress = federation.go(Ask(score="test"))
    simulated = run(example.experiment(), Sequential(), example.cohorts(), score="test")
    assert differences(leaves(federation.sides, progress), state_leaves(simulated.last), 1e-6) == []
    train = [
        node
        for node, message in federation.grid.messages
        if message.metadata.message_type == "train"
    ]
    nodes = sum(len({c % 2 for c in clients}) for clients in example.cohorts())
    assert len(train) == 2 * nodes


def test_waiting_for_clients_that_never_come_ends(tmp_path: Path) -> None:
    federation = Federated(EXAMPLES["fedper"](), tmp_path)
    federation.grid.contexts.popitem()
    with pytest.raises(UserError, match="5 of 6 clients connected"):
        federation.go(Ask(), patience=0.2)
