"""Many clients that send large updates at the same time through the gateway and a real
SuperLink, with real keys.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, push_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.servicer.runtime import runtime_handlers
from flwr.supernode.fleet_http_connection import http_request_response

from fedblocks.flower.client.fleet import Fleet, Meter
from fedblocks.flower.gateway.envelopes import UNUSABLE
from fedblocks.flower.gateway.limits import MIB
from fedblocks.flower.gateway.superlink import WAIT
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.folders import ClientHost, ServerHost
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up

FLOWERS = 5000  # ms that Flower's writers wait


class Federation:
    """A server without an app: the run that it works on, and its questions to clients,
    are put into its database.
    """

    def __init__(self, base: Path, clients: int, change: str = "") -> None:
        self.base, self.server, self.change = base, base / "server", change
        self.names = [f"client-{number}" for number in range(clients)]
        ports = launch.free_port(), launch.free_port()
        set_up(
            base, "127.0.0.1", {name: [number] for number, name in enumerate(self.names)}, *ports
        )
        self.host = ServerHost.read(self.server)

    @contextmanager
    def open(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessGroup]:
        self.monkeypatch = monkeypatch
        if self.change:  # of the module that starts the SuperLink
            code = (
                f"from fedblocks.flower.gateway import superlink; {self.change}; superlink.main()"
            )
            command = [sys.executable, "-c", code, *launch.superlink(self.host, self.server)[3:]]
            monkeypatch.setattr(launch, "superlink", lambda host, folder: command)
        with ProcessGroup(self.base / "logs", launch.environment(self.server)) as processes:
            running.start_server(processes, self.server, print)
            starter = processes.running.pop("superexec")  # it would take the run that `ask` begins
            starter.terminate()
            starter.wait(30)
            yield processes

    def ask(self, nodes: list[int]) -> int:
        """Begin a run, and ask every node something."""
        factories = get_objectstore_linkstate_factories(
            str(self.server / "flower.db"), get_federation_manager()
        )
        state = factories[1].state()
        run = state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP)
        (task,) = state.get_tasks(run_ids=[run])
        assert state.claim_task(task.task_id) and state.activate_task(task.task_id)
        for name, value in {
            "_run_id": run,
            "_task_id": task.task_id,
            "_node_id": SUPERLINK_NODE_ID,
        }.items():
            self.monkeypatch.setattr(TaskIdentity, name, value)  # as in an app's process
        for node in nodes:
            question = Message(RecordDict(), node, "train", ttl=3600)
            question.metadata.__dict__["_message_id"] = question.object_id
            session = state.start_session(run)
            _, missing = state.store_message_and_object_tree(
                question, get_object_tree(question), session
            )
            parts = get_all_nested_objects(question)
            assert missing and all(
                state.store_object(run, session, name, parts[name].deflate()) for name in missing
            )
        return int(run)

    def codes(self, run: int, asked: dict[str, int]) -> dict[int, int]:
        """The answers that the app would get, by client, each by its error's code."""
        factories = get_objectstore_linkstate_factories(
            str(self.server / "flower.db"), get_federation_manager()
        )
        request = PullAppMessagesRequest(message_ids=list(asked))
        task: Any = SimpleNamespace(run_id=run)
        try:
            come = runtime_handlers.pull_messages(request, factories[1].state(), task)
        except TypeError:  # what the SuperLink answers with 500
            return {}
        return {
            asked[message.metadata.reply_to_message_id]: message.error.code
            for message in come.messages_list
        }

    def connect(self, name: str) -> AbstractContextManager[tuple[Any, ...]]:
        """Flower's own client with a client's key."""
        key = serialization.load_ssh_private_key(
            (self.base / name / "client.key").read_bytes(), None
        )
        address, trust = f"127.0.0.1:{self.host.port}", (self.server / "ca.crt").read_bytes()
        return http_request_response(address, False, trust, (key, key.public_key()))

    def answer(self, name: str, nodes: list[int], asked: threading.Event, size: int) -> bool:
        """A client: connect, wait for the question, send a large update; whether all of
        it was taken.
        """
        with self.connect(name) as calls:
            node, receive, send, *_, push, _ = calls
            nodes.append(node)
            assert asked.wait(20)
            question, _ = receive()
            content = RecordDict(
                {"update": ArrayRecord({"x": Array(np.frombuffer(os.urandom(size), np.uint8))})}
            )
            reply = Message(content, reply_to=question)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            run = question.metadata.run_id
            try:
                push_objects(
                    get_all_nested_objects(reply),
                    lambda name, content: push(run, session, name, content),
                    object_ids_to_push=wanted,
                )
            except (ObjectPushError, httpx.HTTPError):
                return False
            return True

    def all_answer(self, size: int, meanwhile: Callable[[], object] = lambda: None) -> int:
        """How many of the clients' updates arrived whole."""
        nodes: list[int] = []
        asked = threading.Event()
        with ThreadPoolExecutor(len(self.names)) as pool:
            sent = [pool.submit(self.answer, name, nodes, asked, size) for name in self.names]
            launch.until(lambda: len(nodes) == len(self.names), 60, lambda: None, "all clients")
            self.ask(nodes)
            other = threading.Thread(target=meanwhile)
            other.start()
            asked.set()
            other.join()
            # Flower ends a connection that failed without a word
            return sum(one.result() is True for one in sent)


def waiting(milliseconds: int | None) -> str:
    """A SuperLink whose writers wait so long; None: as long as ours."""
    return "" if milliseconds is None else f"superlink.WAIT = {milliseconds}"


def occupied(database: Path, seconds: float, has_failed: Callable[[], bool]) -> None:
    """Somebody writes for long, as on a slow disk: so many seconds, or until both updates failed,
    which takes longer on a busy machine.
    """
    with sqlite3.connect(database, isolation_level=None) as connection:
        connection.execute("BEGIN IMMEDIATE")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not has_failed():
            time.sleep(0.1)
        connection.execute("ROLLBACK")


@pytest.mark.parametrize(("wait", "arrived"), [(None, 2), (500, 0)])
def test_updates_wait_for_a_database_that_is_written_to(
    wait: int | None, arrived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of Flower's 5000 ms shows the same in a tenth of the time."""
    federation = Federation(tmp_path / "f", 2, waiting(wait))
    with federation.open(monkeypatch) as processes:
        database, log = federation.server / "flower.db", processes.log("superlink")
        failed = lambda: log.read_text().count("database is locked") >= 2
        seconds = 2.0 if wait is None else 30.0
        assert federation.all_answer(MIB, lambda: occupied(database, seconds, failed)) == arrived
        assert ("database is locked" in log.read_text()) == (arrived == 0)


UNCHECKED = "superlink.are_answers = lambda body: True"


@pytest.mark.parametrize(("change", "arrived"), [("", False), (UNCHECKED, True)])
def test_a_client_cannot_speak_in_the_servers_name(
    change: str, arrived: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enrolled client tells another one to train; without the check it does."""
    federation = Federation(tmp_path / "f", 2, change)
    with federation.open(monkeypatch), ExitStack() as open_connections:
        (_, _, push, *_), (victim, receive, *_) = (
            open_connections.enter_context(federation.connect(name)) for name in federation.names
        )
        run = federation.ask([])
        forged = Message(RecordDict(), victim, "train", ttl=600)
        forged.metadata.__dict__["_message_id"] = forged.object_id
        assert (forged.metadata.src_node_id, forged.metadata.run_id) == (SUPERLINK_NODE_ID, run)
        try:
            push(forged, get_object_tree(forged), 0.0)
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 404 and not arrived
        assert (receive() is not None) == arrived


UNREFUSED = "superlink.refuse_unknown = lambda check: check"


@pytest.mark.parametrize(("change", "status"), [("", 403), (UNREFUSED, 500)])
def test_a_run_that_does_not_exist_is_refused_without_a_failure(
    change: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enrolled client may name any run; its requests must not fill the SuperLink's log."""
    federation = Federation(tmp_path / "f", 1, change)
    folder = federation.base / federation.names[0]
    with federation.open(monkeypatch) as processes:
        fleet = Fleet(ClientHost.read(folder), folder)
        fleet._carrier.objects = Meter(MIB)
        node = Node(node_id=fleet.enter(None))
        requests = (
            partial(fleet._ask.PullObject, PullObjectRequest(node=node, run_id=7)),
            partial(fleet._ask.PushObject, PushObjectRequest(node=node, run_id=7)),
        )
        for send in requests:
            with pytest.raises(httpx.HTTPStatusError) as refused:
                send()
            assert refused.value.response.status_code == status
        log = processes.log("superlink").read_text()
        assert ("KeyError" in log) == (status == 500)


UNGUARDED = "superlink.guard = lambda handler: handler"


@pytest.mark.parametrize(("change", "arrived"), [("", {0: 0, 1: UNUSABLE}), (UNGUARDED, {})])
def test_one_clients_odd_envelope_does_not_hide_the_others_answers(
    change: str, arrived: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enrolled client answers with a lifetime that is no number. The server's app reads all
    answers together: without the check it gets none.
    """
    federation = Federation(tmp_path / "f", 2, change)
    with federation.open(monkeypatch), ExitStack() as open_connections:
        calls = [
            open_connections.enter_context(federation.connect(name)) for name in federation.names
        ]
        run = federation.ask([node for node, *_ in calls])
        asked = {}
        for number, (_, receive, send, *_, push, _) in enumerate(calls):
            question, _ = receive()
            asked[question.metadata.message_id] = number
            reply = Message(RecordDict(), reply_to=question)
            if number == 1:
                reply.metadata.__dict__["_ttl"] = float("nan")
            reply.metadata.__dict__["_message_id"] = reply.object_id
            wanted, session = send(reply, get_object_tree(reply), 0.0)
            for name in wanted:
                push(run, session, name, get_all_nested_objects(reply)[name].deflate())
        assert federation.codes(run, asked) == arrived


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("wait", "rounds"), [(None, 5), (FLOWERS, 1)])
def test_ten_clients_send_20_megabytes_each_at_the_same_time(
    wait: int | None,
    rounds: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, str], None],
) -> None:
    """Over TLS, while somebody else writes for 8 s in each round: none is lost, but for those of
    Flower's own wait.
    """
    federation = Federation(tmp_path / "f", 10, waiting(wait))
    with federation.open(monkeypatch) as processes:
        busy = lambda: occupied(federation.server / "flower.db", 8.0, lambda: False)
        arrived = [federation.all_answer(20 * 10**6, busy) for _ in range(rounds)]
        record_property(
            "figure",
            f"{sum(arrived)} of {10 * rounds} updates of 20 MB in {rounds} rounds,"
            f" waiting {wait or WAIT} ms",
        )
        assert (arrived == [10] * rounds) == (wait is None)
        assert ("database is locked" in processes.log("superlink").read_text()) == (
            wait is not None
        )
