"""The small parts of engines, each against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.engines import devices, scoring
from fedblocks.engines.auto import choose as auto
from fedblocks.engines.auto import trial
from fedblocks.engines.auto.trial import _in_turn, list_seconds
from fedblocks.engines.batching import Draw, batches, positions, steps_of_one, steps_of_stack
from fedblocks.engines.close_round import ClientResults
from fedblocks.engines.failures import ClientFailures, describe, first_error, raise_failures
from fedblocks.engines.memory import UNITS, ByteCount, Need, Stages, _one_step, bytes_of
from fedblocks.engines.net_check.plain_loop import mean_loss
from fedblocks.engines.net_check.properties import _difference
from fedblocks.engines.round import Engine, Experiment, evaluate
from fedblocks.engines.scoring import chunk_of, chunks_of, score_outputs
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS, FedAvg
from fedblocks.runs.batches import evaluated_sizes
from fedblocks.testing import small_federation, small_net

CPU = torch.device("cpu")
DRAW = Draw(0, 0, 0, "train")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1), ("3B", 3), ("2kB", 2_000), ("2MB", 2_000_000), ("1.5gb", 1_500_000_000),
        ("1KiB", 1024), (" 2 MiB ", 2_097_152), ("1GiB", 1_073_741_824), ("1TiB", 2**40),
    ],
)  # fmt: skip
def test_every_unit_of_memory_is_what_it_says(text: str, size: int) -> None:
    assert bytes_of(text) == size


def test_no_unit_of_memory_is_left_out_here() -> None:
    assert UNITS.keys() == {"", "B", "KB", "MB", "GB", "KIB", "MIB", "GIB", "TIB"}
    for wrong in ("0", "0.0GB", "-1", "1PB", "GB", "1 2", ""):
        with pytest.raises(UserError, match="not an amount of memory"):
            bytes_of(wrong)


# two and three clients in turn, then at once: training, kept, closing, evaluation
NEED = Need(
    (Stages(100, 20, 30, 50), Stages(110, 27, 41, 60)),
    (Stages(150, 20, 30, 80), Stages(190, 27, 41, 93)),
)


@pytest.mark.parametrize(
    ("cohort", "chunk", "most"),
    [
        (5, 3, 204),  # training: 150 + 1 * 40 + 2 * 7; kept: 20 + 13 * 7 = 111
        (10, 2, 216),  # kept: 20 + 28 * 7; training: 150 + 8 * 7 = 206
        (10, 10, 470),  # training: 150 + 8 * 40; nothing is put together
        (2, 2, 150),
        (1, 1, 110),  # training: 150 - 40; kept, with one stack only: nothing
    ],
)
def test_the_bytes_of_a_round_follow_from_two_and_three_clients(
    cohort: int, chunk: int, most: int
) -> None:
    assert NEED.bytes(cohort, chunk) == most


def test_closing_and_evaluation_may_take_the_most() -> None:
    small = Stages(1, 0, 1, 1)
    closing = Need((small, small), (small, small))
    grows = dataclasses.replace(small, closing=11)
    assert dataclasses.replace(closing, in_turn=(small, grows)).bytes(5, 2) == 1 + 3 * 10
    grows = dataclasses.replace(small, evaluation=8)
    assert dataclasses.replace(closing, together=(small, grows)).bytes(9, 4) == 1 + 2 * 7


def test_as_many_clients_as_fit_are_trained_at_once() -> None:
    assert NEED.chunk(470, 10, 64) == 64  # all of them: as was asked for
    assert NEED.chunk(469, 10, 64) == 9  # 150 + 7 * 40 + 7 = 437
    assert NEED.chunk(436, 10, 64) == 8
    assert NEED.chunk(10**9, 10, 4) == 4
    assert NEED.chunk(310, 10, 4) == 4  # five would fit: 150 + 3 * 40 + 5 * 7 = 305
    with pytest.raises(UserError, match="10 clients, trained one after another"):
        NEED.chunk(100, 10, 64)


def test_a_trial_is_one_step_of_each_phase_or_none_where_it_has_none() -> None:
    (phase,) = METHODS["fedavg"](net(), epochs=7).phases()
    assert _one_step(phase).steps == 1
    assert _one_step(dataclasses.replace(phase, epochs=0)).steps == 0
    assert _one_step(dataclasses.replace(phase, steps=5, epochs=0)).steps == 1


def test_bytes_are_counted_while_tensors_are_there_and_only_once() -> None:
    with ByteCount() as count:
        x = torch.zeros(100)  # 400 bytes
        same = x.view(10, 10)
        y = torch.zeros(50)
        assert count.now == 600 and count.most == 600
        del y
        assert count.restart() == (600, 400)
        del x
        assert count.restart() == (400, 400)  # the view is still there
        del same
        assert count.restart() == (400, 0)


def net(units: int = 4) -> Net:
    return Net.of(lambda: nn.Sequential(nn.Linear(3, units), nn.ReLU(), nn.Linear(units, 2)))


@pytest.mark.parametrize(
    ("count", "on", "expected"),
    [
        (5, "all", [0, 1, 2, 3, 4]), (5, "support", [0, 1, 2]), (5, "query", [3, 4]),
        (4, "support", [0, 1]), (4, "query", [2, 3]), (2, "query", [1]),
        (1, "support", [0]), (1, "query", [0]), (0, "query", []),
    ],
)  # fmt: skip
def test_halves_of_the_examples(count: int, on: str, expected: list[int]) -> None:
    assert positions(count, on).tolist() == expected


def course(count: int, draw: Draw = DRAW, **options: object) -> list[list[int]]:
    changes = {k: options.pop(k) for k in ("on", "steps", "epochs") if k in options}
    method = METHODS["fedavg"](net(), **options)
    phase = dataclasses.replace(method.phases()[0], **changes)
    return [batch.tolist() for batch in batches(method, phase, 0, count, draw)]


def test_batches_are_cut_from_each_epoch_and_the_rest_is_a_batch_or_dropped() -> None:
    sizes = lambda *args, **more: [len(batch) for batch in course(*args, **more)]
    assert sizes(5, batch_size=2, epochs=2) == [2, 2, 1, 2, 2, 1]
    assert sizes(5, batch_size=2, epochs=2, drop_last=True) == [2, 2, 2, 2]
    assert sizes(4, batch_size=2, epochs=1, drop_last=True) == [2, 2]
    assert sizes(1, batch_size=2, epochs=1, drop_last=True) == [1]
    assert sizes(5, batch_size=2, steps=4) == [2, 2, 1, 2]
    assert sizes(5, batch_size=2, steps=3) == [2, 2, 1]
    assert sizes(5, batch_size=2, steps=0) == [] == sizes(5, epochs=0) == sizes(0, epochs=3)
    first, second = course(5, batch_size=5, epochs=2)
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4] and first != second


@pytest.mark.parametrize(
    "other", [Draw(1, 0, 0, "train"), Draw(0, 1, 0, "train"), Draw(0, 0, 1, "train"),
              Draw(0, 0, 0, "adapt")],
)  # fmt: skip
def test_another_seed_round_client_or_purpose_is_another_order(other: Draw) -> None:
    assert course(50, batch_size=50) != course(50, other, batch_size=50)
    assert course(50, batch_size=50) == course(50, batch_size=50)


def test_steps_of_a_stack_are_padded_where_a_client_has_less() -> None:
    arrays = [[np.array([5, 6]), np.array([7])], [np.array([8, 9])]]
    first, second = steps_of_stack(arrays, CPU)
    assert first.index.tolist() == [[5, 6], [8, 9]] and first.full and first.active == 2
    assert second.index.tolist() == [[7, -1]] and not second.full and second.active == 1
    assert steps_of_stack([[], []], CPU) == [] == steps_of_one([], CPU)
    with pytest.raises(ValueError, match="longest first"):
        steps_of_stack(arrays[::-1], CPU)
    alike = steps_of_stack([[np.array([1]), np.array([2])], [np.array([3]), np.array([4])]], CPU)
    assert [step.index.tolist() for step in alike] == [[[1], [3]], [[2], [4]]]
    own = steps_of_one(arrays[0], CPU)
    assert [step.index.tolist() for step in own] == [[5, 6], [7]] and all(s.full for s in own)


def test_an_error_in_one_line_is_its_last() -> None:
    assert describe(ValueError("first\nthe cause\n ")) == "ValueError: the cause"
    assert describe(ValueError(" ")) == "ValueError" == describe(ValueError())
    assert describe(UserError("what", "fix")) == "UserError: what"


def test_the_error_of_everybody_is_raised_as_it_is_and_of_some_with_their_places() -> None:
    first, other = ValueError("first"), KeyError("other")
    with pytest.raises(ValueError, match="first"):
        raise_failures({1: other, 0: first}, 2)
    with pytest.raises(ClientFailures, match="2 clients failed") as caught:
        raise_failures({2: other, 1: first}, 3)
    assert caught.value.first is first and caught.value.__cause__ is first
    with pytest.raises(ValueError, match="first"), first_error():
        raise ClientFailures({3: other, 1: first})


def test_a_difference_is_relative_to_large_numbers_and_a_missing_one_is_infinite() -> None:
    values = torch.tensor([1.0, -3.0]), torch.tensor([0.0, -1.0])
    assert _difference(*values) == 1.0  # 1 / (1 + 0), 2 / (1 + 1)
    assert _difference(torch.tensor([-5.0]), torch.tensor([-3.0])) == 0.5  # 2 / 4
    assert _difference(torch.tensor([torch.nan]), torch.tensor([0.0])) == float("inf")


@pytest.mark.parametrize(
    ("task", "y", "classes", "chunk"),
    [
        (Task(), (4,), 10, 512),
        (Task(), (4,), 2**15, 512),  # 2^24 numbers
        (Task(), (4,), 2**15 + 1, 511),
        (Task(), (4, 20), 10_004, 83),  # 2^24 / 200,080
        (Task(), (4, 128), 50_000, 2),
        (Task(), (4, 512), 50_000, 1),  # of one there is no part
        (Task("regression"), (4, 3), 0, 512),
    ],
)
def test_a_pass_of_an_evaluation_has_fewer_examples_where_outputs_are_large(
    task: Task, y: tuple[int, ...], classes: int, chunk: int
) -> None:
    data: Any = SimpleNamespace(task=task, y=torch.zeros(y), classes=classes)
    assert chunk_of(data) == chunk
    sizes = {"train": np.array([3]), "test": np.array([600, 1])}
    data.parts = {part: SimpleNamespace(sizes=own) for part, own in sizes.items()}
    assert evaluated_sizes(data) == {min(3, chunk), chunk}


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()], ids=lambda engine: engine.name)
def test_smaller_passes_of_an_evaluation_end_with_the_same_scores(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment.of(FedAvg(small_net()), small_federation())
    state, everybody = experiment.start(), list(range(experiment.data.clients))
    whole = evaluate(experiment, state, everybody, engine, "test")
    passes: list[int] = []
    plain = scoring._count
    monkeypatch.setattr(
        scoring, "_count", lambda *given: passes.append(len(given[2])) or plain(*given)
    )
    monkeypatch.setattr(scoring, "NUMBERS", 3 * experiment.data.classes)
    cut = evaluate(experiment, state, everybody, engine, "test")
    assert set(passes) == {3, 1}  # of 10 test rows each
    for view, scores in whole.items():
        for client, counts in scores.items():
            assert cut[view][client] == pytest.approx(counts, rel=1e-12)


def test_rows_for_scoring_come_in_chunks_with_a_mask() -> None:
    chunks = chunks_of(torch.arange(6).view(2, 3), torch.tensor([3, 1]), 2)
    assert [rows.tolist() for rows, _ in chunks] == [[[0, 1], [3, 4]], [[2], [5]]]
    assert [real.tolist() for _, real in chunks] == [[[1, 1], [1, 0]], [[1], [0]]]
    assert {real.dtype for _, real in chunks} == {torch.float64}  # sums over many clients


def test_scores_of_outputs_in_hand_are_counts_and_a_sum_of_losses() -> None:
    outputs = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    right, labels, losses = score_outputs(Task(), outputs, torch.tensor([0, -100, 0]))[:3]
    wanted = torch.log1p(torch.exp(torch.tensor([-2.0, 1.0]))).sum()  # log(1 + e^(other - own))
    assert (right, labels) == (1, 2) and losses == pytest.approx(float(wanted), abs=1e-6)


def test_the_fewest_seconds_of_all_turns_count(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"a": iter([3.7, 3.0, 2.0, 5.0, 0.0]), "b": iter([2.5] * 9)}
    monkeypatch.setattr(trial, "measure_seconds", lambda engine, _: next(taken[engine]))
    engines: dict = {"a": "a", "b": "b"}
    # 24 s are too long for a fifth turn
    assert _in_turn(engines, lambda turn: None) == {"a": 2.0, "b": 2.5}
    assert list_seconds({"a": 2.0, "b": 0.0996}) == "b 100 ms, a 2000 ms"
    quick = {"a": iter([1e-3] * 9)}
    monkeypatch.setattr(trial, "measure_seconds", lambda engine, _: next(quick[engine]))
    _in_turn({"a": "a"}, lambda turn: None)
    assert len(list(quick["a"])) == 1  # eight turns


def test_an_engine_far_behind_in_two_turns_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[tuple[str, int]] = []
    seconds = {"quick": 0.1, "near": 0.15, "slow": 0.16}

    def note(engine: str, turn: int) -> float:
        turns.append((engine, turn))
        return seconds[engine]

    monkeypatch.setattr(trial, "measure_seconds", note)
    assert _in_turn({name: name for name in seconds}, lambda turn: turn) == seconds
    counts = {name: [turn for engine, turn in turns if engine == name] for name in seconds}
    assert counts == {"quick": [*range(8)], "near": [*range(8)], "slow": [0, 1]}


def test_an_engine_far_behind_in_a_long_turn_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    seconds = {"quick": 0.6, "slow": 0.95, "slower": 1.0}
    monkeypatch.setattr(
        trial, "measure_seconds", lambda engine, _: (turns.append(engine), seconds[engine])[1]
    )
    assert _in_turn({name: name for name in seconds}, lambda turn: None) == seconds
    # both take 1.5 times as long; 5.3 s are too long for a fifth turn
    assert {name: turns.count(name) for name in seconds} == {"quick": 4, "slow": 2, "slower": 1}


@pytest.mark.parametrize(
    ("units", "cohort", "name"),
    [(41_666, 4, "vectorised"), (41_667, 4, "sequential"), (4, 3, "sequential")],
)  # 3 u + u + 2 u + 2 = 6 u + 2 parameters, at most 250,000
def test_a_small_net_and_a_large_cohort_are_stacked(units: int, cohort: int, name: str) -> None:
    engine, why = auto.choose(net(units=units), CPU, cohort, chunk=7)
    assert engine.name == name and getattr(engine, "chunk", 7) == 7
    assert ("too few" in why) == (cohort == 3) and ("250,004" in why) == (units == 41_667)


def test_a_net_of_the_largest_size_is_stacked_and_layers_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conv = Net.of(lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(6, 2)))
    rnn = Net.of(lambda: Recurrent())
    monkeypatch.setattr(auto, "MOST_DENSE", net().size())
    monkeypatch.setattr(auto, "MOST_CONVOLUTIONAL", conv.size())
    for one in (net(), conv):
        engine, why = auto.choose(one, CPU, 4, chunk=9)
        assert engine.name == "vectorised" and engine.chunk == 9 and f"{one.size():,}" in why
    monkeypatch.setattr(auto, "MOST_DENSE", net().size() - 1)
    monkeypatch.setattr(auto, "MOST_CONVOLUTIONAL", conv.size() - 1)
    assert "a dense net" in auto.choose(net(), CPU, 4)[1]
    assert "a convolutional net" in auto.choose(conv, CPU, 4)[1]
    assert "fused recurrent layer" in auto.choose(rnn, CPU, 4)[1]
    engine, why = auto.choose(rnn, torch.device("cuda"), 4, chunk=5)
    assert engine.name == "vectorised" and engine.chunk == 5 and "GPU" in why


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x)[0][:, -1])


def test_a_device_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.find_device("cpu") == CPU
    for wrong in ("gpu", "cuda:", "cpu:0", "cuda:x"):
        with pytest.raises(UserError, match="there is no device"):
            devices.find_device(wrong)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    devices.find_device("cuda")
    assert devices.find_device("cuda:1").index == 1 and chosen == [torch.device("cuda:1")]
    with pytest.raises(UserError, match="there is no cuda:2: torch finds 2") as caught:
        devices.find_device("cuda:2")
    assert "cuda:1" in caught.value.fix
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="finds no GPU"):
        devices.find_device("cuda")


def test_the_plain_loss_is_the_mean_over_all_scored_steps() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [5.0, 0.0]]])  # [2, 2, classes]
    y = torch.tensor([[0, 1], [1, -100]])
    own_minus_other = torch.tensor([2.0, 0.0, 1.0])
    wanted = torch.log1p(torch.exp(-own_minus_other)).mean()
    assert float(mean_loss(logits, y)) == pytest.approx(float(wanted), abs=1e-6)


@pytest.mark.parametrize(("shape", "limits"), [((9,), [1, 3]), ((9, 4), [1, 12])])
def test_a_client_may_ask_for_a_weight_of_one_for_each_label_and_of_one_without_any(
    shape: tuple[int, ...], limits: list[float]
) -> None:
    cohort = SimpleNamespace(sizes=torch.tensor([0.0, 3.0]))
    job = SimpleNamespace(cohort=cohort, data=SimpleNamespace(y=torch.zeros(shape)))
    results: Any = SimpleNamespace(job=job)
    assert ClientResults.limits.fget(results).tolist() == limits  # type: ignore[attr-defined]
