"""Rounds that are tried for their memory, rounds that are ended early, and rows on a device."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.blocks import Pool, Selection
from fedblocks.data.rows import Rows
from fedblocks.engines import memory, row_tables, speculation
from fedblocks.engines.memory import Stages, _with_all_slots, measure_need
from fedblocks.engines.round import Experiment, evaluation_job
from fedblocks.engines.row_tables import RowTables, _pad
from fedblocks.engines.vectorised import Vectorised, lay_out
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.ifca import IFCA
from fedblocks.testing.federations import small_federation, small_net

CPU = torch.device("cpu")


def test_the_need_of_a_round_is_measured_on_copies_of_the_largest_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = ["a", "b", "a", "b", "a", "b"]  # of 10, 7, 3, 8, 5 and 6 rows
    methods = {"a": FedAvg(small_net()), "b": FedAvg(small_net())}
    experiment = Experiment(methods, small_federation(), 0, groups)
    seen: list[Any] = []

    def measure(own: Any, group: str, clients: Any, chunk: int, parts: Any) -> Any:
        assert own is experiment and parts == ["test"]
        seen.append((group, clients, chunk))
        return len(seen)

    monkeypatch.setattr(memory, "_measure_stages", measure)
    need = measure_need(experiment, "b", ["test"])
    assert seen == [("b", [3, 3], 1), ("b", [3] * 3, 1), ("b", [3, 3], 2), ("b", [3] * 3, 3)]
    assert (need.in_turn, need.together) == ((1, 2), (3, 4))


class Adapting(FedAvg):
    """FedAvg, whose clients train once more before they are evaluated."""

    def adaptation(self) -> Any:
        return self.phases()


def test_the_stages_of_a_round_are_measured_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    class Counting:
        """The most and what is kept of each stage: training, closing, evaluation."""

        def __enter__(self) -> Any:
            self.stages = iter([(10, 1), (20, 2), (30, 3)])
            return self

        def __exit__(self, *error: Any) -> None:
            seen.append("ended")

        def restart(self) -> Any:
            seen.append("stage")
            return next(self.stages)

    class Engine(memory.Vectorised):
        def train(self, job: Any, score: Any = None) -> Any:
            seen.append((self.chunk, self.graphs, job.purpose, job.training, job.ids))
            seen.append([phase.steps for phase in job.phases])
            return super().train(job, score)

        def evaluate(self, job: Any, parts: Any) -> Any:
            seen.append((job.purpose, job.training, job.ids, parts, job.cohort.round))
            seen.append([phase.steps for phase in job.phases])
            return super().evaluate(job, parts)

    monkeypatch.setattr(memory, "ByteCount", Counting)
    monkeypatch.setattr(memory, "Vectorised", Engine)
    method = Adapting(small_net(), epochs=3)
    experiment = Experiment({"all": method}, small_federation(), 0)
    found = memory._measure_stages(experiment, "all", [1, 1], 2, ["test"])
    assert found == Stages(training=10, kept=1, closing=20, evaluation=30)
    assert seen == [
        (2, False, "train", True, [1, 1]), [1], "stage", "stage",
        ("adapt", False, [1, 1], ["test"], 1), [1], "stage", "ended",
    ]  # fmt: skip


def test_clients_are_given_every_slot_of_a_pool_that_they_choose_from() -> None:
    experiment = Experiment.of(IFCA(small_net(), clusters=3), small_federation(), 0)
    state = experiment.start()
    job = experiment.training_job("all", [2, 4], state)
    (name,) = (n for n, block in job.method.blocks().items() if isinstance(block, Pool))
    one = replace(job, sent=replace(job.sent, reads={name: Selection(torch.tensor([[1], [0]]))}))
    whole = _with_all_slots(one, state)
    assert whole.sent.reads[name].slots.tolist() == [[0, 1, 2]] * 2  # type: ignore[union-attr]
    slots = next(iter(state.server.values()))
    for key, value in whole.sent.blocks[name].items():
        assert value.shape == (2, *slots[key].shape) and torch.equal(value[1], slots[key])
    waiting = replace(job, sent=replace(job.sent, reads={}))
    assert _with_all_slots(waiting, state).sent.blocks == waiting.sent.blocks


def test_an_experiment_says_what_clients_do_before_they_are_evaluated() -> None:
    experiment = Experiment.of(Ditto(small_net()), small_federation(), 7)
    state = replace(experiment.start(), private={1: {"personal": {}}}, round=4)
    jobs = [evaluation_job(experiment, "all", [1, 2], state, joining) for joining in (False, True)]
    assert [(job.purpose, job.training) for job in jobs] == [("adapt", False), ("join", True)]
    method = experiment.methods["all"]
    assert [len(job.phases) for job in jobs] == [len(method.adaptation()), len(method.joining())]
    assert all(job.seed == 7 and job.cohort.round == 4 and job.ids == [1, 2] for job in jobs)
    assert all(job.tables is experiment.tables for job in jobs)


def test_a_round_is_ended_as_it_was_begun_early_only_if_all_is_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speculation, "close_round", lambda *args: ("closed", args))
    monkeypatch.setattr(speculation, "report_of", lambda *args: args)
    clean, odd = (SimpleNamespace(is_clean=lambda found=found: found) for found in (True, False))
    start = Experiment.of(FedAvg(small_net()), small_federation(), 0).start()
    state, end = replace(start, private={1: {}, 2: {}}), replace(start, round=1)
    settle = lambda error, *found: speculation.Speculation(
        end, error, dict(enumerate(found)), {2: {"a": {}}}  # type: ignore[arg-type]
    ).settle("methods", state, "results", 0.5)  # type: ignore[arg-type]  # fmt: skip
    after, report = settle(None, clean, clean)
    assert after.round == 1 and dict(after.private) == {1: {}, 2: {"a": {}}}
    assert report == ("results", [])
    for closed in (
        settle(None, clean, odd),
        settle(ValueError(), clean),
        settle(ValueError(), odd),
    ):
        assert closed == ("closed", ("methods", state, "results", 0.5))


def test_speculation_pays_where_work_is_queued() -> None:
    assert speculation.pays_on(torch.device("cuda", 1)) and not speculation.pays_on(CPU)


def test_an_early_end_counts_capped_weights_and_remembers_the_error_of_a_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = Experiment.of(FedAvg(small_net()), small_federation(), 0)
    state = experiment.start()
    job = experiment.training_job("all", [0, 1, 2], state)
    trained = memory.Vectorised().train(job)
    results = {"all": memory.ClientResults.of(job, trained)}
    methods = experiment.methods
    shares: list[float] = []
    cap = speculation.cap_groups
    monkeypatch.setattr(
        speculation, "cap_groups", lambda groups, share: shares.append(share) or cap(groups, share)
    )
    early = speculation.speculate(methods, state, results, 0.4)
    assert early is not None and early.error is None and {*shares} == {0.4}
    expected, _ = memory.close_round(methods, state, results, 0.4)
    after, report = early.settle(methods, state, results, 0.4)
    assert after.round == expected.round == 1 and report.clients == [0, 1, 2]
    for name, block in expected.server.items():
        assert all(torch.equal(block[key], after.server[name][key]) for key in block)

    def fail(*args: Any) -> Any:
        raise ValueError("odd")

    monkeypatch.setattr(speculation, "conclude", fail)
    late = speculation.speculate(methods, state, results, 0.4)
    assert late is not None and isinstance(late.error, ValueError)
    monkeypatch.setattr(speculation, "fitting", lambda uploads, server: False)
    assert speculation.speculate(methods, state, results, 0.4) is None


ROWS = Rows.of([np.array([4, 5, 6]), np.array([], dtype=np.int64), np.array(range(9))])


def test_rows_are_padded_by_the_first_of_their_client() -> None:
    table, sizes = _pad(ROWS, (0, 1), CPU, torch.float64, False)
    assert table.tolist() == [[4, 5, 6], [0, 0, 0]] and sizes.tolist() == [3.0, 0.0]
    assert table.dtype == torch.int64 and sizes.dtype == torch.float64
    table, sizes = _pad(ROWS, (1,), CPU, torch.float32, False)
    assert table.tolist() == [[0]] and sizes.dtype == torch.float32


@pytest.mark.parametrize(
    ("counts", "length"), [([5, 20], 20), ([9, 20], 20), ([9, 9], 9), ([17, 18], 18)]
)
def test_tables_have_few_lengths_up_to_the_longest_of_all(counts: list[int], length: int) -> None:
    """Of 9 the next is 10, of 17 it is 20, which is more than the longest has."""
    rows = Rows.of([np.arange(count) for count in counts])
    table, _ = _pad(rows, (0, 1), CPU, torch.double, True)
    assert table.shape == (2, length)
    alone, _ = _pad(rows, (0,), CPU, torch.double, True)
    wanted = {5: 5, 9: min(10, max(counts)), 17: min(20, max(counts))}
    assert alone.shape == (1, wanted[counts[0]])
    assert alone[0, counts[0] :].eq(0).all()


def test_tables_of_rows_are_kept_for_many_clients_alone_and_few_stacks() -> None:
    tables = RowTables()
    pad = lambda *ids: tables.pad(ROWS, ids, CPU, torch.double)[0]
    assert pad(0) is pad(0) and pad(0, 1) is pad(0, 1) and pad(0, 1) is not pad(1, 0)
    assert tables._of_one.cache_info().maxsize == 256
    assert tables._of_several.cache_info().maxsize == 8
    assert tables._of_one.cache_info().currsize == 1 and tables._of_several.cache_info().hits == 2


def test_targets_that_are_numbers_are_cast_once_and_those_of_one_pool_are_kept() -> None:
    tables = RowTables()
    labels, single, double = torch.zeros(2).long(), torch.zeros(2), torch.zeros(2).double()
    assert tables.targets(labels, torch.float64) is labels
    assert tables.targets(double, torch.float64) is double
    cast = tables.targets(single, torch.float64)
    assert cast.dtype == torch.float64 and tables.targets(single, torch.float64) is cast
    tables.targets(double, torch.float32)
    assert len(tables._cast) == 1


def test_what_is_read_from_a_file_is_kept_for_one_stack_of_clients() -> None:
    tables, data = RowTables(), small_federation()
    one = tables.read(data, [2, 0])
    assert one.train.sizes.tolist() == [3, 10] and tables.read(data, [2, 0]) is one
    assert tables.read(data, [0, 2]).train.sizes.tolist() == [10, 3]
    assert len(tables._read) == 1


class Planned:
    """Rosters whose plans say when they are laid out."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.made: list[Any] = []

    def stacks(self, size: int) -> list[list[str]]:
        return [[*self.keys[start : start + size]] for start in range(0, len(self.keys), size)]

    def key(self, members: Any) -> Any:
        return tuple(members)

    def plan(self, members: Any) -> Any:
        plan = SimpleNamespace(laid_out=[], of=tuple(members))
        plan.lay_out = lambda: plan.laid_out.append(1)
        self.made.append(plan)
        return plan


def test_plans_are_laid_out_for_the_next_round_and_taken_once() -> None:
    tables, roster, other = RowTables(), Planned("a", "b", "c"), Planned("z")
    tables.lay_out([other], 2)  # type: ignore[list-item]
    tables.lay_out([roster], 2)  # type: ignore[list-item]
    assert [(plan.of, plan.laid_out) for plan in roster.made] == [(("a", "b"), [1]), (("c",), [1])]
    first = tables.plan(roster, ["a", "b"])  # type: ignore[arg-type]
    assert first is roster.made[0]
    again: Any = tables.plan(roster, ["a", "b"])  # type: ignore[arg-type]
    assert again is roster.made[2] and again.laid_out == []
    assert tables.plan(other, ["z"]) is other.made[1]  # type: ignore[arg-type]


def test_rounds_are_planned_where_that_pays_as_the_engine_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    tables: Any = SimpleNamespace(lay_out=lambda rosters, size: seen.append((len(rosters), size)))
    roster: Any = SimpleNamespace(device=CPU, draw=lambda: seen.append("drawn"))
    queued: Any = SimpleNamespace(device=torch.device("cuda"), draw=lambda: seen.append("drawn"))
    lay_out(tables, [queued, roster], Vectorised(chunk=7))
    lay_out(tables, [roster], object())
    assert seen == []
    lay_out(tables, [queued, queued], Vectorised(chunk=7))
    lay_out(tables, [queued], object())
    assert seen == [(2, 7), "drawn"] and row_tables.table_length(9) == 10
