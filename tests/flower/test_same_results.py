"""A federation of messages ends as a simulated one: every method, every switch, scores
and bytes included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.augmentations import Noise, Scale
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD
from fedblocks.engines.round import Experiment, evaluate
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.local import answers_of, exchange
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask, Closed
from fedblocks.flower.wire.admission import check_counts
from fedblocks.flower.wire.messages import Malformed
from fedblocks.methods.modfl import ModFL
from fedblocks.testing import EXAMPLES, small_federation
from fedblocks.testing.compare import Leaves, differences, report_leaves, state_leaves
from fedblocks.testing.extras import normed_net
from fedblocks.testing.federations import without_training_rows
from fedblocks.testing.rounds import run
from fedblocks.testing.sequences import sequence_example
from fedblocks.testing.starts import STARTS
from fedblocks.testing.tasks import federations

from .federations import everybody, leaves, played


def scores(by_view: Any) -> Leaves:
    return {
        f"{view}, client {c}": torch.tensor(s)
        for view, row in by_view.items()
        for c, s in row.items()
    }


def evaluated(closed: Closed) -> Leaves:
    return scores(
        {name.removeprefix("test/"): row for name, row in closed.evaluated.counts.items()}
    )


def assert_the_same(make: Any, cohorts: list[list[int]], folder: Path) -> None:
    """Blocks, personal blocks, bytes and scores, with a setting of its own for each of the two."""
    simulated = run(make(), Sequential(), cohorts, score="test")
    server, sides = everybody(make(), folder)
    progress, reports = played(server, sides, cohorts, Ask(score="test"))
    assert differences(leaves(sides, progress), state_leaves(simulated.last), 1e-6) == []
    for ours, theirs in zip(reports, simulated.reports, strict=True):
        assert differences(report_leaves(ours), report_leaves(theirs)) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_messages_in_process_give_what_the_sequential_engine_gives(
    name: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]()
    assert_the_same(example.experiment, example.cohorts(), tmp_path)


EIGHT = ["fedavg", "fedper", "ditto", "fedem", "pfedmb", "fedmn", "flow_v2", "modfl"]


@pytest.mark.parametrize("name", EIGHT)
def test_messages_give_the_same_where_each_step_has_a_label(name: str, tmp_path: Path) -> None:
    example = sequence_example(EXAMPLES[name]())
    assert_the_same(example.experiment, example.cohorts(), tmp_path)


@pytest.mark.parametrize("kind", ["numbers", "labels"])
@pytest.mark.parametrize("name", EIGHT)
def test_messages_give_the_same_where_numbers_or_several_labels_are_learned(
    name: str, kind: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]()
    data = federations(example.federation)[kind]
    assert_the_same(lambda: example.experiment(data), example.cohorts(), tmp_path)


@pytest.mark.parametrize("measured", [0, 2])
def test_an_answer_with_more_or_fewer_metrics_than_the_task_has_is_refused(measured: int) -> None:
    with pytest.raises(Malformed, match="scores, not"):
        check_counts("test/personal", (1.0, 2.0, 0.5, *[0.0] * measured), 1)
    with pytest.raises(Malformed, match="out of all proportion"):
        check_counts("test/personal", (1.0, 2.0, 0.5, *[1e300] * measured, 1e300), measured + 1)
    check_counts("test/personal", (1.0, 2.0, 0.5, *[float("nan")] * measured), measured)


@pytest.mark.parametrize("name", STARTS)
def test_clusters_of_the_first_updates_are_those_of_the_sequential_engine(
    name: str, tmp_path: Path
) -> None:
    example = STARTS[name]()
    assert_the_same(example.experiment, example.cohorts(), tmp_path)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedavg", {"net": normed_net(), "batch_size": 8, "statistics": "local"}),
        ("pfedmb", {"net": normed_net(), "batch_size": 8, "statistics": "local"}),
        ("fedper", {"optimizer": SGD(momentum=0.9), "keep_optimizer": True}),
        ("fedper", {"optimizer": SGD(weight_decay=0.1, decay="weights")}),
        ("ditto", {"augment": [Noise(0.2), Scale()]}),
        ("pfedmb", {"compressed_upload": True}),
        ("clustered", {"weigh_by": "clients"}),
        ("modfl", {"cohorts": "found"}),
        ("apfl", {"adapt_alpha": "round"}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_every_switch_travels(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    example = EXAMPLES[name]()
    assert_the_same(lambda: example.experiment(**changes), example.cohorts(), tmp_path)


@pytest.mark.parametrize(
    "name", ["fedavg", "fedmn", "pfedmb", "ifca", "clustered", "fedamp", "fedfomo", "scaffold"]
)
def test_a_client_without_training_data_sends_weights_of_zero_and_no_blocks(
    name: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]()
    federation = without_training_rows(example.federation, 1)
    assert_the_same(lambda: example.experiment(federation), [[0, 1, 2, 3], [1, 2, 4, 5]], tmp_path)


def test_architectures_differ_between_clients(tmp_path: Path) -> None:
    def body(width: int) -> Net:
        layers = lambda: nn.Sequential(
            nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 4)
        )
        return Net.of(layers, dtype=torch.float64)

    def experiment() -> Experiment:
        methods = {
            g: ModFL(body(w), operations=2, configuration=g, batch_size=4)
            for g, w in (("a", 3), ("b", 7))
        }
        return Experiment(
            methods, small_federation(tags=ModFL.tags), 0, ["a", "b", "b", "a", "b", "a"]
        )

    assert_the_same(experiment, [[0, 1, 2, 3], [1, 2, 4], [0, 5]], tmp_path)


class Tempered(nn.Module):
    """With a parameter that has no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 4)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x))) / self.temperature


@pytest.mark.parametrize("name", ["fedavg", "fedper", "ditto", "scaffold", "ifca", "fedala"])
def test_parameters_without_dimensions_travel(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]()
    net = Net.of(Tempered, head="head", dtype=torch.float64)
    assert_the_same(lambda: example.experiment(net=net), example.cohorts(), tmp_path)


@pytest.mark.parametrize("name", ["scaffold", "fedfomo", "pfedhn"])
def test_groups_of_one_method_conclude_together(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]()

    def experiment() -> Experiment:
        methods = {group: example.methods()["all"] for group in "ab"}
        return Experiment(methods, example.federation, example.seed, ["a", "b"] * 3)

    assert example.federation.clients == 6
    assert_the_same(experiment, example.cohorts(), tmp_path)


@pytest.mark.parametrize(
    "name", ["fedper", "fedmn", "pfedmb", "clustered", "fedbabu", "flow", "fedrecon", "fedem"]
)
def test_an_evaluation_travels_with_training_or_alone(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]()
    experiment, cohorts = example.experiment(), example.cohorts()[:2]
    states = run(example.experiment(), Sequential(), cohorts).states
    server, sides = everybody(example.experiment(), tmp_path)
    progress, _ = played(server, sides, cohorts[:1])
    both = OpenRound(server, progress, cohorts[1], Ask(evaluate=("test",)))
    exchange(both, answers_of(sides))
    closed = both.close()
    theirs = evaluate(experiment, states[1], cohorts[1], Sequential())
    assert differences(evaluated(closed), scores(theirs), 1e-6) == []
    assert differences(leaves(sides, closed.progress), state_leaves(states[2]), 1e-6) == []
    alone = OpenRound(
        server, closed.progress, example.everybody, Ask(train=False, evaluate=("test",))
    )
    exchange(alone, answers_of(sides))
    after = alone.close()
    assert after.progress is closed.progress and after.report.refusals == []
    assert (
        differences(
            evaluated(after),
            scores(evaluate(experiment, states[2], example.everybody, Sequential())),
            1e-6,
        )
        == []
    )


def test_a_client_is_given_its_own_rows_and_no_others(tmp_path: Path) -> None:
    experiment = EXAMPLES["fedavg"]().experiment()
    _, sides = everybody(experiment, tmp_path)
    for client, side in sides.items():
        own = np.concatenate([rows[client] for rows in experiment.data.parts.values()])
        assert len(side.experiment.data.x) == len(own)
        theirs = experiment.data.x[torch.from_numpy(experiment.data.train[client])]
        assert torch.equal(
            side.experiment.data.x[torch.from_numpy(side.experiment.data.train[client])], theirs
        )


def test_half_precision_travels(tmp_path: Path) -> None:
    net = Net.of(lambda: nn.Linear(6, 4), dtype=torch.bfloat16)
    example = EXAMPLES["fedavg"]()
    data = small_federation(dtype=torch.bfloat16)
    assert_the_same(lambda: example.experiment(data, net=net), [[0, 1, 2], [1, 3]], tmp_path)


@pytest.mark.parametrize(
    "name", ["fedem", "fedper", "fedavg_ft", "fedmn", "pfedmb", "clustered", "flow", "mean_reg_mtl"]
)
def test_a_client_that_joins_is_scored_as_in_a_simulation(name: str, tmp_path: Path) -> None:
    example, cohorts = EXAMPLES[name](), [[0, 1]] * 3
    experiment = example.experiment()
    simulated = run(example.experiment(), Sequential(), cohorts).last
    server, sides = everybody(example.experiment(), tmp_path)
    progress, _ = played(server, sides, cohorts)
    ask = Ask(train=False, evaluate=("test",), joining=True)
    joining = OpenRound(server, progress, [2], ask)
    exchange(joining, answers_of(sides))
    closed = joining.close()
    wanted = evaluate(experiment, simulated, [2], Sequential(), joining=True)
    assert closed.report.refusals == []
    assert differences(evaluated(closed), scores(wanted), 1e-6) == []
