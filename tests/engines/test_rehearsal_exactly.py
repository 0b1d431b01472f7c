"""What a rehearsal looks at in each function of a method, step by step and with stand-ins."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.errors import UserError
from fedblocks.core.phases import Phase, Pull, Update
from fedblocks.engines import rehearsal as module
from fedblocks.engines.rehearsal import Rehearsal, rehearse
from fedblocks.engines.round import Experiment
from fedblocks.engines.steadiness import Steadiness
from fedblocks.methods.ditto import Ditto
from fedblocks.testing.federations import small_federation, small_net

CLIENTS = [1, 2, 3]  # with 7, 3 and 8 training rows


@dataclass(frozen=True)
class Own(Ditto):
    """A method of somebody else's."""

    server_says: ClassVar[Any] = None

    def conclude(self, server: Any, before: Any, uploads: Any, cohort: Any) -> Any:
        says = type(self).server_says
        return server if says is None else says(server, before)


@pytest.fixture
def rehearsal() -> Rehearsal:
    experiment = Experiment({"all": Own(small_net())}, small_federation(), 0)
    return Rehearsal(experiment, "all", CLIENTS, experiment.start(), True)


def loss(blocks: Any, batch: Any) -> Any:
    """Never called: a stand-in gives its gradients."""


def stretch_of(*updates: Update, **blocks: dict[str, Tensor]) -> Any:
    local = SimpleNamespace(whole=lambda own: own)
    return SimpleNamespace(phase=Phase(updates), blocks=blocks, number=2, local=local)


def test_a_block_is_moved_by_a_gradient_or_a_pull_and_statistics_by_themselves(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, mean = torch.zeros(2), torch.zeros(2)
    pulled = Update(("a",), None, 0.1, pull=Pull("a", "b", 1.0))
    learned = Update(("b", "c", "d", "e"), loss, 0.1)
    block = {"w": w}
    stretch = stretch_of(pulled, learned, a=block, b=block, c=block, e=block,
                         d={"bn.running_mean": mean})  # fmt: skip
    seen: list[Any] = []
    gradients = [torch.ones(2), None, None, None]

    def gradients_of(*args: Any) -> Any:
        seen.append(args)
        mean.add_(1)  # as a pass does
        return gradients

    monkeypatch.setattr(module, "step_key", lambda own, count: ("key", own is stretch, count))
    monkeypatch.setattr(module, "batch_of", lambda local, step, key: ("batch", step, key))
    monkeypatch.setattr(module, "loss_gradients", gradients_of)
    monkeypatch.setattr(
        module, "trained_tensors", lambda update, own: [(n, "w", w) for n in update.train]
    )
    monkeypatch.setattr(Steadiness, "check_loss", lambda self, *args: seen.append(args))
    rehearsal.untrained["e"] = "an earlier place"
    rehearsal._look_at(stretch, "step", "phases")  # type: ignore[arg-type]
    key = ("key", True, 1)
    assert seen == [
        (1, stretch, ("batch", "step", key), "step"),
        (1, stretch, "step", key, gradients),
    ]
    assert rehearsal.untrained == {"e": "an earlier place", "c": "phase 3 of `phases`"}


def test_a_loss_that_writes_into_its_blocks_is_refused(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = torch.zeros(2)
    monkeypatch.setattr(module, "step_key", lambda own, count: None)
    monkeypatch.setattr(module, "batch_of", lambda local, step, key: None)
    monkeypatch.setattr(module, "loss_gradients", lambda *args: w.add_(1))
    stretch = stretch_of(Update(("a",), loss, 0.1), a={"w": w})
    with pytest.raises(UserError, match=r'Own\.loss writes into "w" of block "a"'):
        rehearsal._look_at(stretch, "step", "phases")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"w": torch.zeros(2)}, ""),
        ({"w": torch.zeros(2), "more": torch.zeros(1)}, ""),
        ({"w": torch.zeros(3)}, 'the one has "w", [2], and the other a [3]'),
        ({"v": torch.zeros(2)}, 'the one has "w", [2], and the other none'),
    ],
)
def test_blocks_are_pulled_to_those_of_the_same_tensors_but_for_statistics(
    rehearsal: Rehearsal, other: dict[str, Tensor], said: str
) -> None:
    one = {"bn.running_mean": torch.zeros(5), "w": torch.zeros(2)}
    stretch = stretch_of(a=one, b=other)
    if not said:
        rehearsal._check_pull(Pull("a", "b", 1.0), stretch, "phases")
        return
    with pytest.raises(UserError, match=re.escape(f'Own.phases pulls block "a" to "b": {said}')):
        rehearsal._check_pull(Pull("a", "b", 1.0), stretch, "phases")


def test_every_step_is_looked_at_before_all_are_taken(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Rehearsal, "_look_at", lambda self, *args: seen.append(args))
    monkeypatch.setattr(module, "step_by_step", lambda *args: seen.append(args))
    rehearsal._watch("joining")("stretch", ["one", "two"])  # type: ignore[arg-type, list-item]
    assert seen == [
        ("stretch", "one", "joining"), ("stretch", "two", "joining"), ("stretch", ["one", "two"]),
    ]  # fmt: skip


def test_the_first_step_of_every_phase_is_taken_with_functions_that_are_looked_at(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(module, "tried_phases", lambda *args: seen.append(args) or "tried")
    monkeypatch.setattr(Rehearsal, "_watch", lambda self, course: f"watch {course}")
    monkeypatch.setattr(module, "train", lambda *args: seen.append(args) or "trained")
    experiment = rehearsal.experiment
    job = experiment.training_job("all", CLIENTS, rehearsal.state)
    job = replace(job, method=replace(job.method, batch_size=2))
    assert rehearsal._train(job, 2, "start") == "trained"  # type: ignore[comparison-overlap, arg-type]
    (phases, where, steadiness), (tried, start, local, orders, watch) = seen
    assert phases is job.phases and where == "Own.phases" and steadiness is rehearsal.steadiness
    assert (tried, start, watch) == ("tried", "start", "watch phases")
    assert [len(order) for order in orders] == [1] * len(job.phases)
    assert int(local.tensors["id"]) == 3


def test_adaptation_is_tried_as_an_evaluation_and_joining_as_training(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Rehearsal, "_train", lambda self, job, member, start: seen.append(
        (job.purpose, job.training, job.ids, member, sorted(start), len(job.phases))))  # fmt: skip
    for purpose in ("adapt", "join"):
        rehearsal._train_before_evaluation(purpose, 3)
    method = rehearsal.method
    blocks = sorted(method.blocks())
    adapt, join = len(method.adaptation()), len(method.joining())
    assert seen == [("adapt", False, [3], 0, blocks, adapt), ("join", True, [3], 0, blocks, join)]


def test_views_are_tried_on_two_rows_of_the_client_in_evaluation(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    modes: list[Any] = []
    monkeypatch.setattr(module, "check_outputs", lambda *args: checked.append(args))
    monkeypatch.setattr(module, "check_numbers", lambda *args: checked.append(args))
    monkeypatch.setattr(Steadiness, "check_view", lambda self, *args: checked.append(args))

    def view(self: Own, blocks: Any, x: Tensor) -> Tensor:
        now = mode.current()
        modes.append((now.training, now.mapped, now.task, torch.is_grad_enabled()))
        return x

    monkeypatch.setattr(
        Own, "views", lambda self: {"personal": partial_of(view, self), "global": self.predict}
    )
    monkeypatch.setattr(Own, "portrait", lambda self, blocks, client: {"depth": blocks})
    job = rehearsal.experiment.training_job("all", CLIENTS, rehearsal.state)
    local, sent, _ = module.one_client(job, 2)
    rehearsal._try_views(job, 2, local, sent)
    data = rehearsal.experiment.data
    x = data.x[torch.as_tensor(data.train[3][:2])]
    (where, outputs, wanted), (_, own, given, usual), (other, *_), _, (last, numbers) = checked
    assert (where, other, last) == ("Own.predict", 'Own.view "global"', "Own.portrait")
    assert wanted == [2, 4] and torch.equal(given, x) and outputs is usual
    assert own.keys() == sent.keys() and numbers["depth"].keys() == sent.keys()
    assert modes == [(False, False, data.task, False)]


def partial_of(view: Any, method: Any) -> Any:
    return lambda blocks, x: view(method, blocks, x)


def test_a_server_that_fails_alone_with_one_client_is_left_to_the_first_round(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(server: Any, before: Any) -> Any:
        raise ValueError("too few")

    monkeypatch.setattr(Own, "server_says", staticmethod(fail))
    assert rehearsal.play() == []


def drawn(server: Any, before: Any) -> Any:
    return {"shared": {key: value + torch.rand(()) for key, value in server["shared"].items()}}


def written(server: Any, before: Any) -> Any:
    for value in before["shared"].values():
        value.add_(1)
    return server


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (lambda server, before: {**server, "new": {}}, 'Own.conclude returns "new", which'),
        (lambda server, before: 3, "Own.conclude returns"),
        (lambda server, before: {"shared": {"w": torch.zeros(1)}}, "Own.conclude"),
        (drawn, "Own.conclude gives another result"),
        (written, "Own.conclude writes into"),
    ],
    ids=["new", "kind", "shape", "random", "writes"],
)
def test_what_a_server_may_not_return_is_refused(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, says: Any, said: str
) -> None:
    monkeypatch.setattr(Own, "server_says", staticmethod(says))
    with pytest.raises(UserError, match=re.escape(said)):
        rehearsal.play()


def test_notes_name_the_method_the_block_and_the_place_and_are_said_once(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(self: Rehearsal, job: Any, member: int, start: Any) -> Any:
        self.untrained["shared"] = "a phase"
        return start

    monkeypatch.setattr(Rehearsal, "_train", train)
    assert rehearsal.play() == [
        'Own: block "shared" gets no gradient in a phase: leave it out of the step, '
        "or use it in the loss"
    ]
    assert rehearsal.untrained == {}


def test_as_many_clients_are_tried_as_there_are_and_an_error_of_the_user_is_the_last(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    errors: list[Exception] = [ValueError("odd"), UserError("no", "fix"), ValueError("never")]

    def fail(self: Rehearsal, job: Any, member: int) -> list[str]:
        tried.append(int(job.sizes[member]))
        raise errors[len(tried) - 1]

    monkeypatch.setattr(Rehearsal, "_play", fail)
    with pytest.raises(UserError, match="no"):
        rehearsal.play()
    assert tried == [7, 8]
    tried.clear()
    with pytest.raises(ValueError, match="odd"):
        replace(rehearsal, clients=[2]).play()
    assert tried == [3]


@pytest.mark.parametrize(
    ("asked", "unmappable", "padded"),
    [(True, [], True), (True, ["layer"], False), (False, [], False), (False, ["layer"], False)],
)
def test_functions_are_asked_with_padding_where_an_engine_pads(
    asked: bool, unmappable: list[str], padded: bool
) -> None:
    net = small_net()
    net.unmappable.extend(unmappable)
    experiment = Experiment({"all": Own(net)}, small_federation(), 0)
    tried = Rehearsal(experiment, "all", CLIENTS, experiment.start(), asked)
    assert tried.steadiness == Steadiness("Own", torch.float64, padded)


def test_a_rehearsal_is_with_padding_unless_it_is_told_otherwise(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Rehearsal, "play", lambda self: seen.append(self.is_padded) or [])
    rehearse(rehearsal.experiment, [1, 2])
    assert seen == [True]
