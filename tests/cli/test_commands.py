"""The commands: what they print, for people and for programs, and how they end."""

import inspect
import json
import os
import pty
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import typer

from fedblocks import testing
from fedblocks.cli import app, main
from fedblocks.cli.output import clean
from fedblocks.cli.progress import Watch, sparkline
from fedblocks.methods import METHODS
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing import contract
from tests.warm import run_warm

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
SMALL = ["--set", "rounds=2", "--set", "method.epochs=1"]


def test_methods_are_listed_for_people_and_as_json(fedblocks: Any) -> None:
    shown = fedblocks("methods")
    assert shown.code == 0
    assert all(name in shown.out for name in METHODS)
    actual = {entry["name"]: entry for entry in fedblocks("methods", "--json").json}
    assert set(METHODS) <= set(actual)
    assert actual["pfedmb"]["year"] == 2022
    assert {option["name"] for option in actual["pfedmb"]["options"]} >= {
        "lr",
        "branches",
        "alpha_lr",
    }


def test_a_plan_names_every_block(fedblocks: Any) -> None:
    shown = fedblocks("plan", "pfedmb", "--set", "branches=5")
    assert shown.code == 0
    for words in (
        "block",
        "home",
        "client sees",
        "client writes",
        "phases",
        "alpha",
        "5 slots",
        "train 1:",
    ):
        assert words in shown.out
    actual = fedblocks("plan", "fedper", "--json").json
    assert {block["name"]: block["home"] for block in actual["blocks"]} == {
        "body": "server",
        "head": "client",
    }


def test_a_check_gives_a_verdict_on_each_invariant(
    fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [one for one in contract.CHECKS if one.number in (4, 12)]  # the fast ones
    monkeypatch.setattr(contract, "CHECKS", some)
    actual = fedblocks("check", "fedavg", "--json").json
    assert [(verdict["number"], verdict["passed"]) for verdict in actual] == [(4, True), (12, True)]
    assert all(verdict["name"] for verdict in actual)


def test_a_failed_check_ends_with_code_6(fedblocks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = [
        contract.Check(1, "a", "this holds", True, ""),
        contract.Check(2, "b", "this does not", False, "off by 3"),
        contract.Check(3, "c", "nobody knows", True, "not checked: no plan", is_checked=False),
    ]
    monkeypatch.setattr(testing, "check_method", lambda example: iter(verdicts))
    shown = fedblocks("check", "fedavg")
    assert shown.code == 6
    assert (
        "ok      this holds" in shown.out
        and "FAILED  this does not" in shown.out
        and "off by 3" in shown.out
    )
    assert "-       nobody knows" in shown.out
    assert "1 of 3 invariants hold, 1 fails (2), 1 not checked" in shown.out


def test_a_run_prints_a_line_a_round_and_a_table(fedblocks: Any) -> None:
    shown = fedblocks(
        "run", "digits-fedavg", *SMALL, "--set", "evaluation.every=1", "--out", "here"
    )
    assert shown.code == 0, shown.err
    lines = [line for line in shown.out.splitlines() if line.startswith("fedavg  round")]
    assert [line.split()[2] for line in lines] == ["1/2", "2/2"]
    assert "bottom decile" in shown.out and "best by validation" in shown.out
    assert "finished: 2 rounds" in shown.out and "in here" in shown.out
    assert Path("here/config.toml").is_file()


def test_the_result_of_a_run_is_json_and_nothing_else(fedblocks: Any) -> None:
    done = fedblocks("run", "digits-fedavg", *SMALL, "--out", "a", "--json")
    assert (
        done.json["name"] == "a" and done.json["status"] == "finished" and done.json["rounds"] == 2
    )
    assert set(done.json["last"]) == {"round", "test", "validation"}
    assert "round 1/2" in done.err
    again = fedblocks("resume", "a", "--json", "--reference", "a").json
    assert again["share_below_reference"] == 0.0
    assert "was finished already" in fedblocks("resume", "a").out


def test_data_are_listed_previewed_and_saved(fedblocks: Any) -> None:
    listed = {(entry["what"], entry["name"]) for entry in fedblocks("data", "list", "--json").json}
    assert {("data set", "digits"), ("partition", "dirichlet_labels"), ("shift", "joint")} <= listed
    assert "dirichlet_labels" in fedblocks("data", "list").out
    shown = fedblocks("data", "preview", "digits-fedavg", "--most", "2")
    assert "client-1" in shown.out and "... and 18 more clients" in shown.out
    saved = fedblocks("data", "save", "digits-fedavg", "--out", "digits.npz", "--json").json
    table = {"rounds": 1, "net": "mlp", "method": {"name": "fedavg", "batch_size": 8}}
    table["data"] = {"name": "saved", "options": {"path": "digits.npz"}}
    Path("own.toml").write_text(tomli_w.dumps(table))
    assert (
        fedblocks("data", "preview", "own.toml", "--json").json["federation"]["hash"]
        == saved["hash"]
    )
    assert saved["clients"] == 20


PROGRAM = """
import numpy as np
import fedblocks as fb
from fedblocks.nets import mlp

x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
data = fb.Federation.from_users(x, np.arange(60) % 2, np.array(["ann", "bob", "cy"] * 20))
fb.run(fb.FedAvg(mlp((4,), 2, hidden=(3,)), lr=0.1), data, rounds=1, out="mine")
"""


def test_the_data_of_a_program_are_previewed_and_saved_with_its_code(fedblocks: Any) -> None:
    Path("mine.py").write_text(PROGRAM)
    runpy.run_path("mine.py")
    shown = fedblocks("data", "preview", "mine/config.toml", "--code", "mine.py")
    assert shown.code == 0 and "bob" in shown.out
    words = ("data", "save", "mine/config.toml", "--code", "mine.py", "--out", "d.npz", "--json")
    assert fedblocks(*words).json["clients"] == 3
    alone = fedblocks("data", "preview", "mine/config.toml")
    assert alone.code == 2 and "made by a Python program" in alone.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["run", "digits-fedagv"],
            2,
            ['there is no preset or file "digits-fedagv"', "fix: ", "digits-fedavg"],
        ),
        (["run", "digits-fedavg", "--set", "rounds=0"], 2, ["--set rounds: 0 is below 1", "fix: "]),
        (
            ["run", "digits-fedavg", "--set", "method.lerning_rate=1"],
            2,
            ["method.lerning_rate", "fix: "],
        ),
        (["plan", "fedavgg"], 2, ['there is no method "fedavgg"', '"fedavg"']),
        (["check", "fedavgg"], 2, ['there is no method "fedavgg"', '"fedavg"']),
        (["run", "digits-fedavg", "--set", "data.clients=5000"], 3, ["5000 clients", "fix: "]),
        (["run", "digits-fedavg", "--out", "file"], 4, ["file", "fix: "]),
        (["run", "digits-fedavg", "--out", "full"], 4, ["full is not empty", "fix: "]),
        (["resume", "nowhere"], 4, ["nowhere does not exist", "fix: "]),
        (
            ["data", "save", "digits-fedavg", "--out", "no/such/folder.npz"],
            3,
            ["cannot write", "fix: "],
        ),
        (["run"], 2, ["CONFIG"]),
        (["nonsense"], 2, ["nonsense"]),
    ],
)
def test_a_mistake_ends_with_its_code_and_one_block(
    fedblocks: Any, words: list[str], code: int, said: list[str]
) -> None:
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/other").write_text("")
    done = fedblocks(*words)
    assert done.code == code
    assert "Traceback" not in done.out + done.err
    for text in said:
        assert text in done.err


def test_debug_shows_the_traceback_wherever_it_stands(fedblocks: Any) -> None:
    for words in (["--debug", "resume", "nowhere"], ["resume", "nowhere", "--debug"]):
        done = fedblocks(*words)
        assert done.code == 4
        assert "Traceback" in done.err and "fix: " in done.err


def test_an_unexpected_error_is_short_and_ends_with_code_1(
    fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedblocks.config import catalogue

    def broken() -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(catalogue, "methods", broken)
    done = fedblocks("methods")
    assert done.code == 1
    assert "unexpected ZeroDivisionError: oh" in done.err and "--debug" in done.err
    assert "Traceback" not in done.err
    with pytest.raises(ZeroDivisionError):
        main(["methods", "--debug"])


def test_ctrl_c_outside_a_run_ends_with_code_130(
    fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedblocks.config import catalogue

    def slow() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "methods", slow)
    assert fedblocks("methods").code == 130


def test_foreign_names_cannot_play_tricks_on_a_terminal(
    fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tricky(FedAvg):
        """[bold red]trick\x1b[2J"""

    monkeypatch.setitem(METHODS, "tricky[/]\x1b[31m", Tricky)
    shown = fedblocks("methods")
    assert shown.code == 0
    assert "[bold red]trick\\x1b[2J" in shown.out and "tricky[/]\\x1b[31m" in shown.out
    assert not CONTROL.search(shown.out)
    assert not CONTROL.search(fedblocks("run", "no\x1b[2Jfile").err)
    assert clean("a\tb\x07\nc") == "a\\tb\\x07\nc"


def test_the_curve_of_a_run_goes_from_its_lowest_to_its_highest_value() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert sparkline([]) == "" and sparkline([0.3, 0.3]) == "▁▁"


COMMAND = ["-m", "fedblocks", "run", "digits-fedavg", *SMALL, "--out"]


def test_piped_output_has_no_control_characters(tmp_path: Path) -> None:
    done = run_warm([*COMMAND, "a"], tmp_path)
    assert done.returncode == 0 and "round 2/2" in done.stdout
    assert not CONTROL.search(done.stdout + done.stderr)


def on_a_terminal(words: list[str], folder: Path, **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    child = subprocess.Popen(
        [sys.executable, *words],
        stdout=theirs,
        stderr=theirs,
        stdin=theirs,
        cwd=folder,
        env={**env, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0, shown.decode()
    return shown.decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


def test_a_terminal_gets_a_live_line_and_no_colours_if_unwanted(tmp_path: Path) -> None:
    coloured = on_a_terminal([*COMMAND, "a"], tmp_path)
    assert "2/2" in coloured and "\x1b[2K" in coloured  # a line that is rewritten
    assert COLOUR.search(coloured)
    plain = on_a_terminal([*COMMAND, "b"], tmp_path, NO_COLOR="1")
    assert "2/2" in plain
    assert not COLOUR.search(plain)


def test_the_version_is_shown(fedblocks: Any) -> None:
    assert re.fullmatch(r"fedblocks \d+\.\d+\.\d+\n", fedblocks("--version").out)
    assert app.UNEXPECTED == 1


@pytest.mark.parametrize(
    ("words", "said", "near"),
    [
        (["quikstart"], '"fedblocks quikstart"', "quickstart"),
        (["federation", "sevrer"], '"fedblocks federation sevrer"', "server"),
    ],
)
def test_an_unknown_command_is_answered_with_one_like_it(
    fedblocks: Any, words: list[str], said: str, near: str
) -> None:
    shown = fedblocks(*words)
    assert shown.code == 2 and f"there is no command {said}" in shown.err
    assert shown.err.count("did you mean") == 1 and f'did you mean "{near}"?' in shown.err


def test_a_run_whose_updates_are_refused_ends_with_a_warning_that_says_so(fedblocks: Any) -> None:
    diverging = [
        "run",
        "digits-fedavg",
        "--set",
        "rounds=1",
        "--set",
        "method.optimizer.name=sgd",
        "--quiet",
    ]
    some = fedblocks(*diverging, "--set", "method.lr=1e6", "--out", "some")
    assert some.code == 0 and re.search(
        r"warning: \d+ of 20 updates were refused \(\d+ clients; the latest: "
        r".*\); ",
        some.err,
    )
    every = fedblocks(*diverging, "--set", "method.lr=1e30", "--out", "every", "--json")
    assert every.code == 0 and every.json["status"] == "finished"
    last = every.err.strip().splitlines()[-1]
    assert last.startswith("warning: every update of the last round was refused (")
    assert (
        "try a lower learning rate: --set method.lr=" in last and "`fedblocks report every`" in last
    )
    fine = fedblocks(*diverging, "--out", "fine")
    assert fine.code == 0 and "warning" not in fine.err


def commands_of(group: Any, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command by the words that name it."""
    commands: dict[tuple[str, ...], Any] = {}
    for name, one in group.commands.items():
        commands |= (
            commands_of(one, (*above, name)) if hasattr(one, "commands") else {(*above, name): one}
        )
    return commands


COMMANDS = commands_of(typer.main.get_command(app.app))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_help_of_a_command_explains_every_argument_and_option_once(
    fedblocks: Any, words: tuple[str, ...]
) -> None:
    shown = fedblocks(*words, "--help")
    text = " ".join(shown.out.split())
    assert shown.code == 0 and "\\" not in text and text.count("rguments:") <= 1
    for name, parameter in inspect.signature(
        COMMANDS[words].callback, eval_str=True
    ).parameters.items():
        (mark,) = [one for one in parameter.annotation.__metadata__ if hasattr(one, "help")]
        assert mark.help and f" {mark.help}" in text, name


def test_the_list_of_commands_shows_whole_sentences(fedblocks: Any) -> None:
    for group in ([], ["data"], ["new"], ["federation"]):
        listed = fedblocks(*group, "--help").out.partition("Commands:")[2]
        assert listed and "..." not in listed


def test_descriptions_are_whole_and_ifca_is_personal_by_cluster(fedblocks: Any) -> None:
    listed = {entry["name"]: entry for entry in json.loads(fedblocks("methods", "--json").out)}
    assert listed["ifca"]["personal_by"] == "cluster"
    for name, entry in listed.items():
        assert entry["about"].count("(") == entry["about"].count(")"), name
        assert entry["about"].endswith("."), name


def test_a_command_that_is_stopped_says_so_in_one_block_and_ends_with_code_130(
    fedblocks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: object, done: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "on_round", stop)
    shown = fedblocks("run", "digits-fedavg", *SMALL, "--out", "here")
    assert shown.code == 130
    error = shown.err[shown.err.index("error: ") :]
    assert error.splitlines() == [
        "error: stopped; round 1 is stored",
        "  fix: go on with: fedblocks resume here",
    ]


def test_a_method_that_needs_norms_is_shown_with_a_net_that_has_them(fedblocks: Any) -> None:
    shown = fedblocks("plan", "fedbn", "--json")
    assert [block["name"] for block in shown.json["blocks"]] == ["rest", "norms"]
    entry = next(one for one in fedblocks("methods", "--json").json if one["name"] == "fedbn")
    assert entry["stateful"] is True
    without = fedblocks("plan", "fedbn", "--set", "net.name=mlp")
    assert without.code == 2 and 'net = {name = "cnn", batch_norm = true}' in without.err


OWN_ADAPTERS = """
import fedblocks as fb
from torch import nn


def adapted(input_shape, classes: int, rank: int = 4):
    layers = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes)
    return fb.lora(nn.Sequential(*layers), rank=rank, targets=("1",), head="3")


fb.NETS["adapted"] = adapted
fb.METHODS["fedsa_lora"] = fb.FedSALoRA
"""


def test_a_method_over_adapters_is_shown_with_a_net_that_has_them(
    fedblocks: Any, tmp_path: Path
) -> None:
    code = tmp_path / "own.py"
    code.write_text(OWN_ADAPTERS)
    without = fedblocks("plan", "fedsa_lora", "--code", str(code))
    assert without.code == 2 and "--set net.name=NAME --set head=private" in without.err
    sets = ("--set", "net.name=adapted", "--set", "head=private")
    shown = fedblocks("plan", "fedsa_lora", *sets, "--code", str(code), "--json")
    assert [block["name"] for block in shown.json["blocks"]] == ["base", "lora.A", "lora.B", "head"]
