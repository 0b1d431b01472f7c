"""Faults on purpose happen on ranks as they do in one process."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from fedblocks.runs.run import run

from .players import FILE, config_of_steps
from .processes import PLAYERS, rows_of, run_ranks, unlike

FAULTS = {"drop": 0.2, "slow": 0.1, "crash": 0.1, "corrupt": 0.2}


def test_a_run_with_faults_on_two_ranks_is_that_of_one_process(tmp_path: Path) -> None:
    config = config_of_steps(faults=FAULTS)
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config.resolved()))
    run(config, tmp_path / "alone")
    words = (FILE, str(tmp_path / "config.toml"), str(tmp_path / "ranks"))
    ends = run_ranks(2, str(PLAYERS), *words)
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert unlike(tmp_path / "ranks", tmp_path / "alone", 1e-6) == []
    reasons = {row[0] for row in rows_of(tmp_path / "ranks", "refusals", "reason")}
    assert reasons == {"dropped-out", "late", "crashed", "not-finite"}
