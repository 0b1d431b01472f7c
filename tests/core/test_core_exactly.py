"""Metrics, means and small parts of the core, to the last bit that matters."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core import mode
from fedblocks.core.admission import _are_finite, examine
from fedblocks.core.blocks import Mixture, PerClient, Pool, Selection
from fedblocks.core.errors import DataError, alike
from fedblocks.core.fields import Fields
from fedblocks.core.frozen_hash import content_hash
from fedblocks.core.metrics import (
    auroc,
    average_precision,
    calibration_error,
    f1_macro,
    f1_micro,
    keep_log_loss,
    perplexity,
)
from fedblocks.core.modular_net import started_from
from fedblocks.core.net import Net
from fedblocks.core.parts import Value
from fedblocks.core.recurrent_net import Unrolled
from fedblocks.core.reduction import reduce_slots
from fedblocks.core.rules import Average
from fedblocks.core.samplers import TraceSampler
from fedblocks.core.schedules import Cosine
from fedblocks.core.server import Cohort
from fedblocks.core.task import Task
from fedblocks.core.uploads import Upload, _weights

EXACT = {"rel": 0, "abs": 1e-14}
NAN = float("nan")


def test_f1_is_counted_in_double_precision() -> None:
    """F1 of the classes: 2 of 2, 2 x 1 of 2 + 1, and 0 of 0 + 1."""
    chosen, y = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2])
    assert f1_macro(chosen, y) == pytest.approx((1 + 2 / 3 + 0) / 3, **EXACT)
    assert f1_micro(chosen, y) == pytest.approx(2 / 3, **EXACT)


def test_f1_leaves_out_classes_that_nobody_names_and_labels_that_are_not_known() -> None:
    chosen, y = torch.tensor([0, 3]), torch.tensor([0, 3])
    assert f1_macro(chosen, y) == 1.0  # of two classes, not of four
    several = torch.tensor([[1.0, 1.0], [1.0, 0.0]], dtype=torch.double)
    truth = torch.tensor([[1.0, NAN], [0.0, 0.0]], dtype=torch.double)
    # the first label: 2 x 1 of 2 + 1; the second was never there and never chosen
    assert f1_macro(several, truth) == pytest.approx((2 / 3 + 0) / 2, **EXACT)


def test_areas_of_many_examples_are_exact() -> None:
    """Two classes, examples in the order of their scores, every third of class 1.

    Of n + 1 true ones (at 0, 3, ..., 3n) and 2n false ones, the true one at 3i stands above 2i
    false ones: the area is the sum of 2i over (n + 1) 2n, exactly 1/2.
    """
    n = 9000
    scores = torch.linspace(-3, 3, 3 * n + 1, dtype=torch.double)
    outputs = torch.stack([torch.zeros_like(scores), scores], 1)
    y = (torch.arange(3 * n + 1) % 3 == 0).long()
    assert auroc(outputs, y) == pytest.approx(0.5, **EXACT)
    # from the top: the k-th true one, from 0, is at the place 3k + 1
    expected = sum((k + 1) / (3 * k + 1) for k in range(n + 1)) / (n + 1)
    assert average_precision(outputs, y) == pytest.approx(expected, rel=0, abs=1e-12)


def test_areas_are_a_mean_over_labels_that_are_known() -> None:
    outputs = torch.tensor([[0.1, 5.0], [0.4, 5.0], [0.3, 5.0], [9.0, 5.0]], dtype=torch.double)
    y = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 1.0], [NAN, 1.0]], dtype=torch.double)
    assert auroc(outputs, y) == 1.0  # the second label is always there: it has no area
    assert average_precision(outputs, -y + 1) == pytest.approx((1 / 2 + 2 / 3) / 2, **EXACT)


def test_a_confidence_of_nothing_is_in_the_lowest_bin() -> None:
    """Both shares are exactly 0, and one of two labels is there: they are half wrong."""
    outputs = torch.tensor([[-1000.0], [-1000.0]], dtype=torch.double)
    assert calibration_error(outputs, torch.tensor([[1.0], [0.0]]).double()) == 0.5
    certain = torch.tensor([[1000.0], [1000.0]], dtype=torch.double)
    assert calibration_error(certain, torch.tensor([[1.0], [0.0]]).double()) == 0.5


def test_a_log_loss_is_a_double_also_where_the_label_is_not_scored() -> None:
    losses = keep_log_loss(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([1, -100]))
    assert losses.dtype == torch.double
    assert losses[0].item() == pytest.approx(0.6931471805599453, **EXACT)


def lane_upload(lanes: tuple[int, ...], per_slot: bool) -> Upload:
    """Clients with the numbers 1, 2, 4, ... and weights 1, 2, 3, ... for the first of two slots."""
    clients = sum(lanes)
    numbers = torch.tensor([2.0**i for i in range(clients)])[:, None]  # [clients, 1]
    copies = numbers[:, None].expand(-1, 2, -1) if per_slot else numbers
    weights = torch.stack([torch.arange(1.0, clients + 1), torch.zeros(clients)], 1).double()
    ids = torch.arange(clients)
    whole = {"w": copies, "v": 10 * copies, "b": (100 * copies).double()}
    return Upload("model", ids, whole, weights, per_slot, Average(), lanes=lanes)


@pytest.mark.parametrize("per_slot", [True, False])
def test_lanes_of_unequal_length_have_means_of_their_own(per_slot: bool) -> None:
    old = {"w": torch.tensor([[-1.0], [-2.0], [-3.0], [-4.0]])}
    old |= {"v": 2 * old["w"], "b": old["w"].double(), "kept": torch.zeros(4, 1)}
    new, written = reduce_slots(old, lane_upload((2, 3), per_slot))
    first = (1 * 1 + 2 * 2) / 3
    second = (3 * 4 + 4 * 8 + 5 * 16) / 12
    assert written.tolist() == [True, False, True, False]
    assert new["w"].dtype == torch.float32 and new["b"].dtype == torch.double
    assert new["w"].flatten().tolist() == pytest.approx([first, -2.0, second, -4.0], rel=1e-7)
    assert new["v"].flatten().tolist() == pytest.approx([10 * first, -4.0, 10 * second, -8.0])
    assert new["b"].flatten().tolist() == pytest.approx(
        [100 * first, -2.0, 100 * second, -4.0], rel=1e-15
    )
    assert new["kept"] is old["kept"]


def test_a_mean_of_single_numbers_is_added_up_in_double_precision() -> None:
    """2^24 + 1 is no number of single precision: added up in it, the ones would be lost."""
    numbers = torch.tensor([2.0**25, 1.0, 1.0, 1.0, 1.0])[:, None]
    weights = torch.ones(5, 1, dtype=torch.double)
    upload = Upload("model", torch.arange(5), {"w": numbers}, weights, False, Average())
    lanes = Upload("model", torch.arange(5), {"w": numbers}, weights, False, Average(), lanes=(5,))
    expected = torch.tensor((2.0**25 + 4) / 5).item()
    for one in (upload, lanes):
        assert reduce_slots({"w": torch.zeros(1, 1)}, one)[0]["w"].item() == expected


def test_a_hash_is_of_numbers_however_they_lie_and_whatever_needs_a_gradient() -> None:
    numbers = torch.arange(6.0).view(2, 3)
    expected = content_hash({"w": numbers})
    assert content_hash({"w": numbers.clone().requires_grad_()}) == expected
    assert content_hash({"w": numbers.T.contiguous().T}) == expected
    assert content_hash({"w": numbers.view(3, 2)}) != expected
    assert content_hash({"w": numbers.double()}) != expected
    assert content_hash({"v": numbers}) != expected


def test_a_start_is_no_tensor_of_the_module_even_if_a_function_gives_the_same_one() -> None:
    module = nn.Linear(2, 2)
    start = Net.of(lambda: module).init(0)
    weight = module.weight.detach().clone()
    start["weight"].zero_()
    assert torch.equal(module.weight, weight)
    assert not start["bias"].requires_grad


def test_a_net_starts_from_trained_tensors_whatever_the_seed() -> None:
    net = Net.of(lambda: nn.Linear(2, 1))
    trained = {"weight": torch.tensor([[1.0, 2.0]]).requires_grad_(), "bias": torch.tensor([3.0])}
    other = started_from(net, trained)
    for seed in (0, 1):
        assert other.init(seed)["weight"].tolist() == [[1.0, 2.0]]
        assert other.init(seed)["bias"].tolist() == [3.0]
    assert (other.input_shape, other.dtype) == (net.input_shape, net.dtype)


def test_blanks_around_a_name_are_no_part_of_it() -> None:
    assert alike("  FedAvg ", ["fedavg", "fedavg2"]) == ["fedavg"]


def test_blanks_in_a_trace_are_no_part_of_names_and_rounds(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(" round , client \n 1 , anna \n2, ben\n2 ,anna\n")
    assert TraceSampler(path=str(path)).by_round == [{"anna"}, {"ben", "anna"}]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_numbers_of_any_kind_are_looked_at_for_what_is_not_finite(dtype: torch.dtype) -> None:
    copies: dict[str, Tensor] = {"n": torch.tensor([[1], [0], [1]]).to(dtype)}
    copies["w"] = torch.tensor([[1.0, 2.0], [float("inf"), 0.0], [NAN, 0.0]])
    assert _are_finite(copies).tolist() == [True, False, False]


def test_fields_lie_side_by_side_and_large_whole_numbers_are_refused_on_both_sides() -> None:
    fields = Fields(shapes=((2,), ()), whole=(False, True))
    packed = fields.pack([torch.tensor([[0.5, 1.5], [2.5, 3.5]]), torch.tensor([7, 8])])
    assert packed.tolist() == [[0.5, 1.5, 7.0], [2.5, 3.5, 8.0]]
    numbers, places = fields.unpack(packed)
    assert numbers.tolist() == [[0.5, 1.5], [2.5, 3.5]] and places.tolist() == [7, 8]
    assert places.dtype == torch.int64
    for far in (2**24 + 1, -(2**24) - 1):
        with pytest.raises(DataError, match="above"):
            fields.pack([torch.zeros(1, 2), torch.tensor([far])])
    for near in (2**24, -(2**24)):
        assert fields.pack([torch.zeros(1, 2), torch.tensor([near])])[0, 2].item() == near


def test_a_perplexity_has_an_end() -> None:
    losses = torch.tensor([800.0, 1000.0], dtype=torch.double)
    assert perplexity(losses, torch.tensor([0, 1])) == math.exp(700)
    assert perplexity(losses / 400, torch.tensor([0, 1])) == pytest.approx(math.exp(2.25))
    assert math.isnan(perplexity(losses[:0], torch.tensor([])))


def test_the_beginning_of_a_single_name_stands_for_it() -> None:
    names = ["ifca", "clustered_by_what_they_have_learnt"]
    assert alike("clust", names) == ["clustered_by_what_they_have_learnt"]


def test_a_cohort_says_who_never_trains_by_whole_numbers() -> None:
    whole = Cohort(torch.arange(3), torch.ones(3).double(), {}, 3, 0, 0)
    assert whole.unseen.tolist() == [] and whole.unseen.dtype == torch.long
    values = torch.ones(2, 3)
    assert whole.mask_unseen(values, 0.0) is values and whole.without_unseen(values) is values
    part = replace(whole, unseen=torch.tensor([1]))
    assert part.mask_unseen(values, 0.0).tolist() == [[1.0, 0.0, 1.0]] * 2
    assert part.without_unseen(torch.arange(3)).tolist() == [0, 2]
    taken = part.take(torch.tensor([False, True, True]))
    assert taken.ids.tolist() == [1, 2] and len(taken) == 2


def test_who_sends_another_shape_has_not_passed_and_the_others_are_not_judged_by_it() -> None:
    slots = {"model": {"w": torch.zeros(1, 2)}}
    wrong = Upload(
        "model", torch.arange(2), {"w": torch.zeros(2, 3)}, torch.ones(2, 1).double(), False,
        Average(),
    )  # fmt: skip
    examination = examine({"model": wrong}, {}, torch.arange(2), None, slots)
    assert examination.passed.tolist() == [[False, False]]
    assert examination.passed.dtype == torch.bool and not examination.is_clean()
    admitted, refusals = examination.judge()
    assert admitted.tolist() == [False, False] and [one.client for one in refusals] == [0, 1]
    nothing = examine({}, {}, torch.arange(2))
    assert nothing.is_clean() and nothing.passed.dtype == torch.bool


def test_steps_of_a_sequence_are_real_in_the_precision_of_the_net() -> None:
    unrolled = SimpleNamespace(padding=None, net=SimpleNamespace(dtype=torch.float64))
    steps = Unrolled.real_steps(unrolled, torch.zeros(2, 3), 3)  # type: ignore[arg-type]
    assert steps.tolist() == [[1.0] * 3] * 2 and steps.dtype == torch.float64
    unrolled.padding = 0
    steps = Unrolled.real_steps(unrolled, torch.tensor([[5, 0]]), 2)  # type: ignore[arg-type]
    assert steps.tolist() == [[1.0, 0.0]] and steps.dtype == torch.float64


def test_a_cosine_turns_at_its_start_after_its_warm_up_and_in_its_last_round() -> None:
    assert Cosine(0.5, 0.1, 10, warmup=2).turns == (0, 2, 9)
    assert Cosine(0.5, 0.1, 1).turns == (0, 0, 0)
    values = [Cosine(0.5, 0.1, 10, warmup=2)(round) for round in (0, 1, 2, 6, 10, 12)]
    assert values == pytest.approx([0.5 / 3, 1.0 / 3, 0.5, 0.3, 0.1, 0.1])


def test_a_pass_inside_another_has_its_task_unless_it_has_its_own() -> None:
    outer, inner = Task("regression"), Task("multi-label")
    before = mode.current()
    with mode.mode(training=True, mapped=False, task=outer):
        with mode.mode(training=False, mapped=True):
            assert mode.current().task is outer
            assert (mode.current().training, mode.current().mapped) == (False, True)
        with mode.mode(training=False, mapped=False, task=inner):
            assert mode.current().task is inner
        assert mode.current().training
    assert mode.current() is before and before.task is None


def test_every_draw_of_a_pass_has_a_key_of_its_own() -> None:
    with mode.mode(training=True, mapped=False, key=torch.tensor(5)):
        keys = [mode.current().next_key().item() for _ in range(3)]
    assert len({*keys}) == 3
    with mode.mode(training=True, mapped=False, key=torch.tensor(5)):
        assert mode.current().next_key().item() == keys[0]
    with mode.mode(training=True, mapped=False), pytest.raises(RuntimeError, match="outside"):
        mode.current().next_key()


def test_a_value_starts_as_a_copy_of_its_own() -> None:
    value = torch.tensor([1.0])
    start = Value(value).init(0)["value"]
    start.add_(1)
    assert value.tolist() == [1.0] and start.tolist() == [2.0]


def test_weights_of_uploads_are_doubles_whatever_says_them() -> None:
    part, sizes = Value(torch.zeros(1)), torch.tensor([3.0, 0.0]).double()
    cohort = Cohort(torch.arange(2), sizes, {}, 2, 0, 0)
    own = _weights(PerClient(part, "own"), None, None, None, cohort)
    assert own.tolist() == [[1.0], [0.0]] and own.dtype == torch.double
    asked = _weights(PerClient(part, "own"), None, torch.tensor([0.5, 2.0]), None, cohort)
    assert asked.tolist() == [[0.5], [2.0]] and asked.dtype == torch.double
    mixed = _weights(Pool(part, 2), Mixture(torch.tensor([[0.5, 0.5], [1, 0]])), None, None, cohort)
    assert mixed.tolist() == [[1.5, 1.5], [0.0, 0.0]] and mixed.dtype == torch.double
    picked = _weights(Pool(part, 3), Selection(torch.tensor([[2], [0]])), None, None, cohort)
    assert picked.tolist() == [[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]
    wanted = _weights(Pool(part, 2), None, None, torch.tensor([[0.0, 0.2], [1, 1]]), cohort)
    assert wanted.tolist() == [[0.0, 3.0], [0.0, 0.0]]
    assert _weights(Pool(part, 2), None, None, None, cohort).tolist() == [[3.0, 3.0], [0.0, 0.0]]
