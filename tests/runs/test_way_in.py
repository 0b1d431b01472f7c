"""From an own net and own data to a run folder on which every command works: from a
script, and from TOML.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedblocks as fb
from fedblocks.cli import main
from tests.warm import run_warm

DATA_AND_NET = """
import numpy as np
import torch
from torch import nn

import fedblocks as fb

rng = np.random.default_rng(0)
device_ids = np.repeat([f"truck-{n}" for n in range(4)], 40)
x, y = rng.normal(size=(160, 6)).astype("float32"), rng.integers(0, 3, 160)


class Small(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.body(x)))

"""
EIGHT_LINES = (
    DATA_AND_NET
    + """
data = fb.Federation.from_users(x, y, device_ids)
net = fb.Net.of(lambda: Small(classes=3), head="fc")
result = fb.run(fb.FedPer(net, lr=0.1, batch_size=8), data, rounds=4, out="runs/trucks")
print(result.summary())
"""
)
KILLED = (
    DATA_AND_NET
    + """
import os, signal


def kill(done):
    if done.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    net = fb.Net.of(lambda: Small(classes=3), head="fc")
    data = fb.Federation.from_users(x, y, device_ids)
    fb.run(fb.FedPer(net, lr=0.1, batch_size=8), data, rounds=4, out="runs/killed", on_round=kill)
"""
)
OWN_CODE = (
    DATA_AND_NET
    + '''
from dataclasses import dataclass


def small(input_shape, classes: int, width: int = 8):
    """A net of one's own."""
    layers = lambda: (nn.Linear(6, width), nn.ReLU(), nn.Linear(width, classes))
    return fb.Net.of(lambda: nn.Sequential(*layers()))


@dataclass(frozen=True, eq=False)
class Mine(fb.FedPer):
    """A method of one's own."""


def load_trucks(rows: int = 160):
    """Data of one's own."""
    return fb.Federation.from_users(x[:rows], y[:rows], device_ids[:rows])


fb.NETS["small"], fb.METHODS["mine"], fb.DATASETS["trucks"] = small, Mine, load_trucks
'''
)
TOML = """
rounds = 3
data = { name = "trucks", partition = { name = "by_user" } }
net = { name = "small", width = 5 }
method = { name = "mine", lr = 0.1, batch_size = 8 }
"""


def process(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A process of its own that has nothing but the library."""
    return run_warm(words, folder)


def command(*words: str, folder: Path) -> str:
    """What a command prints in a process of its own."""
    done = process("-m", "fedblocks", *words, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trucks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script and the run that it made."""
    folder = tmp_path_factory.mktemp("trucks")
    (folder / "trucks.py").write_text(EIGHT_LINES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # the one way in that a user takes first, and nothing is warm
        [sys.executable, "trucks.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "fedper, accuracy of clients after round 4 of 4" in done.stdout
    return folder


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with code, a configuration that names what is in it, and the run of both."""
    folder = tmp_path_factory.mktemp("named")
    (folder / "my_code.py").write_text(OWN_CODE)
    (folder / "a.toml").write_text(TOML)
    command("run", "a.toml", "--code", "my_code.py", "--out", "runs/a", "--quiet", folder=folder)
    return folder


@pytest.fixture
def clean() -> Iterator[None]:
    """What code read in this process registers is forgotten."""
    known: list[dict[str, Any]] = [fb.NETS, fb.METHODS, fb.DATASETS]  # type: ignore[list-item]
    before, path, program = [dict(one) for one in known], list(sys.path), sys.modules["__main__"]
    yield
    for one, old in zip(known, before, strict=True):
        one.clear()
        one.update(old)
    for name in [name for name in sys.modules if name.startswith(("fedblocks_code_", "my_code"))]:
        del sys.modules[name]
    sys.path[:], sys.modules["__main__"] = path, program


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and all that a command in this process prints."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    shown = capsys.readouterr()
    return int(stop.value.code or 0), shown.out + shown.err


# the script


def test_report_and_watch_need_no_code(
    trucks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly: pip install 'fedblocks[report]'")
    pytest.importorskip(
        "starlette", reason="watching needs starlette: pip install 'fedblocks[dashboard]'"
    )
    monkeypatch.chdir(trucks)
    assert "report.html" in said(capsys, "report", "runs/trucks")[1]
    words = [sys.executable, "-u", "-m", "fedblocks", "watch", "runs/trucks"]
    with subprocess.Popen(words, cwd=trucks, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        address = watching.stdout.readline().strip()
        page = urllib.request.urlopen(address).read().decode()
        watching.terminate()
    assert "fedper" in page


def test_a_killed_script_goes_on_by_command_to_the_same_bits(trucks: Path, same_bits: Any) -> None:
    (trucks / "killed.py").write_text(KILLED)
    assert process("killed.py", folder=trucks).returncode == -9
    assert fb.load_run(trucks / "runs/killed").rounds == 2
    command("resume", "runs/killed", "--code", "killed.py", "--quiet", folder=trucks)
    whole, resumed = (fb.load_run(trucks / "runs" / name) for name in ("trucks", "killed"))
    assert resumed.status == "finished" and resumed.accuracies() == whole.accuracies()
    assert same_bits(whole.state(), resumed.state())


def test_a_client_s_model_is_exported_and_asked_with_the_script_s_help(
    trucks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    monkeypatch.chdir(trucks)
    np.savez("in.npz", x=np.zeros((3, 6), "float32"))
    words, own = ["predict", "client-1.safetensors", "--input", "in.npz"], ["--code", "trucks.py"]
    assert said(capsys, "export", "runs/trucks", "--client", "1", *own)[0] == 0
    alone = said(capsys, *words)
    assert alone[0] == 2 and "add --code trucks.py (the program that started the run" in alone[1]
    # a process of its own has nothing of the program before it reads it
    assert len(json.loads(command(*words, *own, "--json", folder=trucks))["labels"]) == 3


def test_the_folder_records_method_net_data_and_code(trucks: Path) -> None:
    config = fb.load_run(trucks / "runs/trucks").config
    assert config.method.table["name"] == "fedper" and config.method.table["lr"] == 0.1
    assert config.net.table["tensors"] == [
        "body.weight 8 x 6",
        "body.bias 8",
        "fc.weight 3 x 8",
        "fc.bias 3",
    ]
    assert len(config.data.options["hash"]) == 64
    (code,) = json.loads((trucks / "runs/trucks/code.json").read_text())
    assert code["file"] == "trucks.py" and len(code["sha256"]) == 64


def test_another_script_is_refused_with_what_differs(
    trucks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    monkeypatch.chdir(trucks)
    for old, new, words in [
        ("lr=0.1", "lr=0.2", "method.lr was 0.1 and is 0.2"),
        ("fb.FedPer", "fb.FedAvg", "method.name was fedper and is fedavg"),
        (
            "nn.Linear(6, 8), nn.Linear(8,",
            "nn.Linear(6, 9), nn.Linear(9,",
            "net.tensors was body.weight 8 x 6",
        ),
        ("default_rng(0)", "default_rng(1)", "data.hash was"),
        ("torch.relu(self.body", "torch.tanh(self.body", 'another output for client "truck-0"'),
    ]:
        Path("trucks.py").with_name("other.py").write_text(EIGHT_LINES.replace(old, new))
        code, shown = said(capsys, "export", "runs/trucks", "--client", "0", "--code", "other.py")
        assert code in (2, 3) and words in shown and "run was started with" in shown


def test_a_changed_file_is_warned_of(
    trucks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    (trucks / "later").mkdir()
    (trucks / "later" / "trucks.py").write_text(EIGHT_LINES + "\n# a comment more\n")
    monkeypatch.chdir(trucks)
    words = ["export", "runs/trucks", "--client", "0", "--out", "x.safetensors", "--code"]
    assert "warning: trucks.py has changed since" in said(capsys, *words, "later/trucks.py")[1]
    assert "warning" not in said(capsys, *words, "trucks.py")[1]


# TOML and --code


def test_names_of_own_code_train_and_are_recorded_with_their_file(named: Path) -> None:
    result = fb.load_run(named / "runs/a")
    assert result.status == "finished" and result.config.net.table == {"name": "small", "width": 5}
    entries = json.loads((named / "runs/a/code.json").read_text())
    assert [(one["defines"], one["file"]) for one in entries] == [
        ('data set "trucks"', "my_code.py"),
        ('net "small"', "my_code.py"),
        ('method "mine"', "my_code.py"),
    ]


def test_a_report_of_unknown_names_is_written_and_other_commands_say_what_to_add(
    named: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    pytest.importorskip("plotly", reason="a report needs plotly: pip install 'fedblocks[report]'")
    monkeypatch.chdir(named)
    assert said(capsys, "report", "runs/a")[0] == 0
    code, shown = said(capsys, "export", "runs/a", "--client", "0")
    assert code == 2 and 'needs the data set "trucks"' in shown
    assert (
        'add --code my_code.py (the file that defines data set "trucks", recorded with SHA-256 '
        in shown
    )
    assert said(capsys, "run", "a.toml")[0] == 2
    assert said(capsys, "export", "runs/a", "--client", "0", "--code", "my_code.py")[0] == 0
    np.savez("in.npz", x=np.zeros((2, 6), "float32"))
    assert said(capsys, "predict", "client-0.safetensors", "--input", "in.npz")[0] == 0


def test_own_names_are_compared_planned_checked_and_previewed(
    named: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    monkeypatch.chdir(named)
    own = ["--code", "my_code.py"]
    grid = [
        "compare",
        "a.toml",
        "--methods",
        "mine",
        "--seeds",
        "1",
        "--out",
        "runs/grid",
        "--quiet",
    ]
    assert said(capsys, *grid, "--set", "rounds=1", *own)[0] == 0
    code, shown = said(capsys, "plan", "mine", *own)
    assert code == 0 and "server" in shown
    assert "20 of 22 invariants hold, 2 not checked" in said(capsys, "check", "mine", *own)[1]
    assert "truck-0" in said(capsys, "data", "preview", "a.toml", *own)[1]
    assert '"mine"' in said(capsys, "methods", "--json", *own)[1]


def test_own_names_are_searched_for_their_best_options(
    named: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    pytest.importorskip("optuna", reason="a search needs optuna: pip install 'fedblocks[tune]'")
    monkeypatch.chdir(named)
    words = [
        "tune",
        "a.toml",
        "--set",
        "method.lr=0.1..1",
        "--set",
        "rounds=1",
        "--trials",
        "1",
        "--out",
        "runs/t",
    ]
    code, shown = said(capsys, *words, "--code", "my_code.py")
    assert code == 0 and "--code my_code.py" in shown.splitlines()[-1]


def test_processes_that_a_command_starts_read_the_same_code(named: Path) -> None:
    look = (
        "from fedblocks.config.registry import kinds; print('small' in kinds()['net'], "
        "'trucks' in kinds()['data'])"
    )
    start = "import subprocess, sys; from fedblocks.config.code.loading import tell_children; "
    start += "tell_children(['my_code.py']); "
    start += f"subprocess.run([sys.executable, '-c', {look!r}], cwd='/')"
    assert process("-c", start, folder=named).stdout == "True True\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "1 / 0",
            "--code bad.py cannot be read: ZeroDivisionError: division by zero (bad.py, line 1)",
        ),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
@pytest.mark.usefixtures("clean")
def test_code_that_fails_is_told_with_its_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    words: str,
    clean: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(text + "\n")
    code, shown = said(capsys, "plan", "fedavg", "--code", "bad.py")
    assert code == 2 and words in shown
    assert "there is no such file" in said(capsys, "plan", "fedavg", "--code", "none.py")[1]


def test_a_module_can_be_named_instead_of_a_file(
    named: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, clean: None
) -> None:
    monkeypatch.chdir(named)
    assert said(capsys, "plan", "mine", "--code", "my_code")[0] == 0
