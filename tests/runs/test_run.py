"""What a run does round by round, and what it leaves behind."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.config import registry
from fedblocks.config.catalogue import methods
from fedblocks.config.model import Config
from fedblocks.core.errors import DataError, UserError
from fedblocks.core.net import Net
from fedblocks.core.random import generator
from fedblocks.data import DATASETS, DataPool, DataSet, gaussian
from fedblocks.engines.auto.choose import choose
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.methods.fedavg import FedAvg
from fedblocks.nets import NETS
from fedblocks.reports.tables import leaderboard
from fedblocks.runs.build import prepare
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.rounds import cohort_of
from fedblocks.runs.run import run
from fedblocks.runs.storage.folder import RunFolder

Table = dict[str, Any]


def rows(result: RunResult, query: str) -> list[dict[str, Any]]:
    with RunFolder.open(result.folder) as folder:
        return folder.store.rows(query)


def test_a_run_is_a_folder_that_says_everything(small: Table, tmp_path: Path) -> None:
    config = Config.of(small)
    result = run(config, tmp_path / "run")
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text()) == config.resolved()
    assert (
        json.loads((tmp_path / "run" / "env.json").read_text())["threads"]
        == torch.get_num_threads()
    )
    assert (result.status, result.rounds, result.config) == ("finished", 3, config)
    assert {row["name"] for row in rows(result, "SELECT DISTINCT part AS name FROM means")} == {
        "test",
        "validation",
    }
    assert any("engine" in note["text"] for note in result.notes)
    assert load_run(tmp_path / "run").as_json() == result.as_json()


def test_a_run_has_the_threads_that_it_was_given_and_gives_them_back(
    small: Table, tmp_path: Path
) -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    run(
        Config.of(small | {"threads": before + 1}),
        tmp_path / "run",
        lambda done: seen.append(torch.get_num_threads()),
    )
    assert seen == [before + 1] * 3 and torch.get_num_threads() == before
    assert json.loads((tmp_path / "run" / "env.json").read_text())["threads"] == before + 1


def test_a_run_is_the_rounds_that_its_engine_plays(small: Table, tmp_path: Path) -> None:
    result = run(Config.of(small), tmp_path / "run")
    prepared = prepare(Config.of(small))
    state = prepared.experiment.start()
    for _ in range(3):
        state, report = run_round(prepared.experiment, state, prepared.clients, prepared.engine)
    stored = result.state()
    assert all(torch.equal(stored.server["model"][k], v) for k, v in state.server["model"].items())
    counts = evaluate(prepared.experiment, state, prepared.clients, prepared.engine, "test")[
        "personal"
    ]
    assert result.accuracies() == {
        client: correct / labels for client, (correct, labels, _) in counts.items()
    }
    per_round = sum(sum(by_client.values()) for by_client in report.bytes_up.values())
    assert result.bytes_up == 3 * per_round > 0


def test_a_cohort_is_drawn_from_seed_and_round(small: Table) -> None:
    prepared = prepare(Config.of(small | {"cohort": {"size": 2}}))
    drawn = [cohort_of(prepared, round) for round in range(20)]
    expected = [
        sorted(generator(3, round, "cohort").choice(4, 2, replace=False).tolist())
        for round in range(20)
    ]
    assert drawn == expected
    assert {client for cohort in drawn for client in cohort} == {0, 1, 2, 3}


def test_the_best_round_is_chosen_on_validation_data(small: Table, tmp_path: Path) -> None:
    result = run(Config.of(small | {"rounds": 6}), tmp_path / "run")
    assert result.best is not None and result.last is not None
    means = {
        row["round"]: row["accuracy"]
        for row in rows(result, "SELECT * FROM means WHERE part = 'validation'")
    }
    assert result.best.round == min(r for r, mean in means.items() if mean == max(means.values()))
    assert result.last.round == 6
    no_validation = small | {"evaluation": {"parts": ["test"]}}
    assert run(Config.of(no_validation), tmp_path / "other").best is None


def test_an_evaluation_is_due_every_few_rounds_and_at_the_end(small: Table, tmp_path: Path) -> None:
    result = run(Config.of(small | {"rounds": 5, "evaluation": {"every": 2}}), tmp_path / "run")
    assert [
        row["round"] for row in rows(result, "SELECT DISTINCT round FROM means ORDER BY round")
    ] == [2, 4, 5]


def test_models_are_tried_before_aggregation_if_asked(small: Table, tmp_path: Path) -> None:
    result = run(Config.of(small | {"evaluation": {"local": True}}), tmp_path / "run")
    assert {row["view"] for row in rows(result, "SELECT view FROM means WHERE part = 'test'")} == {
        "local",
        "personal",
    }


def test_unseen_clients_are_never_trained_on_and_tested_after_they_joined(
    small: Table, tmp_path: Path
) -> None:
    small["method"] = {"name": "local", "batch_size": 8, "lr": 0.3, "epochs": 2}
    small["data"]["unseen"] = 0.25
    config = Config.of(small)
    result = run(config, tmp_path / "run")
    prepared = prepare(config)
    assert len(prepared.unseen) == 1 and len(prepared.clients) == 3
    assert set(result.state().private) == set(prepared.clients)
    assert set(result.accuracies("unseen")) == set(prepared.unseen)
    assert set(result.accuracies("test")) == set(prepared.clients)
    untrained = evaluate(
        prepared.experiment, prepared.experiment.start(), prepared.unseen, prepared.engine, "test"
    )
    _, labels, loss = untrained["personal"][prepared.unseen[0]]
    assert result.summary("unseen")["loss"] < loss / labels  # it has trained before it was tested


def test_small_private_blocks_are_kept_for_plots_and_large_ones_are_not(
    small: Table, tmp_path: Path
) -> None:
    small["method"] = {"name": "pfedmb", "batch_size": 8, "branches": 2}
    result = run(Config.of(small), tmp_path / "a")
    last = rows(
        result, "SELECT name, client, numbers FROM snapshots WHERE round = 3 ORDER BY client"
    )
    alpha = [
        result.state().private[client]["alpha"]["value"].flatten().tolist() for client in range(4)
    ]
    assert [json.loads(row["numbers"]) for row in last if row["name"] == "alpha"] == alpha
    small["method"] = {"name": "local", "batch_size": 8}
    small["net"]["hidden"] = [60]  # 5 * 60 + 60 + 60 * 3 + 3 = 543 numbers
    assert rows(run(Config.of(small), tmp_path / "b"), "SELECT * FROM snapshots") == []


def test_a_diverged_client_is_refused_and_the_reason_recorded(small: Table, tmp_path: Path) -> None:
    small["method"]["lr"] = 1e30
    message: list[str] = []
    seen: list[RoundDone] = []
    result = run(
        Config.of(small), tmp_path / "run", seen.append, lambda note: message.append(note.text)
    )
    found = rows(result, "SELECT client, reason FROM refusals WHERE round = 1 ORDER BY client")
    assert found == [{"client": client, "reason": "not-finite"} for client in range(4)]
    assert seen[0].refused == 4
    assert any("every update was refused" in text for text in message)


def test_the_callback_is_told_every_round(small: Table, tmp_path: Path) -> None:
    seen: list[RoundDone] = []
    result = run(Config.of(small), tmp_path / "run", on_round=seen.append)
    assert [done.round for done in seen] == [1, 2, 3]
    assert (
        sum(done.bytes_down + done.bytes_up for done in seen) == result.bytes_down + result.bytes_up
    )
    assert seen[-1].scores["test"] == pytest.approx(result.summary()["mean"])
    assert seen[-1].line().startswith("round 3/3  4 clients")


def test_runs_without_a_folder_are_numbered(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small["rounds"] = 1
    found = [run(Config.of(small)).folder for _ in range(2)]
    assert found == [Path("runs/fedavg-gaussian-001"), Path("runs/fedavg-gaussian-002")]


def test_a_leaderboard_ranks_runs_and_counts_clients_below_the_reference(
    small: Table, tmp_path: Path
) -> None:
    first = run(Config.of(small), tmp_path / "a")
    small["rounds"] = 12
    runs = {"short": first, "long": run(Config.of(small), tmp_path / "b")}
    table = leaderboard(runs, reference="short")
    assert [row["mean"] for row in table] == sorted((row["mean"] for row in table), reverse=True)
    below = [runs["long"].accuracies()[c] < runs["short"].accuracies()[c] for c in range(4)]
    assert {row["name"]: row["below_reference"] for row in table} == {
        "short": 0.0,
        "long": np.mean(below),
    }


def test_too_little_memory_halves_the_stack_and_is_said(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short_of_memory(
        lanes: Lanes, states: Any, clients: Any, engine: Any, *more: Any, **named: Any
    ) -> Any:
        if engine.chunk > 1:
            raise torch.OutOfMemoryError("out of memory")
        return whole(lanes, states, clients, engine, *more, **named)

    config = Config.of(small | {"engine": "vectorised"})
    expected, whole = run(config, tmp_path / "a").state(), Lanes.run_round
    monkeypatch.setattr(Lanes, "run_round", short_of_memory)
    result = run(config, tmp_path / "b")
    assert [n["text"] for n in result.notes if n["level"] == "warning" and n["round"] == 1] == [
        "out of memory: from now on 2 clients at once",
        "out of memory: from now on 1 client at once",
    ]
    for key, value in result.state().server["model"].items():
        torch.testing.assert_close(value, expected.server["model"][key], atol=1e-6, rtol=0)


def test_a_stack_that_fails_is_trained_one_client_after_another_and_that_is_said_once(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("LSE is not correctly aligned\nsee the log")

    expected = run(Config.of(small | {"engine": "sequential"}), tmp_path / "a").state()
    monkeypatch.setattr(Vectorised, "train", fail)
    result = run(Config.of(small | {"engine": "vectorised"}), tmp_path / "b")
    assert [n["text"] for n in result.notes if n["level"] == "warning"] == [
        "from now on one client after another: a stack of clients failed "
        "(LSE is not correctly aligned)"
    ]
    for key, value in result.state().server["model"].items():
        assert torch.equal(value, expected.server["model"][key])


def test_an_error_on_every_engine_is_that_error(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("in the loss")

    monkeypatch.setattr(Vectorised, "train", fail)
    monkeypatch.setattr(Sequential, "train", fail)
    with pytest.raises(ZeroDivisionError, match="in the loss"):
        run(Config.of(small | {"engine": "vectorised"}), tmp_path / "run")
    assert load_run(tmp_path / "run").status == "failed"


def test_one_client_that_does_not_fit_the_memory_is_an_error(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*arguments: Any, **named: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Lanes, "run_round", no_memory)
    with pytest.raises(UserError, match="one client alone"):
        run(Config.of(small), tmp_path / "run")
    assert load_run(tmp_path / "run").status == "failed"


def test_bad_data_are_refused_before_a_folder_is_made(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(spoil: str) -> DataPool:
        pool = gaussian(120, 3, 5)
        if spoil == "nan":
            pool.x[7, 2] = float("nan")
        else:
            pool.y[7] = 3
        return pool

    monkeypatch.setitem(
        DATASETS, "spoilt", DataSet("spoilt", spoilt, 3, "features", "for this test")
    )
    for spoil, said in (("nan", "not finite"), ("label", r"labels outside 0\.\.2")):
        small["data"]["name"], small["data"]["options"] = "spoilt", {"spoil": spoil}
        with pytest.raises(DataError, match=said):
            run(Config.of(small), tmp_path / "run")
    small["data"] = {"name": "gaussian", "options": {"rows": 30, "classes": 3}, "clients": 3}
    small["data"]["partition"] = {"name": "classes", "per_client": 1}
    small["data"]["shift"] = {"name": "skew_labels", "groups": 3, "keep": 0.4}
    with pytest.raises(DataError, match="no training rows"):
        run(Config.of(small), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_clients_with_one_class_are_allowed_and_said(small: Table, tmp_path: Path) -> None:
    small["data"]["clients"] = 3
    small["data"]["partition"] = {"name": "classes", "per_client": 1}
    result = run(Config.of(small), tmp_path / "run")
    assert any(
        "one class only" in note["text"] and note["level"] == "warning" for note in result.notes
    )


def test_arrays_of_a_file_are_divided_by_user(small: Table, tmp_path: Path) -> None:
    pool = gaussian(60, 3, 5)
    users = np.repeat(["ann", "bob", "cyd"], 20)
    np.savez(tmp_path / "own.npz", x=pool.x.numpy(), y=pool.y.numpy(), user=users)
    small["data"] = {
        "name": "npz",
        "options": {"path": str(tmp_path / "own.npz")},
        "partition": "by_user",
    }
    prepared = prepare(Config.of(small))
    assert list(prepared.experiment.data.names) == ["ann", "bob", "cyd"]


def test_token_sequences_of_users_go_through_an_lstm(tmp_path: Path) -> None:
    table = {
        "rounds": 1,
        "data": {
            "name": "markov",
            "options": {"users": 4, "rows": 6, "steps": 5, "vocabulary": 7, "topics": 2},
        },
        "net": {"name": "lstm", "units": 4, "embedding": 3},
        "method": {"name": "fedavg", "batch_size": 2},
    }
    table["data"]["partition"] = "by_user"  # type: ignore[index]
    result = run(Config.of(table), tmp_path / "run")
    assert 0 < result.summary()["examples"] <= 4 * 2 * 5  # scored tokens
    assert sorted(prepare(Config.of(table)).experiment.data.tags["group"].tolist()) == [0, 0, 1, 1]


def test_a_method_from_elsewhere_is_used_by_name(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(FedAvg):
        """Somebody's own."""

    monkeypatch.setitem(METHODS, "mine", Mine)
    small["method"]["name"] = "mine"
    assert run(Config.of(small), tmp_path / "run").status == "finished"


class Point:
    """An entry point of an installed package."""

    dist = None

    def __init__(self, name: str, found: Any) -> None:
        self.name, self.found = name, found

    def load(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_methods_of_installed_packages_are_found_and_a_broken_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [
        Point("theirs", FedAvg),
        Point("broken", ImportError("no module x")),
        Point("wrong", dict),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    found = {entry["name"]: entry for entry in methods()}
    assert found["theirs"]["title"] == FedAvg.paper.title
    assert "no module x" in found["broken"]["error"]
    assert "not a method" in found["wrong"]["error"]
    assert found["fedavg"]["stateful"] is False and found["fedper"]["stateful"] is True


@pytest.mark.parametrize(
    ("net", "cohort", "engine", "reason"),
    [
        (NETS["mlp"]((64,), 10), 20, "vectorised", "a small net"),
        (NETS["mlp"]((64,), 10), 2, "sequential", "too few"),
        (NETS["mlp"]((784,), 10, hidden=(400, 400)), 20, "sequential", "dense net"),
        (NETS["cnn"]((3, 32, 32), 10), 20, "sequential", "convolutional net"),
        (NETS["lstm"]((3, 8), 10), 20, "sequential", "recurrent"),
        (
            Net.of(lambda: torch.nn.Sequential(torch.nn.LSTM(3, 4, proj_size=2))),
            20,
            "sequential",
            "cannot be mapped",
        ),
    ],
)
def test_the_engine_is_chosen_for_net_and_cohort(
    net: Net, cohort: int, engine: str, reason: str
) -> None:
    found, why = choose(net, torch.device("cpu"), cohort)
    assert found.name == engine
    assert reason in why


def test_on_a_gpu_the_whole_cohort_is_one_stack() -> None:
    found, why = choose(NETS["lstm"]((3, 8), 10), torch.device("cuda"), 20, chunk=7)
    assert found == Vectorised(chunk=7)
    assert "GPU" in why


@pytest.mark.parametrize(
    ("method", "option"), [("ifca", "clusters"), ("fedem", "components"), ("pfedmb", "branches")]
)
def test_more_slots_than_clients_are_remarked_on(
    small: Table, tmp_path: Path, method: str, option: str
) -> None:
    message: list[str] = []
    options = {"name": method, "batch_size": small["method"]["batch_size"], option: 9}
    table = {**small, "rounds": 1, "method": options}
    run(Config.of(table), tmp_path / "run", on_note=lambda note: message.append(note.text))
    assert any("has 9 slots for" in text for text in message)
