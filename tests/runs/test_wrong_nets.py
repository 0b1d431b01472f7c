"""Functions that make nets, of other people: what a run gives them is said where they do not take
it, and what they must return where they return something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fedblocks as fb
from fedblocks.cli import main

NET = "fb.Net.of(lambda: nn.Linear(3, 2))"
WRONG = {
    "other names": (
        f"def small(width, out): return {NET}",
        "(width, out), without input_shape and",
    ),
    "no parameter": (f"def small(): return {NET}", "a function of (), without input_shape and"),
    "one of two": (f"def small(input_shape): return {NET}", "(input_shape), without classes"),
    "by place": (f"def small(*both): return {NET}", "(*both), without input_shape and classes"),
    "a module": ("def small(input_shape, classes): return nn.Linear(3, 2)", "returns a Linear"),
    "nothing": ("def small(input_shape, classes): pass", "returns a NoneType, not a net"),
    "an error": (
        "def small(input_shape, classes): return fb.Net.of(lambda: nn.Linear(3, many))",
        "NameError: name 'many' is not defined (own.py, line 4)",
    ),
    "a net": (f"small = {NET}", "is a Net, not a function"),
    "a class of torch": ("small = nn.Linear", "without input_shape and classes"),
}
CONFIG = """
rounds = 1
device = "cpu"
[data]
name = "gaussian"
clients = 4
options = { rows = 80, classes = 2, features = 3 }
[net]
name = "small"
[method]
name = "fedavg"
"""


@pytest.fixture(autouse=True)
def own_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(CONFIG)
    yield
    fb.NETS.pop("small", None)


def run_with(line: str) -> int:
    """The exit code of a run with a net of one's own."""
    head = "from torch import nn\n\nimport fedblocks as fb\n"
    Path("own.py").write_text(f'{head}{line}\nfb.NETS["small"] = small\n')
    with pytest.raises(SystemExit) as stop:
        main(["run", "own.toml", "--code", "own.py", "--out", "run"])
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_is_refused_with_what_it_is_given_and_must_return(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, said = WRONG[name]
    assert run_with(line) == 2
    error = capsys.readouterr().err
    assert 'net "small"' in error and said in error and "fix:" in error and "bug" not in error


@pytest.mark.parametrize("parameters", ["input_shape, classes", "*, classes, input_shape", "**all"])
def test_a_function_of_the_two_is_called_by_their_names(parameters: str) -> None:
    assert run_with(f"def small({parameters}): return {NET}") == 0
