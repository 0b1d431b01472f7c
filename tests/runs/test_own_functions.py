"""Own metrics, losses, samplers, augmentations and listeners that are wrong: told by name, before
the first round, and without a folder that would be in the way.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.own_code import takes
from fedblocks.core.samplers import choose_clients

pytestmark = pytest.mark.filterwarnings("ignore:.*training rows")


def numbers(**task: Any) -> fb.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype("float32")
    trucks = [f"truck-{number % 4}" for number in range(60)]
    return fb.Federation.from_users(x, x.sum(1), trucks, task=fb.Task("regression", **task))


def method(**options: Any) -> fb.Method:
    return fb.FedAvg(fb.Net.of(lambda: nn.Linear(3, 1)), lr=0.1, **options)


def refusal(folder: Path, *, data: fb.Federation | None = None, **settings: Any) -> str:
    """What a run says that cannot begin; it must leave nothing behind."""
    options = {"augment": settings.pop("augment")} if "augment" in settings else {}
    with pytest.raises(fb.UserError) as error:
        fb.run(method(**options), data or numbers(), 2, folder / "run", **settings)
    assert not (folder / "run").exists()
    return str(error.value)


def divide(outputs: Tensor, y: Tensor) -> float:
    return 1 / int(y.isinf().sum())


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (divide, "failed: ZeroDivisionError: division by zero (test_own_functions.py, line"),
        (lambda outputs, y: (outputs - y).abs()[:3, 0], "gave a Tensor of shape [3], not a number"),
        (lambda outputs, y: np.zeros(2), "gave an ndarray of shape [2], not a number"),
        (lambda outputs, y: None, "gave None, not a number"),
        (lambda outputs, y: "0.5", "gave '0.5', not a number"),
        (lambda outputs, y: 1j, "gave a complex, not a number"),
        (lambda outputs, y: outputs @ y, "failed: RuntimeError: "),
    ],
)
def test_a_metric_that_gives_no_number_is_refused_before_the_first_round(
    of: Callable[[Tensor, Tensor], Any], said: str, tmp_path: Path
) -> None:
    text = refusal(tmp_path, data=numbers(metrics=["mae", fb.Metric("mine", of)]))
    assert f'task: the metric "mine" {said}' in text
    assert "fix: return one number for all examples of a client" in text


@pytest.mark.parametrize(
    "of",
    [
        lambda outputs, y: (outputs - y).abs().mean(),
        lambda outputs, y: (outputs - y).abs().mean(0),
        lambda outputs, y: np.float32((outputs - y).abs().mean()),
        lambda outputs, y: float((outputs - y).abs().mean()),
    ],
)
def test_numbers_of_every_kind_are_numbers(of: Any, tmp_path: Path) -> None:
    run = fb.run(method(), numbers(metrics=["mae", fb.Metric("mine", of)]), 1, tmp_path / "run")
    assert run.scores("mine") == pytest.approx(run.scores("mae"))


def test_a_metric_sees_the_shapes_of_the_task_in_the_trial(tmp_path: Path) -> None:
    shapes = []

    def look(outputs: Tensor, y: Tensor) -> float:
        shapes.append((tuple(outputs.shape[1:]), outputs.dtype, tuple(y.shape[1:]), y.dtype))
        return 0.0

    fb.run(method(), numbers(metrics=[fb.Metric("look", look)]), 1, tmp_path / "run")
    assert set(shapes) == {((1,), torch.float64, (1,), torch.float64)}
    # the trial, then four clients in two parts
    assert len(shapes) == 1 + 4 * 2


def test_a_metric_that_is_undefined_for_all_is_warned_of(tmp_path: Path) -> None:
    data = numbers(metrics=["mae", fb.Metric("hollow", lambda outputs, y: float("nan"))])
    with pytest.warns(UserWarning, match='"hollow" is NaN, that is undefined, for 8 examples'):
        run = fb.run(method(), data, 1, tmp_path / "run")
    assert run.scores("hollow") == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*training rows")
        fb.run(method(), numbers(), 1, tmp_path / "defined")


def test_a_metric_keeps_a_row_for_each_example(tmp_path: Path) -> None:
    for keep in (lambda outputs, y: None, lambda outputs, y: outputs[:1]):
        metric = fb.Metric("mine", lambda kept, y: 0.0, keep=keep)
        text = refusal(tmp_path, data=numbers(metrics=[metric]))
        assert '`keep` of the metric "mine" gave' in text and "a row for each example" in text


@pytest.mark.parametrize(
    ("metrics", "said", "fix"),
    [
        ([divide], "the function divide is not a metric", 'fb.Metric("divide", divide)'),
        (divide, "the function divide is not a metric", 'fb.Metric("divide", divide)'),
        ([lambda outputs, y: 0], "<lambda> is not a metric", 'fb.Metric("name", function)'),
        ([3], "an int is not a metric", "fb.Metric"),
        (3, "an int is not a metric", "fb.Metric"),
    ],
)
def test_a_bare_function_is_no_metric_and_the_message_wraps_it(
    metrics: Any, said: str, fix: str
) -> None:
    with pytest.raises(fb.UserError) as error:
        fb.Task("regression", metrics=metrics)
    assert said in error.value.message and fix in error.value.fix


def test_a_bare_function_under_a_name_is_no_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fb.METRICS, "mine", divide)  # type: ignore[arg-type]
    with pytest.raises(fb.UserError, match=r'METRICS\["mine"\]: the function divide is not'):
        fb.Task("regression", metrics=["mine"])


@pytest.mark.parametrize(
    ("name", "of", "said"),
    [
        (3, divide, "called 3, which is no name"),
        ("", divide, "is no name"),
        ("mine", 3, '`of` of the metric "mine", an int, is no function of two'),
        ("mine", lambda outputs: 0.0, "<lambda>, is no function of two"),
    ],
)
def test_a_metric_has_a_name_and_a_function_of_two(name: Any, of: Any, said: str) -> None:
    with pytest.raises(fb.UserError, match=said):
        fb.Metric(name, of)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda outputs, y: 1 / 0, 'the loss "<lambda>" failed: ZeroDivisionError'),
        (lambda outputs, y: (outputs - y).square().mean(), "has shape []"),
        (lambda outputs, y: None, "is no tensor but a NoneType"),
        (lambda outputs, y: outputs.detach().numpy(), "is no tensor but an ndarray"),
        (lambda outputs, y: (outputs - y).square().detach(), "does not depend on the outputs"),
        (lambda outputs, y: (outputs - y) / 0, "is no finite number for examples of client"),
        (
            lambda outputs, y: (outputs - y).square().mean().expand(len(y)),
            "is another when other examples are beside it",
        ),
        (  # by one part in a million
            lambda outputs, y: (outputs - y).square() * (1 + 1e-6 * y.mean()),
            "is another when other examples are beside it",
        ),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_refused_before_the_first_round(
    loss: Any, said: str, tmp_path: Path
) -> None:
    text = refusal(tmp_path, data=numbers(loss=loss))
    assert "task: the loss" in text and said in text


def test_a_loss_is_a_function_of_two() -> None:
    for loss in (3, lambda outputs: outputs):
        with pytest.raises(fb.UserError, match="is no function of two"):
            fb.Task("regression", loss=loss)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choose", "said"),
    [
        (lambda candidates: 1 / 0, "failed: ZeroDivisionError: division by zero (test_own_"),
        (lambda candidates: None, "gave None, not a list of clients"),
        (lambda candidates: 1.5, "gave a float, not a list of clients"),
        (lambda candidates: "truck-1", "gave 'truck-1', not a list of clients"),
        (lambda candidates: [0, 1.0], "1.0, a float, is neither the number nor the name"),
        (lambda candidates: ["truck-7"], 'there is no client "truck-7" among 4 clients'),
        (lambda candidates: [0, "truck-0"], "chose client 0 twice"),
        (lambda candidates: [-1], "there is no client -1"),
        (lambda candidates: [], "chooses nobody in any round"),
        (lambda candidates: [np.random.randint(4)], "chose other clients when it was asked"),
        ([[0, 1]], "fedblocks.TraceSampler(rounds=...)"),
        (lambda: [0], "is no function of one argument"),
    ],
)
def test_a_sampler_that_does_not_choose_is_refused_before_the_first_round(
    choose: Any, said: str, tmp_path: Path
) -> None:
    np.random.seed(1)
    text = refusal(tmp_path, sampler=choose)
    assert said in text
    assert 'the sampler "<lambda>"' in text or "a list is not a sampler" in text


def test_clients_that_are_held_out_are_no_candidates() -> None:
    names = [f"truck-{number}" for number in range(4)]
    draw = np.random.default_rng(0)
    some = fb.Candidates([0, 2], np.ones(4, dtype=np.int64), names, 1, 0, draw)
    with pytest.raises(fb.UserError, match='chose client 1, "truck-1", who is no candidate'):
        choose_clients(lambda candidates: ["truck-1"], some)


def test_a_sampler_may_leave_some_rounds_empty(tmp_path: Path) -> None:
    def later(candidates: fb.Candidates) -> list[int]:
        return [] if candidates.round == 1 else [candidates.ids[0]]

    assert fb.run(method(), numbers(), 2, tmp_path / "run", sampler=later).rounds == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x, "is no function of two, inputs and draws"),
        (lambda x, draws: x / 0, "makes inputs that are no finite numbers"),
        (lambda x, draws: 1 / 0, "division by zero (test_own_functions.py, line"),
        (lambda x, draws: None, "makes something else"),
    ],
)
def test_an_augmentation_that_is_wrong_is_told_by_what_is_wrong(
    change: Any, said: str, tmp_path: Path
) -> None:
    assert said in refusal(tmp_path, augment=[change])


@pytest.mark.parametrize("role", ["on_round", "on_evaluation", "on_note"])
def test_a_listener_is_a_function_of_one(role: str, tmp_path: Path) -> None:
    for listener in (3, lambda: None):
        text = refusal(tmp_path, **{role: listener})
        assert f"{role}: " in text and "is no function of one argument" in text
    fb.run(method(), numbers(), 1, tmp_path / "run")
    with pytest.raises(fb.UserError, match="is no function of one argument"):
        fb.resume(tmp_path / "run", **{role: "print"})  # type: ignore[arg-type]


def test_what_a_listener_raises_comes_out_as_it_is_and_the_run_goes_on(tmp_path: Path) -> None:
    class OwnError(Exception):
        pass

    def fail(done: fb.RoundDone) -> None:
        raise OwnError

    with pytest.raises(OwnError):
        fb.run(method(), numbers(), 2, tmp_path / "run", on_round=fail)
    assert fb.load_run(tmp_path / "run").status == "failed"
    assert fb.resume(tmp_path / "run", method(), numbers()).rounds == 2


class Callables:
    """Things that can be called with one argument, or cannot."""

    def __call__(self, done: Any) -> None: ...


def test_what_can_be_called_with_one_argument() -> None:
    assert takes(print, 1) and takes(Callables(), 1) and takes(lambda *all: None, 1)
    assert takes(fb.SizeSampler(), 1) and takes([].append, 1) and takes(fb.EarlyStopping(3), 1)
    assert not takes(Callables(), 2) and not takes(lambda: None, 1)


def test_a_metric_of_a_configuration_is_tried_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(fb.METRICS, "mine", fb.Metric("mine", divide))
    changes = ["rounds=1", 'task={kind = "regression", metrics = ["mae", "mine"]}']
    with pytest.raises(fb.UserError, match=r'task.*: the metric "mine" failed: ZeroDivision'):
        fb.run(fb.read_config("truck_ranges-fedper", changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
