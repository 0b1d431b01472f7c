"""What only one number, order or call tells apart: in engines, searches, ranks and records."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fedblocks.config.model import MOST_PROCESSES
from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.runs import engine_choice, heads, python, result
from fedblocks.runs.faults import faults_of
from fedblocks.runs.grids import tune
from fedblocks.runs.ranks import build, closing
from fedblocks.runs.ranks.checkpoints import gathered_state
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.ranks.joining import _check_variables
from fedblocks.runs.ranks.ranks import RankLost, Ranks
from fedblocks.runs.storage import environment, links
from fedblocks.runs.storage.code_record import names_in
from fedblocks.runs.storage.config_record import _shown
from fedblocks.runs.storage.contents import _Clients
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.testing.federations import small_federation, small_net

Table = dict[str, Any]
NETS = [SimpleNamespace(size=lambda n=n: n, unmappable=()) for n in (2, 9, 4)]


def chosen(config: Any, monkeypatch: pytest.MonkeyPatch, short: bool, gpu: bool = False) -> Any:
    """What an engine is asked of for three methods, of which the second has the largest net."""
    monkeypatch.setattr(engine_choice.Net, "size", lambda net: net.size())
    monkeypatch.setattr(engine_choice, "_chunk", lambda *_: 17)
    monkeypatch.setattr(engine_choice, "cores", lambda: 5)
    monkeypatch.setattr(engine_choice, "_is_short", lambda *given: short or given[-1] == 2e11 * gpu)
    for name in ("choose", "planned", "planned_on_gpu"):
        monkeypatch.setattr(engine_choice, name, lambda *given, name=name: (name, *given))
    methods = {str(n): SimpleNamespace(net=net) for n, net in enumerate(NETS)}
    experiment: Any = SimpleNamespace(methods=methods)
    device = torch.device("cuda" if gpu else "cpu")
    return engine_choice.engine_of(config, experiment, 11, device, range(3))


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(
    ("processes", "threads", "workers"),
    [(3, 2, 3), (None, 2, 2), (None, None, 5), (None, 10_000, MOST_PROCESSES)],
)
def test_engines_are_tried_with_the_clients_and_workers_of_a_run(
    processes: int | None, threads: int | None, workers: int, gpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    config: Any = SimpleNamespace(processes=processes, threads=threads, engine="auto")
    name, plan = chosen(config, monkeypatch, False, gpu)
    assert name == ("planned_on_gpu" if gpu else "planned")
    assert (plan.clients, plan.cohort, plan.chunk) == (range(3), 11, 17)
    assert plan.processes == workers and plan.threads == (threads or torch.get_num_threads())


def test_the_largest_net_decides_in_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = SimpleNamespace(processes=1, threads=1, engine="auto")
    found = chosen(config, monkeypatch, True)
    assert found == ("choose", NETS[1], torch.device("cpu"), 11 // 3, 17)


def test_faults_are_in_the_order_of_clients_where_some_are_named() -> None:
    """Sets of 17, 9 and 2 list 17 first."""
    names = [str(n) for n in range(20)]
    asked = SimpleNamespace(clients=["17", "9", "2"], drop=1.0)
    prepared: Any = SimpleNamespace(
        config=SimpleNamespace(faults=asked, seed=0), sampling=SimpleNamespace(names=names)
    )
    assert [*faults_of(prepared, 0, [17, 9, 5, 2]).items()] == [
        (2, "drop"), (9, "drop"), (17, "drop"),
    ]  # fmt: skip
    asked.clients = None
    assert [*faults_of(prepared, 0, [17, 9, 5])] == [17, 9, 5]
    prepared.config.faults = None
    assert faults_of(prepared, 0, [17]) == {}


def test_the_order_of_layers_is_seen_on_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, torch.dtype]] = []
    net = SimpleNamespace(
        named_head=None, layers_in_use=None, template=None, dtype=torch.double, head_module="b"
    )
    monkeypatch.setattr(heads, "last_in_pass", lambda _, x: seen.append((len(x), x.dtype)) or "b")
    assert heads._doubt(net, torch.zeros(5, 2)) == heads._doubt(net, torch.ones(5).long()) == ""  # type: ignore[arg-type]
    assert seen == [(2, torch.double), (2, torch.long)]


def test_a_search_goes_on_with_the_code_of_its_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    note = lambda name: lambda *given: done.append((name, *given[1:2]))
    ended = [SimpleNamespace(state="complete"), SimpleNamespace(state="fail")]
    base = SimpleNamespace(seed=7)
    stand_ins: Table = {
        "refuse_ranks": note("ranks"), "_optuna": lambda: "optuna", "_begin": note("begin"),
        "_check_examples": lambda *_: base, "_study": lambda *given: given, "_key": None,
        "_ended_trials": lambda study: ended, "shared_data": nullcontext,
        "_check_taken_over": note("taken over"), "_try_settings": lambda runs: done.append(runs),
        "_ask": lambda optuna, study, search, left: ("asked", study, left),
        "_choose_best": lambda *given: given, "parse_space": lambda changes: ("space", changes),
    }  # fmt: skip
    base.method = base.data = SimpleNamespace(name="m")
    stand_ins["_key"] = lambda base, space: "k"
    for name, own in stand_ins.items():
        monkeypatch.setattr(tune, name, own)
    out = Path("here")
    found: Any = tune.tune("digits", ["lr=1"], 5, out)
    study = ("optuna", out, 7)
    assert done == [
        ("ranks",), ("begin", base), ("taken over", ended), ("asked", study, 3),
    ]  # fmt: skip
    assert found == ("digits", ["lr=1"], out, ended)


def test_a_run_goes_on_from_the_objects_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(python, "_recipes", lambda *objects: objects)
    monkeypatch.setattr(python, "hand_over", lambda recipes: given.append(recipes()))
    monkeypatch.setattr(python, "_methods", lambda method: f"methods of {method}")
    monkeypatch.setattr(python, "_federation", lambda data: f"federation of {data}")
    monkeypatch.setattr(python.Ingredients, "of", lambda *objects: objects)
    monkeypatch.setattr(python, "tell_of_refusals", lambda found, tell: found)
    monkeypatch.setattr(python.runs, "resume", lambda *a, **more: (*a, more))
    found: Any = python.resume("path", "method", "data", sampler="sampler", rounds=4)  # type: ignore[arg-type]
    assert given == [("method", "data", "sampler")]
    assert found[3] == ("methods of method", "federation of data", "sampler")
    assert found[0] == "path" and found[-1] == {"rounds": 4}
    with pytest.raises(UserError, match="a method without data"):
        python.resume("path", "method")  # type: ignore[arg-type]


def test_a_rank_says_of_own_code_what_the_others_can_compare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = {"defines": "net", "sha256": "1", "package": "p", "file": "/here/net.py"}
    monkeypatch.setattr(build, "entries_of", lambda table: [entry, {"defines": "x", "line": "3"}])
    config: Any = SimpleNamespace(resolved=dict)
    kept = {"defines": "net", "sha256": "1", "package": "p"}
    assert build._own_code(config) == [kept, {"defines": "x"}]


def test_what_clients_keep_is_listed_by_shard_and_number() -> None:
    """Of two ranks, which hold clients in an order of their own; a shard is of 64 clients."""
    said: list[Any] = []
    other = {"ids": torch.tensor([5, 70, 0])}
    ranks: Any = SimpleNamespace(collect_tree=lambda own: said.append(own["ids"]) or [own, other])
    found = gathered_state(ranks, {139: {}, 9: {}, 4: {}, 130: {}})
    assert said[0].tolist() == [4, 9, 130, 139] and said[0].dtype == torch.long
    assert [*found.ids.items()] == [(0, [0, 4, 5, 9]), (1, [70]), (2, [130, 139])]
    shards: Any = found.shards
    assert [*shards.holders.items()] == [(0, [0, 1]), (1, [1]), (2, [0])]


def test_parts_of_means_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    group: Any = SimpleNamespace(
        outline=lambda block: ["w", "b"], weighed=lambda block, weights: weights
    )
    monkeypatch.setattr(closing, "sum_part", lambda own, total: {"w": own * total})
    sums: Table = {}
    two, three = torch.tensor([2.0]), torch.tensor([3.0])
    for weights in (None, two, three):
        upload: Any = SimpleNamespace(weights=weights)
        closing._add_part(sums, group, "block", upload, torch.tensor([4.0]))
    assert sums["b"] is None and sums["w"].tolist() == [20.0]  # 2 * 4 + 3 * 4


def test_jobs_of_a_rank_read_the_tables_of_its_experiment() -> None:
    whole = Experiment.of(FedAvg(small_net()), small_federation())
    own = RankExperiment.part_of(whole, np.full(6, 4), np.array([0, 1] * 3), 1)
    job = own.job("all", [0, 1, 3], own.start(), whole.methods["all"].phases(), True, "train")
    assert job.tables is own.tables and job.ids == [1, 3]
    assert job.training and job.purpose == "train" and job.data is own.data


@pytest.mark.parametrize(
    ("number", "count", "fits"), [(0, 1, True), (1, 2, True), (2, 2, False), (-1, 2, False)]
)
def test_ranks_have_numbers_from_zero_to_their_count(
    number: int, count: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"RANK": number, "WORLD_SIZE": count, "MASTER_ADDR": "here", "MASTER_PORT": 1}
    for name, value in about.items():
        monkeypatch.setenv(name, str(value))
    if fits:
        _check_variables()
        monkeypatch.setenv("MASTER_ADDR", "")
        with pytest.raises(UserError, match="but MASTER_ADDR is not set"):
            _check_variables()
        return
    with pytest.raises(UserError, match=f"RANK is {number} of {count} ranks"):
        _check_variables()


def test_a_rank_that_ends_as_another_is_gone_has_its_say(monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *given: handled.append(given))
    own: Any = SimpleNamespace(
        number=1, count=3, peers=["a", "b", "c"], broken=[], _gone=lambda: "rank 0 (x) has ended"
    )
    cause = RuntimeError("odd")
    with pytest.raises(RankLost, match=r"rank 0 .* has ended; this was rank 1 of 3") as lost:
        Ranks.end_lost(own, cause)
    assert handled == [(signal.SIGTERM, signal.SIG_IGN)] and own.broken == ["rank 0 (x) has ended"]
    assert lost.value.__cause__ is cause and vars(lost.value)["silent"] is False


def test_a_run_is_read_if_its_record_and_its_configuration_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    store = SimpleNamespace(verify=lambda: done.append("verified"))
    folder = SimpleNamespace(store=store, config="config")
    opened = SimpleNamespace(open=lambda path: nullcontext(folder))
    monkeypatch.setattr(result, "RunFolder", opened)
    monkeypatch.setattr(result, "refuse_edited", lambda *given: done.append(given))
    monkeypatch.setattr(result, "result_of", lambda own: done.append(own) or "result")
    assert result.load_run("path") == "result"  # type: ignore[comparison-overlap]
    assert done == ["verified", (store, "config"), folder]


def test_names_of_groups_are_names_of_a_configuration() -> None:
    table = {
        "net": {"name": "mlp"}, "method": {"name": "fedavg"}, "data": {"name": "digits"},
        "groups": {
            "a": {"method": {"name": "fedper", "augment": [{"name": "flip"}]}},
            "b": {"net": {"name": "cnn"}, "method": {"name": "fedavg"}},
        },
        "task": {"loss": "mse", "metrics": ["mae", "mae"]}, "cohort": {"sampler": {"name": "s"}},
    }  # fmt: skip
    assert [*names_in(table)] == [
        ("data", "digits"), ("net", "mlp"), ("method", "fedavg"), ("method", "fedper"),
        ("net", "cnn"), ("sampler", "s"), ("loss", "mse"), ("metric", "mae"),
        ("augmentation", "flip"),
    ]  # fmt: skip
    assert [*names_in({})] == []


def test_values_are_shown_up_to_sixty_letters() -> None:
    """Two of them are quotation marks."""
    assert _shown(None) == "absent" and _shown("ä") == '"ä"'
    assert _shown("a" * 58) == f'"{"a" * 58}"'
    assert _shown("a" * 59) == f'"{"a" * 56}...'


@pytest.mark.parametrize(
    ("rows", "fits"),
    [({"train": [1, 2]}, True), ({"train": [1, 2], "test": [1]}, False), ({"test": [1, 2]}, False)],
)
def test_every_part_has_a_number_for_each_client(rows: Table, fits: bool) -> None:
    about = {"names": ["a", "b"], "rows": rows}
    if fits:
        assert _Clients.model_validate(about).rows == rows
        return
    with pytest.raises(ValidationError):
        _Clients.model_validate(about)


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


def test_what_is_opened_for_the_disk_or_by_mistake_is_closed(tmp_path: Path) -> None:
    before = descriptors()
    environment.sync(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunFolderError, match="pipe is not a file"):
        links.open_for_locking(tmp_path / "pipe")
    assert descriptors() == before
    os.close(links.open_for_locking(tmp_path / "file"))
    assert (tmp_path / "file").is_file()


def test_a_folder_that_is_given_back_says_of_nobody_that_he_writes(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"who has it")
    lock = os.open(tmp_path / "lock", os.O_RDWR)
    closed: list[int] = []
    own: Any = SimpleNamespace(_lock=lock, store=SimpleNamespace(close=lambda: closed.append(1)))
    RunFolder.close(own)
    assert (tmp_path / "lock").read_bytes() == b"" and own._lock is None
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(lock)
    RunFolder.close(own)
    assert closed == [1, 1]
