"""The benchmark trains the same work on both sides and says how they compare; nothing
here looks at a clock.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import count

import pytest
import torch

from fedblocks.bench import measure as measuring
from fedblocks.bench.jobs import J1, J4, J7, JOBS, LARGE, BenchJob, choose_jobs
from fedblocks.bench.materials import materials
from fedblocks.bench.measure import Contender, Result, our_flops, our_round
from fedblocks.bench.plain import PlainLoop
from fedblocks.bench.suite import run_job, run_jobs
from fedblocks.cli import main
from fedblocks.core.errors import UserError
from fedblocks.engines.auto import trial as planner
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised


def small(job: BenchJob, **changes: object) -> BenchJob:
    """A job of two clients with two batches each, the second not full."""
    tiny = {"clients": 2, "cohort": 2, "cpu_cohort": None, "examples": 6, "batch": 4}
    return replace(job, **{**tiny, **changes})


@pytest.fixture(autouse=True)
def sequential_is_fastest(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """What "auto" finds depends on the machine; not so here."""
    monkeypatch.setenv("FEDBLOCKS_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setattr(
        planner, "measure_seconds", lambda engine, job: 1.0 if engine.name == "sequential" else 2.0
    )


@pytest.fixture
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("J1", "J7"):
        monkeypatch.setitem(JOBS, name, small(JOBS[name]))


@pytest.mark.parametrize("engine", [Sequential(), Vectorised()])
def test_both_sides_train_on_the_same_number_of_examples(engine) -> None:
    arguments = materials(small(J1, examples=10), "cpu")
    assert (
        our_round(arguments, engine)() == PlainLoop(arguments).round() == arguments.examples == 20
    )


@pytest.mark.parametrize("name", ["J1", "J4", "J5", "J6", "J7"])
def test_both_sides_do_the_same_arithmetic(name) -> None:
    arguments = materials(
        small(JOBS[name], tests=0, net_options={"hidden": 8} if name == "J4" else {}), "cpu"
    )
    assert our_flops(arguments) == pytest.approx(
        measuring.loop_flops(PlainLoop(arguments)), rel=1e-3
    )


def test_one_round_of_ours_ends_where_a_loop_on_the_same_batches_ends() -> None:
    # whole clients as batches: their order does not matter
    arguments = materials(small(J7, batch=6), "cpu")
    loop = PlainLoop(arguments)
    loop.state = {k: v[0].clone() for k, v in arguments.experiment.start().server["model"].items()}
    loop.round()
    from fedblocks.engines.round import run_round

    state, _ = run_round(
        arguments.experiment, arguments.experiment.start(), arguments.cohort, Sequential()
    )
    for name, value in state.server["model"].items():
        assert torch.allclose(value[0], loop.state[name], atol=1e-6)


def test_the_figures_of_a_result_follow_from_its_rounds(monkeypatch) -> None:
    ticks = count()
    monkeypatch.setattr(
        measuring, "_time", lambda round, device: (round(), float(next(ticks)) + 1.0, 0.5, 7)[1:]
    )
    (result,) = run_job(small(J7), "cpu", repeat=3, engines=["sequential"])
    # in turn: loop, ours, loop, ours, loop, ours take 1, 2, ... 6 s; the products that follow 8 s
    # and more
    assert result.plain.seconds == [1, 3, 5] and result.ours.seconds == [2, 4, 6]
    assert result.speedup == 3 / 4 and result.cpu_speedup == 1
    assert result.ours.examples_per_second == 12 / 4 and result.ours.peak_bytes == 7
    assert result.floor_seconds == pytest.approx(result.flops_per_example * 12 / (2 * 1024**3 / 8))
    assert result.share_of_floor == pytest.approx(result.floor_seconds / 4)


def test_a_dense_net_takes_six_operations_a_weight_less_the_gradient_of_its_input() -> None:
    arguments = materials(small(J7, examples=8), "cpu")
    first, others = 784 * 200, 200 * 200 + 200 * 10
    assert our_flops(arguments) == 2 * 2 * first + 2 * 3 * others


def test_results_are_plain_values() -> None:
    actual = run_jobs(
        [small(J7)], "cpu", 1, ["sequential", "vectorised", "auto"], lambda results, table: None
    )
    assert [r["ours"]["who"] for r in actual["results"]] == ["sequential", "vectorised"]
    assert json.loads(json.dumps(actual)) == actual
    assert not actual["skipped"] and actual["env"]["versions"]["torch"]


def test_what_auto_chose_is_told_with_its_reason_and_when_it_was_measured() -> None:
    said = [
        run_jobs([small(J7)], "cpu", 1, ["auto"], lambda results, table: None)["choices"]["J7"]
        for _ in range(2)
    ]
    assert all(one.startswith("sequential: sequential 1000 ms, ") for one in said)
    assert ", measured at 20" not in said[0] and ", measured at 20" in said[1]
    with_name = run_jobs([small(J7)], "cpu", 1, ["sequential"], lambda results, table: None)
    assert with_name["choices"] == {}


def test_what_a_method_cannot_do_is_left_out_with_its_reason() -> None:
    impossible = small(
        J4, name="J4/flow", method="modfl", options={"configuration": ""}, shape=(5,), classes=7
    )
    actual = run_jobs(
        [replace(impossible, net="lenet")], "cpu", 1, ["sequential"], lambda results, table: None
    )
    assert list(actual["skipped"]) == ["J4/flow"] and actual["results"] == []


def test_jobs_are_found_by_name_and_by_the_name_of_their_family() -> None:
    assert [job.name for job in choose_jobs(["J1", "J8"], large=False)] == [
        "J1",
        "J8/1000",
        "J8/10000",
        "J8/100000",
    ]
    assert LARGE in choose_jobs(["J8"], large=True) and LARGE not in choose_jobs([], large=False)
    assert {job.name.partition("/")[0] for job in choose_jobs([], large=False)} == {
        "J1",
        "J3",
        "J4",
        "J5",
        "J6",
        "J7",
        "J8",
        *(f"J{number}" for number in range(10, 15)),
    }
    with pytest.raises(UserError, match='no job "J99"'):
        choose_jobs(["J99"], large=False)


def test_every_method_has_a_job() -> None:
    from fedblocks.methods import METHODS

    assert [job.method for job in choose_jobs(["J2"], large=False)] == list(METHODS)


@pytest.mark.parametrize("name", [name for name in JOBS if name.startswith("J2/")])
def test_every_method_runs_on_lenet(name) -> None:
    arguments = materials(small(JOBS[name], examples=4, batch=4), "cpu")
    assert our_round(arguments, Sequential())() == 8


def test_a_population_costs_two_arrays_and_not_a_pool_of_its_own() -> None:
    data = materials(JOBS["J8/100000"], "cpu").experiment.data
    assert data.clients == 100_000 and len(data.x) <= 60_000


def test_in_a_population_everybody_keeps_something_from_the_start() -> None:
    arguments = materials(replace(JOBS["J8/1000"], clients=130, cohort=2), "cpu")
    private = arguments.start.private
    assert len(private) == 130 and private[129].keys() == private[0].keys() != set()
    assert materials(small(J7), "cpu").start.private == {}


def test_the_time_of_workers_is_counted_and_they_are_gone_afterwards() -> None:
    arguments, engine = materials(small(J7, examples=400), "cpu"), Processes(count=2)
    round = our_round(arguments, engine)
    round()
    before, own = measuring._processor_seconds(), time.process_time()
    while measuring._processor_seconds() - before <= (time.process_time() - own):
        round()  # until a clock of ten milliseconds has ticked in a worker
    assert (
        measuring._peak(torch.device("cpu"))
        > sum(measuring._own_bytes(pid) for pid in measuring._workers())
        > 0
    )
    engine.close()
    (result,) = run_job(small(J7), "cpu", repeat=1, engines=["processes"])
    assert result.ours.who == "processes" and measuring._workers() == []


@pytest.mark.usefixtures("small_jobs")
def test_the_command_prints_and_stores_the_same_results(capsys, tmp_path) -> None:
    out = tmp_path / "deep" / "bench.json"
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "bench",
                "J1",
                "J7",
                "--json",
                "--repeat",
                "2",
                "--engine",
                "sequential",
                "--out",
                str(out),
            ]
        )
    assert stop.value.code == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual == json.loads(out.read_text())
    assert [r["job"] for r in actual["results"]] == ["J1", "J7"]
    assert all(
        len(r["ours"]["seconds"]) == len(r["plain"]["seconds"]) == 2 for r in actual["results"]
    )


@pytest.mark.usefixtures("small_jobs")
def test_the_command_shows_a_table(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "J7", "--repeat", "1"])
    assert "times the loop" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["J99"], ["J7", "--engine", "magic"], ["J7", "--device", "abacus"]]
)
def test_the_command_refuses_what_it_does_not_know(words, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *words])
    assert stop.value.code not in (0, 1)
    assert "fix:" in capsys.readouterr().err


def test_a_side_has_the_median_and_not_the_mean() -> None:
    assert Contender("x", 10, [1.0, 2.0, 9.0], [1.0, 1.0, 1.0], 0).median_seconds == 2
    assert {"speedup", "cpu_speedup", "per_operation"} <= Result.__annotations__.keys()
