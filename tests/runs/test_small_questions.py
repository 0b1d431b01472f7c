"""Small questions that a run answers, each against an answer worked out by hand."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core import private_state
from fedblocks.core.errors import DataError, UserError
from fedblocks.core.private_state import CLIENTS_PER_SHARD, ShardedState
from fedblocks.core.samplers import TraceSampler, UniformSampler
from fedblocks.runs import shelf
from fedblocks.runs.curves import column_of, curves_of
from fedblocks.runs.evaluated import evaluated_round, evaluations_of, last_evaluated
from fedblocks.runs.members import check_groups, members_table
from fedblocks.runs.patience import SINCE, patience_of
from fedblocks.runs.sampling import Sampling, _try_rounds
from fedblocks.runs.storage import shards
from fedblocks.runs.storage.main_metric import MainMetric, score_of
from fedblocks.runs.storage.record import ClientMetric, RoundRecord
from fedblocks.runs.storage.store import RunStore
from fedblocks.runs.storage.summary import remark_on_metric, summarise
from fedblocks.runs.timing import WARM, describe_seconds, warm_seconds

Table = dict[str, Any]
CORRECT = {1: (2, 4), 2: (3, 9), 4: (1, 5)}  # round -> of ten examples, of two clients


def rows_of(round: int) -> list[ClientMetric]:
    personal = [
        ClientMetric("validation", "personal", c, n, 10, 0.5 * round + c)
        for c, n in enumerate(CORRECT[round])
    ]
    shared = [ClientMetric("test", "shared", c, 5, 10, 1.0) for c in range(2)] if round == 4 else []
    return [*personal, *shared]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    """Four rounds of two clients, of which the third was not evaluated; 8, 4, 1 and 2 seconds."""
    store = RunStore.create(tmp_path / "run.db")
    for round, seconds in enumerate((8.0, 4.0, 1.0, 2.0), 1):
        metrics = rows_of(round) if round in CORRECT else []
        store.record_round(RoundRecord(round, seconds, 2, metrics=metrics))
    yield store
    store.close()


def test_evaluations_are_found_and_others_refused_with_a_choice(store: RunStore) -> None:
    assert last_evaluated(store) == 4 and evaluations_of(store, 2) == {"validation": ["personal"]}
    assert evaluations_of(store, 4) == {"test": ["shared"], "validation": ["personal"]}
    assert evaluated_round(store, None, "test", "shared") == 4
    assert evaluated_round(store, 1, "validation", "personal") == 1
    with pytest.raises(UserError, match="round = 3: it was not evaluated") as refused:
        evaluated_round(store, 3, "test", "personal")
    assert refused.value.fix == "choose from 1, 2, 4"
    with pytest.raises(UserError, match='part = "test": round 2 has no evaluation'):
        evaluated_round(store, 2, "test", "personal")
    with pytest.raises(UserError, match='view = "personal": round 4 has no test evaluation'):
        evaluated_round(store, 4, "test", "personal")


def test_of_many_rounds_the_first_and_the_last_are_named(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run.db")
    assert last_evaluated(store) is None
    with pytest.raises(UserError, match="has no evaluation yet"):
        evaluated_round(store, None, "test", "personal")
    for count, said in ((8, "1, 2, 3, 4, 5, 6, 7, 8"), (9, "1, 2, 3, 4, 5, 6, 7, ..., 9")):
        for round in range((store.last_round() or 0) + 1, count + 1):
            one = ClientMetric("test", "personal", 0, 1, 2)
            store.record_round(RoundRecord(round, 1.0, 1, metrics=[one]))
        with pytest.raises(UserError) as refused:
            evaluated_round(store, 99, "test", "personal")
        assert refused.value.fix == f"choose from {said}"
    store.close()


def test_curves_are_means_over_clients_in_every_part_and_model(store: RunStore) -> None:
    assert [column_of("test", view) for view in ("personal", "shared")] == ["test", "test (shared)"]
    assert curves_of(store) == [
        {"round": 1, "validation": pytest.approx(0.3)},
        {"round": 2, "validation": pytest.approx(0.6)},
        {"round": 4, "test (shared)": 0.5, "validation": pytest.approx(0.3)},
    ]
    assert curves_of(store, "accuracy") == curves_of(store)
    assert [row["validation"] for row in curves_of(store, "loss")] == [1.0, 1.5, 2.5]


def test_seconds_of_a_warm_round_are_the_median_of_its_kind_without_the_first(
    store: RunStore,
) -> None:
    assert warm_seconds(store) == {1: 3.0, 2: 3.0, 3: 1.0, 4: 3.0}  # of 4 and 2; 1 alone
    assert describe_seconds([{"name": "a", "lanes": 2}, {"name": "b", "lanes": 2}]) == WARM
    unequal = describe_seconds([{"name": "a", "lanes": 2}, {"name": "b", "lanes": 1}])
    assert unequal.startswith(WARM) and unequal.endswith("(a: 2, b: 1).")


@pytest.mark.parametrize(
    ("since", "after", "waited", "best"),
    [(0, 4, 1, 0.6), (0, 2, 0, 0.6), (0, 1, 0, 0.3), (2, 4, 0, 0.3), (4, 4, 0, -math.inf)],
)
def test_patience_goes_on_where_a_run_does(
    store: RunStore, small: Table, since: int, after: int, waited: int, best: float
) -> None:
    store.set_meta(SINCE, str(since))
    config = Config.of({**small, "stopping": {"patience": 2}})
    patience = patience_of(config, store, after, lambda note: None)
    assert patience is not None
    assert (patience.waited, patience.best) == (waited, pytest.approx(best))
    assert patience_of(Config.of(small), store, after, lambda note: None) is None


def test_patience_goes_on_with_the_personal_models_alone(tmp_path: Path, small: Table) -> None:
    """They got better in every round, while the shared model got worse."""
    store = RunStore.create(tmp_path / "run.db")
    for round, (own, shared) in enumerate([(5, 9), (6, 1), (7, 1)], 1):
        views = {"personal": own, "shared": shared}
        metrics = [ClientMetric("validation", view, 0, n, 10, 1.0) for view, n in views.items()]
        store.record_round(RoundRecord(round, 1.0, 1, metrics=metrics))
    config = Config.of({**small, "stopping": {"patience": 3}})
    patience = patience_of(config, store, 3, lambda note: None)
    store.close()
    assert patience is not None
    assert (patience.waited, patience.best) == (0, 0.7)


@pytest.mark.parametrize(("after", "waited"), [(1, 0), (2, 1)])
def test_patience_goes_on_where_less_is_better(
    store: RunStore, small: Table, after: int, waited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 0.3 and 0.6 the first is the better one."""
    monkeypatch.setattr(RunStore, "metric", lambda own: MainMetric("mae", "lower"))
    config = Config.of({**small, "stopping": {"patience": 2}})
    patience = patience_of(config, store, after, lambda note: None)
    assert patience is not None
    assert (patience.waited, patience.best) == (waited, pytest.approx(-0.3))


ROWS: list[Table] = [
    {"client": c, "correct": 0.0, "examples": n, "loss": 1.0 + c, "extra": {"mae": value}}
    for c, (n, value) in enumerate([(1.0, 4.0), (3.0, 2.0), (4.0, 1.0), (2.0, None)])
]


def test_where_less_is_better_the_worst_is_the_largest() -> None:
    metric = MainMetric("mae", "lower")
    numbers = summarise(ROWS, {0: 4.0, 1: 1.0, 2: 5.0}, metric)
    # clients with a value: 4, 2 and 1, of 1, 3 and 4 targets with losses 1, 2 and 3
    assert numbers == pytest.approx({
        "clients": 3, "examples": 8.0, "mean": 7 / 3, "weighted": 14 / 8, "bottom_decile": 4.0,
        "worst": 4.0, "std": math.sqrt(14 / 9), "loss": 19 / 8, "share_below_reference": 1 / 3,
    })  # fmt: skip
    with pytest.raises(UserError, match="lacks 2 of 3 clients, such as client 0"):
        summarise(ROWS, {1: 1.0}, metric)
    nobody = summarise(ROWS[3:], None, metric)
    assert (nobody["clients"], nobody["examples"]) == (0, 2.0)
    assert remark_on_metric(nobody, metric, ROWS[3:]) == "mae is undefined (NaN) for every client"
    assert remark_on_metric(numbers, metric, ROWS[:3]) == ""
    said = "mae is undefined (NaN) for 1 of 4 clients, and the means leave them out"
    assert remark_on_metric(numbers, metric, ROWS) == said
    without = {"client": 4, "examples": 0.0, "extra": {"mae": None}}  # nothing to score
    assert remark_on_metric(numbers, metric, [*ROWS[:3], without]) == ""


def test_a_metric_of_a_row_is_read_where_it_is_kept() -> None:
    row = {"correct": 3.0, "examples": 4.0, "loss": 0.5, "extra": {"f1": 0.2, "bad": math.nan}}
    known = MainMetric("accuracy", "higher", {"f1": "higher", "bad": "lower"})
    assert [known.chosen(name).of_row(row) for name in (None, "f1", "loss", "bad")] == [
        0.75, 0.2, 0.5, None,
    ]  # fmt: skip
    assert (known.chosen("loss").sign, known.chosen("f1").sign) == (-1, 1)
    with pytest.raises(UserError, match='the run has no metric "none"'):
        known.chosen("none")
    assert known.of_row({**row, "examples": 0.0}) is None
    assert score_of(row) == 0.75 and score_of({**row, "extra": {"score": 0.1}}) == 0.1
    assert score_of({**row, "examples": 0.0, "extra": {"score": 0.1}}) is None
    assert (known.show(0.1234), MainMetric("mae").show(0.123456)) == ("12.3%", "0.1235")
    assert MainMetric.read(known.text()) == known and MainMetric.read(None) == MainMetric()


def sampling(sampler: Any, count: int = 2, sizes: int = 3) -> Sampling:
    names = [f"c{i}" for i in range(4)]
    return Sampling(sampler, [0, 1, 3], np.full(4, sizes), names, count, seed=5)


def test_a_cohort_is_a_function_of_seed_and_round() -> None:
    drawn = sampling(UniformSampler())
    cohorts = [drawn.cohort(round) for round in range(20)]
    assert cohorts == [drawn.cohort(round) for round in range(20)]
    assert {len(own) for own in cohorts} == {2} and {i for own in cohorts for i in own} == {0, 1, 3}
    assert sampling(UniformSampler(), count=3).cohort(7) == [0, 1, 3]
    assert drawn.content_hash == ""


def test_a_sampler_that_does_not_repeat_itself_or_chooses_nobody_is_refused() -> None:
    calls: list[int] = []

    def wandering(candidates: Any) -> list[int]:
        calls.append(1)
        return [candidates.ids[len(calls) % 3]]

    with pytest.raises(UserError, match="chose other clients when it was asked for round 1 again"):
        _try_rounds(sampling(wandering), 3)
    with pytest.raises(UserError, match="chooses nobody in any round"):
        _try_rounds(sampling(lambda candidates: []), 3)
    late = lambda candidates: [0] if candidates.round == 3 else []
    _try_rounds(sampling(late), 3)
    with pytest.raises(UserError, match="chooses nobody"):
        _try_rounds(sampling(late), 2)
    _try_rounds(sampling(lambda candidates: [], sizes=0), 3)  # who holds what is not known


def test_a_trace_that_names_a_stranger_in_a_late_round_is_refused_at_once() -> None:
    _try_rounds(sampling(TraceSampler(rounds=((0,), ("c3",)))), 1)
    with pytest.raises(DataError, match=r"^the trace: .*nobody"):
        _try_rounds(sampling(TraceSampler(rounds=((0,), ("nobody",)))), 1)


def test_every_group_has_a_method_every_method_a_group_and_every_client_one() -> None:
    data: Any = SimpleNamespace(clients=3, names=("a", "b", "c"))
    asked: Any = lambda *names: SimpleNamespace(methods=dict.fromkeys(names), data=data)
    check_groups(asked("all", "few"), {"few": [0, "c"]})
    check_groups(asked("few", "rest"), {"few": [0, 1], "rest": ["c"]})
    check_groups(asked("few"), {"few": {"tag": "city", "value": 1}})
    for names, groups, said in (
        (("all",), {"few": [0]}, 'the group "few" has no method'),
        (("all", "few"), {}, 'which clients use the method "few"?'),
        (("few",), {"few": [0, 2]}, 'client 1, "b", is in no group'),
    ):
        with pytest.raises(UserError) as refused:
            check_groups(asked(*names), groups)
        assert refused.value.message == said
    assert members_table("few", ["b", 2], data) == {"clients": [1, 2]}
    assert members_table("few", {"tag": "t", "value": 1}, data) == {"tag": "t", "value": 1}
    with pytest.raises(UserError, match="'b' is not a list of clients"):
        members_table("few", "b", data)


def test_clients_are_divided_into_files_of_neighbours_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    per = CLIENTS_PER_SHARD
    clients = {i: {"own": {"a": torch.tensor([float(i)])}} for i in (per, 0, per - 1, 2 * per)}
    parts = shards.shards_of(clients)
    assert parts == {
        "clients/000000": [0, per - 1], "clients/000001": [per], "clients/000002": [2 * per],
    }  # fmt: skip
    trees = {stem: shards.tree_of(clients, ids) for stem, ids in parts.items()}
    counts = {stem: len(ids) for stem, ids in parts.items()}
    assert list(shards.clients_of(counts, trees.__getitem__)) == sorted(clients)
    for module in (shards, private_state):
        monkeypatch.setattr(module, "MANY", 4)
    packed = shards.clients_of(counts, trees.__getitem__)
    assert isinstance(packed, ShardedState) and sorted(packed) == sorted(clients)
    again = {stem: shards.tree_of(packed, ids) for stem, ids in shards.shards_of(packed).items()}
    monkeypatch.setattr(shards, "MANY", 5)
    back = shards.clients_of(counts, again.__getitem__)
    assert {i: float(own["own"]["a"]) for i, own in back.items()} == {i: float(i) for i in clients}


def test_a_shelf_keeps_what_was_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(shelf, "pool_of", lambda config: read.append(config.data.name) or object())
    config: Any = lambda name: SimpleNamespace(
        task=None, data=SimpleNamespace(name=name, options={})
    )
    own = shelf.Shelf()
    first = own.pool(config("a"))
    own.pool(config("b"))
    assert own.pool(config("a")) is first  # asked for again: the other goes first
    own.pool(config("c"))
    assert [json.loads(key)[0] for key in own.pools] == ["a", "c"] and read == ["a", "b", "c"]
    kept = OrderedDict.fromkeys("xyz")
    shelf._keep(kept, 2)
    assert list(kept) == ["y", "z"]
