"""Every method gives the numbers that it ever gave: in its small example, and with nearly every
option changed. The oracles say whether they are right; this notices when they move.

After a change on purpose, delete the method's entry of as_ever.json, run this twice, and say in the
changelog what has changed.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.core.introspection import Option, options_of
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing import EXAMPLES, Example
from fedblocks.testing.adapters import ADAPTERS
from fedblocks.testing.compare import Leaves, judged, report_leaves, state_leaves
from fedblocks.testing.learning import other_value

NOTED = Path(__file__).parent / "as_ever.json"
# what would hide the others, or has no other value in the examples
LEFT = {"never_split", "keep_optimizer"}
EVERY = {**EXAMPLES, **ADAPTERS}
CLOSE = {"rel": 1e-5, "abs": 1e-5}  # other processors add in another order


def mark(values: list[Tensor]) -> float:
    """One number that knows the place of each of many: the sum of v_i * cos(i)."""
    whole = torch.cat([value.detach().double().flatten() for value in values])
    return float((whole * torch.arange(1.0, len(whole) + 1, dtype=torch.float64).cos()).sum())


def marks(leaves: Leaves) -> dict[str, float]:
    """A mark for each block, view and table; clients follow one another."""
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for place, value in leaves.items():
        groups[re.sub(r',? ?client \d+ ?|, tensor ".*"|: correct.*', "", place).strip()].append(
            value
        )
    return {name: round(mark(values), 6) for name, values in groups.items()}


def outcome(experiment: Experiment, example: Example, engine: Engine) -> dict[str, float]:
    """Two rounds: models, traffic, scores after training and in the end, also of newcomers."""
    state, leaves = experiment.start(), {}
    for clients in example.cohorts()[:2]:
        state, report = run_round(experiment, state, clients, engine, "test")
        leaves |= {f"round {state.round}, {k}": v for k, v in report_leaves(report).items()}
    leaves |= state_leaves(state) | judged(experiment, state, engine)
    return marks(leaves)


def other(value: Any, option: Option) -> Any:
    words = [word for word in option.choices if word != value]
    return words[0] if words else other_value(value, option)


def changes_of(example: Example, names: list[str]) -> dict[str, Any]:
    method = next(iter(example.methods().values()))
    now, known = method.options(), options_of(type(method))
    return {
        name: example.others[name] if name in example.others else other(now[name], known[name])
        for name in names
    }


def changeable(example: Example) -> list[str]:
    """As many options as can be changed together."""
    method, chosen = next(iter(example.methods().values())), []
    own = {name for group in example.groups.values() for name in group}
    for name in method.options():
        if name in LEFT | own or changes_of(example, [name])[name] is None:
            continue
        with suppress(Exception):
            changes = changes_of(example, [*chosen, name])
            numbers = outcome(example.experiment(**changes), example, Vectorised())
            if all(map(math.isfinite, numbers.values())):
                chosen.append(name)
    return chosen


@cache
def noted() -> dict[str, Any]:
    return dict(json.loads(NOTED.read_text())) if NOTED.exists() else {}


@pytest.mark.parametrize("name", EVERY)
def test_two_rounds_of_the_method_are_as_ever(name: str) -> None:
    example = EVERY[name]()
    if name not in noted():
        names = changeable(example)
        changed = example.experiment(**changes_of(example, names))
        noted()[name] = {
            "example": outcome(example.experiment(), example, Sequential()),
            "changed": names,
            "numbers": outcome(changed, example, Vectorised()),
        }
        NOTED.write_text(json.dumps(dict(sorted(noted().items())), indent=1) + "\n")
        pytest.fail("as_ever.json was written: say in the changelog what has changed")
    entry = noted()[name]
    assert outcome(example.experiment(), example, Sequential()) == pytest.approx(
        entry["example"], **CLOSE
    )
    changed = example.experiment(**changes_of(example, entry["changed"]))
    assert outcome(changed, example, Vectorised()) == pytest.approx(entry["numbers"], **CLOSE)
