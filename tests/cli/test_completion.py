"""Shell completion: what is offered, and that it comes without torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli.completion import some_config, some_methods

COMPLETE = """
import sys
from fedblocks.cli import main
try:
    main([])
except SystemExit:
    pass
print("torch" in sys.modules)
"""


def offered(line: str) -> list[str]:
    """What bash would offer after a line, and whether torch was imported for it."""
    words = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_FEDBLOCKS_COMPLETE": "complete_bash",
    }
    command = [sys.executable, "-c", COMPLETE]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **words}
    ).stdout.split()


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("fedblocks qui", {"quickstart"}),
        ("fedblocks plan pfed", {"pfedmb", "pfedme", "pfedhn"}),
        ("fedblocks run digits-fedavg", {"digits-fedavg", "digits-fedavg_ft"}),
        ("fedblocks compare digits-pfedmb --methods fedper,dit", {"fedper,ditto"}),
        ("fedblocks tune quickstart-fl", {"quickstart-flow"}),
        ("fedblocks new ", {"dataset", "method", "net"}),
    ],
)
def test_commands_and_names_are_completed_without_torch(line: str, some: set[str]) -> None:
    *names, torch = offered(line)
    assert set(names) == some
    assert torch == "False"


def test_files_are_offered_beside_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    for name in ("digits-mine.toml", "other.txt", "own/deep.toml"):
        (tmp_path / name).write_text("")
    assert some_config("digits-m") == ["digits-modfl", "digits-mine.toml"]
    assert some_config("own/") == ["own/deep.toml"]
    assert some_config("no/such/folder") == []
    assert some_methods("fedavg,fedavg") == ["fedavg,fedavg_ft"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(fedblocks: Any, shell: str) -> None:
    shown = fedblocks("completion", shell)
    assert shown.code == 0
    assert f"complete_{shell}" in shown.out and "fedblocks" in shown.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script(fedblocks: Any) -> None:
    script = fedblocks("completion", "bash").out
    done = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p fedblocks"], capture_output=True, text=True
    )
    assert "fedblocks" in done.stdout and done.returncode == 0, done.stderr


def test_an_unknown_shell_is_told(fedblocks: Any) -> None:
    shown = fedblocks("completion", "tcsh")
    assert shown.code == 2 and "tcsh" in shown.err
