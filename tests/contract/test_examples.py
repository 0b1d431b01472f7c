"""In the examples the mechanisms of the methods are active: a check of something that
never happens is no check.
"""

from dataclasses import dataclass, replace

import pytest
import torch

from fedblocks.core.errors import UserError
from fedblocks.core.phases import Phase, Pull
from fedblocks.core.state import State
from fedblocks.engines.lanes import why_not
from fedblocks.engines.round import run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import FedAvg, Local
from fedblocks.testing import (
    CHECKS,
    EXAMPLES,
    Check,
    Example,
    Invariant,
    check_method,
    example_for,
    learning,
    run_check,
    small_federation,
)
from fedblocks.testing.compare import differences, state_leaves
from fedblocks.testing.lanes import lane_cases
from fedblocks.testing.problems import LearningProblem
from fedblocks.testing.rounds import run
from fedblocks.testing.storage import from_bytes, to_bytes
from tests.runs.tempered import Tempered


def after_rounds(example: Example) -> State:
    return run(example.experiment(), Vectorised(), [example.everybody] * example.rounds).last


def test_clients_of_the_small_federation_are_of_unequal_sizes_and_two_kinds() -> None:
    federation = small_federation()
    assert federation.clients == 6
    assert len(set(federation.train.sizes.tolist())) == 6
    centres = [
        [federation.x[r][federation.y[r] == 2].mean(0) for r in federation.test][c] for c in (0, 1)
    ]
    assert (centres[0] - centres[1]).norm() > 1  # the two kinds mean different things by class 2


def test_ifca_clients_choose_different_clusters() -> None:
    example = EXAMPLES["ifca"]()
    experiment, state = example.experiment(), after_rounds(example)
    job = experiment.job(
        "all", example.everybody, state, experiment.methods["all"].phases(), True, "train"
    )
    chosen = Sequential().train(job).weights["clusters"].argmax(1)
    assert chosen.unique().tolist() == [0, 1]


def test_fedem_mixtures_differ_between_clients() -> None:
    mixtures = [
        own["mixture"]["value"] for own in after_rounds(EXAMPLES["fedem"]()).private.values()
    ]
    assert torch.stack(mixtures).std(0).max() > 0.02


def test_pfedmb_branch_weights_differ_between_clients() -> None:
    alphas = [
        own["alpha"]["value"].softmax(-1)
        for own in after_rounds(EXAMPLES["pfedmb"]()).private.values()
    ]
    assert torch.stack(alphas).std(0).max() > 0.02


def test_all_methods_have_lanes_that_can_be_compared() -> None:
    for make in EXAMPLES.values():
        assert why_not([lane.experiment for lane in lane_cases(make())]) is None


def test_lanes_of_the_contract_have_other_numbers_refused_clients_and_an_empty_cohort() -> None:
    plain, broken, *others, refused, absent = lane_cases(EXAMPLES["fedprox"]())
    own = [lane.experiment.methods["all"] for lane in (plain, *others)]
    numbers = [(m.lr, m.clip_norm, m.strength, m.optimizer.weight_decay) for m in own]
    rates, norms, strengths, decays = zip(*numbers)
    assert [number / rates[0] for number in rates] == pytest.approx([1, 1.5, 1, 1, 1, 1.5])
    assert [number / norms[0] for number in norms] == pytest.approx([1, 1, 1.5, 1, 1, 1.5])
    assert [number / strengths[0] for number in strengths] == pytest.approx([1, 1, 1, 1.5, 1, 1.5])
    assert [number / decays[0] for number in decays] == pytest.approx([1, 1, 1, 1, 2, 2])
    reports = [
        run(lane.experiment, Vectorised(), lane.cohorts[:1]).reports[0]
        for lane in (plain, broken, refused, absent)
    ]
    assert [len(report.refusals) for report in reports] == [0, 4, 1, 0]
    assert [len(report.clients) for report in reports] == [4, 4, 4, 0]


def test_a_state_comes_back_from_bytes_as_it_was() -> None:
    example = EXAMPLES["ditto"]()
    state, _ = run_round(example.experiment(), example.experiment().start(), [0, 3], Sequential())
    again = from_bytes(*to_bytes(state))
    assert differences(state_leaves(again), state_leaves(state)) == []
    assert list(again.private) == [0, 3]


def test_a_difference_is_told_with_its_size_and_its_place() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    b[1, 2] = 0.5
    assert differences({"w": a}, {"w": b}) == [
        "w: differs by up to 0.5, at [1, 2]: 0 instead of 0.5"
    ]
    assert differences({"w": a}, {"w": b}, tolerance=0.5) == []
    assert differences({"w": a}, {"v": b}) == ["w: only in the first", "v: only in the second"]
    assert (
        "shape [2, 3], not torch.float32 of shape [3]"
        in differences({"w": a}, {"w": torch.zeros(3)})[0]
    )


def test_nan_equals_nothing_whatever_the_tolerance() -> None:
    nan = torch.tensor([float("nan")])
    assert differences({"w": nan}, {"w": nan.clone()}, tolerance=1.0)


def plan_check(**options: object) -> object:
    invariant = next(i for i in CHECKS if i.name == "reviewed_plan")
    return run_check(invariant, example_for(FedAvg, **options))


def test_a_method_without_a_reviewed_plan_is_told_so() -> None:
    check = plan_check()
    assert check.passed
    assert check.detail == "not checked: no reviewed plan was given" and not check.is_checked
    assert check.state == "not checked"


def check_of(name: str, example: Example) -> Check:
    return run_check(next(i for i in CHECKS if i.name == name), example)


def test_an_invariant_of_which_a_method_has_nothing_is_not_applicable() -> None:
    """FedAvg keeps nothing on its clients; Local shares nothing."""
    absent = check_of("absent_clients", example_for(FedAvg))
    assert absent.state == "not applicable" and absent.passed and not absent.is_checked
    assert str(absent) == (
        " 5  not applicable  an absent client keeps its private blocks "
        "(not applicable: clients keep nothing between rounds)"
    )
    assert check_of("absent_clients", example_for(Local)).state == "holds"
    weights = check_of("weights", example_for(Local))
    assert weights.detail == "not applicable: nothing is shared"
    assert check_of("weights", example_for(FedAvg)).state == "holds"


def test_an_invariant_that_does_not_apply_and_has_a_problem_fails() -> None:
    invariant = Invariant(
        1, "one", "it is so", lambda example: [LearningProblem("not so")], lambda example: "never"
    )
    assert run_check(invariant, example_for(FedAvg)).state == "fails"


def test_an_exception_that_is_not_needed_fails() -> None:
    invariant = next(i for i in CHECKS if i.name == "weights")
    check = run_check(invariant, example_for(FedAvg, exceptions={"weights": "I would rather not"}))
    assert not check.passed
    assert check.detail == 'the exception "weights" is not needed'


def test_an_exception_for_a_check_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(UserError, match="wieghts"):
        next(check_method(example_for(FedAvg, exceptions={"wieghts": "a slip"})))


def test_an_error_in_a_method_is_a_failed_check_that_says_where() -> None:
    def broken(**options: object) -> FedAvg:
        raise ZeroDivisionError("no clients today")

    check = run_check(CHECKS[0], example_for(broken))
    assert not check.passed
    assert "ZeroDivisionError: no clients today (at " in check.detail
    assert "test_examples.py:" in check.detail


@dataclass(frozen=True, eq=False)
class Misspelt(FedAvg):
    def phases(self) -> list[Phase]:
        return [Phase((self.step("modell"),), self.epochs)]


def test_a_phase_that_names_no_block_is_told_once_and_before_all_checks() -> None:
    with pytest.raises(UserError, match='Misspelt has no block "modell", which a phase') as error:
        next(check_method(example_for(Misspelt)))
    assert error.value.fix.startswith('did you mean "model"?')


def test_numbers_of_a_dead_option_are_short() -> None:
    @dataclass(frozen=True, eq=False)
    class Unused(FedAvg):
        unused: float = 0.3  # times 1.5 it is 0.44999999999999996

    (dead,) = learning.no_dead_knobs(example_for(Unused))
    assert dead.text == "unused = 0.45 gives the same models as unused = 0.3"


def test_a_check_that_ends_in_an_error_says_what_a_run_would_say_of_the_method() -> None:
    class Pulled(Tempered):
        def phases(self) -> list[Phase]:
            step = replace(self.step("model"), pull=Pull("model", "temperature", 0.1))
            return [Phase((step,), 1)]

    checks = list(check_method(example_for(Pulled)))
    says = 'Pulled.phases pulls block "model" to "temperature": the one has "0.weight"'
    assert says in checks[0].detail and not checks[0].passed
    assert not any("KeyError" in check.detail for check in checks)
