"""A client that sends nonsense counts as absent, and the reason is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.admission import cap_weights
from fedblocks.core.net import Net
from fedblocks.engines import speculation
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedper import FedPer


@pytest.fixture(autouse=True, params=[False, True], ids=["straight", "speculating"])
def speculating(request, monkeypatch) -> bool:
    """As on a CPU and as on a GPU: both must say the same."""
    monkeypatch.setattr(speculation, "pays_on", lambda device: request.param)
    return request.param


ENGINES = pytest.mark.parametrize(
    "engine", [Sequential(), Vectorised(chunk=3)], ids=lambda e: e.name
)


def net() -> Net:
    return Net.of(
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), dtype=torch.float64
    )


def spoil(client, value: float):
    return torch.where(
        client.id == 2, torch.full_like(client.size, value), torch.ones_like(client.size)
    )


@dataclass(frozen=True, eq=False)
class Spoilt(FedPer):
    """Client 2 multiplies its body by a number that it should not."""

    by: Any = float("nan")  # not a number that is checked

    def finish(self, blocks, start, client):
        return {
            **blocks,
            "body": {k: v * spoil(client, self.by) for k, v in blocks["body"].items()},
        }


@dataclass(frozen=True, eq=False)
class Fragile(Spoilt):
    """It fails at the end of a round if anything is not finite, or always."""

    always: bool = False

    def conclude(self, server, before, uploads, cohort):
        if self.always or not all(v.isfinite().all() for v in server["body"].values()):
            raise ArithmeticError("fragile")
        return server


@dataclass(frozen=True, eq=False)
class Greedy(FedAvg):
    """Client 2 asks for a weight that it should not have."""

    weight: Any = -1.0

    def writes(self, blocks, client):
        return {"model": (client.size * spoil(client, self.weight))[None]}


def assert_as_if_absent(method, good, federation, engine, reason: str) -> None:
    bad, rest = Experiment.of(method, federation), Experiment.of(good, federation)
    state, report = run_round(bad, bad.start(), range(4), engine)
    expected, _ = run_round(rest, rest.start(), [0, 1, 3], engine)
    for name, block in expected.server.items():
        for key, value in block.items():
            assert torch.allclose(state.server[name][key], value, atol=1e-12)
    assert set(state.private) == set(expected.private)
    assert [(r.client, r.reason) for r in report.refusals] == [(2, reason)]


@ENGINES
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_client_with_numbers_that_are_not_finite_is_as_good_as_absent(federation, engine, value):
    options = {"batch_size": 4}
    assert_as_if_absent(
        Spoilt(net(), by=value, **options),
        FedPer(net(), **options),
        federation,
        engine,
        "not-finite",
    )


@ENGINES
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_client_with_a_bad_weight_is_as_good_as_absent(federation, engine, value):
    options = {"batch_size": 4}
    assert_as_if_absent(
        Greedy(net(), weight=value, **options),
        FedAvg(net(), **options),
        federation,
        engine,
        "bad-weight",
    )


@ENGINES
def test_a_method_that_cannot_conclude_with_nonsense_is_not_asked_to(federation, engine):
    options = {"batch_size": 4}
    assert_as_if_absent(
        Fragile(net(), **options), FedPer(net(), **options), federation, engine, "not-finite"
    )


@ENGINES
def test_an_error_of_a_method_that_concludes_with_sound_numbers_is_raised(federation, engine):
    experiment = Experiment.of(Fragile(net(), batch_size=4, by=1.0, always=True), federation)
    with pytest.raises(ArithmeticError, match="fragile"):
        run_round(experiment, experiment.start(), range(4), engine)


@ENGINES
def test_a_round_in_which_everyone_is_refused_changes_nothing(federation, engine):
    one = Experiment.of(Spoilt(net()), federation)
    start = one.start()
    state, report = run_round(one, start, [2], engine)
    assert state.round == 1 and len(report.refusals) == 1 and not state.private
    assert all(torch.equal(state.server["body"][k], v) for k, v in start.server["body"].items())


@ENGINES
@pytest.mark.parametrize("weight", [1e18, 1.5])
def test_a_weight_above_the_number_of_labels_is_refused(engine, weight: float, federation) -> None:
    assert_as_if_absent(
        Greedy(net(), weight=weight), FedAvg(net()), federation, engine, "bad-weight"
    )


@dataclass(frozen=True, eq=False)
class Misfit(FedPer):
    """All clients end with a body that is not as the server's."""

    change: Callable[[Tensor], Tensor] = Tensor.float

    def finish(self, blocks, start, client):
        return {**blocks, "body": {k: self.change(v) for k, v in blocks["body"].items()}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [(Tensor.float, "dtype"), (lambda v: v[:1], "shape")],
    ids=["dtype", "shape"],
)
def test_copies_that_do_not_fit_their_slots_are_refused_and_nothing_raises(
    change, reason: str, federation
) -> None:
    experiment = Experiment.of(Misfit(net(), change=change), federation)
    start = experiment.start()
    after, report = run_round(experiment, start, range(4), Sequential())
    assert [(r.client, r.reason) for r in report.refusals] == [(c, reason) for c in range(4)]
    assert all(
        torch.equal(after.server[n][k], v)
        for n, block in start.server.items()
        for k, v in block.items()
    )


def cut_by_search(weights: list[float], share: float) -> list[float]:
    """The level to which weights are cut, found by halving."""
    low, high = 0.0, max(weights)
    for _ in range(200):
        level = (low + high) / 2
        cut = [min(w, level) for w in weights]
        low, high = (level, high) if max(cut) <= share * sum(cut) else (low, level)
    return [min(w, low) for w in weights]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.75])
def test_nobody_decides_more_than_a_share_of_a_slot(share: float) -> None:
    weights = torch.tensor(
        [[80.0, 1, 5, 9], [10, 1, 5, 4], [6, 1, 0, 3], [4, 1, 5, 2]], dtype=torch.double
    )
    cut = cap_weights(weights, share)
    for slot in range(4):
        own = weights[:, slot].tolist()
        if sum(w > 0 for w in own) * share >= 1:  # enough clients write it
            assert cut[:, slot].tolist() == pytest.approx(cut_by_search(own, share), rel=1e-9)
    assert torch.equal(cap_weights(weights, 0.9), weights)


def test_where_too_few_write_a_slot_all_count_the_same() -> None:
    weights = torch.tensor([[8.0, 3], [2, 0], [0, 0]], dtype=torch.double)
    assert cap_weights(weights, 0.3).tolist() == [[2, 3], [2, 0], [0, 0]]


@ENGINES
def test_a_share_cuts_the_weights_of_a_simulated_round(engine, federation) -> None:
    experiment = Experiment.of(Greedy(net(), weight=1.0), federation)
    whole, _ = run_round(experiment, experiment.start(), range(4), engine)
    experiment = replace(experiment, share=0.3)
    cut, report = run_round(experiment, experiment.start(), range(4), engine)
    sizes = [len(federation.train[c]) for c in range(4)]
    assert max(sizes) > 0.3 * sum(sizes) and report.refusals == []
    assert not torch.allclose(
        cut.server["model"]["0.weight"], whole.server["model"]["0.weight"], atol=1e-9
    )


def other_weights(engine, federation, weight: float) -> tuple[dict[str, Tensor], list[str]]:
    """The model after a round in which client 2 multiplies its weight, under a cap; and
    the reasons for refusals.
    """
    experiment = replace(Experiment.of(Greedy(net(), weight=weight), federation), share=0.3)
    state, report = run_round(experiment, experiment.start(), range(4), engine)
    return state.server["model"], [
        f"{refusal.client}: {refusal.reason}" for refusal in report.refusals
    ]


@ENGINES
@pytest.mark.parametrize("weight", [1e18, -1.0, float("nan")])
def test_a_cap_comes_after_the_gate_and_a_refused_client_moves_nobody(
    engine, weight: float, federation
) -> None:
    model, refusals = other_weights(engine, federation, weight)
    absent = replace(Experiment.of(FedAvg(net()), federation), share=0.3)
    expected, _ = run_round(absent, absent.start(), [0, 1, 3], engine)
    assert refusals == ["2: bad-weight"]
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(model[key], value, rtol=0, atol=1e-12)


def test_a_cap_is_a_share_of_what_all_groups_write_to_a_slot(federation) -> None:
    """Two groups federate one model: 9 + 4 and 7 + 5 examples, of which nobody may have
    more than 0.3.
    """
    methods = {"a": FedAvg(net()), "b": FedAvg(net())}
    experiment = Experiment(methods, federation, 0, ["a", "a", "b", "b"], share=0.3)
    grouped, _ = run_round(experiment, experiment.start(), range(4), Sequential())
    alone = replace(Experiment.of(FedAvg(net()), federation), share=0.3)
    expected, _ = run_round(alone, alone.start(), range(4), Sequential())
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(grouped.server["model"][key], value, rtol=0, atol=1e-12)


@ENGINES
def test_numbers_whose_squares_overflow_are_refused_whoever_looks(engine, federation) -> None:
    """3e19 is a float32 and its square is not; the mean of four clients would hide it."""
    small = Net.of(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)))
    data = replace(federation, x=federation.x.float())

    @dataclass(frozen=True, eq=False)
    class Large(FedPer):
        def finish(self, blocks, start, client):
            large = {k: torch.where(client.id == 2, 3e19, v) for k, v in blocks["body"].items()}
            return {**blocks, "body": large}

    experiment = Experiment.of(Large(small, batch_size=4), data)
    _, report = run_round(experiment, experiment.start(), range(4), engine)
    assert [(r.client, r.reason) for r in report.refusals] == [(2, "not-finite")]


@ENGINES
def test_a_copy_without_weight_is_looked_at_too(engine, federation) -> None:
    """Nobody writes the slot, so that no sum shows the NaN."""

    @dataclass(frozen=True, eq=False)
    class Silent(Spoilt):
        def writes(self, blocks, client):
            return {"body": torch.zeros_like(client.size).view(1)}

    experiment = Experiment.of(Silent(net(), batch_size=4), federation)
    _, report = run_round(experiment, experiment.start(), range(4), engine)
    assert [(r.client, r.reason) for r in report.refusals] == [(2, "not-finite")]


@dataclass(frozen=True, eq=False)
class Stumbling(Spoilt):
    """Its end of a round fails the first so many times, and counts its calls."""

    failures: Any = 0
    calls: Any = None

    def conclude(self, server, before, uploads, cohort):
        self.calls.append(len(cohort))
        if len(self.calls) <= self.failures:
            raise ArithmeticError("stumbling")
        return server


def test_an_error_on_speculative_numbers_is_met_again_on_admitted_ones(
    federation, speculating
) -> None:
    method = Stumbling(net(), batch_size=4, failures=9, calls=[])
    experiment = Experiment.of(method, federation)
    with pytest.raises(ArithmeticError, match="stumbling"):
        run_round(experiment, experiment.start(), range(4), Sequential())
    assert method.calls == ([4, 3] if speculating else [3])  # client 2 is refused in between


def test_a_round_that_went_as_speculated_concludes_once(federation, speculating) -> None:
    method = Stumbling(net(), batch_size=4, by=1.0, calls=[])
    experiment = Experiment.of(method, federation)
    run_round(experiment, experiment.start(), range(4), Sequential())
    assert method.calls == [4]


def test_an_interrupt_in_the_end_of_a_round_is_raised_at_once(federation, speculating) -> None:
    class Interrupted(Stumbling):
        def conclude(self, server, before, uploads, cohort):
            self.calls.append(len(cohort))
            raise KeyboardInterrupt

    method = Interrupted(net(), batch_size=4, by=1.0, calls=[])
    experiment = Experiment.of(method, federation)
    with pytest.raises(KeyboardInterrupt):
        run_round(experiment, experiment.start(), range(4), Sequential())
    assert method.calls == [4]
