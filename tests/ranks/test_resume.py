"""Runs go on with another number of ranks, and end where an uninterrupted one ends."""

from __future__ import annotations

import json
from pathlib import Path

from fedblocks.runs.result import load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.storage.folder import RunFolder

from .players import STEPS, config_of_steps, stop_after
from .processes import PLAYERS, run_ranks, unlike

CLOSE = 1e-6


def go_on(count: int, folder: Path, until: int) -> list[str]:
    """Resume a run on so many ranks and stop it after a round; what the first rank said."""
    ends = run_ranks(count, str(PLAYERS), STEPS, str(folder), str(until))
    assert [code for code, _, _ in ends] == [0] * count, ends
    return [ends[0][1]]


def test_a_run_goes_on_with_two_ranks_then_alone_then_with_four(tmp_path) -> None:
    whole = run(config_of_steps(), tmp_path / "whole")
    go_on(2, tmp_path / "run", 2)  # starts it
    stop_after(lambda listener: resume(tmp_path / "run", listener), 4)
    assert load_run(tmp_path / "run").status == "interrupted"
    go_on(4, tmp_path / "run", 99)
    ended = load_run(tmp_path / "run")
    assert (ended.status, ended.rounds) == ("finished", whole.config.rounds)
    assert unlike(tmp_path / "run", tmp_path / "whole", CLOSE) == []
    texts = [note["text"] for note in ended.notes]
    start = "not where it was started, last bits may differ: "
    assert f"{start}ranks 2 -> 1" in texts and f"{start}ranks 2 -> 4" in texts


def test_the_number_of_ranks_is_on_record_and_decides_nothing(tmp_path) -> None:
    go_on(2, tmp_path / "ranks", 99)
    run(config_of_steps(), tmp_path / "alone")
    there, here = (json.loads((tmp_path / n / "env.json").read_text()) for n in ("ranks", "alone"))
    assert (there["ranks"], there["engine"], there["backend"]) == (2, "sequential", "gloo")
    assert (here["ranks"], here["engine"]) == (1, "sequential")
    texts = [(tmp_path / name / "config.toml").read_text() for name in ("ranks", "alone")]
    assert texts[0] == texts[1]
    with RunFolder.open(tmp_path / "ranks") as ours, RunFolder.open(tmp_path / "alone") as theirs:
        for fact in ("engine", "federation", "clients"):
            assert ours.store.meta(fact) == theirs.store.meta(fact)


def test_a_run_is_extended_by_two_ranks_and_a_refused_extension_changes_nothing(tmp_path) -> None:
    config = config_of_steps()
    run(config, tmp_path / "run")
    before = (tmp_path / "run" / "config.toml").read_text()
    command = ("-m", "fedblocks", "resume", str(tmp_path / "run"), "--quiet", "--rounds")
    assert all(code for code, _, _ in run_ranks(2, *command, str(config.rounds)))
    assert (tmp_path / "run" / "config.toml").read_text() == before
    assert not any(code for code, _, _ in run_ranks(2, *command, "+1"))
    longer = load_run(tmp_path / "run")
    ends = (longer.status, longer.rounds, longer.config.rounds)
    assert ends == ("finished", config.rounds + 1, config.rounds + 1)
    run(config.model_copy(update={"rounds": config.rounds + 1}), tmp_path / "whole")
    assert unlike(tmp_path / "run", tmp_path / "whole", CLOSE) == []
