"""What a server writes comes into a client's log as plain text on one line."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.flower.client.node import Lines, Node
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.wire.messages import Malformed
from fedblocks.testing import EXAMPLES

from .federations import everybody

FORGED = "0\n2030-01-01 00:00:00 all is well\x1b[2J\u2028\r"
DATA = {"name": "digits", "clients": 2}


def only_text(text: str) -> bool:
    return "all is well" in text and text.isprintable()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    set_up(tmp_path / "f", "127.0.0.1", {"one": [0], "two": [1]}, insecure=True, data=DATA)
    return Node(tmp_path / "f" / "one")


def test_the_reason_of_a_refusal_is_logged_on_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, sides = everybody(EXAMPLES["fedper"]().experiment(), tmp_path)
    message = OpenRound(server, server.start(), [0]).downloads[0]
    header = json.dumps({**json.loads(message.header), "refused": FORGED})
    sides[0].answer(replace(message, header=header))
    assert [only_text(record.getMessage()) for record in caplog.records] == [True]


@pytest.mark.parametrize("field", ["version", "population"])
def test_a_specification_is_quoted_on_one_line(
    field: str, node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The version is quoted when it is another one, the population when it is no number."""
    config = Config.of(
        {"rounds": 1, "data": DATA, "net": {"name": "mlp"}, "method": {"name": "fedavg"}}
    )
    spec = job_for(
        new_run(config, tmp_path / "run", []), "f", kind="train", seconds=1.0, patience=1.0
    ).spec
    with pytest.raises(Malformed):
        node._sides(json.dumps({**spec.model_dump(), field: FORGED}))
    assert [record.getMessage().isprintable() for record in caplog.records] == [True]


def test_the_state_of_a_connection_is_one_line(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node._tell(Standing("trying", f"the server answers {FORGED}"))
    standing = Standing.read(node.folder)
    assert standing is not None and only_text(standing.text)
    assert [only_text(record.getMessage()) for record in caplog.records] == [True]


def test_lines_of_a_traceback_cannot_pass_for_records() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError:
        record = logging.LogRecord(
            "a", logging.ERROR, "", 0, "failed: %s", (FORGED,), sys.exc_info()
        )
    first, *others = Lines("%(asctime)s %(message)s").format(record).split("\n")
    assert first.endswith("failed: 0") and others
    assert all(line.startswith("    ") and line.isprintable() for line in others)
