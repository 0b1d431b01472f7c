"""Envelopes of answers that differ from what the server asks for: refused, named, and nobody else's
answer is lost. Flower's own handlers and database work here, in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import token_bytes
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from fedblocks.flower.gateway import envelopes
from fedblocks.flower.server import pulling

HONEST, ODD = 0, 1  # nodes
NAN, INF = float("nan"), float("inf")
DEFENDED = envelopes.guard(fleet_handlers.push_messages)
UNDEFENDED = fleet_handlers.push_messages


class Questions:
    """A SuperLink's database with a run whose app has asked two nodes something."""

    def __init__(self, state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = state
        run = state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
        (task,) = state.get_tasks(run_ids=[run])
        assert state.claim_task(task.task_id) and state.activate_task(task.task_id)
        identity = {"_run_id": run, "_task_id": task.task_id, "_node_id": SUPERLINK_NODE_ID}
        for name, value in identity.items():
            monkeypatch.setattr(TaskIdentity, name, value)  # as in an app's process
        self.run = run
        self.nodes = [state.create_node("", "", token_bytes(8), 30.0) for _ in range(2)]
        for node in self.nodes:
            state.activate_node(node, 30.0)
        self.asked = [self.ask(node) for node in self.nodes]

    def ask(self, node: int) -> Message:
        question = Message(RecordDict(), node, "train", ttl=3600, group_id="3")
        question.metadata.__dict__["_message_id"] = question.object_id
        session = self.state.start_session(self.run)
        tree = get_object_tree(question)
        _, missing = self.state.store_message_and_object_tree(question, tree, session)
        parts = get_all_nested_objects(question)
        for name in missing:
            assert self.state.store_object(self.run, session, name, parts[name].deflate())
        return question

    def answer(self, node: int) -> Any:
        """The request in which Flower's client announces its answer."""
        reply = Message(RecordDict(), reply_to=self.asked[node])
        reply.metadata.__dict__["_message_id"] = reply.object_id
        return PushMessagesRequest(
            node=Node(node_id=self.nodes[node]),
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[1.5],
        )

    def pull(self) -> dict[int, Any]:
        """What the server's app is given: the answers by node."""
        numbers = [question.metadata.message_id for question in self.asked]
        request = PullAppMessagesRequest(message_ids=numbers)
        task: Any = SimpleNamespace(run_id=self.run)
        come = runtime_handlers.pull_messages(request, self.state, task)
        return {
            numbers.index(message.metadata.reply_to_message_id): message
            for message in come.messages_list
        }


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Any:
    database = str(tmp_path_factory.mktemp("superlink") / "flower.db")
    return get_objectstore_linkstate_factories(database, get_federation_manager())[1].state()


@pytest.fixture
def questions(state: Any, monkeypatch: pytest.MonkeyPatch) -> Questions:
    return Questions(state, monkeypatch)


def with_metadata(**changes: Any) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        for name, value in changes.items():
            setattr(request.messages_list[0].metadata, name, value)

    return change


def many_pieces(request: Any) -> None:
    children = [ObjectTree(object_id=f"{n:064x}") for n in range(envelopes.PIECES)]
    request.message_object_trees[0].children.extend(children)


def deep_pieces(request: Any) -> None:
    tree = ObjectTree(object_id="a" * 64)
    for _ in range(envelopes.DEPTH):
        tree = ObjectTree(object_id="b" * 64, children=[tree])
    request.message_object_trees[0].children.append(tree)


def set_names(name: str) -> Callable[[Any], None]:
    def change(request: Any) -> None:
        request.messages_list[0].metadata.message_id = name
        request.message_object_trees[0].object_id = name

    return change


def long_error(request: Any) -> None:
    request.messages_list[0].ClearField("content")
    request.messages_list[0].error.reason = "x" * (envelopes.REASON + 1)


# change -> the word of the refusal
ODD_ENVELOPES: dict[str, tuple[Callable[[Any], None], str]] = {
    "ttl nan": (with_metadata(ttl=NAN), "finite"),
    "ttl infinite": (with_metadata(ttl=INF), "finite"),
    "ttl 1e300": (with_metadata(ttl=1e300), "ttl"),
    "ttl negative": (with_metadata(ttl=-5.0), "ttl"),
    "ttl short": (with_metadata(ttl=10.0), "ttl"),
    "created_at nan": (with_metadata(created_at=NAN), "finite"),
    "created_at far future": (with_metadata(created_at=1e12, ttl=3600.0), "created_at"),
    "created_at past": (with_metadata(created_at=0.0, ttl=time.time() + 3600), "created_at"),
    "run": (with_metadata(run_id=12345), "run_id"),
    "sender": (with_metadata(src_node_id=77), "src_node_id"),
    "receiver": (with_metadata(dst_node_id=77), "dst_node_id"),
    "group": (with_metadata(group_id="x" * 10**6), "group_id"),
    "type": (with_metadata(message_type="query"), "message_type"),
    "name": (set_names("../../x"), "hash"),
    "pieces of another": (with_metadata(message_id="ab" * 32), "not its own"),
    "many pieces": (many_pieces, "pieces"),
    "deep pieces": (deep_pieces, "pieces"),
    "no pieces": (lambda request: request.ClearField("message_object_trees"), "one message"),
    "two messages": (lambda r: r.messages_list.append(r.messages_list[0]), "one message"),
    "running time": (lambda r: r.clientapp_runtime_list.__setitem__(0, NAN), "running time"),
    "long error": (long_error, "too long"),
    "nothing": (lambda r: r.messages_list[0].ClearField("content"), "content"),
    "content": (lambda r: r.messages_list[0].content.items.add(key="a"), "content"),
}


@pytest.mark.parametrize("name", ODD_ENVELOPES)
def test_an_odd_envelope_is_refused_by_name_and_the_others_answers_arrive(
    name: str, questions: Questions
) -> None:
    change, word = ODD_ENVELOPES[name]
    request = questions.answer(ODD)
    change(request)
    DEFENDED(request=questions.answer(HONEST), state=questions.state)
    said = DEFENDED(request=request, state=questions.state)
    come = questions.pull()
    assert not said.objects_to_push
    assert not come[HONEST].HasField("error")
    assert come[ODD].error.code == envelopes.UNUSABLE and word in come[ODD].error.reason


@pytest.mark.parametrize("field", ["ttl", "created_at"])
def test_without_the_check_one_odd_number_hides_all_answers(
    field: str, questions: Questions
) -> None:
    request = questions.answer(ODD)
    with_metadata(**{field: NAN})(request)
    UNDEFENDED(request=questions.answer(HONEST), state=questions.state)
    UNDEFENDED(request=request, state=questions.state)
    with pytest.raises(TypeError, match="NoneType"):
        questions.pull()


def test_honest_answers_are_taken_as_they_are(questions: Questions) -> None:
    for node in (HONEST, ODD):
        said = DEFENDED(request=questions.answer(node), state=questions.state)
        assert len(said.objects_to_push) == 1  # the message; its empty record is there
    assert all(not message.HasField("error") for message in questions.pull().values())


def test_an_odd_envelope_after_an_answer_changes_nothing(questions: Questions) -> None:
    request = questions.answer(ODD)
    DEFENDED(request=request, state=questions.state)
    with_metadata(ttl=NAN)(request)
    DEFENDED(request=request, state=questions.state)
    assert not questions.pull()[ODD].HasField("error")


@pytest.mark.parametrize("asked", ["", "x" * 10**6, "ab" * 32])
def test_an_odd_envelope_that_answers_nothing_is_dropped(asked: str, questions: Questions) -> None:
    request = questions.answer(ODD)
    with_metadata(ttl=NAN, reply_to_message_id=asked)(request)
    DEFENDED(request=request, state=questions.state)
    assert questions.pull() == {}


def test_a_node_cannot_have_another_nodes_answer_refused(questions: Questions) -> None:
    request = questions.answer(HONEST)
    request.node.node_id = questions.nodes[ODD]
    with_metadata(ttl=NAN)(request)
    DEFENDED(request=request, state=questions.state)
    assert questions.pull() == {}


def test_the_refusals_code_is_the_one_that_the_servers_app_reads() -> None:
    assert envelopes.UNUSABLE == pulling.UNUSABLE
