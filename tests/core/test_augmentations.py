"""Augmentation: keyed, a part of the training batch, alike on every engine; not in evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.config.schema import config_schema
from fedblocks.core.augmentations import augment_batch
from fedblocks.core.random import derive, fold, generator
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.rounds import run
from tests.representatives import case_of, mark_others

# in batches of 4: one left over, one example, one full batch, nothing, a half, two full
SIZES = (9, 1, 4, 0, 6, 8)
ALL = (fb.Crop(2, fill=-1.0), fb.Flip(), fb.Jitter(0.3, 0.3), fb.Noise(0.2), fb.Scale(0.2))
pytestmark = pytest.mark.filterwarnings("ignore:.*training rows")


# in training


def federation() -> fb.Federation:
    rng = generator(0, "augmentation")
    users = np.repeat(np.arange(len(SIZES)), [size + 5 for size in SIZES])
    y = rng.integers(0, 4, len(users))
    x = rng.normal(size=(len(users), 1, 8, 8)) + y[:, None, None, None] / 2
    return fb.Federation.from_users(x, y, users, split=(0.6, 0.2, 0.2))


def cnn() -> nn.Module:
    scaled = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout2d(0.2)
    )
    return nn.Sequential(*scaled, nn.Flatten(), nn.Linear(27, 4))


NET = fb.Net.of(cnn, input_shape=(1, 8, 8))
ENGINES = {
    "sequential": fb.Sequential(worth=1),
    "not recorded": fb.Sequential(replay=False),
    "vectorised": fb.Vectorised(chunk=4),
}


# a private head, a mixture, second derivatives; the others in `make test-rest`
DRAWN = ("fedper", "fedem", "per_fedavg")
OTHERS = ("fedavg", "pfedmb", "flow")


@pytest.mark.parametrize("name", [case_of(n, always=n in DRAWN) for n in (*DRAWN, *OTHERS)])
def test_engines_draw_the_same_images(name: str) -> None:
    make = fb.METHODS[name]
    ends = {}
    for engine in ENGINES:
        method = make(NET, lr=0.05, batch_size=4, epochs=3, augment=ALL)
        experiment = fb.Experiment.of(method, federation(), rounds=2)
        done = run(experiment, ENGINES[engine], [list(range(6)), [0, 2, 5]])
        ends[engine] = state_leaves(done.last)
    assert differences(ends["sequential"], ends["not recorded"], 0) == []
    assert differences(ends["sequential"], ends["vectorised"], 1e-5) == []
    without = fb.Experiment.of(make(NET, lr=0.05, batch_size=4, epochs=3), federation(), rounds=2)
    plain = state_leaves(run(without, fb.Vectorised(), [list(range(6)), [0, 2, 5]]).last)
    assert differences(ends["vectorised"], plain, 1e-3) != []


@pytest.mark.parametrize("name", mark_others(EXAMPLES))
def test_every_method_trains_on_noisy_inputs_alike_on_both_engines(name: str) -> None:
    """One method of each kind; all of them in `make test-rest`."""
    example = EXAMPLES[name]()
    noisy = (fb.Noise(0.3), fb.Scale(0.3))
    ends = []
    for engine in (fb.Sequential(), fb.Vectorised()):
        experiment = example.experiment(augment=noisy)
        ends.append(state_leaves(run(experiment, engine, example.cohorts()).last))
    assert differences(*ends, 1e-5) == []
    plain = run(example.experiment(), fb.Vectorised(), example.cohorts()).last
    assert differences(ends[1], state_leaves(plain), 1e-4) != []


def test_a_step_is_that_of_a_plain_loop_on_the_changed_batch() -> None:
    """One client, one full batch in the order of its rows, one step of SGD."""
    net, data = fb.small_net(), fb.small_federation()
    method = fb.Local(net, lr=0.5, batch_size=100, augment=(fb.Noise(0.3),))
    experiment = fb.Experiment.of(method, data)
    state, _ = fb.run_round(experiment, experiment.start(), [0], fb.Sequential())
    (rows,) = batches(method, method.phases()[0], 0, len(data.train[0]), Draw(0, 0, 0, "train"))
    at = data.train[0][rows]
    key = fold(fold(torch.tensor(derive(0, 0, 0, "train", "noise")), 0), 1)
    x = augment_batch(method.augment or (), data.x[at], key)
    module = net.make().double()
    module.load_state_dict(net.init(derive(0, "init", 0)))
    nn.functional.cross_entropy(module(x), data.y[at]).backward()
    for name, value in module.named_parameters():
        expected = value.detach() - 0.5 * value.grad
        torch.testing.assert_close(state.private[0]["model"][name], expected)


def test_evaluation_sees_the_examples_as_they_are() -> None:
    def scores(augment: Any) -> Any:
        experiment = fb.Experiment.of(fb.FedAvg(NET, augment=augment), federation())
        return fb.evaluate(experiment, experiment.start(), range(6), fb.Vectorised(), "train")

    assert scores(ALL) == scores(None)


def test_lanes_draw_what_each_draws_alone() -> None:
    experiments = [
        fb.Experiment.of(fb.FedAvg(NET, lr=lr, batch_size=4, augment=ALL), federation(), seed)
        for seed, lr in enumerate((0.05, 0.1))
    ]
    starts = [one.start() for one in experiments]
    together = Lanes(experiments).run_round(starts, [list(range(6))] * 2, fb.Vectorised())
    for experiment, start, (state, _) in zip(experiments, starts, together, strict=True):
        alone = fb.run_round(experiment, start, range(6), fb.Sequential())[0]
        assert differences(state_leaves(state), state_leaves(alone), 1e-5) == []


def test_runs_of_other_augmentations_are_no_lanes() -> None:
    one, other = (
        fb.Experiment.of(fb.FedAvg(NET, augment=(fb.Noise(spread),)), federation())
        for spread in (0.1, 0.2)
    )
    with pytest.raises(fb.UserError, match="augment differs"):
        Lanes([one, other])


def test_processes_and_a_resumed_run_draw_the_same(tmp_path: Path) -> None:
    method = fb.FedPer(NET, lr=0.05, batch_size=4, augment=[fb.Crop(1), fb.Noise(0.1)])
    data = federation()
    whole = fb.run(method, data, 4, tmp_path / "whole", engine="sequential")

    def stop(done: fb.RoundDone) -> None:
        if done.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.run(method, data, 4, tmp_path / "cut", engine="sequential", on_round=stop)
    cut = fb.resume(tmp_path / "cut", method, data)
    parts = fb.run(method, data, 4, tmp_path / "parts", engine="processes", processes=2)
    leaves = [state_leaves(one.state()) for one in (whole, cut, parts)]
    assert differences(leaves[0], leaves[1], 0) == differences(leaves[0], leaves[2], 0) == []
    other = fb.FedPer(NET, lr=0.05, batch_size=4, augment=[fb.Crop(1), fb.Noise(0.2)])
    with pytest.raises(fb.UserError, match=r"method\.augment was"):
        fb.resume(tmp_path / "cut", other, data)


# said in words


def test_a_configuration_lists_augmentations_and_keeps_them(tmp_path: Path) -> None:
    words = 'method.augment=[{name="noise", spread=0.3}, "scale"]'
    config = fb.read_config("digits-fedavg", [words, "rounds=1", "data.clients=4"])
    table = [{"name": "noise", "spread": 0.3}, {"name": "scale", "spread": 0.1}]
    assert config.method.table["augment"] == table
    run = fb.run(config, tmp_path / "run")
    assert run.config.method.table["augment"] == table
    again = fb.run(fb.read_config(str(tmp_path / "run" / "config.toml")), tmp_path / "again")
    assert again.accuracies() == run.accuracies()
    plain = fb.read_config("digits-fedavg", ["rounds=1", "data.clients=4"])
    assert fb.run(plain, tmp_path / "plain").scores("loss") != run.scores("loss")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ('[{name="krop"}]', 'no "krop" here'),
        ('["crop"]', 'augment.padding: "crop" needs it'),
        ('"flip"', "must be a list of augmentations"),
        ('[{name="flip", chance=2.0}]', "at most 1"),
        ('[{name="noise", amount=2.0}]', "no such option"),
    ],
)
def test_what_is_wrong_in_a_list_is_said_with_its_place(words: str, message: str) -> None:
    with pytest.raises(fb.UserError, match=message):
        fb.read_config("digits-fedavg", [f"method.augment={words}"])


def test_the_schema_knows_augmentations() -> None:
    methods = config_schema()["properties"]["method"]["anyOf"]
    fedavg = next(one for one in methods if one.get("title") == "fedavg")
    known = {one.get("title") for one in fedavg["properties"]["augment"]["items"]["anyOf"]}
    assert known >= {"crop", "flip", "jitter", "noise", "scale"}


@dataclass(frozen=True)
class Silence:
    """A part of a signal that is missing; of one's own, by a name in AUGMENTATIONS."""

    chance: float = 0.1

    def __call__(self, x: Tensor, draws: fb.Draws) -> Tensor:
        return torch.where(draws.uniform(*x.shape[1:]) < self.chance, 0, x)


def test_ones_own_class_has_a_name_in_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fb.AUGMENTATIONS, "silence", Silence)
    config = fb.read_config("digits-fedavg", ['method.augment=[{name="silence", chance=0.5}]'])
    assert config.method.table["augment"] == [{"name": "silence", "chance": 0.5}]


def test_ones_own_function_is_alike_on_both_engines() -> None:
    def silence(x: Tensor, draws: fb.Draws) -> Tensor:
        return torch.where(draws.uniform(*x.shape[1:]) < 0.3, 0, x)

    ends = []
    for engine in (fb.Sequential(), fb.Vectorised()):
        method = fb.FedAvg(fb.small_net(), batch_size=4, augment=[silence])
        done = run(fb.Experiment.of(method, fb.small_federation()), engine, [list(range(6))])
        ends.append(state_leaves(done.last))
    assert differences(*ends, 1e-9) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, draws: x[:, :2], "makes something else"),
        (lambda x, draws: x.float(), "makes something else"),
        (lambda x, draws: x + torch.rand_like(x), "noise that no engine could repeat"),
        (lambda x, draws: x.no_such_thing, "cannot take inputs"),
        (fb.Crop(1), "Crop cannot take inputs of shape .6."),
        (fb.Flip(), "have no height and width"),
    ],
    ids=["another shape", "another type", "other noise", "an error", "crop", "flip"],
)
def test_what_does_not_fit_is_refused_before_the_first_round(
    change: Any, message: str, tmp_path: Path
) -> None:
    method = fb.FedAvg(fb.small_net(), augment=[change])
    with pytest.raises(fb.UserError, match=message):
        fb.run(method, fb.small_federation(), 1, tmp_path / "run")
    assert not (tmp_path / "run").exists()
