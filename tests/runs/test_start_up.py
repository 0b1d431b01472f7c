"""What a run loads before its first round ends: each of these costs a process up to seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# torch's compiler and what it stands on, other extras, and the real federations
UNNEEDED = {
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "plotly",
    "flwr",
    "ray",
}
RUN = """
import json, sys
import fedblocks
config = {
    "rounds": 2, "threads": 1, "engine": "ENGINE", "device": "cpu",
    "data": {"name": "digits", "clients": 4},
    "net": {"name": "resnet", "widths": [8], "blocks": 1},
    "method": {"name": "fedper", "batch_size": 16},
}
from fedblocks.config.model import Config
from fedblocks.runs.run import run
run(Config.of(config), sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""


def test_a_run_loads_neither_torchs_compiler_nor_extras_on_either_engine(tmp_path: Path) -> None:
    for engine in ("sequential", "vectorised"):
        code = RUN.replace("ENGINE", engine)
        command = [sys.executable, "-c", code, str(tmp_path / engine)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loaded = {*json.loads(done.stdout.splitlines()[-1])}
        assert "torch" in loaded and UNNEEDED & loaded == set()


def test_the_package_itself_loads_no_torch() -> None:
    code = "import sys, fedblocks; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
