"""A round from its members to its report, with stand-ins for what is tested elsewhere."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.func import vmap

from fedblocks.core import mode
from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.core.local_round import step_by_step
from fedblocks.core.parts import OPTIMIZER
from fedblocks.core.private_state import StackedState
from fedblocks.engines import close_round, local_work, scoring, speculation, vectorised
from fedblocks.engines import round as module
from fedblocks.engines.close_round import admit_group, private_by_client, report_of
from fedblocks.engines.job import Evaluated
from fedblocks.engines.round import Evaluation, Experiment, evaluate, run_round
from fedblocks.engines.scoring import chunks_of
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing.federations import small_federation, small_net

NET, DATA = small_net(), small_federation()  # six clients
CPU = torch.device("cpu")


def groups() -> Experiment:
    """Clients 0, 2 and 4 in one group, 1, 3 and 5 in another."""
    return Experiment({"a": FedAvg(NET), "b": FedAvg(NET)}, DATA, 7, list("ababab"), share=0.5)


def test_members_are_by_group_in_the_order_of_their_ids() -> None:
    assert groups().members([5, 4, 0, 3]) == {"a": [0, 4], "b": [3, 5]}
    assert groups().members([3]) == {"b": [3]} and groups().members([]) == {}
    assert Experiment.of(FedAvg(NET), DATA).members([2, 1]) == {"all": [1, 2]}
    assert groups().own(range(2)) == [0, 1]


def test_who_will_train_is_known_by_seed_round_and_client() -> None:
    rosters = groups().rosters([5, 0, 2], 4)
    assert [*rosters] == ["a", "b"] and rosters["a"].origins == [(7, 4, 0), (7, 4, 2)]
    assert rosters["a"].purpose == "train" and rosters["b"].origins == [(7, 4, 5)]
    assert rosters["a"].sizes.tolist() == [len(DATA.train[0]), len(DATA.train[2])]


def test_a_round_is_ended_with_the_share_and_the_next_one_is_laid_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment, planned = groups(), []
    note = lambda tables, rosters, engine: planned.append((tables, rosters, engine))
    monkeypatch.setattr(module, "lay_out", note)
    monkeypatch.setattr(module, "ClientResults", SimpleNamespace(of=lambda job, end: (job, end)))
    monkeypatch.setattr(module, "close_round", lambda *end: ("closed", end))
    engine: Any = SimpleNamespace(train=lambda job, score: (job.ids, score))
    state = replace(experiment.start(), round=3)
    end: Any = run_round(experiment, state, [1, 0], engine, "test", [2])
    ended, (methods, before, results, share) = end
    assert ended == "closed" and methods is experiment.methods and before is state and share == 0.5
    assert {group: end for group, (_, end) in results.items()} == {
        "a": ([0], "test"),
        "b": ([1], "test"),
    }
    ((tables, (roster,), by),) = planned
    assert tables is experiment.tables and roster.origins == [(7, 4, 2)] and by is engine
    early = SimpleNamespace(settle=lambda *end: ("settled", end))
    monkeypatch.setattr(speculation, "pays_on", lambda device: True)
    monkeypatch.setattr(speculation, "speculate", lambda *end: early)
    assert run_round(experiment, state, [1], engine)[0] == "settled"  # type: ignore[comparison-overlap]
    monkeypatch.setattr(speculation, "speculate", lambda *end: None)
    assert run_round(experiment, state, [1], engine)[0] == "closed"  # type: ignore[comparison-overlap]


def test_an_evaluation_collects_parts_views_and_clients() -> None:
    seen = Evaluation()
    counts: Any = lambda *rows: torch.tensor(rows, dtype=torch.double)
    seen.add(Evaluated({"test": {"personal": counts([1, 2, 3], [4, 5, 6])}}, {}), [3, 1])
    more = {"test": {"personal": counts([7, 8, 9])}, "train": {"shared": counts([1, 1, 1])}}
    seen.add(Evaluated(more, {}), [2])
    assert seen.scores == {
        "test": {"personal": {3: (1, 2, 3), 1: (4, 5, 6), 2: (7, 8, 9)}},
        "train": {"shared": {2: (1, 1, 1)}},
    }


def test_without_clients_there_are_no_scores_and_the_test_part_is_usual() -> None:
    experiment, asked = Experiment.of(FedAvg(NET), DATA), []

    def note(job: Any, parts: Any) -> Evaluated:
        asked.append((job.purpose, parts))
        return Evaluated({}, {})

    engine: Any = SimpleNamespace(evaluate=note)
    assert evaluate(experiment, experiment.start(), [], engine) == {} and asked == []
    evaluate(experiment, experiment.start(), [0], engine)
    evaluate(experiment, experiment.start(), [0], engine, "train", joining=True)
    assert asked == [("adapt", ("test",)), ("join", ("train",))]


def result(ids: list[int], private: Any, **more: Any) -> Any:
    cohort = SimpleNamespace(population=3)
    return SimpleNamespace(job=SimpleNamespace(ids=ids, cohort=cohort), private=private, **more)


def test_what_clients_keep_is_one_stack_if_all_keep_something() -> None:
    kept = {"own": {"w": torch.tensor([1.0, 2.0, 3.0])}}
    whole = private_by_client({"a": result([0, 1, 2], kept)}, set())
    assert isinstance(whole, StackedState)
    kept["own"]["w"].zero_()  # it holds copies
    assert [float(whole[i]["own"]["w"]) for i in (0, 1, 2)] == [1.0, 2.0, 3.0]
    pair = {"own": {"w": torch.tensor([4.0, 5.0])}}
    some = private_by_client({"a": result([0, 2], pair)}, set())
    assert isinstance(some, dict) and [*some] == [0, 2]
    assert some[2]["own"]["w"].untyped_storage().nbytes() == 4  # not the memory of both
    assert isinstance(private_by_client({"a": result([0, 2], pair)}, set(), 2), StackedState)
    three = result([0, 1, 2], {"own": {"w": torch.ones(3)}})
    assert [*private_by_client({"a": three}, {1})] == [0, 2]
    assert private_by_client({"a": result([0, 1, 2], {})}, set()) == {}


def test_a_report_has_all_groups_with_clients_in_order() -> None:
    down, up = {"model": torch.tensor([10, 20])}, {"model": torch.tensor([30, 40])}
    counts = {"local": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}
    first = result([4, 5], {}, trained=SimpleNamespace(bytes_down=down, counts=counts), bytes_up=up)
    one = {"local": torch.tensor([[7.0, 8.0, 9.0]])}
    less = SimpleNamespace(bytes_down={"model": torch.tensor([50])}, counts=one)
    second = result([1], {}, trained=less, bytes_up={"head": torch.tensor([60])})
    report = report_of({"a": first, "b": second}, [Refusal(4, "odd", "")])
    assert report.clients == [1, 4, 5] and report.refusals == [Refusal(4, "odd", "")]
    assert report.bytes_down == {"model": {4: 10, 5: 20, 1: 50}}
    assert report.bytes_up == {"model": {4: 30, 5: 40}, "head": {1: 60}}
    assert report.counts == {"local": {4: (1, 2, 3), 5: (4, 5, 6), 1: (7, 8, 9)}}


def test_who_is_refused_is_left_out_of_uploads_and_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = SimpleNamespace(ids="ids", take=lambda good: ("some", good))
    own: Any = SimpleNamespace(
        job=SimpleNamespace(cohort=cohort, data="data"),
        uploads={"model": SimpleNamespace(keep=lambda good: ("kept", good))},
        private="private",
        limits="limits",
    )
    state: Any = SimpleNamespace(server="server")
    refusals: list[str] = []
    given = (own.uploads, "private", "ids", "limits", "server")
    monkeypatch.setattr(close_round, "admit", lambda *args: ("good", refusals * (args == given)))
    monkeypatch.setattr(close_round, "with_inputs", lambda found, data: [*found, data])
    admitted = admit_group(own, state)
    assert admitted.uploads is own.uploads and admitted.cohort is cohort  # type: ignore[comparison-overlap]
    assert admitted.refusals == []
    refusals.append("odd")
    admitted = admit_group(own, state)
    assert admitted.uploads == {"model": ("kept", "good")} and admitted.cohort == ("some", "good")  # type: ignore[comparison-overlap]
    assert admitted.refusals == ["odd", "data"]  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("chunks", [[], ["chunk"]])
def test_of_training_what_matters_is_kept_and_scored_if_asked(
    chunks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: dict[str, Any] = {"model": {}, "unused": {}, f"{OPTIMIZER}0": {}}
    monkeypatch.setattr(local_work, "_second_download", lambda *args: ("all", "wanted", "down"))
    monkeypatch.setattr(local_work, "local_round", lambda *args: (learned, args))
    scores = torch.arange(12).view(2, 2, 3)  # two clients, two ways to count
    monkeypatch.setattr(local_work, "score", lambda *args: scores)
    job: Any = SimpleNamespace(method="method", phases="phases", kept_blocks={"model", "more"})
    end = local_work.train_locally(job, "local", {}, "orders", chunks, "runner")  # type: ignore[arg-type]
    assert end.blocks == {"model": {}, f"{OPTIMIZER}0": {}}
    assert end.weights == ("method", "phases", "all", "local", "orders", "runner")  # type: ignore[comparison-overlap]
    assert (end.wanted, end.bytes_down) == ("wanted", "down")  # type: ignore[comparison-overlap]
    said = {view: counts.tolist() for view, counts in end.counts.items()}
    assert said == ({"local": [[0, 1, 2], [6, 7, 8]]} if chunks else {})


def test_every_way_to_count_is_a_view_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_work, "adapt", lambda *args: "blocks")
    scores = torch.arange(12).view(2, 2, 3)
    monkeypatch.setattr(local_work, "score", lambda own, blocks, local, part, words: scores + part)
    monkeypatch.setattr(local_work, "scored_view", lambda name, kind: name + kind)
    method = SimpleNamespace(views=lambda: {"mine": 1, "ours": 2}, portrait="portrait")
    job: Any = SimpleNamespace(method=method, words={}, scores=["", "_less"])
    local: Any = SimpleNamespace(own=lambda *args: None, call=lambda *args: args)
    end = local_work.evaluate_locally(job, local, {}, [], {"test": 0, "train": 100})  # type: ignore[dict-item]
    assert [*end.counts] == ["test", "train"]
    assert [*end.counts["test"]] == ["mine", "mine_less", "ours", "ours_less"]
    assert end.counts["test"]["ours_less"].tolist() == [[3, 4, 5], [9, 10, 11]]
    assert end.counts["train"]["mine"].tolist() == [[100, 101, 102], [106, 107, 108]]
    assert end.portraits == ("portrait", "blocks")  # type: ignore[comparison-overlap]


def test_stacks_are_put_back_into_the_order_of_the_cohort() -> None:
    assert vectorised._back([[0, 1], [2]], CPU) is None
    back = vectorised._back([[2, 0], [1]], CPU)
    assert back is not None and back.tolist() == [1, 2, 0]
    trees = [{"w": torch.tensor([12, 10])}, {"w": torch.tensor([11])}]
    assert vectorised._join(trees, back)["w"].tolist() == [10, 11, 12]
    assert vectorised._join(trees, None)["w"].tolist() == [12, 10, 11]
    where = torch.tensor([2, 0])
    assert vectorised._rows(torch.tensor([5, 6, 7]), where).tolist() == [7, 5]
    same = vectorised._rows(torch.tensor([[5]]).expand(3, 1), where)
    assert same.shape == (2, 1) and same.stride(0) == 0


def test_a_stack_has_what_its_members_were_sent() -> None:
    experiment = Experiment.of(FedAvg(NET), DATA)
    job = experiment.training_job("all", [1, 3, 4], experiment.start())
    job = replace(job, sent=replace(job.sent, blocks={"model": {"w": torch.tensor([1, 3, 4])}}))
    for members, sent in (([2, 0], [4, 1]), ([0, 1, 2], [1, 3, 4])):
        local, blocks, orders = vectorised._stack(job, members, step_by_step)
        assert blocks["model"]["w"].tolist() == sent == local.tensors["id"].tolist()
        assert len(orders) == 1 and local.caller is None and local.mapped
    layer: Any = SimpleNamespace(method=SimpleNamespace(net=SimpleNamespace(unmappable=["b", "c"])))
    with pytest.raises(UserError, match='layer "b" of the net cannot be mapped'):
        vectorised._stack(layer, [0], step_by_step)


def job_of(method: Any, purpose: str, streamed: bool = False) -> Any:
    data = SimpleNamespace(streamed=streamed)
    return SimpleNamespace(method=method, purpose=purpose, data=data, device=CPU)


def test_steps_are_written_down_by_method_and_purpose() -> None:
    engine, method = Sequential(worth=5), FedAvg(NET)
    train = engine.runner(job_of(method, "train"))
    assert engine.runner(job_of(method, "train")) is train
    assert getattr(train, "worth") == 5  # noqa: B009
    assert engine.runner(job_of(method, "adapt")) is not train
    assert engine.runner(job_of(FedAvg(NET), "train")) is not train
    assert engine.runner(job_of(method, "train", streamed=True)) is step_by_step
    assert Sequential(replay=False).runner(job_of(method, "train")) is step_by_step
    failures: dict[int, Exception] = {}
    for mine in (UserError("what", "fix"), torch.OutOfMemoryError("much")):
        with pytest.raises(type(mine)), engine._noting(job_of(method, "train"), 3, failures):
            raise mine
    assert failures == {} and engine.runner(job_of(method, "train")) is train
    odd = ValueError("odd")
    with engine._noting(job_of(method, "train"), 3, failures):
        raise odd
    assert failures == {3: odd} and engine.runner(job_of(method, "train")) is not train


@pytest.mark.parametrize("mapped", [False, True])
def test_scores_are_sums_in_double_precision_and_a_stack_knows_its_padding(mapped: bool) -> None:
    net = small_net(torch.float32)
    experiment = Experiment.of(FedAvg(net), small_federation(dtype=torch.float32))
    job = experiment.training_job("all", [0, 1], experiment.start())
    seen: list[Any] = []

    def view(blocks: Any, x: Any) -> Any:
        now = mode.current()
        seen.append((now.training, now.mapped, now.mask is not None, now.task))
        return job.method.predict(blocks, x)

    rows, sizes = job.part_rows("train", [0, 1])
    local = job.several([0, 1], vmap) if mapped else job.one(1)
    chunks = chunks_of(rows, sizes, 512) if mapped else chunks_of(rows[1], sizes[1], 512)
    pick: Any = lambda value: value if mapped else value[1]
    blocks = {"model": {k: pick(v) for k, v in job.sent.blocks["model"].items()}}
    scores = scoring.score(lambda client: view, blocks, local, chunks, {})
    assert scores.dtype == torch.double and scores.shape == ((2, 1, 3) if mapped else (1, 3))
    assert scores[..., 0, 1].tolist() == pick(sizes).tolist()
    assert seen == [(False, mapped, mapped, job.data.task)] and not scores.requires_grad
