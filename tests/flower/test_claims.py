"""The examples that clients claim are agreed at enrolment or bounded by those of the
others; claims stay for a run.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts.federation import deal_out
from fedblocks.flower.hosts.folders import ServerHost
from fedblocks.flower.hosts.setup import node_name, set_up
from fedblocks.flower.keys.client_keys import public_key
from fedblocks.flower.server.enrolment import CEILING, Enrolment, EnrolmentFiles
from fedblocks.flower.server.registry import Registry
from fedblocks.runs.federations import federation_of
from fedblocks.runs.result import load_run
from fedblocks.testing import EXAMPLES

from .local_grid import LocalGrid, Meddle
from .test_apps import Federated, heard, lying_about
from .test_service import TABLE, Host, stop_after

LIAR, HUGE = 1, 10**7
MANY = range(2, 9)


@pytest.mark.parametrize(
    ("claims", "nodes", "agreed", "largest", "refused"),
    [
        ({0: 100, 1: 10**7}, {}, {}, None, [1]),  # of two, the smaller counts
        ({0: 100, 1: 500}, {}, {}, None, []),
        ({0: 100, 1: 501}, {}, {}, None, [1]),
        ({0: 10**7, 1: 100, 2: 120}, {}, {}, None, [0]),
        # half of them lie: the lower median
        ({0: 100, 1: 120, 2: 10**7, 3: 10**7}, {}, {}, None, [2, 3]),
        ({0: 100, 1: 110, 2: 1}, {}, {}, None, []),  # one small claim does not shut the others out
        ({0: 0, 1: 100, 2: 110}, {}, {}, None, []),  # nor do clients without examples
        # all on one node
        ({0: 100, 1: 110} | dict.fromkeys(MANY, 10**6), dict.fromkeys(MANY, 7), {}, None, [*MANY]),
        ({0: 100, 1: 10**7}, {}, {(1,): 10**7}, None, []),  # agreed on, whatever the others have
        # more than agreed, though less than the bound
        ({0: 100, 1: 301}, {}, {(1,): 300}, None, [1]),
        ({0: 100, 1: 200, 2: 101}, {}, {(1, 2): 300}, None, [1, 2]),  # a key's clients together
        ({0: 10**6, 1: 100}, {}, {(1,): 100}, None, [0]),  # agreed numbers bound the others
        ({0: 100, 1: 900}, {}, {}, 1000, []),
        ({0: 1001, 1: 900}, {}, {}, 1000, [0]),
        ({0: CEILING + 1}, {}, {}, None, [0]),
    ],
)
def test_claims_beyond_what_is_agreed_or_usual_are_refused(
    claims: dict[int, int],
    nodes: dict[int, int],
    agreed: Any,
    largest: int | None,
    refused: list[int],
) -> None:
    placed = {client: 100 + client for client in claims} | nodes
    assert sorted(Enrolment(None, agreed, largest).excesses(claims, placed)) == refused


def noise(array: Array) -> Array:
    return Array(
        np.random.default_rng(7).normal(size=array.numpy().shape).astype(array.numpy().dtype)
    )


def inflating(node: int, answer: Message) -> Message:
    """One client claims ten million examples and sends noise."""
    if node != 100 + LIAR:
        return answer
    if answer.metadata.message_type != "train":
        return lying_about({LIAR: {"size": HUGE, "limit": float(HUGE)}})(node, answer)
    sent = dict(answer.content[str(LIAR)])
    weights = {
        name: Array(np.full_like(a.numpy(), HUGE))
        for name, a in sent.items()
        if name.startswith("weights/")
    }
    answer.content[str(LIAR)] = ArrayRecord(
        {name: weights.get(name) or noise(a) for name, a in sent.items()}
    )
    return answer


def pair(base: Path) -> Host:
    """Two clients and one round of FedAvg."""
    data, method = {**TABLE["data"], "clients": 2}, {"name": "fedavg", "batch_size": 16, "lr": 0.3}
    return Host(base, {"rounds": 1, "data": data, "method": method, "evaluation": {"every": 50}})


def model(host: Host) -> np.ndarray:
    return np.concatenate(
        [value.numpy().ravel() for value in load_run(host.path).state().server["model"].values()]
    )


def test_a_client_that_claims_ten_million_examples_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    host, alone = pair(tmp_path / "attacked"), pair(tmp_path / "alone")
    host.serve(inflating, nodes=range(2), minimum=0.5, patience=0.3)
    alone.serve(nodes=[0], minimum=0.5, patience=0.3)
    assert np.array_equal(model(host), model(alone))
    notes = [row["text"] for row in host.rows("SELECT text FROM notes")]
    assert any(
        note.startswith("a node was refused: too-large-claim: client 1: it claims 10000000")
        for note in notes
    )


def test_without_the_bound_its_noise_is_the_model(tmp_path: Path) -> None:
    host, alone = pair(tmp_path / "attacked"), pair(tmp_path / "alone")
    host.serve(inflating, nodes=range(2), minimum=0.5, patience=0.3, largest_examples=HUGE)
    alone.serve(nodes=[0], minimum=0.5, patience=0.3)
    attacked = model(host)
    sent = load_run(host.path).state().server["model"]
    wanted = np.concatenate([noise(Array(v.numpy()[0])).numpy().ravel() for v in sent.values()])
    assert np.abs(attacked - wanted).max() < 1e-3 < np.abs(attacked - model(alone)).max()


def test_a_run_that_needs_the_refused_client_says_why_it_cannot_begin(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"1 of 2 clients connected.*client 1 missing "
        r"\(too-large-claim",
    ) as error:
        pair(tmp_path).serve(inflating, nodes=range(2), minimum=1.0, patience=0.3)
    assert "agree on its number in server.toml" in error.value.message


def test_an_agreed_number_is_believed_and_no_more(tmp_path: Path) -> None:
    host = pair(tmp_path)
    folder = tmp_path / "f" / "server"
    meddle = lying_about({LIAR: {"size": 40000, "limit": 40000.0}})
    hello: Meddle = lambda n, a: meddle(n, a) if a.metadata.message_type != "train" else a
    for agreed, there in ((39999, {0}), (40000, {0, 1})):
        ServerHost.read(folder).model_copy(update={"examples": {node_name(LIAR): agreed}}).write(
            folder
        )
        # its weights are not what it claims
        with pytest.raises(UserError, match=r"connected|abandoned"):
            host.serve(hello, nodes=range(2), minimum=1.0, patience=0.3, seconds=1.0, attempts=1)
        registry = Registry(host.grid, EnrolmentFiles(folder))
        registry.look()
        assert registry.nodes.keys() == there


def test_labels_are_those_of_the_examples(tmp_path: Path) -> None:
    federation = Federated(EXAMPLES["fedper"](), tmp_path, lying_about({2: {"limit": 10**6}}))
    registry = heard(federation)
    assert (
        2 not in registry.nodes
        and "too-large-claim: client 2 claims 1e+06 labels" in registry.refused[102]
    )
    assert 2 in heard(federation, labels=10**6).nodes  # if examples had so many


def test_claims_are_looked_at_again_as_members_come(tmp_path: Path) -> None:
    federation = Federated(
        EXAMPLES["fedper"](), tmp_path, lying_about({5: {"size": 10**4, "limit": 1.0}})
    )
    late = {node: federation.grid.contexts.pop(node) for node in (100, 101, 102, 103, 104)}
    registry = Registry(federation.grid)
    registry.look()
    assert set(registry.nodes) == {5}  # nobody to compare it with
    federation.grid.contexts.update(late)
    registry.look()
    assert (
        set(registry.nodes) == set(registry.members) == {0, 1, 2, 3, 4}
        and "too-large-claim" in registry.refused[105]
    )


def test_a_claim_stays_as_it_is_for_a_run(tmp_path: Path) -> None:
    lies: dict[int, dict[str, object]] = {}
    federation = Federated(EXAMPLES["fedper"](), tmp_path, lying_about(lies))
    registry = Registry(federation.grid)
    registry.look()
    registry.fix_claims([3])
    context = federation.grid.contexts.pop(103)
    registry.look()
    size = registry.claims[3]
    lies[3] = {"size": size + 1, "limit": 1.0}
    federation.grid.contexts[103] = context
    registry.look()
    assert 3 not in registry.nodes
    assert (
        registry.refused[103]
        == f"changed-claim: client 3 now claims {size + 1} examples, in this run {size}"
    )


def test_a_claim_stays_as_it_is_when_the_server_is_restarted(tmp_path: Path) -> None:
    host = Host(tmp_path, {"rounds": 3})
    with pytest.raises(SystemExit):
        host.serve(stop_after(2))
    grown = lying_about({4: {"size": 400, "limit": 400.0}})
    host.serve(
        lambda n, a: grown(n, a) if a.metadata.message_type != "train" else a,
        minimum=0.5,
        patience=0.3,
    )
    notes = [row["text"] for row in host.rows("SELECT text FROM notes")]
    assert any("changed-claim: client 4 now claims 400" in note for note in notes), notes


def test_a_federation_on_one_machine_agrees_on_the_numbers_that_it_deals_out(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, {"data": {**TABLE["data"], "clients": 5}})
    deal_out(host.path, tmp_path / "g", 2, 1234, insecure=True)
    agreed = ServerHost.read(tmp_path / "g" / "server").examples
    sizes = federation_of(host.config).train.sizes
    assert agreed == {node_name(n): int(sizes[n::2].sum()) for n in range(2)}


def test_a_late_client_is_waited_for_and_joins_at_the_next_round(tmp_path: Path) -> None:
    host = Host(
        tmp_path,
        {"rounds": 3, "data": {**TABLE["data"], "clients": 3}, "evaluation": {"every": 50}},
    )

    def meddle(node: int, answer: Message) -> Message:
        if answer.metadata.message_type == "train" and answer.metadata.group_id == "0":
            host.grid.contexts.setdefault(102, Context(1, 102, {"client": 2}, RecordDict(), {}))
        return answer

    host.serve(meddle, nodes=[0, 1], patience=1.5)
    notes = [row["text"] for row in host.rows("SELECT text FROM notes")]
    assert "waiting for clients: 2 of 3 are there, client 2 missing" in notes
    assert "going on without client 2, not there after 1.5 s; who comes later joins" in notes
    rounds = {
        row["round"] for row in host.rows("SELECT DISTINCT round FROM traffic WHERE client = 2")
    }
    assert rounds == {2, 3} and load_run(host.path).status == "finished"


def test_one_of_two_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"1 of 2 clients connected after 0\.3 s, at least 2 "
        r"are needed, client 1",
    ):
        pair(tmp_path).serve(nodes=[0], patience=0.3)


class Keyed(LocalGrid):
    """A grid whose nodes have the keys of a federation's clients."""

    folder: Path

    def get_nodes(self) -> list[Any]:
        files = {node: self.folder / f"{node_name(node - 100)}.pub" for node in self.contexts}
        return [
            SimpleNamespace(node_id=node, public_key=public_key(file), last_activated_at="")
            for node, file in files.items()
        ]


def test_keys_are_enrolled_and_revoked_during_a_run(tmp_path: Path) -> None:
    federation = Federated(EXAMPLES["fedper"](), tmp_path)
    everybody = {node_name(c): [c] for c in range(6)}
    set_up(tmp_path / "f", "127.0.0.1", everybody)
    server, notes = tmp_path / "f" / "server", list[str]()
    whole = ServerHost.read(server)
    federation.grid.__class__ = Keyed
    Keyed.folder = server / "clients"

    def with_clients(numbers: Any) -> None:
        whole.model_copy(update={"clients": {node_name(c): (c,) for c in numbers}}).write(server)

    with_clients(range(5))
    registry = Registry(federation.grid, EnrolmentFiles(server), tell=notes.append)
    registry.look()
    assert set(registry.nodes) == {*range(5)}
    wanted = "not-enrolled: the key of client 5 is not in server.toml; once it is, it is taken in"
    assert registry.refused[105] == wanted and f"a node was refused: {wanted}" in notes
    with_clients(range(6))
    registry.look()
    assert set(registry.nodes) == {*range(6)} and registry.refused == {}
    with_clients([0, 1, 2, 4, 5])
    registry.look()
    assert set(registry.nodes) == set(registry.members) == {0, 1, 2, 4, 5} and registry.refused[
        103
    ].startswith("not-enrolled")
    (server / "server.toml").write_text("half a fi")  # somebody is writing it
    registry.look()
    assert set(registry.nodes) == {0, 1, 2, 4, 5}
