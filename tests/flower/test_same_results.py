"""A federation of messages ends as a simulated one: every method, bytes included."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedblocks.engines.federate import evaluate
from fedblocks.engines.sequential import Sequential
from fedblocks.flower.server import Ask
from fedblocks.testing import EXAMPLES
from fedblocks.testing.compare import differences, report_leaves, state_leaves
from fedblocks.testing.rounds import run

from .federations import everybody, leaves, played


@pytest.fixture(autouse=True)
def quick_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is killed here, so that writes need not wait for the disk."""
    monkeypatch.setattr("fedblocks.runs.checkpoint.sync", lambda path: None)


@pytest.mark.parametrize("name", EXAMPLES)
def test_messages_in_process_give_what_the_sequential_engine_gives(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]()
    simulated = run(example.setting(), Sequential(), example.cohorts(), score="test")
    server, sides = everybody(example.setting(), tmp_path)
    progress, reports = played(server, sides, example.cohorts(), Ask(score="test"))
    assert differences(leaves(sides, progress), state_leaves(simulated.last), 1e-6) == []
    for ours, theirs in zip(reports, simulated.reports, strict=True):
        assert differences(report_leaves(ours), report_leaves(theirs)) == []
