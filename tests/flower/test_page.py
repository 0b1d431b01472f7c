"""What docs/deploy.md shows works."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"


def test_the_example_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rounds, size, refusals = done.stdout.split(maxsplit=2)
    # of the first layer, 6 inputs and 5 outputs: 4 clients, 2 branches of 35 numbers, all doubles,
    # and 2 weights
    assert (int(rounds), int(size), refusals.strip()) == (3, 4 * (2 * 35 * 8 + 2 * 8), "[]")
