"""`fedblocks check-net`, and the same check by itself when a run starts with a net of
the user's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedblocks.cli import main

CODE = """
import math
import torch
from torch import nn
import fedblocks as fb

class Own(nn.Module):
    def __init__(self, inputs, classes, kind):
        super().__init__()
        self.inner, self.fc = nn.Linear(inputs, 8), nn.Linear(8, classes)
        self.kind, self.passes = kind, 0

    def forward(self, x):
        h = torch.relu(self.inner(x.flatten(1)))
        if self.kind == "counting":
            self.passes += 1
        return self.fc(-h if self.kind == "branching" and h.mean().item() < 0 else h)

def net_of(kind):
    own = lambda shape, classes: lambda: Own(math.prod(shape), classes, kind)
    return lambda input_shape, classes: fb.Net.of(own(input_shape, classes))

for kind in ("good", "branching", "counting"):
    fb.NETS[kind] = net_of(kind)
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "own_nets.py"
    path.write_text(CODE)
    return str(path)


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out + told.err


@pytest.mark.parametrize(
    ("net", "exit_code", "engines"),
    [
        ("good", 0, ["sequential", "vectorised"]),
        ("branching", 0, ["sequential"]),
        ("counting", 6, []),
    ],
)
def test_the_command_says_on_which_engines_a_net_is_right(
    net: str, exit_code: int, engines: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = call(
        capsys, "check-net", net, "--code", code, "--shape", "1,8,8", "--classes", "10", "--json"
    )
    assert found == exit_code and json.loads(text)["engines"] == engines
    found, text = call(capsys, "check-net", net, "--code", code)
    assert found == exit_code and f"right on: {', '.join(engines) or 'no engine'}" in text


def test_a_shape_that_is_none_is_refused(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, text = call(capsys, "check-net", "good", "--code", code, "--shape", "1,eight")
    assert found == 2 and '"1,eight" is not a shape' in text


def run(
    capsys: pytest.CaptureFixture[str], code: str, net: str, out: Path, *changes: str
) -> tuple[int, str]:
    sets = [
        word for change in (f'net.name="{net}"', "rounds=1", *changes) for word in ("--set", change)
    ]
    return call(capsys, "run", "digits-fedavg", "--code", code, "--out", str(out), *sets)


def test_a_run_with_a_net_that_would_give_wrong_numbers_does_not_start(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = run(capsys, code, "counting", tmp_path / "run")
    assert found == 2 and 'it changes its own attribute "passes"' in " ".join(text.split())
    assert not (tmp_path / "run").exists()


def test_a_net_that_cannot_be_mapped_runs_one_client_after_another_unless_told_otherwise(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = run(capsys, code, "branching", tmp_path / "run")
    assert found == 0 and "engine sequential" in " ".join(text.split())
    found, text = run(capsys, code, "branching", tmp_path / "other", 'engine="vectorised"')
    assert found == 2 and "cannot be mapped over clients" in " ".join(text.split())


def test_a_net_for_other_inputs_is_told_of_the_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "table_net.py"
    file.write_text(
        "from torch import nn\n"
        "from fedblocks import NETS, Net\n"
        "NETS['table'] = lambda input_shape, classes: Net.of(lambda: nn.Linear(6, classes))\n"
    )
    found, text = call(capsys, "check-net", "table", "--code", str(file))
    assert found == 6 and "inputs of shape 1,8,8 were tried: give --shape" in text
    assert call(capsys, "check-net", "table", "--code", str(file), "--shape", "6")[0] == 0
