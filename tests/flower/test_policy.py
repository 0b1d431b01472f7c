"""What the owner of a client lets happen: methods, sizes, and what may leave."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
import tomli_w

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.config.options import options_of
from fedblocks.core.errors import UserError
from fedblocks.core.options import Help
from fedblocks.engines.round import Experiment
from fedblocks.flower.client import prepare
from fedblocks.flower.client.policy import Allow
from fedblocks.flower.client.prepare import sides_at
from fedblocks.flower.client.side import ClientSide, member_of
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.folders import ClientHost
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.local import sides_of
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask
from fedblocks.flower.wire.messages import Malformed, UploadHeader, header_of
from fedblocks.flower.wire.run_spec import RunSpec
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing import small_federation, small_net

from .doors import forget_peak, peak_bytes

DATA = {"name": "digits", "clients": 2}
LAYERS = 4 * (64 * 8 + 8 + 8 * 10 + 10)  # bytes of an MLP 64-8-10


class Machine:
    """A client's folder, and specifications of runs for it."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder = base, base / "f" / "one"
        set_up(base / "f", "127.0.0.1", {"one": [0], "two": [1]}, insecure=True, data=DATA)

    def allow(self, **table: Any) -> None:
        host = ClientHost.read(self.folder)
        host.model_copy(update={"allow": Allow(**table)}).write(self.folder)

    def spec(self, method: dict[str, Any], **changes: Any) -> RunSpec:
        net = {"name": "mlp", "hidden": [8]}
        config = Config.of({"rounds": 1, "data": DATA, "net": net, "method": method, **changes})
        path = new_run(config, self.base / f"run-{len([*self.base.iterdir()])}", [])
        return job_for(path, "f", kind="train", seconds=1.0, patience=1.0).spec

    def refusal(self, spec: RunSpec) -> str:
        with pytest.raises(Malformed) as raised:
            sides_at(self.folder, spec)
        assert raised.value.reason == "not-allowed"
        return raised.value.detail


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_all_methods_are_allowed_until_some_are_named(machine: Machine) -> None:
    spec = machine.spec({"name": "fedper"})
    assert sides_at(machine.folder, spec).keys() == {0}
    machine.allow(methods=["fedavg", "pfedmb"])
    assert '"fedper" is not among those' in machine.refusal(spec)
    assert sides_at(machine.folder, machine.spec({"name": "fedavg"})).keys() == {0}


def test_the_method_of_ones_own_group_counts(machine: Machine) -> None:
    """Client 1 is in another group, with a method of its own; client 0 is not asked about it."""
    groups = {"b": {"clients": [1], "method": {"name": "fedper"}}}
    spec = machine.spec({"name": "fedavg"}, groups=groups)
    machine.allow(methods=["fedavg"])
    assert sides_at(machine.folder, spec).keys() == {0}
    machine.allow(methods=["fedper"])
    assert '"fedavg" is not among those' in machine.refusal(spec)


@pytest.mark.parametrize(
    ("method", "size"),
    [
        ({"name": "fedavg"}, LAYERS),
        ({"name": "fedper"}, LAYERS),  # what stays at the client counts too
        ({"name": "pfedmb", "branches": 3}, None),
    ],
)
def test_the_size_of_a_model_is_what_a_client_is_sent_and_keeps(
    machine: Machine, method: dict[str, Any], size: int | None
) -> None:
    spec = machine.spec(method)
    counted = spec.model_bytes("all")
    if size is not None:
        assert counted == size
    else:
        assert 3 * LAYERS < counted < 3 * LAYERS + 200  # three branches, and a few mixture weights
    machine.allow(largest=str(counted))
    assert sides_at(machine.folder, spec).keys() == {0}
    machine.allow(largest=str(counted - 1))
    assert f"a model of {counted} bytes" in machine.refusal(spec)


def test_a_model_that_is_too_large_is_refused_before_it_is_made(machine: Machine) -> None:
    """Two layers of a million units: 4 TB, which this machine does not have."""
    spec = machine.spec({"name": "fedper"})
    huge = spec.model_copy(update={"net": {**spec.net, "hidden": [10**6, 10**6]}})
    forget_peak()
    before = peak_bytes()
    assert "a model of 4" in machine.refusal(huge)
    assert peak_bytes() - before < 100_000_000


@pytest.mark.parametrize(
    ("net", "method", "expected"),
    [
        ({"hidden": [1] * 150_000}, {}, "a run specification of 300"),
        ({"hidden": [2**31]}, {}, "hidden is larger than 2147483647"),
        ({}, {"epochs": 10_001}, "epochs is larger than 10000"),
        ({}, {"batch_size": 10**400}, "batch_size is larger"),
        ({}, {"optimizer": {"name": "sgd", "inner_steps": 10**6}}, "inner_steps is larger"),
    ],
    ids=["long", "wide", "epochs", "batch_size", "nested"],
)
def test_absurd_numbers_are_refused_before_anything_is_built(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    net: dict[str, Any],
    method: dict[str, Any],
    expected: str,
) -> None:
    spec = machine.spec({"name": "fedavg"})
    absurd = spec.model_copy(
        update={"net": {**spec.net, **net}, "method": {**spec.method, **method}}
    )
    monkeypatch.setattr(RunSpec, "model_bytes", lambda *_: pytest.fail("something was built"))
    assert machine.refusal(absurd).startswith(expected)
    group = {"clients": [0], "net": absurd.net, "method": absurd.method}
    assert machine.refusal(spec.model_copy(update={"groups": {"b": group}})).startswith(
        expected[:20]
    )


def test_the_most_that_a_client_does_is_done(machine: Machine) -> None:
    assert sides_at(
        machine.folder, machine.spec({"name": "fedavg", "epochs": 10_000, "batch_size": 2**31 - 1})
    )


def test_a_run_that_no_client_would_take_part_in_is_refused_on_the_server(
    machine: Machine,
) -> None:
    with pytest.raises(UserError, match="no client would take part: epochs"):
        machine.spec({"name": "fedavg", "epochs": 10_001})


@pytest.mark.parametrize("there", [True, False], ids=["a file", "no file"])
def test_a_server_cannot_make_a_client_open_a_file(machine: Machine, there: bool) -> None:
    """The answer is the same whether or not the file exists; opening it could also last
    for ever, as with a pipe.
    """
    secret = machine.base / "secret"
    if there:
        secret.write_bytes(b"no tensors")
    spec = machine.spec({"name": "fedavg"})
    net = {"name": "mobilenet_v2", "weights": str(secret)}
    expected = "net.weights names a file, and this client opens none for a server"
    assert machine.refusal(spec.model_copy(update={"net": net})) == expected
    group = {"clients": [0], "net": net, "method": spec.method}
    assert machine.refusal(spec.model_copy(update={"groups": {"b": group}})) == expected


@pytest.mark.parametrize("kind", ["a type", "a name", "a description"])
def test_an_option_names_a_file_by_its_type_its_name_or_its_description(kind: str) -> None:
    def by_type(source: Path | None = None) -> None: ...
    def by_name(initial_weights: str = "") -> None: ...
    def by_description(source: Annotated[str, Help("a folder of tensors")] = "") -> None: ...
    def plain(
        local: Annotated[str, Help("a module of the net")] = "", profile: str = ""
    ) -> None: ...

    target = {"a type": by_type, "a name": by_name, "a description": by_description}[kind]
    assert [prepare._names_a_file(option) for option in options_of(target).values()] == [True]
    assert [prepare._names_a_file(option) for option in options_of(plain).values()] == [
        False,
        False,
    ]


def test_a_net_that_is_not_installed_is_refused_by_name(machine: Machine) -> None:
    spec = machine.spec({"name": "fedavg"})
    assert '"no-such-net" is not installed' in machine.refusal(
        spec.model_copy(update={"net": {"name": "no-such-net"}})
    )


def test_tags_that_may_not_leave_are_not_told(machine: Machine) -> None:
    path = machine.folder / "client.toml"
    path.write_text(path.read_text().replace("[tags]\n", "[tags]\nhospital = 3\n"))
    spec = machine.spec({"name": "fedavg"})
    group = {"tag": "hospital", "value": 3, "net": spec.net, "method": spec.method}
    spec = spec.model_copy(update={"groups": {"b": group}})
    assert member_of(*sides_at(machine.folder, spec)[0]).tags == {"hospital": 3}
    assert sides_at(machine.folder, spec)[0][1] == "b"
    machine.allow(send=["updates", "scores"])
    side = sides_at(machine.folder, spec)[0]
    # nor by the group that they would put it in
    assert member_of(*side).tags == {} and side[1] == "all"


def played(
    folder: Path, sends: set[str], ask: Ask, method: type[FedPer] | type[PFedMB] = FedPer
) -> tuple[Any, OpenRound]:
    """What client 0 answers in a round, and the round."""
    options: dict[str, Any] = {"branches": 2} if method is PFedMB else {}
    experiment = Experiment.of(
        method(small_net(), batch_size=4, **options), small_federation(), seed=0
    )
    server, sides = sides_of(experiment, range(2), "r", folder)
    asked = OpenRound(server, server.start(), [0], ask)
    side = sides[0]
    object.__setattr__(side, "sends", frozenset(sends))
    answer = side.answer(asked.downloads[0])
    asked.receive(0, answer)
    return header_of(answer), asked


BOTH = Ask(score="test", evaluate=("validation",))


def test_scores_that_may_not_leave_are_left_out_and_the_update_counts(tmp_path: Path) -> None:
    header, asked = played(tmp_path / "a", {"updates", "scores"}, BOTH)
    assert isinstance(header, UploadHeader) and header.counts and asked.admitted == 1
    header, asked = played(tmp_path / "b", {"updates"}, BOTH)
    assert isinstance(header, UploadHeader) and header.counts == {} and asked.admitted == 1
    assert asked.close(1).abandoned == ""


def test_pictures_leave_if_they_may(tmp_path: Path) -> None:
    header, _ = played(tmp_path / "a", {"updates", "scores", "pictures"}, BOTH, PFedMB)
    assert header.pictures
    header, _ = played(tmp_path / "b", {"updates", "scores"}, BOTH, PFedMB)
    assert header.pictures == {}
    assert (
        "pictures" not in Allow().send
        and "pictures" not in ClientSide.__dataclass_fields__["sends"].default
    )


def test_without_updates_a_client_is_evaluated_and_not_trained(tmp_path: Path) -> None:
    header, asked = played(tmp_path / "a", {"scores"}, BOTH)
    assert (header.kind, header.reason) == ("apology", "not-allowed")
    assert [(r.client, r.reason) for r in asked.close(0).report.refusals] == [(0, "not-allowed")]
    header, _ = played(tmp_path / "b", {"scores"}, Ask(train=False, evaluate=("validation",)))
    assert isinstance(header, UploadHeader) and header.counts
    assert not any((tmp_path / "a").rglob("personal"))  # nothing was trained


@pytest.mark.parametrize(
    "wrong", [{"largest": "much"}, {"send": ["everything"]}, {"method": ["fedavg"]}]
)
def test_a_table_that_makes_no_sense_is_refused(machine: Machine, wrong: dict[str, Any]) -> None:
    path = machine.folder / "client.toml"
    table = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps({**table, "allow": wrong}))
    with pytest.raises(UserError, match=f"allow.{min(wrong)}"):
        ClientHost.read(machine.folder)
