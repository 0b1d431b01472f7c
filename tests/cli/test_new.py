"""Templates: packages of one's own that work before anything is changed, and that the
commands find by themselves.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli.names import method_names, preset_names
from fedblocks.config.presets import PRESETS
from fedblocks.methods import METHODS
from tests.warm import run_warm

COMMANDS = """
import sys
from fedblocks.cli import main

def command(*words):
    print("$", *words, flush=True)
    try:
        main(list(words))
    except SystemExit as stop:
        print("exit", stop.code, flush=True)

changes = ["--set", "rounds=1", "--set", "method.epochs=1", "--seeds", "1"]
changes += ["--out", "grid", "--quiet"]
command("methods", "--json")
command("compare", "digits-fedavg", "--methods", "my_idea", *changes)
command("report", "grid")
command("data", "list", "--json")
command("run", "points/example.toml", "--set", "rounds=1", "--out", "run", "--quiet")
command("run", "my_net/example.toml", "--set", "rounds=1", "--out", "run-net", "--quiet")
"""


def run_tests_of(folder: str) -> subprocess.CompletedProcess[str]:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", f"{folder}/pyproject.toml"]
    # a place of its own, or it would also clear away what earlier sessions have left
    return run_warm([*words, "--basetemp=temporary", folder])


def test_a_method_reads_like_an_algorithm_box_and_its_tests_pass_before_any_edit(
    fedblocks: Any,
) -> None:
    built = fedblocks("new", "method", "my_idea", "--json").json
    assert built["folder"] == "my_idea"
    method = Path("my_idea/src/fedblocks_my_idea/method.py").read_text()
    assert len(method.splitlines()) <= 60
    assert "class MyIdea(Method):" in method and "$" not in method
    assert {Path(file).name for file in built["files"]} >= {
        "pyproject.toml",
        "README.md",
        "test_my_idea.py",
    }
    done = run_tests_of("my_idea")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_tests_of_a_data_set_pass_before_any_edit(fedblocks: Any) -> None:
    shown = fedblocks("new", "dataset", "points", "--out", "deep/points")
    assert shown.code == 0 and "cd deep/points; pip install -e ." in shown.out
    done = run_tests_of("deep/points")
    assert done.returncode == 0, done.stdout


def test_the_tests_of_a_net_pass_before_any_edit_and_its_file_is_code_for_a_run(
    fedblocks: Any,
) -> None:
    shown = fedblocks("new", "net", "my_net")
    assert shown.code == 0 and "cd my_net; pip install -e ." in shown.out
    done = run_tests_of("my_net")
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout
    code = "my_net/src/fedblocks_my_net/net.py"
    words = ["run", "my_net/example.toml", "--set", "rounds=1", "--out", "run", "--quiet"]
    assert fedblocks(*words, "--code", code).code == 0
    assert json.loads(Path("run/code.json").read_text())[0]["defines"] == 'net "my_net"'


def test_an_installed_method_net_and_data_set_appear_in_the_commands(fedblocks: Any) -> None:
    pytest.importorskip(
        "plotly", reason="one of the commands is a report: pip install 'fedblocks[report]'"
    )
    fedblocks("new", "method", "my_idea")
    fedblocks("new", "dataset", "points")
    fedblocks("new", "net", "my_net")
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        "--target",
        "site",
    ]
    subprocess.run([*install, "./my_idea", "./points", "./my_net"], check=True)
    found_first = os.pathsep.join([str(Path("site").resolve()), os.environ.get("PYTHONPATH", "")])
    done = run_warm(["-c", COMMANDS], PYTHONPATH=found_first)
    shown = dict(block.split("\n", 1) for block in done.stdout.split("$ ")[1:])
    assert all(text.endswith("exit 0\n") for text in shown.values()), done.stdout + done.stderr
    listed = {
        entry["name"]: entry
        for entry in json.loads(shown["methods --json"].removesuffix("exit 0\n"))
    }
    assert [option["name"] for option in listed["my_idea"]["options"]][-1] == "head_lr"
    assert any("my_idea" in text for name, text in shown.items() if name.startswith("compare"))
    assert "my_idea" in Path("grid/report.html").read_text()
    data = {
        entry["name"]: entry
        for entry in json.loads(shown["data list --json"].removesuffix("exit 0\n"))
    }
    assert {option["name"] for option in data["points"]["options"]} == {
        "users",
        "rows",
        "classes",
        "features",
        "seed",
    }
    assert Path("run/config.toml").is_file()
    assert (
        json.loads(Path("run-net/code.json").read_text())[0]["package"] == "fedblocks_my_net 0.1.0"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method", "My-Idea"], ['"My-Idea" cannot be the name of a Python module', "my_idea"]),
        (["method", "class"], ['"class" cannot be the name of a Python module', "small letters"]),
        (["dataset", "../up"], ['"../up" cannot be the name of a Python module', ": up"]),
        (["method", "pfedmb"], ['there is a method "pfedmb" already', "choose another name"]),
        (["method", "taken"], ["taken exists already", "--out"]),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_is_written(
    fedblocks: Any, words: list[str], said: list[str]
) -> None:
    Path("taken").mkdir()
    shown = fedblocks("new", *words)
    assert shown.code == 2
    assert all(text in shown.err for text in said)
    assert [path.name for path in Path().iterdir()] == ["taken"] and not any(
        Path("taken").iterdir()
    )


def test_names_are_known_without_importing_the_lists_themselves() -> None:
    assert method_names() == sorted(METHODS)
    assert preset_names() == sorted(PRESETS)
