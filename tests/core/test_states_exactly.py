"""What a federation starts with and keeps, and what methods say of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core import mode
from fedblocks.core.blocks import Fresh, Frozen, PerClient, Pool, Private, ServerOnly, Shared
from fedblocks.core.errors import NetError, UserError
from fedblocks.core.frozen import BASE, FrozenRecord, check_untrained, initial_frozen
from fedblocks.core.joined import join
from fedblocks.core.optimizers import Adam
from fedblocks.core.parts import Filled, Sized, Value
from fedblocks.core.phases import Phase, Pull, Update
from fedblocks.core.precision import as_factors, half_precision, is_half, refuse_half_parameters
from fedblocks.core.private_state import Pack, ShardedState, StackedState
from fedblocks.core.rules import ServerAdam
from fedblocks.core.server import Beginnings
from fedblocks.core.starts import Common
from fedblocks.core.state import initial_private, initial_slots, initial_state, to_device
from fedblocks.core.structure import _check_names
from fedblocks.core.trees import concatenate, copy, is_repeated, leaves, shapes, split, unbind
from fedblocks.core.uploads import private_of

ONE = Value(torch.tensor([1.0, 2.0]))
NORMED = fb.Net.of(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


class Blocky(fb.FedAvg):
    """A method of whatever blocks."""

    def blocks(self) -> dict[str, Any]:
        return dict(LAYOUT)


LAYOUT: dict[str, Any] = {}


@pytest.fixture
def blocky(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(layout: dict[str, Any], net: Any = NORMED, **options: Any) -> Blocky:
        monkeypatch.setattr(__import__(__name__, fromlist=["LAYOUT"]), "LAYOUT", layout)
        return Blocky(net, **options)

    return make


def test_slots_start_as_their_home_says() -> None:
    shapes_of = lambda block: {k: list(v.shape) for k, v in initial_slots(block, 3, 0).items()}
    assert shapes_of(Shared(ONE)) == {"value": [1, 2]}
    assert shapes_of(PerClient(ONE, "x")) == {"value": [3, 2]}
    assert shapes_of(Pool(ONE, 4)) == {"value": [4, 2]} and shapes_of(ServerOnly(ONE)) == {
        "value": [2]
    }
    sized = Sized(lambda clients: Value(torch.zeros(clients)))
    assert shapes_of(ServerOnly(sized)) == {"value": [3]}
    own = initial_slots(PerClient(ONE, "x"), 2, 0)["value"]
    own[0] += 1
    assert own.tolist() == [[2.0, 3.0], [1.0, 2.0]]  # memory of each its own
    with pytest.raises(TypeError, match="Private has no slots"):
        initial_slots(Private(ONE), 1, 0)
    assert Filled(ONE, 0.5).init(0)["value"].tolist() == [0.5, 0.5]
    centred = Common(2.0).slots(lambda n: {"w": torch.tensor([float(n * n)])}, 2)["w"]
    assert centred.flatten().tolist() == [-3.0, 3.0]  # 0 + 2 (1 - 2.5), 0 + 2 (4 - 2.5)


def test_a_state_has_the_blocks_of_the_server_under_their_names(blocky: Any) -> None:
    adam = ServerAdam()
    layout = {
        "a": Shared(ONE, "common", adam),
        "b": Private(ONE),
        "c": Fresh(),
        "d": ServerOnly(ONE),
    }
    state = initial_state({"g": blocky(layout)}, 3, 0)
    assert set(state.server) == {"common", "d"} and set(state.memory) == {"common"}
    assert state.round == 0 and dict(state.private) == {}
    assert {k: v["value"].flatten()[0].item() for k, v in state.memory["common"].items()} == {
        "first": 0.0, "second": pytest.approx(adam.tau**2),
    }  # fmt: skip
    other = SimpleNamespace(
        blocks=lambda: {"x": Shared(Value(torch.zeros(3)), "common")}, net=NORMED
    )
    with pytest.raises(UserError) as refused:
        initial_state({"g": blocky(layout), "h": other}, 3, 0)  # type: ignore[dict-item]
    assert 'group "h" shares "common" with another group' in refused.value.message
    assert '"value" is [1, 3], in the other group [1, 2] (slots first)' in refused.value.message


@pytest.mark.parametrize("statistics", ["local", "average"])
def test_statistics_stay_where_they_are_told_to(blocky: Any, statistics: str) -> None:
    layout = {"m": Shared(NORMED.whole), "p": Pool(NORMED.whole, 2), "own": Private(ONE)}
    method = blocky(layout, statistics=statistics)
    private = initial_private(method, 0)
    assert set(private) == (
        {"own", "m/statistics", "p/statistics"} if statistics == "local" else {"own"}
    )
    sent = {name: {k: v[None] for k, v in NORMED.init(0).items()} for name in ("m", "p")}
    stays = private_of(method, {**sent, "own": {"value": torch.zeros(1, 2)}, "optimizer/0/0": {}})
    assert set(stays) == {*private, "optimizer/0/0"}
    if statistics == "local":
        assert private["m/statistics"]["1.running_mean"].shape == (2,)
        assert private["p/statistics"]["1.running_mean"].shape == (2, 2)
        assert set(stays["m/statistics"]) == {"1.running_mean", "1.running_var"}


def test_frozen_blocks_are_made_once_and_never_train(blocky: Any) -> None:
    layout = {"f": Frozen(ONE), "m": Shared(ONE), "e": Fresh(), "n": Fresh(ONE)}
    method = blocky(layout)
    start = Beginnings.of(method, 0)
    assert (set(start.frozen), set(start.fresh), set(start.private)) == ({"f"}, {"n"}, set())
    record = FrozenRecord.of({"g": method}, {"g": start.frozen}, 0, torch.device("cpu"))
    assert set(record.blocks) == {"g/f"} == set(record.hashes)
    record.check()
    start.frozen["f"]["value"] += 1
    with pytest.raises(UserError, match='frozen block "g/f" has changed'):
        record.check()
    with pytest.raises(UserError, match='is frozen, and training would move its "1'):
        initial_frozen(blocky({"f": Frozen(NORMED.whole)}), 0)
    trains = lambda name: SimpleNamespace(
        blocks=lambda: layout, phases=lambda: [Phase((Update((name,), sum, 1.0),))],
        adaptation=list, joining=list,
    )  # fmt: skip
    check_untrained(trains("m"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match='trains "f", which is frozen'):
        check_untrained(trains("f"))  # type: ignore[arg-type]
    assert BASE == "base"


def test_phases_name_blocks_that_are_there() -> None:
    layout: Any = {"a": 1, "b": 2}
    fine = Phase((Update(("a",), None, 1.0, pull=Pull("a", "b", 1.0)),))
    _check_names("M.phases", [fine], layout)
    for wrong in (
        Update(("c",), sum, 1.0),  # type: ignore[arg-type]
        Update(("a",), None, 1.0, pull=Pull("a", "c", 1.0)),
        Update(("a",), None, 1.0, pull=Pull("c", "b", 1.0)),
    ):
        with pytest.raises(UserError, match='M has no block "c", which a phase of M'):
            _check_names("M.phases", [fine, Phase((wrong,))], layout)
    with pytest.raises(ValueError, match="needs a loss or a pull"):
        Update(("a",), None, 1.0)


def test_a_new_client_trains_once_where_models_have_a_part_of_its_own() -> None:
    net = fb.small_net()
    assert fb.FedAvg(net).joining() == [] and len(fb.Local(net).joining()) == 1
    assert not fb.FedAvg(net).stateful and fb.FedAvg(net, keep_optimizer=True).stateful
    assert fb.Local(net).stateful
    method = fb.FedAvg(net, lr=0.5, clip_norm=2.0)
    own = method.step("a", lr=0.0, repeat=3)
    assert (own.lr, own.repeat, own.clip_norm, own.train) == (0.0, 3, 2.0, ("a",))
    assert own.loss == method.loss and own.optimizer is method.optimizer
    other = method.step("a", "b", loss=sum, optimizer=Adam())  # type: ignore[arg-type]
    assert (other.lr, other.loss, other.optimizer) == (0.5, sum, Adam()) and own.rests is None
    moved = fb.FedAvg(net, lr=fb.Ramp(1.0, 2.0, 0.5))
    assert set(moved.open_schedules) == {"lr"} and moved.over(8).lr == fb.Ramp(1.0, 2.0, 4)
    assert method.over(8) is method and "net" not in method.options()
    assert list(method.single_uploads({}, None)) == []  # type: ignore[arg-type]


def test_packs_and_stacks_of_clients_are_found_by_number() -> None:
    rows = {"b": {"w": torch.tensor([[1.0], [2.0]])}}
    stacked = StackedState(Pack((3, 70), rows))
    assert list(stacked) == [3, 70] and len(stacked) == 2 and 3 in stacked and "3" not in stacked
    assert stacked[70]["b"]["w"].tolist() == [2.0]
    sharded = ShardedState().merge(dict(stacked))
    assert list(sharded) == [3, 70] and len(sharded) == 2 and bool(sharded) and not ShardedState()
    assert list(sharded.merge({1: stacked[3]})) == [1, 3, 70] and list(sharded.shards) == [0, 1]
    for missing in (0, 4, 71, 500):
        assert missing not in stacked and missing not in sharded
        with pytest.raises(KeyError):
            stacked[missing]


def test_trees_are_cut_joined_and_copied() -> None:
    tree = {"a": torch.arange(6).view(3, 2), "b": {"c": torch.arange(3)}}
    first, second = split(tree, [1, 2])
    assert first["b"]["c"].tolist() == [0] and second["a"].tolist() == [[2, 3], [4, 5]]
    assert [row["b"]["c"].item() for row in unbind(tree, 3)] == [0, 1, 2]
    assert concatenate([tree]) is tree and len(concatenate([first, second])["a"]) == 3
    repeated = torch.ones(1, 2).expand(3, 2)
    assert (
        is_repeated(repeated)
        and not is_repeated(torch.ones(3, 2))
        and not is_repeated(torch.ones(()))
    )
    same = copy({"r": repeated, "t": tree["a"]})
    assert is_repeated(same["r"]) and same["r"].data_ptr() != repeated.data_ptr()
    same["t"] += 1
    assert tree["a"][0, 0] == 0
    assert len(list(leaves([tree, (repeated,)]))) == 3
    assert shapes({"a": repeated}) == (("a", ((3, 2), torch.float32, True)),)
    moved = to_device({"a": repeated}, "cpu")
    assert moved["a"] is repeated


def test_blocks_are_joined_unless_one_would_be_lost() -> None:
    a, b = {"x": torch.ones(1)}, {"y": torch.ones(1)}
    assert list(join(a, b)) == ["x", "y"] and list(join(a, dict(a))) == ["x"]
    with pytest.raises(NetError, match='have a tensor "x", and one would be lost'):
        join(a, {"x": torch.ones(1)})


def test_half_precision_is_for_training_alone() -> None:
    one = torch.ones(1)
    with half_precision(True):
        assert not is_half() and as_factors(one, None) == (one, None)
        with mode.mode(training=True, mapped=False):
            assert is_half() and as_factors(one, None)[0].dtype == torch.bfloat16
            with half_precision(False):
                assert not is_half()
            assert is_half()
    refuse_half_parameters(torch.float32)
    with pytest.raises(UserError, match="below 1/256 of a parameter would be lost"):
        refuse_half_parameters(torch.bfloat16)
