"""ModFL against the paper, its limit cases, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.core.plan import plan
from fedblocks.core.rules import Average
from fedblocks.core.state import State
from fedblocks.core.uploads import Upload
from fedblocks.data.federation import Federation
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.methods._common.clustering import alike, complete_linkage
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.modfl import ModFL

from . import modfl
from .definition import Course
from .harness import (
    BATCH,
    CLASSES,
    COHORTS,
    ENGINES,
    FEATURES,
    SEED,
    SIZES,
    counts,
    federation,
    initial,
    mlp_net,
    task_of,
)
from .plain import Descent, Params

USE = (0, 1, 0, 1, 2, 2)  # cohort 2 has an empty client and one that never takes part
DEVICE = ("old", "new", "new", "old", "old", "new")
EVERYBODY = tuple(range(len(SIZES)))
OTHER_NAMES = {"1": "0", "3": "2", "5": "4"}  # layers of the wide net, and of plain.py


def tagged(use: tuple[int, ...] = USE) -> Federation:
    return replace(federation(), tags={"operation": np.array(use)})


def wide_module(features: int = 6) -> nn.Module:
    """Another architecture, whose layers have other names; its operation module is that
    of the small net.
    """
    body = [nn.Identity(), nn.Linear(FEATURES, 9), nn.ReLU(), nn.Linear(9, features), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(features, CLASSES))


def wide_net(features: int = 6) -> Net:
    return Net.of(lambda: wide_module(features), dtype=torch.float64)


def made(net: Net | None = None, **options: Any) -> ModFL:
    usual: dict[str, Any] = {
        "lr": 0.1,
        "epochs": 2,
        "batch_size": BATCH,
        "optimizer": SGD(momentum=0.5),
    }
    return ModFL(net or mlp_net(), **{**usual, **options})


DESCENT = Descent(0.1, momentum=0.5)
COURSES: dict[str, list[Course]] = {"courses": [Course(epochs=2)], "adapting": [], "joining": []}


def generations(wide: Net | None = None, **options: Any) -> Experiment:
    methods = {
        "old": made(configuration="old"),
        "new": made(wide or wide_net(), configuration="new", **options),
    }
    return Experiment(methods, tagged(), SEED, groups=DEVICE)


def play(
    experiment: Experiment, engine: Any, cohorts: tuple[tuple[int, ...], ...] = COHORTS
) -> State:
    state = experiment.start()
    for cohort in cohorts:
        state, report = run_round(experiment, state, cohort, engine)
        assert report.refusals == []
    return state


def same(found: dict[str, torch.Tensor], slot: int, expected: Params) -> None:
    """A slot of the server, whose names may lack the path of the head, and the oracle's
    tensors, in their order.
    """
    assert len(found) == len(expected)
    for value, wanted in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_allclose(value[slot].numpy(), wanted, rtol=0, atol=1e-10)


def same_answers(
    experiment: Experiment, state: State, expected: modfl.Modules, engine: Any
) -> None:
    found = evaluate(experiment, state, EVERYBODY, engine)["personal"]
    for client, z in expected.logits.items():
        right, scored, loss = counts(z, experiment.data.y.numpy()[experiment.data.test[client]])
        assert found[client][:2] == (right, scored)
        assert found[client][2] == pytest.approx(loss, abs=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_architectures_average_their_operation_modules_together(engine: str) -> None:
    experiment = generations()
    wide = {
        f"{OTHER_NAMES[k.split('.')[0]]}.{k.split('.')[1]}": v
        for k, v in initial(wide_module, slot=0).items()
    }
    task = task_of(experiment.methods["old"], **COURSES)
    device = {i: int(name == "new") for i, name in enumerate(DEVICE)}
    expected = modfl.run(task, DESCENT, [task.start[0], wide], device, dict(enumerate(USE)))
    state = play(experiment, ENGINES[engine])
    assert state.server.keys() == {"configuration/old", "configuration/new", "operation"}
    same(state.server["configuration/old"], 0, expected.configurations[0])
    same(state.server["configuration/new"], 0, expected.configurations[1])
    for cohort, operation in enumerate(expected.operations):
        same(state.server["operation"], cohort, operation)
    same_answers(experiment, state, expected, ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("warmup", [1, 2])
def test_cohorts_are_found_where_operation_modules_change_alike(warmup: int, engine: str) -> None:
    method = made(cohorts="found", operations=2, warmup=warmup)
    expected = modfl.run_found(task_of(method, **COURSES), DESCENT, operations=2, warmup=warmup)
    same_cohorts(method, expected, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("operations", [2, 3])
def test_cohorts_are_found_where_first_updates_of_whole_models_are_alike(
    operations: int, engine: str
) -> None:
    method = made(cohorts="found", operations=operations, start="updates")
    task = task_of(method, **COURSES)
    expected = modfl.run_found(task, DESCENT, operations, warmup=1, by_updates=True)
    same_cohorts(method, expected, engine)


def test_first_updates_are_those_of_both_modules_and_a_warmup_is_judged_by_one() -> None:
    ids, weights = torch.arange(2), torch.ones(2, 1)
    body, head = torch.tensor([[2.0], [4.0]]), torch.tensor([[7.0], [9.0]])  # copies
    uploads = {
        "configuration": Upload("configuration", ids, {"w": body}, weights, False, Average()),
        "operation": Upload("operation", ids, {"v": head}, weights, False, Average()),
    }
    before = {"configuration": {"w": torch.ones(1, 1)}, "operation": {"v": torch.full((3, 1), 5.0)}}
    updates = made(cohorts="found", start="updates").changes(before, uploads)
    assert updates.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert made(cohorts="found").changes(before, uploads).tolist() == [[-1.0], [1.0]]


def same_cohorts(method: ModFL, expected: modfl.Modules, engine: str) -> None:
    experiment = Experiment.of(method, federation(), SEED)
    state = play(experiment, ENGINES[engine])
    same(state.server["configuration"], 0, expected.configurations[0])
    for cohort, operation in enumerate(expected.operations):
        same(state.server["operation"], cohort, operation)
    known = [expected.use.get(i, -1) for i in EVERYBODY]
    assert state.server["membership"]["value"].squeeze(1).tolist() == known
    assert set(known) == {-1, *range(method.slots)}
    same_answers(experiment, state, expected, ENGINES[engine])


def test_operation_modules_start_alike() -> None:
    weight = generations().start().server["operation"]["weight"]
    assert (
        len(weight) == 3 and torch.equal(weight[0], weight[1]) and torch.equal(weight[1], weight[2])
    )


def test_tasks_have_operation_modules_of_their_own() -> None:
    methods = {
        "old": made(task="braking"),
        "new": made(wide_net(), configuration="new", task="steering"),
    }
    server = Experiment(methods, tagged(), SEED, groups=DEVICE).start().server
    assert server.keys() == {
        "configuration",
        "configuration/new",
        "operation/braking",
        "operation/steering",
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_one_configuration_and_one_operation_cohort_is_fedavg(engine: str) -> None:
    data = tagged((0,) * len(SIZES))
    ours = play(Experiment.of(made(operations=1), data, SEED), ENGINES[engine])
    plain = FedAvg(mlp_net(), lr=0.1, epochs=2, batch_size=BATCH, optimizer=SGD(momentum=0.5))
    theirs = play(Experiment.of(plain, data, SEED), ENGINES[engine]).server["model"]
    both = {
        **ours.server["configuration"],
        **{f"4.{k}": v for k, v in ours.server["operation"].items()},
    }
    assert both.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(both[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_operation_cohort_for_each_client_is_fedper(engine: str) -> None:
    data = tagged(EVERYBODY)
    ours = play(Experiment.of(made(operations=len(SIZES)), data, SEED), ENGINES[engine])
    personal = FedPer(mlp_net(), lr=0.1, epochs=2, batch_size=BATCH, optimizer=SGD(momentum=0.5))
    theirs = play(Experiment.of(personal, data, SEED), ENGINES[engine])
    for name, value in theirs.server["body"].items():
        torch.testing.assert_close(ours.server["configuration"][name], value, rtol=0, atol=1e-12)
    for client, own in theirs.private.items():
        for name, value in own["head"].items():
            found = ours.server["operation"][name.removeprefix("4.")][client]
            torch.testing.assert_close(found, value, rtol=0, atol=1e-12)


def test_a_client_is_sent_and_sends_one_configuration_and_one_operation_module() -> None:
    experiment = Experiment.of(made(), tagged(), SEED)
    _, report = run_round(experiment, experiment.start(), EVERYBODY, ENGINES["vectorised"])
    body, operation = 8 * (FEATURES * 7 + 7 + 7 * 6 + 6), 8 * (6 * CLASSES + CLASSES)
    assert (
        report.bytes_down["configuration"][0] == body
        and report.bytes_down["operation"][0] == operation
    )
    assert report.bytes_up["operation"][0] == operation + 8 * 3  # and a weight for each cohort
    assert "membership" not in report.bytes_down


def test_groups_keep_the_order_of_their_first_members() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [-1.0, 0.0], [0.1, 2.0]])
    assert alike(rows, 3).tolist() == [0, 1, 0, 2, 1]
    assert alike(rows, 9).tolist() == [0, 1, 2, 3, 4]
    assert complete_linkage(np.ones((3, 3)), 1).tolist() == [0, 0, 0]


def test_an_unknown_and_an_empty_client_disturb_no_clustering() -> None:
    experiment = Experiment.of(made(cohorts="found", operations=2, warmup=1), federation(), SEED)
    with_empty = play(experiment, ENGINES["sequential"], cohorts=((0, 1, 2, 3, 4),))
    without = play(experiment, ENGINES["sequential"], cohorts=((0, 1, 2, 3),))
    assert torch.equal(
        with_empty.server["membership"]["value"], without.server["membership"]["value"]
    )
    for name, value in without.server["operation"].items():
        torch.testing.assert_close(with_empty.server["operation"][name], value, rtol=0, atol=1e-12)


def test_more_cohorts_than_clients_leave_the_others_as_they_are() -> None:
    experiment = Experiment.of(made(cohorts="found", operations=4, warmup=1), federation(), SEED)
    state = play(experiment, ENGINES["sequential"], cohorts=((0, 1),))
    weight = state.server["operation"]["weight"]
    assert not torch.equal(weight[0], weight[1]) and torch.equal(weight[2], weight[3])


def test_a_lonely_client_is_remarked_and_not_refused() -> None:
    assert made().remarks({"operation": torch.tensor([0, 1, 0, 2, 1])}) == [
        "client 3 is alone in its operation cohort, which makes its operation module a private "
        "one, as in FedPer"
    ]
    assert made(cohorts="found").remarks({}) == []


def test_modules_that_do_not_fit_together_are_refused_by_name_and_shape() -> None:
    with pytest.raises(
        UserError,
        match=r'group "new" shares "operation".*"weight" is \[3, 4, '
        r"7\].* \[3, 4, 6\]",
    ):
        generations(wide_net(features=7)).start()
    with pytest.raises(UserError, match=r'"bias" is \[5, 4\], in the other group \[3, 4\]'):
        generations(operations=5).start()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"operations": 0}, "operations = 0"),
        ({"cohorts": "guessed"}, "guessed"),
        ({"warmup": 0}, "warmup = 0"),
        ({"operations": "auto"}, 'operations = "auto"'),
        ({"start": "updates"}, 'start = "updates"'),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        made(**options)


def test_clients_without_a_known_cohort_are_refused_by_name() -> None:
    for data, told in (
        (federation(), 'no tag "operation"'),
        (tagged((0, 1, 2, 3, 0, 0)), "client 3 is of operation cohort 3"),
        (tagged((0, 1, -1, 0, 0, 0)), "client 2 is of operation cohort -1"),
    ):
        experiment = Experiment.of(made(), data, SEED)
        with pytest.raises(UserError, match=told):
            run_round(experiment, experiment.start(), EVERYBODY, ENGINES["sequential"])


def test_a_plan_needs_tags_only_where_cohorts_are_given() -> None:
    assert made().tags == ("operation",) and made(cohorts="found").tags == ()
    assert [row["block"] for row in plan(made(cohorts="found")).rows][-1] == "membership"
