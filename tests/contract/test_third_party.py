"""A method that is no part of the library passes the contract checks, in at most 60 lines."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from fedblocks.engines.rehearsal import rehearse
from fedblocks.methods import METHODS
from fedblocks.testing import CHECKS, Example, Invariant, run_check

FILE = Path(__file__).parents[2] / "examples" / "third_party_method.py"


@pytest.fixture(scope="module")
def foreign() -> ModuleType:
    spec = spec_from_file_location("third_party_method", FILE)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_it_has_at_most_60_lines_and_is_not_one_of_ours(foreign: ModuleType) -> None:
    assert len(FILE.read_text().splitlines()) <= 60
    assert foreign.PriorShift not in METHODS.values()


@pytest.fixture(scope="module")
def example(foreign: ModuleType) -> Example:
    return foreign.example()


@pytest.mark.parametrize(
    "invariant", CHECKS, ids=lambda invariant: f"{invariant.number:02d}-{invariant.name}"
)
def test_it_keeps_the_invariant(example: Example, invariant: Invariant) -> None:
    check = run_check(invariant, example)
    assert check.passed, check.detail


def test_nothing_is_said_against_it_before_a_run(example: Example) -> None:
    assert rehearse(example.experiment(), list(example.everybody)) == []
