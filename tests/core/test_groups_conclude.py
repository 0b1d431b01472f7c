"""The server's work is one, whatever groups its clients are in: rules, starts and conclusions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.aggregate import aggregate
from fedblocks.core.blocks import Shared
from fedblocks.core.common_blocks import check_common_rules
from fedblocks.core.conclusions import parties
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.random import derive
from fedblocks.data import digits
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedopt import FedAdam
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.pfedme import PFedMe
from fedblocks.methods.scaffold import Scaffold

SEEN: list[tuple[list[int], list[float], int]] = []


@dataclass(frozen=True, eq=False)
class Median(FedAvg):
    """The median of what clients sent, times a number of the server's."""

    share: float = 1.0

    def conclude(self, server: Any, before: Any, uploads: Any, cohort: Any) -> Any:
        copies = uploads["model"].copies
        SEEN.append((cohort.ids.tolist(), cohort.sizes.tolist(), len(next(iter(copies.values())))))
        model = {k: self.share * v.median(0, keepdim=True).values for k, v in copies.items()}
        return {**server, "model": model}


@pytest.fixture
def net() -> Net:
    return Net.of(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), dtype=torch.float64
    )


def after_rounds(federation: Any, methods: Any, groups: Any = (), rounds: int = 2) -> Any:
    experiment = Experiment(methods, federation, 3, groups)
    state = experiment.start()
    for _ in range(rounds):
        state, _ = run_round(experiment, state, range(4), Sequential())
    return state.server


def assert_same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name, block in one.items():
        for k, value in block.items():
            assert torch.allclose(value, other[name][k], rtol=0, atol=1e-12), (name, k)


@pytest.mark.parametrize("kind", [Median, Scaffold])
@pytest.mark.parametrize("groups", [("a", "b", "a", "b"), ("b", "a", "a", "a"), ("b",) * 4])
def test_two_groups_of_one_method_are_one_group(
    federation: Any, net: Net, kind: Any, groups: Any
) -> None:
    alone = after_rounds(federation, {"all": kind(net)})
    assert_same(after_rounds(federation, {"a": kind(net), "b": kind(net)}, groups), alone)


def test_a_conclusion_sees_the_clients_of_all_groups_in_their_order(
    federation: Any, net: Net
) -> None:
    SEEN.clear()
    methods = {"a": Median(net), "b": Median(net)}
    after_rounds(federation, methods, ("b", "a", "b", "a"), rounds=1)
    sizes = [float(len(rows)) for rows in federation.train]
    assert [([0, 1, 2, 3], sizes, 4)] == SEEN


def test_what_groups_do_by_themselves_may_differ(federation: Any, net: Net) -> None:
    """Both conclude, and must come to the same."""
    SEEN.clear()
    methods = {"a": Median(net, lr=0.1), "b": Median(net, lr=0.01)}
    server = after_rounds(federation, methods, ("a", "b", "a", "b"), rounds=1)
    assert len(SEEN) == 2 and SEEN[0] == SEEN[1]
    copies = [
        after_rounds(federation, {"all": FedAvg(net, lr=rate)}, rounds=0) for rate in (0.1, 0.01)
    ]
    assert_same(*copies)  # the starts
    one_by_one = []
    experiment = Experiment(methods, federation, 3, ("a", "b", "a", "b"))
    for client in range(4):
        one, _ = run_round(experiment, experiment.start(), [client], Sequential())
        one_by_one.append(one.server["model"])
    for k, value in server["model"].items():
        middle = torch.cat([own[k] for own in one_by_one]).median(0, keepdim=True).values
        assert torch.allclose(value, middle, rtol=0, atol=1e-12)


def test_groups_that_conclude_otherwise_are_refused(federation: Any, net: Net) -> None:
    methods = {"a": Median(net), "b": Median(net, share=0.5)}
    with pytest.raises(UserError, match=r'groups "a" and "b" share blocks, and Median\.conclude'):
        after_rounds(federation, methods, ("a", "b", "a", "b"))


def test_a_conclusion_on_a_block_that_others_write_is_refused(federation: Any, net: Net) -> None:
    methods = {"a": FedAvg(net), "b": Median(net)}
    with pytest.raises(UserError, match=r"Median\.conclude changes block") as told:
        after_rounds(federation, methods, ("a", "b", "a", "b"))
    assert told.value.message == (
        'Median.conclude changes block "model" by what clients of group "b" sent, and group "a" '
        "has this block, too"
    )


def test_a_conclusion_on_blocks_of_its_own_sees_its_own_clients(federation: Any, net: Net) -> None:
    """Others only average the model that both write."""
    methods = {"a": FedAvg(net), "b": Scaffold(net)}
    server = after_rounds(federation, methods, ("a", "b", "a", "b"))
    assert server.keys() == {"model", "control"}


@dataclass(frozen=True, eq=False)
class Apart(Median):
    """Its model is the group's own."""

    group: str = ""

    def blocks(self) -> Any:
        return {"model": Shared(self.net.whole, name=f"model/{self.group}")}


def test_groups_with_other_blocks_conclude_by_themselves(federation: Any, net: Net) -> None:
    SEEN.clear()
    methods = {name: Apart(net, group=name) for name in "ab"}
    assert parties(methods) == [["a"], ["b"]]
    after_rounds(federation, methods, ("a", "b", "b", "b"), rounds=1)
    assert [ids for ids, *_ in SEEN] == [[0], [1, 2, 3]]
    assert parties({"a": FedAvg(net), "b": FedPer(net)}) == []


def test_of_nobody_s_uploads_nothing_is_concluded(federation: Any, net: Net) -> None:
    """As in a round that nobody reaches: the blocks stay as they are."""
    experiment = Experiment({"all": Median(net)}, federation, 3)
    state = experiment.start()
    SEEN.clear()
    after = aggregate(experiment.methods, state, {"all": {}}, {"all": experiment.cohort([], 0)})
    assert not SEEN and after.round == 1 and after.server["model"] is state.server["model"]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (lambda n: FedAdam(n), lambda n: FedAdam(n, server_lr=0.1), "ServerAdam(lr=0.1, "),
        (lambda n: FedAdam(n), lambda n: FedAvg(n), "Average()"),
        (lambda n: PFedMe(n), lambda n: PFedMe(n, beta=0.5), "MovingAverage(beta=0.5)"),
    ],
)
def test_groups_with_other_rules_of_the_server_are_refused(
    federation: Any, net: Net, one: Any, other: Any, told: str
) -> None:
    methods = {"a": one(net), "b": other(net)}
    with pytest.raises(UserError, match='groups "a" and "b" write block') as caught:
        Experiment(methods, federation, 3, ("a", "b", "a", "b")).start()
    assert told in caught.value.message
    check_common_rules({"a": one(net), "b": one(net)})


def test_rules_are_known_by_their_options_and_told_without_addresses(net: Net) -> None:
    class Plain:
        def __init__(self, rate: float) -> None:
            self.rate = rate

    @dataclass(frozen=True, eq=False)
    class Own(FedAvg):
        rate: float = 1.0

        def blocks(self) -> Any:
            return {"model": Shared(self.net.whole, rule=Plain(self.rate))}  # type: ignore[arg-type]

    check_common_rules({"a": Own(net), "b": Own(net)})
    with pytest.raises(UserError, match="by different rules: Plain and Plain"):
        check_common_rules({"a": Own(net), "b": Own(net, rate=2.0)})


def given(seed: int, size: int = 5) -> Net:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(6, size), nn.Tanh(), nn.Linear(size, 3))
    return Net.of(module, keep_weights=True, dtype=torch.float64)


def test_given_weights_that_differ_between_groups_are_refused(federation: Any, net: Net) -> None:
    groups = ("a", "b", "a", "b")
    for other in (given(1), net):
        methods = {"a": FedAvg(given(0)), "b": FedAvg(other)}
        with pytest.raises(UserError, match='start block "model" from different weights'):
            Experiment(methods, federation, 3, groups).start()
    methods = {"a": FedAvg(given(0)), "b": FedAvg(given(0))}
    assert Experiment(methods, federation, 3, groups).start().round == 0


def test_common_blocks_that_a_seed_starts_have_the_start_of_the_first_group(
    federation: Any,
) -> None:
    """Nets of unlike bodies draw another head each."""
    nets = [
        Net.of(
            lambda hidden=hidden: nn.Sequential(  # type: ignore[misc]
                nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 4), nn.Linear(4, 3)
            ),
            head="3",
            dtype=torch.float64,
        )
        for hidden in (5, 8)
    ]
    methods = {group: Split(net, group=group) for group, net in zip("ab", nets)}
    experiment = Experiment(methods, federation, 3, ("a", "b", "a", "b"))
    start = experiment.start().server["head"]["3.weight"]
    heads = [net.init(derive(3, "init", 0))["3.weight"] for net in nets]
    assert not torch.equal(*heads)
    assert torch.equal(start[0], heads[0])


def test_groups_are_seen_by_a_run(tmp_path: Any, net: Net) -> None:
    x, y = digits()
    data = fb.Federation.from_arrays(x[:80], y[:80], fb.partitions.iid(y[:80], clients=4))
    nets = fb.Net.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    runs = [
        fb.run(Scaffold(nets), data, 2, tmp_path / "a", device="cpu"),
        fb.run(
            {"all": Scaffold(nets), "some": Scaffold(nets)},
            data,
            2,
            tmp_path / "b",
            groups={"some": [0, 2]},
            device="cpu",
        ),
    ]
    one, other = (run.state().server["control"] for run in runs)
    for k, value in one.items():
        assert torch.allclose(value, other[k], rtol=0, atol=1e-6)


@dataclass(frozen=True, eq=False)
class Split(FedPer):
    """A body for each group, a common head; it looks at one of them."""

    group: str = ""
    look: str = "head"

    def blocks(self) -> Any:
        body = Shared(self.net.body, name=f"body/{self.group}")
        return {"body": body, "head": Shared(self.net.head)}

    def conclude(self, server: Any, before: Any, uploads: Any, cohort: Any) -> Any:
        copies = uploads[self.look].copies
        SEEN.append((cohort.ids.tolist(), [], len(next(iter(copies.values())))))
        mean = {k: v.mean(0, keepdim=True) for k, v in copies.items()}
        return {**server, self.look: mean}


def test_groups_with_some_blocks_in_common_conclude_on_these(federation: Any, net: Net) -> None:
    groups = ("a", "b", "a", "b")
    SEEN.clear()
    methods = {name: Split(net, group=name) for name in "ab"}
    assert parties(methods) == [["a", "b"]]
    after_rounds(federation, methods, groups, rounds=1)
    assert {(tuple(ids), copies) for ids, _, copies in SEEN} == {((0, 1, 2, 3), 4)}
    methods = {name: Split(net, group=name, look="body") for name in "ab"}
    with pytest.raises(UserError, match='of "body" was asked for, which groups'):
        after_rounds(federation, methods, groups, rounds=1)
    SEEN.clear()  # where only one of them takes part, it is alone
    experiment = Experiment(methods, federation, 3, groups)
    run_round(experiment, experiment.start(), [0, 2], Sequential())
    assert [ids for ids, *_ in SEEN] == [[0, 2]]


def test_groups_that_have_nothing_in_common_but_by_a_third_are_one_party(net: Net) -> None:
    @dataclass(frozen=True, eq=False)
    class Linked(Median):
        names: tuple[str, str] = ("", "")

        def blocks(self) -> Any:
            one, other = self.names
            return {
                "model": Shared(self.net.whole, name=one),
                "other": Shared(self.net.whole, name=other, of="model"),
            }

    linked = {
        group: Linked(net, names=names)
        for group, names in {
            "a": ("x", "y"),
            "b": ("z", "w"),
            "c": ("y", "z"),
            "d": ("x", "q"),
        }.items()
    }
    assert parties(linked) == [["a", "b", "c", "d"]]
    assert parties({group: linked[group] for group in "ab"}) == [["a"], ["b"]]
