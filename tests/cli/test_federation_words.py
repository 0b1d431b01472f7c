"""`fedblocks federation`: every option reaches the function that it is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks import read_config
from fedblocks.flower import simulation
from fedblocks.flower.client import host
from fedblocks.flower.hosts import federation, running, server_host, status
from fedblocks.runs.result import load_run
from tests.reports import stories

OPTIONS = {"--deadline": "31", "--patience": "32", "--minimum": "0.5", "--ask": "1.5"}
TERMS = {"seconds": 31.0, "patience": 32.0, "minimum": 0.5, "more": 1.5, "share": 0.25}
Words = list[str]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run, which stands for the one that a federation would have made."""
    stories.write_run(tmp_path / "begun", "fedavg", 3)
    return tmp_path / "begun"


@pytest.fixture
def heard(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the functions behind the commands were asked for."""
    calls: list[Any] = []

    def note(place: Any, name: str, result: Callable[[], Any]) -> None:
        def stand_in(*values: Any, **named: Any) -> Any:
            calls.append((name, values, named))
            return result()

        monkeypatch.setattr(place, name, stand_in)

    result = lambda: load_run(run_folder)
    note(federation, "local", result)
    note(federation, "go_on", result)
    note(federation, "new_run", lambda: run_folder)
    note(simulation, "simulate", result)
    note(simulation, "need_ray", lambda: None)
    monkeypatch.setattr(running, "check_running", lambda folder: None)
    note(server_host, "host_server", lambda: None)
    note(host, "host_client", lambda: None)
    note(server_host, "adapt", lambda: None)
    jobs = [
        SimpleNamespace(job=SimpleNamespace(kind=kind, folder="R")) for kind in ("train", "give")
    ]
    note(server_host, "stop_jobs", lambda: jobs)
    rows = [{"what": "node", "name": "ward-a", "status": "online", "id": "7"}]
    note(status, "status_of", lambda: rows)
    return calls


def options(**more: str) -> Words:
    return [word for pair in {**OPTIONS, **more}.items() for word in pair]


def test_a_local_federation_gets_its_terms(fedblocks: Any, heard: list[Any]) -> None:
    more = {"--nodes": "5", "--port": "4321", "--largest-share": "0.25", "--set": "rounds=7"}
    done = fedblocks("federation", "local", "digits-fedavg", "--json", *options(**more))
    assert done.code == 0, done.err
    (_, (config, out, notes), _), (name, values, _) = heard
    assert (config, out) == (read_config("digits-fedavg", ["rounds=7"]), None)
    assert notes == ["engine flower: 5 nodes on this machine, with certificates and keys"]
    assert name == "local" and values[1:3] == (5, TERMS) and values[5] == 4321
    assert values[0].name == "begun" and done.json["rounds"] == 4


def test_a_run_on_a_server_goes_on_where_it_is(
    fedblocks: Any, heard: list[Any], run_folder: Path, tmp_path: Path
) -> None:
    more = {"--server": "there", "--largest-share": "0.25", "--largest-examples": "99"}
    done = fedblocks("federation", "run", str(run_folder), "--json", *options(**more))
    assert done.code == 0, done.err
    ((name, values, _),) = heard  # no new run
    terms = {**TERMS, "largest_examples": 99}
    assert (name, values[:3]) == ("go_on", (tmp_path / "there", run_folder, terms))


def test_a_new_run_on_a_server_goes_to_the_folder_that_is_named(
    fedblocks: Any, heard: list[Any]
) -> None:
    words = ("digits-fedavg", "--server", "there", "--out", "here", "--json")
    assert fedblocks("federation", "run", *words).code == 0
    (_, (_, out, notes), _), (_, values, _) = heard
    assert out == Path("here") and notes == ["engine flower: clients on their own machines"]
    usual = {"seconds": 600.0, "patience": 600.0, "minimum": 0.8, "more": 1.0, "share": 1.0}
    assert values[2] == {**usual, "largest_examples": None}


def test_a_simulation_gets_its_cores(fedblocks: Any, heard: list[Any]) -> None:
    words = ("--nodes", "3", "--cpus", "2", "--gpus", "0.25", "--address", "a", "--deadline", "9")
    done = fedblocks("federation", "simulate", "digits-fedavg", *words)
    assert done.code == 0 and "report: " in done.out
    _, (_, (_, _, notes), _), (name, values, named) = heard
    assert notes == ["engine flower: 3 nodes on Ray"] and (name, values[1]) == ("simulate", 3)
    assert (named["cpus"], named["gpus"], named["address"]) == (2, 0.25, "a")
    assert named["choices"] == {"seconds": 9.0, "patience": 120.0}


@pytest.mark.parametrize(
    ("command", "name"), [("server", "host_server"), ("client", "host_client")]
)
def test_a_host_runs_in_its_folder(
    command: str, name: str, fedblocks: Any, heard: list[Any]
) -> None:
    assert fedblocks("federation", command, "there").code == 0
    ((called, values, _),) = heard
    assert (called, values[0]) == (name, Path("there"))


def test_status_is_a_table(fedblocks: Any, heard: list[Any], tmp_path: Path) -> None:
    assert fedblocks("federation", "status", "there", "--json").json == [
        {"what": "node", "name": "ward-a", "status": "online", "id": "7"}
    ]
    shown = fedblocks("federation", "status", "there").out
    assert "ward-a" in shown and "online" in shown and "status" in shown
    assert [values for _, values, _ in heard] == [(tmp_path / "there",)] * 2


def test_stopping_says_how_to_go_on(fedblocks: Any, heard: list[Any], tmp_path: Path) -> None:
    lines = fedblocks("federation", "stop", "there").out.splitlines()
    assert lines == [
        "stopped the run R; go on with: fedblocks federation run R --server there",
        "stopped giving models of R",
    ]
    fedblocks("federation", "stop", "there", "one")
    asked = [values[:2] for _, values, _ in heard]
    assert asked == [(tmp_path / "there", None), (tmp_path / "there", tmp_path / "one")]


def test_new_clients_are_named_one_by_one(fedblocks: Any, heard: list[Any], tmp_path: Path) -> None:
    words = ("--server", "there", "--client", "4", "--client", "6", "--deadline", "9")
    assert fedblocks("federation", "adapt", "R", *words, "--patience", "8").code == 0
    ((_, values, _),) = heard
    assert (*values[:3], *values[4:]) == (tmp_path / "there", Path("R"), [4, 6], 9.0, 8.0)
