"""Attacks on a real federation of real processes, with the defences and without them."""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.flower.client.host import start_client
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.keys.certificates import make_authority
from fedblocks.flower.keys.client_keys import make_client
from fedblocks.runs.run import run

from .deployments import (
    METHODS,
    TABLE,
    TRAINING,
    Deployed,
    deployment,
    living,
    plot,
    rows,
    same_end,
    stands,
)

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployment(tmp_path_factory.mktemp("deployment") / "base") as federation:
        yield federation


@pytest.fixture
def visitors(tmp_path: Path) -> Iterator[ProcessGroup]:
    """Processes of a client that does not belong to the federation."""
    with ProcessGroup(tmp_path / "logs", {}) as processes:
        yield processes
    assert processes.living() == [] and living(tmp_path) == []


# in each round another; the full disk comes first, for the client's log could not be written to
# either
HOSTILE = {
    "disk": "client-error",
    "nan": "not-finite",
    "extra": "names",
    "missing": "names",
    "shape": "shape",
    "weight": "bad-weight",
    "large": "too-large",
}


def test_a_hostile_client_is_refused_with_reasons_that_both_sides_log(
    deployed: Deployed, tmp_path: Path
) -> None:
    plot(deployed, *HOSTILE)
    changes = {"rounds": len(HOSTILE) + 1}
    path = deployed.submit("fedper", tmp_path / "run", changes, minimum=0.5)
    result = deployed.finish(path)
    plot(deployed)
    assert result.status == "finished" and result.rounds == len(HOSTILE) + 1
    refusals = rows(path, "SELECT round, client, reason FROM refusals ORDER BY round")
    assert [(row["round"], row["client"]) for row in refusals] == [
        (n + 1, 1) for n in range(len(HOSTILE))
    ]
    assert [row["reason"] for row in refusals] == list(HOSTILE.values())
    log = deployed.processes.log("two").read_text()
    assert [reason for reason in HOSTILE.values() if f"was not used: {reason}" not in log] == []
    assert all(
        value.isfinite().all()
        for block in result.state().server.values()
        for value in block.values()
    )


FEDAVG = {"method": {"name": "fedavg", **TRAINING}}


@pytest.mark.parametrize("bound", [None, 10**7], ids=["with the bound", "without the bound"])
def test_a_client_that_claims_ten_million_examples(
    bound: int | None, deployed: Deployed, tmp_path: Path
) -> None:
    """It sends ones: they become the model, unless claims are bounded by those of the others."""
    plot(deployed, "claim")
    choices = {"minimum": 0.5, "patience": 5.0, "largest_examples": bound}
    path = deployed.submit("fedper", tmp_path / "run", {"rounds": 1, **FEDAVG}, **choices)
    (block,) = deployed.finish(path).state().server.values()
    plot(deployed)
    model = torch.cat([tensor.flatten() for tensor in block.values()])
    is_taken_over = bool(torch.allclose(model, torch.ones_like(model), atol=1e-3))
    refusals = rows(path, "SELECT 1 FROM notes WHERE text LIKE '%too-large-claim: client 1%'")
    assert (is_taken_over, refusals != []) == ((False, True) if bound is None else (True, False))


@pytest.mark.parametrize("defended", [True, False])
def test_a_client_that_replays_an_answer_of_an_earlier_round(
    defended: bool, deployed: Deployed, tmp_path: Path
) -> None:
    """It is asked again and its update counts; without the second question the round waits for
    its deadline.
    """
    plot(deployed, "remember", "replay")
    deadline = 90.0 if defended else 10.0
    switch = deployed.server / "never-ask-again"
    if not defended:
        switch.touch()
    path = deployed.submit("fedper", tmp_path / "run", minimum=0.5, seconds=deadline)
    real = deployed.finish(path)
    plot(deployed)
    switch.unlink(missing_ok=True)
    ignored = rows(path, "SELECT 1 FROM notes WHERE text LIKE 'ignored: client 1, stale%'")
    refusals = [row["reason"] for row in rows(path, "SELECT reason FROM refusals")]
    seconds = rows(path, "SELECT seconds FROM rounds WHERE round = 2")[0]["seconds"]
    assert len(ignored) == 1
    assert (refusals, seconds >= deadline) == (([], False) if defended else (["no-answer"], True))
    if defended:
        same_end(real, run(Config.of({**TABLE, **METHODS["fedper"]}), tmp_path / "simulated"))


def test_a_client_of_another_version_is_refused(deployed: Deployed, tmp_path: Path) -> None:
    plot(deployed, "version")
    path = deployed.submit("fedper", tmp_path / "run", {"rounds": 1}, minimum=0.5, patience=8.0)
    deployed.finish(path)
    plot(deployed)
    notes = [row["text"] for row in rows(path, "SELECT text FROM notes")]
    assert any("a node was refused: version-mismatch" in note for note in notes), notes
    assert (
        "this client cannot take part: version-mismatch"
        in deployed.processes.log("two").read_text()
    )
    reasons = [row["reason"] for row in rows(path, "SELECT reason FROM refusals")]
    assert reasons == ["version-mismatch"]


def test_an_unknown_key_is_refused(
    deployed: Deployed, visitors: ProcessGroup, tmp_path: Path
) -> None:
    make_client(visitor(deployed, tmp_path) / "client.key", tmp_path / "visitor.pub")
    assert "does not know the key of this client" in refused(visitors, tmp_path / "visitor").text


def test_a_server_with_another_authority_is_not_believed(
    deployed: Deployed, visitors: ProcessGroup, tmp_path: Path
) -> None:
    make_authority(visitor(deployed, tmp_path))
    assert (
        "not signed by the authority that this client knows"
        in refused(visitors, tmp_path / "visitor").text
    )


def refused(visitors: ProcessGroup, folder: Path) -> Standing:
    """What a client tells that is not let in; it goes on trying."""
    start_client(visitors, folder)
    launch.until(lambda: stands(folder, "trying"), 120, visitors.check, "the visitor's refusal")
    standing = Standing.read(folder)
    assert standing is not None and standing.fix
    return standing


def test_nobody_is_answered_without_tls(deployed: Deployed) -> None:
    address = f"127.0.0.1:{deployed.host.inner_port}/health"
    assert launch.healthy(deployed.host, deployed.server)
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{address}", timeout=30)


def visitor(deployed: Deployed, folder: Path) -> Path:
    """The folder of client two, in which a test puts something wrong."""
    return shutil.copytree(
        deployed.base / "two",
        folder / "visitor",
        ignore=shutil.ignore_patterns("state", "flower", "attack", "standing.json"),
    )
