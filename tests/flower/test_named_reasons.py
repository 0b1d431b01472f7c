"""A refusal names what is wrong: in the header that was meant, in a few words, and as the client
was told when it came.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.flower.client.app import Sides, client_app
from fedblocks.flower.local import sides_of
from fedblocks.flower.server.enrolment import Enrolment
from fedblocks.flower.server.registry import Registry
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import ServerSide
from fedblocks.flower.wire.messages import Malformed, Wire, header_of
from fedblocks.testing import EXAMPLES

from .federations import RUN
from .local_grid import LocalGrid

ENVELOPE = {"run": "run-1", "round": 0, "client": 0, "nonce": "00", "plan": "00"}
OLD = 1  # the client with another version


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        ({"kind": "upload", "decided": 3}, "upload.decided: Input should be a valid array"),
        ({"kind": "request", "train": {}}, "request.evaluate: Field required"),
        ({"kind": "apology", "reason": 1, "detail": ""}, "apology.reason: Input should be"),
        ({"kind": "download", "kept": 0}, "download.copies: Field required"),
        ({"kind": "upload", "round": 10**4000}, "upload.round: Input should be"),
        ({"kind": "upload", "client": -(10**4000)}, "upload.client: Input should be"),
        ({"kind": "gift"}, "header: Input tag 'gift'"),
        ({}, "header: Unable to extract tag"),
    ],
)
def test_what_is_wrong_with_a_header_is_said_of_its_own_kind_and_shortly(
    wrong: dict[str, Any], detail: str
) -> None:
    with pytest.raises(Malformed) as caught:
        header_of(Wire(json.dumps({**ENVELOPE, **wrong}), {}))
    assert caught.value.detail.startswith(detail) and len(caught.value.detail) < 200


def test_a_client_refused_when_it_came_is_on_record_with_that_reason(tmp_path: Path) -> None:
    example = EXAMPLES["fedavg"]()
    everybody = list(example.everybody)
    server, sides = sides_of(example.experiment(), everybody, RUN, tmp_path)

    def sides_at(context: Any) -> Sides:
        if (client := context.node_config["client"]) == OLD:
            raise Malformed("version-mismatch", "the server has fedblocks 2, this client 1")
        return {client: (sides[client], "all")}

    keys = {f"key {100 + client}".encode(): [client] for client in everybody}
    grid = LocalGrid(client_app(sides_at), everybody[:-1])
    registry = Registry(grid, lambda: Enrolment(keys))
    for _ in range(2):
        registry.look()
    side = ServerSide(
        methods=server.methods,
        members=registry.members,
        population=server.population,
        seed=server.seed,
        run=RUN,
        turned_away=registry.turned_away,
    )
    refusals = {r.client: r for r in OpenRound(side, side.start(), everybody).report.refusals}
    assert refusals.keys() == {OLD, everybody[-1]}
    assert refusals[OLD].reason == "version-mismatch"
    assert refusals[OLD].detail == "the server has fedblocks 2, this client 1"
    assert refusals[everybody[-1]].reason == "unreachable"  # it never came
    del grid.contexts[100 + OLD]
    registry._looked = float("-inf")
    registry.look()
    assert registry.turned_away(OLD) == ""  # it has left, and may come back as another
