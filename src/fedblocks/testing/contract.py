"""The twenty-two invariants that every method must keep, and how to check one of your own."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from fedblocks.core.errors import UserError, nearest
from fedblocks.core.structure import check_structure
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.engines.rehearsal import rehearse
from fedblocks.testing import (
    applicability,
    lanes,
    learning,
    movement,
    participation,
    reductions,
    repeatability,
    slots,
    tasks,
    traffic,
)
from fedblocks.testing.example import Example
from fedblocks.testing.problems import LearningProblem

SHOWN = 6  # problems that a verdict lists; the others are counted


@dataclass(frozen=True)
class Invariant:
    """One thing that must hold, and how to find out."""

    number: int
    name: str
    says: str
    find: Callable[[Example], list[LearningProblem]]
    why_not: Callable[[Example], str] = applicability.always  # it has nothing to say; empty: it has


@dataclass(frozen=True)
class Check:
    """The verdict on one invariant. `passed` says that nothing speaks against it; `state`, whether
    anything was looked at.
    """

    number: int
    name: str
    says: str
    passed: bool
    detail: str  # what differed, by how much, and where; or why it is not checked
    is_checked: bool = True  # not: the example excepts it, or does not say what it needs
    applies: bool = True  # not: the method has nothing that it speaks of

    @property
    def state(self) -> Literal["holds", "fails", "not applicable", "not checked"]:
        """What is known of the invariant."""
        if not self.passed:
            return "fails"
        if not self.applies:
            return "not applicable"
        return "holds" if self.is_checked else "not checked"

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.number:2}  {self.state:14}  {self.says}{detail}"


CHECKS: tuple[Invariant, ...] = (
    Invariant(1, "engines_agree", "engines agree", repeatability.engines_agree),
    Invariant(2, "resume", "a resumed run is an uninterrupted one", repeatability.resume),
    Invariant(
        3, "client_order", "the order of clients does not matter", repeatability.client_order
    ),
    Invariant(
        4, "input_unchanged", "a round does not change its input", repeatability.input_unchanged
    ),
    Invariant(
        5,
        "absent_clients",
        "an absent client keeps its private blocks",
        participation.absent_clients,
        applicability.of_private_state,
    ),
    Invariant(6, "padding", "padding has no effect", repeatability.padding),
    Invariant(7, "named_blocks_move", "exactly the named blocks move", movement.named_blocks_move),
    Invariant(8, "planned_bytes", "only planned blocks travel", traffic.planned_bytes),
    Invariant(9, "empty_client", "an empty client has no effect", participation.empty_client),
    Invariant(10, "broken_client", "a broken client is an absent one", participation.broken_client),
    Invariant(
        11,
        "unwritten_slots",
        "a slot nobody writes is unchanged",
        slots.unwritten_slots,
        applicability.of_shared_blocks,
    ),
    Invariant(
        12,
        "weights",
        "weights are sound and shares sum to 1",
        slots.weights,
        applicability.of_shared_blocks,
    ),
    Invariant(
        13, "learn_from_each_other", "clients learn from each other", learning.learn_from_each_other
    ),
    Invariant(14, "no_dead_knobs", "every option changes the outcome", learning.no_dead_knobs),
    Invariant(
        15, "evaluation", "evaluation changes nothing", repeatability.evaluation_changes_nothing
    ),
    Invariant(16, "training_helps", "training helps", learning.training_helps),
    Invariant(
        17,
        "statelessness",
        "clients keep what is private, and no more",
        participation.statelessness,
    ),
    Invariant(18, "reviewed_plan", "the plan is the reviewed one", movement.reviewed_plan),
    Invariant(19, "reductions", "the method reduces to simpler ones", reductions.reductions),
    Invariant(
        20,
        "client_twice",
        "a client twice is a client of double weight",
        participation.client_twice,
        applicability.of_shared_blocks,
    ),
    Invariant(
        21,
        "lanes_agree",
        "runs done together end as each alone",
        lanes.lanes_agree,
        applicability.of_lanes,
    ),
    Invariant(
        22,
        "other_tasks",
        "numbers and several labels are trained, too",
        tasks.other_tasks,
        applicability.of_single_labels,
    ),
)


def check_method(example: Example) -> Iterator[Check]:
    """The verdicts on all invariants, each as soon as it is known."""
    names = {invariant.name for invariant in CHECKS}
    for key in example.exceptions:
        if key.partition("/")[0] not in names:
            raise UserError(f'the example excepts "{key}", which is no check', nearest(key, names))
    _check_blocks(example)
    for invariant in CHECKS:
        yield run_check(invariant, example)


def _check_blocks(example: Example) -> None:
    """Refuse what would fail in every check; of other errors, checks say where they come from."""
    try:
        for method in example.methods().values():
            check_structure(method)
    except UserError:
        raise
    except Exception:
        return


@in_own_modes
def run_check(invariant: Invariant, example: Example) -> Check:
    """The verdict on one invariant. An exception must be needed: one that excuses nothing fails."""
    problems = _find_problems(invariant, example)
    reasons = {
        k: why for k, why in example.exceptions.items() if k.partition("/")[0] == invariant.name
    }
    excused = {
        key: [p for p in problems if key in (invariant.name, f"{invariant.name}/{p.part}")]
        for key in reasons
    }
    left = [p.text for p in problems if all(p not in some for some in excused.values())]
    left += [f'the exception "{key}" is not needed' for key, some in excused.items() if not some]
    sentences = left or [_excuse(key, why) for key, why in reasons.items()]
    is_checked = bool(left) or invariant.name not in reasons
    head = (invariant.number, invariant.name, invariant.says)
    idle = "" if sentences else invariant.why_not(example)
    if idle:
        return Check(*head, True, f"not applicable: {idle}", is_checked=False, applies=False)
    return Check(*head, not left, _brief(sentences), is_checked)


def _excuse(key: str, why: str) -> str:
    """Why a check, or the part of it after the slash, is left out."""
    part = key.partition("/")[2]
    return f"not checked for {part}: {why}" if part else f"not checked: {why}"


def _find_problems(invariant: Invariant, example: Example) -> list[LearningProblem]:
    """Find the problems; an error is one too, because a method that cannot be run keeps
    no invariant.
    """
    threads = torch.get_num_threads()
    # nets of examples are so small that more threads only wait for each other
    torch.set_num_threads(1)
    try:
        return invariant.find(example)
    except Exception as error:
        return [LearningProblem(_refusal(example) or _place(error))]
    finally:
        torch.set_num_threads(threads)


def _refusal(example: Example) -> str:
    """What a run would say of the method before its first round; empty: nothing."""
    try:
        rehearse(example.experiment(), example.everybody)
    except UserError as error:
        return error.message
    except Exception:
        return ""
    return ""


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (at {frame.filename}:{frame.lineno})"


def _brief(sentences: list[str]) -> str:
    rest = len(sentences) - SHOWN
    more = [f"... and {rest} more"] if rest > 0 else []
    return "\n".join([*sentences[:SHOWN], *more])
