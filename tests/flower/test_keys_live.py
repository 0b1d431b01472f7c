"""Keys that come and go while a real server runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

import httpx
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedblocks.core.errors import UserError
from fedblocks.flower.client.causes import cause_of
from fedblocks.flower.client.fleet import Fleet
from fedblocks.flower.client.new_key import need_enrolled
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.key_watch import KeyWatch
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.status import status_of
from fedblocks.flower.keys import client_keys, key_table, rotation
from fedblocks.flower.keys import public_keys as keys

from .key_folders import Federation

pytestmark = pytest.mark.timeout(300)


@contextmanager
def speaking(federation: Federation, folder: Path, at: str = "") -> Iterator[Any]:
    """A client of Flower's protocol with the key of a folder."""
    key = keys.read_private(folder / "client.key")
    trusted = (folder / "ca.crt").read_bytes()
    checks = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    with FleetHttpClient.from_server_address(
        at or federation.at, False, trusted, interceptors=checks
    ) as client:
        yield client


def node_of(federation: Federation, folder: Path) -> int | None:
    """The number under which Flower lets a client in, if it does."""
    public = client_keys.public_key(folder / f"{folder.name}.pub")
    with speaking(federation, folder) as client:
        try:
            return int(
                client.ActivateNode(
                    ActivateNodeRequest(public_key=public, heartbeat_interval=30.0)
                ).node_id
            )
        except httpx.HTTPStatusError:
            return None


def is_heard(federation: Federation, folder: Path, node: int, at: str = "") -> bool:
    """Whether a client that was let in may still speak, at the gateway or elsewhere."""
    with speaking(federation, folder, at) as client:
        beat = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=30.0)
        try:
            return bool(client.SendNodeHeartbeat(beat).success)
        except httpx.HTTPStatusError:
            return False


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """A server that runs, without the key of its authority and without a client."""
    started = Federation(tmp_path, f"127.0.0.1:{launch.free_port()}", launch.free_port())
    shutil.rmtree(started.secret.parent)
    with ProcessGroup(
        tmp_path / "logs",
        {**launch.environment(started.server), launch.SERVER: str(started.server)},
    ) as processes:
        running.start_server(processes, started.server, print)
        started.processes = processes  # type: ignore[attr-defined]
        yield started


def test_keys_come_and_go_while_the_server_runs(federation: Federation) -> None:
    processes: ProcessGroup = federation.processes  # type: ignore[attr-defined]
    said: list[str] = []
    server = KeyWatch(federation.server, said.append)
    one, two = federation.joined("one", 0), federation.joined("two", 1)
    assert node_of(federation, one) is None
    for number, folder in enumerate((one, two)):
        key_table.enrol(federation.server, folder / f"{folder.name}.pub", [number])
    server.follow(processes)
    node, other = node_of(federation, one), node_of(federation, two)
    assert node and other and said == ["enrolling one, two"]
    assert is_heard(federation, one, node) and not is_heard(federation, one, other)
    shown = {(row["name"], row["status"], row["id"]) for row in status_of(federation.server)[3:]}
    assert shown == {("one", "online", str(node)), ("two", "online", str(other))}

    folders = [one, Path(shutil.copytree(one, one.with_name("copy")))]
    fleets = [Fleet(ClientHost.read(folder), folder) for folder in folders]
    with pytest.raises(httpx.HTTPStatusError) as second:  # Flower lets one in at a time
        fleets[1].enter(None)
    assert "a client with this key is connected" in cause_of(second.value, federation.at).message
    assert fleets[0].beat(node) and fleets[1].beat(node)  # but for one that has its number
    server.follow(processes)
    assert "warning: the key one is used by 2 clients at once (127.0.0.1)" in said.pop()
    (warning,) = [row for row in status_of(federation.server) if row["what"] == "warning"]
    assert warning["name"] == "one" and "is used by 2 clients" in str(warning["status"])

    key_table.revoke(federation.server, "two")
    inside = f"127.0.0.1:{federation.host.inner_port}"
    assert not is_heard(federation, two, other)  # the gateway reads who is enrolled
    assert is_heard(federation, two, other, inside)  # without it, and before Flower is told
    server.follow(processes)
    assert not is_heard(federation, two, other, inside)
    assert is_heard(federation, one, node) and not is_heard(federation, two, other)
    assert node_of(federation, two) is None

    rotation.begin(one)
    with pytest.raises(UserError, match="one keeps its old key: the server does not let the new"):
        need_enrolled(one)
    key_table.rotate(federation.server, one / "one.json")
    server.follow(processes)
    assert not is_heard(federation, one, node)  # the old key
    need_enrolled(one)
    rotation.finish(one)
    new = node_of(federation, one)
    assert new and new != node and is_heard(federation, one, new)

    with pytest.MonkeyPatch.context() as unasked:
        unasked.setattr(
            running, "enrol", lambda *_: pytest.fail("nothing changed, and Flower was asked")
        )
        server.follow(processes)
    (federation.server / "server.toml").write_text("nonsense")
    server.follow(processes)
    assert "changes of keys were not taken up" in said[-1]
    assert not is_heard(federation, one, new)  # a list of keys that cannot be read lets nobody in


def test_a_name_that_is_taken_out_and_put_back_is_let_in_again(federation: Federation) -> None:
    """Also when the server starts anew; one that Flower has cut off is named, and the others
    are served.
    """
    processes: ProcessGroup = federation.processes  # type: ignore[attr-defined]
    said: list[str] = []
    server = KeyWatch(federation.server, said.append)
    one, two = federation.enrolled("one", 0), federation.enrolled("two", 1)
    server.follow(processes)
    node = node_of(federation, one)
    assert node
    before = federation.host
    others = {name: held for name, held in before.clients.items() if name != "one"}
    before.model_copy(update={"clients": others}).write(federation.server)
    server.follow(processes)
    assert not is_heard(federation, one, node) and node_of(federation, two)
    assert [row["name"] for row in status_of(federation.server)[3:]] == ["two"]
    before.write(federation.server)
    server.follow(processes)
    assert is_heard(federation, one, node) and said == ["enrolling one, two"]
    # a client that was killed and started again is let in at once, under its number
    assert Fleet(ClientHost.read(one), one).enter(node) == node

    key_table.revoke(federation.server, "one")
    server.follow(processes)
    before.write(federation.server)  # from a copy, without the key and then with it
    running.enrol(federation.host, federation.server, said.append)
    assert "warning: one is not let in: " in said[-1] and "one.pub is missing" in said[-1]
    shutil.copy(one / "one.pub", federation.server / "clients")
    broken = federation.server / "clients" / "revoked" / "broken.pub"
    broken.write_text("no key")
    running.enrol(federation.host, federation.server, said.append)
    broken.unlink()
    assert "warning: one is not let in: its key was cut off" in said[-1]
    shown = {row["name"]: row.get("id") for row in status_of(federation.server)}
    assert node_of(federation, one) is None
    assert is_heard(federation, two, int(str(shown["two"])))

    rotation.begin(one)  # as the warning says
    key_table.rotate(federation.server, one / "one.json")
    running.enrol(federation.host, federation.server, said.append)
    rotation.finish(one)
    assert said[-1] == "enrolling one" and node_of(federation, one)
