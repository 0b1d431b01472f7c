"""Real processes train numbers, several labels and tagged words as a simulation does: every metric
of every client is the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedblocks as fb

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

SETS = {
    "truck_ranges-fedper": "data.options.trucks=3",
    "diagnoses-ditto": "data.options.hospitals=3",
    "tagged_words-fedper": "data.options.writers=3",
}


def command(folder: Path, preset: str, *words: str) -> None:
    options = [SETS[preset], "method=fedem", "method.lr=0.1", "rounds=2", "engine=sequential"]
    line = [sys.executable, "-m", "fedblocks", *words]
    line += [word for option in options for word in ("--set", option)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("preset", SETS)
def test_real_processes_give_the_metrics_of_a_simulation(preset: str, tmp_path: Path) -> None:
    command(tmp_path, preset, "run", preset, "--out", "simulated")
    command(tmp_path, preset, "federation", "local", preset, "--out", "real")
    simulated, real = (fb.load_run(tmp_path / name) for name in ("simulated", "real"))
    assert real.metric == simulated.metric
    for metric in (real.metric.name, *real.metric.others, "loss"):
        assert len(real.scores(metric)) == 3
        assert real.scores(metric) == pytest.approx(simulated.scores(metric), abs=1e-6)
