"""Lanes: several runs in one stack end as they would have ended one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedblocks.core import aggregate
from fedblocks.core.errors import UserError
from fedblocks.core.optimizers import SGD, Adam, AdamW
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.reduction import reduce_slots
from fedblocks.core.schedules import Exponential, Ramp
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.engines import speculation
from fedblocks.engines.lanes.federations import merge_federations
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.lanes.likeness import why_not
from fedblocks.engines.lanes.numbers import number_options
from fedblocks.engines.round import Experiment, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.methods.moon import Moon
from fedblocks.testing import EXAMPLES
from fedblocks.testing.lanes import number_reasons, with_all_numbers
from fedblocks.testing.starts import STARTS
from tests.representatives import mark_others

RATES = (1.0, 0.5)  # times the learning rate of the example


@pytest.fixture(autouse=True)
def speculating(monkeypatch) -> None:
    """As on a GPU: the end of a round is queued for all lanes at once."""
    monkeypatch.setattr(speculation, "pays_on", lambda device: True)


def settings(name: str, rates: tuple[float, ...] = RATES) -> list[Experiment]:
    """Two seeds, each with every learning rate; the second seed has its clients in
    another order.
    """
    example = EXAMPLES[name]()
    data = example.federation
    turned = data.subset(list(reversed(range(data.clients))))
    actual = []
    for seed, own in ((0, data), (1, turned)):
        for times in rates:
            experiment = example.experiment(own)
            methods = {
                group: replace(m, lr=m.lr * times) for group, m in experiment.methods.items()
            }
            groups = experiment.groups if own is data else list(reversed(experiment.groups))
            actual.append(Experiment(methods, own, seed, groups))
    return actual


@pytest.mark.parametrize("name", mark_others(EXAMPLES))
def test_lanes_end_as_separate_runs(name):
    """One method of each kind; all of them in `make test-rest`."""
    lanes = settings(name)
    together, engine = Lanes(lanes), Vectorised()
    states = apart = [experiment.start() for experiment in lanes]
    for round in range(2):
        cohorts = [
            list(range(lane % 2 if round else 0, s.data.clients)) for lane, s in enumerate(lanes)
        ]
        ends = together.run_round(states, cohorts, engine)
        alone = [run_round(*given, engine) for given in zip(lanes, apart, cohorts)]
        states, apart = [end[0] for end in ends], [end[0] for end in alone]
        for (_, one), (_, other) in zip(ends, alone):
            assert (one.bytes_down, one.bytes_up, one.refusals) == (
                other.bytes_down,
                other.bytes_up,
                other.refusals,
            )
    for one, other in zip(states, apart):
        assert_alike(one.server, other.server)
        assert one.private.keys() == other.private.keys()
        for client in one.private:
            assert_alike(one.private[client], other.private[client])
    everybody = [range(s.data.clients) for s in lanes]
    scores = together.evaluate_parts(states, everybody, engine, ["test"])
    for actual, experiment, state in zip(scores, lanes, states):
        expected = evaluate_parts(
            experiment, state, range(experiment.data.clients), engine, ["test"]
        )
        assert {
            v: {c: n[:2] for c, n in by.items()} for v, by in actual.scores["test"].items()
        } == {v: {c: n[:2] for c, n in by.items()} for v, by in expected.scores["test"].items()}


def test_lanes_that_found_other_numbers_of_clusters_end_as_separate_runs():
    """The second lane's clients are all of one kind."""
    example = STARTS["ifca_updates"]()
    same = example.federation.subset([0, 2, 4, 6])
    lanes = [example.experiment(), example.experiment(same), example.experiment()]
    together, engine = Lanes(lanes), Vectorised()
    states = apart = [experiment.start() for experiment in lanes]
    cohorts = [list(range(experiment.data.clients)) for experiment in lanes]
    for _ in range(2):
        states = [state for state, _ in together.run_round(states, cohorts, engine)]
        apart = [run_round(*own, engine)[0] for own in zip(lanes, apart, cohorts)]
    assert [int(state.server["begun"]["value"]) for state in states] == [2, 1, 2]
    for one, other in zip(states, apart):
        assert_alike(one.server, other.server)
    scores = together.evaluate_parts(states, cohorts, engine, ["test"])
    for actual, *own in zip(scores, lanes, apart, cohorts):
        expected = evaluate_parts(*own, engine, ["test"]).scores["test"]["personal"]
        assert {c: n[0] for c, n in actual.scores["test"]["personal"].items()} == {
            c: n[0] for c, n in expected.items()
        }


def assert_alike(one, other):
    for block, params in other.items():
        for key, value in params.items():
            assert torch.allclose(one[block][key], value, atol=1e-5, rtol=1e-4), (block, key)


def test_a_lane_whose_numbers_explode_is_refused_and_the_others_go_on():
    lanes = settings("fedavg", (1.0, 1e300))
    together, engine = Lanes(lanes), Vectorised()
    starts = [experiment.start() for experiment in lanes]
    cohorts = [range(experiment.data.clients) for experiment in lanes]
    ends = together.run_round(starts, cohorts, engine)
    for (state, report), experiment, start in zip(ends, lanes, starts):
        wild = experiment.methods["all"].lr > 1e200
        assert [r.client for r in report.refusals] == (
            list(range(experiment.data.clients)) if wild else []
        )
        expected = (
            start
            if wild
            else run_round(experiment, start, range(experiment.data.clients), engine)[0]
        )
        assert_alike(state.server, expected.server)


def test_lanes_that_have_found_other_numbers_of_clusters_end_as_if_they_were_alone():
    # clients that hardly move are not torn apart, others are split after the first round
    lanes = settings("clustered", (1.0, 1e-6))
    cohorts = [list(range(s.data.clients)) for s in lanes]
    ends = Lanes(lanes).run_round([s.start() for s in lanes], cohorts, Vectorised())
    counts = [int(state.server["membership"]["value"].max()) + 1 for state, _ in ends]
    assert len(set(counts)) > 1, counts
    assert_every_lane_is_alone(lanes, cohorts)


@pytest.mark.parametrize(("name", "times"), [("fedavg", 1), ("modfl", 2), ("fedamp", 1)])
def test_the_servers_share_of_a_round_is_done_once_for_all_lanes(name, times, monkeypatch):
    calls = []
    counting = lambda *given: calls.append(1) or reduce_slots(*given)
    monkeypatch.setattr(aggregate, "reduce_slots", counting)
    lanes = settings(name)
    Lanes(lanes).run_round(
        [s.start() for s in lanes], [range(s.data.clients) for s in lanes], Vectorised()
    )
    assert len(lanes) == 4 and len(calls) == times  # blocks that are uploaded


def test_federations_with_the_same_rows_hold_them_once():
    data = EXAMPLES["fedavg"]().federation
    both = merge_federations([data, data.subset([1, 0])])
    assert both.x.data_ptr() == data.x.data_ptr()
    assert [both.train[i].tolist() for i in (data.clients, 0)] == [
        data.train[1].tolist(),
        data.train[0].tolist(),
    ]


def test_federations_with_other_rows_keep_their_own():
    data = EXAMPLES["fedavg"]().federation
    other = Federation(
        data.x + 1, data.y, data.train, data.validation, data.test, data.classes, tags=data.tags
    )
    both = merge_federations([data, other])
    assert torch.equal(both.x[both.train[data.clients]], other.x[other.train[0]])


def test_runs_that_differ_in_structure_are_refused():
    lanes = changed("fedavg", [{"epochs": 1}, {"epochs": 2}])
    with pytest.raises(UserError, match="cannot be lanes of one: epochs differs"):
        Lanes(lanes)


def wild(name: str, times: float = 1e300) -> list[Experiment]:
    """Three lanes of one example, the second of which has a learning rate that no model
    survives.
    """
    example = EXAMPLES[name]()
    data = example.federation
    actual = []
    for seed, factor in ((0, 1.0), (0, times), (1, 0.5)):
        experiment = example.experiment(data)
        methods = {group: replace(m, lr=m.lr * factor) for group, m in experiment.methods.items()}
        actual.append(Experiment(methods, data, seed, experiment.groups))
    return actual


def assert_every_lane_is_alone(
    lanes: list[Experiment], cohorts: list[list[int]], rounds: int = 3
) -> None:
    """Every lane ends with the numbers of its run alone: within 1e-6, and NaN where
    that has NaN.
    """
    together, engine = Lanes(lanes), Vectorised()
    states = apart = [experiment.start() for experiment in lanes]
    for _ in range(rounds):
        ends = together.run_round(states, cohorts, engine, "test")
        alone = [run_round(*given, engine, "test") for given in zip(lanes, apart, cohorts)]
        states, apart = [end[0] for end in ends], [end[0] for end in alone]
        assert [one.refusals for _, one in ends] == [other.refusals for _, other in alone]
    scores = together.evaluate_parts(
        states, [range(s.data.clients) for s in lanes], engine, ["test"]
    )
    for one, other, actual, experiment in zip(states, apart, scores, lanes):
        assert_close(one, other)
        expected = evaluate_parts(
            experiment, other, range(experiment.data.clients), engine, ["test"]
        )
        assert {v: {c: n[0] for c, n in by.items()} for v, by in actual.scores["test"].items()} == {
            v: {c: n[0] for c, n in by.items()} for v, by in expected.scores["test"].items()
        }


def assert_close(one: State, other: State) -> None:
    trees = [(one.server, other.server), *((one.memory[n], other.memory[n]) for n in other.memory)]
    assert one.private.keys() == other.private.keys()
    for mine, expected in (*trees, *((one.private[c], other.private[c]) for c in other.private)):
        for block, params in expected.items():
            for key, value in params.items():
                torch.testing.assert_close(
                    mine[block][key], value, atol=1e-6, rtol=1e-5, equal_nan=True
                )


@pytest.mark.parametrize(
    "name", ["fedavg", "pfedmb", "scaffold", "fedper", "ifca", "fedadam", "modfl", "fedamp"]
)
def test_lanes_beside_one_that_explodes_end_as_if_they_were_alone(name: str) -> None:
    lanes = wild(name)
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])


def spoiled(experiment: Experiment) -> Federation:
    """The same clients, but the first one's inputs are infinite."""
    data = experiment.data
    x = data.x.clone()
    x[data.train[0]] = torch.inf
    return Federation(
        x, data.y, data.train, data.validation, data.test, data.classes, tags=data.tags
    )


@pytest.mark.parametrize("name", ["fedavg", "pfedmb", "scaffold", "fedper", "ifca"])
def test_a_client_that_is_refused_in_one_lane_takes_part_in_the_others(name: str) -> None:
    one = settings(name, (1.0,))[0]
    lanes = [one, replace(one, data=spoiled(one)), replace(one, seed=1)]
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])
    _, report = Lanes(lanes).run_round([s.start() for s in lanes], [[0, 1, 2]] * 3, Vectorised())[1]
    assert [refusal.client for refusal in report.refusals] == [0]


@pytest.mark.parametrize("name", ["fedavg", "pfedmb", "scaffold", "fedper", "ifca"])
def test_lanes_with_cohorts_of_other_sizes_or_nobody_end_as_if_they_were_alone(name: str) -> None:
    lanes = settings(name, (1.0,)) * 2
    assert_every_lane_is_alone(lanes, [[0, 1, 2], [1], [0, 2], [1, 2]])
    assert_every_lane_is_alone(lanes, [[0, 1, 2], [], [0, 2], [1]])


@pytest.mark.parametrize("name", ["fedavg", "modfl"])
def test_the_weights_of_a_lane_are_capped_as_if_it_were_alone(name: str) -> None:
    lanes = [
        replace(one, share=share)
        for one, share in zip(settings(name, (1.0,)) * 2, (0.2, 1.0, 0.4, 0.2))
    ]
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])


@pytest.mark.parametrize("name", ["fedamp", "scaffold"])
def test_lanes_with_clients_that_never_train_end_as_if_they_were_alone(name: str) -> None:
    lanes = [
        replace(one, unseen=unseen)
        for one, unseen in zip(settings(name, (1.0,)) * 2, ([2], [0], [], [1, 2]))
    ]
    cohorts = [
        [client for client in range(s.data.clients) if client not in s.unseen] for s in lanes
    ]
    assert_every_lane_is_alone(lanes, cohorts)


# numbers that are made into a method's own nets, once
IN_NETS = {
    "fedmn": {"dropout", "spread", "router_spread"},
    "fedmn_reference": {"dropout", "spread"},
    "flow_v2": {"policy_dropout"},
}


@pytest.mark.parametrize("name", METHODS)
def test_lanes_may_differ_in_every_number_but_those_that_are_made_into_nets(name: str) -> None:
    reasons = number_reasons(with_all_numbers(EXAMPLES[name]()))
    assert {*number_options(METHODS[name])} <= reasons.keys()
    fixed = {option: reason for option, reason in reasons.items() if reason}
    assert fixed.keys() == IN_NETS.get(name, set())
    assert all("is made from it once" in reason for reason in fixed.values())


def changed(name: str, changes: Sequence[Mapping[str, Any]], **same: Any) -> list[Experiment]:
    """The example of a method with some options, once for each set of others."""
    return [EXAMPLES[name]().experiment(**same, **own) for own in changes]


MOMENTA = [{"optimizer": SGD(momentum=m, nesterov=True, weight_decay=m / 9)} for m in (0.5, 0.9)]
DECAYS = [{"optimizer": SGD(weight_decay=decay)} for decay in (0.0, 0.1)]
BETAS = [{"optimizer": Adam((b, b), 1e-3 * b, b / 9)} for b in (0.5, 0.9)]
PULLED = [{"optimizer": AdamW((0.9, 0.99), weight_decay=d)} for d in (0.1, 0.5)]


@pytest.mark.parametrize(
    ("name", "changes", "same"),
    [
        ("per_fedavg", [{"delta": d, "inner_lr": d} for d in (0.1, 0.3)], {"variant": "hf"}),
        (
            "apfl",
            [{"alpha_decay": d, "alpha_lr": 1 - d} for d in (0.0, 0.3)],
            {"adapt_alpha": "step"},
        ),
        ("pfedmb", [{"drop_below": d} for d in (0.0, 0.34)], {"alpha_lr": 3.0}),
        (
            "pfedmb",
            [*DECAYS[1:], {"optimizer": SGD(weight_decay=0.3)}],
            {"compressed_upload": True},
        ),
        ("fedavg", [{"lr": Exponential(0.2, 0.02, 3)}, {"lr": 0.1}, {"lr": Ramp(0.1, 0.3, 2)}], {}),
        ("scaffold", [{"lr": Exponential(0.2, 0.02, 3)}, {"lr": 0.1}], {}),
        ("fedavg", MOMENTA, {}),
        ("fedavg", DECAYS, {}),
        ("fedavg", BETAS, {}),
        ("fedavg", PULLED, {}),
        ("flow", MOMENTA, {"router_pace": 2.0}),
        ("fedavg", MOMENTA, {"keep_optimizer": True}),
    ],
)
def test_lanes_that_differ_in_numbers_end_as_if_they_were_alone(name, changes, same) -> None:
    lanes = changed(name, changes, **same)
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])


def test_lanes_at_other_rounds_end_as_if_they_were_alone() -> None:
    """The second has done two rounds when the first begins; its rate falls, and hooks use it."""
    lanes = changed("scaffold", [{"lr": Exponential(0.2, 0.02, 4)}] * 2)
    together, engine, everybody = Lanes(lanes), Vectorised(), range(lanes[0].data.clients)
    ahead = lanes[1].start()
    for _ in range(2):
        ahead = run_round(lanes[1], ahead, everybody, engine)[0]
    states = apart = [lanes[0].start(), ahead]
    for _ in range(2):
        ends = together.run_round(states, [everybody] * 2, engine)
        states = [state for state, _ in ends]
        apart = [run_round(*own, everybody, engine)[0] for own in zip(lanes, apart)]
    assert [state.round for state in states] == [2, 4]
    for one, other in zip(states, apart):
        assert_close(one, other)


def test_what_is_structure_starts_another_stack() -> None:
    reasons = [
        ("fedavg", [{"epochs": 1}, {"epochs": 2}], "epochs differs, and is not a number in both"),
        (
            "fedavg_ft",
            [{"tune_lr": None}, {"tune_lr": 0.1}],
            "tune_lr differs, and is not a number",
        ),
        ("fedavg", [{"optimizer": SGD()}, {"optimizer": SGD(momentum=0.5)}], "more than numbers"),
        ("fedavg", [{"optimizer": SGD()}, {"optimizer": Adam()}], "more than numbers"),
        ("fedavg", [{"optimizer": Own(0.1)}, {"optimizer": Own(0.2)}], "for all clients alike"),
        ("pfedmb", [{"branches": 2}, {"branches": 3}], "branches differs"),
    ]
    for name, changes, reason in reasons:
        assert reason in why_not(changed(name, changes))


@dataclass(frozen=True)
class Own(SGD):
    """An optimizer of a user, who did not think of stacks."""

    has_client_numbers: ClassVar[bool] = False
    rate: float = 1.0


@dataclass(frozen=True, eq=False)
class Keeps(Moon):
    """Half of its strength stands beside its options."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", self.strength / 2)


def test_a_method_that_keeps_something_beside_its_options_has_no_numbers_of_lanes() -> None:
    example = replace(EXAMPLES["moon"](), method=Keeps)
    lanes = [example.experiment(strength=strength) for strength in (0.5, 1.0)]
    assert why_not(lanes) == "strength differs, and Keeps keeps half beside its options"


@dataclass(frozen=True, eq=False)
class InLambda(Moon):
    """Its strength is read when phases are made, not when the loss is."""

    def phases(self) -> list[Phase]:
        times = self.strength
        loss = lambda blocks, batch: times * self.contrastive_loss(blocks, batch)
        return [Phase((self.step("model", loss=loss),), self.epochs)]


def test_a_loss_that_holds_a_number_is_made_anew_for_each_lane() -> None:
    example = replace(EXAMPLES["moon"](), method=InLambda)
    lanes = [example.experiment(strength=strength) for strength in (0.5, 2.0)]
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])


@dataclass(frozen=True, eq=False)
class Decides(Moon):
    """Its loss asks whether its strength is large."""

    def contrastive_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        usual = super().contrastive_loss(blocks, batch)
        return 2 * usual if self.strength > 1 else usual


def test_lanes_of_a_method_that_decides_by_a_number_are_stacks_of_their_own() -> None:
    example = replace(EXAMPLES["moon"](), method=Decides)
    lanes = [example.experiment(strength=strength) for strength in (0.5, 2.0)]
    cohorts = [list(range(s.data.clients)) for s in lanes]
    assert_every_lane_is_alone(lanes, cohorts)
    together = Lanes(lanes)
    together.run_round([s.start() for s in lanes], cohorts, Vectorised())
    assert together.apart == ["Decides"]


def test_lanes_with_other_largest_norms_end_as_separate_runs() -> None:
    example = EXAMPLES["fedavg"]()
    lanes = [example.experiment(clip_norm=largest) for largest in (0.5, 0.05)]
    starts, everybody = [lane.start() for lane in lanes], [example.everybody] * len(lanes)
    ends = Lanes(lanes).run_round(starts, everybody, Vectorised())
    for lane, start, (end, _) in zip(lanes, starts, ends, strict=True):
        alone, _ = run_round(lane, start, example.everybody, Vectorised())
        for name, value in alone.server["model"].items():
            torch.testing.assert_close(end.server["model"][name], value, rtol=1e-12, atol=1e-12)
