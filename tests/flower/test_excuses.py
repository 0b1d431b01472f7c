"""What a client says of its failures names nothing of its machine; its own log does."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, DataError, NetError, UserError
from fedblocks.flower.client import node
from fedblocks.flower.client.excuses import excuse_for
from fedblocks.flower.client.node import Node
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.local import answers_of, exchange
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.wire.records import HELLO, with_spec
from fedblocks.testing import EXAMPLES

from .federations import everybody, played

DATA = {"name": "digits", "clients": 2}
SECRET = "st-marys-ward-7"


def test_an_excuse_tells_the_kind_of_a_failure() -> None:
    full = UserError(f"cannot write /{SECRET}")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device", f"/{SECRET}")
    assert excuse_for(full) == "its disk is full"
    assert "cannot be used" in excuse_for(DataError(f"/{SECRET}: row 3"))
    assert "cannot be read" in excuse_for(CheckpointError(f"/{SECRET}"))
    assert excuse_for(PermissionError(SECRET)) == "it failed (PermissionError); its log says why"
    # the server's own choice
    assert excuse_for(NetError("the net has no layer x")) == "the net has no layer x"


@pytest.mark.parametrize("trouble", ["the disk cannot be written", "what was kept is gone"])
def test_a_client_whose_disk_fails_does_not_say_where_its_files_lie(
    trouble: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, sides = everybody(EXAMPLES["fedper"]().experiment(), tmp_path / SECRET)
    progress, _ = played(server, sides, [[0]])
    shutil.rmtree(sides[0].store.root / "personal")
    if trouble == "the disk cannot be written":
        (sides[0].store.root / "personal").write_text("in the way")
        progress = server.start()
    asked = OpenRound(server, progress, [0])
    exchange(asked, answers_of(sides))
    (refusal,) = asked.report.refusals
    assert SECRET not in refusal.detail and "its log says why" in refusal.detail
    assert SECRET in caplog.text


@pytest.mark.parametrize("trouble", ["no such data", "no such file", "no settings", "an error"])
def test_a_client_that_cannot_begin_does_not_say_where_its_files_lie(
    trouble: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / SECRET / "one"
    set_up(tmp_path / SECRET, "127.0.0.1", {"one": [0], "two": [1]}, insecure=True, data=DATA)
    config = Config.of(
        {"rounds": 1, "data": DATA, "net": {"name": "mlp"}, "method": {"name": "fedavg"}}
    )
    job = job_for(
        new_run(config, tmp_path / "run", []), SECRET, kind="train", seconds=1.0, patience=1.0
    )
    client, path = Node(folder), folder / "client.toml"
    monkeypatch.setattr(client.fleet, "fetch", lambda *_: None)
    match trouble:
        case "no such data":
            path.write_text(path.read_text().replace('name = "digits"', 'name = "no-such-loader"'))
        case "no such file":
            missing = f'name = "npz"\noptions = {{path = "{folder}/missing.npz"}}'
            path.write_text(path.read_text().replace('name = "digits"', missing))
        case "no settings":
            monkeypatch.setattr(client, "reply", lambda _: (folder / "gone").read_text())
        case _:
            monkeypatch.setattr(node.prepare, "sides_at", lambda *_: (folder / "gone").read_text())
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    question = Message(
        with_spec(RecordDict({"hello": ConfigRecord({})}), job.spec.model_dump_json()), 1, HELLO
    )
    answer = client._fetch_and_reply(1, question, None)  # type: ignore[arg-type]
    sent = answer.error.reason if answer.has_error() else str(answer.content["hello"]["json"])
    assert SECRET not in sent and "log says why" in sent
    assert SECRET in caplog.text
