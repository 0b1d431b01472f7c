"""Envelopes of answers and requests for the SuperLink, field by field, at their very limits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

from fedblocks.flower.gateway import envelopes, superlink

NAME = "a" * 64
QUESTION = {"run_id": 1, "src_node_id": 2, "dst_node_id": 3, "group_id": "g",
            "message_type": "train", "created_at": 1000.0, "ttl": 60.0}  # fmt: skip


def request(**changes: Any) -> PushMessagesRequest:
    """An answer as it ought to be, but for some changes."""
    own = {"reason": "why", "seconds": [1.0], "ttl": 50.0, "created_at": 1010.0, "tree": NAME,
           "name": NAME, "children": (), "messages": 1, "trees": 1, **changes}  # fmt: skip
    meta = Metadata(
        ttl=own["ttl"], created_at=own["created_at"], message_id=own["name"], src_node_id=3,
        dst_node_id=2, run_id=1, group_id="g", message_type="train", reply_to_message_id=NAME,
    )  # fmt: skip
    message = Message(metadata=meta)
    if own["reason"] is not None:
        message.error.reason = own["reason"]
    if "content" in own:
        message.content.SetInParent()
        message.content.ParseFromString(own["content"])
    tree = ObjectTree(object_id=own["tree"], children=own["children"])
    return PushMessagesRequest(
        node=Node(node_id=3), messages_list=[message] * own["messages"],
        message_object_trees=[tree] * own["trees"], clientapp_runtime_list=own["seconds"],
    )  # fmt: skip


def nested(depth: int, name: str = NAME) -> ObjectTree:
    tree = ObjectTree(object_id=name)
    for _ in range(depth - 1):
        tree = ObjectTree(object_id=name, children=[tree])
    return tree


NAN, INF = float("nan"), float("inf")
TIME = "its running time is no number of seconds"
FINITE = "ttl or created_at is not finite"
BOTH = "it has both a content and an error, or none"
NO_LIST = "it is not one message with its list of pieces"


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None), ({"messages": 2}, NO_LIST), ({"trees": 0}, NO_LIST), ({"trees": 2}, NO_LIST),
        ({"seconds": []}, None), ({"seconds": [0.0]}, None), ({"seconds": [1e9]}, None),
        ({"seconds": [1.1e9]}, TIME), ({"seconds": [-0.1]}, TIME), ({"seconds": [NAN]}, TIME),
        ({"seconds": [1.0, 1.0]}, TIME), ({"ttl": INF}, FINITE), ({"created_at": NAN}, FINITE),
        ({"reason": None}, BOTH), ({"content": b""}, BOTH), ({"reason": "x" * 65536}, None),
        ({"content": b"", "reason": None}, None),
        ({"reason": "x" * 65537}, "its content is in the envelope, or its error is too long"),
        ({"tree": "b" * 64}, "its list of pieces is not its own"),
        ({"name": "x", "tree": "x"}, "a piece's name is no hash"),
        ({"children": [ObjectTree(object_id="A" * 64)]}, "a piece's name is no hash"),
        ({"children": [nested(15)]}, None),
        ({"children": [nested(16)]}, "it has more than 50000 pieces, or they are nested 16 deep"),
    ],
)  # fmt: skip
def test_an_answer_has_one_of_these_flaws_or_none(
    changes: dict[str, Any], flaw: str | None
) -> None:
    assert envelopes.find_flaw(request(**changes)) == flaw


@pytest.mark.parametrize(("pieces", "is_well"), [(3, True), (4, False)])
def test_the_pieces_of_an_answer_are_counted(
    pieces: int, is_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes, "PIECES", 3)
    tree = ObjectTree(object_id=NAME, children=[nested(1)] * (pieces - 1))
    assert (envelopes._find_flaw_of_pieces(tree) is None) is is_well
    deep = ObjectTree(object_id="1", children=[nested(2, "2"), nested(1, "3")])
    assert list(envelopes._pieces(deep)) == [("1", 0), ("3", 1), ("2", 1), ("2", 2)]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, None),
        *(({name: 9}, f"{name} is not that of the question")
          for name in ("run_id", "src_node_id", "dst_node_id")),
        *(({name: "x"}, f"{name} is not that of the question")
          for name in ("group_id", "message_type")),
        # ten minutes before the question, or after now, which is 2000
        ({"created_at": 400.0, "ttl": 660.0}, None), ({"created_at": 399.9, "ttl": 660.1}, "clock"),
        ({"created_at": 2600.0, "ttl": -1540.0}, None),
        ({"created_at": 2600.1, "ttl": -1540.1}, "clock"),
        # the question ends at 1060, give or take a second
        ({"ttl": 51.0}, None), ({"ttl": 51.1}, "end"),
        ({"ttl": 49.0}, None), ({"ttl": 48.9}, "end"),
    ],
)  # fmt: skip
def test_an_answer_differs_from_its_question_in_a_field_or_not(
    changes: dict[str, Any], difference: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes, "time", SimpleNamespace(time=lambda: 2000.0))
    meta = {"run_id": 1, "src_node_id": 3, "dst_node_id": 2, "group_id": "g",
            "message_type": "train", "created_at": 1010.0, "ttl": 50.0, **changes}  # fmt: skip
    said = {"clock": "created_at is before the question, or in the future",
            "end": "ttl does not end with that of the question"}  # fmt: skip
    wanted = said.get(difference, difference) if difference else None
    assert envelopes.find_difference(SimpleNamespace(**meta), QUESTION) == wanted


@pytest.mark.parametrize("is_asked", [True, False])
@pytest.mark.parametrize(("flaw", "difference"), [(None, None), ("odd", None), (None, "other")])
def test_an_answer_is_stored_unless_something_is_wrong_with_it(
    is_asked: bool, flaw: str | None, difference: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    question = QUESTION if is_asked else None
    monkeypatch.setattr(envelopes, "find_question", lambda request, state: question)
    monkeypatch.setattr(envelopes, "find_flaw", lambda request: flaw)
    monkeypatch.setattr(envelopes, "find_difference", lambda meta, question: difference)
    monkeypatch.setattr(envelopes, "store_refusal", lambda *what: done.append(what))
    store = envelopes.guard(lambda request, state: done.append("stored") or "its answer")
    answer = store(request(), "state")
    problem = flaw or (difference if is_asked else None)
    if problem is None:
        assert answer == "its answer" and done == ["stored"]
    else:
        assert not answer.objects_to_push and answer != "its answer"
        assert done == ([("state", QUESTION, problem)] if is_asked else [])


def through(app: Any, scope: dict[str, Any], *messages: dict[str, Any]) -> tuple[Any, Any]:
    """What the inner application gets of a request, and what is sent back."""
    got, sent = list[Any](), list[Any]()
    left = iter(messages)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        got.append([await receive() for _ in range(2)] if messages else scope["type"])

    async def receive() -> Any:
        return next(left, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(inner)(scope, receive, send))
    return got, sent


NOT_FOUND = [
    {"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]},
    {"type": "http.response.body", "body": b""},
]


@pytest.mark.parametrize(
    ("kind", "ours", "passes", "answer"),
    [("lifespan", False, True, []), ("http", True, True, []), ("http", False, False, NOT_FOUND),
     ("websocket", False, False, []), ("websocket", True, True, [])],
)  # fmt: skip
def test_only_our_own_user_reaches_the_superlink(
    kind: str, ours: bool, passes: bool, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink, "is_ours", lambda scope: ours)
    got, sent = through(superlink.OwnUser, {"type": kind})
    assert got == ([kind] if passes else []) and sent == answer


@pytest.mark.parametrize("user", [1000, 1001, None])
@pytest.mark.parametrize("missing", [None, "client", "server"])
def test_ours_is_what_the_kernel_says(
    user: int | None, missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(superlink, "owner_of", lambda *ends: asked.append(ends) or user)
    monkeypatch.setattr(superlink.os, "getuid", lambda: 1000)
    scope = {"client": ("1", 1), "server": ("2", 2)}
    scope.pop(missing or "", None)
    assert superlink.is_ours(scope) is (user == 1000 and missing is None)  # type: ignore[arg-type]
    assert asked == ([] if missing else [(("1", 1), ("2", 2))])


@pytest.mark.parametrize(
    ("changes", "passes"),
    [({}, True), ({"src_node_id": 4}, False), ({"reply_to_message_id": ""}, False)],
)
@pytest.mark.parametrize("cut", [None, 5])
def test_clients_send_answers_alone_and_a_request_is_read_whole(
    changes: dict[str, Any], passes: bool, cut: int | None
) -> None:
    asked = request()
    for name, value in changes.items():
        setattr(asked.messages_list[0].metadata, name, value)
    body = asked.SerializeToString()
    pieces = [{"type": "http.request", "body": body[:cut], "more_body": cut is not None}]
    pieces += [{"type": "http.request", "body": body[cut:]}] if cut else []
    scope = {"type": "http", "path": "/v1/fleet/push-messages"}
    got, sent = through(superlink.AnswersOnly, scope, *pieces)
    whole = {"type": "http.request", "body": body, "more_body": False}
    assert got == ([[whole, {"type": "http.disconnect"}]] if passes else [])
    assert sent == ([] if passes else NOT_FOUND)


def test_what_is_no_request_of_flower_or_breaks_off_is_refused_and_all_else_passes() -> None:
    scope = {"type": "http", "path": "/v1/fleet/push-messages"}
    for piece in ({"type": "http.request", "body": b"\xff"}, {"type": "http.disconnect"}):
        assert through(superlink.AnswersOnly, scope, piece) == ([], NOT_FOUND)
    for other in ({"type": "http", "path": "/v1/fleet/push-object"}, {"type": "lifespan"},
                  {"type": "http"}):  # fmt: skip
        assert through(superlink.AnswersOnly, other) == ([other["type"]], [])


def test_writers_of_the_database_wait_a_minute_and_runs_that_are_none_are_named() -> None:
    said: list[str] = []
    superlink.wait_longer(SimpleNamespace(execute=said.append), "more", "words")
    assert said == ["PRAGMA busy_timeout = 60000"]
    check = superlink.refuse_unknown(lambda *what: f"checked {what[:2]}")
    known = SimpleNamespace(get_run_status=lambda runs: {5} & runs)
    assert check(5, ["a"], known) == "checked (5, ['a'])"
    assert check(6, ["a"], known) == "no such run"
